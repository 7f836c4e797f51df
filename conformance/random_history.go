package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/history"
)

const (
	historyWorkers = 8
	historyKeys    = 2
	historyRounds  = 12
)

// What must happen in a history. One in which little happened proves little.
const (
	foundHeld  = "a key was found held"
	handedOver = "a key was handed to a waiter"
	waitEnded  = "a wait ended without the key"
	leaseLost  = "a lease was lost"
	connFailed = "a connection failed"
	dataLost   = "the data was lost"
)

func historyAcrossDataLoss(s *scene, a, b *client) {
	playHistory(s, func(r *randomRun, workers []*worker) {
		r.want[dataLost] = s.amount(4)
		done := make(chan struct{})
		var wiping sync.WaitGroup
		wiping.Go(func() { r.wipe(done) })
		r.work(workers)
		close(done)
		wiping.Wait()
	})
}

// playHistory has play let workers work, and judges what they did.
func playHistory(s *scene, play func(*randomRun, []*worker)) {
	r := &randomRun{s: s, ttl: s.h.coreTTL(), seed: seed(), recorder: history.NewRecorder(time.Now()), rounds: s.amount(historyRounds), seen: make(map[string]int),
		want: map[string]int{foundHeld: s.amount(24), handedOver: s.amount(12), waitEnded: s.amount(4), leaseLost: s.amount(4)}}
	fmt.Fprintf(s.t.Output(), "%s=%d\n", seedVariable, r.seed)
	keys := []string{s.key(), s.key()}
	var workers []*worker
	for i := range historyWorkers {
		workers = append(workers, r.worker(i, keys))
	}
	play(r, workers)
	h := r.recorder.History()
	v, unchecked := history.Model{FenceStep: numbers, Late: r.late, Contenders: s.h.Unordered && !s.h.Bubble}.Check(h)
	if unchecked != nil {
		s.t.Log(unchecked)
	}
	s.decide(func(former error) error { return r.verdict(h, v, former) })
}

func (r *randomRun) work(workers []*worker) {
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(w.run)
	}
	all.Wait()
}

