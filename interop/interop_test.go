package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
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
	name      string
	try, wait func(ctx context.Context, key string) (lock, error)
}

// A lock is held by us, or was. Its functions report whether it still was.
type lock struct {
	extend, release func(context.Context) (bool, error)
}

// is reports whether err is one of some errors, or redsync's of a lock that another has.
func is(err error, which ...error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken) || slices.ContainsFunc(which, func(one error) bool { return errors.Is(err, one) })
}

func held(err error, which ...error) error {
	if is(err, which...) {
		return errHeld
	}
	return err
}

func still(err error, lost ...error) (bool, error) {
	if is(err, lost...) {
		return false, nil
	}
	return err == nil, err
}

func libraries(client *redis.Client) []library {
	often := dlock.WithBackoff(func(int) time.Duration { return pause })
	return []library{ours(client, often), redsyncs(client, redsync.WithRetryDelay(pause)), redislocks(client, ttl)}
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
	of := func(acquire func(context.Context, string) (*dlock.Lease, error)) func(context.Context, string) (lock, error) {
		return func(ctx context.Context, key string) (lock, error) {
			l, err := acquire(ctx, key)
			return lock{
				extend:  func(ctx context.Context) (bool, error) { return still(l.Renew(ctx), dlock.ErrLost) },
				release: func(context.Context) (bool, error) { return still(l.Release(), dlock.ErrLost) },
			}, held(err, dlock.ErrHeld)
		}
	}
	return library{name, of(client.TryAcquire), of(client.Acquire)}
}

// redsyncs polls at redsync's default pace, unless opts say otherwise.
func redsyncs(rdb *redis.Client, opts ...redsync.Option) library {
	client := newRedsync(rdb)
	of := func(take func(*redsync.Mutex, context.Context) error) func(context.Context, string) (lock, error) {
		return func(ctx context.Context, key string) (lock, error) {
			m := client.NewMutex(key, append([]redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(1 << 20)}, opts...)...)
			do := func(f func(context.Context) (bool, error)) func(context.Context) (bool, error) {
				return func(ctx context.Context) (bool, error) {
					ok, err := f(ctx)
					was, err := still(err)
					return ok && was, err
				}
			}
			return lock{do(m.ExtendContext), do(m.UnlockContext)}, held(take(m, ctx), redsync.ErrFailed)
		}
	}
	return library{"redsync", of((*redsync.Mutex).TryLockContext), of((*redsync.Mutex).LockContext)}
}

func redislocks(rdb *redis.Client, ttl time.Duration) library {
	client := redislock.New(rdb)
	of := func(retry redislock.RetryStrategy) func(context.Context, string) (lock, error) {
		return func(ctx context.Context, key string) (lock, error) {
			l, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: retry})
			lost := []error{redislock.ErrLockNotHeld, redislock.ErrNotObtained}
			return lock{
				extend:  func(ctx context.Context) (bool, error) { return still(l.Refresh(ctx, ttl, nil), lost...) },
				release: func(ctx context.Context) (bool, error) { return still(l.Release(ctx), lost...) },
			}, held(err, redislock.ErrNotObtained)
		}
	}
	return library{"redislock", of(redislock.NoRetry()), of(redislock.LinearBackoff(pause))}
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
	held, err := a.try(t.Context(), key)
	require.NoError(t, err, a.name)
	_, err = b.try(t.Context(), key)
	require.ErrorIs(t, err, errHeld, "%s takes what %s holds", b.name, a.name)
	requireDone(t, true, held.extend, "%s cannot extend its lock", a.name)
	requireDone(t, true, held.release, "%s cannot release its lock", a.name)
	next, err := b.wait(t.Context(), key)
	require.NoError(t, err, "%s after %s", b.name, a.name)
	requireDone(t, true, next.release, "%s cannot release its lock", b.name)
}

// takeOver shows that a, who held the key once, does nothing to the lock of b.
func takeOver(t *testing.T, server *redistest.Server, a, b library) {
	for what, of := range map[string]func(lock) func(context.Context) (bool, error){
		"extended": func(l lock) func(context.Context) (bool, error) { return l.extend },
		"released": func(l lock) func(context.Context) (bool, error) { return l.release },
	} {
		stale, err := a.try(t.Context(), key)
		require.NoError(t, err)
		_, err = server.Do("DEL", key) // in place of its expiry
		require.NoError(t, err)
		held, err := b.try(t.Context(), key)
		require.NoError(t, err)
		requireDone(t, false, of(stale), "%s %s the lock of %s", a.name, what, b.name)
		_, err = a.try(t.Context(), key)
		require.ErrorIs(t, err, errHeld, "the lock of %s is gone", b.name)
		requireDone(t, true, held.extend, "%s cannot extend its lock", b.name)
		requireDone(t, true, held.release, "%s cannot release its lock", b.name)
	}
}

func requireDone(t *testing.T, want bool, op func(context.Context) (bool, error), msg string, args ...any) {
	t.Helper()
	done, err := op(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, done, append([]any{msg}, args...)...)
}
