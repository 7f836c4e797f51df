package dlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
)

// A ledger is an Observer that notes all events.
type ledger struct {
	mu     sync.Mutex
	events []any
}

func (l *ledger) note(event any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
}

func (l *ledger) observer() *dlock.Observer {
	return &dlock.Observer{
		AcquireStart: func(ctx context.Context, i dlock.AcquireStartInfo) context.Context { l.note(i); return ctx },
		WaitStart:    func(_ context.Context, i dlock.WaitStartInfo) { l.note(i) },
		AcquireDone:  func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context { l.note(i); return ctx },
		RenewDone:    func(_ context.Context, i dlock.RenewDoneInfo) { l.note(i) },
		LeaseDone:    func(_ context.Context, i dlock.LeaseDoneInfo) { l.note(i) },
		ReleaseDone:  func(_ context.Context, i dlock.ReleaseDoneInfo) { l.note(i) },
		OwedDone:     func(_ context.Context, i dlock.OwedDoneInfo) { l.note(i) },
		BreakDone:    func(_ context.Context, i dlock.BreakDoneInfo) { l.note(i) },
	}
}

// of returns the events of one type so far.
func of[I any](l *ledger) (found []I) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if i, ok := e.(I); ok {
			found = append(found, i)
		}
	}
	return found
}

// only returns the one event of a type.
func only[I any](t *testing.T, l *ledger) I {
	t.Helper()
	found := of[I](l)
	require.Len(t, found, 1)
	return found[0]
}

// names returns the types of the events so far, in order.
func (l *ledger) names() (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		names = append(names, fmt.Sprintf("%T", e)[len("dlock."):])
	}
	return names
}

func (l *ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = nil
}

func watched(l dlock.Locker, opts ...dlock.Option) (*dlock.Client, *ledger) {
	seen := new(ledger)
	return dlock.New(l, append(opts, dlock.WithObserver(seen.observer()))...), seen
}

// awayWhen returns what makes all calls of a spy fail.
func awayWhen(s *spy) *atomic.Bool {
	var away atomic.Bool
	s.onCall(func(c *call) {
		if away.Load() {
			c.err = errStore
		}
	})
	return &away
}

func TestObserver(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) { c.delay = time.Millisecond })
		c, seen := watched(s)
		l := acquire(t, c, "k")
		start := time.Now()
		time.Sleep(25 * time.Second)
		require.NoError(t, l.Release())
		require.NoError(t, l.Release(), "does nothing")
		require.Equal(t, []string{"AcquireStartInfo", "AcquireDoneInfo", "RenewDoneInfo", "RenewDoneInfo", "LeaseDoneInfo", "ReleaseDoneInfo"}, seen.names())
		require.Equal(t, dlock.AcquireStartInfo{Op: dlock.OpAcquire, Key: "k"}, only[dlock.AcquireStartInfo](t, seen))
		require.Equal(t, dlock.AcquireDoneInfo{Op: dlock.OpAcquire, Key: "k", Start: start.Add(-time.Millisecond), Took: time.Millisecond,
			Attempts: 1, Fence: l.Fence()}, only[dlock.AcquireDoneInfo](t, seen))
		require.Equal(t, dlock.LeaseDoneInfo{Key: "k", Fence: l.Fence(), At: start.Add(25 * time.Second), Held: 25 * time.Second,
			End: dlock.EndReleased, Err: dlock.ErrReleased}, only[dlock.LeaseDoneInfo](t, seen))
		require.Equal(t, dlock.ReleaseDoneInfo{Key: "k", Held: 25 * time.Second, Took: time.Millisecond}, only[dlock.ReleaseDoneInfo](t, seen))
		r := of[dlock.RenewDoneInfo](seen)[0]
		require.Equal(t, dlock.RenewDoneInfo{Key: "k", Fence: l.Fence(), Took: time.Millisecond, Margin: r.Margin, TTL: dlock.DefaultTTL, Batch: 1}, r)
		require.InDelta(t, 20*time.Second, r.Margin, float64(3*time.Second))
	})
}

func TestObserverOfAWait(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		hold(t, store, 10*time.Second)
		c, seen := watched(l)
		start := time.Now()
		acquire(t, c, "k").Release()
		took := time.Since(start)
		require.Equal(t, dlock.WaitStartInfo{Key: "k", Remaining: 10 * time.Second}, only[dlock.WaitStartInfo](t, seen))
		done := only[dlock.AcquireDoneInfo](t, seen)
		require.True(t, done.Contended)
		require.Equal(t, took, done.Took)
		require.Equal(t, took, done.Waited)
		require.Len(t, s.made("try", "acquire"), done.Attempts)

		seen.forget()
		held := acquire(t, dlock.New(store, dlock.WithOwner("worker 7")), "k")
		_, err := c.With(dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		wait := only[dlock.WaitStartInfo](t, seen)
		require.Equal(t, wait.Remaining > 0, wait.Owner == "worker 7", "what is known of the holder: %+v", wait)
		require.NoError(t, held.Release())

		seen.forget()
		hold(t, store, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		done = only[dlock.AcquireDoneInfo](t, seen)
		require.ErrorIs(t, done.Err, context.DeadlineExceeded)
		require.ErrorIs(t, done.Err, dlock.ErrHeld)
		require.True(t, done.Contended)
		require.NotContains(t, done.Err.Error(), `"k"`)

		seen.forget()
		_, err = c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		done = only[dlock.AcquireDoneInfo](t, seen)
		require.ErrorIs(t, done.Err, dlock.ErrHeld)
		require.Equal(t, dlock.OpTry, done.Op)
		require.True(t, done.Contended)
		require.Zero(t, done.Waited)
		require.Empty(t, of[dlock.WaitStartInfo](seen))
	})
}

