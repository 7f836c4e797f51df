package dlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/israce"
)

// A ledger is an Observer that notes all events.
type ledger struct {
	mu     sync.Mutex
	events []any
}

func (l *ledger) locked(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *ledger) note(event any) { l.locked(func() { l.events = append(l.events, event) }) }

func (l *ledger) forget() { l.locked(func() { l.events = nil }) }

func (l *ledger) observer() *dlock.Observer { return everyEvent(l.note) }

// everyEvent returns an Observer that does the same at each event, except those of a wait for the store.
func everyEvent(f func(event any)) *dlock.Observer {
	return &dlock.Observer{
		AcquireStart: func(ctx context.Context, i dlock.AcquireStartInfo) context.Context { f(i); return ctx },
		WaitStart:    func(_ context.Context, i dlock.WaitStartInfo) { f(i) },
		AcquireDone:  func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context { f(i); return ctx },
		RenewDone:    func(_ context.Context, i dlock.RenewDoneInfo) { f(i) },
		LeaseDone:    func(_ context.Context, i dlock.LeaseDoneInfo) { f(i) },
		ReleaseDone:  func(_ context.Context, i dlock.ReleaseDoneInfo) { f(i) },
		OwedDone:     func(_ context.Context, i dlock.OwedDoneInfo) { f(i) },
		BreakDone:    func(_ context.Context, i dlock.BreakDoneInfo) { f(i) },
	}
}

// hookOf is the function of an Observer that an event is given to.
func hookOf(event any) string {
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", event), "dlock."), "Info")
}

var allEvents = []string{"AcquireStartInfo", "WaitStartInfo", "AcquireDoneInfo", "RenewDoneInfo", "LeaseDoneInfo", "ReleaseDoneInfo", "BreakDoneInfo"}

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

func watched(l dlock.Locker, opts ...dlock.Option) (*dlock.Client, *ledger) {
	seen := new(ledger)
	return dlock.New(l, append(opts, dlock.WithObserver(seen.observer()))...), seen
}

func TestObserver(t *testing.T) {
	inCases{
		"observer": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		// The first TTL after a wait is short. So the margin of the renewal that follows is a large part
		// of the TTL that it reports, as always.
		"observer of the first renewal after a wait": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		"an error that has the error of another lease or call in it does not show that one's key, either": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s)
			hold(t, store, time.Hour)
			l := acquire(t, c, "secret")
			time.AfterFunc(time.Second, func() { store.Steal("secret", time.Hour) })
			require.ErrorContains(t, errOf(c.Acquire(l.Context(t.Context()), "k")), "secret")
			loss := of[dlock.AcquireDoneInfo](seen)[1].Err
			requireErr(t, loss, context.Canceled, dlock.ErrHeld, not{dlock.ErrLost})
			requireErr(t, loss, "lease lost: the store does not know it any more: held by another", without("secret"))
			seen.forget()
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(fmt.Errorf("the other call: %w", errOf(c.TryAcquire(t.Context(), "secret"))))
			require.ErrorContains(t, errOf(c.Acquire(ctx, "k")), "secret")
			held := of[dlock.AcquireDoneInfo](seen)[1].Err
			requireErr(t, held, context.Canceled, exactly("context canceled: held by another"))
		},
		"each call that acquires has one start and one end, also if nothing was sent": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
			fails(dlock.ErrInvalid, func() error { return errOf(c.Acquire(t.Context(), "")) })
			fails(context.Canceled, func() error { return errOf(c.TryAcquire(ended(t), "k")) })
			fails(dlock.ErrInvalid, func() error { return errOf(c.Adopt(t.Context(), dlock.Detached{})) })
			fails(dlock.ErrInvalid, func() error { return errOf(c.With(dlock.WithTTL(0)).Acquire(t.Context(), "k")) })
			l := acquire(t, c, "k")
			fails(dlock.ErrNested, func() error { return errOf(c.Acquire(l.Context(t.Context()), "k")) })
			require.NoError(t, l.Release())
			require.NoError(t, c.Close())
			fails(dlock.ErrClosed, func() error { return errOf(c.Acquire(t.Context(), "k")) })
		},
		"observer of a loss": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		"observer of batches": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s)
			leases, _ := acquireAll(t, c, "k", 20)
			time.Sleep(12 * time.Second)
			renewals := of[dlock.RenewDoneInfo](seen)
			require.Len(t, renewals, 20)
			for _, r := range renewals {
				require.Equal(t, 20, r.Batch)
			}
			seen.forget()
			s.set(refuse)
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
		},
		"observer of renew by the holder": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s, dlock.WithRenewal(false))
			l := acquire(t, c, "k")
			time.Sleep(time.Second)
			require.NoError(t, l.Renew(t.Context()))
			require.Len(t, of[dlock.RenewDoneInfo](seen), 1, "before Renew returns")
			s.set(refuse)
			require.ErrorIs(t, l.Renew(t.Context()), errStore)
			require.ErrorIs(t, of[dlock.RenewDoneInfo](seen)[1].Err, errStore)
			s.on("renew", func(c *call) { c.hang() })
			require.ErrorIs(t, l.Renew(within(t, time.Second)), context.DeadlineExceeded)
			require.ErrorIs(t, of[dlock.RenewDoneInfo](seen)[2].Err, context.DeadlineExceeded, "as Renew says")
		},
		"observer of owed releases": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s)
			l := acquire(t, c, "k")
			s.set(refuse)
			require.ErrorIs(t, l.Release(), errStore)
			require.True(t, only[dlock.ReleaseDoneInfo](t, seen).Owed)
			require.Equal(t, dlock.EndReleased, only[dlock.LeaseDoneInfo](t, seen).End)
			require.Empty(t, of[dlock.OwedDoneInfo](seen))
			time.Sleep(5 * time.Second)
			s.set(up)
			time.Sleep(5 * time.Second)
			owed := only[dlock.OwedDoneInfo](t, seen)
			require.NoError(t, owed.Err)
			require.InDelta(t, 5*time.Second, owed.Took, float64(2*time.Second))
			requireFree(t, store, "k")
			// The caller repeats the release first.
			l = acquire(t, c, "k")
			s.set(refuse)
			require.ErrorIs(t, l.Release(), errStore)
			s.set(up)
			seen.forget()
			require.NoError(t, l.Release())
			require.False(t, only[dlock.ReleaseDoneInfo](t, seen).Owed)
			time.Sleep(time.Second)
			require.NoError(t, only[dlock.OwedDoneInfo](t, seen).Err)
			// An attempt with an unknown outcome, given up after a TTL.
			seen.forget()
			s.set(refuse)
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
			time.Sleep(time.Minute)
			require.ErrorIs(t, only[dlock.OwedDoneInfo](t, seen).Err, errStore)
			// Given up by Close.
			seen.forget()
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
			require.Error(t, c.Close())
			synctest.Wait()
			require.ErrorIs(t, only[dlock.OwedDoneInfo](t, seen).Err, dlock.ErrClosed)
		},
		"of two calls of Release at a time, only one has anything to do": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			s.onCall(func(c *call) { c.delay = time.Second })
			c, seen := watched(s)
			l := acquire(t, c, "k")
			together(2, func(int) { require.NoError(t, l.Release()) })
			only[dlock.ReleaseDoneInfo](t, seen)
			only[dlock.LeaseDoneInfo](t, seen)
		},
		"observer of a MinHold": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s, dlock.WithMinHold(time.Minute))
			require.NoError(t, acquire(t, c, "k").Release())
			r := only[dlock.ReleaseDoneInfo](t, seen)
			require.True(t, r.Owed)
			require.NoError(t, r.Err)
			time.Sleep(2 * time.Minute)
			require.Equal(t, time.Minute, only[dlock.OwedDoneInfo](t, seen).Took)
		},
		"observer of detach and adopt": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s)
			l := acquire(t, c, "k")
			time.Sleep(2 * time.Second)
			d := detach(t, l)
			require.ErrorIs(t, errOf(l.Detach()), dlock.ErrReleased)
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
			require.ErrorIs(t, errOf(c.Adopt(t.Context(), d)), dlock.ErrLost)
			require.ErrorIs(t, only[dlock.AcquireDoneInfo](t, seen).Err, dlock.ErrLost)
			require.Empty(t, of[dlock.LeaseDoneInfo](seen))
		},
		// The giver's Observer takes two TTLs. The taker gets the lease all the same.
		"observer that is slow when a lease is detached": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithObserver(&dlock.Observer{LeaseDone: func(context.Context, dlock.LeaseDoneInfo) { time.Sleep(2 * dlock.DefaultTTL) }}))
			require.NoError(t, adopt(t, c, detach(t, acquire(t, c, "k"))).Release())
		},
		"observer of a degraded lease": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			s.on("try", func(c *call) { c.answers(dlock.Attempt{Acquired: true, Degraded: true}, nil) })
			c, seen := watched(s)
			l := acquire(t, c, "k")
			require.True(t, only[dlock.AcquireDoneInfo](t, seen).Degraded)
			time.Sleep(time.Minute)
			require.ErrorIs(t, l.Release(), dlock.ErrLost, "the store does not know it")
			require.Equal(t, dlock.EndRemoved, only[dlock.LeaseDoneInfo](t, seen).End)
		},
		"observer of break": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s, dlock.WithOwner("me"))
			acquire(t, c, "k")
			status := inspect(t, c)
			require.NoError(t, c.Break(t.Context(), status))
			require.Equal(t, dlock.BreakDoneInfo{Key: "k", Owner: "me"}, only[dlock.BreakDoneInfo](t, seen))
			require.ErrorIs(t, c.Break(t.Context(), status), dlock.ErrReleased)
			require.ErrorIs(t, c.Break(t.Context(), dlock.Status{}), dlock.ErrInvalid)
			require.ErrorIs(t, of[dlock.BreakDoneInfo](seen)[1].Err, dlock.ErrReleased)
			require.ErrorIs(t, of[dlock.BreakDoneInfo](seen)[2].Err, dlock.ErrInvalid)
		},
		"observer of shutdown": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		"a panic of the Locker ends an acquisition and a lease like any other error": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		"each holder in a line has an acquisition and a lease of its own, reported to its own Observer": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
	}.run(t)
}

