package backend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestManyWait has more wait for one lock than a Client can owe releases, and half of
// them go away together.
func TestManyWait(t *testing.T) {
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			server := redistest.Start(t)
			l := a.dial(t, server.Addr())
			defer l.Close()
			c := dlock.New(l)
			defer c.Close()
			first, err := c.Acquire(t.Context(), "k")
			require.NoError(t, err)
			manyWait(t, server, c, first)
			await(t, "keys to go", func() error {
				for _, key := range server.Keys(t) {
					if !strings.HasSuffix(key, "dlock1:fence") {
						return fmt.Errorf("%q is left", key)
					}
				}
				return nil
			})
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
	await(t, "all to queue up", func() error {
		for _, key := range server.Keys(t) {
			if n, _ := do(t, server, "TYPE", key).(string); n == "zset" && do(t, server, "ZCARD", key) == int64(2*each) {
				return nil
			}
		}
		return errors.New("not in the queue")
	})
	cancel()
	require.NoError(t, first.Release())
	all.Wait()
	require.GreaterOrEqual(t, served.Load(), int64(each))
}
