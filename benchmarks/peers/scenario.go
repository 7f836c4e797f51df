package peers

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/internal/faultproxy"
)

// A scenario is what a contestant does in a turn.
type scenario struct {
	name   string        // tells it from all others
	rtt    time.Duration // that is added between all clients and the server
	n      int           // goroutines, processes or leases
	window time.Duration
	ttl    time.Duration
	rounds int
	settle time.Duration // before the window
	hold   time.Duration // of a process in a crowd
	nodes  int           // servers of which a majority decides; 0: there is one
	faulty int           // of the nodes, the last ones
	fault  fault
	usual  bool          // go-redis has a pool of its default size
	every  time.Duration // between the arrivals of two orders; 0: an order comes when the one before is done
	among  []contestant
	run    func(*turn, context.Context)
}

// slow is the round-trip time of the slow network.
const slow = 2 * time.Millisecond

// loads returns those of a service: a new key for each order.
func loads() []scenario {
	base := scenario{n: 64, ttl: 30 * time.Second, rounds: 3, usual: true, among: alone, run: (*turn).cycles}
	busy, open := base, base
	busy.name, busy.window = "orders", time.Second
	open.name, open.window, open.every = "open loop", 1500*time.Millisecond, time.Millisecond
	return []scenario{busy, open}
}

// onOneServer returns the scenarios of a lock that several want, and of many leases: each with a network that adds nothing, and those of
// which it makes much with the slow one too.
func onOneServer() (all []scenario) {
	const ttl = 30 * time.Second
	plain := contestants[:len(contestants)-3] // without local turns, which change nothing there
	all = []scenario{
		{name: "leases", n: 10_000, window: 6 * time.Second, ttl: 6 * time.Second, rounds: 1, among: plain, run: (*turn).leases},
		{name: "idle", n: 128, window: 5 * time.Second, ttl: ttl, rounds: 1, among: contestants, run: (*turn).idle},
	}
	for _, rtt := range []time.Duration{0, slow} {
		add := func(s scenario) {
			if s.rtt = rtt; rtt > 0 {
				s.name += ", slow"
			}
			all = append(all, s)
		}
		add(scenario{name: "threads", n: 32, window: 1500 * time.Millisecond, ttl: ttl, rounds: 2, among: contestants, run: (*turn).threads})
		for _, n := range []int{2, 8, 32, 128} {
			s := scenario{n: n, hold: time.Millisecond, window: 1500 * time.Millisecond, ttl: ttl, rounds: 2, among: plain, run: (*turn).crowd}
			if n == 128 {
				s.window, s.rounds = 2500*time.Millisecond, 1
			}
			s.name = fmt.Sprint(n, " processes")
			add(s)
		}
	}
	return all
}

// onNodes returns the scenarios of the chapter about majorities.
func onNodes() (all []scenario) {
	base := scenario{rtt: slow, ttl: longest, nodes: 5, rounds: 2, window: time.Second, n: 1, among: majorities, run: (*turn).cycles}
	add := func(name string, change func(s *scenario)) {
		s := base
		s.name = name
		change(&s)
		all = append(all, s)
	}
	add("alone, 3 servers", func(s *scenario) { s.nodes = 3 })
	add("alone, 5 servers", func(s *scenario) {})
	base.rounds, base.window = 1, 3*time.Second
	add("alone, 1 of 5 slow", func(s *scenario) { s.faulty, s.fault = 1, late })
	base.among = inMajority[:1]
	base.among = inMajority
	add("idle, 5 servers", func(s *scenario) { s.run, s.n, s.window = (*turn).idle, 16, 5*time.Second })
	base.run, base.n, base.hold, base.settle, base.window = (*turn).crowd, 16, time.Millisecond, 4*time.Second, 4600*time.Millisecond
	for lost := range 3 {
		add(fmt.Sprintf("16, %d of 5 down", lost), func(s *scenario) { s.faulty, s.fault = lost, down })
	}
	return all
}

// short makes a run of them take seconds: they are small, and but for "threads" each is for two
// contestants. It leaves out what is on one server and the slow network.
func short(all []scenario) (small []scenario) {
	for i, s := range all {
		if s.nodes == 0 && s.rtt > 0 {
			continue
		}
		s.rounds, s.n, s.window, s.settle = 1, min(s.n, 4), min(s.window, 100*time.Millisecond), 0
		if n := len(s.among); n > 2 && s.name != "threads" {
			j := 2 * i % (n - 1)
			s.among = s.among[j : j+2]
		}
		small = append(small, s)
	}
	return small
}

// A fault makes a node do what a broken one does, by its proxy.
type fault func(*faultproxy.Proxy)

func down(p *faultproxy.Proxy) { p.Refuse() }

func late(p *faultproxy.Proxy) {
	p.Slow(faultproxy.ToClient, faultproxy.Pace{Latency: slow/2 + 500*time.Millisecond})
}
