package backend_test

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

// patience is that of all clients, with one call.
const patience = time.Second

// libraries make a Locker that gives up on a server that does not answer, and a
// function that closes its client.
var libraries = []struct {
	name string
	dial func(addr string) (*rediscore.Locker, func(), error)
}{
	{"goredis", func(addr string) (*rediscore.Locker, func(), error) {
		client := goredislib.NewClient(&goredislib.Options{
			Addr:                  addr,
			ContextTimeoutEnabled: true,
			DialTimeout:           patience,
			ReadTimeout:           patience,
			PoolSize:              50,
		})
		return goredis.New(client), func() { client.Close() }, nil
	}},
	{"rueidis", func(addr string) (*rediscore.Locker, func(), error) {
		client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: patience})
		if err != nil {
			return nil, nil, err
		}
		return rueidis.New(client), client.Close, nil
	}},
	{"redigo", func(addr string) (*rediscore.Locker, func(), error) {
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

// A stressCrew is the workers of one process.
type stressCrew struct {
	keys    []string
	seed    uint64
	note    func(event)
	stop    context.Context                  // workers finish what they are at when it ends
	limit   context.Context                  // and give it up when this ends
	peek    func(key string) (string, error) // what the server has, or nil
	ids     atomic.Int64
	wg      sync.WaitGroup
	closers []func()
}

// connect makes a Client whose connections are to addr.
func (c *stressCrew) connect(name string, library int, addr string) (*dlock.Client, error) {
	locker, closeClient, err := dialPatiently(c.stop, library, addr)
	if err != nil {
		return nil, err
	}
	client := dlock.New(&queued{dlock.Forward{Locker: locker}, c}, dlock.WithFence(true), dlock.WithOwner(name))
	c.closers = append(c.closers, func() {
		client.Close()
		locker.Close()
		closeClient()
	})
	return client, nil
}

// employ starts workers that share a Client.
func (c *stressCrew) employ(name string, library int, addr string, workers int) error {
	client, err := c.connect(name, library, addr)
	for i := range workers {
		if err == nil {
			w := c.worker(name, library, i, client)
			c.wg.Go(w.work)
		}
	}
	return err
}

func (c *stressCrew) worker(name string, library, i int, client *dlock.Client) *worker {
	who := fmt.Sprintf("%s/%s/%d", name, libraries[library].name, i)
	return &worker{
		stressCrew: c,
		who:        who,
		rng:        rand.New(rand.NewPCG(c.seed, hash(who))),
		client:     client.With(dlock.WithTTL([]time.Duration{300, 800, 2000}[i%3] * time.Millisecond)),
	}
}

// dialPatiently tries again as long as the server cannot be reached.
func dialPatiently(ctx context.Context, library int, addr string) (locker *rediscore.Locker, closeClient func(), err error) {
	for ctx.Err() == nil {
		if locker, closeClient, err = libraries[library].dial(addr); err == nil {
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

// retire closes everything when the workers have ended.
func (c *stressCrew) retire() {
	c.wg.Wait()
	var closing sync.WaitGroup
	for _, f := range c.closers {
		closing.Go(f)
	}
	closing.Wait()
}

func (c *stressCrew) happened(what string) { c.note(event{Kind: happened, Text: what}) }

// queued counts how waits in the queue end.
type queued struct {
	dlock.Forward
	crew *stressCrew
}

func (q *queued) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := q.Forward.Acquire(ctx, key, token, ttl)
	switch {
	case err == nil:
		q.crew.happened("served from the queue")
	case ctx.Err() != nil && a.Holder != "":
		q.crew.happened("cancelled in the queue")
	}
	return a, err
}

// A worker acquires and releases locks in random ways.
type worker struct {
	*stressCrew
	who    string
	rng    *rand.Rand
	client *dlock.Client
	asked  int64 // when it called for the lease that it was given last
}

func (w *worker) work() {
	for w.stop.Err() == nil {
		w.act(w.keys[min(w.rng.IntN(2*len(w.keys)), len(w.keys)-1)])
		w.sleep(w.below(5 * time.Millisecond))
	}
}

func (w *worker) below(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

// sleep ends early with the limit of all.
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

// cancelled acquires with a context that is cancelled some time.
func (w *worker) cancelled(key string) *dlock.Lease {
	ctx, cancel := context.WithCancel(w.limit)
	defer cancel()
	timer := time.AfterFunc(w.below(200*time.Millisecond), cancel)
	defer timer.Stop()
	return w.acquire(ctx, w.client, key)
}

// briefly acquires with a MaxWait. That may be too short for any answer, however often it
// is tried.
func (w *worker) briefly(key string) *dlock.Lease {
	ctx, cancel := context.WithTimeout(w.limit, time.Second)
	defer cancel()
	return w.acquire(ctx, w.client.With(dlock.WithMaxWait(1+w.below(300*time.Millisecond))), key)
}

// acquire returns nil only if ctx has ended, or MaxWait.
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

// failed tells errors that faults explain from those that nothing does.
func (w *worker) failed(key string, err error) {
	w.happened("not answered")
	for _, never := range []error{dlock.ErrInvalid, dlock.ErrLost, dlock.ErrReleased, errors.ErrUnsupported} {
		if errors.Is(err, never) {
			w.note(event{Kind: broken, Who: w.who, Key: key, At: now(), Text: err.Error()})
		}
	}
}

// begin notes that a hold begins.
func (w *worker) begin(l *dlock.Lease) (id int64) {
	id = w.ids.Add(1)
	w.note(event{Kind: holdBegins, ID: id, Who: w.who, Key: l.Key(), Asked: w.asked, At: now(), Until: l.Deadline().UnixNano(), Fence: l.Fence()})
	return id
}

// end notes that a hold ends now, or has on its deadline.
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

// check looks whether the server has the token, while that is certain.
func (w *worker) check(id int64, l *dlock.Lease) {
	has, err := w.peek(l.Key())
	if err == nil && l.Err() == nil && has != l.Token() {
		w.note(event{Kind: holdLost, ID: id, At: now(), Text: fmt.Sprintf("certain, but the server has %q", has)})
	}
	if err == nil {
		w.happened("server asked")
	}
}

// outlive holds a lease beyond its end, as if it had been stopped.
func (w *worker) outlive(l *dlock.Lease) {
	if l != nil {
		w.hold(l, time.Until(l.Deadline())+w.below(200*time.Millisecond))
	}
}

// abandon forgets a lease, as if it had crashed.
func (w *worker) abandon(l *dlock.Lease) {
	if l == nil {
		return
	}
	id := w.begin(l)
	w.note(event{Kind: holdEnds, ID: id, At: l.Deadline().UnixNano()})
	w.happened("abandoned")
}

// handOff passes a lease on within the process.
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
