package backend_test

import (
	"context"
	"errors"
	"net"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestOutageDuringAWait stops the server during a wait. If the wait ends before the holder's
// lease must have ended, the error matches ErrHeld and says that the server does not answer.
// If it ends later, the error matches ErrUnavailable.
func TestOutageDuringAWait(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			early, late := make(map[string]<-chan error), make(map[string]<-chan error)
			var clients []*dlock.Client
			for _, a := range adapters {
				for how, queue := range map[string]bool{"Queue": true, "Poll": false} {
					l := a.dial(t, server.Addr(), rediscore.WithQueue(queue))
					c := dlock.New(l, dlock.WithTTL(6*time.Second), dlock.WithRenewal(false), dlock.WithOwner("h"))
					t.Cleanup(func() { c.Close(); l.Close() })
					clients = append(clients, c)
					key := a.name + how
					_, err := c.Acquire(t.Context(), key)
					require.NoError(t, err)
					early[key] = outage(t, c, key, 1700*time.Millisecond)
					late[key] = outage(t, c, key, 8*time.Second)
				}
			}
			require.Eventually(t, func() bool { // all have heard that the key is held
				return !slices.ContainsFunc(clients, func(c *dlock.Client) bool { return c.Stats().Waiters < 2 })
			}, time.Second, pause)
			time.Sleep(300 * time.Millisecond)
			fail(server)
			for key := range early {
				requireUnavailable(t, <-early[key], false)
				requireUnavailable(t, <-late[key], true)
			}
		})
	}
}

// outage acquires the key with a limit, and returns the error.
func outage(t *testing.T, c *dlock.Client, key string, wait time.Duration) <-chan error {
	result := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	go func() {
		defer cancel()
		_, err := c.Acquire(ctx, key)
		result <- err
	}()
	return result
}

func requireUnavailable(t *testing.T, err error, unavailable bool) {
	t.Helper()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, unavailable, errors.Is(err, dlock.ErrUnavailable), "%v", err)
	require.Equal(t, !unavailable, errors.Is(err, dlock.ErrHeld), "%v", err)
	t.Log(err)
}

// TestCauseOfALoss stops the server until a lease is lost. The error says why.
func TestCauseOfALoss(t *testing.T) {
	t.Parallel()
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			l := a.dial(t, server.Addr())
			client := dlock.New(l, dlock.WithTTL(2*time.Second))
			defer client.Close()
			lease, err := client.Acquire(t.Context(), "k")
			require.NoError(t, err)
			server.Stop()
			<-lease.Done()
			require.ErrorIs(t, lease.Err(), dlock.ErrLost)
			t.Log(lease.Err())
			var op *net.OpError // on a busy machine, the last renewal may have no answer yet
			require.True(t, errors.As(lease.Err(), &op) || regexp.MustCompile("connection refused|last renewal: no answer for").MatchString(lease.Err().Error()), "%v", lease.Err())
		})
	}
}
