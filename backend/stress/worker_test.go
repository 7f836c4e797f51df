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
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/semaphore"
)

const (
	patience  = time.Second      // of the clients, for one call
	pause     = time.Millisecond // between two tries to connect
	perClient = 4                // workers that share a Client
	setSize   = 8                // of all keys
)

// A closer is a backend with goroutines of its own.
type closer interface {
	dlock.Locker
	Close() error
}

// An opener returns a Locker whose calls end after patience, and a function that closes its client.
type opener func() (l closer, closeClient func(), err error)

// openAt opens a client of a server, or of a cluster if there are several addresses.
func openAt(library int, addrs ...string) opener {
	s := clients.Settings{Addrs: addrs, Cluster: len(addrs) > 1, Patience: patience, Caches: true}
	return func() (closer, func(), error) { return clients.All[library].Open(s) }
}

// patiently opens until that succeeds, or ctx ends.
func patiently(ctx context.Context, open opener) (l closer, closeClient func(), err error) {
	for ctx.Err() == nil {
		if l, closeClient, err = open(); err == nil {
			return l, closeClient, nil
		}
		time.Sleep(pause)
	}
	return nil, nil, ctx.Err()
}

// A workerGroup holds the workers of one process.
type workerGroup struct {
	keys    []string
	seed    uint64
	ttls    []time.Duration // of the workers, in turn
	note    func(event)
	stop    context.Context                  // when it ends, workers finish their last action
	limit   context.Context                  // when it ends, they give it up
	peek    func(key string) (string, error) // the holder that the server has; may be nil
	lossy   bool                             // the store may forget a lease
	ids     atomic.Int64
	wg      sync.WaitGroup
	closers []func()
}

// connect returns a Client, which is closed with the group.
func (g *workerGroup) connect(owner string, open opener) (*dlock.Client, error) {
	locker, closeClient, err := patiently(g.stop, open)
	if err != nil {
		return nil, err
	}
	c := dlock.New(&queued{dlock.Forward{Locker: locker}, g}, dlock.WithFence(true), dlock.WithOwner(owner))
	g.closers = append(g.closers, func() { c.Close(); locker.Close(); closeClient() })
	return c, nil
}

// start starts workers that share a Client, and act like this.
func (g *workerGroup) start(who string, open opener, workers int, act func(*worker)) (*dlock.Client, error) {
	owner, _, _ := strings.Cut(who, "/")
	c, err := g.connect(owner, open)
	for i := range workers {
		if err == nil {
			w := g.worker(fmt.Sprint(who, "/", i), i, c)
			g.wg.Go(func() {
				for w.stop.Err() == nil {
					act(w)
				}
			})
		}
	}
	return c, err
}

func (g *workerGroup) worker(who string, i int, c *dlock.Client) *worker {
	if len(g.ttls) > 0 {
		c = c.With(dlock.WithTTL(g.ttls[i%len(g.ttls)]))
	}
	return &worker{workerGroup: g, who: who, rng: rand.New(rand.NewPCG(g.seed, hash(who))), client: c}
}

