package conformance

import (
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A resource is what locks are for: workers read it, and write what they have made of that. Only the
// lock protects a counter: two that work at the same time lose an update. A fenced resource remembers
// the largest fence that it has seen, and refuses smaller ones. So it is safe even from holders that
// work on after their lease.
type resource struct {
	*randomRun
	key    string
	fenced bool
	slow   int // one in so many workers takes longer than a TTL

	mu      sync.Mutex
	fence   int64 // the largest that was seen
	version int   // how many times it was written
	wrong   int   // writes of what was made of an old version, and refusals of holders that were certain
}

const (
	resourceWorkers = 6
	resourceRounds  = 8

	writeAccepted = "a write was accepted"
	writeRefused  = "a write with an old fence was refused"
)

func guardedCounter(s *scene) error {
	r := &resource{randomRun: newRandomRun(s, resourceRounds), key: s.key(), slow: 12}
	r.run()
	h := r.recorder.History()
	overlaps := h.Overlaps()
	switch {
	case r.wrong == 0:
		return r.verdict(h, overlaps, nil)
	case len(overlaps) == 0: // one worked on after its lease
		return r.verdict(h, nil, errInconclusive)
	}
	return r.verdict(h, overlaps, errors.New("a counter that only the lock protects lost an update"))
}

func guardedRegister(s *scene) error {
	r := &resource{randomRun: newRandomRun(s, resourceRounds), key: s.key(), slow: 4, fenced: true}
	r.want = map[string]int{writeAccepted: s.amount(12), writeRefused: s.amount(4)}
	s.fenced(s.grant(s.client(), s.key(), s.token("first"), long))
	r.run(dlock.WithRenewal(false))
	var wrong error
	if r.wrong > 0 {
		wrong = errors.New("a register that refuses smaller fences than it has seen accepted a stale write, or refused a fresh one")
	}
	h := r.recorder.History()
	return r.verdict(h, h.Disorders(1), wrong)
}

func (r *resource) run(opts ...dlock.Option) {
	var all sync.WaitGroup
	for i := range resourceWorkers {
		name := clientName(i)
		client, _ := r.client(name, r.s.client(), opts...)
		all.Go(func() {
			defer client.Close()
			p := newPlan(r.seed, i, r.ttl)
			for n := 0; r.goesOn(n) && !r.isWrong(); n++ {
				r.change(name, client, p)
				time.Sleep(p.within(r.ttl / 50))
			}
		})
	}
	all.Wait()
}

// change reads the resource and writes it, sometimes after more than a TTL: the lease of a counter
// must be renewed. That of a fenced resource ends, and its holder does not look at it again.
func (r *resource) change(name string, client *dlock.Client, p *plan) {
	pause := p.within(r.ttl / 10)
	if p.once(r.slow) {
		pause += r.ttl + r.ttl/4
	}
	asked := r.recorder.Now()
	l, err := client.Acquire(r.s.ctx, r.key)
	switch {
	case err == nil:
	case tooLate(err):
		r.s.stop(errInconclusive)
		return
	default:
		r.s.fail("Client.Acquire(%s) = %w; want a lease", brief(r.key), err)
		return
	}
	hold := r.recorder.Hold(name, l, asked)
	version, ok := r.read(l)
	time.Sleep(pause)
	if ok && (r.fenced || l.Err() == nil) {
		r.write(l, version)
	}
	r.recorder.End(hold, l)
	_ = l.Release() // lost, for those that were slow
}

func (r *resource) isWrong() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wrong > 0
}

func (r *resource) read(l *dlock.Lease) (version int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version, r.admitsLocked(l)
}

// write writes what was made of the given version.
func (r *resource) write(l *dlock.Lease, version int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.admitsLocked(l) {
		r.seen.add(writeRefused)
		return
	}
	r.seen.add(writeAccepted)
	if version != r.version {
		r.wrong++
	}
	r.version++
}

// admitsLocked compares the fence of a holder. One that is certain of its lease is the
// latest, and so has the largest.
func (r *resource) admitsLocked(l *dlock.Lease) bool {
	if r.fenced && l.Fence() < r.fence {
		if l.Err() == nil {
			r.wrong++
		}
		return false
	}
	r.fence = max(r.fence, l.Fence())
	return true
}
