// Package dlockgocron is a Locker for gocron: each start of a job runs on one of the processes that
// have the same job.
//
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(dlockgocron.NewLocker(client, 10*time.Second)))
//
// # Prefer the task of package once
//
// A Locker is asked at each start of a job, and knows nothing else. So it has limits that the Task of
// package [github.com/dlock-go/dlock/once] does not have:
//
//   - A job that fails, or whose process dies, does not run again before the next start.
//   - The processes must start a job within the minimum hold. One that starts later runs it again.
//   - gocron does not pass the context of the lock on to the job, so a job goes on when its lock is lost.
//   - gocron's event listener AfterLockError gets "another process has it" and "the store is away"
//     alike. Use errors.Is with [dlock.ErrHeld] and [dlock.ErrUnavailable].
//
// The task needs neither this package nor another option of the scheduler:
//
//	job := once.New(client, "nightly-report", 24*time.Hour)
//	scheduler.NewJob(gocron.CronJob("0 0 * * *", false), gocron.NewTask(job.Task(report)))
//
// If one process is to run all jobs, pass an election:
// gocron.WithDistributedElector(election.New(client, "scheduler")).
package dlockgocron

import (
	"context"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/dlock-go/dlock"
)

// NewLocker returns a Locker whose keys are the names of the jobs: see gocron.WithName. A key stays
// taken for minHold, also if the job ends earlier, so that another process whose clock or timer is
// late finds it taken. It is longer than the starts of one run lie apart, and shorter than the time
// between two runs. If it is not positive, every Lock fails with [dlock.ErrInvalid].
//
// Lock makes one attempt. It fails with [dlock.ErrHeld] if another process has the key. The lease is
// renewed while the job runs. TTL and owner are those of c.
func NewLocker(c *dlock.Client, minHold time.Duration) gocron.Locker {
	if minHold <= 0 {
		return refusal{fmt.Errorf("gocron: %w minimum hold %v: not positive", dlock.ErrInvalid, minHold)}
	}
	return locker{c.With(dlock.WithMinHold(minHold), dlock.WithRenewal(true), dlock.WithTTLFrom(nil))}
}

type locker struct{ client *dlock.Client }

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.client.TryAcquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return lock{lease}, nil
}

type lock struct{ lease *dlock.Lease }

func (l lock) Unlock(context.Context) error { return l.lease.Release() }

type refusal struct{ err error }

func (r refusal) Lock(context.Context, string) (gocron.Lock, error) { return nil, r.err }
