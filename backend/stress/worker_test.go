package stress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/semaphore"
)

const (
	patience = time.Second      // of the clients, for one call
	pause    = time.Millisecond // between two tries to connect
)

// An opener returns a Locker whose calls end after patience, and a function that closes it and its client.
type opener func() (l dlock.Locker, closeAll func(), err error)

func openWith(lib clients.Library, s clients.Settings, opts ...rediscore.Option) opener {
	s.Patience, s.Caches = patience, true
	return func() (dlock.Locker, func(), error) {
		l, closeClient, err := lib.Open(s, opts...)
		return l, func() { l.Close(); closeClient() }, err
	}
}

// patiently opens until that succeeds, or ctx ends.
func patiently(ctx context.Context, open opener) (l dlock.Locker, closeAll func(), err error) {
	for ctx.Err() == nil {
		if l, closeAll, err = open(); err == nil {
			return l, closeAll, nil
		}
		time.Sleep(pause)
	}
	return nil, nil, ctx.Err()
}

// A workerGroup holds the workers of one process, or of several that end together.
type workerGroup struct {
	*journal
	keys             []string
	ttls             []time.Duration                  // of the workers, in turn
	stop             context.Context                  // when it ends, workers finish their last action
	limit            context.Context                  // when it ends, they give it up
	peek             func(key string) (string, error) // the holder that the server has; may be nil
	lossy            bool                             // the store may forget a lease
	holding, waiting atomic.Int64                     // how many do
	wg               sync.WaitGroup
	closers          []func()
}

// connect returns a Client, which is closed with the group.
func (g *workerGroup) connect(owner string, open opener) (*dlock.Client, error) {
	locker, closeAll, err := patiently(g.stop, open)
	if err != nil {
		return nil, err
	}
	c := dlock.New(&queued{dlock.Forward{Locker: locker}, g}, dlock.WithFence(true), dlock.WithOwner(owner))
	g.closers = append(g.closers, func() { c.Close(); closeAll() })
	return c, nil
}

// start starts workers that share a Client, and act like this.
func (g *workerGroup) start(who string, open opener, workers int, act func(w *worker, i int)) (*dlock.Client, error) {
	owner, _, _ := strings.Cut(who, "/")
	c, err := g.connect(owner, open)
	if err != nil {
		return nil, err
	}
	for i := range workers {
		w := &worker{workerGroup: g, who: who, client: c.With(dlock.WithTTL(g.ttls[i%len(g.ttls)]))}
		g.wg.Go(func() {
			for w.stop.Err() == nil {
				act(w, i)
			}
		})
	}
	return c, nil
}

// close waits until the workers have ended, and closes their clients.
func (g *workerGroup) close() {
	g.wg.Wait()
	var closing sync.WaitGroup
	for _, f := range g.closers {
		closing.Go(f)
	}
	closing.Wait()
}

// A queued is a Locker that counts how waits in the queue end.
type queued struct {
	dlock.Forward
	workers *workerGroup
}

func (q *queued) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.Forward.Acquire(ctx, key, token, ttl)
	switch {
	case err == nil:
		q.workers.happened("served from the queue")
	case ctx.Err() != nil && a.Holder != "":
		q.workers.happened("cancelled in the queue")
	}
	return a, err
}

func (q *queued) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	l, ok := q.Locker.(dlock.SetAcquirer)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return l.TryAcquireSet(ctx, set)
}

// A worker acquires and releases locks at random, in all the ways that a Client has.
type worker struct {
	*workerGroup
	who    string
	client *dlock.Client
	asked  time.Duration // when it called Acquire for its last lease
}

// sleep returns early when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// anything is one action with one of the keys.
func (w *worker) anything(int) {
	key := w.keys[min(rand.IntN(2*len(w.keys)), len(w.keys)-1)]
	unrenewed := w.client.With(dlock.WithRenewal(false), dlock.WithTTL(200*time.Millisecond))
	var lease *dlock.Lease
	use := w.holdBelow(5 * time.Millisecond)
	switch n := rand.IntN(100); {
	case n < 15:
		lease = w.try(key)
	case n < 30:
		lease = w.cancelled(key)
	case n < 40:
		lease = w.briefly(key)
	case n < 42:
		lease, use = w.acquire(w.limit, unrenewed, key), w.outlive
	case n < 44:
		lease, use = w.acquire(w.limit, unrenewed, key), w.abandon
	case n < 46:
		lease, use = w.acquire(w.limit, w.client, key), w.holdBelow(700*time.Millisecond)
	case n < 55:
		lease, use = w.acquire(w.limit, w.client, key), w.handOff
	case n < 57:
		w.lead()
	case n < 62:
		lease, use = w.permit(), w.holdBelow(20*time.Millisecond)
	case n < 67:
		w.set([]string{"set0", "set1", "set2", "set3"})
	default:
		lease, use = w.acquire(w.limit, w.client, key), w.holdBelow(10*time.Millisecond)
	}
	if lease != nil {
		use(lease)
	}
	sleep(w.limit, rand.N(5*time.Millisecond))
}

