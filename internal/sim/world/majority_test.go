package world

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

// A board is what a plan says of servers of which a majority decides.
type board struct {
	servers   int             // 3 or 5; 0 for other kinds
	clocks    []time.Duration // how far each is ahead
	fast      []bool          // it gains time
	twice     string          // a process whose list has the first server twice, also as the second one
	unguarded bool            // young servers count
}

// gains is the share of time that a fast clock gains: half of what the protocol allows.
const gains = 0.005

// Faults of a majority's servers.
const (
	hangs   what = "does not answer"
	slows   what = "is slow"
	returns what = "restarts with data that it had some time ago"
)

// drawBoard draws the servers, what happens to them, and what only the clients of a majority do.
func (p *plan) drawBoard(r *rand.Rand) {
	p.servers = []int{3, 3, 3, 5}[r.IntN(4)]
	p.trip = []time.Duration{3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond}[r.IntN(3)] // those who split votes ask again after a trip
	for _, s := range p.storms {
		for range 1 + r.IntN(4) {
			f := fault{
				At: s.from + upTo(r, s.to-s.from), Process: r.IntN(len(p.turns)), Store: r.IntN(p.servers),
				What: []what{hangs, slows, cutsOff, cutsOff, restarts, restarts, returns}[r.IntN(7)],
			}
			f.Lasts = upTo(r, s.to-f.At)
			p.faults = append(p.faults, f)
		}
	}
	apart := []time.Duration{0, 100 * time.Millisecond, p.ttl / 2, time.Hour}[r.IntN(4)]
	if apart > p.ttl && slices.ContainsFunc(p.faults, func(f fault) bool { return f.What == restarts || f.What == returns }) {
		apart = p.ttl / 2 // fences that are forgotten follow the clocks
	}
	for range p.servers {
		p.clocks = append(p.clocks, time.Duration(float64(apart)*(r.Float64()-0.5)).Round(time.Microsecond))
		p.fast = append(p.fast, r.IntN(3) == 0)
	}
	if r.IntN(4) == 0 && len(p.turns) > 2 {
		p.twice = letter(len(p.turns) - 1)
	}
	keys := p.keys()
	for _, s := range p.storms {
		for range 2 + r.IntN(3) { // several want a key at once, and split the votes
			at, key := s.from+upTo(r, s.to-s.from), keys[r.IntN(len(keys))]
			for process := range p.turns {
				j := p.job(r, at+upTo(r, 10*p.trip), key, p.ttl/2)
				j.Process = process
				p.jobs = append(p.jobs, j)
			}
		}
	}
	slices.SortStableFunc(p.jobs, func(a, b job) int { return cmp.Compare(a.At, b.At) })
	for i := range p.jobs {
		j := &p.jobs[i]
		j.Repeats = r.IntN(3) == 0 && p.seed%7 != 6      // else no answers can be judged
		j.Late = j.Detaches && !p.late && r.IntN(2) == 0 // a late vote can revive a lease that is adopted
	}
}

// stores is how many servers there are.
func (s *setup) stores() int { return max(s.servers, s.kind.stores()) }

// store is the server that a process reaches by an address.
func (b *board) store(process string, address int) int {
	if process == b.twice && address == 1 {
		return 0
	}
	return address
}

// setClocks sets the clocks of a majority.
func (w *world) setClocksLocked() {
	for i, ahead := range w.clocks {
		if now := w.now(); w.fast[i] && now > 0 {
			ahead += time.Duration(gains * float64(now))
		}
		w.servers[i].SetClock(ahead)
	}
}

// checkVotes demands that the servers that count and do not hold a certain lease are no majority: they could grant the key to
// another.
func (w *world) checkVotes(h *hold) {
	free := 0
	for i := range w.servers {
		w.mu.Lock()
		at, forgot := w.forgot[i]
		w.mu.Unlock()
		young := forgot && time.Since(at) < w.ttl+w.ttl/100+time.Second
		if token, _ := w.server(i).Do("GET", h.key); token != h.token && !young {
			free++
		}
	}
	if w.kind == majority && free > len(w.servers)/2 && !w.failed() {
		w.fail(loses, "%s is certain of %s, and a majority may vote for another", h.name, h.key)
	}
}

// repeat has the holder of a lease repeat its attempt now and then, as a Locker allows. The channel that it returns is closed when that and
// over have ended.
func (p *process) repeat(s *seeds, over <-chan struct{}, lease *dlock.Lease) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			ctx, cancel := context.WithDeadline(lease.Context(context.Background()), s.after(p.ttl))
			a, err := p.locker.TryAcquire(ctx, lease.Key(), lease.Token(), p.ttl)
			cancel()
			p.say("repeats its attempt for %s: %v, %v", lease.Key(), a.Acquired, err)
			select {
			case <-over:
			case <-lease.Done():
				<-over // nobody else may release what the attempt has got
				_, _ = p.locker.Release(context.Background(), lease.Key(), lease.Token())
			case <-s.over(p.ttl / 8):
				continue
			}
			return
		}
	}()
	return ended
}

// mend replaces the process whose list of servers is wrong.
func (s *seeds) mend() {
	if p := s.process(len(s.turns) - 1); p.name == s.twice {
		s.replace(p)
	}
}

// cutOffWaiter cuts a process off from a majority while it waits, and lets another release the key. Those that still
// reach just a majority must get it soon, though the vote of one of their servers was that of the waiter.
func (s *seeds) cutOffWaiter() {
	lonely, holder := s.processes[0], s.processes[1]
	for _, key := range s.plan.keys() {
		ctx, cancel := context.WithDeadline(context.Background(), s.moment(time.Hour))
		lease, err := holder.client.Acquire(ctx, key)
		if err != nil {
			s.fail(slow, "%s does not get %s before another is cut off: %v", holder.name, key, err)
			cancel()
			continue
		}
		waiting := make(chan struct{})
		go func() {
			defer close(waiting)
			if lease, err := lonely.client.Acquire(ctx, key); err == nil {
				_ = lease.Release()
			}
		}()
		s.sleep(s.now() + time.Second)
		s.cutOff(lonely, time.Now().Add(time.Hour))
		_ = lease.Release()
		s.round("while a waiter is cut off", []*process{holder}, 1, 2*s.ttl+20*time.Second, [][]string{{key}})
		s.cutOff(lonely, time.Time{})
		cancel()
		<-waiting
	}
}
