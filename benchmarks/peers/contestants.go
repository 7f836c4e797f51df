package main

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rueidis"
)

// A contestant is a library on one client, with the settings under which it is measured.
type contestant struct {
	name     string // of the library, as the page has it
	client   string
	settings string // that differ from the defaults
	why      string
	prefix   string // of the Redis key of a lock
	open     func(j job) (locks, error)
}

// id is how results name a contestant.
func (c contestant) id() string { return c.name + " (" + c.client + ")" }

// locks are the locks of one process.
type locks struct {
	acquire func(ctx context.Context, key string) (held, error) // waits until ctx ends; ctx has no deadline
	close   func()
	second  func(held) bool // whether a grant needed a second round; may be nil
}

// A held lock. release reports whether the lock was held until then. renew is nil if the
// library renews by itself.
type held struct {
	release func() bool
	renew   func() error
	lease   *dlock.Lease // of dlock
}

const (
	pool = 100                   // connections of a process at most; more than any scenario has goroutines that talk
	poll = 10 * time.Millisecond // between two attempts of a waiter that polls
)

// contestants end with those with local turns.
var contestants = []contestant{
	{name: "redsync", client: "go-redis", settings: "WithRetryDelay(10ms)", why: often, open: redsyncOnGoredis()},
	{name: "redsync", client: "redigo", settings: "WithRetryDelay(10ms)", why: often, open: redsyncOnRedigo},
	{name: "redislock", client: "go-redis", settings: "LinearBackoff(10ms)", why: polls, open: openRedislock},
	{
		name: "rueidislock", client: "rueidis", prefix: "rueidislock:0:", open: openRueidislock,
		settings: "KeyMajority: 1, TryNextAfter: 1s; NoLoopTracking where nobody waits",
		why:      "one server needs one key, not three; a busy server is not taken for a lost one; a cycle is faster, but a handover slower",
	},
	{name: "dlock", client: "go-redis", settings: "none", open: openDlock(dlockOnGoredis, 1)},
	{name: "dlock", client: "redigo", settings: "none", open: openDlock(dlockOnRedigo, 1)},
	{name: "dlock", client: "rueidis", settings: "none", open: openDlock(dlockOnRueidis, 1)},
	{name: "dlock, turns", client: "go-redis", settings: "WithLocalTurns(8)", why: passes, open: openDlock(dlockOnGoredis, 8)},
	{name: "dlock, turns", client: "redigo", settings: "WithLocalTurns(8)", why: passes, open: openDlock(dlockOnRedigo, 8)},
	{name: "dlock, turns", client: "rueidis", settings: "WithLocalTurns(8)", why: passes, open: openDlock(dlockOnRueidis, 8)},
}

const (
	often  = "a waiter finds a free lock sooner than with the default, 50 to 250 ms"
	polls  = "there is no default: without a strategy it does not wait"
	passes = "goroutines of a process pass the lock on among themselves"
)

func contestantOf(id string) contestant {
	all := slices.Concat(contestants, majorities)
	return all[slices.IndexFunc(all, func(c contestant) bool { return c.id() == id })]
}

// silent does not log that a server is down.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func dialGoredis(addr string) *goredislib.Client {
	return goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: pool})
}

func dialRedigo(addr string) *redigolib.Pool {
	return &redigolib.Pool{
		MaxIdle: pool, MaxActive: pool, Wait: true,
		DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			const limit = 5 * time.Second
			return redigolib.DialContext(ctx, "tcp", addr, redigolib.DialReadTimeout(limit), redigolib.DialWriteTimeout(limit))
		},
	}
}

func redsyncOnGoredis(opts ...redsync.Option) func(job) (locks, error) {
	return func(j job) (locks, error) {
		var pools []redsyncredis.Pool
		var clients []io.Closer
		for _, addr := range j.Addrs {
			client := dialGoredis(addr)
			pools, clients = append(pools, redsyncgoredis.NewPool(client)), append(clients, client)
		}
		return openRedsync(pools, j, clients, opts...)
	}
}

func redsyncOnRedigo(j job) (locks, error) {
	client := dialRedigo(j.Addrs[0])
	return openRedsync([]redsyncredis.Pool{redsyncredigo.NewPool(client)}, j, []io.Closer{client})
}

func openRedsync(pools []redsyncredis.Pool, j job, clients []io.Closer, opts ...redsync.Option) (locks, error) {
	all := redsync.New(pools...)
	opts = append(opts, redsync.WithExpiry(j.TTL), redsync.WithTries(1<<30))
	if !j.Patient {
		opts = append(opts, redsync.WithRetryDelay(poll))
	}
	return locks{close: func() { closeAll(clients) }, acquire: func(ctx context.Context, key string) (held, error) {
		m := all.NewMutex(key, opts...)
		if err := m.LockContext(ctx); err != nil {
			return held{}, err
		}
		return held{
			release: func() bool { ok, err := m.Unlock(); return ok && err == nil },
			renew:   func() error { _, err := m.Extend(); return err },
		}, nil
	}}, nil
}

func closeAll(clients []io.Closer) {
	for _, c := range clients {
		c.Close()
	}
}

func openRedislock(j job) (locks, error) {
	client := dialGoredis(j.Addrs[0])
	all := redislock.New(client)
	return locks{close: func() { client.Close() }, acquire: func(ctx context.Context, key string) (held, error) {
		l, err := all.Obtain(ctx, key, j.TTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)})
		return held{
			release: func() bool { return l.Release(context.Background()) == nil },
			renew:   func() error { return l.Refresh(context.Background(), j.TTL, nil) },
		}, err
	}}, nil
}

func openRueidislock(j job) (locks, error) {
	all, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidislib.ClientOption{InitAddress: j.Addrs},
		KeyValidity:    j.TTL,
		KeyMajority:    1,
		NoLoopTracking: j.Alone,
		TryNextAfter:   time.Second,
	})
	if err != nil {
		return locks{}, err
	}
	return locks{close: all.Close, acquire: func(ctx context.Context, key string) (held, error) {
		work, release, err := all.WithContext(ctx, key)
		return held{release: func() bool {
			ok := work.Err() == nil
			release()
			return ok
		}}, err
	}}, nil
}

// A store is a backend of dlock.
type store interface {
	dlock.Locker
	Close() error
}

func dlockOnGoredis(addr string) (store, func(), error) {
	client := dialGoredis(addr)
	return goredis.New(client), func() { client.Close() }, nil
}

func dlockOnRedigo(addr string) (store, func(), error) {
	client := dialRedigo(addr)
	return redigo.New(client), func() { client.Close() }, nil
}

func dlockOnRueidis(addr string) (store, func(), error) {
	client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, nil, err
	}
	return rueidis.New(client), client.Close, nil
}

func openDlock(dial func(string) (store, func(), error), turns int) func(job) (locks, error) {
	return func(j job) (locks, error) {
		store, closeClient, err := dial(j.Addrs[0])
		if err != nil {
			return locks{}, err
		}
		return lockWith(dlock.New(store, dlock.WithTTL(j.TTL), dlock.WithLocalTurns(turns)), func() { store.Close(); closeClient() }), nil
	}
}

func lockWith(all *dlock.Client, end func()) locks {
	return locks{
		close: func() { all.Close(); end() },
		acquire: func(ctx context.Context, key string) (held, error) {
			l, err := all.Acquire(ctx, key)
			return held{release: func() bool { return l.Release() == nil }, lease: l}, err
		},
	}
}