func TestObserverOfAWait(t *testing.T) {
	waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
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
		require.ErrorIs(t, errOf(c.With(dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")), dlock.ErrHeld)
		wait := only[dlock.WaitStartInfo](t, seen)
		require.Equal(t, wait.Remaining > 0, wait.Owner == "worker 7", "what is known of the holder: %+v", wait)
		require.NoError(t, held.Release())
		seen.forget()
		hold(t, store, time.Hour)
		require.ErrorIs(t, errOf(c.Acquire(within(t, time.Second), "k")), context.DeadlineExceeded)
		done = only[dlock.AcquireDoneInfo](t, seen)
		requireErr(t, done.Err, context.DeadlineExceeded, dlock.ErrHeld)
		require.True(t, done.Contended)
		require.NotContains(t, done.Err.Error(), `"k"`)
		seen.forget()
		require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), dlock.ErrHeld)
		done = only[dlock.AcquireDoneInfo](t, seen)
		require.ErrorIs(t, done.Err, dlock.ErrHeld)
		require.Equal(t, dlock.OpTry, done.Op)
		require.True(t, done.Contended)
		require.Zero(t, done.Waited)
		require.Empty(t, of[dlock.WaitStartInfo](seen))
	})
}

// A renewal that finds a loss is reported before it.
func TestObserverOfALossThatARenewalFinds(t *testing.T) {
	renewing.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		c, seen := watched(l)
		acquire(t, c, "k")
		store.Steal("k", time.Minute)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"AcquireStartInfo", "AcquireDoneInfo", "RenewDoneInfo", "LeaseDoneInfo"}, seen.names())
		require.ErrorIs(t, only[dlock.RenewDoneInfo](t, seen).Err, dlock.ErrLost)
		require.Equal(t, dlock.EndRemoved, only[dlock.LeaseDoneInfo](t, seen).End)
	})
}

