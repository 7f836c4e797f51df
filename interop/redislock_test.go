package interop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/redistest"
)

// What docs/coming-from.md quotes: a service with redislock or rueidislock. The steps
// after them are those of migration_test.go.

func newRedislock(rdb *redis.Client) *redislock.Client {
	return redislock.New(rdb)
}

func obtain(ctx context.Context, locker *redislock.Client, order string, charge func(context.Context) error) error {
	retry := redislock.LimitRetry(redislock.LinearBackoff(100*time.Millisecond), 150)
	lock, err := locker.Obtain(ctx, "order:"+order, 30*time.Second, &redislock.Options{RetryStrategy: retry})
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return charge(ctx)
}

func tryObtain(ctx context.Context, locker *redislock.Client, order string, charge func(context.Context) error) (done bool, err error) {
	lock, err := locker.Obtain(ctx, "order:"+order, 30*time.Second, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return true, charge(ctx)
}

func withRueidislock(ctx context.Context, old rueidislock.Locker, order string, charge func(context.Context) error) error {
	ctx, release, err := old.WithContext(ctx, "order:"+order)
	if err != nil {
		return err
	}
	defer release()
	return charge(ctx)
}

func withBoth(ctx context.Context, old rueidislock.Locker, locks *dlock.Client, order string, charge func(context.Context) error) error {
	return withRueidislock(ctx, old, order, func(ctx context.Context) error {
		return step2(ctx, locks, order, charge)
	})
}

func tryRueidislock(ctx context.Context, old rueidislock.Locker, order string, charge func(context.Context) error) (done bool, err error) {
	ctx, release, err := old.TryWithContext(ctx, "order:"+order)
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer release()
	return true, charge(ctx)
}

func tryBoth(ctx context.Context, old rueidislock.Locker, locks *dlock.Client, order string, charge func(context.Context) error) (done bool, err error) {
	_, err = tryRueidislock(ctx, old, order, func(ctx context.Context) error {
		done, err = try1(ctx, locks, order, charge)
		return err
	})
	return done, err
}

// TestFromRedislock runs a service with redislock beside its first step. The next steps are those of
// TestMigrationSteps.
func TestFromRedislock(t *testing.T) {
	rdb := dial(t, redistest.Start(t))
	beside(t, "1", with(newRedislock(rdb), "before", obtain, tryObtain), versions(t, rdb)[1])
}

// TestFromRueidislock runs a service with rueidislock beside one with both locks, and this beside
// one with dlock alone.
func TestFromRueidislock(t *testing.T) {
	server := redistest.Start(t)
	old, older := newRueidislock(t, server.Addr(), nil), newRueidislock(t, server.Addr(), nil)
	store, locks := newQueueing(dial(t, server))
	t.Cleanup(func() {
		old.Close()
		older.Close()
		require.NoError(t, errors.Join(locks.Close(), store.Close()))
	})
	both := with(old, "both locks",
		func(ctx context.Context, old rueidislock.Locker, order string, f work) error {
			return withBoth(ctx, old, locks, order, f)
		},
		func(ctx context.Context, old rueidislock.Locker, order string, f work) (bool, error) {
			return tryBoth(ctx, old, locks, order, f)
		})
	t.Run("step 1", func(t *testing.T) { beside(t, "1", with(older, "before", withRueidislock, tryRueidislock), both) })
	t.Run("step 2", func(t *testing.T) { beside(t, "2", both, with(locks, "dlock alone", step2, try1)) })
}

// As the page says of the ctx of WithContext, and of a TTL for one call.
func TestEndOfContext(t *testing.T) {
	locks := dlock.New(memory.New(), dlock.WithTTL(30*time.Second))
	t.Cleanup(func() { require.NoError(t, locks.Close()) })
	ctx, cancel := context.WithCancel(t.Context())
	lease, err := locks.With(dlock.WithTTL(time.Minute)).Acquire(ctx, "order:1")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Minute), lease.Deadline(), 5*time.Second)
	context.AfterFunc(ctx, func() { lease.Release() })
	cancel()
	next, err := locks.Acquire(t.Context(), "order:1")
	require.NoError(t, err)
	require.NoError(t, next.Release())
}
