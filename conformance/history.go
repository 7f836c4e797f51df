package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// coreTTL is the shortest TTL that the store keeps honestly and a Client
// accepts.
func (h Harness) coreTTL() time.Duration { return max(h.ttl(), 100*time.Millisecond) }

// seedVariable is the environment variable that repeats a random case with the
// seed that its failure has printed.
const seedVariable = "DLOCK_CONFORMANCE_SEED"

func seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv(seedVariable), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}

// A chronicle is what happened to one key under a random workload.
type chronicle struct {
	s    *scene
	key  string
	ttl  time.Duration
	seed uint64

	mu    sync.Mutex
	holds []certainHold
	seen  counts
}

// A certainHold is the time in which a holder was certain of its lease: from the
// return of Acquire to the call of Release or to the deadline of the lease.
type certainHold struct {
	by         int
	start, end time.Time
	fence      int64
}

func (h certainHold) String() string {
	return fmt.Sprintf("worker %d from %s to %s, fence %d", h.by, h.start.Format("05.000000"), h.end.Format("05.000000"), h.fence)
}

// counts says what a workload was made of. A history in which little happened
// proves little.
type counts struct{ held, handed, cancelled, expired int }

func (c counts) enough() bool {
	return c.held >= 15 && c.handed >= 10 && c.cancelled >= 3 && c.expired >= 3
}

const (
	historyWorkers = 6
	historyRounds  = 12
)

func history(s *scene) error {
	c := &chronicle{s: s, key: s.key(), ttl: s.h.coreTTL(), seed: seed()}
	s.t.Logf("%s=%d", seedVariable, c.seed)
	var wg sync.WaitGroup
	for i := range historyWorkers {
		l := s.client()
		wg.Go(func() { c.work(i, l) })
	}
	wg.Wait()
	if err := s.result(); err != nil {
		return err
	}
	if err := c.verdict(); err != nil {
		return fmt.Errorf("%w (%s=%d)", err, seedVariable, c.seed)
	}
	return nil
}

// A worker acquires and releases the key again and again, in random ways.
type worker struct {
	*chronicle
	id   int
	rng  *rand.Rand
	kept *dlock.Client // renews its leases
	left *dlock.Client // does not
}

func (c *chronicle) work(id int, l dlock.Locker) {
	rng := rand.New(rand.NewPCG(c.seed, uint64(id)))
	backoff := dlock.WithBackoff(func(int) time.Duration { return 5 * time.Millisecond })
	kept := dlock.New(l, dlock.WithTTL(c.ttl), backoff)
	defer kept.Close()
	w := &worker{c, id, rng, kept, kept.With(dlock.WithRenewal(false))}
	for n := 0; w.goesOn(n); n++ {
		w.round()
	}
}

// goesOn is true until the worker has done its rounds and enough has happened,
// or enough would never happen.
func (w *worker) goesOn(n int) bool {
	if w.s.over() || n > 20*historyRounds {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return n < historyRounds || !w.seen.enough()
}

func (w *worker) round() {
	switch n := w.rng.IntN(100); {
	case n < 12:
		w.die(w.acquire(w.left, long))
	case n < 18:
		w.hold(w.acquire(w.kept, long), w.ttl+w.ttl/2)
	case n < 40:
		w.hold(w.acquire(w.kept, w.within(w.ttl/4)), w.within(w.ttl/10))
	default:
		w.hold(w.acquire(w.left, long), w.within(w.ttl/20))
	}
	time.Sleep(w.within(w.ttl / 50))
}

func (w *worker) within(d time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(d))) + 1
}

// acquire returns a lease, or nil if none came within patience.
func (w *worker) acquire(c *dlock.Client, patience time.Duration) *dlock.Lease {
	ctx, cancel := context.WithTimeout(w.s.ctx, patience)
	defer cancel()
	lease, err := c.TryAcquire(ctx, w.key)
	held := errors.Is(err, dlock.ErrHeld)
	if held {
		lease, err = c.Acquire(ctx, w.key)
	}
	w.count(held, err)
	if err != nil && !errors.Is(err, dlock.ErrHeld) && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		w.s.fail("Client.Acquire(%s) = %w; want a lease, or an error of its ctx", brief(w.key), err)
	}
	if err != nil {
		return nil
	}
	return lease
}

