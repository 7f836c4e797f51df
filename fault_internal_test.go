package dlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// B1: Done, asked for the first time after the deadline and before the agenda noticed.
func TestDoneAfterDeadlinePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(yes{}).Acquire(t.Context(), "k")
		require.NoError(t, err)
		l.mu.Lock()
		l.wall = l.wall.Add(-time.Minute) // machine was suspended
		l.mu.Unlock()
		require.NotPanics(t, func() { <-l.Done() })
		require.ErrorIs(t, l.Err(), ErrLost)
	})
}

// B: finish leaves wake set with a stopped timer.
func TestFinishStopsTimerForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(failing{}, WithTTL(10*time.Minute), WithRenewal(false))
		l, err := c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		k := c.keeper
		// a tick takes the lease from the agenda ...
		k.mu.Lock()
		k.removeLocked(&l.event)
		k.mu.Unlock()
		k.owe(&debt{key: "x", token: "t", ttl: time.Hour, values: context.Background(), pending: true})
		synctest.Wait()
		require.Error(t, c.Close(), "a release that is never answered") // ... finish runs in between ...
		l.due()                                                         // ... and now puts it back
		time.Sleep(time.Hour)
		l.mu.Lock()
		defer l.mu.Unlock()
		require.Error(t, l.err, "the deadline was never announced")
	})
}

type failing struct{ yes }

func (failing) Release(context.Context, string, string) (bool, error) {
	return false, errors.New("down")
}

// B: release when the lease ran out between look and sendRelease
func TestReleaseAtTheDeadlineSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &counting{}
		c := New(s, WithRenewal(false))
		l, err := c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		l.mu.Lock()
		l.look()
		l.end(ErrReleased) // Release began in time…
		l.mu.Unlock()
		time.Sleep(time.Until(l.deadline)) // …and was stopped
		require.NoError(t, l.Release())
		synctest.Wait()
		require.NotZero(t, s.releases, "neither sent nor owed")
	})
}

type counting struct {
	yes
	releases int
}

func (c *counting) Release(context.Context, string, string) (bool, error) {
	c.releases++
	return true, nil
}

func TestMinHoldMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &ttls{}
		c := New(s, WithMinHold(maxTTL))
		l, err := c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, l.Release())
		synctest.Wait()
		require.Equal(t, []time.Duration{maxTTL}, s.ttls)
		c.Close()
	})
}

type ttls struct {
	yes
	ttls []time.Duration
}

func (c *ttls) Renew(_ context.Context, _, _ string, ttl time.Duration) (bool, error) {
	c.ttls = append(c.ttls, ttl)
	return true, nil
}

// Remaining of a lease that lasts as long as a Duration can say.
func TestPaceOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &heldFor{remaining: math.MaxInt64}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := New(h).Acquire(ctx, "k")
		require.ErrorIs(t, err, ErrHeld)
		for i := 1; i < len(h.at); i++ {
			require.GreaterOrEqual(t, h.at[i].Sub(h.at[i-1]), 50*time.Millisecond, "pause %d", i)
		}
	})
}

type heldFor struct {
	yes
	remaining time.Duration
	at        []time.Time
}

func (h *heldFor) TryAcquire(context.Context, string, string, time.Duration) (Attempt, error) {
	h.at = append(h.at, time.Now())
	return Attempt{Holder: "x", Remaining: h.remaining}, nil
}

// Goexit in the Locker (require in a fake, say) costs a renewer for good.
func TestGoexitInLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(goexit{})
		for i := range 40 {
			_, err := c.Acquire(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		require.Zero(t, c.keeper.renewals.workers.calls, "calls that are no more")
	})
}

type goexit struct{ yes }

func (goexit) Renew(context.Context, string, string, time.Duration) (bool, error) {
	runtime.Goexit()
	return true, nil
}
