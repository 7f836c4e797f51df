package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A pair is two Lockers on one server, which may use different client libraries.
type pair struct {
	server *redistest.Server
	a, b   dlock.Locker
	key    string
}

// TestAcross checks that two processes share locks, with the client libraries in turn.
func TestAcross(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for i, a := range clients.All {
		b := clients.All[(i+1)%len(clients.All)]
		t.Run(a.Name+"/"+b.Name, func(t *testing.T) {
			p := pair{server, dial(t, a, server.Addr()), dial(t, b, server.Addr()), t.Name()}
			contend(t, p)
			wait(t, p)
			tokens(t, p)
			handOff(t, p)
		})
	}
}

func contend(t *testing.T, p pair) {
	lease, err := dlock.New(p.a, dlock.WithOwner("host a")).TryAcquire(t.Context(), p.key)
	require.NoError(t, err)
	_, err = dlock.New(p.b, dlock.WithOwner("host b")).TryAcquire(t.Context(), p.key)
	require.ErrorIs(t, err, dlock.ErrHeld)
	var held *dlock.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "host a", held.Owner)
	require.InDelta(t, dlock.DefaultTTL.Seconds(), held.Remaining.Seconds(), 5)
	holder, err := dlock.New(p.b).Inspect(t.Context(), p.key)
	require.NoError(t, err)
	require.Equal(t, "host a", holder.Owner)
	require.NoError(t, lease.Release())
}

func wait(t *testing.T, p pair) {
	lease, err := dlock.New(p.a).Acquire(t.Context(), p.key)
	require.NoError(t, err)
	calls := p.server.CommandCount(t)["evalsha"]
	granted := make(chan *dlock.Lease)
	go func() {
		defer close(granted)
		if lease, err := dlock.New(p.b).Acquire(t.Context(), p.key); err == nil {
			granted <- lease
		}
	}()
	arrived := func() bool { return p.server.CommandCount(t)["evalsha"] > calls }
	require.Eventually(t, arrived, patient, pause, "Acquire(%q) sends nothing", p.key)
	require.NoError(t, lease.Err())
	require.NoError(t, lease.Release())
	next, ok := <-granted
	require.True(t, ok, "Acquire(%q) failed after the release", p.key)
	require.Greater(t, next.Fence(), lease.Fence())
	require.NoError(t, next.Release())
}

// A token can be used through any client, not only the one that acquired it.
func tokens(t *testing.T, p pair) {
	const mine = "mine"
	acquire(t, p.a, p.key, mine)
	for _, stranger := range []string{"min", "mine2", "Mine"} {
		require.False(t, renew(t, p.b, p.key, stranger), "Renew by %q", stranger)
		require.False(t, release(t, p.b, p.key, stranger), "Release by %q", stranger)
	}
	requireHeldBy(t, p.b, p.key, mine)
	require.True(t, renew(t, p.b, p.key, mine), "Renew through the other client")
	results, err := p.b.(dlock.BatchRenewer).RenewBatch(t.Context(), []dlock.Renewal{
		{Key: p.key, Token: "stranger", TTL: ttl}, {Key: p.key, Token: mine, TTL: ttl},
	})
	require.NoError(t, err)
	require.Equal(t, []dlock.RenewResult{{Held: false}, {Held: true}}, results)
	require.True(t, release(t, p.b, p.key, mine), "Release through the other client")
	require.False(t, renew(t, p.a, p.key, mine), "Renew after the release")
	require.False(t, release(t, p.a, p.key, mine), "second Release")
}

func handOff(t *testing.T, p pair) {
	giver, err := dlock.New(p.a).Acquire(t.Context(), p.key)
	require.NoError(t, err)
	h, err := giver.Detach()
	require.NoError(t, err)
	text, err := h.MarshalText()
	require.NoError(t, err)
	var received dlock.Detached
	require.NoError(t, received.UnmarshalText(text))
	taker, err := dlock.New(p.b).Adopt(t.Context(), received)
	require.NoError(t, err)
	require.Equal(t, giver.Fence()+1, taker.Fence())
	require.NoError(t, giver.Release(), "it holds nothing any more")
	requireHeldBy(t, p.a, p.key, taker.Token())
	require.NoError(t, taker.Release())
	require.Greater(t, acquire(t, p.a, p.key, "next"), taker.Fence())
}
