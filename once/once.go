package once

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

const (
	shortest = 100 * time.Millisecond
	longest  = 365 * 24 * time.Hour / 2 // twice that is the longest TTL of a mark
	patience = 10 * time.Second         // with which a mark is taken after the work
	answer   = 3 * time.Second          // after which a call is made again
	pause    = 100 * time.Millisecond   // between two calls
	refused  = time.Second              // the pause after a refusal

	shortestMark = 10 * time.Minute
)

// A Job is work that runs once in each period of a schedule, on whichever replica is first. Its
// methods are safe for concurrent use.
type Job struct {
	name    string
	every   time.Duration
	phase   time.Duration
	nearest func(now time.Time) time.Time // of Schedule; nil: the multiples of every
	first   bool                          // the mark is taken before the work
	keep    time.Duration                 // how long a mark lives

	locks *dlock.Client // for the key name, held during each run
	marks *dlock.Client // for the keys name@due, taken when a period is done
	now   func() time.Time
	wrong error // an option

	accepted atomic.Bool // the store has served a run of this Job: it refuses for a while only
}

// An Option changes when a Job is due, or when its period is marked.
type Option func(*Job)

// AtMostOnce marks a period before the work begins, not after it has succeeded. A failure or a
// death then loses the period: no other replica runs it. So does an outage or a lost lease at the
// moment of marking. Use it for work that is worse done twice than not at all.
func AtMostOnce() Option { return func(j *Job) { j.first = true } }

// Phase shifts the schedule by d. A job that starts each day at 12:00 UTC has a Phase of 12 hours.
func Phase(d time.Duration) Option { return func(j *Job) { j.phase = d } }

// Schedule replaces the schedule of New with one of the calendar. nearest returns the instant of
// the schedule that is nearest to now, and the same instant on all replicas. The period of New is
// then the shortest time between two instants. Nil, the default, means the schedule of New.
func Schedule(nearest func(now time.Time) time.Time) Option {
	return func(j *Job) { j.nearest = nearest }
}

// New returns a job that all replicas call by the same name. It is due at each multiple of every,
// counted as by [time.Time.Round]: a period of an hour begins with each full hour of UTC. The
// period is between 100 ms and half a year; otherwise every run fails with [dlock.ErrInvalid].
// All replicas use the same name, period and options.
//
// The lease has the options of c, except MaxWait, Outage and MinHold, which the job sets.
func New(c *dlock.Client, name string, every time.Duration, opts ...Option) *Job {
	j := &Job{name: name, every: every, keep: max(2*every, shortestMark), now: time.Now}
	for i, opt := range opts {
		if opt == nil {
			j.wrong = invalid("Option %d of %d: nil", i+1, len(opts))
			continue
		}
		opt(j)
	}
	j.locks = c.With(dlock.WithMinHold(0))
	j.marks = c.With(dlock.WithTTL(j.keep), dlock.WithTTLFrom(nil), dlock.WithRenewal(false),
		dlock.WithMaxHold(0), dlock.WithMinHold(0))
	return j
}

// Due returns the instant of the schedule that is nearest to now. It is not the last one, because
// a timer may fire early.
func (j *Job) Due(now time.Time) time.Time {
	if j.nearest != nil {
		return j.nearest(now)
	}
	return now.Add(-j.phase).Round(j.every).Add(j.phase)
}

// Do runs fn, unless the period of due is done, and reports whether it has called fn. Until due +
// every, it waits for other runs of the job to end. It also waits for a store that cannot be
// reached, that refuses because of its own state, such as a full one, or that refuses what it has
// granted this Job before. If that instant has passed, Do makes a single attempt.
//
// due is an instant of the replica's schedule, not the time of the start. To the millisecond, it
// is the name of the period, so it must be the same on all replicas.
//
// The lease is that of the job's name. Its fence rises from run to run, even across periods. The
// ctx of fn ends with ctx, or when the lease is lost, and has due: see [DueFromContext]. An fn that
// returns nil has done the work of the period: if it stops early, it must return an error.
//
// The error is nil if the period is done, by this replica or by another. Otherwise its text names the
// period, and it matches
//
//   - the error of fn, as from [dlock.Client.Do]. The next replica may run the period.
//   - [dlock.ErrHeld]: another run was not over at due + every.
//   - [dlock.ErrUnavailable]: the store was away, or refused because of its state, until then. If ran
//     is true, fn has succeeded, and the period could not be marked: another replica may run it again.
//   - [dlock.ErrLost]: the lease was lost, and another replica may run the period. If the text says
//     "is marked", the period is done, and another may have run it, too.
//   - [dlock.ErrInvalid] or [errors.ErrUnsupported]: fn was not called, and never will be.
//   - the error of ctx, or of a store that refuses, such as for a wrong password.
func (j *Job) Do(ctx context.Context, due time.Time, fn func(context.Context, *dlock.Lease) error) (ran bool, err error) {
	r := &run{Job: j, due: due, mark: j.name + "@" + due.UTC().Format("2006-01-02T15:04:05.000Z"), fn: fn}
	r.end = time.Now().Add(due.Add(j.every).Sub(j.now()))
	if err = r.check(due); err == nil {
		err = r.do(ctx)
	}
	if err != nil {
		err = fmt.Errorf("once: %s: %w", r.mark, err)
	}
	return r.ran, err
}