func TestObserversOfAClient(t *testing.T) {
	inCases{
		"several observers": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
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
			requireErr(t, errOf(base.With(dlock.WithObserver(nil)).Acquire(t.Context(), "k")), dlock.ErrInvalid, "WithObserver: nil")
		},
		"a ctx that an Observer returns lends its values to later calls and events, never its cancellation": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
			requireErr(t, errOf(c.Acquire(ctx, "k")), context.Canceled, cause)
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			require.ErrorIs(t, errOf(c.Acquire(ctx, "k")), context.DeadlineExceeded)
		},
		// AcquireDone returns while a renewal is in flight. The next one has its values.
		"observer lends values during a renewal": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			s.on("renew", func(c *call) { c.take(2 * time.Second) })
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
		},
		// A ctx that an Observer returns may carry leases of others. Only the caller's own count.
		"observer lends no leases": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			service := acquire(t, dlock.New(s), "service").Context(context.Background())
			c := dlock.New(s, dlock.WithMaxWait(time.Second), dlock.WithObserver(&dlock.Observer{
				AcquireStart: func(context.Context, dlock.AcquireStartInfo) context.Context {
					return context.WithValue(service, valueKey("v"), 1)
				},
			}))
			l := acquire(t, c, "k")
			require.ErrorIs(t, errOf(c.Acquire(l.Context(t.Context()), "k")), dlock.ErrNested)
			require.Equal(t, 1, s.made("try")[1].ctx.Value(valueKey("v")))
			leader := acquire(t, c, "leader").Context(context.Background())
			c = c.With(dlock.WithObserver(&dlock.Observer{
				AcquireStart: func(context.Context, dlock.AcquireStartInfo) context.Context { return leader },
			}))
			require.ErrorIs(t, errOf(c.Acquire(t.Context(), "leader")), dlock.ErrHeld, "the caller does not hold it")
		},
		"observer with a context that cannot be compared": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c, _ := watched(s)
			l, err := c.Acquire(listContext{Context: t.Context()}, "k")
			require.NoError(t, err)
			require.NoError(t, l.Release())
		},
		"renewals do not crowd out losses": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			over := make(chan struct{})
			var lost atomic.Int64
			c := dlock.New(s, dlock.WithTTL(time.Second), dlock.WithObserver(&dlock.Observer{
				RenewDone: func(context.Context, dlock.RenewDoneInfo) { <-over },
				LeaseDone: func(context.Context, dlock.LeaseDoneInfo) { lost.Add(1) },
			}))
			acquireAll(t, c, "k", 100)
			time.Sleep(time.Minute)
			require.NotZero(t, c.Stats().EventsDropped)
			s.set(refuse)
			time.Sleep(time.Minute)
			require.Zero(t, lost.Load())
			close(over)
			synctest.Wait()
			require.Equal(t, int64(100), lost.Load())
		},
		"the lock is not passed on to a waiter of a line whose Observer does not return": func(t *testing.T, store *memory.Locker, _ *spy, _ *dlock.Client) {
			other, blocked, served := dlock.New(store), make(chan struct{}), make(chan error)
			client := dlock.New(store, dlock.WithLocalTurns(8), dlock.WithObserver(&dlock.Observer{
				WaitStart: func(context.Context, dlock.WaitStartInfo) { <-blocked },
			}))
			held := acquire(t, other, "k")
			go func() { served <- client.Do(t.Context(), "k", noWork) }()
			synctest.Wait()
			require.NoError(t, held.Release())
			time.Sleep(time.Minute)
			held, err := other.TryAcquire(t.Context(), "k")
			require.NoError(t, err, "the line was granted the lock for one who does not come")
			require.NoError(t, held.Release())
			close(blocked)
			require.NoError(t, <-served)
			require.NoError(t, client.Close())
			require.NoError(t, other.Close())
		},
	}.run(t)
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

// An Observer that returns another ctx, or none, changes nothing: the caller's values and the
// leases in them are still found.
func TestObserverThatReturnsAnotherContext(t *testing.T) {
	for name, other := range map[string]context.Context{"background": context.Background(), "nil": nil} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s, dlock.WithObserver(&dlock.Observer{
				AcquireStart: func(context.Context, dlock.AcquireStartInfo) context.Context { return other },
				AcquireDone:  func(context.Context, dlock.AcquireDoneInfo) context.Context { return other },
			}))
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), valueKey("v"), 1), time.Second)
			defer cancel()
			l, err := c.Acquire(ctx, "k")
			require.NoError(t, err)
			require.ErrorIs(t, errOf(c.Acquire(l.Context(ctx), "k")), dlock.ErrNested)
			require.ErrorIs(t, errOf(dlock.New(s).Acquire(ctx, "k")), context.DeadlineExceeded)
			require.NoError(t, l.Release())
			for _, call := range s.made("try", "release")[:1] {
				require.Equal(t, 1, call.ctx.Value(valueKey("v")))
			}
		})
	}
}

// An uncomparable context is no reason to panic.
type listContext struct {
	context.Context
	_ []int
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
		require.ErrorIs(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrClosed)
		requireFree(t, store, "k")
		synctest.Wait()
		require.Equal(t, dlock.EndShutdown, only[dlock.LeaseDoneInfo](t, seen).End)
		only[dlock.AcquireDoneInfo](t, seen)
	})
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		taker, other := dlock.New(s, delay(time.Minute)), dlock.New(s)
		d := detach(t, acquire(t, other, "k"))
		time.AfterFunc(50*time.Second, func() { _ = taker.Shutdown(ended(t)) })
		require.ErrorIs(t, errOf(taker.Adopt(t.Context(), d)), dlock.ErrClosed)
		require.NoError(t, adopt(t, other, d).Release())
	})
}

