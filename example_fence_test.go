package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

var errBehind = errors.New("a later holder has been here")

// A register is a resource that lock holders write to. It remembers the largest fence it
// has seen, and refuses smaller ones. In SQL:
//
//	UPDATE register SET value = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// If no row is updated, the writer is behind. A service that reads before it writes must
// also send its fence with the read.
type register struct {
	mu    sync.Mutex
	fence int64
	value string
}

func (r *register) write(fence int64, value string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fence < r.fence {
		return errBehind
	}
	r.fence, r.value = fence, value
	return nil
}

// A fence guards each write. A holder that is paused for longer than its TTL does not know,
// when it writes, that it has lost the lock. The register knows.
func Example_fence() {
	store := memory.New()
	locks := dlock.New(store, dlock.WithFence(true)) // refuses stores that have no fences
	defer locks.Close()
	ctx := context.Background()
	var r register

	first, err := locks.Acquire(ctx, "register")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer first.Release()
	fmt.Println("first writes:", r.write(first.Fence(), "one"))

	store.Expire("register") // as if the first holder was paused for longer than its TTL
	second, err := locks.Acquire(ctx, "register")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer second.Release()
	fmt.Println("second writes:", r.write(second.Fence(), "two"))
	fmt.Println("first writes again:", r.write(first.Fence(), "one and a half"))
	fmt.Println("value:", r.value)
	// Output:
	// first writes: <nil>
	// second writes: <nil>
	// first writes again: a later holder has been here
	// value: two
}
