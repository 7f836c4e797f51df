package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// An indexer is the service under test. It indexes 600 pages in ten minutes. Only one indexer
// may work at a time.
type indexer struct {
	locks *dlock.Client
	index func(ctx context.Context, page int) error
}

func (x *indexer) run(ctx context.Context) error {
	return x.locks.Do(ctx, "index", func(ctx context.Context, _ *dlock.Lease) error {
		for page := range 600 {
			if err := x.index(ctx, page); err != nil {
				return err
			}
		}
		return nil
	})
}

// testIndexerStopsWhenItsLockIsLost is the test. In your test file, its name begins with a
// capital T. It runs in a bubble of [testing/synctest], where ten minutes pass at once.
func testIndexerStopsWhenItsLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		locks := dlock.New(store)
		defer locks.Close()
		var lost time.Time
		x := &indexer{locks, func(ctx context.Context, page int) error {
			if page == 300 {
				store.Steal("index", time.Hour) // another indexer has it now
				lost = time.Now()
			}
			return workFor(ctx, time.Second)
		}}

		err := x.run(t.Context())
		if !errors.Is(err, dlock.ErrLost) {
			t.Errorf("run returned %v, want an error that matches ErrLost", err)
		}
		if late := time.Since(lost); late > dlock.DefaultTTL {
			t.Errorf("stopped %v after the loss, want at most %v", late, dlock.DefaultTTL)
		}
	})
}

// workFor waits for d, or until ctx ends.
func workFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// This is a unit test of a service that loses its lock in the middle of its work. The
// in-memory store gives the lock to another, and the service must stop before its TTL has
// passed. See the test in the code below; the example does the same in real time, with a
// short TTL.
func Example_loss() {
	store := memory.New()
	locks := dlock.New(store, dlock.WithTTL(300*time.Millisecond))
	defer locks.Close()
	x := &indexer{locks, func(ctx context.Context, page int) error {
		if page < 3 {
			fmt.Println("page", page)
			return nil
		}
		store.Steal("index", time.Hour)
		return workFor(ctx, time.Hour)
	}}
	err := x.run(context.Background())
	fmt.Println("lost:", errors.Is(err, dlock.ErrLost))
	// Output:
	// page 0
	// page 1
	// page 2
	// lost: true
}