// The first TTL after a wait is short. So the margin of the renewal that follows is a large part
// of the TTL that it reports, as always.
func TestObserverOfTheFirstRenewalAfterAWait(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Second)
		c, seen := watched(s)
		lease := acquire(t, c, "k")
		time.Sleep(dlock.DefaultTTL / 2)
		require.NoError(t, lease.Release())
		renewals := of[dlock.RenewDoneInfo](seen)
		require.Greater(t, len(renewals), 1)
		require.Equal(t, 5*time.Second, renewals[0].TTL)
		require.Greater(t, renewals[0].Margin, 4*time.Second)
		require.Equal(t, dlock.DefaultTTL, renewals[1].TTL)
	})
}

// An error that has the error of another lease or call in it does not show that one's key, either.
func TestObserverOfACauseWithAKey(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c, seen := watched(s)
		hold(t, store, time.Hour)
		l := acquire(t, c, "secret")
		time.AfterFunc(time.Second, func() { store.Steal("secret", time.Hour) })
		_, err := c.Acquire(l.Context(t.Context()), "k")
		require.ErrorContains(t, err, "secret")
		loss := of[dlock.AcquireDoneInfo](seen)[1].Err
		require.ErrorIs(t, loss, context.Canceled)
		require.ErrorIs(t, loss, dlock.ErrHeld)
		require.NotErrorIs(t, loss, dlock.ErrLost)
		require.ErrorContains(t, loss, "lease lost: the store does not know it any more: held by another")
		require.NotContains(t, loss.Error(), "secret")

		seen.forget()
		_, err = c.TryAcquire(t.Context(), "secret")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(fmt.Errorf("the other call: %w", err))
		_, err = c.Acquire(ctx, "k")
		require.ErrorContains(t, err, "secret")
		held := of[dlock.AcquireDoneInfo](seen)[1].Err
		require.ErrorIs(t, held, context.Canceled)
		require.EqualError(t, held, "context canceled: held by another")
	})
}

// Each call that acquires has one start and one end, also if nothing was sent.
func TestObserverOfCallsThatFailAtOnce(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c, seen := watched(s)
		fails := func(want error, call func() error) {
			t.Helper()
			seen.forget()
			require.ErrorIs(t, call(), want)
			require.Equal(t, []string{"AcquireStartInfo", "AcquireDoneInfo"}, seen.names())
			done := only[dlock.AcquireDoneInfo](t, seen)
			require.ErrorIs(t, done.Err, want)
			require.Zero(t, done.Attempts)
		}
		fails(dlock.ErrInvalid, func() error { _, err := c.Acquire(t.Context(), ""); return err })
		fails(context.Canceled, func() error { _, err := c.TryAcquire(ended(t), "k"); return err })
		fails(dlock.ErrInvalid, func() error { _, err := c.Adopt(t.Context(), dlock.Detached{}); return err })
		fails(dlock.ErrInvalid, func() error { _, err := c.With(dlock.WithTTL(0)).Acquire(t.Context(), "k"); return err })
		l := acquire(t, c, "k")
		fails(dlock.ErrNested, func() error { _, err := c.Acquire(l.Context(t.Context()), "k"); return err })
		require.NoError(t, l.Release())
		require.NoError(t, c.Close())
		fails(dlock.ErrClosed, func() error { _, err := c.Acquire(t.Context(), "k"); return err })
	})
}

func TestObserverOfALoss(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c, seen := watched(s, dlock.WithRenewal(false), dlock.WithTTL(time.Second))
		l := acquire(t, c, "secret")
		granted, deadline := time.Now(), l.Deadline()
		time.Sleep(5 * time.Second)
		done := only[dlock.LeaseDoneInfo](t, seen)
		require.ErrorIs(t, done.Err, dlock.ErrLost)
		require.NotContains(t, done.Err.Error(), "secret")
		require.Equal(t, dlock.EndExpired, done.End)
		require.Equal(t, deadline, done.At)
		require.Equal(t, deadline.Sub(granted), done.Held)
		require.NoError(t, only[dlock.OwedDoneInfo](t, seen).Err, "the store may keep the lease a little longer")

		called := time.Now()
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		r := only[dlock.ReleaseDoneInfo](t, seen)
		require.Equal(t, called.Sub(deadline), r.Overrun)
		require.Equal(t, done.Held, r.Held)
		require.ErrorIs(t, r.Err, dlock.ErrLost)
		require.NotContains(t, r.Err.Error(), "secret")
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		only[dlock.ReleaseDoneInfo](t, seen)
		only[dlock.LeaseDoneInfo](t, seen)

		// Only the release finds the loss.
		seen.forget()
		l = acquire(t, c, "k")
		store.Steal("k", time.Minute)
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		require.Equal(t, dlock.EndRemoved, only[dlock.LeaseDoneInfo](t, seen).End)
		require.Zero(t, only[dlock.ReleaseDoneInfo](t, seen).Overrun)
		require.Equal(t, uint64(2), c.Stats().Lost)

		// A release of a lease whose loss nobody has noticed yet.
		seen.forget()
		l = acquire(t, c, "soon")
		time.Sleep(time.Until(l.Deadline()))
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		synctest.Wait()
		only[dlock.LeaseDoneInfo](t, seen)
		only[dlock.ReleaseDoneInfo](t, seen)
	})
}

// A renewal that finds a loss is reported before it.
func TestObserverOfALossThatARenewalFinds(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		c, seen := watched(l)
		acquire(t, c, "k")
		store.Steal("k", time.Minute)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"AcquireStartInfo", "AcquireDoneInfo", "RenewDoneInfo", "LeaseDoneInfo"}, seen.names())
		require.ErrorIs(t, only[dlock.RenewDoneInfo](t, seen).Err, dlock.ErrLost)
		require.Equal(t, dlock.EndRemoved, only[dlock.LeaseDoneInfo](t, seen).End)
	})
}

