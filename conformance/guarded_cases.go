package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// What locks are for: data that many change at once. A crowd works on them.
type crowd struct {
	s    *scene
	key  string
	ttl  time.Duration
	seed uint64
}

const (
	crowdWorkers = 6
	crowdRounds  = 8
)

func newCrowd(s *scene) *crowd {
	c := &crowd{s, s.key(), s.h.coreTTL(), seed()}
	s.t.Logf("%s=%d", seedVariable, c.seed)
	return c
}

// run has each worker do its rounds, and go on until enough says so, or it would
// never.
func (c *crowd) run(enough func() bool, do func(*dlock.Client, *plan), opts ...dlock.Option) {
	var wg sync.WaitGroup
	backoff := dlock.WithBackoff(func(int) time.Duration { return max(5*time.Millisecond, c.ttl/40) })
	for i := range crowdWorkers {
		l := c.s.client()
		wg.Go(func() {
			client := dlock.New(l, dlock.WithTTL(c.ttl), backoff).With(opts...)
			defer client.Close()
			p := newPlan(c.seed, i, c.ttl)
			for n := range 20 * crowdRounds {
				if c.s.over() || n >= c.s.amount(crowdRounds) && enough() {
					return
				}
				do(client, p)
				time.Sleep(p.within(c.ttl / 50))
			}
		})
	}
	wg.Wait()
}

// acquire returns a lease, or nil if the case is over.
func (c *crowd) acquire(client *dlock.Client) *dlock.Lease {
	l, err := client.Acquire(c.s.ctx, c.key)
	switch {
	case err == nil:
	case tooLate(err):
		c.s.stop(errInconclusive)
		return nil
	default:
		c.s.fail("Client.Acquire(%s) = %w; want a lease", brief(c.key), err)
		return nil
	}
	return l
}

// An update is a change of the counter by one.
type update struct {
	fence    int64
	read     int64
	from, to time.Duration
}

func (u update) String() string {
	return fmt.Sprintf("%s to %s, fence %d: read %d, wrote %d", millis(u.from), millis(u.to), u.fence, u.read, u.read+1)
}

// A counter is read and written by those who hold its lock. Nothing else
// protects it: two that work at the same time lose an update.
type counter struct {
	*crowd
	start time.Time
	value atomic.Int64
	late  atomic.Bool // a lease was not renewed in time

	mu      sync.Mutex
	updates []update // in the order in which they were written
}

func guardedCounter(s *scene) error {
	c := &counter{crowd: newCrowd(s), start: time.Now()}
	c.run(func() bool { return true }, c.add)
	if err := s.result(); err != nil {
		return err
	}
	return c.verdict()
}

// add adds one, unless the lease is lost. Now and then that takes longer than a
// TTL, for which the lease must be renewed.
func (c *counter) add(client *dlock.Client, p *plan) {
	pause := p.within(c.ttl / 10)
	if p.rng.IntN(12) == 0 {
		pause += c.ttl + c.ttl/4
	}
	l := c.acquire(client)
	if l == nil {
		return
	}
	u := update{fence: l.Fence(), read: c.value.Load(), from: time.Since(c.start)}
	if c.keeps(l, pause) {
		c.value.Store(u.read + 1)
		u.to = time.Since(c.start)
		c.mu.Lock()
		c.updates = append(c.updates, u)
		c.mu.Unlock()
	}
	c.keeps(l, 0)
	_ = l.Release()
}

// keeps reports whether the lease still lasts when d has passed. If it was not
// renewed in time, the machine was too slow.
func (c *counter) keeps(l *dlock.Lease, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.Done():
	}
	if l.Err() == nil {
		return true
	}
	if !time.Now().Before(l.Deadline()) {
		c.late.Store(true)
	}
	return false
}

func (c *counter) verdict() error {
	got, want := c.value.Load(), int64(len(c.updates))
	if got == want {
		return nil
	}
	if c.late.Load() {
		return errInconclusive
	}
	lost := fmt.Sprintf("%d updates of a counter left it at %d: %d were lost, though every holder was certain of its lease", want, got, want-got)
	byValue := make(map[int64]update)
	for _, u := range c.updates {
		if other, ok := byValue[u.read]; ok {
			lost += fmt.Sprintf("\n  %v\n  %v", other, u)
			break
		}
		byValue[u.read] = u
	}
	return fmt.Errorf("%s\n%s=%d makes the same random choices again", lost, seedVariable, c.seed)
}

// A register remembers the largest fence that it has seen, and refuses smaller
// ones. So its data are safe even from holders that work on after their lease.
type register struct {
	*crowd

	mu       sync.Mutex
	fence    int64 // the largest that was seen
	version  int   // how often it was written
	writer   int64 // the fence of the last write
	accepted int
	refused  int
}

// Enough writes, of either kind, to prove anything.
const (
	enoughAccepted = 12
	enoughRefused  = 4
)

func guardedRegister(s *scene) error {
	r := &register{crowd: newCrowd(s)}
	first := s.grant(s.client(), s.key(), s.token("first"), long)
	s.fenced(first)
	r.run(r.enough, r.change, dlock.WithRenewal(false))
	if err := s.result(); err != nil {
		var skip skipError
		if errors.As(err, &skip) {
			return err
		}
		return fmt.Errorf("%w\n%s=%d makes the same random choices again", err, seedVariable, r.seed)
	}
	if !r.enough() {
		return fmt.Errorf("too little happened to prove anything: %d writes were accepted and %d stale ones refused (%s=%d)",
			r.accepted, r.refused, seedVariable, r.seed)
	}
	return nil
}

func (r *register) enough() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted >= r.s.amount(enoughAccepted) && r.refused >= r.s.amount(enoughRefused)
}

// change reads the register and writes it. Some holders stop between the two for
// longer than their lease, and do not look at it again.
func (r *register) change(client *dlock.Client, p *plan) {
	pause, stops := p.within(r.ttl/8), p.rng.IntN(4) == 0
	l := r.acquire(client)
	if l == nil {
		return
	}
	version, ok := r.read(l)
	if stops {
		pause += time.Until(l.Deadline()) // while the next holder works, or the one after it
	}
	time.Sleep(pause)
	if ok {
		r.write(l, version)
	}
	_ = l.Release() // lost, for those who stopped
}

func (r *register) read(l *dlock.Lease) (version int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.admits(l) {
		return 0, false
	}
	return r.version, true
}

// write writes what was made of the given version.
func (r *register) write(l *dlock.Lease, version int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.admits(l) {
		r.refused++
		return
	}
	r.accepted++
	if version != r.version {
		r.s.fail("a register that refuses smaller fences than it has seen accepted a stale write: fence %d wrote what it had made of version %d, over version %d, which fence %d had written meanwhile",
			l.Fence(), version, r.version, r.writer)
	}
	r.version, r.writer = r.version+1, l.Fence()
}

// admits checks the fence of a holder. One that is certain of its lease is the
// latest, and so has the largest.
func (r *register) admits(l *dlock.Lease) bool {
	if l.Fence() < r.fence {
		if l.Err() == nil {
			r.s.fail("a holder that is certain of its lease has fence %d, below %d, which an earlier holder of the key had", l.Fence(), r.fence)
		}
		return false
	}
	r.fence = cmp.Or(l.Fence(), r.fence)
	return true
}
