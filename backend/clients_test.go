package backend_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { adaptertest.Main(m) }

const (
	ttl     = 10 * time.Minute // of leases that no test outlives
	patient = time.Minute      // for what must happen soon
	pause   = time.Millisecond // between two checks of a condition

	// atOnce is how long Close may take on a busy machine, if nothing is owed. It is less than
	// the 5 s that it waits for a store that does not answer.
	atOnce = 4 * time.Second
)

// dial returns a Locker on one server, with a client of its own.
func dial(t testing.TB, lib clients.Library, addr string, opts ...rediscore.Option) *rediscore.Locker {
	t.Helper()
	l, _ := lib.Dial(t, clients.At(addr), opts...)
	return l
}

// dialAs is dial as a user.
func dialAs(t testing.TB, lib clients.Library, addr, user string, opts ...rediscore.Option) *rediscore.Locker {
	t.Helper()
	l, _ := lib.Dial(t, clients.Settings{Addrs: []string{addr}, User: user}, opts...)
	return l
}

// dialCluster is dial for a cluster.
func dialCluster(t testing.TB, lib clients.Library, c *redistest.Cluster, opts ...rediscore.Option) *rediscore.Locker {
	t.Helper()
	l, _ := lib.Dial(t, clients.Settings{Addrs: c.Addrs(), Cluster: true}, opts...)
	return l
}

// acquire takes key for token, and returns the fence.
func acquire(t testing.TB, l dlock.Locker, key, token string) int64 {
	t.Helper()
	attempt, err := l.TryAcquire(t.Context(), key, token, ttl)
	require.NoError(t, err, "TryAcquire(%q, %q)", key, token)
	require.True(t, attempt.Acquired, "TryAcquire(%q, %q): held by %q", key, token, attempt.Holder)
	return attempt.Fence
}

// requireHeldBy fails unless key is held, and by token.
func requireHeldBy(t testing.TB, l dlock.Locker, key, token string) {
	t.Helper()
	attempt, err := l.TryAcquire(t.Context(), key, "contender", ttl)
	require.NoError(t, err, "TryAcquire(%q)", key)
	require.False(t, attempt.Acquired, "TryAcquire(%q): granted, want held by %q", key, token)
	require.Equal(t, token, attempt.Holder, "TryAcquire(%q): holder", key)
}

func renew(t testing.TB, l dlock.Locker, key, token string) bool {
	t.Helper()
	held, err := l.Renew(t.Context(), key, token, 2*ttl)
	require.NoError(t, err, "Renew(%q, %q)", key, token)
	return held
}

func release(t testing.TB, l dlock.Locker, key, token string) bool {
	t.Helper()
	held, err := l.Release(t.Context(), key, token)
	require.NoError(t, err, "Release(%q, %q)", key, token)
	return held
}

func do(t testing.TB, s *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	require.NoError(t, err, "%q", args)
	return reply
}

// sinceRedis7 skips what older servers do not do: they take no notice of min-replicas-to-write
// within scripts, answer ASK where newer ones say TRYAGAIN, do not count refused commands, and
// cannot load slowly.
func sinceRedis7(t testing.TB, s *redistest.Server) {
	t.Helper()
	if isOld(s) {
		t.Skip("before Redis 7.0")
	}
}

func isOld(s *redistest.Server) bool {
	_, err := s.Do("SPUBLISH", "x", "x")
	return err != nil && strings.Contains(err.Error(), "unknown command")
}
