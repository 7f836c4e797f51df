package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

var errNoLock = errors.New("the caller does not hold the lock of the account")

// saveBalance is deep in the call tree. It knows only the name of the key, and finds the
// fence in ctx. It writes nothing if the caller does not hold the lock.
func saveBalance(ctx context.Context, account string, balance int) error {
	lease, held := dlock.LeaseFromContext(ctx, "account:"+account)
	if !held {
		return errNoLock
	}
	fmt.Printf("UPDATE … SET balance = %d, fence = $1 WHERE … AND fence <= $1 -- with a fence: %t\n", balance, lease.Fence() > 0)
	return nil
}

// deposit, between Do and the write, only passes ctx on, as it does anyway.
func deposit(ctx context.Context, account string, amount int) error {
	return saveBalance(ctx, account, 100+amount)
}

// A function deep in the call tree finds the lease, and its fence, in its ctx.
//
// A goroutine that outlives the work gets the ctx from before Do. The ctx of the work carries
// the lease, even through context.WithoutCancel: with it, an Acquire of the same key fails
// with ErrNested while the lease is held.
func ExampleLeaseFromContext() {
	locks := dlock.New(memory.New(), dlock.WithFence(true))
	defer locks.Close()
	ctx := context.Background()
	var later sync.WaitGroup
	var laterErr error

	err := locks.Do(ctx, "account:4711", func(work context.Context, _ *dlock.Lease) error {
		later.Go(func() {
			// It waits until this work has released the lock.
			laterErr = locks.Do(ctx, "account:4711", func(context.Context, *dlock.Lease) error { return nil })
		})
		_, err := locks.Acquire(context.WithoutCancel(work), "account:4711")
		fmt.Println("with the ctx of the work:", errors.Is(err, dlock.ErrNested))
		return deposit(work, "4711", 20)
	})
	fmt.Println("deposit:", err)
	later.Wait()
	fmt.Println("afterwards:", laterErr)
	fmt.Println("without the lock:", deposit(ctx, "4711", 20))
	// Output:
	// with the ctx of the work: true
	// UPDATE … SET balance = 120, fence = $1 WHERE … AND fence <= $1 -- with a fence: true
	// deposit: <nil>
	// afterwards: <nil>
	// without the lock: the caller does not hold the lock of the account
}
