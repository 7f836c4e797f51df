package dlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/owed"
)

// A fake is a Locker that grants everything, but releases as the test says.
type fake struct {
	release func() (bool, error) // nil: it succeeds
}

func (fake) TryAcquire(context.Context, string, string, time.Duration) (Attempt, error) {
	return Attempt{Acquired: true, Fence: 8}, nil
}

func (fake) Renew(context.Context, string, string, time.Duration) (bool, error) { return true, nil }

func (f fake) Release(context.Context, string, string) (bool, error) {
	if f.release == nil {
		return true, nil
	}
	return f.release()
}

func take(t *testing.T, c *Client, key string) *Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), key)
	require.NoError(t, err)
	return l
}

// Lines returns how many lines a Client has. See WithLocalTurns.
func (c *Client) Lines() int {
	t := &c.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// RefuseCalls does the first step of Close only: calls are refused, and waits go on.
func (c *Client) RefuseCalls() { c.keeper.closed.Store(true) }

// suspend moves the wall clock on by d, for the lease and its Client. The monotonic clock stops while a
// machine is suspended, and the wall clock does not; virtual time has only one clock.
func suspend(l *Lease, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wall = l.wall.Add(-d)
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.keeper.clock.Suspend(d)
}

func TestSuspendedMachine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var ends []LeaseEnd
		c := New(fake{}, WithObserver(&Observer{LeaseDone: func(_ context.Context, i LeaseDoneInfo) { ends = append(ends, i.End) }}))
		l := take(t, c, "k")
		work := l.Context(t.Context())
		suspend(l, 20*time.Second)
		require.NoError(t, l.Err())
		require.Less(t, time.Until(l.Deadline()), 10*time.Second)
		time.Sleep(time.Second + 10*time.Millisecond) // the clocks have been compared since
		require.Greater(t, time.Until(l.Deadline()), 20*time.Second, "the renewal was due")
		take(t, c.With(WithTTL(time.Second), WithRenewal(false)), "ends just before they are again")
		suspend(l, 30*time.Second)
		start := time.Now()
		<-work.Done()
		require.LessOrEqual(t, time.Since(start), time.Second)
		require.ErrorIs(t, context.Cause(work), ErrLost)

		l = take(t, c.With(WithRenewal(false)), "k")
		suspend(l, 20*time.Second)
		start = time.Now()
		<-l.Done()
		require.Less(t, time.Since(start), 10*time.Second)

		l = take(t, c, "k")
		suspend(l, time.Minute)
		require.ErrorIs(t, l.Release(), ErrLost, "found by the look before the release")
		synctest.Wait()
		require.Contains(t, ends, EndClock)
	})
}

// Done is called for the first time after the deadline, before the schedule has noticed.
func TestDoneAfterTheDeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := take(t, New(fake{}), "k")
		suspend(l, time.Minute)
		require.NotPanics(t, func() { <-l.Done() })
		require.ErrorIs(t, l.Err(), ErrLost)

		leases, err := New(fake{}).AcquireAll(t.Context(), "k", "l")
		require.NoError(t, err)
		suspend(leases.Lease("l"), time.Minute)
		parent, cancel := context.WithCancel(t.Context())
		defer cancel()
		require.ErrorIs(t, context.Cause(leases.Context(parent)), ErrLost, "of a set")
	})
}

// Release begins in time, and is stopped until the deadline has passed.
func TestReleaseAtTheDeadlineIsOwed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		releases := 0
		s := fake{release: func() (bool, error) { releases++; return true, nil }}
		l := take(t, New(s, WithRenewal(false)), "k")
		l.mu.Lock()
		l.lookLocked()
		l.endLocked(ErrReleased)
		l.mu.Unlock()
		time.Sleep(time.Until(l.deadline))
		require.NoError(t, l.Release())
		synctest.Wait()
		require.NotZero(t, releases, "neither sent nor owed")
	})
}

// A lease is not passed on once its first renewal is due, even if the timer is late, nor if
// none is planned, nor by either clock with too little of its first TTL.
func TestYoungLease(t *testing.T) {
	now := time.Now()
	young := func(renewAt time.Time, rest, wallRest time.Duration) bool {
		l := &Lease{options: &options{terms: terms{ttl: DefaultTTL, autoRenew: true}}, renewAt: renewAt}
		l.deadline, l.wall = now.Add(rest), now.Add(wallRest).Round(0)
		return l.youngLocked(now)
	}
	require.True(t, young(now.Add(1), waitTTL/2, waitTTL/2))
	require.False(t, young(now, waitTTL/2, waitTTL/2))
	require.False(t, young(time.Time{}, waitTTL/2, waitTTL/2))
	require.False(t, young(now.Add(1), waitTTL/2-1, waitTTL/2))
	require.False(t, young(now.Add(1), waitTTL/2, waitTTL/2-1))
}

