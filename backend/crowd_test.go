package backend_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestCrowd has a hundred goroutines of one process wait for one lock, through a client with one connection in a slow network.
// The holder's renewals do not suffer, there is at most one more connection, and all are served.
func TestCrowd(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	t.Parallel()
	const crowd = 100
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy, err := faultproxy.New(server.Addr())
			require.NoError(t, err)
			t.Cleanup(proxy.Close)
			proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: 2500 * time.Microsecond})
			l, _ := a.Dial(t, clients.Settings{Addrs: []string{proxy.Addr()}, Pool: 1, Patience: time.Minute})
			defer l.Close()
			locks := dlock.New(l, dlock.WithTTL(10*time.Second))
			defer locks.Close()
			holder, err := locks.Acquire(t.Context(), "k")
			require.NoError(t, err)
			var all sync.WaitGroup
			defer all.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 2*patient)
			defer cancel()
			for range crowd {
				all.Go(func() {
					lease, err := locks.Acquire(ctx, "k")
					if err == nil {
						err = lease.Release()
					}
					assert.NoError(t, err)
				})
			}
			awaitQueues(t, server, crowd)
			time.Sleep(time.Second)
			require.NoError(t, holder.Err(), "the holder's lease")
			list := do(t, server, "CLIENT", "LIST", "TYPE", "pubsub").(string)
			require.LessOrEqual(t, strings.Count(list, "\n"), 1, "connections with subscriptions: %s", list)
			require.NoError(t, holder.Release())
			all.Wait()
		})
	}
}

// awaitQueues waits until n tokens are in queues, all with an inbox.
func awaitQueues(t *testing.T, s *redistest.Server, n int) {
	t.Helper()
	const count = `local n = 0
		for _, key in ipairs(redis.call('KEYS', '*dlock1:waiters:*')) do
			for i, entry in ipairs(redis.call('HVALS', key)) do
				if entry:match('^%d+ %d+ %d+ [ps]') then n = n + 1 end
			end
		end
		return n`
	require.Eventually(t, func() bool { return do(t, s, "EVAL", count, "0") == int64(n) }, 2*time.Minute, 100*time.Millisecond, "not all wait with an inbox")
}
