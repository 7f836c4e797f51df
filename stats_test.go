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
