package once_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/once"
)

// Three replicas start the nightly job. The first one fails, so the second one runs it. The third
// one has nothing to do.
func Example() {
	store := memory.New() // stands for a server that all replicas reach
	due := time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)
	for replica := range 3 {
		client := dlock.New(store)
		job := once.New(client, "nightly-report", 24*time.Hour, once.Phase(3*time.Hour))
		start := due.Add(time.Duration(replica) * time.Second) // on the clock of the replica
		ran, err := job.Do(context.Background(), job.Due(start), func(context.Context, *dlock.Lease) error {
			if replica == 0 {
				return errors.New("disk full")
			}
			return nil
		})
		fmt.Printf("replica %d: ran %t, error %v\n", replica, ran, err)
	}
	// Output:
	// replica 0: ran true, error once: nightly-report@2026-11-23T03:00:00.000Z: disk full
	// replica 1: ran true, error <nil>
	// replica 2: ran false, error <nil>
}

// A program that cron starts on several machines, each full hour. The due is the hour. It is found
// before anything can wait. Close sends what a run in an outage may still owe to the store.
func ExampleJob_Do() {
	store := memory.New() // in a program goredis.New(rdb), for example
	client := dlock.New(store)
	defer client.Close()

	due := time.Now().Truncate(time.Hour)
	job := once.New(client, "hourly-export", time.Hour)
	ran, err := job.Do(context.Background(), due, func(ctx context.Context, lease *dlock.Lease) error {
		fmt.Println("exporting, with fence", lease.Fence() > 0)
		return nil
	})
	switch {
	case errors.Is(err, dlock.ErrHeld):
		fmt.Println("another run takes longer than an hour")
	case err != nil:
		fmt.Println("look at this:", err)
	default:
		fmt.Println("done, by this machine:", ran)
	}
	// Output:
	// exporting, with fence true
	// done, by this machine: true
}

// A reminder that must not be sent twice is rather not sent at all.
func ExampleAtMostOnce() {
	store, due := memory.New(), time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	for replica := range 2 {
		job := once.New(dlock.New(store), "reminder", time.Hour, once.AtMostOnce())
		ran, err := job.Do(context.Background(), due, func(context.Context, *dlock.Lease) error {
			return errors.New("timeout: perhaps it was sent")
		})
		fmt.Printf("replica %d: ran %t, error %v\n", replica, ran, err)
	}
	// Output:
	// replica 0: ran true, error once: reminder@2026-11-23T09:00:00.000Z: timeout: perhaps it was sent
	// replica 1: ran false, error <nil>
}

// Each night at three, in Berlin. Two such instants are 23, 24 or 25 hours apart, so the period is
// 23 hours. Choose a time of day that exists in each night.
func ExampleSchedule() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	nearest := func(now time.Time) (due time.Time) {
		y, m, d := now.In(berlin).Date()
		for day := d - 1; day <= d+1; day++ {
			if at := time.Date(y, m, day, 3, 0, 0, 0, berlin); at.Sub(now).Abs() < due.Sub(now).Abs() {
				due = at
			}
		}
		return due
	}
	job := once.New(dlock.New(memory.New()), "nightly-report", 23*time.Hour, once.Schedule(nearest))
	for _, start := range []time.Time{
		time.Date(2026, 3, 28, 2, 0, 1, 0, time.UTC),
		time.Date(2026, 3, 29, 0, 59, 59, 0, time.UTC),  // summer time has begun; the timer was early
		time.Date(2026, 10, 25, 0, 59, 59, 0, time.UTC), // clocks show this time twice
		time.Date(2026, 10, 25, 2, 0, 1, 0, time.UTC),
	} {
		fmt.Println(job.Due(start))
	}
	// Output:
	// 2026-03-28 03:00:00 +0100 CET
	// 2026-03-29 03:00:00 +0200 CEST
	// 2026-10-25 03:00:00 +0100 CET
	// 2026-10-25 03:00:00 +0100 CET
}
