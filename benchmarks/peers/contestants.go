package peers

import (
	"context"
	"slices"
	"strings"
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

// A contestant is a library on one client. The page says with which settings, and why.
type contestant struct {
	name   string // of the library, as the page has it
	client string
	prefix string // of the Redis key of a lock
	open   func(j job) (acquire, error)
}

// id is how results name a contestant.
func (c contestant) id() string { return c.name + " (" + c.client + ")" }

// An acquire waits for a lock until ctx ends. ctx has no deadline.
type acquire func(ctx context.Context, key string) (held, error)

// A held lock. release reports whether the lock was held until then. renew is nil if the library renews by itself.
type held struct {
	release func() bool
	renew   func() error
}

const (
	pool = 100                   // connections of a process at most; more than any scenario has goroutines that talk
	poll = 10 * time.Millisecond // between two attempts of a waiter that polls
)

// goredisPool is how many connections a pool of go-redis has; 0 means its default, ten for each CPU.
var goredisPool = pool

// contestants end with those with local turns.
var contestants = []contestant{
	{name: "redsync", client: "go-redis", open: openRedsync(redsyncOnGoredis)},
	{name: "redsync", client: "redigo", open: openRedsync(redsyncOnRedigo)},
	{name: "redislock", client: "go-redis", open: openRedislock},
	{name: "rueidislock", client: "rueidis", open: openRueidislock, prefix: "rueidislock:0:"},
	{name: "dlock", client: "go-redis", open: openDlock(dlockOnGoredis)},
	{name: "dlock", client: "redigo", open: openDlock(dlockOnRedigo)},
	{name: "dlock", client: "rueidis", open: openDlock(dlockOnRueidis)},
	{name: "dlock, turns", client: "go-redis", open: openDlock(dlockOnGoredis, dlock.WithLocalTurns(8))},
	{name: "dlock, turns", client: "redigo", open: openDlock(dlockOnRedigo, dlock.WithLocalTurns(8))},
	{name: "dlock, turns", client: "rueidis", open: openDlock(dlockOnRueidis, dlock.WithLocalTurns(8))},
}

// alone are the bare clients, and the contestants that have something to do where nobody waits: local turns have not.
var alone = slices.Concat([]contestant{
	{name: "bare", client: "go-redis", open: openBare(bareGoredis)},
	{name: "bare", client: "redigo", open: openBare(bareRedigo)},
	{name: "bare", client: "rueidis", open: openBare(bareRueidis)},
}, contestants[:len(contestants)-3])

// peer reports whether a contestant is another lock library.
func (c contestant) peer() bool { return c.name != "bare" && !strings.HasPrefix(c.name, "dlock") }

// majorities are the contestants that take a lock on several servers, and dlock on the first of them.
// A grant without a fence is an error there.
var majorities = []contestant{
	{name: "dlock, one server", client: "go-redis", open: openDlock(dlockOnGoredis, dlock.WithFence(true))},
	{name: "redlock", client: "go-redis", open: openRedlock},
	contestants[0],
	{name: "redsync, FailFast", client: "go-redis", open: openRedsync(redsyncOnGoredis, redsync.WithFailFast(true))},
}

// inMajority are those that take a lock on several servers.
var inMajority = majorities[1:]

func contestantOf(id string) contestant {
	all := slices.Concat(alone, contestants, majorities)
	return all[slices.IndexFunc(all, func(c contestant) bool { return c.id() == id })]
}

func dialGoredis(addr string) *goredislib.Client {
	return goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: goredisPool})
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

func dialRueidis(addr string) (rueidislib.Client, error) {
	return rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}})
}

func redsyncOnGoredis(addr string) redsyncredis.Pool {
	return redsyncgoredis.NewPool(dialGoredis(addr))
}
func redsyncOnRedigo(addr string) redsyncredis.Pool { return redsyncredigo.NewPool(dialRedigo(addr)) }

func openRedsync(dial func(addr string) redsyncredis.Pool, opts ...redsync.Option) func(job) (acquire, error) {
	return func(j job) (acquire, error) {
		var pools []redsyncredis.Pool
		for _, addr := range j.Addrs {
			pools = append(pools, dial(addr))
		}
		all := redsync.New(pools...)
		opts := append(slices.Clip(opts), redsync.WithExpiry(j.TTL), redsync.WithTries(1<<30), redsync.WithRetryDelay(poll))
		return func(ctx context.Context, key string) (held, error) {
			m := all.NewMutex(key, opts...)
			return held{
				release: func() bool { ok, err := m.Unlock(); return ok && err == nil },
				renew:   func() error { _, err := m.Extend(); return err },
			}, m.LockContext(ctx)
		}, nil
	}
}

func openRedislock(j job) (acquire, error) {
	all := redislock.New(dialGoredis(j.Addrs[0]))
	return func(ctx context.Context, key string) (held, error) {
		l, err := all.Obtain(ctx, key, j.TTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)})
		return held{
			release: func() bool { return l.Release(context.Background()) == nil },
			renew:   func() error { return l.Refresh(context.Background(), j.TTL, nil) },
		}, err
	}, nil
}

func openRueidislock(j job) (acquire, error) {
	all, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidislib.ClientOption{InitAddress: j.Addrs},
		KeyValidity:    j.TTL,
		KeyMajority:    1,
		NoLoopTracking: j.Alone,
		TryNextAfter:   time.Second,
	})
	return func(ctx context.Context, key string) (held, error) {
		work, release, err := all.WithContext(ctx, key)
		return held{release: func() bool {
			ok := work.Err() == nil
			release()
			return ok
		}}, err
	}, err
}

func dlockOnGoredis(addr string) (dlock.Locker, error) { return goredis.New(dialGoredis(addr)), nil }
func dlockOnRedigo(addr string) (dlock.Locker, error)  { return redigo.New(dialRedigo(addr)), nil }

func dlockOnRueidis(addr string) (dlock.Locker, error) {
	client, err := dialRueidis(addr)
	if err != nil {
		return nil, err
	}
	return rueidis.New(client), nil
}

func openDlock(dial func(addr string) (dlock.Locker, error), opts ...dlock.Option) func(job) (acquire, error) {
	return func(j job) (acquire, error) {
		store, err := dial(j.Addrs[0])
		if err != nil {
			return nil, err
		}
		return taking(dlock.New(store, append(opts, dlock.WithTTL(j.TTL))...)), nil
	}
}

func taking(all *dlock.Client) acquire {
	return func(ctx context.Context, key string) (held, error) {
		l, err := all.Acquire(ctx, key)
		return held{release: func() bool { return l.Release() == nil }}, err
	}
}
