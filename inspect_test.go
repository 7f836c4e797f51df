package dlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestInspect(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithOwner("web-7"))
		holder, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, holder)
		defer acquire(t, c, "k").Release()
		holder, err = c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, holder.Held)
		require.Equal(t, "web-7", holder.Owner)
		require.Equal(t, time.Now().Local(), holder.Started)
		require.Equal(t, 30*time.Second, holder.Remaining)
		_, err = dlock.New(plain{s}).Inspect(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Contains(t, err.Error(), `dlock: inspect "k"`)
		store.Fail(errStore)
		_, err = c.Inspect(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
	})
}

func TestStatusTellsHowManyWait(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		defer acquire(t, c, "k").Release()
		for range 7 {
			go c.With(dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		}
		synctest.Wait()
		status, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 7, status.Waiting)
		time.Sleep(time.Minute)
	})
}

func TestForeignValueIsNotShown(t *testing.T) {
	for _, foreign := range []string{"s3cret", "dlock1.s3cret.s3cret", "dlock1.", "dlock1.abcdefghijklmnopqrstuvwxyz.s3cret", "dlock1.ABCDEFGHIJKLMNOPQRSTUVWXYZ.s3cret"} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			_, err := store.TryAcquire(t.Context(), "k", foreign, time.Minute)
			require.NoError(t, err)
			c := dlock.New(s)
			_, err = c.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, dlock.ErrHeld)
			require.NotContains(t, err.Error(), "s3cret")
			holder, err := c.Inspect(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, dlock.Status{Held: true, Remaining: time.Minute}, holder)
		})
	}
}

// Break releases only the holder that was seen, and hands the lock over.
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

// Break refuses a key that no Client holds.
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
		ctx := ended(t)
		l := acquire(t, c, "k")
		status, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.ErrorIs(t, c.Break(ctx, status), context.Canceled)
		require.NoError(t, l.Err())
	})
}

// Break also frees a key that only a MinHold keeps.
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