func TestObserverOfBatches(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		away := awayWhen(s)
		c, seen := watched(s)
		leases, _ := acquireAll(t, c, "k", 20)
		time.Sleep(12 * time.Second)
		renewals := of[dlock.RenewDoneInfo](seen)
		require.Len(t, renewals, 20)
		for _, r := range renewals {
			require.Equal(t, 20, r.Batch)
		}
		seen.forget()
		away.Store(true)
		time.Sleep(9 * time.Second)
		renewals = of[dlock.RenewDoneInfo](seen)
		require.NotEmpty(t, renewals)
		for _, r := range renewals {
			require.ErrorIs(t, r.Err, errStore)
			require.Positive(t, r.Margin)
		}
		time.Sleep(time.Minute)
		require.Len(t, of[dlock.LeaseDoneInfo](seen), 20)
		require.Equal(t, 20, lostOf(leases))
	})
}

func TestObserverOfRenewByTheHolder(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		away := awayWhen(s)
		c, seen := watched(s, dlock.WithRenewal(false))
		l := acquire(t, c, "k")
		time.Sleep(time.Second)
		require.NoError(t, l.Renew(t.Context()))
		require.Len(t, of[dlock.RenewDoneInfo](seen), 1, "before Renew returns")
		away.Store(true)
		require.ErrorIs(t, l.Renew(t.Context()), errStore)
		require.ErrorIs(t, of[dlock.RenewDoneInfo](seen)[1].Err, errStore)

		s.onCall(func(c *call) {
			if c.op == "renew" {
				c.hang()
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, l.Renew(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, of[dlock.RenewDoneInfo](seen)[2].Err, context.DeadlineExceeded, "as Renew says")
	})
}

func TestObserverOfOwedReleases(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		away := awayWhen(s)
		c, seen := watched(s)
		l := acquire(t, c, "k")
		away.Store(true)
		require.ErrorIs(t, l.Release(), errStore)
		require.True(t, only[dlock.ReleaseDoneInfo](t, seen).Owed)
		require.Equal(t, dlock.EndReleased, only[dlock.LeaseDoneInfo](t, seen).End)
		require.Empty(t, of[dlock.OwedDoneInfo](seen))
		time.Sleep(5 * time.Second)
		away.Store(false)
		time.Sleep(5 * time.Second)
		owed := only[dlock.OwedDoneInfo](t, seen)
		require.NoError(t, owed.Err)
		require.InDelta(t, 5*time.Second, owed.Took, float64(2*time.Second))
		requireFree(t, store, "k")

		// The caller repeats the release first.
		l = acquire(t, c, "k")
		away.Store(true)
		require.ErrorIs(t, l.Release(), errStore)
		away.Store(false)
		seen.forget()
		require.NoError(t, l.Release())
		require.False(t, only[dlock.ReleaseDoneInfo](t, seen).Owed)
		time.Sleep(time.Second)
		require.NoError(t, only[dlock.OwedDoneInfo](t, seen).Err)

		// An attempt with an unknown outcome, given up after a TTL.
		seen.forget()
		away.Store(true)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Minute)
		require.ErrorIs(t, only[dlock.OwedDoneInfo](t, seen).Err, errStore)

		// Given up by Close.
		seen.forget()
		_, err = c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		require.Error(t, c.Close())
		synctest.Wait()
		require.ErrorIs(t, only[dlock.OwedDoneInfo](t, seen).Err, dlock.ErrClosed)
	})
}

// Of two calls of Release at a time, only one has anything to do.
func TestObserverOfTwoReleases(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.onCall(func(c *call) { c.delay = time.Second })
		c, seen := watched(s)
		l := acquire(t, c, "k")
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { require.NoError(t, l.Release()) })
		}
		wg.Wait()
		only[dlock.ReleaseDoneInfo](t, seen)
		only[dlock.LeaseDoneInfo](t, seen)
	})
}

func TestObserverOfAMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c, seen := watched(s, dlock.WithMinHold(time.Minute))
		l := acquire(t, c, "k")
		require.NoError(t, l.Release())
		r := only[dlock.ReleaseDoneInfo](t, seen)
		require.True(t, r.Owed)
		require.NoError(t, r.Err)
		time.Sleep(2 * time.Minute)
		require.Equal(t, time.Minute, only[dlock.OwedDoneInfo](t, seen).Took)
	})
}

func TestObserverOfDetachAndAdopt(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c, seen := watched(s)
		l := acquire(t, c, "k")
		time.Sleep(2 * time.Second)
		d := detach(t, l)
		_, err := l.Detach()
		require.ErrorIs(t, err, dlock.ErrReleased)
		require.NoError(t, l.Release(), "does nothing")
		synctest.Wait()
		done := only[dlock.LeaseDoneInfo](t, seen)
		require.Equal(t, dlock.EndDetached, done.End)
		require.Equal(t, 2*time.Second, done.Held)
		require.Empty(t, of[dlock.ReleaseDoneInfo](seen))

		seen.forget()
		next := adopt(t, c, d)
		acquired := only[dlock.AcquireDoneInfo](t, seen)
		require.Equal(t, dlock.OpAdopt, acquired.Op)
		require.Equal(t, 1, acquired.Attempts)
		require.Equal(t, next.Fence(), acquired.Fence)
		time.Sleep(time.Second)
		require.NoError(t, next.Release())
		require.Equal(t, time.Second, only[dlock.LeaseDoneInfo](t, seen).Held, "by this holder")

		seen.forget()
		_, err = c.Adopt(t.Context(), d)
		require.ErrorIs(t, err, dlock.ErrLost)
		require.ErrorIs(t, only[dlock.AcquireDoneInfo](t, seen).Err, dlock.ErrLost)
		require.Empty(t, of[dlock.LeaseDoneInfo](seen))
	})
}

