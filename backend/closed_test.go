package backend_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestClosedClient closes the library's client: a wait ends, and so do all later calls.
func TestClosedClient(t *testing.T) {
	t.Parallel()
	for name, dial := range plainClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l, closeClient := dial(t, server.Addr(), "")
			requireClosed(t, l, closeClient, redisPrefix(t, server))
		})
	}
}

// redisPrefix waits until somebody listens to an inbox of the server.
func redisPrefix(t *testing.T, server *redistest.Server) (listening func()) {
	return func() {
		t.Helper()
		require.Eventually(t, func() bool {
			return len(do(t, server, "PUBSUB", "CHANNELS", "*dlock1:inbox:*").([]any)) > 0
		}, ttl, pause)
	}
}

func requireClosed(t *testing.T, l *rediscore.Locker, closeClient, listening func()) {
	t.Helper()
	client := dlock.New(l)
	acquire(t, l, "k", "H")
	ended := make(chan error, 1)
	go func() {
		_, err := client.Acquire(t.Context(), "k")
		ended <- err
	}()
	listening()
	closeClient()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, dlock.ErrClosed)
	case <-time.After(10 * time.Second):
		t.Fatal("the wait goes on")
	}
	for method, call := range calls(l, "k") {
		err := call(t.Context())
		require.ErrorIs(t, err, dlock.ErrClosed, method)
		require.Equal(t, "no effect", verdictOf(err), "%s: %v", method, err)
	}
	began := time.Now()
	require.NoError(t, client.Close())
	require.NoError(t, l.Close())
	require.Less(t, time.Since(began), time.Second)
}

// TestClosedClientOfACluster is TestClosedClient for clients of a cluster.
func TestClosedClientOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for name, dial := range map[string]func() (*rediscore.Locker, func()){
		"goredis": func() (*rediscore.Locker, func()) {
			client := goredislib.NewClusterClient(&goredislib.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: true})
			return goredis.New(client), func() { client.Close() }
		},
		"rueidis": func() (*rediscore.Locker, func()) {
			client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: cluster.Addrs(), DisableCache: true})
			require.NoError(t, err)
			return rueidis.New(client), client.Close
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, closeClient := dial()
			requireClosed(t, l, closeClient, func() { time.Sleep(time.Second) })
			for _, n := range cluster.Nodes {
				do(t, n, "FLUSHALL")
			}
		})
	}
}

// TestLiveClient kills the connections of clients that live, over and over: nothing says
// that they are closed.
func TestLiveClient(t *testing.T) {
	t.Parallel()
	for name, dial := range plainClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l, _ := dial(t, server.Addr(), "")
			acquire(t, l, "k", "H")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			ended := make(chan error)
			go func() {
				_, err := l.Acquire(ctx, "k", "w", ttl)
				ended <- err
			}()
			for method, call := range calls(l, "other") {
				if method == "Acquire" {
					continue
				}
				go func() {
					var err error
					for ctx.Err() == nil && !errors.Is(err, dlock.ErrClosed) {
						err = call(ctx)
					}
					ended <- err
				}()
			}
			for ctx.Err() == nil {
				time.Sleep(5 * time.Millisecond)
				for _, kind := range []string{"normal", "pubsub"} {
					_, _ = server.Do("CLIENT", "KILL", "TYPE", kind)
				}
			}
			for range calls(l, "other") {
				err := <-ended
				require.False(t, errors.Is(err, dlock.ErrClosed), "%v", err)
			}
			require.NoError(t, retry(func() error { _, err := l.Inspect(t.Context(), "k"); return err }))
		})
	}
}

// retry calls f until it succeeds, a few times.
func retry(f func() error) (err error) {
	for range 10 {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

// A wrapped connection has no more than what an interface of redigo demands.
type wrapped struct{ redigolib.Conn }

// TestWrappedConnections uses redigo with connections that hide its methods for contexts and
// time-outs.
func TestWrappedConnections(t *testing.T) {
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
	t.Run("Handover", func(t *testing.T) {
		requireHandover(t, server, redigo.New(pool, redigo.WithPrefix(t.Name())))
	})
	t.Run("Lease", func(t *testing.T) {
		client := dlock.New(redigo.New(pool), dlock.WithTTL(time.Second))
		defer client.Close()
		for range 2 {
			lease, err := client.Acquire(t.Context(), t.Name())
			require.NoError(t, err)
			select {
			case <-lease.Done():
				t.Fatal(lease.Err())
			case <-time.After(2 * time.Second):
			}
			require.NoError(t, lease.Release())
		}
	})
	t.Run("Inbox", func(t *testing.T) { // silent for longer than the connection's read time-out
		l := redigo.New(pool, redigo.WithPrefix(t.Name()))
		defer l.Close()
		acquire(t, l, "k", "H")
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		go l.Acquire(ctx, "k", "w", ttl)
		redisPrefix(t, server)()
		subscribed := commandCalls(t, server, "subscribe")
		<-ctx.Done()
		require.Equal(t, subscribed, commandCalls(t, server, "subscribe"))
	})
	t.Run("Hangs", func(t *testing.T) {
		l := redigo.New(pool)
		acquire(t, l, t.Name(), "H")
		server.Suspend()
		for method, call := range calls(l, t.Name()) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			began := time.Now()
			err := call(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, method)
			require.Less(t, time.Since(began), time.Second, method)
		}
		server.Resume()
		require.True(t, retry(func() error { _, err := l.Release(t.Context(), t.Name(), "H"); return err }) == nil)
		require.Eventually(t, func() bool { // every connection is given back
			return pool.ActiveCount() == pool.IdleCount()
		}, 5*time.Second, pause)
	})
}

func commandCalls(t *testing.T, server *redistest.Server, name string) int64 {
	t.Helper()
	return server.CommandCount(t)[name]
}

// TestCauseOfALoss has a lease be lost since the server is gone: the loss says so.
func TestCauseOfALoss(t *testing.T) {
	t.Parallel()
	for name, dial := range plainClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l, _ := dial(t, server.Addr(), "")
			client := dlock.New(l, dlock.WithTTL(2*time.Second))
			defer client.Close()
			lease, err := client.Acquire(t.Context(), "k")
			require.NoError(t, err)
			server.Stop()
			<-lease.Done()
			require.ErrorIs(t, lease.Err(), dlock.ErrLost)
			t.Log(lease.Err())
			var op *net.OpError
			require.True(t, errors.As(lease.Err(), &op) || strings.Contains(lease.Err().Error(), "connection refused"), "%v", lease.Err())
		})
	}
}