func hash(s string) (h uint64) {
	for _, b := range []byte(s) {
		h = h*31 + uint64(b)
	}
	return h
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

func (g *workerGroup) happened(what string) { g.note(event{Kind: happened, Text: what}) }

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

// A worker acquires and releases locks at random, in all the ways that a Client has.
type worker struct {
	*workerGroup
	who    string
	rng    *rand.Rand
	client *dlock.Client
	asked  int64 // when it called Acquire for its last lease
}

func (w *worker) below(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

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
func (w *worker) anything() {
	key := w.keys[min(w.rng.IntN(2*len(w.keys)), len(w.keys)-1)]
	unrenewed := w.client.With(dlock.WithRenewal(false), dlock.WithTTL(200*time.Millisecond))
	switch n := w.rng.IntN(100); {
	case n < 15:
		w.hold(w.try(key), 5*time.Millisecond)
	case n < 30:
		w.hold(w.cancelled(key), 5*time.Millisecond)
	case n < 40:
		w.hold(w.briefly(key), 5*time.Millisecond)
	case n < 42:
		w.outlive(w.acquire(w.limit, unrenewed, key))
	case n < 44:
		w.abandon(w.acquire(w.limit, unrenewed, key))
	case n < 46:
		w.acquireAndHold(key, 700*time.Millisecond)
	case n < 55:
		w.handOff(w.acquire(w.limit, w.client, key))
	case n < 57:
		w.lead()
	case n < 62:
		w.permit()
	default:
		w.acquireAndHold(key, 10*time.Millisecond)
	}
	sleep(w.limit, w.below(5*time.Millisecond))
}

func (w *worker) acquireAndHold(key string, below time.Duration) {
	w.hold(w.acquire(w.limit, w.client, key), below)
}

func (w *worker) try(key string) *dlock.Lease {
	w.asked = now()
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
	timer := time.AfterFunc(w.below(200*time.Millisecond), cancel)
	defer timer.Stop()
	return w.acquire(ctx, w.client, key)
}

// briefly acquires with a MaxWait, for at most a second: a short MaxWait may never get an
// answer.
func (w *worker) briefly(key string) *dlock.Lease {
	ctx, cancel := context.WithTimeout(w.limit, time.Second)
	defer cancel()
	return w.acquire(ctx, w.client.With(dlock.WithMaxWait(1+w.below(300*time.Millisecond))), key)
}

// acquire tries until it has a lease. It returns nil if ctx has ended, or MaxWait.
func (w *worker) acquire(ctx context.Context, c *dlock.Client, key string) *dlock.Lease {
	id := w.ids.Add(1)
	w.note(event{Kind: waitBegins, ID: id, Who: w.who, Key: key, At: now()})
	defer func() { w.note(event{Kind: waitEnds, ID: id, At: now()}) }()
	for ctx.Err() == nil {
		w.asked = now()
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
		w.note(event{Kind: waitFailed, ID: id, Text: err.Error()})
		sleep(w.limit, w.below(20*time.Millisecond))
	}
	return nil
}

// failed reports those errors that no fault explains.
func (w *worker) failed(key string, err error) {
	w.happened("not answered")
	for _, never := range []error{dlock.ErrInvalid, dlock.ErrLost, dlock.ErrReleased, errors.ErrUnsupported} {
		if errors.Is(err, never) {
			w.note(event{Kind: broken, Who: w.who, Key: key, At: now(), Text: err.Error()})
		}
	}
}

// begin reports that a hold begins.
func (w *worker) begin(l *dlock.Lease, asked int64) (id int64) {
	id = w.ids.Add(1)
	w.note(event{Kind: holdBegins, ID: id, Who: w.who, Key: l.Key(), Asked: asked, At: now(), Until: l.Deadline().UnixNano(), Fence: l.Fence()})
	return id
}

// beginOne is begin for the last lease. A fence of Redis is the time of the grant in microseconds, or less, but
// for grants within the same microsecond, as in virtual time.
func (w *worker) beginOne(l *dlock.Lease) (id int64) {
	return w.begin(l, max(w.asked, min(l.Fence()*1000, now())))
}

// end reports that a hold ends now, or ended at its deadline.
func (w *worker) end(id int64, l *dlock.Lease) {
	w.note(event{Kind: holdEnds, ID: id, At: min(now(), l.Deadline().UnixNano())})
}

// hold keeps a lease for less than the given time and releases it.
func (w *worker) hold(l *dlock.Lease, below time.Duration) {
	if l == nil {
		return
	}
	id := w.beginOne(l)
	held := time.NewTimer(w.below(below))
	defer held.Stop()
	select {
	case <-held.C:
	case <-l.Done():
	case <-w.limit.Done():
	}
	if w.peek != nil && w.rng.IntN(10) == 0 {
		w.check(id, l)
	}
	w.end(id, l)
	w.release(id, l)
}

func (w *worker) release(id int64, l *dlock.Lease) {
	deadline := l.Deadline()
	err := l.Release()
	switch {
	case !errors.Is(err, dlock.ErrLost):
	case time.Now().Before(deadline):
		w.happened("lost early")
		if !w.lossy {
			w.note(event{Kind: holdLost, ID: id, At: now(), Text: "Release, before the deadline: " + err.Error()})
		}
	default:
		w.happened("expired")
	}
}

// check compares the server's holder with the lease, while that is certain.
func (w *worker) check(id int64, l *dlock.Lease) {
	has, err := w.peek(l.Key())
	if err == nil && l.Err() == nil && has != l.Token() {
		w.note(event{Kind: holdLost, ID: id, At: now(), Text: fmt.Sprintf("certain, but the server has %q", has)})
	}
	if err == nil {
		w.happened("server checked")
	}
}

// outlive holds a lease beyond its end, like a process that was stopped.
func (w *worker) outlive(l *dlock.Lease) {
	if l == nil {
		return
	}
	id := w.beginOne(l)
	sleep(w.limit, time.Until(l.Deadline())+w.below(200*time.Millisecond))
	w.end(id, l)
	w.release(id, l)
}

// abandon never releases a lease, like a process that crashed.
func (w *worker) abandon(l *dlock.Lease) {
	if l == nil {
		return
	}
	id := w.beginOne(l)
	w.note(event{Kind: holdEnds, ID: id, At: l.Deadline().UnixNano()})
	w.happened("abandoned")
}

// handOff detaches a lease and adopts it again.
func (w *worker) handOff(l *dlock.Lease) {
	if l == nil {
		return
	}
	id := w.beginOne(l)
	sleep(w.limit, w.below(5*time.Millisecond))
	w.end(id, l)
	h, err := l.Detach()
	for err == nil && w.limit.Err() == nil {
		w.asked = now()
		next, failure := w.client.Adopt(w.limit, h)
		if failure == nil {
			w.happened("detached")
			w.hold(next, 5*time.Millisecond)
			return
		}
		if errors.Is(failure, dlock.ErrLost) {
			return
		}
		sleep(w.limit, w.below(20*time.Millisecond))
	}
}

// lead stands in an election for a while. It holds the lock until the Election says for the last time that it leads.
func (w *worker) lead() {
	ctx, cancel := context.WithTimeout(w.limit, w.below(2*time.Second))
	defer cancel()
	e, asked := election.New(w.client, "leader"), now()
	err := e.Run(ctx, func(ctx context.Context, l *dlock.Lease) error {
		id, last, end := w.begin(l, asked), now(), now()+int64(w.below(100*time.Millisecond))
		for at := last; at < end && ctx.Err() == nil; at = now() {
			if e.IsLeader(ctx) == nil {
				last = at
			}
			time.Sleep(time.Millisecond)
		}
		w.note(event{Kind: holdEnds, ID: id, At: last})
		w.happened("led")
		return nil
	})
	if err != nil && !errors.Is(err, dlock.ErrLost) {
		w.failed("leader", err)
	}
}

// permit holds a permit of a semaphore, which nobody else has.
func (w *worker) permit() {
	ctx, cancel := context.WithTimeout(w.limit, time.Second)
	defer cancel()
	asked := now()
	l, _, err := semaphore.New(w.client, "permit", 2).Acquire(ctx)
	if err != nil {
		w.happened("no permit")
		return
	}
	w.asked = asked
	w.happened("permit taken")
	w.hold(l, 20*time.Millisecond)
}

// set holds a random set of keys for a moment.
func (w *worker) set() {
	var keys []string
	for _, k := range w.rng.Perm(len(w.keys))[:setSize] {
		keys = append(keys, w.keys[k])
	}
	wait, asked := w.ids.Add(1), now()
	w.note(event{Kind: waitBegins, ID: wait, Who: w.who, At: asked})
	err := w.client.DoAll(w.limit, keys, func(ctx context.Context, leases *dlock.Leases) error {
		w.note(event{Kind: waitEnds, ID: wait, At: now()})
		var ids []int64
		for _, l := range leases.All() {
			ids = append(ids, w.begin(l, asked))
		}
		time.Sleep(time.Millisecond)
		for i, l := range leases.All() {
			w.end(ids[i], l)
		}
		w.happened("sets")
		if err := context.Cause(ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
			return err
		}
		return nil
	})
	var lost *dlock.LostError
	switch {
	case errors.As(err, &lost) && lost.Reason == dlock.LossExpired: // on a busy machine
		w.happened("lost")
	case err != nil:
		w.note(event{Kind: broken, Who: w.who, At: now(), Text: err.Error()})
	}
}