// The giver's Observer takes two TTLs. The taker gets the lease all the same.
func TestObserverThatIsSlowWhenALeaseIsDetached(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithObserver(&dlock.Observer{LeaseDone: func(context.Context, dlock.LeaseDoneInfo) { time.Sleep(2 * dlock.DefaultTTL) }}))
		l := adopt(t, c, detach(t, acquire(t, c, "k")))
		require.NoError(t, l.Release())
	})
}

func TestObserverOfADegradedLease(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.answers(dlock.Attempt{Acquired: true, Degraded: true}, nil)
			}
		})
		c, seen := watched(s)
		l := acquire(t, c, "k")
		require.True(t, only[dlock.AcquireDoneInfo](t, seen).Degraded)
		time.Sleep(time.Minute)
		require.ErrorIs(t, l.Release(), dlock.ErrLost, "the store does not know it")
		require.Equal(t, dlock.EndRemoved, only[dlock.LeaseDoneInfo](t, seen).End)
	})
}

func TestObserverOfBreak(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c, seen := watched(s, dlock.WithOwner("me"))
		acquire(t, c, "k")
		status, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, c.Break(t.Context(), status))
		require.Equal(t, dlock.BreakDoneInfo{Key: "k", Owner: "me"}, only[dlock.BreakDoneInfo](t, seen))
		require.ErrorIs(t, c.Break(t.Context(), status), dlock.ErrReleased)
		require.ErrorIs(t, c.Break(t.Context(), dlock.Status{}), dlock.ErrInvalid)
		require.ErrorIs(t, of[dlock.BreakDoneInfo](seen)[1].Err, dlock.ErrReleased)
		require.ErrorIs(t, of[dlock.BreakDoneInfo](seen)[2].Err, dlock.ErrInvalid)
	})
}

func TestObserverOfShutdown(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c, seen := watched(s)
		l := acquire(t, c, "k")
		require.Error(t, c.Shutdown(ended(t)))
		done := only[dlock.LeaseDoneInfo](t, seen)
		require.Equal(t, dlock.EndShutdown, done.End)
		require.Equal(t, dlock.ErrClosed, done.Err)
		require.NoError(t, l.Release())
		only[dlock.LeaseDoneInfo](t, seen)
		require.Zero(t, only[dlock.ReleaseDoneInfo](t, seen).Overrun)
		requireFree(t, store, "k")

		c, seen = watched(s)
		l = acquire(t, c, "k")
		require.Error(t, c.Shutdown(ended(t)))
		deadline := l.Deadline()
		time.Sleep(time.Minute)
		for range 2 {
			require.ErrorIs(t, l.Release(), dlock.ErrLost)
		}
		r := only[dlock.ReleaseDoneInfo](t, seen)
		require.Positive(t, r.Overrun)
		require.Less(t, r.Overrun, time.Since(deadline))
	})
}

// A panic of the Locker ends an acquisition and a lease like any other error.
func TestObserverOfAPanicInTheLocker(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c, seen := watched(s)
		var next atomic.Bool
		next.Store(true)
		s.onCall(func(*call) {
			if next.Swap(false) {
				panic("store")
			}
		})
		require.Panics(t, func() { _, _ = c.Acquire(t.Context(), "k") })
		require.Error(t, only[dlock.AcquireDoneInfo](t, seen).Err)
		l := acquire(t, c, "k")
		synctest.Wait()
		next.Store(true)
		require.Panics(t, func() { _ = l.Release() })
		require.Error(t, only[dlock.ReleaseDoneInfo](t, seen).Err)
		only[dlock.LeaseDoneInfo](t, seen)
		require.NoError(t, l.Release())
		only[dlock.LeaseDoneInfo](t, seen)
	})
}

// Each holder in a line has an acquisition and a lease of its own, reported to its own Observer.
func TestObserverOfLocalTurns(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Second)
		c := dlock.New(s, dlock.WithLocalTurns(8))
		const n = 12
		all := make([]*ledger, n)
		var wg sync.WaitGroup
		for i := range all {
			all[i] = new(ledger)
			mine := c.With(dlock.WithObserver(all[i].observer()))
			wg.Go(func() {
				_ = mine.Do(t.Context(), "k", func(context.Context, *dlock.Lease) error {
					time.Sleep(time.Millisecond)
					return nil
				})
			})
			synctest.Wait()
		}
		wg.Wait()
		synctest.Wait()
		fences := make(map[int64]bool)
		for _, seen := range all {
			require.Equal(t, []string{"AcquireStartInfo", "WaitStartInfo", "AcquireDoneInfo", "LeaseDoneInfo", "ReleaseDoneInfo"}, seen.names())
			done := only[dlock.AcquireDoneInfo](t, seen)
			require.True(t, done.Contended)
			require.False(t, fences[done.Fence], "fence %d twice", done.Fence)
			fences[done.Fence] = true
			require.Equal(t, time.Millisecond, only[dlock.LeaseDoneInfo](t, seen).Held)
		}
	})
}

func TestSeveralObservers(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var order []string
		observer := func(name string) dlock.Option {
			return dlock.WithObserver(&dlock.Observer{ReleaseDone: func(context.Context, dlock.ReleaseDoneInfo) { order = append(order, name) }})
		}
		base := dlock.New(s, observer("1"), observer("2"), observer("3"))
		one, two := base.With(observer("b")), base.With(observer("c"))
		for _, c := range []*dlock.Client{base, one, two} {
			require.NoError(t, acquire(t, c, "k").Release())
		}
		require.Equal(t, []string{"1", "2", "3", "1", "2", "3", "b", "1", "2", "3", "c"}, order)
		_, err := base.With(dlock.WithObserver(nil)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "WithObserver: nil")
	})
}

