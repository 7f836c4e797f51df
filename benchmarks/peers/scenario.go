package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A scenario is what a contestant does in a turn. Its exported fields name it in results.
type scenario struct {
	Name   string
	RTT    time.Duration // that is added between all clients and the server
	N      int
	Window time.Duration
	TTL    time.Duration
	rounds int
	hold   time.Duration // of a contender in a crowd
	nodes  int           // servers of which a majority decides; 0: there is one
	apart  bool          // their clocks are
	faulty int           // of the nodes, the last ones
	fault  fault
	among  []contestant
	run    func(ctx context.Context, t turn, figures map[string]float64) ([]time.Duration, error)
}

// crowds are the numbers of processes that want one lock.
var crowds = []int{2, 8, 32, 128}

// limit bounds a turn, with the start and the end of its processes.
func (s scenario) limit() time.Duration { return s.Window + 30*time.Second }

// cost is how long a turn is expected to take.
func (s scenario) cost() time.Duration {
	crowd := 0
	if s.Name == "processes" || s.hold > 0 {
		crowd = s.N
	}
	return s.Window + 500*time.Millisecond + time.Duration(crowd)*15*time.Millisecond
}

// scenarios returns all scenarios, each with a network that adds nothing, and those of which
// it makes much with one that adds rtt, unless that is 0.
func scenarios(rtt time.Duration) (all []scenario) {
	const ttl = 30 * time.Second
	plain := contestants[:len(contestants)-3] // without local turns, which change nothing there
	all = []scenario{
		{Name: "own keys", N: 64, Window: time.Second, TTL: ttl, rounds: 3, among: plain, run: cycles},
		{Name: "leases", N: 10_000, Window: 6 * time.Second, TTL: 6 * time.Second, rounds: 1, among: plain, run: leases},
		{Name: "idle", N: 128, Window: 5 * time.Second, TTL: ttl, rounds: 1, among: contestants, run: idle},
	}
	networks := []time.Duration{0}
	if rtt > 0 {
		networks = append(networks, rtt)
	}
	for _, rtt := range networks {
		all = append(all,
			scenario{Name: "alone", RTT: rtt, N: 1, Window: 500 * time.Millisecond, TTL: ttl, rounds: 3, among: plain, run: cycles},
			scenario{Name: "threads", RTT: rtt, N: 32, Window: 1500 * time.Millisecond, TTL: ttl, rounds: 2, among: contestants, run: threads},
			scenario{Name: "takeover", RTT: rtt, N: 32, Window: 5 * time.Second, TTL: 2 * time.Second, rounds: 1, among: plain, run: takeover},
		)
		for _, n := range crowds {
			s := scenario{Name: "processes", RTT: rtt, N: n, Window: 1500 * time.Millisecond, TTL: ttl, rounds: 2, among: plain, run: processes}
			if n == 128 {
				s.Window, s.rounds = 2500*time.Millisecond, 1
			}
			all = append(all, s)
		}
	}
	return all
}

// short makes a run of them take seconds: they are small, and but for "threads" each is for
// two contestants on the first network.
func short(all []scenario) (small []scenario) {
	for i, s := range all {
		if slices.ContainsFunc(small, func(o scenario) bool { return o.Name == s.Name }) {
			continue
		}
		s.rounds, s.N, s.Window = 1, min(s.N, 4), min(s.Window, 100*time.Millisecond)
		switch s.Name {
		case "takeover": // outlives the TTL
			s.Window, s.TTL = 20*time.Second, 3*time.Second
			fallthrough
		default:
			if n := len(s.among); n > 2 {
				j := 2 * i % (n - 1)
				s.among = s.among[j : j+2]
			}
		case "threads":
		}
		small = append(small, s)
	}
	return small
}

func (s scenario) title() string {
	return fmt.Sprintf("%s, %d, RTT %v", s.Name, s.N, s.RTT)
}