func (w *worker) try(key string) *dlock.Lease {
	w.asked = w.Now()
	lease, err := w.client.TryAcquire(w.limit, key)
	if errors.Is(err, dlock.ErrHeld) {
		w.happened("found held")
	} else if err != nil {
		w.failed(key, err)
	}
	return lease
}

// cancelled acquires with a context that is cancelled within 200 ms.
func (w *worker) cancelled(key string) *dlock.Lease {
	ctx, cancel := context.WithCancel(w.limit)
	defer cancel()
	timer := time.AfterFunc(rand.N(200*time.Millisecond), cancel)
	defer timer.Stop()
	return w.acquire(ctx, w.client, key)
}

// briefly acquires with a MaxWait, for at most a second: a short MaxWait may never get an
// answer.
func (w *worker) briefly(key string) *dlock.Lease {
	ctx, cancel := context.WithTimeout(w.limit, time.Second)
	defer cancel()
	return w.acquire(ctx, w.client.With(dlock.WithMaxWait(1+rand.N(300*time.Millisecond))), key)
}

// acquire tries until it has a lease. It returns nil if ctx has ended, or MaxWait.
func (w *worker) acquire(ctx context.Context, c *dlock.Client, key string) *dlock.Lease {
	wait := w.waitBegins(w.who, key)
	w.waiting.Add(1)
	defer func() { w.waiting.Add(-1); w.waitEnds(wait) }()
	for ctx.Err() == nil {
		w.asked = w.Now()
		lease, err := c.Acquire(ctx, key)
		switch {
		case err == nil:
			return lease
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, dlock.ErrHeld):
			w.happened("MaxWait over")
			return nil
		}
		w.failed(key, err)
		w.mu.Lock()
		wait.failed = err.Error()
		w.mu.Unlock()
		sleep(w.limit, rand.N(20*time.Millisecond))
	}
	return nil
}

// failed reports those errors that no fault explains.
func (w *worker) failed(key string, err error) {
	w.happened("not answered")
	for _, never := range []error{dlock.ErrInvalid, dlock.ErrLost, dlock.ErrReleased, errors.ErrUnsupported} {
		if errors.Is(err, never) {
			w.wrong("%s: %s: %v", w.who, key, err)
		}
	}
}

// begin records that a hold begins.
func (w *worker) begin(l *dlock.Lease, asked time.Duration) *history.Hold {
	w.happened("holds")
	w.holding.Add(1)
	return w.Hold(w.who, l, asked)
}

// beginOne is begin for the last lease. A fence of Redis is the time of the grant in microseconds, or less, but
// for grants within the same microsecond, as in virtual time.
func (w *worker) beginOne(l *dlock.Lease) *history.Hold {
	return w.begin(l, max(w.asked, min(w.At(time.UnixMicro(l.Fence())), w.Now())))
}

func (w *worker) end(h *history.Hold, l *dlock.Lease) {
	w.End(h, l)
	w.holding.Add(-1)
}

// holdBelow returns a function that keeps a lease for less than the given time and releases it.
func (w *worker) holdBelow(below time.Duration) func(*dlock.Lease) {
	return func(l *dlock.Lease) {
		h := w.beginOne(l)
		held := time.NewTimer(rand.N(below))
		defer held.Stop()
		select {
		case <-held.C:
		case <-l.Done():
		case <-w.limit.Done():
		}
		if w.peek != nil && rand.IntN(10) == 0 {
			w.check(h, l)
		}
		w.end(h, l)
		w.release(h, l)
	}
}