func (r *randomRun) wipe(done <-chan struct{}) {
	p := newPlan(r.seed, -1, r.ttl)
	for {
		pause := time.NewTimer(r.ttl/2 + p.within(2*r.ttl))
		select {
		case <-done:
			pause.Stop()
			return
		case <-pause.C:
			r.s.goOn() // else nothing is wiped any more
			r.recorder.Wipe(r.s.wipe)
			r.saw(dataLost)
		}
	}
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

// A worker acquires and releases keys again and again, in random ways.
type worker struct {
	*randomRun
	name   string
	keys   []string
	plan   *plan
	store  *history.Locker
	kept   *dlock.Client     // renews its leases
	left   *dlock.Client     // does not
	net    *faultproxy.Proxy // nil if its connection does not fail
	faulty bool              // errors are to be expected
	cuts   sync.WaitGroup
}

// worker returns one more worker. If the harness allows for it, the connection of every second worker fails now and then.
func (r *randomRun) worker(id int, keys []string) *worker {
	w := &worker{randomRun: r, name: fmt.Sprint("client ", id), keys: keys, plan: newPlan(r.seed, id, r.ttl)}
	var l *client
	if id%2 == 1 && needsNetwork.met(r.s.h) {
		var err error
		if w.net, err = faultproxy.New(r.s.h.Addr); err == nil {
			l = r.s.clientOf(r.s.h.Dial(r.s.t, w.net.Addr()), "Harness.Dial")
		} else {
			r.s.fail("%w", err)
		}
		w.faulty, r.want[connFailed] = true, r.s.amount(2)
	}
	if l == nil {
		l = r.s.client()
	}
	w.store = r.recorder.Locker(w.name, l)
	backoff := dlock.WithBackoff(func(int) time.Duration { return max(5*time.Millisecond, r.ttl/40) })
	w.kept = dlock.New(w.store, dlock.WithTTL(r.ttl), backoff)
	w.left = w.kept.With(dlock.WithRenewal(false))
	return w
}

func (w *worker) run() {
	if w.net != nil {
		defer w.net.Close()
	}
	defer w.cuts.Wait()
	defer w.kept.Close()
	for n := 0; w.goesOn(n); n++ {
		s := w.plan.next()
		w.store.Stall(s.stall)
		if s.silence > 0 && w.net != nil {
			w.cuts.Go(func() { w.fail(s) })
		}
		s.task(w, s)
		time.Sleep(s.rest)
	}
}

// fail has nothing passed on for a while, and then cuts the connection: what was not passed on is lost.
func (w *worker) fail(s step) {
	time.Sleep(s.calm)
	w.recorder.Outage(w.name, func() {
		w.net.Block(faultproxy.Both)
		time.Sleep(s.silence)
		w.net.Cut()
		_ = w.net.Heal() // can only fail where connections were refused
	})
	w.saw(connFailed)
}

// A workerLease is a lease of a worker, and what is recorded of it.
type workerLease struct {
	*dlock.Lease
	hold *history.Hold
}

// acquire returns a lease, or nil if none came within patience.
func (w *worker) acquire(s step, c *dlock.Client, patience time.Duration) *workerLease {
	ctx, cancel := context.WithTimeout(w.s.ctx, patience)
	defer cancel()
	key, asked := w.keys[s.key], w.recorder.Now()
	lease, err := c.TryAcquire(ctx, key)
	held := errors.Is(err, dlock.ErrHeld)
	if held {
		w.saw(foundHeld)
		asked = w.recorder.Now()
		lease, err = c.Acquire(ctx, key)
	}
	if err != nil {
		w.saw(waitEnded)
		if !w.faulty && !errors.Is(err, dlock.ErrHeld) && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && !tooLate(err) {
			w.s.fail("Client.Acquire(%s) = %w; want a lease, or an error of its ctx", brief(key), err)
		}
		return nil
	}
	if held {
		w.saw(handedOver)
	}
	return &workerLease{lease, w.recorder.Hold(w.name, lease, asked)}
}

// tooLate says of an error of a Client that a grant was found too late to be of use: the machine was too slow for the TTL.
func tooLate(err error) bool {
	return errors.Is(err, dlock.ErrLost) || strings.Contains(err.Error(), "took too much of the TTL")
}

func (w *worker) hold(s step, c *dlock.Client, patience time.Duration) {
	if l := w.acquire(s, c, patience); l != nil {
		w.release(s, l)
	}
}

func (w *worker) release(s step, l *workerLease) {
	time.Sleep(s.hold)
	deadline := l.Deadline()
	w.recorder.End(l.hold, l.Lease)
	w.lost(l, deadline, l.Release())
}

// lost notes a lease that the store does not know.
func (w *worker) lost(l *workerLease, deadline time.Time, err error) {
	if !errors.Is(err, dlock.ErrLost) {
		return
	}
	w.saw(leaseLost)
	if now := w.recorder.Now(); now < w.recorder.At(deadline) {
		l.hold.Lost = now
	}
}

func (w *worker) outlast(s step) {
	s.hold += w.ttl + w.ttl/2
	w.hold(s, w.kept, long)
}

func (w *worker) extend(s step) {
	l := w.acquire(s, w.left, long)
	if l == nil {
		return
	}
	time.Sleep(s.hold)
	w.lost(l, l.Deadline(), l.Renew(w.s.ctx))
	w.release(s, l)
}

// die lets a lease expire, and comes back later as if nothing had happened.
func (w *worker) die(s step) {
	l := w.acquire(s, w.left, long)
	if l == nil {
		return
	}
	time.Sleep(time.Until(l.Deadline()) + s.hold)
	w.recorder.End(l.hold, l.Lease)
	w.saw(leaseLost)
	_, _ = w.store.Renew(w.s.ctx, l.Key(), l.Token(), w.ttl) // too late: the recorder has the answers
	_, _ = w.store.Release(w.s.ctx, l.Key(), l.Token())
	_ = l.Release()
}

// vanish takes the key, without a Client, and leaves it to its TTL.
func (w *worker) vanish(s step) {
	if w.seize(s) != nil {
		w.saw(leaseLost)
	}
}

// repeat takes the key and gives it back, without a Client, each call twice, like a client whose replies are lost.
func (w *worker) repeat(s step) {
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
		time.Sleep(s.hold)
	}
	h.End = min(h.End, w.recorder.Now())
	for range 2 {
		_, _ = w.store.Release(w.s.ctx, h.Key, h.Token)
		_, _ = w.store.Renew(w.s.ctx, h.Key, h.Token, w.ttl)
	}
}

// seize takes the key with attempts of a new token, and records what is certain of that if the holder does nothing more.
func (w *worker) seize(s step) *history.Hold {
	h := &history.Hold{Client: w.name, Key: w.keys[s.key], Token: w.s.token("raw")}
	w.s.uses(h.Key, h.Token)
	for end := w.recorder.Now() + s.wait; w.recorder.Now() < end; time.Sleep(w.ttl / 40) {
		h.Asked = w.recorder.Now()
		a, err := w.store.TryAcquire(w.s.ctx, h.Key, h.Token, w.ttl)
		h.Start, h.Fence = w.recorder.Now(), a.Fence
		h.End = h.Asked + w.ttl - history.Drift(w.ttl)
		switch {
		case err != nil:
			return nil
		case a.Acquired:
			w.recorder.Held(h)
			return h
		}
		w.saw(foundHeld)
	}
	return nil
}

type task func(*worker, step)

// tasks are the tasks, and the share of each in 100 steps.
var tasks = []struct {
	share int
	task  task
}{
	{34, func(w *worker, s step) { w.hold(s, w.left, long) }},
	{20, func(w *worker, s step) { w.hold(s, w.kept, s.wait) }},
	{6, (*worker).outlast},
	{8, (*worker).extend},
	{10, (*worker).die},
	{6, (*worker).vanish},
	{10, (*worker).repeat},
	{6, func(w *worker, s step) { _, _ = w.store.Inspect(w.s.ctx, w.keys[s.key]) }}, // the recorder has the answer
}