// An Observer of the background that blocks for ever loses no lease, and does not keep Close or
// Shutdown from ending. What it does not take is counted.
func TestObserverThatBlocks(t *testing.T) {
	for name, end := range map[string]func(*dlock.Client) error{
		"Close":    (*dlock.Client).Close,
		"Shutdown": func(c *dlock.Client) error { return c.Shutdown(context.Background()) },
	} {
		run(t, name, func(t *testing.T, _ *memory.Locker, s *spy) {
			over := make(chan struct{})
			defer close(over)
			var called, done atomic.Int64
			c := dlock.New(s, dlock.WithTTL(3*time.Second), dlock.WithObserver(&dlock.Observer{
				RenewDone:   func(context.Context, dlock.RenewDoneInfo) { called.Add(1); <-over },
				ReleaseDone: func(context.Context, dlock.ReleaseDoneInfo) { done.Add(1) },
			}))
			leases, _ := acquireAll(t, c, "k", 100)
			settle(time.Minute)
			requireNoneLost(t, leases)
			require.Equal(t, int64(1), called.Load())
			renewals := 0
			for _, c := range s.made("renew", "batch") {
				renewals += max(1, c.size)
			}
			require.Greater(t, renewals, 4096)
			require.EqualValues(t, renewals-2048-1, c.Stats().EventsDropped)
			releaseAll(t, leases)
			require.Equal(t, int64(100), done.Load())
			start := time.Now()
			require.NoError(t, end(c))
			require.LessOrEqual(t, time.Since(start), 5*time.Second)
		})
	}
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
		var reported atomic.Int64
		c := dlock.New(s, dlock.WithObserver(&dlock.Observer{OwedDone: func(context.Context, dlock.OwedDoneInfo) {
			time.Sleep(time.Second)
			reported.Add(1)
		}}))
		s.set(refuse)
		require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
		s.set(up)
		time.Sleep(time.Second)
		require.Equal(t, 1, c.Stats().ReleasesOwed, "it was answered, and the attempt may still arrive")
		require.NoError(t, c.Close())
		require.Equal(t, int64(1), reported.Load())
	})
}

// An Observer that blocks for ever in a goroutine of a caller blocks nobody else.
func TestObserverThatBlocksACaller(t *testing.T) {
	for _, hook := range []string{"AcquireStart", "WaitStart", "AcquireDone", "ReleaseDone"} {
		run(t, hook, func(t *testing.T, store *memory.Locker, s *spy) {
			over := make(chan struct{})
			block := everyEvent(func(event any) {
				if hookOf(event) == hook {
					<-over
				}
			})
			c := dlock.New(s, dlock.WithTTL(time.Second))
			hold(t, store, time.Minute)
			result := make(chan error, 1)
			go func() {
				l, err := c.With(dlock.WithObserver(block)).Acquire(t.Context(), "k")
				if err == nil {
					err = l.Release()
				}
				result <- err
			}()
			time.Sleep(5 * time.Minute)
			require.NoError(t, acquire(t, c, "other").Release())
			start, held := time.Now(), c.Stats().Leases
			if err := c.Shutdown(within(t, time.Minute)); held == 0 {
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(start), 5*time.Second)
			}
			s.forget()
			close(over)
			err := <-result
			require.Empty(t, s.made("try", "acquire"), "after Shutdown")
			if hook != "ReleaseDone" {
				require.ErrorIs(t, err, dlock.ErrClosed)
			}
			synctest.Wait()
			requireFree(t, store, "k")
		})
	}
}

// Panics in an Observer harm nobody, and the first is logged.
func TestObserverThatPanics(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		panicky := everyEvent(func(event any) { panic(hookOf(event)) })
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
		require.Subset(t, seen.names(), allEvents)
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
		seen := new(ledger)
		back := func(event any) {
			name := hookOf(event)
			if inside.Swap(true) {
				return
			}
			defer inside.Store(false)
			seen.note(event)
			c.Stats()
			require.NoError(t, errOf(c.Inspect(t.Context(), "k")), name)
			l, err := c.TryAcquire(t.Context(), "of "+name)
			require.NoError(t, err, name)
			require.NoError(t, errors.Join(l.Renew(t.Context()), l.Err(), l.Release()), name)
		}
		c = dlock.New(s, dlock.WithObserver(everyEvent(back)))
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
				s.set(refuse)
				require.Error(t, l.Release())
				s.set(up)
				inside.Store(false)
			},
		} {
			l := acquire(t, c, "k")
			end(l)
			time.Sleep(time.Minute)
		}
		require.Error(t, c.Break(t.Context(), dlock.Status{}))
		require.Subset(t, seen.names(), slices.Concat(allEvents, []string{"OwedDoneInfo"}))
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
		require.ErrorIs(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrClosed)
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

// A census notes what its workers do, to be compared with a ledger.
type census struct {
	mu           sync.Mutex
	acquisitions int
	ends         map[int64]dlock.LeaseEnd // by fence
}

func (c *census) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *census) acquired(l *dlock.Lease, err error) *dlock.Lease {
	c.note(func() { c.acquisitions++ })
	return l
}

func (c *census) ended(l *dlock.Lease, how dlock.LeaseEnd) {
	c.note(func() { c.ends[l.Fence()] = how })
}

// end ends a lease, and notes how.
func (c *census) end(l *dlock.Lease) {
	before := l.Err()
	switch err := l.Release(); {
	case before == dlock.ErrClosed:
		c.ended(l, dlock.EndShutdown)
	case errors.Is(err, dlock.ErrLost):
		c.ended(l, dlock.EndExpired)
	default:
		c.ended(l, dlock.EndReleased)
	}
}

// Whatever happens, each acquisition has one AcquireDone, and each lease one LeaseDone: over a
// line that fails in all ways, with losses, cancelled waits, turns in a line, leases that are
// detached and adopted, operators, and a Shutdown in the middle of it all.
func TestEveryAcquisitionAndLeaseEndsOnce(t *testing.T) {
	for seed := range uint64(100 / israce.Slower) {
		for _, turns := range []int{1, 8} {
			run(t, fmt.Sprintf("seed=%d,turns=%d", seed, turns), func(t *testing.T, store *memory.Locker, line *spy) {
				endsOnce(t, store, line, seed, turns)
			})
		}
	}
}

func endsOnce(t *testing.T, store *memory.Locker, line *spy, seed uint64, turns int) {
	line.setRTT(2 * time.Millisecond)
	rng := rand.New(rand.NewPCG(seed, uint64(turns)))
	seen, did := new(ledger), &census{ends: make(map[int64]dlock.LeaseEnd)}
	c := dlock.New(line, dlock.WithTTL(time.Second), dlock.WithLocalTurns(turns), dlock.WithObserver(seen.observer()))
	until := time.Now().Add(20 * time.Second)
	var wg sync.WaitGroup
	for range 6 {
		mine := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() { work(t, c, did, mine, until) })
	}
	wg.Go(func() {
		for time.Now().Before(until) {
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
			switch rng.IntN(6) {
			case 0:
				store.Steal("k", 100*time.Millisecond)
			case 1, 2:
				line.fail([]fault{refuse, hang, lose}[rng.IntN(3)], time.Duration(rng.IntN(1500))*time.Millisecond)
			case 3:
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if status, err := c.Inspect(ctx, "k"); err == nil && status.Held {
					_ = c.Break(ctx, status)
				}
				cancel()
			}
		}
	})
	if seed%2 == 0 {
		time.Sleep(15 * time.Second)
		_ = c.Shutdown(within(t, 200*time.Millisecond))
	}
	wg.Wait()
	_ = c.Close()
	synctest.Wait()
	compare(t, seen, did)
	require.Zero(t, c.Stats().EventsDropped)
	require.Zero(t, c.Stats().Leases)
}