type valueKey string

// lends returns an Observer that lends values, with a cancellation that nobody must see.
func lends(start, done string) *dlock.Observer {
	with := func(ctx context.Context, name string) context.Context {
		ctx, cancel := context.WithTimeoutCause(context.WithValue(ctx, valueKey(name), name), time.Nanosecond, errors.New("of the Observer"))
		cancel()
		return ctx
	}
	return &dlock.Observer{
		AcquireStart: func(ctx context.Context, _ dlock.AcquireStartInfo) context.Context { return with(ctx, start) },
		AcquireDone:  func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context { return with(ctx, done) },
	}
}

// A ctx that an Observer returns lends its values to later calls and events, never its
// cancellation.
func TestObserverLendsValues(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		values := func(ctx context.Context) (found []any) {
			for _, key := range []string{"caller", "start", "done"} {
				if v := ctx.Value(valueKey(key)); v != nil {
					found = append(found, v)
				}
			}
			return found
		}
		var mu sync.Mutex
		seen := make(map[string][]any)
		note := func(name string, ctx context.Context) {
			mu.Lock()
			defer mu.Unlock()
			seen[name] = values(ctx)
		}
		s.onCall(func(c *call) {
			require.NoError(t, c.ctx.Err(), c.op)
			require.NoError(t, context.Cause(c.ctx), c.op)
			note(c.op, c.ctx)
		})
		c := dlock.New(single{s}, dlock.WithObserver(lends("start", "done")), dlock.WithObserver(&dlock.Observer{
			AcquireDone: func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context {
				note("AcquireDone", ctx)
				return ctx
			},
			RenewDone:   func(ctx context.Context, _ dlock.RenewDoneInfo) { note("RenewDone", ctx) },
			LeaseDone:   func(ctx context.Context, _ dlock.LeaseDoneInfo) { note("LeaseDone", ctx) },
			ReleaseDone: func(ctx context.Context, _ dlock.ReleaseDoneInfo) { note("ReleaseDone", ctx) },
		}))
		cause := errors.New("of the caller")
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), valueKey("caller"), "caller"))
		hold(t, store, time.Second)
		l, err := c.Acquire(ctx, "k")
		require.NoError(t, err)
		cancel(cause)
		time.Sleep(time.Minute)
		require.NoError(t, l.Release())
		before, all := []any{"caller", "start"}, []any{"caller", "start", "done"}
		require.Equal(t, map[string][]any{"try": before, "acquire": before, "AcquireDone": all, "renew": all, "RenewDone": all,
			"release": all, "LeaseDone": all, "ReleaseDone": all}, seen)

		// The cancellation of the caller, and its cause, arrive.
		hold(t, store, time.Hour)
		ctx, cancel = context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		_, err = c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err = c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// AcquireDone returns while a renewal is in flight. The next one has its values.
func TestObserverLendsValuesDuringARenewal(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "renew" {
				c.take(2 * time.Second)
			}
		})
		c := dlock.New(single{s}, dlock.WithObserver(&dlock.Observer{
			AcquireDone: func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context {
				time.Sleep(11 * time.Second) // a renewal is sent after 10 s
				return context.WithValue(ctx, valueKey("done"), true)
			},
		}))
		l := acquire(t, c, "k")
		time.Sleep(time.Minute)
		require.NoError(t, l.Release())
		renewals := s.made("renew")
		require.Nil(t, renewals[0].ctx.Value(valueKey("done")))
		require.Equal(t, true, renewals[len(renewals)-1].ctx.Value(valueKey("done")))
	})
}

// An Observer that returns another ctx, or none, changes nothing: the caller's values and the
// leases in them are still found.
func TestObserverThatReturnsAnotherContext(t *testing.T) {
	for name, other := range map[string]context.Context{"background": context.Background(), "nil": nil} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				c := dlock.New(s, dlock.WithObserver(&dlock.Observer{
					AcquireStart: func(context.Context, dlock.AcquireStartInfo) context.Context { return other },
					AcquireDone:  func(context.Context, dlock.AcquireDoneInfo) context.Context { return other },
				}))
				ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), valueKey("v"), 1), time.Second)
				defer cancel()
				l, err := c.Acquire(ctx, "k")
				require.NoError(t, err)
				_, err = c.Acquire(l.Context(ctx), "k")
				require.ErrorIs(t, err, dlock.ErrNested)
				_, err = dlock.New(s).Acquire(ctx, "k")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NoError(t, l.Release())
				for _, call := range s.made("try", "release")[:1] {
					require.Equal(t, 1, call.ctx.Value(valueKey("v")))
				}
			})
		})
	}
}

// A ctx that an Observer returns may carry leases of others. Only the caller's own count.
func TestObserverLendsNoLeases(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		service := acquire(t, dlock.New(s), "service").Context(context.Background())
		c := dlock.New(s, dlock.WithMaxWait(time.Second), dlock.WithObserver(&dlock.Observer{
			AcquireStart: func(context.Context, dlock.AcquireStartInfo) context.Context {
				return context.WithValue(service, valueKey("v"), 1)
			},
		}))
		l := acquire(t, c, "k")
		_, err := c.Acquire(l.Context(t.Context()), "k")
		require.ErrorIs(t, err, dlock.ErrNested)
		require.Equal(t, 1, s.made("try")[1].ctx.Value(valueKey("v")))
		leader := acquire(t, c, "leader").Context(context.Background())
		c = c.With(dlock.WithObserver(&dlock.Observer{
			AcquireStart: func(context.Context, dlock.AcquireStartInfo) context.Context { return leader },
		}))
		_, err = c.Acquire(t.Context(), "leader")
		require.ErrorIs(t, err, dlock.ErrHeld, "the caller does not hold it")
	})
}

