package dlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScheduleIsEmptyWithoutLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(fake{})
		for range 100 {
			require.NoError(t, take(t, c, "k").Release())
		}
		time.Sleep(2 * lookAround)
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		require.Empty(t, c.keeper.schedule)
		require.True(t, c.keeper.timerAt.IsZero(), "the timer still runs")
	})
}

// takeFromSchedule does the first half of a tick for a lease.
func takeFromSchedule(l *Lease) {
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.keeper.removeLocked(&l.event)
}

// Close stops the timer while a tick is about to put a lease back into the schedule.
func TestFinishStopsTimerForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := fake{release: func() (bool, error) { return false, errors.New("down") }}
		c := New(down, WithTTL(10*time.Minute), WithRenewal(false))
		l := take(t, c, "k")
		takeFromSchedule(l)
		c.keeper.owe(&owedRelease{key: "x", token: "t", ttl: time.Hour, values: context.Background(), inFlight: one})
		synctest.Wait()
		require.Error(t, c.Close(), "a release that is never answered")
		l.due()
		time.Sleep(time.Hour)
		l.mu.Lock()
		defer l.mu.Unlock()
		require.Error(t, l.err, "the deadline was never noticed")
	})
}

// Shutdown gives up while a tick is about to put a lease back into the schedule.
func TestLeaseIsAbandonedWhileItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
