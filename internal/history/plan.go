package history

import (
	"math/rand/v2"
	"time"
)

// A Task is what a client does in one step of a random history.
type Task int

// The tasks.
const (
	Work    Task = iota // waits for the key, holds it for a moment, releases it
	Hurry               // does not wait for long
	Outlast             // holds the key for longer than a TTL, and renews
	Extend              // renews once, by hand
	Die                 // stops while it holds the key, and comes back when its lease has ended
	Vanish              // takes the key and never comes back
	Repeat              // makes every call twice, like a client whose replies are lost
	Look                // inspects
)

// tasks are the tasks, and the share of each in 100 steps.
var tasks = [...]struct {
	task  Task
	share int
}{{Work, 34}, {Hurry, 20}, {Outlast, 6}, {Extend, 8}, {Die, 10}, {Vanish, 6}, {Repeat, 10}, {Look, 6}}

// A Step is what one client does next. It does not depend on what happened before, so
// a seed always leads to the same steps.
type Step struct {
	Task  Task
	Key   int           // index of a key
	Wait  time.Duration // how long the client waits for the key, if it is in a hurry
	Hold  time.Duration // how long it holds the key, or stays away after its lease has ended
	Rest  time.Duration // how long it does nothing afterwards
	Stall time.Duration // how late it gets the first answer
	Fault Fault
}

// A Fault is what happens to the client's connection during a step.
type Fault struct {
	After   time.Duration // from the beginning of the step
	Silence time.Duration // how long nothing is passed on; then the connection is cut
	Happens bool
}

// A Plan draws the steps of one client.
type Plan struct {
	rng *rand.Rand
	ttl time.Duration
}

// NewPlan returns the plan of one client, for leases of ttl.
func NewPlan(seed uint64, client int, ttl time.Duration) *Plan {
	return &Plan{rand.New(rand.NewPCG(seed, uint64(client))), ttl}
}

// Next draws a step with one of so many keys.
func (p *Plan) Next(keys int) Step {
	s := Step{
		Task:  p.task(),
		Key:   p.rng.IntN(keys),
		Wait:  p.Within(p.ttl / 4),
		Hold:  p.Within(p.ttl / 10),
		Rest:  p.Within(p.ttl / 50),
		Stall: p.rarely(p.ttl + p.ttl/4),
		Fault: Fault{After: p.Within(p.ttl / 10), Silence: p.Within(p.ttl + p.ttl/4), Happens: p.Once(10)},
	}
	if s.Task == Outlast {
		s.Hold += p.ttl + p.ttl/2
	}
	return s
}

func (p *Plan) task() Task {
	n := p.rng.IntN(100)
	for _, t := range tasks {
		if n -= t.share; n < 0 {
			return t.task
		}
	}
	return Work
}

// Within draws a duration between 1 ns and d.
func (p *Plan) Within(d time.Duration) time.Duration {
	return time.Duration(p.rng.Int64N(int64(d))) + 1
}

// Once is true one time in n.
func (p *Plan) Once(n int) bool { return p.rng.IntN(n) == 0 }

// rarely is 0, or up to d once in 16 steps.
func (p *Plan) rarely(d time.Duration) time.Duration {
	d = p.Within(d)
	if !p.Once(16) {
		return 0
	}
	return d
}
