package backend_test

import (
	"context"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A wrapped connection has only the methods of redigo's Conn.
type wrapped struct{ redigolib.Conn }

// TestWrappedConnections uses redigo with connections that hide the methods for contexts and
// time-outs.
func TestWrappedConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	t.Parallel()
	server := redistest.Start(t)
	wrap := func(options ...redigolib.DialOption) *redigolib.Pool {
		return &redigolib.Pool{MaxIdle: 10, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			conn, err := redigolib.DialContext(ctx, "tcp", server.Addr(), options...)
			if err != nil {
				return nil, err
			}
			return wrapped{conn}, nil
		}}
	}
	pool := wrap(redigolib.DialReadTimeout(2 * time.Second))
	t.Cleanup(func() { pool.Close() })
	t.Run("Handover", func(t *testing.T) { requireHandover(t, server, redigo.New(pool, redigo.WithPrefix(t.Name()))) })
	t.Run("Lease", func(t *testing.T) {
		const ttl = 2 * time.Second
		client := dlock.New(redigo.New(pool), dlock.WithTTL(ttl))
		defer client.Close()
		for range 2 {
			lease, err := client.Acquire(t.Context(), t.Name())
			require.NoError(t, err)
			for first := lease.Deadline(); lease.Deadline().Sub(first) < ttl/2; time.Sleep(pause) {
				require.NoError(t, lease.Err())
			}
			require.NoError(t, lease.Release())
		}
	})
	t.Run("Inbox", func(t *testing.T) { // silent for longer than the connection's read time-out
		l := redigo.New(pool, redigo.WithPrefix(t.Name()))
		defer l.Close()
		acquire(t, l, "k", "H")
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		go l.Acquire(ctx, "k", "w", ttl)
		awaitInbox(t, server)()
		subscribed := commandCalls(t, server, "subscribe")
		<-ctx.Done()
		require.Equal(t, subscribed, commandCalls(t, server, "subscribe"))
	})
	t.Run("Hangs", func(t *testing.T) {
		pool := wrap(redigolib.DialReadTimeout(time.Minute))
		t.Cleanup(func() { pool.Close() })
		l := redigo.New(pool)
		acquire(t, l, t.Name(), "H")
		server.Suspend()
		for method, call := range calls(l, t.Name()) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			began := time.Now()
			err := call(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, method)
			require.Less(t, time.Since(began), 10*time.Second, method)
		}
		server.Resume()
		require.True(t, retry(func() error { _, err := l.Release(t.Context(), t.Name(), "H"); return err }) == nil)
		require.Eventually(t, func() bool { // every connection is given back
			return pool.ActiveCount() == pool.IdleCount()
		}, 20*time.Second, pause)
	})
}
