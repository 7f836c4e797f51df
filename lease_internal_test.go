package dlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// suspend moves the lease's deadline on the wall clock by d. The monotonic clock stops while
// a machine is suspended, and the wall clock does not; virtual time has only one clock.
func suspend(l *Lease, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wall = l.wall.Add(-d)
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.event.wall = l.wall
}

func TestSuspendedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(fake{})
		l := take(t, c, "k")
		work := l.Context(t.Context())
		suspend(l, 20*time.Second)
		require.NoError(t, l.Err())
		time.Sleep(time.Second + 10*time.Millisecond) // the clocks have been compared since
		take(t, c.With(WithTTL(time.Second), WithRenewal(false)), "ends just before they are again")
		suspend(l, 10*time.Second)
		start := time.Now()
		<-work.Done()
		require.LessOrEqual(t, time.Since(start), time.Second)
		require.ErrorIs(t, context.Cause(work), ErrLost)

		l = take(t, c, "k")
		suspend(l, time.Minute)
		require.ErrorIs(t, l.Release(), ErrLost, "found by the look before the release")
	})
}

// Done is called for the first time after the deadline, before the schedule has noticed.
func TestDoneAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := take(t, New(fake{}), "k")
		suspend(l, time.Minute)
		require.NotPanics(t, func() { <-l.Done() })
		require.ErrorIs(t, l.Err(), ErrLost)
	})
}

// Release begins in time, and is stopped until the deadline has passed.
func TestReleaseAtTheDeadlineIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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

// The contexts of a lease leave nothing behind.
func TestLeaseContextKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := take(t, New(fake{}), "k")
		for range 1000 {
			parent, cancel := context.WithCancel(t.Context())
			ctx := l.Context(parent)
			cancel()
			<-ctx.Done()
		}
		synctest.Wait()
		require.Empty(t, l.lives, "after the parents have ended")

		parent := &countingContext{Context: t.Context(), done: make(chan struct{})}
		type key struct{}
		for i := range 1000 {
			l.Context(parent)
			l.Context(context.WithValue(t.Context(), key{}, i))
		}
		require.Len(t, l.lives, 2, "one for all parents that end together")
		require.Equal(t, 1, parent.registered)
		require.NoError(t, l.Release())
		synctest.Wait()
		require.Empty(t, l.lives, "after the lease has ended")
		require.Zero(t, parent.registered, "the parent still knows contexts of the lease")
	})
}

// countingContext counts what has registered for its end.
type countingContext struct {
	context.Context
	done       chan struct{}
	registered int
}

func (c *countingContext) Done() <-chan struct{} { return c.done }

func (c *countingContext) AfterFunc(func()) func() bool {
	c.registered++
	return func() bool { c.registered--; return true }
}
