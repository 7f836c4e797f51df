package backend_test

import (
	"context"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

type patient struct{ *testing.M }

func (p patient) Run() int {
	code := p.M.Run()
	adaptertest.AwaitGoroutines()
	return code
}

const (
	ttl   = time.Minute
	pause = time.Millisecond // between two looks
)

// adapters make a Locker on the server at addr, each with a client of its own.
var adapters = []struct {
	name string
	dial func(t testing.TB, addr string, opts ...rediscore.Option) *rediscore.Locker
}{
	{"goredis", dialGoRedis},
	{"rueidis", dialRueidis},
	{"redigo", dialRedigo},
}

func dialGoRedis(t testing.TB, addr string, opts ...rediscore.Option) *rediscore.Locker {
	client := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	return goredis.New(client, opts...)
}

func dialRueidis(t testing.TB, addr string, opts ...rediscore.Option) *rediscore.Locker {
	client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return rueidis.New(client, opts...)
}

func dialRedigo(t testing.TB, addr string, opts ...rediscore.Option) *rediscore.Locker {
	pool := &redigolib.Pool{
		MaxIdle: 10,
		DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			return redigolib.DialContext(ctx, "tcp", addr)
		},
	}
	t.Cleanup(func() { pool.Close() })
	return redigo.New(pool, opts...)
}

// acquire takes key for token, and returns the fence.
func acquire(t testing.TB, l dlock.Locker, key, token string) int64 {
	t.Helper()
	attempt, err := l.TryAcquire(t.Context(), key, token, ttl)
	require.NoError(t, err, "TryAcquire(%q, %q)", key, token)
	require.True(t, attempt.Acquired, "TryAcquire(%q, %q): held by %q", key, token, attempt.Holder)
	return attempt.Fence
}

// requireHeldBy fails unless key is held by token, and by it alone.
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
