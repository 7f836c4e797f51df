package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
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

const (
	historyWorkers = 8
	historyKeys    = 2
	historyRounds  = 12
)

// amount is how much of something random is done: n in real time, more in
// virtual time, which costs nothing, and half of that with -short.
func (s *scene) amount(n int) int {
	if s.h.Bubble {
		n *= 4
	}
	if testing.Short() {
		n /= 2
	}
	return n
}

// counts says what a workload was made of. A history in which little happened
// proves little.
type counts struct{ held, handed, cancelled, lost, faults, wipes int }

func (c counts) enough(want counts) bool {
	return c.held >= want.held && c.handed >= want.handed && c.cancelled >= want.cancelled && c.lost >= want.lost &&
		c.faults >= want.faults && c.wipes >= want.wipes
}

func (c counts) String() string {
	return fmt.Sprintf("a key was found held %d times and handed to a waiter %d times; %d waits ended without it; %d leases were lost; %d connections failed; the data was lost %d times",
		c.held, c.handed, c.cancelled, c.lost, c.faults, c.wipes)
}

// A chronicle is a random workload, and what has become of it.
type chronicle struct {
	s    *scene
	keys [historyKeys]string
	ttl  time.Duration
	seed uint64
	book *book
	want counts

	mu     sync.Mutex
	seen   counts
	holds  []*sureHold
	faults []mishap
}

// A mishap is the failure of a client's connection.
type mishap struct {
	client   int
	from, to time.Duration
}

func newChronicle(s *scene) *chronicle {
	c := &chronicle{s: s, ttl: s.h.coreTTL(), seed: seed(), book: newBook()}
	for i := range c.keys {
		c.keys[i] = s.key()
	}
	c.want = counts{held: s.amount(24), handed: s.amount(12), cancelled: s.amount(4), lost: s.amount(4)}
	s.t.Logf("%s=%d", seedVariable, c.seed)
	return c
}

func history(s *scene) error {
	c := newChronicle(s)
	c.run(c.workers())
	return c.verdict()
}

// historyAcrossDataLoss has the store lose everything now and then.
func historyAcrossDataLoss(s *scene) error {
	c := newChronicle(s)
	c.want.wipes = s.amount(4)
	done := make(chan struct{})
	var wiping sync.WaitGroup
	wiping.Go(func() { c.wipe(done) })
	c.run(c.workers())
	close(done)
	wiping.Wait()
	return c.verdict()
}

func (c *chronicle) wipe(done <-chan struct{}) {
	p := newPlan(c.seed, -1, c.ttl)
	for {
		pause := time.NewTimer(c.ttl/2 + p.within(2*c.ttl))
		select {
		case <-done:
			pause.Stop()
			return
		case <-pause.C:
			if c.s.over() {
				return // nothing is wiped any more
			}
			c.book.wipe(c.s.wipe)
			c.count(func(n *counts) { n.wipes++ })
		}
	}
}

func (c *chronicle) workers() []*worker {
	var workers []*worker
	for i := range historyWorkers {
		w, err := c.worker(i)
		if err != nil {
			c.s.fail("%w", err)
		}
		workers = append(workers, w)
	}
	return workers
}

func (c *chronicle) run(workers []*worker) {
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(w.run)
	}
	wg.Wait()
}

func (c *chronicle) count(f func(*counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.seen)
}

// A worker acquires and releases keys again and again, in random ways.
type worker struct {
	*chronicle
	id    int
	plan  *plan
	store *recorder
	kept  *dlock.Client // renews its leases
	left  *dlock.Client // does not
	line  line          // nil if its connection does not fail
	cuts  sync.WaitGroup
}

// worker returns one more worker. The connection of every other fails now and
// then, where the harness allows for that.
func (c *chronicle) worker(id int) (*worker, error) {
	w := &worker{chronicle: c, id: id, plan: newPlan(c.seed, id, c.ttl)}
	store, line, err := c.s.lineTo(id%2 == 1)
	if line != nil {
		w.line, c.want.faults = line, c.s.amount(2)
	}
	w.store = &recorder{Forward: dlock.Forward{Locker: store}, book: c.book, id: id}
	backoff := dlock.WithBackoff(func(int) time.Duration { return max(5*time.Millisecond, c.ttl/40) })
	w.kept = dlock.New(w.store, dlock.WithTTL(c.ttl), backoff)
	w.left = w.kept.With(dlock.WithRenewal(false))
	return w, err
}