func TestScheduleIsEmptyWithoutLeases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(fake{})
		for range 100 {
			require.NoError(t, take(t, c, "k").Release())
		}
		time.Sleep(2 * time.Second)
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		require.Zero(t, c.keeper.clock.Len())
	})
}

// takeFromSchedule does the first half of a tick for a lease.
func takeFromSchedule(l *Lease) {
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.keeper.clock.Unset(&l.alarm)
}

// Close stops the timer while a tick is about to put a lease back into the schedule.
func TestFinishStopsTimerForGood(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		down := fake{release: func() (bool, error) { return false, errors.New("down") }}
		c := New(down, WithTTL(10*time.Minute), WithRenewal(false))
		l := take(t, c, "k")
		takeFromSchedule(l)
		c.keeper.owe(&owedRelease{Call: owed.Call{TTL: time.Hour}, key: "x", token: "t", values: context.Background(), inFlight: 1})
		synctest.Wait()
		require.Error(t, c.Close(), "a release that is never answered")
		l.due()
		time.Sleep(time.Hour)
		l.mu.Lock()
		defer l.mu.Unlock()
		require.Error(t, l.err, "the deadline was never noticed")
	})
}

// A Release begins when Close has found nothing to wait for. Close has not waited for it in vain.
func TestReleaseBeginsAsCloseEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(fake{release: func() (bool, error) { time.Sleep(time.Second); return false, os.ErrClosed }})
		l, k := take(t, c, "k"), c.keeper
		require.False(t, k.outstanding())
		go func() { require.ErrorIs(t, l.Release(), os.ErrClosed) }()
		synctest.Wait()
		require.EqualValues(t, 1, k.calls.Load())
		calls, owed, _ := k.finish()
		require.Zero(t, calls+owed)
		time.Sleep(2 * time.Second)
		require.Zero(t, c.Stats().ReleasesOwed)
	})
}

// Of more releases than a Client keeps, the oldest is dropped.
func TestTooManyOwed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var ends []OwedDoneInfo
		observers := []Observer{{OwedDone: func(_ context.Context, i OwedDoneInfo) { ends = append(ends, i) }}}
		c := New(fake{release: func() (bool, error) { return false, os.ErrClosed }})
		for range 100_001 {
			c.keeper.owe(&owedRelease{Call: owed.Call{TTL: time.Hour}, key: "x", token: "t", values: t.Context(), inFlight: 1, observers: observers})
			observers = nil
		}
		synctest.Wait()
		require.Equal(t, Stats{ReleasesOwed: 100_000, ReleasesDropped: 1}, c.Stats())
		require.Len(t, ends, 1)
		require.Equal(t, errTooManyOwed, ends[0].Err)
		require.Error(t, c.Close())
	})
}

// Close counts a call that ends while it drops what is owed: the call is owed no more.
func TestCallEndsAsCloseEnds(t *testing.T) {
	k := newKeeper(fake{})
	require.True(t, k.enter())
	k.owed = owed.New(nil, func(*owed.Call, error) { k.leave() }, k.notify, false)
	require.True(t, k.owed.Add(&owed.Call{Hold: time.Now().Add(time.Hour), Answered: true}))
	calls, _, _ := k.finish()
	require.Equal(t, 1, calls)
}

// Shutdown gives up while a tick is about to put a lease back into the schedule.
func TestLeaseIsAbandonedWhileItIsDue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(fake{})
		l := take(t, c, "k")
		work := l.Context(t.Context())
		takeFromSchedule(l)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, c.Shutdown(ctx))
		l.keeper.scheduleLease(l, l.deadline, 0) // the second half of due
		time.Sleep(2 * time.Second)
		require.Error(t, work.Err(), "the work must end when Shutdown does")
		require.Equal(t, ErrClosed, context.Cause(work))
	})
}

// A Locker that ends its goroutine (with require in a fake, for example) costs no worker.
func TestGoexitInLocker(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(goexit{})
		for i := range 40 {
			take(t, c, fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		require.Zero(t, c.keeper.renewers.Jobs, "calls that have ended")
	})
}

type goexit struct{ fake }

func (goexit) Renew(context.Context, string, string, time.Duration) (bool, error) {
	runtime.Goexit()
	return true, nil
}

// Calls for single leases that hang leave room for batches.
func TestBatchesPassSinglesThatHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(batching{})
		alone, other := take(t, c, "alone"), take(t, c, "other")
		k := c.keeper
		k.dueForRenewal(alone, time.Now(), &retry{halved: 9})
		k.dueForRenewal(other, time.Now().Add(time.Second), &retry{})
		k.mu.Lock()
		defer k.mu.Unlock()
		k.renewers.Jobs = maxSingle
		require.NotNil(t, k.nextRenewalLocked())
		require.True(t, alone.waiting.IsSet(), "it waits")
		require.False(t, other.waiting.IsSet())
		require.Nil(t, k.nextRenewalLocked())
	})
}

type batching struct{ fake }

func (batching) RenewBatch(_ context.Context, batch []Renewal) ([]RenewResult, error) {
	return make([]RenewResult, len(batch)), nil
}