// An uncomparable context is no reason to panic.
type listContext struct {
	context.Context
	_ []int
}

func TestObserverWithAContextThatCannotBeCompared(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c, _ := watched(s)
		l, err := c.Acquire(listContext{Context: t.Context()}, "k")
		require.NoError(t, err)
		require.NoError(t, l.Release())
	})
}

// The slow Observer takes two TTLs before the lease is handed out.
func TestObserverThatDelaysALease(t *testing.T) {
	delay := func(d time.Duration) dlock.Option {
		return dlock.WithObserver(&dlock.Observer{AcquireDone: func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context {
			time.Sleep(d)
			return ctx
		}})
	}
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		seen := new(ledger)
		c := dlock.New(s, delay(2*dlock.DefaultTTL), dlock.WithObserver(seen.observer()))
		for _, ok := range map[string]func() error{
			"acquire": func() error { l, err := c.Acquire(t.Context(), "k"); return errors.Join(err, l.Release()) },
			"try":     func() error { l, err := c.TryAcquire(t.Context(), "k"); return errors.Join(err, l.Release()) },
		} {
			require.NoError(t, ok(), "it is renewed meanwhile")
		}
		require.Zero(t, c.Stats().Lost)

		seen.forget()
		c = c.With(dlock.WithRenewal(false))
		start := time.Now()
		l, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrLost)
		require.Nil(t, l)
		require.NoError(t, only[dlock.AcquireDoneInfo](t, seen).Err)
		synctest.Wait()
		done := only[dlock.LeaseDoneInfo](t, seen)
		require.Equal(t, dlock.EndExpired, done.End)
		require.Less(t, done.At, start.Add(dlock.DefaultTTL))
		require.Empty(t, of[dlock.ReleaseDoneInfo](seen), "nobody has worked without the lock")
		require.ErrorIs(t, c.Do(t.Context(), "k", func(context.Context, *dlock.Lease) error { t.Error("called"); return nil }), dlock.ErrLost)
		time.Sleep(time.Minute)
		requireFree(t, store, "k")
	})
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		seen := new(ledger)
		c := dlock.New(s, delay(time.Minute), dlock.WithObserver(seen.observer()))
		time.AfterFunc(10*time.Second, func() { _ = c.Shutdown(ended(t)) })
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrClosed)
		requireFree(t, store, "k")
		synctest.Wait()
		require.Equal(t, dlock.EndShutdown, only[dlock.LeaseDoneInfo](t, seen).End)
		only[dlock.AcquireDoneInfo](t, seen)
	})
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		taker, other := dlock.New(s, delay(time.Minute)), dlock.New(s)
		d := detach(t, acquire(t, other, "k"))
		time.AfterFunc(50*time.Second, func() { _ = taker.Shutdown(ended(t)) })
		_, err := taker.Adopt(t.Context(), d)
		require.ErrorIs(t, err, dlock.ErrClosed)
		require.NoError(t, adopt(t, other, d).Release())
	})
}

// countingRenewals counts how many leases were renewed.
type countingRenewals struct {
	dlock.Forward
	leases atomic.Int64
}

func (c *countingRenewals) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	c.leases.Add(1)
	return c.Forward.Renew(ctx, key, token, ttl)
}

func (c *countingRenewals) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	c.leases.Add(int64(len(batch)))
	return c.Forward.RenewBatch(ctx, batch)
}

// An Observer of the background that blocks for ever loses no lease, and does not keep Close or
// Shutdown from ending. What it does not take is counted.
func TestObserverThatBlocks(t *testing.T) {
	for name, end := range map[string]func(*dlock.Client) error{
		"Close":    (*dlock.Client).Close,
		"Shutdown": func(c *dlock.Client) error { return c.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
				over := make(chan struct{})
				defer close(over)
				var called, done atomic.Int64
				counted := &countingRenewals{Forward: dlock.Forward{Locker: s}}
				c := dlock.New(counted, dlock.WithTTL(3*time.Second), dlock.WithObserver(&dlock.Observer{
					RenewDone:   func(context.Context, dlock.RenewDoneInfo) { called.Add(1); <-over },
					ReleaseDone: func(context.Context, dlock.ReleaseDoneInfo) { done.Add(1) },
				}))
				leases, _ := acquireAll(t, c, "k", 100)
				time.Sleep(time.Minute)
				synctest.Wait()
				requireNoneLost(t, leases)
				require.Equal(t, int64(1), called.Load())
				require.Greater(t, counted.leases.Load(), int64(4096))
				require.Equal(t, uint64(counted.leases.Load()-2048-1), c.Stats().EventsDropped)
				for _, l := range leases {
					require.NoError(t, l.Release())
				}
				require.Equal(t, int64(100), done.Load())
				start := time.Now()
				require.NoError(t, end(c))
				require.LessOrEqual(t, time.Since(start), 5*time.Second)
			})
		})
	}
}

// Renewals do not crowd out losses.
func TestLossesHaveRoomOfTheirOwn(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		over := make(chan struct{})
		var lost atomic.Int64
		away := awayWhen(s)
		c := dlock.New(s, dlock.WithTTL(time.Second), dlock.WithObserver(&dlock.Observer{
			RenewDone: func(context.Context, dlock.RenewDoneInfo) { <-over },
			LeaseDone: func(context.Context, dlock.LeaseDoneInfo) { lost.Add(1) },
		}))
		acquireAll(t, c, "k", 100)
		time.Sleep(time.Minute)
		require.NotZero(t, c.Stats().EventsDropped)
		away.Store(true)
		time.Sleep(time.Minute)
		require.Zero(t, lost.Load())
		close(over)
		synctest.Wait()
		require.Equal(t, int64(100), lost.Load())
	})
}