func (w *worker) run() {
	if w.line != nil {
		defer w.line.Close()
	}
	defer w.cuts.Wait()
	defer w.kept.Close()
	for n := 0; w.goesOn(n); n++ {
		w.do(w.plan.next())
	}
}

// goesOn is true until the worker has done its rounds and enough has happened,
// or enough would never happen.
func (w *worker) goesOn(n int) bool {
	rounds := w.s.amount(historyRounds)
	if w.s.over() || n > 20*rounds {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return n < rounds || !w.seen.enough(w.want)
}

func (w *worker) do(s step) {
	w.store.stall.Store(int64(s.stall))
	if s.fault.happens && w.line != nil {
		w.cuts.Go(func() { w.fail(s.fault) })
	}
	switch s.deed {
	case works, extends:
		w.hold(s, w.left, long)
	case hurries:
		w.hold(s, w.kept, s.wait)
	case lasts:
		w.hold(s, w.kept, long)
	case dies:
		w.die(s)
	case vanishes:
		w.vanish(s)
	case repeats:
		w.repeat(s)
	case looks:
		_, _ = w.store.Inspect(w.s.ctx, w.keys[s.key]) // the book has the answer
	}
	time.Sleep(s.rest)
}

func (w *worker) fail(f fault) {
	time.Sleep(f.after)
	from := w.book.now()
	w.line.silence(f.silence)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.faults++
	w.faults = append(w.faults, mishap{w.id, from, w.book.now()})
}

// A taken is a lease and the call that brought it.
type taken struct {
	*dlock.Lease
	asked, start time.Duration
}

// acquire returns a lease, or nil if none came within patience.
func (w *worker) acquire(s step, c *dlock.Client, patience time.Duration) *taken {
	ctx, cancel := context.WithTimeout(w.s.ctx, patience)
	defer cancel()
	key, asked := w.keys[s.key], w.book.now()
	lease, err := c.TryAcquire(ctx, key)
	held := errors.Is(err, dlock.ErrHeld)
	if held {
		asked = w.book.now()
		lease, err = c.Acquire(ctx, key)
	}
	start := w.book.now()
	w.count(func(n *counts) { n.attempt(held, err) })
	if err != nil && w.line == nil && !errors.Is(err, dlock.ErrHeld) && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && !tooLate(err) {
		w.s.fail("Client.Acquire(%s) = %w; want a lease, or an error of its ctx", brief(key), err)
	}
	if err != nil {
		return nil
	}
	return &taken{lease, asked, start}
}

// tooLate says of an error of a Client that a grant was found too late to be of use: the
// machine was too slow for the TTL.
func tooLate(err error) bool {
	return strings.Contains(err.Error(), "took nearly as long as the TTL")
}

func (c *counts) attempt(held bool, err error) {
	if held {
		c.held++
	}
	if held && err == nil {
		c.handed++
	}
	if err != nil {
		c.cancelled++
	}
}

// hold keeps a lease for a while, and releases it.
func (w *worker) hold(s step, c *dlock.Client, patience time.Duration) {
	l := w.acquire(s, c, patience)
	if l == nil {
		return
	}
	time.Sleep(s.hold)
	if s.deed == extends {
		w.stillHeld(l, l.Deadline(), l.Renew(w.s.ctx))
		time.Sleep(s.hold)
	}
	deadline := l.Deadline()
	w.note(l)
	w.stillHeld(l, deadline, l.Release())
}

// stillHeld checks that a lease was not lost before its deadline. Only a store
// that loses its data may lose leases.
func (w *worker) stillHeld(l *taken, deadline time.Time, err error) {
	switch early := time.Until(deadline); {
	case !errors.Is(err, dlock.ErrLost):
	case early > 0 && w.want.wipes == 0:
		w.s.fail("client %d: %w, %v before the lease's deadline (fence %d)", w.id, err, early, l.Fence())
	default:
		w.count(func(n *counts) { n.lost++ })
	}
}

// die lets a lease expire, and comes back later as if nothing had happened.
func (w *worker) die(s step) {
	l := w.acquire(s, w.left, long)
	if l == nil {
		return
	}
	time.Sleep(time.Until(l.Deadline()) + s.hold)
	w.note(l)
	w.count(func(n *counts) { n.lost++ })
	_, _ = w.store.Renew(w.s.ctx, l.Key(), l.Token(), w.ttl) // too late: the book has the answers
	_, _ = w.store.Release(w.s.ctx, l.Key(), l.Token())
	_ = l.Release()
}

// note notes until when the holder was certain of its lease.
func (w *worker) note(l *taken) {
	now := w.book.now()
	w.sure(&sureHold{client: w.id, key: l.Key(), token: l.Token(), asked: l.asked, start: l.start,
		end: min(now, l.Deadline().Sub(w.book.start)), fence: l.Fence()})
}

func (w *worker) sure(h *sureHold) {
	if h.start >= h.end {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds = append(w.holds, h)
}

// vanish takes the key, without a Client, and leaves it to its TTL.
func (w *worker) vanish(s step) {
	if h := w.seize(s); h != nil {
		w.sure(h)
		w.count(func(n *counts) { n.lost++ })
	}
}

// repeat takes the key and gives it back, without a Client, each call twice.
func (w *worker) repeat(s step) {
	h := w.seize(s)
	if h == nil {
		return
	}
	again, err := w.store.TryAcquire(w.s.ctx, h.key, h.token, w.ttl)
	if err == nil && again.Acquired {
		h.fence = again.Fence // from now on; the fence of before is good for longer than that
	}
	for range 2 {
		_, _ = w.store.Renew(w.s.ctx, h.key, h.token, w.ttl)
		_, _ = w.store.Inspect(w.s.ctx, h.key)
		time.Sleep(s.hold)
	}
	h.end = min(h.end, w.book.now())
	w.sure(h)
	for range 2 {
		_, _ = w.store.Release(w.s.ctx, h.key, h.token)
		_, _ = w.store.Renew(w.s.ctx, h.key, h.token, w.ttl)
	}
}

// seize takes the key with attempts of a new token, and returns what is certain
// of that if the holder does nothing more.
func (w *worker) seize(s step) *sureHold {
	h := &sureHold{client: w.id, key: w.keys[s.key], token: w.s.token("raw")}
	w.s.uses(h.key, h.token)
	for end := w.book.now() + s.wait; w.book.now() < end; time.Sleep(w.ttl / 40) {
		h.asked = w.book.now()
		a, err := w.store.TryAcquire(w.s.ctx, h.key, h.token, w.ttl)
		h.start, h.fence = w.book.now(), a.Fence
		h.end = h.asked + w.ttl - drift(w.ttl)
		switch {
		case err != nil:
			return nil
		case a.Acquired:
			return h
		}
		w.count(func(n *counts) { n.held++ })
	}
	return nil
}

// verdict says what is wrong with what happened.
func (c *chronicle) verdict() error {
	err, o := c.s.result(), c.offence()
	switch {
	case err != nil && o != nil:
		err = fmt.Errorf("%w\n%v", err, o)
	case o != nil:
		err = errors.New(o.String())
	case err == nil && !c.seen.enough(c.want):
		err = fmt.Errorf("too little happened to prove anything: %v; want at least: %v", c.seen, c.want)
	}
	if err == nil {
		return nil
	}
	return &historyError{err, c, o}
}

// offence returns a piece that no lock can have, if there is one.
func (c *chronicle) offence() *offence {
	c.holds = cutAtWipes(c.holds, c.book.all(""))
	if o := overlap(c.holds); o != nil {
		return o
	}
	for _, key := range c.keys {
		o, err := impossible(key, c.book.all(key), c.late)
		if err != nil {
			c.s.t.Logf("the answers for %s are not judged: %v", brief(key), err)
		}
		if o != nil {
			return o
		}
	}
	return nil
}

// late is how long the store may take to expire a lease: its grace, what the
// clocks may differ by, and what a slow machine may add.
func (c *chronicle) late(ttl time.Duration) time.Duration {
	late := c.s.h.grace() + drift(ttl)
	if !c.s.h.Bubble {
		late += time.Second
	}
	return late
}
