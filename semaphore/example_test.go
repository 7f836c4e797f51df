package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/semaphore"
)

// Twelve jobs call a service that allows two calls at the same time.
func Example() {
	client := dlock.New(memory.New(), dlock.WithOwner("a")) // between processes: goredis.New(rdb)
	defer client.Close()
	limit := semaphore.New(client, "service", 2)

	var jobs sync.WaitGroup
	var mu sync.Mutex
	calls, most, done := 0, 0, 0
	count := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		calls += by
		most = max(most, calls)
	}
	for range 12 {
		jobs.Go(func() {
			err := limit.Do(context.Background(), func(ctx context.Context, _ int, _ *dlock.Lease) error {
				count(1)
				defer count(-1)
				time.Sleep(time.Millisecond) // the call goes here
				return ctx.Err()
			})
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				done++
			}
		})
	}
	jobs.Wait()
	fmt.Println(done, "calls, at most", most, "at the same time")
	// Output: 12 calls, at most 2 at the same time
}

// The number of a permit is that of a worker: nobody else has it at the same time. Its fence rises with
// each holder.
func ExampleSemaphore_TryAcquire() {
	client := dlock.New(memory.New(), dlock.WithOwner("a"))
	defer client.Close()
	workers := semaphore.New(client, "worker", 1)

	lease, number, err := workers.TryAcquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("worker", number, "has the lock", lease.Key())

	_, _, err = workers.TryAcquire(context.Background())
	fmt.Println("all are held:", errors.Is(err, dlock.ErrHeld))

	fmt.Println(lease.Release())
	// Output:
	// worker 0 has the lock worker#0
	// all are held: true
	// <nil>
}
