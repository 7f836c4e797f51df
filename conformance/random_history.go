package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/history"
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
// virtual time, which costs nothing, and less in real time with -short.
func (s *scene) amount(n int) int {
	if s.h.Bubble {
		return 4 * n
	}
	return s.h.rounds(n)
}

// counts says what happened in a history. A history in which little happened
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

// A randomRun has several clients do random things, and records them.
type randomRun struct {
	s        *scene
	keys     [historyKeys]string
	ttl      time.Duration
	seed     uint64
	recorder *history.Recorder
	want     counts
	audit    audit

	mu   sync.Mutex
	seen counts
}

func newRandomRun(s *scene) *randomRun {
	r := &randomRun{s: s, ttl: s.h.coreTTL(), seed: seed(), recorder: history.NewRecorder()}
	for i := range r.keys {
		r.keys[i] = s.key()
	}
	r.want = counts{held: s.amount(24), handed: s.amount(12), cancelled: s.amount(4), lost: s.amount(4)}
	fmt.Fprintf(s.t.Output(), "%s=%d\n", seedVariable, r.seed)
	return r
}

func randomHistory(s *scene) error {
	r := newRandomRun(s)
	r.run(r.workers())
	return r.verdict()
}

// historyAcrossDataLoss has the store lose everything now and then.
func historyAcrossDataLoss(s *scene) error {
	r := newRandomRun(s)
	r.want.wipes = s.amount(4)
	done := make(chan struct{})
	var wiping sync.WaitGroup
	wiping.Go(func() { r.wipe(done) })
	r.run(r.workers())
	close(done)
	wiping.Wait()
	return r.verdict()
}

func (r *randomRun) wipe(done <-chan struct{}) {
	p := history.NewPlan(r.seed, -1, r.ttl)
	for {
		pause := time.NewTimer(r.ttl/2 + p.Within(2*r.ttl))
		select {
		case <-done:
			pause.Stop()
			return
		case <-pause.C:
			if r.s.over() {
				return // nothing is wiped any more
			}
			r.recorder.Wipe(r.s.wipe)
			r.count(func(n *counts) { n.wipes++ })
		}
	}
}

func (r *randomRun) workers() []*worker {
	var workers []*worker
	for i := range historyWorkers {
		w, err := r.worker(i)
		if err != nil {
			r.s.fail("%w", err)
		}
		workers = append(workers, w)
	}
	return workers
}

func (r *randomRun) run(workers []*worker) {
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(w.run)
	}
	wg.Wait()
}

func (r *randomRun) count(f func(*counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.seen)
}

// A worker acquires and releases keys again and again, in random ways.
type worker struct {
	*randomRun
	id    int
	plan  *history.Plan
	store *history.Locker
	kept  *dlock.Client // renews its leases
	left  *dlock.Client // does not
	line  line          // nil if its connection does not fail
	cuts  sync.WaitGroup
}

// worker returns one more worker. If the harness allows for it, the connection of every
// second worker fails now and then.
func (r *randomRun) worker(id int) (*worker, error) {
	w := &worker{randomRun: r, id: id, plan: history.NewPlan(r.seed, id, r.ttl)}
	store, line, err := r.s.lineTo(id%2 == 1)
	if line != nil {
		w.line, r.want.faults = line, r.s.amount(2)
	}
	w.store = r.recorder.Locker(id, store)
	backoff := dlock.WithBackoff(func(int) time.Duration { return max(5*time.Millisecond, r.ttl/40) })
	w.kept = dlock.New(w.store, dlock.WithTTL(r.ttl), backoff, dlock.WithObserver(r.audit.observer()))
	if r.s.h.Observer != nil {
		w.kept = w.kept.With(dlock.WithObserver(r.s.h.Observer))
	}
	w.left = w.kept.With(dlock.WithRenewal(false))
	return w, err
}

func (w *worker) run() {
	if w.line != nil {
		defer w.line.Close()
	}
	defer w.cuts.Wait()
	defer w.close()
	for n := 0; w.goesOn(n); n++ {
		w.do(w.plan.Next(historyKeys))
	}
}

