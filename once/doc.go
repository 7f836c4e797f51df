// Package once runs a job once in each period, although every replica of a service starts it.
//
// Each replica runs the same lines, and a scheduler that calls the job. This is a nightly job
// at 03:00 UTC:
//
//	client := dlock.New(goredis.New(rdb), dlock.WithOwner(dlock.HostOwner()), dlock.WithTTL(10*time.Second))
//	job := once.New(client, "nightly-report", 24*time.Hour, once.Phase(3*time.Hour))
//
//	scheduler := cron.New(cron.WithLocation(time.UTC)) // github.com/robfig/cron/v3
//	scheduler.AddFunc("0 3 * * *", job.Func(ctx, report, func(err error) {
//		slog.Error("nightly report", "err", err)
//	}))
//	scheduler.Start()
//
//	func report(ctx context.Context, lease *dlock.Lease) error {
//		night, _ := once.DueFromContext(ctx) // 03:00 of that night, even if the run is late
//		…
//	}
//
// One replica runs report. If it succeeds, the others return, without an error. If it fails, the next
// replica runs it. If its process dies, another runs it as soon as the TTL has passed.
//
// # What a job gets
//
//   - All replicas see a success, even those whose clocks are slow.
//   - After a failure, a panic or a lost lease, the next replica runs the job. Each replica tries at
//     most once in a period.
//   - A death costs one TTL. Choose [dlock.WithTTL] so that the TTL and the job together take less
//     than the period: the other replicas wait for one period.
//   - Two runs of a job never overlap, even across periods. A job that takes longer than its period
//     makes the next run late. A replica that still waits when the period is over gets
//     [dlock.ErrHeld], and skips it. The limits of any lock apply: a holder that was stopped for
//     longer than its TTL, or a store that has forgotten the lock.
//   - If the store is away when a period begins, all replicas wait until it is back, for one period
//     at most. Then one of them runs the job. They wait in the same way for a store that refuses
//     because of its own state: its memory or disk is full, or it has too few replicas or too many
//     clients. If it refuses for another reason, a Job to which it has granted nothing yet gets the
//     refusal at once: the password may be wrong. Other Jobs wait.
//
// A period is run at least once, if the store answers and a replica succeeds. It is run twice only if
// the store has forgotten the mark, or if a run was interrupted before it was marked as done: its
// process died, it lost its lease, or after the work the store was away for longer than 10 s and the
// rest of the lease, or full until the end of the period. If the store loses its data while a job runs,
// two runs may overlap for up to a third of the TTL. A period is missed if the store is away for all of
// it. With [AtMostOnce] the mark comes before the work. No package offers exactly once. If a second run
// would be costly, fence the writes: send [dlock.Lease.Fence] along. It rises from run to run.
//
// A job succeeds if it returns nil, and only then. When its ctx ends, it must stop, and return an
// error if work is left.
//
// # When a job is due
//
// Replicas do not start a job at the same instant, and their clocks differ. So each run is for an
// instant of the schedule: its due time, which all replicas agree on. The replica whose clock is ahead runs a
// period first, and the others find it done. Clocks may differ by half a period, or by 8 minutes if
// the period is at most two minutes: the mark is still there when the last replica asks.
//
// The job gets its due time from [DueFromContext], and must not ask the clock: another replica takes
// over after a death, perhaps when the next period is nearer.
//
//	the schedule                            how to find the due time
//	every minute, each hour at :00          New alone
//	each hour at :30                        Phase(30*time.Minute)
//	each day at 12:00 UTC                   Phase(12*time.Hour)
//	each night at three, local time         Schedule, see its example
//	any other cron expression               Do, with the scheduler's instant: c.Entry(id).Prev
//	any other schedule of gocron            Schedule, or Do with an instant that you compute
//	a process that cron has started         Do, with time.Now().Truncate(time.Hour), see its example
//
// [Job.Func] and [Job.Task] take the due time that is nearest to the start. Halfway between two, a
// millisecond would decide. They refuse a start near there with [dlock.ErrInvalid], and name the
// Phase that helps.
//
// Schedules such as robfig's "@every 1h" and gocron's DurationJob count from the start of the
// process. With them each period is still run once, but not at a fixed time. The first replica
// that starts runs it. Prefer a cron expression.
//
// # Schedulers
//
// For robfig/cron, Func returns what AddFunc takes. If the due times are not multiples of a
// period, ask the scheduler for the instant, before anything else:
//
//	var id cron.EntryID
//	id, _ = scheduler.AddFunc("0 3 1 * *", func() { // on the first of each month, local time
//		if _, err := job.Do(ctx, scheduler.Entry(id).Prev, report); err != nil {
//			slog.Error("the report has failed", "err", err)
//		}
//	})
//
// The period of New is then the shortest time between two instants, here 28*24*time.Hour.
//
// For gocron, Task returns what NewTask takes. It needs neither a Locker nor an Elector. The location is UTC, because
// gocron's default is local time. gocron reports the errors of a task only to a listener:
//
//	scheduler, err := gocron.NewScheduler(gocron.WithLocation(time.UTC))
//	_, err = scheduler.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(job.Task(report)),
//		gocron.WithEventListeners(gocron.AfterJobRunsWithError(func(_ uuid.UUID, name string, err error) {
//			slog.Error("a job has failed", "name", name, "err", err)
//		})))
//
// Module integrate/gocron has examples of both schedulers that run.
//
// A scheduler should start a job even if the last run has not ended: the new one waits. With
// gocron's singleton mode, or robfig's SkipIfStillRunning, this replica skips the period instead.
//
// # Stopping
//
// Stop the scheduler first, and wait for its jobs. Then close the Client: a closed one cannot mark
// a period.
//
//	<-scheduler.Stop().Done() // robfig/cron; the jobs go on until they end
//	client.Shutdown(ctx)
//
// The Shutdown of gocron cancels the ctx of jobs that run. A job that stops then returns an error, and
// another replica runs the period.
//
// # In the store
//
// The key name is locked while a run works. The key name@2026-11-23T03:00:00.000Z, the mark, says
// that this period is done. It lasts for two periods after the success, and at least 10 minutes.
// Each replica sends about 4 requests in each period. [dlock.Client.Inspect] shows both keys: who
// runs the job, and who has run it. Observers see both.
//
//   - To run a job again in the same period, remove its mark: Inspect the mark's key, and pass the
//     [dlock.Status] to [dlock.Client.Break].
//   - If the store forgets a mark (a restart without data, a failover), a replica that comes later
//     runs the period again.
//   - The store must implement [dlock.Inspector], as all backends of this module do. With any other
//     store each run fails with [errors.ErrUnsupported].
//   - The grants of a stand-in (see package backend/breaker) count for nothing: the job waits for the
//     store.
//   - On a majority (package backend/redlock), WithLongestTTL must be at least two periods, and 10
//     minutes. A restarted node does not count for that time. For long periods, use one server.
//   - The user of the store needs no more rights than for locks.
package once
