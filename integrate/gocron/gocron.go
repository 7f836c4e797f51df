// Package dlockgocron is a Locker for gocron: each start of a job runs on one of the processes that have the same job.
//
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(dlockgocron.NewLocker(client, 10*time.Second)))
//
// # Prefer the task of package once
//
// gocron asks a Locker or an Elector before each start of a job, and never again. The Task of package
// [github.com/dlock-go/dlock/once] wraps the work, and needs neither:
//
//	scheduler, err := gocron.NewScheduler(gocron.WithLocation(time.UTC)) // the default is local time
//	job := once.New(client, "nightly-report", 24*time.Hour, once.Phase(3*time.Hour))
//	_, err = scheduler.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(job.Task(report)),
//		gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, name string, err error) {
//			slog.Error("a job has failed", "name", name, "err", err)
//		})))
//
// Without such a listener, nobody sees the errors that a task returns.
//
// The three differ when something goes wrong:
//
//	                   Task                         Locker                     Elector
//	the job fails      another replica runs it now  the next start runs it     the next start runs it
//	its process dies   another, after one TTL       the next start after that  the next start after that
//	the lease is lost  the job's ctx ends           the job goes on            the job goes on
//	a start is late    still one run                a second, beyond minHold   still one run
//	the store is away  the job waits for it         no run                     no run after the term
//
// With a Locker, gocron's event listener AfterLockError gets "another process has it" and "the store is away" alike.
// Tell them apart by errors.Is with [dlock.ErrHeld] and [dlock.ErrUnavailable]. Otherwise, a night in which no
// process reached the store looks like one in which another process ran the job:
//
//	gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, name string, err error) {
//		if !errors.Is(err, dlock.ErrHeld) {
//			slog.Error("a job was not started", "name", name, "err", err)
//		}
//	}))
//
// An Elector is for jobs that must all run on the same process. An election is one. The examples are complete:
//
//	gocron.WithDistributedElector(election.New(client, "scheduler"))
package dlockgocron

import (
	"context"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/dlock-go/dlock"
)

// NewLocker returns a Locker whose keys are the names of the jobs: see gocron.WithName. A key stays taken for minHold, even
// if the job ends earlier, so that another process whose clock or timer is late finds it taken. Set minHold longer than the
// processes' starts of one run lie apart, and shorter than the time between two runs. If it is not positive, every Lock
// fails with [dlock.ErrInvalid].
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
