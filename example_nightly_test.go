package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A replica starts the same job as others, every night by its own clock.
type replica struct{ locks *dlock.Client }

// newReplica returns a replica whose lock stays taken for ten minutes, even if the job ends
// earlier. That is longer than the clocks of two replicas differ, and shorter than the time
// until the next night.
func newReplica(store dlock.Locker) *replica {
	return &replica{dlock.New(store, dlock.WithMinHold(10*time.Minute))}
}

// nightly runs the job, unless another replica has started it. It reports whether it ran.
func (r *replica) nightly(ctx context.Context, job func(context.Context) error) (ran bool, err error) {
	lease, err := r.locks.TryAcquire(ctx, "nightly-report")
	if errors.Is(err, dlock.ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lease.Release()
	if err := job(lease.Context(ctx)); err != nil {
		return true, err
	}
	return true, lease.Err() // after a loss the job may have run twice
}

// A nightly job on five replicas runs once. The replicas start at different times, and the
// job is shorter than the time between two starts. Without [dlock.WithMinHold] each replica
// would find the lock free again.
func Example_nightly() {
	store := memory.New()
	var reports, ran atomic.Int64
	var replicas sync.WaitGroup
	for i := range 5 {
		replicas.Go(func() {
			r := newReplica(store)
			defer r.locks.Close()
			time.Sleep(time.Duration(i) * 5 * time.Millisecond)
			mine, err := r.nightly(context.Background(), func(context.Context) error {
				reports.Add(1)
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
			if mine {
				ran.Add(1)
			}
		})
	}
	replicas.Wait()
	fmt.Println("replicas that ran the job:", ran.Load())
	fmt.Println("reports written:", reports.Load())
	// Output:
	// replicas that ran the job: 1
	// reports written: 1
}
