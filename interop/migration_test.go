package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// The steps of docs/coming-from.md, which quotes them. A stepN works under the lock
// of an order, as one version of a service does.

func newRedsync(rdb *redis.Client) *redsync.Redsync {
	return redsync.New(redsyncgoredis.NewPool(rdb))
}

func step0(ctx context.Context, rs *redsync.Redsync, order string, charge func(context.Context) error) error {
	m := rs.NewMutex("order:"+order, redsync.WithExpiry(30*time.Second), redsync.WithTries(100))
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	defer m.UnlockContext(context.WithoutCancel(ctx))
	return charge(ctx)
}

func newPolling(rdb *redis.Client) (*rediscore.Locker, *dlock.Client) {
	store := goredis.New(rdb, goredis.WithQueue(false))
	return store, dlock.New(store, dlock.WithOwner(dlock.HostOwner()),
		dlock.WithTTL(30*time.Second), dlock.WithMaxWait(15*time.Second))
}

func step1(ctx context.Context, locks *dlock.Client, order string, charge func(context.Context) error) error {
	lease, err := locks.Acquire(ctx, "order:"+order)
	if err != nil {
		return err
	}
	defer lease.Release()
	return charge(ctx)
}

func try1(ctx context.Context, locks *dlock.Client, order string, charge func(context.Context) error) (done bool, err error) {
	lease, err := locks.TryAcquire(ctx, "order:"+order)
	if errors.Is(err, dlock.ErrHeld) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer lease.Release()
	return true, charge(ctx)
}

func step2(ctx context.Context, locks *dlock.Client, order string, charge func(context.Context) error) error {
	return locks.Do(ctx, "order:"+order, func(ctx context.Context, _ *dlock.Lease) error {
		return charge(ctx) // ctx ends when the lock is lost
	})
}

func newQueueing(rdb *redis.Client) (*rediscore.Locker, *dlock.Client) {
	store := goredis.New(rdb)
	return store, dlock.New(store, dlock.WithOwner(dlock.HostOwner()),
		dlock.WithTTL(30*time.Second), dlock.WithMaxWait(15*time.Second))
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

type work = func(context.Context) error

// A version is the service after a step.
type version struct {
	name string
	wait func(ctx context.Context, order string, charge work) error
	try  func(ctx context.Context, order string, charge work) (bool, error)
}

// on returns a step that uses locks.
func on[L any](locks L, step func(context.Context, L, string, work) error) func(context.Context, string, work) error {
	return func(ctx context.Context, order string, charge work) error { return step(ctx, locks, order, charge) }
}

func onTry(locks *dlock.Client) func(context.Context, string, work) (bool, error) {
	return func(ctx context.Context, order string, charge work) (bool, error) {
		return try1(ctx, locks, order, charge)
	}
}

// trying is one attempt with a library.
func trying(lib library) func(ctx context.Context, order string, charge work) (done bool, err error) {
	return func(ctx context.Context, order string, charge work) (done bool, err error) {
		held, err := lib.try(ctx, "order:"+order)
		if err != nil {
			if errors.Is(err, errHeld) {
				err = nil
			}
			return false, err
		}
		defer held.release(context.WithoutCancel(ctx))
		return true, charge(ctx)
	}
}

func versions(t *testing.T, rdb *redis.Client) []version {
	polls, polling := newPolling(rdb)
	queues, queueing := newQueueing(rdb)
	t.Cleanup(func() {
		require.NoError(t, errors.Join(polling.Close(), queueing.Close(), polls.Close(), queues.Close()))
	})
	return []version{
		{"before", on(newRedsync(rdb), step0), trying(redsyncs(rdb))},
		{"step 1", on(polling, step1), onTry(polling)},
		{"step 2", on(polling, step2), onTry(polling)},
		{"step 3", on(queueing, step2), onTry(queueing)},
	}
}

// TestMigrationSteps runs each version of the service beside the one before it.
func TestMigrationSteps(t *testing.T) {
	rdb := dial(t, redistest.Start(t))
	all := versions(t, rdb)
	for i := 1; i < len(all); i++ {
		t.Run(all[i].name, func(t *testing.T) { beside(t, fmt.Sprint(i), all[i-1], all[i]) })
	}
}

// beside has workers of two versions want the lock of an order. Only one works at a time, all get
// their turns, and while one version holds the lock, the other does not get it.
func beside(t *testing.T, order string, both ...version) {
	var inside, charges atomic.Int64
	charge := func(context.Context) error {
		if inside.Add(1) != 1 {
			return errors.New("two at once")
		}
		defer inside.Add(-1)
		charges.Add(1)
		time.Sleep(time.Millisecond)
		return nil
	}
	var workers sync.WaitGroup
	for n := range 6 {
		workers.Go(func() {
			for range 5 {
				if err := both[n%2].wait(t.Context(), order, charge); err != nil {
					t.Errorf("%s: %v", both[n%2].name, err)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	workers.Wait()
	require.EqualValues(t, 30, charges.Load(), "charges")
	for n, holder := range both {
		err := holder.wait(t.Context(), order, func(ctx context.Context) error {
			done, err := both[1-n].try(ctx, order, charge)
			if done {
				return errors.New("the other version has not been kept out")
			}
			return err
		})
		require.NoError(t, err, "%s holds the lock", holder.name)
	}
}

// TestMigrationTellsOfALoss: from step 2 on, work ends when its lock is lost.
func TestMigrationTellsOfALoss(t *testing.T) {
	rdb := dial(t, redistest.Start(t))
	store := goredis.New(rdb)
	locks := dlock.New(store, dlock.WithTTL(300*time.Millisecond))
	t.Cleanup(func() { require.NoError(t, errors.Join(locks.Close(), store.Close())) })
	err := step2(t.Context(), locks, "7", func(ctx context.Context) error {
		if err := rdb.Del(ctx, "order:7").Err(); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorIs(t, err, dlock.ErrLost)
}

// TestFromRedislock runs a service with redislock beside its first step. The next steps are those of TestMigrationSteps.
func TestFromRedislock(t *testing.T) {
	rdb := dial(t, redistest.Start(t))
	beside(t, "1", version{"before", on(redislock.New(rdb), obtain), trying(redislocks(rdb, ttl))}, versions(t, rdb)[1])
}

// TestFromRueidislock runs a service with rueidislock beside one with both locks, and this beside one with dlock alone.
func TestFromRueidislock(t *testing.T) {
	server := redistest.Start(t)
	several := func(o *rueidislock.LockerOption) { o.KeyMajority = 2 }
	old, older := newRueidislock(t, server.Addr(), several), newRueidislock(t, server.Addr(), several)
	store, locks := newQueueing(dial(t, server))
	t.Cleanup(func() { require.NoError(t, errors.Join(locks.Close(), store.Close())) })
	before := version{"before", on(older, withRueidislock), func(ctx context.Context, order string, charge work) (bool, error) {
		return tryRueidislock(ctx, older, order, charge)
	}}
	both := version{"both locks",
		func(ctx context.Context, order string, charge work) error {
			return withBoth(ctx, old, locks, order, charge)
		},
		func(ctx context.Context, order string, charge work) (done bool, err error) {
			_, err = tryRueidislock(ctx, old, order, func(ctx context.Context) error {
				done, err = try1(ctx, locks, order, charge)
				return err
			})
			return done, err
		}}
	t.Run("step 1", func(t *testing.T) { beside(t, "1", before, both) })
	t.Run("step 2", func(t *testing.T) { beside(t, "2", both, version{"dlock alone", on(locks, step2), onTry(locks)}) })
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
