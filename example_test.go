package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestIndexerStopsWhenItsLockIsLost(t *testing.T) { testIndexerStopsWhenItsLockIsLost(t) }

func ExampleClient_Do() {
	locks := dlock.New(memory.New())
	defer locks.Close()

	err := locks.Do(context.Background(), "invoice:7", func(ctx context.Context, lease *dlock.Lease) error {
		// ctx ends if the lock is lost: pass it to everything that is called here.
		fmt.Println("working on", lease.Key())
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// working on invoice:7
	// <nil>
}

func ExampleClient_Acquire() {
	locks := dlock.New(memory.New())
	defer locks.Close()

	// ctx limits the wait, not the lease.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := locks.Acquire(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", lease.Err() == nil)

	// nil means that nobody else held the lock meanwhile.
	fmt.Println("released:", lease.Release())
	// Output:
	// held: true
	// released: <nil>
}

func ExampleClient_TryAcquire() {
	store := memory.New()
	other := dlock.New(store, dlock.WithOwner("worker 3"))
	defer other.Close()
	lease, err := other.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release()

	locks := dlock.New(store)
	defer locks.Close()
	_, err = locks.TryAcquire(context.Background(), "invoice:7")
	if held, ok := errors.AsType[*dlock.HeldError](err); ok {
		fmt.Printf("%s is held by %s\n", held.Key, held.Owner)
		fmt.Println("for half a minute at most:", held.Remaining <= dlock.DefaultTTL)
	}
	// Output:
	// invoice:7 is held by worker 3
	// for half a minute at most: true
}

func ExampleClient_With() {
	locks := dlock.New(memory.New(), dlock.WithOwner("worker 3"))
	defer locks.Close() // also closes those made by With

	// For work that waits at most 10 ms for its lock.
	hasty := locks.With(dlock.WithMaxWait(10 * time.Millisecond))

	lease, err := locks.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release()
	_, err = hasty.Acquire(context.Background(), "invoice:7")
	fmt.Println(errors.Is(err, dlock.ErrHeld), errors.Is(err, context.DeadlineExceeded))
	// Output: true false
}

func ExampleClient_Inspect() {
	locks := dlock.New(memory.New(), dlock.WithOwner("worker 3"))
	defer locks.Close()
	ctx := context.Background()

	lease, err := locks.Acquire(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	holder, err := locks.Inspect(ctx, "invoice:7")
	fmt.Println(holder.Held, holder.Owner, err)

	lease.Release()
	holder, err = locks.Inspect(ctx, "invoice:7")
	fmt.Println(holder.Held, err)
	// Output:
	// true worker 3 <nil>
	// false <nil>
}

func ExampleLease_Context() {
	locks := dlock.New(memory.New())
	defer locks.Close()

	lease, err := locks.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := lease.Context(context.Background())
	fmt.Println(ctx.Err())

	lease.Release()
	fmt.Println(ctx.Err())
	fmt.Println(context.Cause(ctx)) // after a loss it matches ErrLost
	// Output:
	// <nil>
	// context canceled
	// lease released
}

func ExampleLease_Detach() {
	locks := dlock.New(memory.New())
	defer locks.Close()

	lease, err := locks.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	detached, err := lease.Detach()
	if err != nil {
		fmt.Println(err)
		return
	}
	// The lease has ended, and the lock stays held until the deadline: a taker can adopt it.
	// MarshalText returns a text to send.
	text, err := detached.MarshalText()
	fmt.Println(errors.Is(lease.Err(), dlock.ErrReleased), len(text) > 0, err)
	// Output: true true <nil>
}

func ExampleClient_Adopt() {
	store := memory.New()
	sender := dlock.New(store)
	defer sender.Close()
	lease, err := sender.Acquire(context.Background(), "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fence := lease.Fence()
	detached, err := lease.Detach()
	if err != nil {
		fmt.Println(err)
		return
	}

	// In the process that continues the work:
	taker := dlock.New(store)
	defer taker.Close()
	lease, err = taker.Adopt(context.Background(), detached)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.Key(), "with a higher fence:", lease.Fence() > fence)
	fmt.Println(lease.Release())
	// Output:
	// invoice:7 with a higher fence: true
	// <nil>
}