// close also waits until all events have been told.
func (w *worker) close() {
	_ = w.kept.Close()
	w.audit.count(func(a *audit) { a.missed += w.kept.Stats().EventsDropped })
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

func (w *worker) do(s history.Step) {
	w.store.Stall(s.Stall)
	if s.Fault.Happens && w.line != nil {
		w.cuts.Go(func() { w.fail(s.Fault) })
	}
	switch s.Task {
	case history.Work, history.Extend:
		w.hold(s, w.left, long)
	case history.Hurry:
		w.hold(s, w.kept, s.Wait)
	case history.Outlast:
		w.hold(s, w.kept, long)
	case history.Die:
		w.die(s)
	case history.Vanish:
		w.vanish(s)
	case history.Repeat:
		w.repeat(s)
	case history.Look:
		_, _ = w.store.Inspect(w.s.ctx, w.keys[s.Key]) // the recorder has the answer
	}
	time.Sleep(s.Rest)
}

func (w *worker) fail(f history.Fault) {
	time.Sleep(f.After)
	from := w.recorder.Now()
	w.line.silence(f.Silence)
	w.recorder.Failed(w.id, from)
	w.count(func(n *counts) { n.faults++ })
}

// A taken is a lease and the call that brought it.
type taken struct {
	*dlock.Lease
	asked, start time.Duration
}

// acquire returns a lease, or nil if none came within patience.
func (w *worker) acquire(s history.Step, c *dlock.Client, patience time.Duration) *taken {
	ctx, cancel := context.WithTimeout(w.s.ctx, patience)
	defer cancel()
	key, asked := w.keys[s.Key], w.recorder.Now()
	lease, err := c.TryAcquire(ctx, key)
	w.audit.called(err)
	held := errors.Is(err, dlock.ErrHeld)
	if held {
		asked = w.recorder.Now()
		lease, err = c.Acquire(ctx, key)
		w.audit.called(err)
	}
	start := w.recorder.Now()
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
	return errors.Is(err, dlock.ErrLost) || strings.Contains(err.Error(), "took too much of the TTL")
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
func (w *worker) hold(s history.Step, c *dlock.Client, patience time.Duration) {
	l := w.acquire(s, c, patience)
	if l == nil {
		return
	}
	time.Sleep(s.Hold)
	if s.Task == history.Extend {
		w.stillHeld(l, l.Deadline(), l.Renew(w.s.ctx))
		time.Sleep(s.Hold)
	}
	deadline := l.Deadline()
	w.note(l)
	err := l.Release()
	w.audit.released(err)
	w.stillHeld(l, deadline, err)
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
func (w *worker) die(s history.Step) {
	l := w.acquire(s, w.left, long)
	if l == nil {
		return
	}
	time.Sleep(time.Until(l.Deadline()) + s.Hold)
	w.note(l)
	w.count(func(n *counts) { n.lost++ })
	_, _ = w.store.Renew(w.s.ctx, l.Key(), l.Token(), w.ttl) // too late: the recorder has the answers
	_, _ = w.store.Release(w.s.ctx, l.Key(), l.Token())
	w.audit.released(l.Release())
}

// note notes until when the holder was certain of its lease.
func (w *worker) note(l *taken) {
	now := w.recorder.Now()
	w.recorder.Held(history.Hold{Client: w.id, Key: l.Key(), Token: l.Token(), Asked: l.asked, Start: l.start,
		End: min(now, w.recorder.At(l.Deadline())), Fence: l.Fence()})
}

// vanish takes the key, without a Client, and leaves it to its TTL.
func (w *worker) vanish(s history.Step) {
	if h := w.seize(s); h != nil {
		w.recorder.Held(*h)
		w.count(func(n *counts) { n.lost++ })
	}
}

// repeat takes the key and gives it back, without a Client, each call twice.
func (w *worker) repeat(s history.Step) {
	h := w.seize(s)
	if h == nil {
		return
	}
	again, err := w.store.TryAcquire(w.s.ctx, h.Key, h.Token, w.ttl)
	if err == nil && again.Acquired && w.recorder.Now() < h.End { // else the lease may have ended in between
		h.Fence = again.Fence // from now on; the fence of before is good for longer than that
	}
	for range 2 {
		_, _ = w.store.Renew(w.s.ctx, h.Key, h.Token, w.ttl)
		_, _ = w.store.Inspect(w.s.ctx, h.Key)
		time.Sleep(s.Hold)
	}
	h.End = min(h.End, w.recorder.Now())
	w.recorder.Held(*h)
	for range 2 {
		_, _ = w.store.Release(w.s.ctx, h.Key, h.Token)
		_, _ = w.store.Renew(w.s.ctx, h.Key, h.Token, w.ttl)
	}
}

// seize takes the key with attempts of a new token, and returns what is certain
// of that if the holder does nothing more.
func (w *worker) seize(s history.Step) *history.Hold {
	h := &history.Hold{Client: w.id, Key: w.keys[s.Key], Token: w.s.token("raw")}
	w.s.uses(h.Key, h.Token)
	for end := w.recorder.Now() + s.Wait; w.recorder.Now() < end; time.Sleep(w.ttl / 40) {
		h.Asked = w.recorder.Now()
		a, err := w.store.TryAcquire(w.s.ctx, h.Key, h.Token, w.ttl)
		h.Start, h.Fence = w.recorder.Now(), a.Fence
		h.End = h.Asked + w.ttl - history.Drift(w.ttl)
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
func (r *randomRun) verdict() error {
	e := &historyError{seed: r.seed, history: r.recorder.History()}
	var unchecked error
	e.violation, unchecked = history.Model{FenceStep: numbers, Late: r.late, Contenders: r.s.h.Scattered}.Check(e.history)
	if unchecked != nil {
		r.s.t.Log(unchecked)
	}
	switch e.err = r.s.result(); {
	case e.err != nil && e.violation != nil:
		e.err = fmt.Errorf("%w\n%v", e.err, e.violation)
	case e.violation != nil:
		e.err = errors.New(e.violation.String())
	case e.err != nil:
	case r.audit.verdict() != nil:
		e.err = r.audit.verdict()
	case !r.seen.enough(r.want):
		e.err = fmt.Errorf("too little happened to prove anything: %v; want at least: %v", r.seen, r.want)
	}
	if e.err == nil {
		return nil
	}
	return e
}

// late is how long the store may take to end a lease: its grace, what the clocks may
// differ by, and what a slow machine may add.
func (r *randomRun) late(ttl time.Duration) time.Duration {
	late := r.s.h.grace() + history.Drift(ttl)
	if !r.s.h.Bubble {
		late += time.Second
	}
	return late
}

// A historyError says what is wrong with a random history, how to repeat it, and can
// draw it.
type historyError struct {
	err       error
	seed      uint64
	history   *history.History
	violation *history.Violation // nil if no piece of the history is to blame
}

func (e *historyError) Error() string {
	return fmt.Sprintf("%v\n%s=%d makes the same random choices again", e.err, seedVariable, e.seed)
}

func (e *historyError) Unwrap() error { return e.err }

// keepPicture writes the picture of a history that failed, and says where it is.
// With the flag -artifacts that is among the artifacts of t; otherwise it is a
// temporary file, since those of t would be gone when the test has ended.
func keepPicture(t *testing.T, err error) string {
	var e *historyError
	if !errors.As(err, &e) {
		return ""
	}
	dir := os.TempDir()
	if f := flag.Lookup("test.artifacts"); f != nil && f.Value.String() == "true" {
		dir = t.ArtifactDir()
	}
	path := filepath.Join(dir, fmt.Sprintf("dlock-history-%d.html", e.seed))
	if err := os.WriteFile(path, history.Picture(e.history, e.violation, t.Name(), e.Error()), 0o600); err != nil {
		return fmt.Sprintf("\nno picture of the history: %v", err)
	}
	return "\npicture of the history: " + path
}

// A line is the connection of one worker to the store, where the harness lets
// the suite stand between.
type line interface {
	// silence passes nothing on until d has passed, and then cuts the
	// connection: what was not passed on is lost.
	silence(d time.Duration)

	// Close ends the line and all that it has started.
	Close()
}

// lineTo returns a client of the store, and the line to it if that is wanted and
// possible.
func (s *scene) lineTo(wanted bool) (*client, line, error) {
	if !wanted || needsVia(s.h) != "" {
		return s.client(), nil, nil
	}
	c, f, err := s.fleet(len(s.h.addrs()))
	if err != nil {
		return s.client(), nil, err
	}
	return c, proxyLine{f}, nil
}

// proxyLine makes a line of a fleet.
type proxyLine struct{ *fleet }

func (p proxyLine) silence(d time.Duration) {
	p.Block(faultproxy.Both)
	time.Sleep(d)
	p.Cut()
	_ = p.Heal() // can only fail where connections were refused
}