type dueKey struct{}

// DueFromContext returns the instant of the schedule for which a job runs, from the ctx that the job
// gets. It is not [Job.Due] of the current time, which may be of another period if the run is late.
func DueFromContext(ctx context.Context) (due time.Time, ok bool) {
	due, ok = ctx.Value(dueKey{}).(time.Time)
	return due, ok
}

// Func returns a function for a scheduler such as robfig/cron, which calls it when the job is due.
// The function passes errors to report, which may be nil. It reports [dlock.ErrInvalid] if it is
// called about halfway between two instants of the schedule.
func (j *Job) Func(ctx context.Context, fn func(context.Context, *dlock.Lease) error, report func(error)) func() {
	task := j.Task(fn)
	return func() {
		if err := task(ctx); err != nil && report != nil {
			report(err)
		}
	}
}

// Task returns a function for a scheduler such as gocron, which passes a ctx and takes an error. It
// fails with [dlock.ErrInvalid] if it is called about halfway between two instants of the schedule.
func (j *Job) Task(fn func(context.Context, *dlock.Lease) error) func(context.Context) error {
	return func(ctx context.Context) error {
		now := j.now()
		due := j.Due(now)
		if j.nearest == nil && j.every >= shortest && now.Sub(due).Abs() > j.every*2/5 { // replicas could disagree about due
			return fmt.Errorf("once: %s: %w", j.name, invalid("start at %s: near the middle between two instants of the schedule; use Phase(%v)",
				now.Format(time.RFC3339Nano), now.Sub(now.Truncate(j.every)).Round(j.every/1440)))
		}
		_, err := j.Do(ctx, due, fn)
		return err
	}
}

// A run is one call of Do.
type run struct {
	*Job
	due    time.Time
	mark   string    // the key of the period's mark
	end    time.Time // due + every, until which it waits
	fn     func(context.Context, *dlock.Lease) error
	begun  bool // to mark, or to work
	ran    bool // fn was called
	marked bool // after the work
}

var errStandIn = fmt.Errorf("%w: a stand-in has answered, of which other processes know nothing", dlock.ErrUnavailable)