// work acquires the key k in all ways, and ends the leases in all ways.
func work(t *testing.T, c *dlock.Client, did *census, rng *rand.Rand, until time.Time) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	for time.Now().Before(until) {
		ctx, cancel := context.WithTimeout(t.Context(), upTo(3*time.Second))
		client := c
		if rng.IntN(3) == 0 {
			client = c.With(dlock.WithRenewal(false))
		}
		try := client.Acquire
		if rng.IntN(4) == 0 {
			try = client.TryAcquire
		}
		l := did.acquired(try(ctx, "k"))
		cancel()
		if l == nil {
			time.Sleep(upTo(200 * time.Millisecond))
			continue
		}
		time.Sleep(upTo([]time.Duration{10 * time.Millisecond, 3 * time.Second}[rng.IntN(2)]))
		if rng.IntN(4) == 0 {
			_ = l.Renew(t.Context())
		}
		if rng.IntN(4) == 0 {
			if d, err := l.Detach(); err == nil {
				did.ended(l, dlock.EndDetached)
				time.Sleep(upTo(1500 * time.Millisecond))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				l = did.acquired(client.Adopt(ctx, d))
				cancel()
				if l == nil {
					continue
				}
			}
		}
		did.end(l)
	}
}

func compare(t *testing.T, seen *ledger, did *census) {
	ends, releases := make(map[int64]dlock.LeaseEnd), 0
	require.NotEmpty(t, did.ends)
	require.Len(t, of[dlock.AcquireStartInfo](seen), did.acquisitions)
	require.Len(t, of[dlock.AcquireDoneInfo](seen), did.acquisitions)
	for _, i := range of[dlock.AcquireDoneInfo](seen) {
		if i.Err == nil {
			require.NotContains(t, ends, i.Fence, "AcquireDone twice")
			ends[i.Fence] = ""
		}
	}
	for _, i := range of[dlock.LeaseDoneInfo](seen) {
		require.Contains(t, ends, i.Fence)
		require.Empty(t, ends[i.Fence], "LeaseDone of fence %d twice", i.Fence)
		if ends[i.Fence] = i.End; i.End == dlock.EndRemoved {
			ends[i.Fence] = dlock.EndExpired // both are losses
		}
		if i.End != dlock.EndDetached {
			releases++
		}
	}
	require.Equal(t, did.ends, ends)
	require.Len(t, of[dlock.ReleaseDoneInfo](seen), releases)
	for _, event := range seen.events {
		require.NotContains(t, fmt.Sprintf("%+v", event), "dlock1.", "a token")
	}
}

// A lineOfLog is a line of a log.
type lineOfLog struct {
	Level, Msg, Key, Error string
	Left, TTL, After, For  time.Duration
	Count, Waiting         int
}

// A logbook is what a log observer writes.
type logbook struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

func (b *logbook) observer(options *slog.HandlerOptions) dlock.Option {
	return dlock.WithObserver(dlock.NewLogObserver(slog.New(slog.NewJSONHandler(b, options))))
}

// logging returns a Client that logs.
func logging(l dlock.Locker, opts ...dlock.Option) (*dlock.Client, *logbook) {
	out := new(logbook)
	return dlock.New(l, append(opts, out.observer(nil))...), out
}

// text returns all that was written since the last call.
func (b *logbook) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.out.String()
	b.out.Reset()
	return text
}

// lines returns the lines since the last call, by level, and without the prefix of their messages.
func (b *logbook) lines(t *testing.T) map[string][]lineOfLog {
	t.Helper()
	return parsed(t, b.text())
}

func parsed(t *testing.T, text string) map[string][]lineOfLog {
	t.Helper()
	byLevel := make(map[string][]lineOfLog)
	for line := range strings.Lines(text) {
		var entry lineOfLog
		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		entry.Msg = strings.TrimPrefix(entry.Msg, "dlock: ")
		byLevel[entry.Level] = append(byLevel[entry.Level], entry)
	}
	return byLevel
}

func messages(lines []lineOfLog) (all []string) {
	for _, l := range lines {
		all = append(all, l.Msg)
	}
	return all
}

func byLevel(lines map[string][]lineOfLog) map[string][]string {
	all := make(map[string][]string)
	for level, lines := range lines {
		all[level] = messages(lines)
	}
	return all
}

// logged makes every event happen to a Client that logs, and returns the messages by level, and all that was written.
func logged(t *testing.T, options *slog.HandlerOptions) (found map[string][]string, all string) {
	t.Helper()
	var out logbook
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithOwner("me"), out.observer(options))
		everything(t, c, store, s)
		require.NoError(t, c.Close())
		all = out.text()
		for _, call := range s.made() {
			require.NotContains(t, all, call.token, "a token")
			require.NotContains(t, all, call.token[len("dlock1."):][:26], "the secret of a token")
		}
	})
	return byLevel(parsed(t, all)), all
}

func everything(t *testing.T, c *dlock.Client, store *memory.Locker, s *spy) {
	const key = "secret-key"
	holdKey(t, store, key, time.Second)
	require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), key)), dlock.ErrHeld)
	l := acquire(t, c, key)
	time.Sleep(11 * time.Second)
	status, err := c.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, l.Release())
	require.Error(t, c.Break(t.Context(), status))
	l = acquire(t, c.With(dlock.WithMinHold(time.Second)), key)
	require.NoError(t, l.Release())
	time.Sleep(2 * time.Second)
	l = acquire(t, c, key)
	status, err = c.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, c.Break(t.Context(), status))
	require.ErrorIs(t, l.Release(), dlock.ErrLost)
	l = acquire(t, c, key)
	s.set(refuse)
	require.Error(t, l.Release())
	time.Sleep(time.Second)
	s.set(up)
	time.Sleep(time.Second)
	l = acquire(t, c, key)
	s.fail(refuse, 12*time.Second)
	time.Sleep(2 * time.Second)
	require.NoError(t, l.Release())
	l = acquire(t, c, key)
	s.set(refuse)
	require.Error(t, l.Release())
	time.Sleep(2 * time.Minute)
	s.set(up)
	l = acquire(t, c, key)
	s.fail(refuse, time.Minute)
	require.ErrorIs(t, l.Release(), dlock.ErrLost)
	synctest.Wait()
}

