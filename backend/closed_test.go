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
	each(t, clients.All, func(t *testing.T, a clients.Library) {
		server := redistest.Start(t)
		l, closeClient := a.Dial(t, clients.At(server.Addr()))
		// A connection that rueidis opens while it is closed stays open. So all are open when the waiter is registered.
		requireClosed(t, l, closeClient, server)
	})
}

// requireClosed closes the client of a Locker while it waits for a lock of a server.
func requireClosed(t *testing.T, l *rediscore.Locker, closeClient func(), server *redistest.Server) {
	t.Helper()
	client := dlock.New(l)
	acquire(t, l, "k", "H")
	lease, err := client.Acquire(t.Context(), "mine")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { _, err := client.Acquire(t.Context(), "k"); ended <- err }()
	soon(t, func() bool { return listening(t, server, "") == 1 })
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
	each(t, clients.All, func(t *testing.T, a clients.Library) {
		server := redistest.Start(t)
		l := dial(t, a, server.Addr())
		acquire(t, l, "k", "H")
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		ended := startWait(ctx, l, "k", "w")
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

// retry calls f until it succeeds, at most ten times.
func retry(f func() error) (err error) {
	for range 10 {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

// TestAcross has two processes share locks, with the client libraries in turn. A token can be used through any client, not only
// the one that acquired it.
func TestAcross(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for i, lib := range clients.All {
		other := clients.All[(i+1)%len(clients.All)]
		t.Run(lib.Name+"/"+other.Name, func(t *testing.T) {
			lockerA, lockerB, key := dial(t, lib, server.Addr()), dial(t, other, server.Addr()), t.Name()
			a, b := dlock.New(lockerA, dlock.WithOwner("host a")), dlock.New(lockerB, dlock.WithOwner("host b"))
			lease, err := a.TryAcquire(t.Context(), key)
			require.NoError(t, err)
			_, err = b.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, dlock.ErrHeld)
			var held *dlock.HeldError
			require.ErrorAs(t, err, &held)
			require.Equal(t, "host a", held.Owner)
			require.InDelta(t, dlock.DefaultTTL.Seconds(), held.Remaining.Seconds(), 5)
			holder, err := b.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, "host a", holder.Owner)

			before := scripts(t, server)
			granted := make(chan *dlock.Lease)
			go func() {
				defer close(granted)
				if next, err := b.Acquire(t.Context(), key); err == nil {
					granted <- next
				}
			}()
			soon(t, func() bool { return scripts(t, server) > before }, "Acquire(%q) sends nothing", key)
			require.NoError(t, lease.Err())
			require.NoError(t, lease.Release())
			next, ok := <-granted
			require.True(t, ok, "Acquire(%q) failed after the release", key)
			require.Greater(t, next.Fence(), lease.Fence())

			h, err := next.Detach()
			require.NoError(t, err)
			text, err := h.MarshalText()
			require.NoError(t, err)
			var received dlock.Detached
			require.NoError(t, received.UnmarshalText(text))
			taker, err := a.Adopt(t.Context(), received)
			require.NoError(t, err)
			require.Equal(t, next.Fence()+1, taker.Fence())
			require.NoError(t, next.Release(), "it holds nothing any more")
			requireHeldBy(t, lockerB, key, taker.Token())
			require.NoError(t, taker.Release())

			const mine = "mine"
			require.Greater(t, acquire(t, lockerA, key, mine), taker.Fence())
			for _, stranger := range []string{"min", "mine2", "Mine"} {
				require.False(t, renew(t, lockerB, key, stranger), "Renew by %q", stranger)
				require.False(t, release(t, lockerB, key, stranger), "Release by %q", stranger)
			}
			requireHeldBy(t, lockerB, key, mine)
			require.True(t, renew(t, lockerB, key, mine))
			results, err := lockerB.RenewBatch(t.Context(), []dlock.Renewal{{Key: key, Token: "stranger", TTL: ttl}, {Key: key, Token: mine, TTL: ttl}})
			require.NoError(t, err)
			require.Equal(t, []dlock.RenewResult{{Held: false}, {Held: true}}, results)
			require.True(t, release(t, lockerB, key, mine))
			require.False(t, renew(t, lockerA, key, mine), "Renew after the release")
			require.False(t, release(t, lockerA, key, mine), "second Release")
		})
	}
}
