package dlock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

var errBehind = errors.New("a later holder has been here")

// A register is a resource that lock holders write to. It remembers the fence and the name of the
// lease that wrote last. It accepts a larger fence, and the same fence from the same lease. In SQL:
//
//	UPDATE register SET value = $3, fence = $1, lease = $2
//	WHERE id = $4 AND (fence < $1 OR fence = $1 AND lease = $2)
//
// If no row is updated, the writer is behind. A service that reads before it writes must
// also send both with the read.
type register struct {
	mu    sync.Mutex
	fence int64
	lease string
	value string
}

func (r *register) write(fence int64, lease, value string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fence < r.fence || fence == r.fence && lease != r.lease {
		return errBehind
	}
	r.fence, r.lease, r.value = fence, lease, value
	return nil
}

// A fence guards each write. A holder that is paused for longer than its TTL does not know,
// when it writes, that it has lost the lock. The register knows.
//
// While a store fails over, two masters can grant the same fence. So each holder makes a random
// name for its lease, and sends it along. (It never sends the token, which is a secret.)
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
	firstLease := rand.Text()
	fmt.Println("first writes:", r.write(first.Fence(), firstLease, "one"))

	store.Expire("register") // as if the first holder was paused for longer than its TTL
	second, err := locks.Acquire(ctx, "register")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer second.Release()
	fmt.Println("second writes:", r.write(second.Fence(), rand.Text(), "two"))
	fmt.Println("first writes again:", r.write(first.Fence(), firstLease, "one and a half"))
	fmt.Println("value:", r.value)
	// Output:
	// first writes: <nil>
	// second writes: <nil>
	// first writes again: a later holder has been here
	// value: two
}
