package dlock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// An operator frees a lock whose holder hangs. Break releases only the holder that Inspect
// has shown: if another has taken the lock since, it keeps it.
//
// First make sure that the old holder has stopped, or that its writes are fenced. It is not
// notified, and continues until its next renewal, or until its deadline.
func ExampleClient_Break() {
	store := memory.New() // stands for a server that all processes reach
	service := dlock.New(store, dlock.WithOwner("web-7/billing[4711]"))
	defer service.Close()
	ctx := context.Background()
	stuck, err := service.Acquire(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}

	operator := dlock.New(store) // in a tool, with the same store and prefix as the service
	defer operator.Close()
	status, err := operator.Inspect(ctx, "invoice:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", status.Held, "by", status.Owner, "and waiting:", status.Waiting)
	// Here a person looks at web-7, status.Started and status.Remaining, and decides.
	fmt.Println("break:", operator.Break(ctx, status))
	err = operator.Break(ctx, status)
	fmt.Println("again:", errors.Is(err, dlock.ErrReleased))

	fmt.Println("the old holder believes in its lease:", stuck.Err() == nil)
	err = stuck.Renew(ctx) // as the Client does in the background
	fmt.Println("until its next renewal:", errors.Is(err, dlock.ErrLost))
	// Output:
	// held: true by web-7/billing[4711] and waiting: 0
	// break: <nil>
	// again: true
	// the old holder believes in its lease: true
	// until its next renewal: true
}
