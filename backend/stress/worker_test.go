package stress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
)

const (
	patience = time.Second      // of the clients, for one call
	pause    = time.Millisecond // between two tries to connect
)

// libraries make a Locker whose calls end after patience, and a function that closes its
// client.
var libraries = []struct {
	name string
	dial func(addr string, patience time.Duration) (*rediscore.Locker, func(), error)
}{
	{"goredis", func(addr string, patience time.Duration) (*rediscore.Locker, func(), error) {
		client := goredislib.NewClient(&goredislib.Options{
			Addr:                  addr,
			ContextTimeoutEnabled: true,
			DialTimeout:           patience,
			ReadTimeout:           patience,
			PoolSize:              50,
		})
		return goredis.New(client), func() { client.Close() }, nil
	}},
	{"rueidis", func(addr string, patience time.Duration) (*rediscore.Locker, func(), error) {
		client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: patience})
		if err != nil {
			return nil, nil, err
		}
		return rueidis.New(client), client.Close, nil
	}},
	{"redigo", func(addr string, patience time.Duration) (*rediscore.Locker, func(), error) {
		pool := &redigolib.Pool{
			MaxIdle: 10,
			DialContext: func(ctx context.Context) (redigolib.Conn, error) {
				return redigolib.DialContext(ctx, "tcp", addr,
					redigolib.DialConnectTimeout(patience),
					redigolib.DialReadTimeout(patience),
					redigolib.DialWriteTimeout(patience))
			},
		}
		return redigo.New(pool), func() { pool.Close() }, nil
	}},
}

// A workerGroup holds the workers of one process.
type workerGroup struct {
	keys    []string
	seed    uint64
	note    func(event)
	stop    context.Context                  // when it ends, workers finish their last action
	limit   context.Context                  // when it ends, they give it up
	peek    func(key string) (string, error) // the holder that the server has; may be nil
	ids     atomic.Int64
	wg      sync.WaitGroup
	closers []func()
}

// connect returns a Client whose connections go to addr.
func (g *workerGroup) connect(name string, library int, addr string) (*dlock.Client, error) {
	locker, closeClient, err := dialPatiently(g.stop, library, addr)
	if err != nil {
		return nil, err
	}
	client := dlock.New(&queued{dlock.Forward{Locker: locker}, g}, dlock.WithFence(true), dlock.WithOwner(name))
	g.closers = append(g.closers, func() {
		client.Close()
		locker.Close()
		closeClient()
	})
	return client, nil
}

// start starts workers that share a Client.
func (g *workerGroup) start(name string, library int, addr string, workers int) error {
	client, err := g.connect(name, library, addr)
	for i := range workers {
		if err == nil {
			w := g.worker(name, library, i, client)
			g.wg.Go(w.work)
		}
	}
	return err
}

func (g *workerGroup) worker(name string, library, i int, client *dlock.Client) *worker {
	who := fmt.Sprintf("%s/%s/%d", name, libraries[library].name, i)
	return &worker{
		workerGroup: g,
		who:         who,
		rng:         rand.New(rand.NewPCG(g.seed, hash(who))),
		client:      client.With(dlock.WithTTL([]time.Duration{300, 800, 2000}[i%3] * time.Millisecond)),
	}
}

// dialPatiently tries until it has reached the server, or ctx ends.
func dialPatiently(ctx context.Context, library int, addr string) (locker *rediscore.Locker, closeClient func(), err error) {
	for ctx.Err() == nil {
		if locker, closeClient, err = libraries[library].dial(addr, patience); err == nil {
			return locker, closeClient, nil
		}
		time.Sleep(pause)
	}
	return nil, nil, ctx.Err()
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

func (w *worker) work() {
	for w.stop.Err() == nil {
		w.act(w.keys[min(w.rng.IntN(2*len(w.keys)), len(w.keys)-1)])
		w.sleep(w.below(5 * time.Millisecond))
	}
}

func (w *worker) below(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

// sleep returns early when limit ends.
func (w *worker) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.limit.Done():
	}
}

func (w *worker) act(key string) {
	unrenewed := w.client.With(dlock.WithRenewal(false), dlock.WithTTL(200*time.Millisecond))
	switch n := w.rng.IntN(100); {
	case n < 15:
		w.hold(w.try(key), w.below(5*time.Millisecond))
	case n < 30:
		w.hold(w.cancelled(key), w.below(5*time.Millisecond))
	case n < 40:
		w.hold(w.briefly(key), w.below(5*time.Millisecond))
	case n < 42:
		w.outlive(w.acquire(w.limit, unrenewed, key))
	case n < 44:
		w.abandon(w.acquire(w.limit, unrenewed, key))
	case n < 46:
		w.hold(w.acquire(w.limit, w.client, key), w.below(700*time.Millisecond))
	case n < 55:
		w.handOff(w.acquire(w.limit, w.client, key))
	default:
		w.hold(w.acquire(w.limit, w.client, key), w.below(10*time.Millisecond))
	}
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
		w.sleep(w.below(20 * time.Millisecond))
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

// begin reports that a hold begins. A fence of Redis is the time of the grant in microseconds, or less, but
// for grants within the same microsecond, as in virtual time.
func (w *worker) begin(l *dlock.Lease) (id int64) {
	id = w.ids.Add(1)
	asked := max(w.asked, min(l.Fence()*1000, now()))
	w.note(event{Kind: holdBegins, ID: id, Who: w.who, Key: l.Key(), Asked: asked, At: now(), Until: l.Deadline().UnixNano(), Fence: l.Fence()})
	return id
}

// end reports that a hold ends now, or ended at its deadline.
func (w *worker) end(id int64, l *dlock.Lease) {
	at := min(now(), l.Deadline().UnixNano())
	w.note(event{Kind: holdEnds, ID: id, At: at})
}

// hold keeps a lease for d and releases it.
func (w *worker) hold(l *dlock.Lease, d time.Duration) {
	if l == nil {
		return
	}
	id := w.begin(l)
	w.sleep(d)
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
		w.note(event{Kind: holdLost, ID: id, At: now(), Text: "Release, before the deadline: " + err.Error()})
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
	if l != nil {
		w.hold(l, time.Until(l.Deadline())+w.below(200*time.Millisecond))
	}
}

// abandon never releases a lease, like a process that crashed.
func (w *worker) abandon(l *dlock.Lease) {
	if l == nil {
		return
	}
	id := w.begin(l)
	w.note(event{Kind: holdEnds, ID: id, At: l.Deadline().UnixNano()})
	w.happened("abandoned")
}

// handOff detaches a lease and adopts it again.
func (w *worker) handOff(l *dlock.Lease) {
	if l == nil {
		return
	}
	id := w.begin(l)
	w.sleep(w.below(5 * time.Millisecond))
	w.end(id, l)
	h, err := l.Detach()
	for err == nil && w.limit.Err() == nil {
		w.asked = now()
		next, failure := w.client.Adopt(w.limit, h)
		if failure == nil {
			w.happened("detached")
			w.hold(next, w.below(5*time.Millisecond))
			return
		}
		if errors.Is(failure, dlock.ErrLost) {
			return
		}
		w.sleep(w.below(20 * time.Millisecond))
	}
}