// crowded is a Locker whose queue never moves.
type crowded struct{ fake }

func (crowded) Acquire(ctx context.Context, _, _ string, _ time.Duration) (Attempt, error) {
	<-ctx.Done()
	return Attempt{}, ctx.Err()
}

// MaxWait may pass after a set has looked at it, and before its wait begins.
func TestSetWaitsAfterMaxWait(t *testing.T) {
	for _, turns := range []int{1, 8} {
		bubble.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			begun, c := time.Now(), New(crowded{}, WithMaxWait(time.Second), WithLocalTurns(turns))
			g := &gathering{client: c, ctx: ctx, limit: begun, keys: []string{"k"}, set: &Leases{}}
			require.ErrorIs(t, g.wait(&facts{held: &HeldError{Key: "k"}, answered: begun}), ErrHeld)
			require.Zero(t, time.Since(begun))
		})
	}
}

// A row of TestNext begins with a state: a waiter's, that the options of the row change.
func TestNext(t *testing.T) {
	var (
		now   = time.Now()
		in    = func(d time.Duration) time.Time { return now.Add(d) }
		never time.Time

		store   = errors.New("connection refused")
		loading = &NoEffectError{Err: store, Temporary: true}
		refusal = &NoEffectError{Err: errors.New("WRONGPASS")}
		full    = &NoEffectError{Err: errors.New("OOM"), State: true}
		shut    = &NoEffectError{Err: ErrClosed, State: true}
		held    = &HeldError{Key: "k"}
		lease   = &Lease{}
	)
	type change func(*state)
	after := func(stage, do int, err error) change { // the last call or pause, of that stage
		return func(s *state) { s.stage, s.last.stage, s.last.do, s.err = stage, stage, do, err }
	}
	isHeld := func(s *state) { s.held = held }
	once := func(s *state) { s.once = true }
	tries := func(s *state) { s.tries = true }
	turns := func(s *state) { s.turns = true }
	busy := func(s *state) { s.busy = true }
	polls := func(s *state) { s.queue = false }
	over := func(s *state) { s.over = true }
	closed := func(s *state) { s.closed = true }
	errand := func(s *state) { s.forLine, s.stage = true, lined }
	outage := func(s *state) { s.outage = time.Minute }
	failure := func(s *state) { s.failure, s.answered = store, in(-time.Minute) }
	begun := func(ago time.Duration) change { return func(s *state) { s.begun = in(-ago) } }
	maxWait := func(d time.Duration) change { return func(s *state) { s.maxWait = d } }

	try := func(by time.Time) action { return action{do: doTry, stage: tried, by: by, first: true} }
	again := func(by time.Time) action { return action{do: doTry, stage: tried, by: by} }
	rest := func(by time.Time) action { return action{do: doPause, stage: tried, by: by} }
	join := func(stage int) action { return action{do: doJoin, stage: stage} }
	enqueue := func(stage int) action { return action{do: doEnqueue, stage: stage} }
	poll, pause := action{do: doTry, stage: alone}, action{do: doPause, stage: alone}
	fail := func(err error) action { return action{do: doEnd, err: err} }
	table := []struct {
		name  string
		state []change
		want  action
	}{
		// The beginning.
		{"an attempt comes first", nil, try(never)},
		{"it ends with MaxWait", []change{maxWait(time.Second)}, try(never)},
		{"it has a second, however short MaxWait is", []change{maxWait(time.Second - 1)}, try(in(time.Second))},
		{"also if there is no wait", []change{once, maxWait(0)}, try(in(time.Second))},
		{"it is cut off, with WithOutage", []change{outage}, try(in(outageAttempt))},
		{"after a short outage", []change{outage, func(s *state) { s.outage = 2 * time.Second }}, try(in(2 * time.Second))},
		{"but not before a second", []change{outage, func(s *state) { s.outage = 1 }}, try(in(time.Second))},
		{"without a queue as well", []change{polls, busy}, try(never)},
		{"a busy key is queued for", []change{busy}, enqueue(asked)},
		{"not with WithOutage", []change{busy, outage}, try(in(outageAttempt))},
		{"not for one attempt", []change{busy, turns, once}, try(never)},
		{"a set tries a busy key", []change{busy, turns, tries}, try(never)},
		{"and does not wait for one that is held", []change{tries, turns, isHeld, after(tried, doTry, held)}, fail(held)},
		{"it waits for a store that is loading", []change{tries, begun(0), after(tried, doTry, loading)}, rest(in(readyTime))},
		{"a line is joined", []change{turns}, join(asked)},
		{"busy or not", []change{turns, busy}, join(asked)},
		{"not with WithOutage", []change{turns, outage}, try(in(outageAttempt))},
		{"the line takes nobody in", []change{turns, after(asked, doJoin, nil)}, try(never)},
		{"MaxWait passes before the attempt", []change{maxWait(1), over, after(asked, doJoin, nil)}, try(in(time.Second))},
		{"the line knows nothing", []change{turns, after(asked, doJoin, store)}, try(never)},
		{"the queue knows nothing", []change{busy, after(asked, doEnqueue, store)}, try(never)},
		{"the queue is missing", []change{after(asked, doEnqueue, errors.ErrUnsupported)}, try(never)},
		{"the line knows that it is held", []change{turns, isHeld, after(asked, doJoin, errPanic)}, join(lined)},
		{"the queue knows that it is held", []change{isHeld, after(asked, doEnqueue, store)}, enqueue(alone)},
		{"the wait ends in the line", []change{over, after(asked, doJoin, store)}, fail(store)},
		{"the wait ends in the queue", []change{over, isHeld, after(asked, doEnqueue, store)}, fail(store)},
		{"Close ends it", []change{closed, after(asked, doEnqueue, store)}, fail(ErrClosed)},
		{"the queue refuses for good", []change{after(asked, doEnqueue, ErrInvalid)}, fail(ErrInvalid)},

		// The first attempt.
		{"granted", []change{after(tried, doTry, nil), func(s *state) { s.lease = lease }}, fail(nil)},
		{"granted, and over", []change{over, closed, after(alone, doEnqueue, nil), func(s *state) { s.lease = lease }}, fail(nil)},
		{"too late: the token tries again", []change{after(tried, doTry, errLate), func(s *state) { s.late, s.last = true, try(in(1)) }}, try(in(1))},
		{"also after the end", []change{over, closed, after(alone, doEnqueue, errLate), func(s *state) { s.late = true }}, poll},
		{"too late twice", []change{after(tried, doTry, errLate)}, fail(errLate)},
		{"held, in one attempt", []change{once, isHeld, after(tried, doTry, held)}, fail(held)},
		{"failed, in one attempt", []change{once, outage, after(tried, doTry, loading)}, fail(loading)},
		{"failed", []change{after(tried, doTry, store)}, fail(store)},
		{"not ready", []change{after(tried, doTry, loading)}, rest(in(readyTime))},
		{"not ready, with patience", []change{outage, after(tried, doTry, loading)}, rest(in(time.Minute))},
		{"not ready, after a pause", []change{begun(time.Second), after(tried, doPause, loading)}, again(never)},
		{"never ready", []change{failure, begun(readyTime), after(tried, doPause, loading)}, fail(loading)},
		{"not ready, and MaxWait has passed", []change{over, after(tried, doTry, loading)}, fail(loading)},
		{"not ready, and closed", []change{closed, after(tried, doPause, loading)}, fail(ErrClosed)},
		{"failed, and closed", []change{closed, after(tried, doTry, store)}, fail(store)},
		{"failed, with patience", []change{outage, after(tried, doTry, store)}, rest(in(time.Minute))},
		{"after a pause", []change{outage, after(tried, doPause, store)}, again(in(outageAttempt))},
		{"at the end of the patience", []change{outage, begun(59 * time.Second), after(tried, doPause, store)}, again(in(time.Second))},
		{"out of patience", []change{outage, failure, begun(time.Minute), after(tried, doTry, store)}, fail(unavailable(time.Minute, nil, store))},
		{"out of patience, cut short", []change{outage, begun(time.Minute), after(tried, doTry, store)}, fail(store)},
		{"full", []change{after(tried, doTry, full)}, fail(full)},
		{"full, with patience", []change{outage, after(tried, doTry, full)}, rest(in(time.Minute))},
		{"full, out of patience", []change{outage, func(s *state) { s.failure, s.answered = full, in(-time.Minute) }, begun(time.Minute), after(tried, doTry, full)},
			fail(unavailable(time.Minute, nil, full))},
		{"closed, whatever it is marked with", []change{outage, after(tried, doTry, shut)}, fail(shut)},
		{"refused, in spite of patience", []change{outage, failure, after(tried, doTry, refusal)}, fail(refusal)},
		{"unsupported, in spite of patience", []change{outage, after(tried, doTry, errors.ErrUnsupported)}, fail(errors.ErrUnsupported)},
		{"a bad backoff", []change{outage, after(tried, doPause, ErrInvalid)}, fail(ErrInvalid)},

		// The wait.
		{"held", []change{isHeld, after(tried, doTry, held)}, enqueue(alone)},
		{"held, and turns", []change{turns, isHeld, after(tried, doTry, held)}, join(lined)},
		{"held, without a queue", []change{polls, isHeld, after(tried, doTry, held)}, pause},
		{"held, and MaxWait has passed", []change{over, isHeld, after(tried, doTry, held)}, fail(held)},
		{"held, and closed", []change{closed, isHeld, after(tried, doTry, held)}, fail(ErrClosed)},
		{"the line fails", []change{turns, isHeld, after(lined, doJoin, errPanic)}, enqueue(alone)},
		{"the line finds no queue", []change{polls, isHeld, after(lined, doJoin, errors.ErrUnsupported)}, pause},
		{"the queue fails", []change{isHeld, after(alone, doEnqueue, store)}, pause},
		{"after a pause", []change{isHeld, after(alone, doPause, store)}, enqueue(alone)},
		{"the queue is missing", []change{polls, isHeld, after(alone, doEnqueue, errors.ErrUnsupported)}, pause},
		{"a poll", []change{polls, isHeld, after(alone, doPause, held)}, poll},
		{"after a poll", []change{polls, isHeld, after(alone, doTry, held)}, pause},
		{"a poll fails", []change{polls, isHeld, after(alone, doTry, store)}, pause},
		{"granted too late twice, after held", []change{polls, after(alone, doTry, errLate)}, pause},
		{"a final error", []change{isHeld, after(alone, doEnqueue, errNoFences)}, fail(errNoFences)},
		{"the backend is closed", []change{isHeld, after(alone, doEnqueue, ErrClosed)}, fail(ErrClosed)},
		{"the wait ends", []change{over, closed, isHeld, after(alone, doEnqueue, store)}, fail(store)},
		{"Close ends it", []change{closed, isHeld, after(alone, doPause, store)}, fail(ErrClosed)},

		// An errand.
		{"it queues at once", []change{errand}, enqueue(alone)},
		{"it fails", []change{errand, after(alone, doEnqueue, store)}, pause},
		{"it goes on", []change{errand, after(alone, doPause, store)}, enqueue(alone)},
		{"it finds no queue", []change{errand, after(alone, doEnqueue, errors.ErrUnsupported)}, fail(errors.ErrUnsupported)},
		{"it is called off", []change{errand, over, after(alone, doEnqueue, context.Canceled)}, fail(context.Canceled)},
	}
	for _, row := range table {
		s := state{maxWait: NoLimit, now: now, begun: now, queue: true}
		for _, change := range row.state {
			change(&s)
		}
		require.Equal(t, row.want, next(&s), row.name)
	}
}