// Each message is what happened.
func TestLogObserver(t *testing.T) {
	found, all := logged(t, &slog.HandlerOptions{Level: slog.LevelDebug})
	warnings := []string{"Break failed", "lock broken by an operator", "lease lost", "renewal failed",
		"renewal failed", "lease lost", "work went on after its lease was lost"}
	require.Equal(t, warnings, found["WARN"])
	require.Equal(t, []string{"renewals succeed again"}, found["INFO"])
	require.Subset(t, found["DEBUG"], []string{"waiting for a lock", "lock acquired", "lock not acquired", "lease renewed", "renewal failed", "lease ended",
		"lock released", "lock released, and kept for its MinHold", "release failed", "owed release done", "owed release given up"})
	require.Len(t, found, 3)
	require.Equal(t, strings.Count(all, "\n"), strings.Count(all, "secret-key"), "as an attribute, and nowhere else")
	require.Contains(t, all, `"overrun":`)
	for _, line := range slices.Concat(slices.Collect(maps.Values(parsed(t, all)))...) {
		fails := slices.Contains([]string{"lock not acquired", "renewal failed", "Break failed", "release failed", "owed release given up",
			"lease lost", "work went on after its lease was lost"}, line.Msg)
		require.Equal(t, fails, line.Error != "" && line.Error != dlock.ErrReleased.Error(), "%+v", line)
	}
	found, _ = logged(t, nil)
	require.Equal(t, map[string][]string{"WARN": warnings, "INFO": {"renewals succeed again"}}, found)
}

// An outage has one warning, with what is left of the lease, and one line when it is over.
func TestLogObserverOfAnOutage(t *testing.T) {
	renewing.run(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		c, out := logging(locker)
		leases, _ := acquireAll(t, c, "k", 20)
		for range 2 {
			time.Sleep(20 * time.Second)
			require.Empty(t, out.lines(t))
			s.set(refuse)
			begun := time.Now()
			settle(13 * time.Second)
			lines := out.lines(t)
			require.Len(t, lines["WARN"], 1)
			require.Len(t, lines, 1)
			warning := lines["WARN"][0]
			require.Equal(t, "renewal failed", warning.Msg)
			require.Equal(t, "store unavailable: no answer: "+errStore.Error(), warning.Error)
			require.Equal(t, dlock.DefaultTTL, warning.TTL)
			require.InDelta(t, 19*time.Second, warning.Left, float64(2*time.Second))
			require.Error(t, leases[0].Release())
			leases = leases[1:]
			s.set(up)
			time.Sleep(5 * time.Second)
			lines = out.lines(t)
			require.Len(t, lines["INFO"], 1)
			require.Len(t, lines, 1)
			require.Equal(t, "renewals succeed again", lines["INFO"][0].Msg)
			require.Greater(t, lines["INFO"][0].After, time.Second)
			require.Less(t, lines["INFO"][0].After, time.Since(begun))
		}
		requireNoneLost(t, leases)
	})
}

// While some renewals fail and others succeed, there is one warning. It is over when the leases
// that could not be renewed have ended, and another renewal succeeds.
func TestLogObserverOfAPartialOutage(t *testing.T) {
	ways{
		"single": func(s *spy) dlock.Locker {
			return plain{&spoiled{Forward: dlock.Forward{Locker: s}, alone: failIf("bad")}}
		},
		"element": func(s *spy) dlock.Locker { return &spoiled{Forward: dlock.Forward{Locker: s}, alone: failIf("bad")} },
		"batch": func(s *spy) dlock.Locker {
			return &spoiled{Forward: dlock.Forward{Locker: s}, alone: failIf("bad"), batch: failIf("bad")}
		},
	}.run(t, func(t *testing.T, _ *memory.Locker, _ *spy, locker dlock.Locker) {
		c, out := logging(locker)
		others, _ := acquireAll(t, c, "k", 20)
		acquireAll(t, c, "bad", 3)
		released := acquire(t, c, "bad, but not for ever")
		time.Sleep(25 * time.Second)
		lines := out.lines(t)
		require.Equal(t, []string{"renewal failed"}, messages(lines["WARN"]))
		require.Len(t, lines, 1)
		require.NoError(t, released.Release())
		time.Sleep(20 * time.Second)
		lines = out.lines(t)
		require.Equal(t, []string{"lease lost", "lease lost", "lease lost"}, messages(lines["WARN"]))
		require.Equal(t, []string{"renewals succeed again"}, messages(lines["INFO"]))
		requireNoneLost(t, others)
	})
}

