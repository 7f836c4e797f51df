package backend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestClosedClient closes the library's client. The wait in progress and all later calls fail
// with ErrClosed.
func TestClosedClient(t *testing.T) {
	t.Parallel()
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l, closeClient := a.Dial(t, clients.At(server.Addr()))
			// A connection that rueidis opens while it is closed stays open. So all are open when the waiter is registered.
			requireClosed(t, l, closeClient, func() { awaitQueues(t, server, 1) })
		})
	}
}

// awaitInbox returns a function that waits until the server has a subscriber to an inbox.
func awaitInbox(t *testing.T, server *redistest.Server) (listening func()) {
	return func() {
		t.Helper()
		require.Eventually(t, func() bool {
			return len(do(t, server, "PUBSUB", "CHANNELS", "*dlock1:inbox:*").([]any)) > 0
		}, patient, pause)
	}
}

func requireClosed(t *testing.T, l *rediscore.Locker, closeClient, listening func()) {
	t.Helper()
	client := dlock.New(l)
	acquire(t, l, "k", "H")
	lease, err := client.Acquire(t.Context(), "mine")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { _, err := client.Acquire(t.Context(), "k"); ended <- err }()
	listening()
	closeClient()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, dlock.ErrClosed)
	case <-time.After(patient):
		t.Fatal("the wait goes on")
	}
	for method, call := range calls(l, "k") {
		var err error
		for range 5 { // a busy machine may take too long to find out
			if err = call(t.Context()); errors.Is(err, dlock.ErrClosed) {
				break
			}
		}
		require.ErrorIs(t, err, dlock.ErrClosed, method)
		require.Equal(t, "no effect", verdictOf(err), "%s: %v", method, err)
	}
	require.ErrorIs(t, lease.Release(), dlock.ErrClosed)
	began := time.Now()
	require.ErrorIs(t, client.Close(), dlock.ErrClosed, "the release was given up")
	require.NoError(t, l.Close())
	require.Less(t, time.Since(began), atOnce)
}

// TestLiveClient kills the connections of open clients over and over. No error says that the
// client is closed.
func TestLiveClient(t *testing.T) {
	t.Parallel()
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l := dial(t, a, server.Addr())
			acquire(t, l, "k", "H")
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			ended := make(chan error)
			go func() { _, err := l.Acquire(ctx, "k", "w", ttl); ended <- err }()
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

// retry calls f until it succeeds, at most ten times.
func retry(f func() error) (err error) {
	for range 10 {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

func commandCalls(t *testing.T, server *redistest.Server, name string) int64 {
	t.Helper()
	return server.CommandCount(t)[name]
}