// registry counts what has registered for its end.
type registry struct {
	context.Context
	registered int
}

func (r *registry) Done() <-chan struct{} { return make(chan struct{}) }

func (r *registry) AfterFunc(func()) func() bool {
	r.registered++
	return func() bool { r.registered--; return true }
}

func TestFailedSetLeavesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parent, c := &registry{Context: t.Context()}, New(fake{})
		require.NoError(t, c.Close())
		_, err := c.AcquireAll(parent, "k")
		require.ErrorIs(t, err, ErrClosed)
		synctest.Wait()
		require.Zero(t, parent.registered, "the parent still knows a set that has failed")
	})
}

// A loss says what the store said last, and counts silence from its last answer.
func TestCauseOfALoss(t *testing.T) {
	refusal := &NoEffectError{Err: errors.New("WRONGPASS")}
	broken, timeout := errors.New("connection reset"), &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	cut := context.DeadlineExceeded
	type failure struct {
		at  time.Duration // since the first renewal was sent
		err error
	}
	for name, c := range map[string]struct {
		failures []failure
		hangs    bool          // another is in flight at the loss, after 20 s
		late     time.Duration // one began
		want     string
	}{
		"nothing was tried":               {want: ""},
		"it hangs":                        {hangs: true, want: "no answer for 20s"},
		"refused, cut off at the end":     {failures: []failure{{1 * time.Second, refusal}, {19 * time.Second, refusal}, {20 * time.Second, cut}}, want: "WRONGPASS"},
		"refused, a time-out at the end":  {failures: []failure{{19 * time.Second, refusal}, {20 * time.Second, timeout}}, want: "WRONGPASS"},
		"refused, then silent":            {failures: []failure{{5 * time.Second, refusal}, {10 * time.Second, cut}}, hangs: true, want: "no answer for 15s; before that: WRONGPASS"},
		"refused, and not tried again":    {failures: []failure{{5 * time.Second, refusal}}, want: "WRONGPASS"},
		"broken, then cut off":            {failures: []failure{{1 * time.Second, broken}, {20 * time.Second, cut}}, want: "no answer for 20s: connection reset"},
		"refused, then broken":            {failures: []failure{{5 * time.Second, refusal}, {19 * time.Second, broken}}, hangs: true, want: "no answer for 15s; before that: connection reset"},
		"time-outs":                       {failures: []failure{{19 * time.Second, timeout}}, want: "no answer for 20s: " + timeout.Error()},
		"the reason stands beside an end": {failures: []failure{{20 * time.Second, fmt.Errorf("%w: %w", cut, errors.New("pool exhausted"))}}, want: "no answer for 20s: pool exhausted"},
		"late":                            {late: 12 * time.Second, want: "began 12s late: this process was paused, or got no CPU"},
		"late, and it hangs":              {late: 12 * time.Second, hangs: true, want: "no answer for 20s; began 12s late: this process was paused, or got no CPU"},
		"hardly late":                     {late: 900 * time.Millisecond, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			var tr retry
			if c.hangs || c.failures != nil {
				tr.since, tr.size, tr.inFlight = begun, 1, c.hangs
			}
			tr.noteLateLocked(begun.Add(-c.late), begun, 30*time.Second)
			for _, f := range c.failures {
				tr.noteLocked(f.err, begun.Add(f.at))
			}
			err := tr.causeLocked(begun.Add(20 * time.Second))
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.want)
			require.Equal(t, strings.Contains(c.want, "WRONGPASS"), errors.Is(err, refusal))
			require.NotErrorIs(t, err, cut)
		})
	}
}