// A step is what one worker does next. It does not depend on what happened before, so a seed always leads to the same steps.
type step struct {
	task  task
	key   int           // index of a key
	wait  time.Duration // how long the worker waits for the key, if it is in a hurry
	hold  time.Duration // how long it holds the key, or stays away after its lease has ended
	rest  time.Duration // how long it does nothing afterwards
	stall time.Duration // how late it gets the first answer; mostly 0

	calm, silence time.Duration // how long its connection works, and then passes nothing on; mostly 0
}

func (p *plan) next() step {
	s := step{
		key:     p.IntN(historyKeys),
		wait:    p.within(p.ttl / 4),
		hold:    p.within(p.ttl / 10),
		rest:    p.within(p.ttl / 50),
		stall:   p.rarely(16, p.ttl+p.ttl/4),
		calm:    p.within(p.ttl / 10),
		silence: p.rarely(10, p.ttl+p.ttl/4),
	}
	for n, i := p.IntN(100), 0; n >= 0; i++ {
		s.task = tasks[i].task
		n -= tasks[i].share
	}
	return s
}

// A randomRun has several workers do random things, and records them.
type randomRun struct {
	s        *scene
	ttl      time.Duration
	seed     uint64
	recorder *history.Recorder
	rounds   int            // of each worker, at least
	want     map[string]int // how often things must happen, or the run proves little

	mu   mutex
	seen map[string]int // how often they have
}

func (r *randomRun) saw(what string) { r.mu.locked(func() { r.seen[what]++ }) }

// lacks says how often the wanted things have happened, or "" if each has so many times.
func (r *randomRun) lacks() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	enough := true
	for _, what := range slices.Sorted(maps.Keys(r.want)) {
		all = append(all, fmt.Sprintf("%s %d times, of at least %d", what, r.seen[what], r.want[what]))
		enough = enough && r.seen[what] >= r.want[what]
	}
	if enough {
		return ""
	}
	return strings.Join(all, "; ")
}

// goesOn is true until a worker has done its rounds and enough has happened, or enough would never happen.
func (r *randomRun) goesOn(n int) bool {
	return !r.s.over() && n < 20*r.rounds && (n < r.rounds || r.lacks() != "")
}

// verdict says what is wrong with what happened: what the workers noted, and the piece of the history that was found
// to be impossible. Each may be nil.
func (r *randomRun) verdict(h *history.History, v *history.Violation, err error) error {
	undecided := errors.Is(err, errInconclusive) || errors.As(err, new(skipError))
	switch lacks := r.lacks(); {
	case v != nil && (err == nil || undecided):
		err = errors.New(v.String())
	case v != nil:
		err = fmt.Errorf("%w\n%v", err, v)
	case undecided:
		return err
	case err == nil && lacks == "":
		return nil
	case err == nil:
		err = fmt.Errorf("too little happened to prove anything: %s", lacks)
	}
	return &historyError{err, r.seed, h, v}
}

// A historyError says what is wrong with a random history, and how to repeat it.
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

// keepHistory writes a history that failed to a file, and says where that is. With the flag -artifacts it is among the
// artifacts of t; otherwise it is a temporary file, since those of t would be gone when the test has ended.
func keepHistory(t *testing.T, err error) string {
	var e *historyError
	if !errors.As(err, &e) {
		return ""
	}
	dir := os.TempDir()
	if f := flag.Lookup("test.artifacts"); f != nil && f.Value.String() == "true" {
		dir = t.ArtifactDir()
	}
	path := filepath.Join(dir, fmt.Sprintf("dlock-history-%d.txt", e.seed))
	text := fmt.Sprintf("%s\n%v\n\n%s", t.Name(), e, e.history.Listing(e.violation))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Sprintf("\nthe history was not kept: %v", err)
	}
	return "\nthe whole history: " + path
}

// coreTTL is the shortest TTL that the store keeps honestly and a Client accepts.
func (h Harness) coreTTL() time.Duration { return max(h.ttl(), 100*time.Millisecond) }

// seedVariable is the environment variable that repeats a random case with the seed that its failure has printed.
const seedVariable = "DLOCK_CONFORMANCE_SEED"

func seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv(seedVariable), 10, 64); err == nil {
		return n
	}
	return rand.Uint64()
}

// amount is how much of something random is done: n in real time, more in
// virtual time, which costs nothing, and less in real time with -short.
func (s *scene) amount(n int) int {
	if s.h.Bubble {
		return 4 * n
	}
	return s.h.rounds(n)
}

// A plan makes the random choices of one worker.
type plan struct {
	*rand.Rand
	ttl time.Duration
}

func newPlan(seed uint64, worker int, ttl time.Duration) *plan {
	return &plan{rand.New(rand.NewPCG(seed, uint64(worker))), ttl}
}

func (p *plan) within(d time.Duration) time.Duration { return 1 + time.Duration(p.Int64N(int64(d))) }

// rarely is 0, or up to d one time in n.
func (p *plan) rarely(n int, d time.Duration) time.Duration {
	if d = p.within(d); p.IntN(n) == 0 {
		return d
	}
	return 0
}
