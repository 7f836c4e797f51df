package dlock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A countingLocker counts the grants and refusals of another Locker. It embeds
// [dlock.Forward], so it queues waiters, renews in batches and inspects if the other does.
type countingLocker struct {
	dlock.Forward
	granted, refused, failed atomic.Int64
}

func (c *countingLocker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	attempt, err := c.Forward.TryAcquire(ctx, key, token, ttl)
	c.count(attempt, err)
	return attempt, err
}

func (c *countingLocker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	attempt, err := c.Forward.Acquire(ctx, key, token, ttl)
	c.count(attempt, err)
	return attempt, err
}

func (c *countingLocker) count(attempt dlock.Attempt, err error) {
	switch {
	case err != nil:
		c.failed.Add(1)
	case attempt.Acquired:
		c.granted.Add(1)
	default:
		c.refused.Add(1)
	}
}

// A decorator counts what a store grants and refuses, for metrics.
func ExampleForward() {
	store := &countingLocker{Forward: dlock.Forward{Locker: memory.New()}}
	locks := dlock.New(store)
	defer locks.Close()
	ctx := context.Background()

	lease, err := locks.Acquire(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release()
	for range 3 {
		locks.TryAcquire(ctx, "invoice:7")
	}
	fmt.Println("granted:", store.granted.Load())
	fmt.Println("refused:", store.refused.Load())
	fmt.Println("failed:", store.failed.Load())
	// Output:
	// granted: 1
	// refused: 3
	// failed: 0
}