// reply is an error reply of unknown text, and votes is what too many of several stores have said.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) Failed() bool    { return true }

type votes struct{ error }

func (votes) Answered() bool { return true }

// A row of TestEnding changes an acquisition that ends after 10 s without an answer. What its error matches is named.
func TestEnding(t *testing.T) {
	var (
		now     = time.Now()
		down    = errors.New("connection refused")
		refusal = &NoEffectError{Err: errors.New("WRONGPASS")}
		full    = &NoEffectError{Err: errors.New("OOM"), State: true}
		loading = &NoEffectError{Err: errors.New("LOADING"), Temporary: true}
		open    = &NoEffectError{Err: fmt.Errorf("%w: open", ErrUnavailable)}
		failed  = reply("ERR")
		split   = votes{errors.New("no majority")}
		timeout = &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
		cut     = context.DeadlineExceeded
		left    = errors.New("the user has left")
		names   = map[error]string{ErrHeld: "held", ErrUnavailable: "unavailable", ErrClosed: "closed", ErrInvalid: "invalid", ErrLost: "lost",
			context.Canceled: "canceled", cut: "deadline", down: "down", left: "left"}
	)
	type change func(*ending)
	ends := func(err error) change { return func(e *ending) { e.err = err } }
	fails := func(err error) change { return func(e *ending) { e.err, e.failure = err, err } }
	silent := func(d time.Duration) change { return func(e *ending) { e.answered = now.Add(-d) } }
	held := func(rest time.Duration) change {
		return func(e *ending) { e.held = &HeldError{Key: "k", Remaining: rest} }
	}
	patient := func(e *ending) { e.patient = true }
	over := func(e *ending) { e.over, e.wait, e.maxWait = true, time.Second, 2*time.Second }
	canceled := func(e *ending) { e.ctx, e.cause = context.Canceled, fmt.Errorf("%w: %w", context.Canceled, left) }
	deadline := func(e *ending) { e.ctx, e.cause = cut, cut }
	in := func(changes ...change) []change { return changes }
	for _, row := range []struct {
		changes       []change
		want, matches string
	}{
		// The store has not said that the key is held.
		{in(fails(down)), "store unavailable: no answer for 10s: connection refused", "down unavailable"},
		{in(fails(down), silent(0)), "store unavailable: no answer: connection refused", "down unavailable"},
		{in(fails(loading)), "store unavailable: not ready for 10s: LOADING", "unavailable"},
		{in(fails(refusal)), "the store refused: WRONGPASS", ""},
		{in(fails(full)), "the store refused: OOM", ""},
		{in(fails(failed)), "the store failed: ERR", ""},
		{in(fails(split)), "no majority", ""},
		{in(fails(errors.ErrUnsupported)), "unsupported operation", ""},
		{in(fails(errPanic)), errPanic.Error(), ""},
		{in(fails(errNoGrant)), errNoGrant.Error(), ""},
		{in(fails(timeout)), "store unavailable: no answer for 10s: read: i/o timeout", "unavailable"},
		{in(fails(fmt.Errorf("client: %w", ErrInvalid))), "client: invalid", "invalid"},
		{in(fails(ErrClosed)), "client closed", "closed"},
		{in(ends(ErrLost), over), "waited for 2s: lease lost", "lost"},
		{in(ends(fmt.Errorf("client: %w", ErrClosed)), over, canceled), "client: client closed", "closed"},
		{in(ends(errLate), silent(0)), errLate.Error(), ""},
		{in(ends(cut)), "store unavailable: no answer within 10s", "unavailable"},
		{in(ends(cut), over), "waited for 2s: store unavailable: no answer within 10s", "unavailable"},
		{in(ends(cut), over, silent(0)), "waited for 2s: no answer within 1s", ""},
		{in(fails(down), over), "waited for 2s: store unavailable: no answer for 10s: connection refused", "down unavailable"},
		{in(fails(refusal), over), "waited for 2s: the store refused: WRONGPASS", ""},
		// The patience of WithOutage has ended with the wait.
		{in(fails(full), over, patient), "waited for 2s: store unavailable: no success for 10s: the store refused: OOM", "unavailable"},
		{in(fails(refusal), over, patient), "waited for 2s: the store refused: WRONGPASS", ""},
		// The caller's ctx has ended.
		{in(ends(context.Canceled), canceled, silent(0)), "context canceled: the user has left", "canceled left"},
		{in(ends(context.Canceled), canceled, silent(time.Second-1)), "context canceled: the user has left", "canceled left"},
		{in(ends(context.Canceled), canceled, silent(time.Second)), "context canceled: the user has left: store unavailable: no answer within 1s", "canceled left unavailable"},
		{in(fails(down), canceled, silent(time.Second-1)), "context canceled: the user has left: connection refused", "canceled down left"},
		{in(fails(down), canceled, silent(time.Second)), "context canceled: the user has left: store unavailable: no answer for 1s: connection refused", "canceled down left unavailable"},
		{in(fails(down), deadline, silent(time.Millisecond)), "context deadline exceeded: store unavailable: no answer for 1ms: connection refused", "deadline down unavailable"},
		{in(fails(refusal), deadline), "context deadline exceeded: the store refused: WRONGPASS", "deadline"},
		{in(ends(fmt.Errorf("client: %w", cut)), deadline, silent(0)), "client: context deadline exceeded", "deadline"},
		// It has.
		{in(held(3*time.Second), ends(ErrInvalid)), "invalid", "invalid"},
		{in(held(3*time.Second), ends(cut), over), "waited for 2s: held by another, for 3s unless renewed", "held"},
		{in(held(3*time.Second), ends(cut), deadline), "context deadline exceeded: held by another, for 3s unless renewed", "deadline held"},
		{in(held(11*time.Second), fails(down), over), "waited for 2s: held by another, for 11s unless renewed; the store last answered 10s ago: connection refused", "down held"},
		{in(held(10*time.Second), fails(down), over), "waited for 2s: store unavailable: no answer for 10s (the last: held by another, for 10s unless renewed): connection refused", "down unavailable"},
		{in(held(0), fails(down), over), "waited for 2s: held by another; the store last answered 10s ago: connection refused", "down held"},
		{in(held(0), fails(down), silent(30*time.Second), over), "waited for 2s: store unavailable: no answer for 30s (the last: held by another): connection refused", "down unavailable"},
		{in(held(-1), fails(down), silent(time.Hour), over), "waited for 2s: held by another; the store last answered 1h0m0s ago: connection refused", "down held"},
		{in(held(time.Minute), fails(refusal), over), "waited for 2s: held by another, for 1m0s unless renewed; the store refused: WRONGPASS", "held"},
		{in(held(time.Second), fails(refusal), over), "waited for 2s: store unavailable: only refusals for 10s (the last: held by another, for 1s unless renewed): WRONGPASS", "unavailable"},
		{in(held(time.Minute), fails(failed), over), "waited for 2s: held by another, for 1m0s unless renewed; the store failed: ERR", "held"},
		{in(held(time.Second), fails(failed), over), "waited for 2s: store unavailable: no success for 10s (the last: held by another, for 1s unless renewed): the store failed: ERR", "unavailable"},
		{in(held(time.Second), fails(split), over), "waited for 2s: store unavailable: no success for 10s (the last: held by another, for 1s unless renewed): no majority", "unavailable"},
		{in(held(time.Minute), fails(open), over), "waited for 2s: held by another, for 1m0s unless renewed; the store last answered 10s ago: store unavailable: open", "held"},
		{in(held(time.Minute), fails(noAnswer(time.Second, cut)), over), "waited for 2s: held by another, for 1m0s unless renewed; the store last answered 10s ago: no answer within 1s", "held"},
	} {
		e := ending{facts: facts{answered: now.Add(-10 * time.Second), returned: now}, at: now, wait: NoLimit, maxWait: NoLimit, ttl: 30 * time.Second}
		for _, change := range row.changes {
			change(&e)
		}
		err := e.error()
		require.EqualError(t, err, row.want)
		var matches []string
		for target, name := range names {
			if errors.Is(err, target) {
				matches = append(matches, name)
			}
		}
		slices.Sort(matches)
		require.Equal(t, row.matches, strings.Join(matches, " "), row.want)
	}
}

