package stress

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A chaos injects faults while the workers work. It undoes them all before run returns.
type chaos struct {
	*journal
	rng     *rand.Rand
	pace    time.Duration // at most, from one fault to the next
	server  *redistest.Server
	proxies []*faultproxy.Proxy
	on      context.Context // faults end with it
	group   func(process string) *workerGroup
	wg      sync.WaitGroup
	late    context.Context // ends when the round gives up
	crashes int
}

// faults are what can happen. Each happens as often in a deck as the table says.
var faults = []struct {
	what   string // added to the journal when it has happened; "": the function adds it
	times  int
	strike func(c *chaos)
}{
	{"", 1, func(c *chaos) { c.wipe("FLUSHALL", func() { c.do("FLUSHALL") }) }},
	{"", 1, func(c *chaos) { c.add("handed over by script", c.published()); c.wipe("restart", c.server.Restart) }},
	{"scripts forgotten", 1, func(c *chaos) { c.do("SCRIPT", "FLUSH") }},
	{"server suspended", 1, func(c *chaos) {
		c.server.Suspend()
		c.sleep(c.below(400 * time.Millisecond))
		c.server.Resume()
		c.fault("server resumed")
	}},
	{"server paused", 1, func(c *chaos) {
		c.do("CLIENT", "PAUSE", fmt.Sprint(c.below(200*time.Millisecond).Milliseconds()), "ALL")
	}},
	{"", 2, func(c *chaos) { c.kill("normal") }},
	{"", 3, func(c *chaos) { c.kill("pubsub") }},
	{"connections cut", 2, func(c *chaos) { c.proxy().Cut() }},
	{"network blocked", 2, func(c *chaos) {
		c.bad(1500*time.Millisecond, func(p *faultproxy.Proxy) {
			p.Block([]faultproxy.Direction{faultproxy.ToStore, faultproxy.ToClient, faultproxy.Both}[c.rng.IntN(3)])
		})
	}},
	{"connections refused", 1, func(c *chaos) { c.bad(700*time.Millisecond, (*faultproxy.Proxy).Refuse) }},
	{"network slow", 4, func(c *chaos) { // each connection by a time of its own, so that replies overtake messages, and messages replies
		c.bad(1500*time.Millisecond, func(p *faultproxy.Proxy) {
			p.Slow(faultproxy.Both, faultproxy.Pace{Jitter: 1 + c.below(300*time.Millisecond)})
		})
	}},
	{"", 2, func(c *chaos) {
		c.meet("reply lost", func(p *faultproxy.Proxy) *faultproxy.Fault { return p.DropReply(c.match(), c.ending()) })
	}},
	{"", 1, func(c *chaos) {
		c.meet("request lost", func(p *faultproxy.Proxy) *faultproxy.Fault { return p.DropRequest(c.match(), c.ending()) })
	}},
	{"", 1, func(c *chaos) {
		c.meet("reply cut", func(p *faultproxy.Proxy) *faultproxy.Fault { return p.CutReply(c.match()) })
	}},
	{"", 3, (*chaos).delay},
	{"", 1, (*chaos).crash},
	{"", 1, (*chaos).burst},
}

// run injects faults of all kinds until c.on ends: each kind once quickly, then at the
// pace of the round.
func (c *chaos) run() {
	for pace := 20 * time.Millisecond; c.on.Err() == nil; pace = c.pace {
		var deck []int
		for i, f := range faults {
			deck = append(deck, slices.Repeat([]int{i}, f.times)...)
		}
		c.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, i := range deck {
			if f := faults[i]; f.what != "" {
				c.fault("%s", f.what)
				f.strike(c)
				c.add(f.what, 1)
			} else {
				f.strike(c)
			}
			c.sleep(c.below(pace))
		}
	}
	c.wg.Wait()
	for _, p := range c.proxies {
		c.healed(p)
	}
}

func (c *chaos) below(d time.Duration) time.Duration { return time.Duration(c.rng.Int64N(int64(d))) }

func (c *chaos) proxy() *faultproxy.Proxy { return c.proxies[c.rng.IntN(len(c.proxies))] }

func (c *chaos) sleep(d time.Duration) { sleep(c.on, d) }

func (c *chaos) do(args ...string) any {
	reply, _ := c.server.Do(args...)
	return reply
}

// wipe calls f, which makes the server lose all data.
func (c *chaos) wipe(what string, f func()) {
	c.fault("%s begins", what)
	c.Wipe(f)
	c.fault("%s has ended", what)
	c.add(what, 1)
}

// published returns how many messages the server has published since it started.
func (c *chaos) published() (n int) {
	text, _ := c.do("INFO", "commandstats").(string)
	for line := range lines(text) {
		_, _ = fmt.Sscanf(line, "cmdstat_publish:calls=%d", &n)
	}
	return n
}