// check refuses what can never work, and sends nothing.
func (r *run) check(due time.Time) error {
	switch {
	case r.wrong != nil:
		return r.wrong
	case r.every < shortest || r.every > longest:
		return invalid("period %v: not between %v and %v", r.every, shortest, longest)
	case r.fn == nil:
		return invalid("function: nil")
	case due.IsZero():
		return invalid("due: the zero time")
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	// A Client refuses a MinHold that the store would not keep; the ctx ends the call after that.
	if _, err := r.marks.With(dlock.WithMinHold(r.keep)).Inspect(ended, r.mark); errors.Is(err, dlock.ErrInvalid) {
		return err
	}
	return nil
}

// do runs the job under its lock. A lock that is lost before the run begins is taken again.
func (r *run) do(ctx context.Context) error {
	for {
		wait, again := max(time.Until(r.end), 0), pause
		err := r.locks.With(dlock.WithMaxWait(wait), dlock.WithOutage(wait)).Do(ctx, r.name, r.locked)
		switch {
		case r.marked && errors.Is(err, dlock.ErrLost):
			return fmt.Errorf("the period is marked, but another replica may have run it, too: %w", err)
		case r.begun || err == nil:
			return err
		case errors.Is(err, dlock.ErrHeld):
			return fmt.Errorf("another run is not over: %w", err)
		case !time.Now().Before(r.end), ctx.Err() != nil:
			return err
		case dlock.Refused(err) && r.accepted.Load() && !hopeless(err):
			again = refused
		case !errors.Is(err, dlock.ErrLost) && !errors.Is(err, errStandIn):
			return err
		}
		sleep(ctx, again)
	}
}

// locked is what happens under the lock.
func (r *run) locked(ctx context.Context, lease *dlock.Lease) error {
	if lease.Degraded() {
		return errStandIn
	}
	done, err := r.done(ctx)
	r.accepted.CompareAndSwap(false, err == nil)
	if err != nil || done {
		return err
	}
	r.begun = true
	if r.first {
		if mine, err := r.take(ctx, lease); err != nil || !mine {
			return err
		}
	}
	r.ran = true
	err = r.fn(context.WithValue(ctx, dueKey{}, r.due), lease)
	end := lease.Err()
	switch {
	case err != nil || r.first || errors.Is(end, dlock.ErrLost):
		return err
	case end != nil: // fn has released or detached it, or Shutdown has given it up
		return fmt.Errorf("the work has succeeded, but is not marked: %w", end)
	}
	// The work is over: if the lease is lost now, it has not gone on for longer.
	defer context.AfterFunc(lease.Context(context.Background()), func() { _ = lease.Release() })()
	if _, err := r.take(ctx, lease); err != nil {
		return fmt.Errorf("the work has succeeded, but is not marked: %w", err)
	}
	r.marked = true
	return nil
}

// done reports whether the period has its mark.
func (r *run) done(ctx context.Context) (bool, error) {
	var status dlock.Status
	inTime := func(err error) bool { return (!dlock.Refused(err) || mayPass(err)) && time.Now().Before(r.end) }
	err := repeat(ctx, inTime, func(ctx context.Context) (err error) {
		status, err = r.marks.Inspect(ctx, r.mark)
		return err
	})
	return status.Held, err
}

// take marks the period, and reports whether it has. "Held" says that another has marked it, unless
// an attempt of this run was not answered: that may be what holds the mark, until its owed release.
// Then "held" counts if the store says it for as long as patience, or for a period, if that is
// shorter. Silence is an error when patience has passed, and the lock must have ended. So is a
// refusal when the period is over, or ctx has ended, since the lock is lost for example.
func (r *run) take(ctx context.Context, lease *dlock.Lease) (mine bool, err error) {
	var held time.Time // since when the store has said so
	unsure := false    // an attempt was not answered
	limit := func() time.Time { return time.Now().Add(max(patience, time.Until(lease.Deadline()))) }
	end := limit()
	inTime := func(err error) bool {
		if dlock.Refused(err) && ctx.Err() == nil && time.Now().Before(r.end) {
			end = limit() // the store is there: its silence has not begun
		}
		return time.Now().Before(end) || errors.Is(err, dlock.ErrHeld)
	}
	calls := ctx
	if !r.first { // the work is done
		calls = context.WithoutCancel(ctx)
	}
	err = repeat(calls, inTime, func(ctx context.Context) error {
		mark, err := r.marks.TryAcquire(ctx, r.mark)
		switch now := time.Now(); {
		case err == nil && mark.Degraded():
			mark.Release()
			err = errStandIn
			fallthrough
		case err != nil && !errors.Is(err, dlock.ErrHeld):
			held, unsure = time.Time{}, unsure || !dlock.NoEffect(err)
		case err == nil:
			mine = true
			_, err = mark.Detach()
		case held.IsZero() && unsure:
			held = now
		case now.Sub(held) >= min(patience, max(r.every, time.Second)): // an owed release takes up to a second
			return nil
		}
		return err
	})
	return mine, err
}

// repeat makes a call until it succeeds, its error would come again, ctx ends, or its error does not
// allow another call. If the store is silent, repeat shows the last error as text: a context error
// in it would be that of a single call.
func repeat(ctx context.Context, again func(error) bool, call func(context.Context) error) error {
	for {
		limited, cancel := context.WithTimeout(ctx, answer)
		err := call(limited)
		cancel()
		switch {
		case err == nil, hopeless(err):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case again(err):
		case dlock.Refused(err) && !mayPass(err):
			return err
		default:
			return fmt.Errorf("%w: %v", dlock.ErrUnavailable, err)
		}
		if dlock.Refused(err) {
			sleep(ctx, refused)
		} else {
			sleep(ctx, pause)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// hopeless reports whether err would come again.
func hopeless(err error) bool {
	return errors.Is(err, dlock.ErrInvalid) || errors.Is(err, dlock.ErrClosed) || errors.Is(err, errors.ErrUnsupported)
}

// mayPass reports whether err is a refusal because of the state of the store.
func mayPass(err error) bool {
	refusal, ok := errors.AsType[*dlock.NoEffectError](err)
	return ok && refusal.State && dlock.Refused(err)
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))
}