// Close and Shutdown wait until what has happened is reported.
func TestCloseWaitsForObservers(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var reported atomic.Int64
		c := dlock.New(s, dlock.WithObserver(&dlock.Observer{LeaseDone: func(context.Context, dlock.LeaseDoneInfo) {
			time.Sleep(time.Second)
			reported.Add(1)
		}}))
		acquireAll(t, c, "k", 3)
		require.Error(t, c.Shutdown(ended(t)))
		require.Equal(t, int64(3), reported.Load())
	})
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		away := awayWhen(s)
		var reported atomic.Int64
		c := dlock.New(s, dlock.WithObserver(&dlock.Observer{OwedDone: func(context.Context, dlock.OwedDoneInfo) {
			time.Sleep(time.Second)
			reported.Add(1)
		}}))
		away.Store(true)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		away.Store(false)
		time.Sleep(time.Second)
		require.Equal(t, 1, c.Stats().ReleasesOwed, "it was answered, and the attempt may still arrive")
		require.NoError(t, c.Close())
		require.Equal(t, int64(1), reported.Load())
	})
}

// An Observer that blocks for ever in a goroutine of a caller blocks nobody else.
func TestObserverThatBlocksACaller(t *testing.T) {
	for _, hook := range []string{"AcquireStart", "WaitStart", "AcquireDone", "ReleaseDone"} {
		t.Run(hook, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				over := make(chan struct{})
				block := func(name string) {
					if name == hook {
						<-over
					}
				}
				c := dlock.New(s, dlock.WithTTL(time.Second))
				hold(t, store, time.Minute)
				var err error
				var wg sync.WaitGroup
				wg.Go(func() {
					var l *dlock.Lease
					if l, err = c.With(dlock.WithObserver(&dlock.Observer{
						AcquireStart: func(ctx context.Context, _ dlock.AcquireStartInfo) context.Context { block("AcquireStart"); return ctx },
						WaitStart:    func(context.Context, dlock.WaitStartInfo) { block("WaitStart") },
						AcquireDone:  func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context { block("AcquireDone"); return ctx },
						ReleaseDone:  func(context.Context, dlock.ReleaseDoneInfo) { block("ReleaseDone") },
					})).Acquire(t.Context(), "k"); err == nil {
						err = l.Release()
					}
				})
				time.Sleep(5 * time.Minute)
				require.NoError(t, acquire(t, c, "other").Release())
				limit, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				held := c.Stats().Leases
				err2 := c.Shutdown(limit)
				if held == 0 {
					require.NoError(t, err2)
					require.LessOrEqual(t, time.Since(start), 5*time.Second)
				}
				s.forget()
				close(over)
				wg.Wait()
				require.Empty(t, s.made("try", "acquire"), "after Shutdown")
				if hook != "ReleaseDone" {
					require.ErrorIs(t, err, dlock.ErrClosed)
				}
				synctest.Wait()
				requireFree(t, store, "k")
			})
		})
	}
}

// Panics in an Observer harm nobody, and the first is logged.
func TestObserverThatPanics(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		panicky := &dlock.Observer{
			AcquireStart: func(context.Context, dlock.AcquireStartInfo) context.Context { panic("AcquireStart") },
			WaitStart:    func(context.Context, dlock.WaitStartInfo) { panic("WaitStart") },
			AcquireDone:  func(context.Context, dlock.AcquireDoneInfo) context.Context { panic("AcquireDone") },
			RenewDone:    func(context.Context, dlock.RenewDoneInfo) { panic("RenewDone") },
			LeaseDone:    func(context.Context, dlock.LeaseDoneInfo) { panic("LeaseDone") },
			ReleaseDone:  func(context.Context, dlock.ReleaseDoneInfo) { panic("ReleaseDone") },
			OwedDone:     func(context.Context, dlock.OwedDoneInfo) { panic("OwedDone") },
			BreakDone:    func(context.Context, dlock.BreakDoneInfo) { panic("BreakDone") },
		}
		seen := new(ledger)
		c := dlock.New(s, dlock.WithObserver(panicky), dlock.WithObserver(seen.observer()))
		hold(t, store, time.Second)
		l := acquire(t, c, "k")
		time.Sleep(time.Minute)
		require.NoError(t, l.Release())
		lost := acquire(t, c, "lost")
		store.Steal("lost", time.Minute)
		time.Sleep(time.Minute)
		require.ErrorIs(t, lost.Err(), dlock.ErrLost)
		require.Error(t, c.Break(t.Context(), dlock.Status{}))
		for _, name := range []string{"AcquireStartInfo", "WaitStartInfo", "AcquireDoneInfo", "RenewDoneInfo", "LeaseDoneInfo", "ReleaseDoneInfo", "BreakDoneInfo"} {
			require.Contains(t, seen.names(), name)
		}
		require.NoError(t, c.Close())
	})
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("an Observer panicked")), "%s", &log)
	require.Contains(t, log.String(), "AcquireStart")
}