// What a failed call says of the store, which has answered 10 s before. The call was sent later.
func TestBlame(t *testing.T) {
	now, before, reason := time.Now(), errors.New("before"), errors.New("connection refused")
	timeout, cut := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, context.DeadlineExceeded
	const short, long = time.Second - 1, time.Second
	for name, row := range map[string]struct {
		took              time.Duration
		before, err       error
		alive, queued, is bool
		failure           string
		answers           bool
	}{
		"the store's error":                      {took: short, err: reason, alive: true, failure: "connection refused"},
		"beside an end that is not the caller's": {took: short, err: fmt.Errorf("%w: %w", cut, reason), alive: true, failure: "context deadline exceeded: connection refused"},
		"beside the caller's":                    {took: short, err: fmt.Errorf("%w: %w", cut, reason), failure: "connection refused"},
		"a time limit of the store's client":     {took: long, err: cut, alive: true, failure: "no answer within 1s"},
		"cut short":                              {took: short, err: cut, failure: "<nil>"},
		"cut short, after a failure":             {took: short, before: before, err: cut, failure: "before"},
		"cut off late":                           {took: long, err: cut, failure: "no answer within 1s"},
		"cut off late, after a failure":          {took: long, before: before, err: cut, failure: "before"},
		"a socket's time limit, with ctx":        {took: short, before: before, err: timeout, failure: "before"},
		"a socket's, and nothing before":         {took: short, err: timeout, failure: "read: i/o timeout"},
		"a socket's, late":                       {took: long, before: before, err: timeout, failure: "read: i/o timeout"},
		"a queue that waited":                    {took: long, before: before, err: cut, queued: true, failure: "<nil>", answers: true},
		"a queue that was cut short":             {took: short, before: before, err: cut, queued: true, failure: "before"},
		"a queue that has had an answer":         {took: short, before: before, err: cut, queued: true, is: true, failure: "<nil>", answers: true},
	} {
		f := facts{answered: now.Add(-10 * time.Second), returned: now, failure: row.before}
		f.blame(now.Add(-row.took), row.err, row.alive, row.queued, row.is)
		require.Equal(t, row.failure, fmt.Sprint(f.failure), name)
		require.Equal(t, row.answers, f.answered.Equal(now), name)
	}
}