func (c *chaos) kill(kind string) {
	if n, ok := c.do("CLIENT", "KILL", "TYPE", kind).(int64); ok && n > 0 {
		c.fault("%d connections killed: %s", n, kind)
		c.add("connections killed: "+kind, int(n))
	}
}

// bad makes a network bad for less than the given time.
func (c *chaos) bad(below time.Duration, spoil func(*faultproxy.Proxy)) {
	p, d := c.proxy(), c.below(below)
	spoil(p)
	c.wg.Go(func() { c.sleep(d); c.healed(p) })
}

func (c *chaos) healed(p *faultproxy.Proxy) {
	if err := p.Heal(); err != nil {
		c.note("", event{Kind: broken, Who: "the test", At: now(), Text: err.Error()})
	}
}

// match matches calls of scripts, or, one time in five, any command.
func (c *chaos) match() faultproxy.Match {
	if c.rng.IntN(5) == 0 {
		return faultproxy.Any
	}
	return faultproxy.Command("EVALSHA")
}

func (c *chaos) ending() faultproxy.Ending {
	return []faultproxy.Ending{faultproxy.Cut, faultproxy.Stall}[c.rng.IntN(2)]
}

// meet waits until a fault has met a request, or lifts it at the end.
func (c *chaos) meet(what string, lie func(*faultproxy.Proxy) *faultproxy.Fault) {
	p := c.proxy()
	f := lie(p)
	c.wg.Go(func() {
		select {
		case <-f.Struck():
			c.add(what, 1)
			c.fault("%s", what)
		case <-c.on.Done():
			p.Lift(f)
		}
	})
}

// delay delivers a request after its client has given it up.
func (c *chaos) delay() {
	p, d := c.proxy(), c.below(200*time.Millisecond)<<c.rng.IntN(5)
	f := p.Hold(faultproxy.Command("EVALSHA"), c.ending())
	c.wg.Go(func() {
		select {
		case <-f.Struck():
			c.sleep(d)
		case <-c.on.Done():
			if p.Lift(f) {
				return
			}
			<-f.Struck()
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if f.Deliver(ctx) == nil {
			c.add("request late", 1)
			c.fault("request delivered, late by %v", d)
		}
	})
}

// crash starts a group of workers, and cuts it off from the server for good while they
// hold and wait: to the server, a process has died.
func (c *chaos) crash() {
	c.crashes++
	process, library, d := fmt.Sprintf("crash%d", c.crashes), c.rng.IntN(len(clients.All)), c.below(500*time.Millisecond)
	c.wg.Go(func() {
		p, err := faultproxy.New(c.server.Addr())
		if err != nil {
			c.fault("no proxy: %v", err)
			return
		}
		defer p.Close()
		group := c.group(process)
		var giveUp context.CancelFunc
		group.limit, giveUp = context.WithCancel(group.limit)
		group.stop = group.limit
		defer giveUp()
		if _, err := group.start("crash/"+clients.All[library].Name, openAt(library, p.Addr()), 4, (*worker).anything); err != nil {
			return
		}
		c.sleep(d)
		p.Refuse()
		giveUp()
		group.close()
		c.add("crashed", 1)
	})
}

// burst starts a hundred waits for one lock, and cancels them together.
func (c *chaos) burst() {
	library, p, d := c.rng.IntN(len(clients.All)), c.proxy(), c.below(300*time.Millisecond)
	c.wg.Go(func() {
		locker, closeClient, err := patiently(c.on, openAt(library, p.Addr()))
		if err != nil {
			return
		}
		defer closeClient()
		defer locker.Close()
		client := dlock.New(locker, dlock.WithOwner("burst"), dlock.WithTTL(300*time.Millisecond))
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		var waits sync.WaitGroup
		for range 100 {
			waits.Go(func() {
				if lease, err := client.Acquire(ctx, "key0"); err == nil {
					_ = lease.Release()
				}
			})
		}
		waits.Wait()
		c.add("bursts", 1)
	})
}

// wantedKinds are the things of which each must have happened before a round may end.
var wantedKinds = slices.Concat(childKinds, []string{
	"found held", "served from the queue", "cancelled in the queue", "MaxWait over", "expired", "abandoned",
	"lost early", "not answered", "detached", "server checked", "led", "permit taken", "handed over by script", "crashed", "bursts",
	"FLUSHALL", "restart", "scripts forgotten", "server suspended", "server paused",
	"connections killed: normal", "connections killed: pubsub", "connections cut", "connections refused",
	"network blocked", "network slow", "reply lost", "request lost", "reply cut", "request late",
})
