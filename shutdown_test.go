package dlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// Shutdown waits for the holders, whose leases are renewed meanwhile; waits end, and new
// calls are refused.
func TestShutdownWaitsForHolders(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		waiter := make(chan error)
		go func() {
			_, err := c.Acquire(t.Context(), "k")
			waiter <- err
		}()
		synctest.Wait()
		done := make(chan error)
		go func() { done <- c.Shutdown(t.Context()) }()
		require.ErrorIs(t, <-waiter, dlock.ErrClosed)
		_, err := c.TryAcquire(t.Context(), "other")
		require.ErrorIs(t, err, dlock.ErrClosed)

		time.Sleep(5 * time.Minute)
		require.NoError(t, l.Err(), "renewed while Shutdown waits")
		select {
		case err := <-done:
			t.Fatalf("Shutdown returned %v while a lease was held", err)
		default:
		}
		require.NoError(t, l.Release())
		require.NoError(t, <-done)
		require.NoError(t, c.Shutdown(t.Context()), "once more")
		require.NoError(t, c.Close())
		requireFree(t, store, "k")
	})
}

// When ctx ends, leases end with ErrClosed and stay in the store until their TTL has passed,
// unless their holders release them.
func TestShutdownGivesUp(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		stuck, late := acquire(t, c, "stuck"), acquire(t, c, "late")
		work := stuck.Context(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		err := c.Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "2 leases still held")
		require.Equal(t, 3*time.Second, time.Since(start))
		<-work.Done()
		<-stuck.Done()
		require.ErrorIs(t, context.Cause(work), dlock.ErrClosed)
		require.ErrorIs(t, stuck.Err(), dlock.ErrClosed)
		require.NotErrorIs(t, stuck.Err(), dlock.ErrLost)
		require.False(t, time.Now().Before(stuck.Deadline()))
		require.ErrorIs(t, stuck.Renew(t.Context()), dlock.ErrClosed)
		require.Empty(t, s.made("release"), "the work may still run")
		require.Zero(t, c.Stats().Leases)

		require.NoError(t, late.Release(), "its work has ended")
		requireFree(t, store, "late")
		time.Sleep(20 * time.Second)
		_, err = dlock.New(store).TryAcquire(t.Context(), "stuck")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(10 * time.Second)
		requireFree(t, store, "stuck")
	})
}

// Work that Shutdown has ended says so.
func TestDoThatShutdownEnds(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		done := make(chan error)
		go func() {
			done <- c.Do(t.Context(), "k", func(ctx context.Context, _ *dlock.Lease) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, c.Shutdown(ctx))
		err := <-done
		require.ErrorIs(t, err, dlock.ErrClosed)
		requireNoContextError(t, err)
	})
}

// Shutdown sees to it that the store keeps what a MinHold promises, and does not wait for that.
func TestShutdownKeepsMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
		l := acquire(t, c, "k")
		require.NoError(t, l.Release())
		start := time.Now()
		require.NoError(t, c.Shutdown(t.Context()))
		require.Equal(t, start, time.Now())
		time.Sleep(10*time.Minute - time.Second)
		_, err := dlock.New(store).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(time.Second + time.Millisecond)
		requireFree(t, store, "k")
	})
}

// The MinHold is kept by a lease that was lost, too.
func TestMinHoldOfALostLease(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithRenewal(false), dlock.WithMinHold(10*time.Minute))
		l := acquire(t, c, "k")
		<-l.Done()
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		time.Sleep(time.Until(s.made()[0].at.Add(10*time.Minute - time.Second)))
		_, err := dlock.New(store).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(time.Second + time.Millisecond)
		requireFree(t, store, "k")
	})
}

func TestMaxHoldShorterThanMinHoldIsRefused(t *testing.T) {
	c := dlock.New(memory.New(), dlock.WithMaxHold(time.Second), dlock.WithMinHold(time.Minute))
	_, err := c.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, dlock.ErrInvalid)
	require.ErrorContains(t, err, "WithMaxHold(1s): less than WithMinHold(1m0s)")
	l, err := c.With(dlock.WithMinHold(0)).TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, l.Release())
}

func TestStats(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		require.Zero(t, c.Stats())
		l, m := acquire(t, c, "k"), acquire(t, c, "m")
		ctx, cancel := context.WithCancel(t.Context())
		go c.With(dlock.WithOwner("x")).Acquire(ctx, "k")
		synctest.Wait()
		require.Equal(t, dlock.Stats{Leases: 2, Waiters: 1}, c.Stats())
		cancel()
		time.Sleep(time.Minute) // for what the wait owes
		require.NoError(t, m.Release())
		require.Equal(t, dlock.Stats{Leases: 1}, c.Stats())
		store.Fail(errStore)
		<-l.Done()
		synctest.Wait()
		got := c.Stats()
		require.NotZero(t, got.RenewalsFailed)
		got.RenewalsFailed = 0
		require.Equal(t, dlock.Stats{ReleasesOwed: 1, Lost: 1}, got)
		store.Fail(nil)
		time.Sleep(time.Minute)
		require.Zero(t, c.Stats().ReleasesOwed)
		n := acquire(t, c, "n")
		store.Steal("n", time.Hour)
		require.ErrorIs(t, n.Release(), dlock.ErrLost)
		require.EqualValues(t, 2, c.Stats().Lost)
		require.Zero(t, new(dlock.Client).Stats())
	})
}

// A loss tells its reason by a value, and the last renewal's error.
func TestLossReasons(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []dlock.Option
		happen func(store *memory.Locker)
		reason dlock.LossReason
		err    error
	}{
		"expired":           {[]dlock.Option{dlock.WithRenewal(false)}, nil, dlock.LossExpired, nil},
		"renewals failed":   {nil, func(s *memory.Locker) { s.Fail(errStore) }, dlock.LossExpired, errStore},
		"removed":           {nil, func(s *memory.Locker) { s.Steal("k", time.Hour) }, dlock.LossRemoved, nil},
		"held for too long": {[]dlock.Option{dlock.WithMaxHold(time.Minute)}, nil, dlock.LossMaxHold, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				l := acquire(t, dlock.New(s, c.opts...), "k")
				if c.happen != nil {
					c.happen(store)
				}
				<-l.Done()
				store.Fail(nil)
				var lost *dlock.LostError
				require.ErrorAs(t, l.Err(), &lost)
				require.Equal(t, "k", lost.Key)
				require.Equal(t, c.reason, lost.Reason)
				require.ErrorContains(t, l.Err(), c.reason.String())
				require.ErrorIs(t, l.Err(), dlock.ErrLost)
				if c.err == nil {
					require.NoError(t, lost.Err)
				} else {
					require.ErrorIs(t, l.Err(), c.err)
					require.ErrorContains(t, l.Err(), c.err.Error())
				}
			})
		})
	}
}
