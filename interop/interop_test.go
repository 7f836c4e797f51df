package interop

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ttl   = time.Minute
	pause = 2 * time.Millisecond // between two attempts of a waiter
)

var errHeld = errors.New("held by another")

// A library takes locks. Both functions answer errHeld if another holds key.
type library struct {
	name string
	try  func(ctx context.Context, key string) (lock, error)
	wait func(ctx context.Context, key string) (lock, error)
}

// A lock is held by us, or was. Its methods report whether it still was.
type lock interface {
	extend(ctx context.Context) (bool, error)
	release(ctx context.Context) (bool, error)
}

func libraries(client *redis.Client) []library {
	often := dlock.WithBackoff(func(int) time.Duration { return pause })
	return []library{ours(client, often), redsyncs(client, redsync.WithRetryDelay(pause)), redislocks(client)}
}

// ours polls at the default pace, unless opts say otherwise.
func ours(rdb *redis.Client, opts ...dlock.Option) library {
	client := dlock.New(goredis.New(rdb, rediscore.WithQueue(false)), dlock.WithTTL(ttl), dlock.WithRenewal(false)).With(opts...)
	return leases(client, "dlock")
}

// queueing stands in the queue.
func queueing(t *testing.T, rdb *redis.Client) library {
	store := goredis.New(rdb)
	t.Cleanup(func() { store.Close() })
	return leases(dlock.New(store, dlock.WithTTL(ttl)), "dlock, queueing")
}

func leases(client *dlock.Client, name string) library {
	grant := func(l *dlock.Lease, err error) (lock, error) {
		if errors.Is(err, dlock.ErrHeld) {
			err = errHeld
		}
		return lease{l}, err
	}
	return library{
		name: name,
		try:  func(ctx context.Context, key string) (lock, error) { return grant(client.TryAcquire(ctx, key)) },
		wait: func(ctx context.Context, key string) (lock, error) { return grant(client.Acquire(ctx, key)) },
	}
}

type lease struct{ *dlock.Lease }

func (l lease) extend(ctx context.Context) (bool, error) { return still(l.Renew(ctx)) }

func (l lease) release(context.Context) (bool, error) { return still(l.Release()) }

func still(err error) (bool, error) {
	if errors.Is(err, dlock.ErrLost) {
		return false, nil
	}
	return err == nil, err
}

// redsyncs polls at redsync's default pace, unless opts say otherwise.
func redsyncs(rdb *redis.Client, opts ...redsync.Option) library {
	client := redsync.New(redsyncgoredis.NewPool(rdb))
	grant := func(m *redsync.Mutex, err error) (lock, error) {
		var taken *redsync.ErrTaken
		if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
			err = errHeld
		}
		return mutex{m}, err
	}
	newMutex := func(key string) *redsync.Mutex {
		return client.NewMutex(key, append([]redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(1 << 20)}, opts...)...)
	}
	return library{
		name: "redsync",
		try: func(ctx context.Context, key string) (lock, error) {
			m := newMutex(key)
			return grant(m, m.TryLockContext(ctx))
		},
		wait: func(ctx context.Context, key string) (lock, error) {
			m := newMutex(key)
			return grant(m, m.LockContext(ctx))
		},
	}
}

type mutex struct{ *redsync.Mutex }

func (m mutex) extend(ctx context.Context) (bool, error) { return notTaken(m.ExtendContext(ctx)) }

func (m mutex) release(ctx context.Context) (bool, error) { return notTaken(m.UnlockContext(ctx)) }

func notTaken(ok bool, err error) (bool, error) {
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) {
		return false, nil
	}
	return ok, err
}

func redislocks(rdb *redis.Client) library {
	client := redislock.New(rdb)
	obtain := func(ctx context.Context, key string, retry redislock.RetryStrategy) (lock, error) {
		l, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: retry})
		if errors.Is(err, redislock.ErrNotObtained) {
			err = errHeld
		}
		return obtained{l}, err
	}
	return library{
		name: "redislock",
		try: func(ctx context.Context, key string) (lock, error) {
			return obtain(ctx, key, redislock.NoRetry())
		},
		wait: func(ctx context.Context, key string) (lock, error) {
			return obtain(ctx, key, redislock.LinearBackoff(pause))
		},
	}
}

type obtained struct{ *redislock.Lock }

func (l obtained) extend(ctx context.Context) (bool, error) {
	return notLost(l.Refresh(ctx, ttl, nil))
}

func (l obtained) release(ctx context.Context) (bool, error) { return notLost(l.Release(ctx)) }

func notLost(err error) (bool, error) {
	if errors.Is(err, redislock.ErrLockNotHeld) || errors.Is(err, redislock.ErrNotObtained) {
		return false, nil
	}
	return err == nil, err
}

func dial(t *testing.T, server *redistest.Server) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, PoolSize: 200})
	t.Cleanup(func() { client.Close() })
	return client
}

// TestTwoLibraries lets each library hold a key that each other wants.
func TestTwoLibraries(t *testing.T) {
	server := redistest.Start(t)
	all := libraries(dial(t, server))
	for _, a := range all {
		for _, b := range all {
			t.Run(fmt.Sprintf("%s/%s", a.name, b.name), func(t *testing.T) {
				exclude(t, a, b)
				takeOver(t, server, a, b)
			})
		}
	}
}

// exclude lets b try in vain while a holds the key, and then wait for it.
func exclude(t *testing.T, a, b library) {
	held, err := a.try(t.Context(), "order:7")
	require.NoError(t, err, a.name)
	_, err = b.try(t.Context(), "order:7")
	require.ErrorIs(t, err, errHeld, "%s takes what %s holds", b.name, a.name)
	requireDone(t, held.extend, "%s cannot extend its lock", a.name)
	requireDone(t, held.release, "%s cannot release its lock", a.name)
	next, err := b.wait(t.Context(), "order:7")
	require.NoError(t, err, "%s after %s", b.name, a.name)
	requireDone(t, next.release, "%s cannot release its lock", b.name)
}

// takeOver shows that a, who held the key once, does nothing to the lock of b.
func takeOver(t *testing.T, server *redistest.Server, a, b library) {
	stale, err := a.try(t.Context(), "order:7")
	require.NoError(t, err)
	_, err = server.Do("DEL", "order:7") // in place of its expiry
	require.NoError(t, err)
	held, err := b.try(t.Context(), "order:7")
	require.NoError(t, err)
	requireNotDone(t, stale.extend, "%s extended the lock of %s", a.name, b.name)
	requireNotDone(t, stale.release, "%s released the lock of %s", a.name, b.name)
	_, err = a.try(t.Context(), "order:7")
	require.ErrorIs(t, err, errHeld, "the lock of %s is gone", b.name)
	requireDone(t, held.extend, "%s cannot extend its lock", b.name)
	requireDone(t, held.release, "%s cannot release its lock", b.name)
}

func requireDone(t *testing.T, op func(context.Context) (bool, error), msg string, args ...any) {
	t.Helper()
	done, err := op(t.Context())
	require.NoError(t, err)
	require.True(t, done, append([]any{msg}, args...)...)
}

func requireNotDone(t *testing.T, op func(context.Context) (bool, error), msg string, args ...any) {
	t.Helper()
	done, err := op(t.Context())
	require.NoError(t, err)
	require.False(t, done, append([]any{msg}, args...)...)
}
