package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A pair is two Lockers on one server, which may use different client libraries.
type pair struct {
	server *redistest.Server
	a, b   dlock.Locker
	key    string
}

// TestAcross checks that two processes share locks, in all combinations of client libraries.
func TestAcross(t *testing.T) {
	server := redistest.Start(t)
	for _, a := range adapters {
		for _, b := range adapters {
			t.Run(a.name+"/"+b.name, func(t *testing.T) {
				l1, l2 := a.dial(t, server.Addr()), b.dial(t, server.Addr())
				for name, test := range map[string]func(*testing.T, pair){
					"Contend": contend,
					"Wait":    wait,
					"Tokens":  tokens,
					"HandOff": handOff,
				} {
					t.Run(name, func(t *testing.T) { test(t, pair{server, l1, l2, t.Name()}) })
				}
			})
		}
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
	require.Eventually(t, arrived, ttl, pause, "Acquire(%q) sends nothing", p.key)
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

func TestFencesRiseAcross(t *testing.T) {
	server := redistest.Start(t)
	lockers := make([]dlock.Locker, len(adapters))
	for i, a := range adapters {
		lockers[i] = a.dial(t, server.Addr())
	}
	var last int64
	for i := range 100 {
		l := lockers[i%len(lockers)]
		fence := acquire(t, l, "k", "t")
		require.GreaterOrEqual(t, fence, last+8, "grant %d, by %s", i, adapters[i%len(adapters)].name)
		last = fence
		if i%2 == 0 { // every other grant is to the token that already holds the key
			require.True(t, release(t, l, "k", "t"))
		}
	}
}
