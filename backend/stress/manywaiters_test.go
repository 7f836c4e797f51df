package stress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestManyWait starts more waits for one lock than a Client can owe releases, and cancels half
// of them together.
func TestManyWait(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, library := range libraries {
		t.Run(library.name, func(t *testing.T) {
			server := redistest.Start(t)
			defer watchGoroutines(t)()
			l, closeClient, err := library.dial(server.Addr(), 10*time.Second)
			require.NoError(t, err)
			defer closeClient()
			defer l.Close()
			c := dlock.New(l)
			defer c.Close()
			first, err := c.Acquire(t.Context(), "k")
			require.NoError(t, err)
			manyWait(t, server, c, first)
			awaitNil(t, "keys to go", func() error { return left(server, "KEYS", "*") })
		})
	}
}

func manyWait(t *testing.T, server *redistest.Server, c *dlock.Client, first *dlock.Lease) {
	const each = 1100
	fickle, cancel := context.WithCancel(t.Context())
	defer cancel()
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
	for range each {
		all.Go(func() { acquire(t.Context()) })
		all.Go(func() { acquire(fickle) })
	}
	awaitNil(t, "all to queue up", func() error {
		hold, err := c.Inspect(t.Context(), "k")
		if err == nil && hold.Waiting != 2*each {
			err = fmt.Errorf("%d wait", hold.Waiting)
		}
		return err
	})
	cancel()
	require.NoError(t, first.Release())
	all.Wait()
	require.GreaterOrEqual(t, served.Load(), int64(each))
}