// A row of TestPlan names the leases that are due, the earliest deadline first: h0 to h9 by how often their largest
// batch was halved.
func TestPlan(t *testing.T) {
	for _, row := range []struct {
		name         string
		single, full bool
		due, takes   string
		rest         string // which the plan was not offered
	}{
		{name: "nothing is due"},
		{name: "all share a batch", due: "0000", takes: "0000"},
		{name: "the first decides on the size", due: "0110", takes: "00"},
		{name: "a small batch comes first", due: "1001", takes: "11"},
		{name: "alone", due: "9009", takes: "9", rest: "009"},
		{name: "few", due: "88808", takes: "888", rest: "08"},
		{name: "single calls", single: true, due: "000", takes: "0", rest: "00"},
		{name: "single calls, whatever was halved", single: true, due: "100", takes: "1", rest: "00"},
		{name: "too many are alone", full: true, due: "9909", takes: "0"},
		{name: "too many are alone, and no others are due", full: true, due: "999"},
		{name: "too many are alone, but two share a call", full: true, due: "9889", takes: "88"},
	} {
		p, due, takes := plan{single: row.single, full: row.full}, row.due, ""
		for ; due != "" && p.wants(); due = due[1:] {
			p.offer(&Lease{halved: due[0] - '0'})
		}
		for _, l := range p.batch {
			takes += fmt.Sprint(l.halved)
		}
		require.Equal(t, row.takes, takes, row.name)
		require.Equal(t, row.rest, due, row.name)
	}
	p := plan{full: true}
	for range maxBatch {
		require.True(t, p.wants())
		p.offer(&Lease{halved: 9})
	}
	require.False(t, p.wants(), "it looks no further")

	a, b, c := &Lease{key: "a"}, &Lease{key: "b"}, &Lease{key: "c"}
	p = plan{batch: []*Lease{a, b, c}}
	p.asks(1)
	require.Equal(t, []*Lease{b}, p.batch)
	require.ElementsMatch(t, []*Lease{a, c}, p.rest)
}