// Observers may call the Client.
func TestObserverThatCallsTheClient(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var c *dlock.Client
		var inside atomic.Bool
		away := awayWhen(s)
		calls := make(map[string]int)
		var mu sync.Mutex
		count := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			calls[name]++
		}
		back := func(name string) {
			if inside.Swap(true) {
				return
			}
			defer inside.Store(false)
			count(name)
			c.Stats()
			_, err := c.Inspect(t.Context(), "k")
			require.NoError(t, err, name)
			l, err := c.TryAcquire(t.Context(), "of "+name)
			require.NoError(t, err, name)
			require.NoError(t, l.Renew(t.Context()), name)
			require.NoError(t, l.Err(), name)
			require.NoError(t, l.Release(), name)
		}
		c = dlock.New(s, dlock.WithObserver(&dlock.Observer{
			AcquireStart: func(ctx context.Context, _ dlock.AcquireStartInfo) context.Context { back("AcquireStart"); return ctx },
			WaitStart:    func(context.Context, dlock.WaitStartInfo) { back("WaitStart") },
			AcquireDone:  func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context { back("AcquireDone"); return ctx },
			RenewDone:    func(context.Context, dlock.RenewDoneInfo) { back("RenewDone") },
			LeaseDone:    func(context.Context, dlock.LeaseDoneInfo) { back("LeaseDone") },
			ReleaseDone:  func(context.Context, dlock.ReleaseDoneInfo) { back("ReleaseDone") },
			OwedDone:     func(context.Context, dlock.OwedDoneInfo) { back("OwedDone") },
			BreakDone:    func(context.Context, dlock.BreakDoneInfo) { back("BreakDone") },
		}))
		hold(t, store, time.Second)
		l := acquire(t, c, "k")
		time.Sleep(time.Minute)
		require.NoError(t, l.Renew(t.Context()))
		require.NoError(t, l.Release())
		for _, end := range []func(l *dlock.Lease){
			func(*dlock.Lease) { store.Steal("k", time.Second) },
			func(l *dlock.Lease) { detach(t, l) },
			func(l *dlock.Lease) {
				inside.Store(true)
				away.Store(true)
				require.Error(t, l.Release())
				away.Store(false)
				inside.Store(false)
			},
		} {
			l := acquire(t, c, "k")
			end(l)
			time.Sleep(time.Minute)
		}
		require.Error(t, c.Break(t.Context(), dlock.Status{}))
		for _, name := range []string{"AcquireStart", "WaitStart", "AcquireDone", "RenewDone", "LeaseDone", "ReleaseDone", "OwedDone", "BreakDone"} {
			require.NotZero(t, calls[name], name)
		}
	})
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var c *dlock.Client
		c = dlock.New(s, dlock.WithObserver(&dlock.Observer{ReleaseDone: func(context.Context, dlock.ReleaseDoneInfo) {
			require.NoError(t, c.Shutdown(context.Background()))
		}}))
		require.NoError(t, acquire(t, c, "k").Release())
	})
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		var c *dlock.Client
		c = dlock.New(s, dlock.WithTTL(time.Second), dlock.WithObserver(&dlock.Observer{RenewDone: func(context.Context, dlock.RenewDoneInfo) {
			require.NoError(t, c.Close(), "which waits for this call, but not for ever")
		}}))
		acquire(t, c, "k")
		time.Sleep(time.Minute)
		require.ErrorIs(t, func() error { _, err := c.Acquire(t.Context(), "k"); return err }(), dlock.ErrClosed)
	})
}

// Without an Observer, with an empty one, and with all functions set, an acquisition and its
// release allocate the same, which is little.
func TestObserverAllocatesNothing(t *testing.T) {
	count := func(opts ...dlock.Option) float64 {
		c := dlock.New(memory.New(), opts...)
		return testing.AllocsPerRun(1000, func() {
			l, err := c.Acquire(t.Context(), "k")
			if err != nil || l.Release() != nil {
				t.Fatal(err)
			}
		})
	}
	var events int
	all := &dlock.Observer{
		AcquireStart: func(ctx context.Context, i dlock.AcquireStartInfo) context.Context { events++; return ctx },
		WaitStart:    func(context.Context, dlock.WaitStartInfo) { events++ },
		AcquireDone:  func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context { events++; return ctx },
		RenewDone:    func(context.Context, dlock.RenewDoneInfo) { events++ },
		LeaseDone:    func(context.Context, dlock.LeaseDoneInfo) { events++ },
		ReleaseDone:  func(context.Context, dlock.ReleaseDoneInfo) { events++ },
	}
	want := count()
	if !israce.Enabled {
		require.LessOrEqual(t, want, 5.0)
	}
	require.Equal(t, want, count(dlock.WithObserver(&dlock.Observer{})), "with an empty Observer")
	require.Equal(t, want, count(dlock.WithObserver(all)), "with all functions set")
	require.NotZero(t, events)
	quiet := slog.New(slog.NewTextHandler(new(bytes.Buffer), &slog.HandlerOptions{Level: slog.LevelInfo}))
	require.Equal(t, want, count(dlock.WithObserver(dlock.NewLogObserver(quiet))), "with a log that takes no debug messages")
	t.Logf("%v allocations", want)
}

// The lock is not passed on to a waiter of a line whose Observer does not return.
func TestWaitStartThatBlocksInALine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, blocked := memory.New(), make(chan struct{})
		other := dlock.New(store)
		client := dlock.New(store, dlock.WithLocalTurns(8), dlock.WithObserver(&dlock.Observer{
			WaitStart: func(context.Context, dlock.WaitStartInfo) { <-blocked },
		}))
		held, err := other.Acquire(t.Context(), "k")
		require.NoError(t, err)
		served := make(chan error)
		go func() {
			lease, err := client.Acquire(t.Context(), "k")
			if err == nil {
				err = lease.Release()
			}
			served <- err
		}()
		synctest.Wait()
		require.NoError(t, held.Release())
		time.Sleep(time.Minute)
		held, err = other.TryAcquire(t.Context(), "k")
		require.NoError(t, err, "the line was granted the lock for one who does not come")
		require.NoError(t, held.Release())
		close(blocked)
		require.NoError(t, <-served)
		require.NoError(t, client.Close())
		require.NoError(t, other.Close())
	})
}
