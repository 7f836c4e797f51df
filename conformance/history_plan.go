package conformance

import (
	"math/rand/v2"
	"time"
)

// A deed is what a worker does in one round of a history.
type deed int

const (
	works    deed = iota // waits for the key, holds it for a moment, releases it
	hurries              // does not wait for long
	lasts                // holds the key for longer than a TTL, and renews
	extends              // renews once, by hand
	dies                 // stops while it holds the key, and comes back when its lease has ended
	vanishes             // takes the key and is never heard of again
	repeats              // makes every call twice, as one does whose replies are lost
	looks                // inspects
)

// deeds is how often each deed is done, of 100 rounds.
var deeds = [...]struct {
	deed  deed
	share int
}{{works, 34}, {hurries, 20}, {lasts, 6}, {extends, 8}, {dies, 10}, {vanishes, 6}, {repeats, 10}, {looks, 6}}

// A step is one round of one worker. Nothing in it depends on what happened
// before, so that a seed always leads to the same steps.
type step struct {
	deed  deed
	key   int
	wait  time.Duration // how long it waits for the key, if it is in a hurry
	hold  time.Duration // how long it holds the key, or stays away when its lease has ended
	rest  time.Duration // afterwards
	stall time.Duration // by which the first answer is late
	fault fault
}

// A fault is what happens to the connection of a worker while it makes a step.
type fault struct {
	after   time.Duration // the step has begun
	silence time.Duration // nothing is passed on for so long; then the connection is cut
	happens bool
}

// A plan draws the steps of one worker.
type plan struct {
	rng *rand.Rand
	ttl time.Duration
}

func newPlan(seed uint64, worker int, ttl time.Duration) *plan {
	return &plan{rand.New(rand.NewPCG(seed, uint64(worker))), ttl}
}

func (p *plan) next() step {
	s := step{
		deed:  p.deed(),
		key:   p.rng.IntN(historyKeys),
		wait:  p.within(p.ttl / 4),
		hold:  p.within(p.ttl / 10),
		rest:  p.within(p.ttl / 50),
		stall: p.rarely(p.ttl + p.ttl/4),
		fault: fault{after: p.within(p.ttl / 10), silence: p.within(p.ttl + p.ttl/4), happens: p.rng.IntN(10) == 0},
	}
	if s.deed == lasts {
		s.hold += p.ttl + p.ttl/2
	}
	return s
}

func (p *plan) deed() deed {
	n := p.rng.IntN(100)
	for _, d := range deeds {
		if n -= d.share; n < 0 {
			return d.deed
		}
	}
	return works
}

func (p *plan) within(d time.Duration) time.Duration {
	return time.Duration(p.rng.Int64N(int64(d))) + 1
}

// rarely is 0, or up to d once in 16 steps.
func (p *plan) rarely(d time.Duration) time.Duration {
	d = p.within(d)
	if p.rng.IntN(16) > 0 {
		return 0
	}
	return d
}
