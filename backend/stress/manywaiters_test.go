package stress

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// TestManyWait cancels more than a thousand waits for one lock together, and the holder releases. All
// others are served, and nothing stays.
func TestManyWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server := sim.NewServer()
		conn := sim.Dial(server, nil)
		l := rediscore.New(conn)
		c := dlock.New(l)
		first, err := c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		manyWait(t, c, first)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
		conn.Close()
		keys := server.Keys()
		require.Len(t, keys, 1, "only the fence counter stays")
		require.Contains(t, keys[0], "dlock1:fence")
	})
}

func manyWait(t *testing.T, c *dlock.Client, first *dlock.Lease) {
	const fickles, others = 1100, 100
	fickle, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var served atomic.Int64
	acquire := func(ctx context.Context) {
		lease, err := c.Acquire(ctx, "k")
		if err == nil {
			served.Add(1)
			err = lease.Release()
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for i := range fickles {
		all.Go(func() { acquire(fickle) })
		if i < others {
			all.Go(func() { acquire(t.Context()) })
		}
	}
	synctest.Wait()
	hold, err := c.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, fickles+others, hold.Waiting)
	cancel()
	require.NoError(t, first.Release())
	all.Wait()
	require.GreaterOrEqual(t, served.Load(), int64(others))
}