func (w *worker) count(held bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if held {
		w.seen.held++
	}
	if held && err == nil {
		w.seen.handed++
	}
	if err != nil {
		w.seen.cancelled++
	}
}

// hold keeps a lease for d, and releases it.
func (w *worker) hold(l *dlock.Lease, d time.Duration) {
	if l == nil {
		return
	}
	start := time.Now()
	time.Sleep(d)
	deadline, end := l.Deadline(), time.Now()
	w.note(l, start, deadline, end)
	err := l.Release()
	if errors.Is(err, dlock.ErrLost) && time.Now().Before(deadline) {
		w.s.fail("Lease.Release of %s = %w, %v before the lease's deadline", brief(w.key), err, time.Until(deadline))
	}
}

// die lets a lease expire, and comes back later to release it.
func (w *worker) die(l *dlock.Lease) {
	if l == nil {
		return
	}
	start := time.Now()
	time.Sleep(time.Until(l.Deadline()) + w.within(w.ttl/4))
	w.note(l, start, l.Deadline(), time.Now())
	_ = l.Release() // too late
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.expired++
}

func (w *worker) note(l *dlock.Lease, start, deadline, end time.Time) {
	if deadline.Before(end) {
		end = deadline
	}
	if !start.Before(end) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = append(w.holds, certainHold{w.id, start, end, l.Fence()})
}

// verdict says what is wrong with what happened.
func (c *chronicle) verdict() error {
	if !c.seen.enough() {
		return fmt.Errorf("too little happened to prove anything: the key was found held %d times, handed to a waiter %d times; %d waits ended without it, %d leases expired",
			c.seen.held, c.seen.handed, c.seen.cancelled, c.seen.expired)
	}
	slices.SortFunc(c.holds, func(a, b certainHold) int { return a.start.Compare(b.start) })
	latest := certainHold{}
	for i, h := range c.holds {
		if i > 0 && h.start.Before(latest.end) {
			return fmt.Errorf("two certain holds overlap by %v: %v; %v", latest.end.Sub(h.start), latest, h)
		}
		if i > 0 && cmp.Or(h.fence, latest.fence) != 0 && h.fence < latest.fence+numbers {
			return fmt.Errorf("a later hold does not have a higher fence: %v; %v", latest, h)
		}
		latest = h
	}
	return nil
}

// noStarvation has one Client compete with others that keep coming back. They are
// Clients, since it is the core that waits where the store has no queue.
func noStarvation(s *scene) error {
	const others = 3
	key := s.key()
	ctx, cancel := context.WithTimeout(s.ctx, 3*s.h.patience())
	defer cancel()
	crowd, disperse := context.WithCancel(ctx)
	var served atomic.Int64
	var wg sync.WaitGroup
	for range others {
		l := s.client()
		wg.Go(func() { s.comeAgain(crowd, l, key, &served) })
	}
	s.gap()
	l := s.client()
	c := dlock.New(l, dlock.WithTTL(long), dlock.WithRenewal(false))
	defer c.Close()
	times := 2
	if !s.over() && s.offers(l.inner.Locker, acquire) {
		times = 8 // as a queue in disorder may be kind to those who come at the right moment
	}
	for i := range times {
		time.Sleep(time.Duration(i) * 700 * time.Microsecond)
		s.serveOnce(ctx, c, key, &served)
	}
	disperse()
	wg.Wait()
	return s.result()
}

func (s *scene) serveOnce(ctx context.Context, c *dlock.Client, key string, others *atomic.Int64) {
	if s.over() {
		return
	}
	before := others.Load()
	lease, err := c.Acquire(ctx, key)
	if err != nil {
		s.fail("Client.Acquire(%s) = %w, while others were served %d times; want every waiter to be served", brief(key), err, others.Load()-before)
		return
	}
	s.noError(lease.Release(), "Lease.Release", key)
}

// comeAgain acquires and releases key again and again until ctx ends.
func (s *scene) comeAgain(ctx context.Context, l dlock.Locker, key string, served *atomic.Int64) {
	c := dlock.New(l, dlock.WithTTL(long), dlock.WithRenewal(false))
	defer c.Close()
	for !s.over() {
		lease, err := c.Acquire(ctx, key)
		if err != nil {
			return
		}
		served.Add(1)
		time.Sleep(5 * time.Millisecond)
		s.noError(lease.Release(), "Lease.Release", key)
		time.Sleep(2 * time.Millisecond)
	}
}