func TestLogObserverOf(t *testing.T) {
	inCases{
		"an outage has one warning, also if all leases that have failed are lost before the next one fails": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c, out := logging(s)
			acquire(t, c.With(dlock.WithTTL(3*time.Second)), "short")
			acquire(t, c, "long")
			s.set(refuse)
			time.Sleep(20 * time.Second)
			require.Equal(t, []string{"renewal failed", "lease lost"}, messages(out.lines(t)["WARN"]))
			s.set(up)
			time.Sleep(20 * time.Second)
			lines := out.lines(t)
			require.Equal(t, []string{"renewals succeed again"}, messages(lines["INFO"]))
			require.Greater(t, lines["INFO"][0].After, 18*time.Second)
			require.Len(t, lines, 1)
		},
		// An Observer sees two stores with the same key. The outage of one has one warning, while the renewals
		// of the other succeed.
		"log observer of two stores": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			var out logbook
			o := out.observer(nil)
			acquire(t, dlock.New(s, o), "k")
			time.Sleep(time.Second)
			acquire(t, dlock.New(memory.New(), o), "k")
			time.Sleep(8 * time.Second)
			s.set(refuse)
			time.Sleep(20 * time.Second)
			require.Equal(t, []string{"renewal failed"}, messages(out.lines(t)["WARN"]))
		},
		// A caller's renewal of a long lease fails, and is never tried again. The outage ends all the same.
		"log observer of a long lease": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			var out logbook
			o := out.observer(nil)
			a, b := dlock.New(s, o, dlock.WithTTL(24*time.Hour), dlock.WithRenewal(false)), dlock.New(s, o)
			lease := acquire(t, a, "a")
			acquire(t, b, "b")
			for range 2 {
				s.set(refuse)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				require.Error(t, lease.Renew(ctx))
				cancel()
				time.Sleep(15 * time.Second)
				s.set(up)
				time.Sleep(2 * time.Minute)
				lines := out.lines(t)
				require.Equal(t, []string{"renewal failed"}, messages(lines["WARN"]))
				require.Equal(t, []string{"renewals succeed again"}, messages(lines["INFO"]))
			}
		},
		"the next outage is seen although the last one has ended with the leases, not with a renewal": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, out := logging(s)
			for range 2 {
				acquireAll(t, c, "k", 3)
				s.set(refuse)
				time.Sleep(time.Minute)
				require.Equal(t, []string{"renewal failed", "lease lost", "lease lost", "lease lost"}, messages(out.lines(t)["WARN"]))
				s.set(up)
				time.Sleep(time.Minute)
			}
			acquireAll(t, c, "k", 3)
			time.Sleep(time.Minute)
			require.Equal(t, map[string][]string{"INFO": {"renewals succeed again"}}, byLevel(out.lines(t)))
		},
		"a renewal that its caller has given up, and one that finds a loss, are no outage": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, out := logging(s, dlock.WithRenewal(false))
			l := acquire(t, c, "k")
			s.onCall(func(c *call) { c.hang() })
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			require.ErrorIs(t, l.Renew(ctx), context.Canceled)
			s.onCall(nil)
			require.Empty(t, out.lines(t))
			require.True(t, store.Expire("k"))
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
			synctest.Wait()
			require.Equal(t, []string{"lease lost"}, messages(out.lines(t)["WARN"]))
		},
		// After FLUSHALL, ten losses are logged one by one, and the others as one line. Each is there for those who debug.
		"log observer of a flood": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			const flood = 150
			var out, warnings logbook
			c := dlock.New(s, out.observer(&slog.HandlerOptions{Level: slog.LevelDebug}), warnings.observer(nil))
			for range 2 {
				leases, keys := acquireAll(t, c, "k", flood)
				out.text()
				store.Wipe()
				for _, l := range leases {
					require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
				}
				synctest.Wait()
				require.Equal(t, 10, len(warnings.lines(t)["WARN"]), "singly, and at once")
				require.Zero(t, goroutines(), "a timer, and no goroutine")
				settle(time.Second)
				require.Equal(t, []lineOfLog{{Level: "WARN", Msg: "lease lost", Count: flood - 10}}, warnings.lines(t)["WARN"])
				lines := out.lines(t)
				require.Equal(t, 11, len(lines["WARN"]))
				seen := make(map[string]bool)
				for _, line := range append(lines["WARN"], lines["DEBUG"]...) {
					if line.Msg == "lease lost" && line.Key != "" {
						require.False(t, seen[line.Key], line.Key)
						seen[line.Key] = true
					}
				}
				require.Equal(t, len(keys), len(seen))
				for _, l := range leases {
					require.ErrorIs(t, l.Release(), dlock.ErrLost)
				}
				time.Sleep(time.Minute)
				out.text()
				require.Equal(t, []lineOfLog{{Level: "WARN", Msg: "work went on after its lease was lost", Count: flood - 10}}, warnings.lines(t)["WARN"][10:])
			}
		},
		"a wait for the store that ends without an answer has a line with its time, too": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			var out logbook
			s.set(refuse)
			c := dlock.New(s, out.observer(nil), dlock.WithOutage(90*time.Second))
			require.ErrorIs(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrUnavailable)
			synctest.Wait()
			lines := out.lines(t)
			require.Equal(t, []string{"waiting for the store", "waiting for the store", "lock not acquired"}, messages(lines["WARN"]))
			require.Equal(t, []string{"stopped waiting for the store"}, messages(lines["INFO"]))
			require.Equal(t, 90*time.Second, lines["INFO"][0].After)
			require.Zero(t, c.Stats().StoreWaiters)
		},
		"a store that does not answer an attempt of a poller is waited for, although no call has failed": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, out := logging(plain{s})
			holdKey(t, store, "k", time.Minute)
			ctx := within(t, time.Hour)
			time.AfterFunc(10*time.Second, func() { s.onCall((*call).hang) })
			require.ErrorIs(t, errOf(c.Acquire(ctx, "k")), dlock.ErrUnavailable)
			synctest.Wait()
			require.InDelta(t, 60, len(out.lines(t)["WARN"]), 2)
		},
		// Failed acquisitions are logged: ten in a minute, and then how many there were, with the last error.
		"log observer of failed acquisitions": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, out := logging(s)
			holdKey(t, store, "k", time.Second)
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), dlock.ErrHeld)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := c.Acquire(ctx, "k")
			require.ErrorIs(t, err, context.Canceled)
			require.Empty(t, out.lines(t), "neither held nor cancelled is a failure")
			s.onCall(says(&dlock.NoEffectError{Err: errors.New("OOM")}))
			for i := range 150 {
				if i == 149 {
					s.onCall(says(&dlock.NoEffectError{Err: errors.New("NOPERM")}))
				}
				require.Error(t, c.Do(t.Context(), "k", noWork))
			}
			lines := out.lines(t)["WARN"]
			require.Len(t, lines, 10)
			require.Equal(t, lineOfLog{Level: "WARN", Msg: "lock not acquired", Key: "k", Error: "the store refused: OOM"}, lines[0])
			settle(time.Minute)
			require.Equal(t, []lineOfLog{{Level: "WARN", Msg: "lock not acquired", Count: 140, Error: "the store refused: NOPERM"}}, out.lines(t)["WARN"])
		},
		"an outage of renewals is over with the first answer of any kind, and is as long as it was": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c, out := logging(s, dlock.WithTTL(10*time.Second))
			acquire(t, c, "k")
			s.fail(refuse, 20*time.Second)
			for range 3600 {
				l := acquire(t, c, "other")
				time.Sleep(time.Second)
				require.NoError(t, l.Release())
			}
			lines := out.lines(t)
			require.Equal(t, []string{"renewals succeed again"}, messages(lines["INFO"]))
			require.InDelta(t, 17*time.Second, lines["INFO"][0].After, float64(2*time.Second))
		},
		// Ten a second are not a flood, and neither are more of different kinds. The eleventh warning within a second begins a second in
		// which all are gathered. A handler that panics does no harm where nobody recovers for it.
		"warnings that are no flood, and those that are": func(t *testing.T, _ *memory.Locker, _ *spy, _ *dlock.Client) {
			var out logbook
			o := dlock.NewLogObserver(slog.New(slog.NewJSONHandler(&out, nil)))
			for range 3 {
				for range 10 {
					o.BreakDone(t.Context(), dlock.BreakDoneInfo{})
					o.BreakDone(t.Context(), dlock.BreakDoneInfo{Err: errStore})
					o.LeaseDone(t.Context(), dlock.LeaseDoneInfo{Err: dlock.ErrLost})
				}
				time.Sleep(time.Second)
			}
			lines := out.lines(t)["WARN"]
			require.Len(t, lines, 90)
			for _, l := range lines {
				require.Zero(t, l.Count)
			}
			for range 20 {
				o.BreakDone(t.Context(), dlock.BreakDoneInfo{})
				time.Sleep(90 * time.Millisecond) // the eleventh comes after 900 ms, the last one after 1.71 s
			}
			require.Len(t, out.lines(t)["WARN"], 10)
			time.Sleep(time.Minute)
			require.Equal(t, []lineOfLog{{Level: "WARN", Msg: "lock broken by an operator", Count: 10}}, out.lines(t)["WARN"])
			floods := 0
			o = dlock.NewLogObserver(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == "count" {
					floods++
					panic("no counts, please")
				}
				return a
			}})))
			for range 11 {
				o.BreakDone(t.Context(), dlock.BreakDoneInfo{})
			}
			settle(time.Minute)
			require.Equal(t, 1, floods)
		},
	}.run(t)
}

