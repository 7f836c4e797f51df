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

// A register is a resource that is written to under a lock. It remembers the
// largest fence that it has seen, and refuses smaller ones. In SQL:
//
//	UPDATE register SET value = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// where no row updated means that the writer is behind. A service that reads
// before it writes must show its fence when it reads, too.
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

// A write that is guarded by its fence. A holder that is stopped for longer than
// its lease lasts cannot know, at the moment when it writes, that it holds the
// lock no more. The register knows.
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

	store.Expire("register") // the first holder is stopped for longer than its TTL
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