func (w *worker) release(h *history.Hold, l *dlock.Lease) {
	deadline := l.Deadline()
	err := l.Release()
	switch {
	case !errors.Is(err, dlock.ErrLost):
	case time.Now().Before(deadline):
		w.happened("lost early")
		if !w.lossy {
			w.lost(h, "Release, before the deadline: %v", err)
		}
	default:
		w.happened("expired")
	}
}

// lost records that the store does not know a lease whose deadline has not passed.
func (w *worker) lost(h *history.Hold, format string, args ...any) {
	h.Lost = w.Now()
	w.fault("%s: %s", w.who, fmt.Sprintf(format, args...))
}

// check compares the server's holder with the lease, while that is certain.
func (w *worker) check(h *history.Hold, l *dlock.Lease) {
	has, err := w.peek(l.Key())
	if err != nil {
		return
	}
	if l.Err() == nil && has != l.Token() {
		w.lost(h, "certain, but the server has %q", has)
	}
	w.happened("server checked")
}

// outlive holds a lease beyond its end, like a process that was stopped.
func (w *worker) outlive(l *dlock.Lease) {
	h := w.beginOne(l)
	sleep(w.limit, time.Until(l.Deadline())+rand.N(200*time.Millisecond))
	w.end(h, l)
	w.release(h, l)
}

// abandon never releases a lease, like a process that crashed.
func (w *worker) abandon(l *dlock.Lease) {
	h := w.beginOne(l)
	w.holding.Add(-1)
	h.End = w.At(l.Deadline())
	w.happened("abandoned")
}

// handOff detaches a lease and adopts it again.
func (w *worker) handOff(l *dlock.Lease) {
	hold := w.beginOne(l)
	sleep(w.limit, rand.N(5*time.Millisecond))
	w.end(hold, l)
	h, err := l.Detach()
	for err == nil && w.limit.Err() == nil {
		w.asked = w.Now()
		next, failure := w.client.Adopt(w.limit, h)
		if failure == nil {
			w.happened("detached")
			w.holdBelow(5 * time.Millisecond)(next)
			return
		}
		if errors.Is(failure, dlock.ErrLost) {
			return
		}
		sleep(w.limit, rand.N(20*time.Millisecond))
	}
}

// lead stands in an election for a while. It holds the lock until the Election says for the last time that it leads.
func (w *worker) lead() {
	ctx, cancel := context.WithTimeout(w.limit, rand.N(2*time.Second))
	defer cancel()
	e, asked := election.New(w.client, "leader"), w.Now()
	err := e.Run(ctx, func(ctx context.Context, l *dlock.Lease) error {
		h := w.begin(l, asked)
		defer w.holding.Add(-1)
		h.End = w.Now()
		end := h.End + rand.N(100*time.Millisecond)
		for at := h.End; at < end && ctx.Err() == nil; at = w.Now() {
			if e.IsLeader(ctx) == nil {
				h.End = at
			}
			time.Sleep(time.Millisecond)
		}
		w.happened("led")
		return nil
	})
	if err != nil && !errors.Is(err, dlock.ErrLost) {
		w.failed("leader", err)
	}
}

// permit takes a permit of a semaphore, which nobody else has.
func (w *worker) permit() *dlock.Lease {
	ctx, cancel := context.WithTimeout(w.limit, time.Second)
	defer cancel()
	w.asked = w.Now()
	l, _, err := semaphore.New(w.client, "permit", 2).Acquire(ctx)
	if err != nil {
		w.happened("no permit")
		return nil
	}
	w.happened("permit taken")
	return l
}

// set holds a random half of some keys for a moment.
func (w *worker) set(of []string) {
	var keys []string
	for _, k := range rand.Perm(len(of))[:(len(of)+1)/2] {
		keys = append(keys, of[k])
	}
	wait := w.waitBegins(w.who, strings.Join(keys, " "))
	ends := sync.OnceFunc(func() { w.waitEnds(wait) })
	defer ends()
	err := w.client.DoAll(w.limit, keys, func(ctx context.Context, leases *dlock.Leases) error {
		ends()
		var holds []*history.Hold
		for _, l := range leases.All() {
			holds = append(holds, w.begin(l, wait.from))
		}
		sleep(ctx, time.Millisecond)
		for i, l := range leases.All() {
			w.end(holds[i], l)
		}
		w.happened("sets")
		return nil
	})
	if err != nil && !errors.Is(err, dlock.ErrLost) && w.limit.Err() == nil {
		w.failed(wait.key, err)
	}
}