// Close cuts renewals off. That is no outage.
func TestLogObserverOfRenewalsThatCloseEnds(t *testing.T) {
	renewing.run(t, func(t *testing.T, _ *memory.Locker, s *spy, locker dlock.Locker) {
		var out logbook
		sent := make(chan struct{}, 3)
		s.on("renew batch", func(c *call) {
			sent <- struct{}{}
			c.hang()
		})
		c := dlock.New(locker, out.observer(nil))
		acquireAll(t, c, "k", 3)
		<-sent
		time.Sleep(500 * time.Millisecond)
		require.NoError(t, c.Close())
		synctest.Wait()
		require.Empty(t, out.lines(t))
	})
}

func TestLogObserverWithoutKeys(t *testing.T) {
	_, all := logged(t, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == "key" {
			a.Value = slog.StringValue("a key")
		}
		return a
	}})
	require.NotContains(t, all, "secret-key")
	require.Contains(t, all, "a key")
}

func TestLogObserverWithoutLogger(t *testing.T) {
	o := dlock.NewLogObserver(nil)
	require.NotPanics(t, func() { o.OwedDone(t.Context(), dlock.OwedDoneInfo{Key: "order:7"}) })
}

// While the store fails, each kind of call that waits for it has a warning at once and one each minute, counts in Stats, and
// has a line at the end with the time.
func TestLogObserverOfWaitsForTheStore(t *testing.T) {
	const away = 5 * time.Minute
	acquires := func(key string, opts ...dlock.Option) func(context.Context, *dlock.Client) {
		return func(ctx context.Context, c *dlock.Client) { _, _ = c.With(opts...).Acquire(ctx, key) }
	}
	for name, c := range map[string]struct {
		polls bool // the store has no queue
		calls int
		call  func(context.Context, *dlock.Client)
	}{
		"outage":  {calls: 1, call: acquires("free", dlock.WithOutage(time.Hour))},
		"many":    {calls: 100, call: acquires("free", dlock.WithOutage(time.Hour))},
		"polling": {calls: 1, polls: true, call: acquires("held")},
		"lines":   {calls: 20, call: acquires("held", dlock.WithLocalTurns(8), dlock.WithOutage(time.Hour))},
		"set": {calls: 1, call: func(ctx context.Context, c *dlock.Client) {
			_, _ = c.With(dlock.WithOutage(time.Hour)).AcquireAll(ctx, "free")
		}},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			client, out := logging(map[bool]dlock.Locker{false: s, true: plain{s}}[c.polls])
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if name == "lines" || c.polls {
				holdKey(t, store, "held", time.Minute)
			}
			if !c.polls {
				s.set(refuse)
			}
			for range c.calls {
				go c.call(ctx, client)
			}
			time.Sleep(time.Second)
			s.set(refuse)
			time.Sleep(time.Second)
			warnings := out.lines(t)["WARN"]
			require.Len(t, warnings, min(c.calls, 10))
			require.Equal(t, "waiting for the store", warnings[0].Msg)
			require.Contains(t, warnings[0].Error, errStore.Error())
			require.NotEmpty(t, warnings[0].Key)
			time.Sleep(away)
			require.Equal(t, c.calls, client.Stats().StoreWaiters)
			lines := out.lines(t)
			require.Len(t, lines, 1)
			single := slices.DeleteFunc(lines["WARN"], func(l lineOfLog) bool { return l.Count > 0 })
			require.Len(t, single, 5)
			for i, l := range single {
				require.Equal(t, "waiting for the store", l.Msg)
				require.Equal(t, c.calls, l.Waiting)
				require.InDelta(t, time.Duration(i+1)*time.Minute, l.For, float64(time.Second))
			}
			s.set(up)
			time.Sleep(2 * time.Second)
			require.Zero(t, client.Stats().StoreWaiters)
			lines = out.lines(t)
			require.Len(t, lines, 1)
			require.Len(t, lines["INFO"], min(c.calls, 10))
			require.Equal(t, "the store answers again", lines["INFO"][0].Msg)
			require.InDelta(t, away+2*time.Second, lines["INFO"][0].After, float64(3*time.Second))
			cancel()
			time.Sleep(time.Hour)
			require.Empty(t, out.lines(t)["WARN"])
		})
	}
}
