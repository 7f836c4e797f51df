package dlock_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// Break frees the holder that was seen, and hands the lock over; never the one after it.
func TestBreak(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		stuck, operator := dlock.New(s, dlock.WithOwner("stuck")), dlock.New(store)
		l := acquire(t, stuck, "k")
		next := make(chan *dlock.Lease)
		go func() {
			l, err := dlock.New(store).Acquire(t.Context(), "k")
			require.NoError(t, err)
			next <- l
		}()
		synctest.Wait()
		status, err := operator.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, status.Held)
		require.Equal(t, "stuck", status.Owner)
		require.Equal(t, 1, status.Waiting)
		text, err := json.Marshal(status)
		require.NoError(t, err)
		for _, shown := range []string{fmt.Sprintf("%v %+v %#v", status, status, status), string(text)} {
			require.NotContains(t, shown, l.Token())
		}

		require.NoError(t, operator.Break(t.Context(), status))
		heir := <-next
		require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrReleased)
		require.NoError(t, heir.Renew(t.Context()))
		<-l.Done()
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.NoError(t, heir.Release())
		require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrReleased)
		require.NoError(t, operator.Close())
		require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrClosed)
	})
}

// What no Client holds is not broken.
func TestBreakRefuses(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		store.Steal("foreign", time.Hour)
		foreign, err := c.Inspect(t.Context(), "foreign")
		require.NoError(t, err)
		require.True(t, foreign.Held)
		free, err := c.Inspect(t.Context(), "free")
		require.NoError(t, err)
		n := len(s.made())
		for _, status := range []dlock.Status{{}, {Held: true, Owner: "x"}, free, foreign} {
			require.ErrorIs(t, c.Break(t.Context(), status), dlock.ErrInvalid)
		}
		require.Len(t, s.made(), n, "nothing was sent")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l := acquire(t, c, "k")
		status, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.ErrorIs(t, c.Break(ctx, status), context.Canceled)
		require.NoError(t, l.Err())
	})
}

// Break also frees a key that nobody holds any more, and that a MinHold keeps.
func TestBreakOfAMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(time.Hour))
		require.NoError(t, acquire(t, c, "k").Release())
		synctest.Wait()
		status, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, status.Held)
		require.NoError(t, c.Break(t.Context(), status))
		requireFree(t, store, "k")
		time.Sleep(2 * time.Hour)
		requireFree(t, store, "k")
		require.Zero(t, c.Stats().ReleasesOwed)
	})
}