// While the store answers others, the largest batch of a lease that fails is halved until it is less than the last one.
func TestHalve(t *testing.T) {
	begun := time.Now()
	at := func(s int) time.Time { return begun.Add(time.Duration(s) * time.Second) }
	for _, row := range []struct {
		name             string
		retry            retry
		answered         time.Time // by others
		halved           uint8
		silent, halvesIt bool
	}{
		{name: "the first", retry: retry{}, answered: at(1)},
		{name: "silence", retry: retry{since: at(1), size: 1000}, answered: at(0), silent: true},
		{name: "others are answered", retry: retry{since: at(1), size: 1000}, answered: at(1), halved: 1, halvesIt: true},
		{name: "silence since it was halved", retry: retry{since: at(1), size: 500, halvedAt: at(3), halved: 1}, answered: at(2), halved: 1, silent: true},
		{name: "again", retry: retry{since: at(1), size: 500, halvedAt: at(2), halved: 1}, answered: at(2), halved: 2, halvesIt: true},
		{name: "a small batch", retry: retry{since: at(1), size: 7}, answered: at(1), halved: 8, halvesIt: true},
		{name: "alone", retry: retry{since: at(1), size: 1}, answered: at(1), halved: 9, halvesIt: true},
		{name: "alone, once more", retry: retry{since: at(1), size: 1, halved: 9, halvedAt: at(1)}, answered: at(1), halved: 9, halvesIt: true},
	} {
		require.Equal(t, row.silent, row.retry.halve(row.answered, at(5)), row.name)
		require.Equal(t, row.halved, row.retry.halved, row.name)
		require.Equal(t, row.halvesIt, row.retry.halvedAt.Equal(at(5)), row.name)
	}
}
