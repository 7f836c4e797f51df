package backend_test

import (
	"context"
	"strings"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
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

const password = "pass" // of all users

// A connect function makes a Locker with a client of its own for one server. It connects as
// user, if that is not "". It returns a function that closes the client.
type connect func(t testing.TB, addr, user string, opts ...rediscore.Option) (l *rediscore.Locker, closeClient func())

func (c connect) dial(t testing.TB, addr string, opts ...rediscore.Option) *rediscore.Locker {
	l, _ := c(t, addr, "", opts...)
	return l
}

// adapters are the Redis adapters, each for a single server.
var adapters = []struct {
	name string
	connect
}{
	{"goredis", connectGoRedis},
	{"rueidis", connectRueidis},
	{"redigo", connectRedigo},
}

func connectGoRedis(t testing.TB, addr, user string, opts ...rediscore.Option) (*rediscore.Locker, func()) {
	o := &goredislib.Options{Addr: addr, ContextTimeoutEnabled: true}
	if user != "" {
		o.Username, o.Password = user, password
	}
	client := goredislib.NewClient(o)
	t.Cleanup(func() { client.Close() })
	return goredis.New(client, opts...), func() { client.Close() }
}

func connectRueidis(t testing.TB, addr, user string, opts ...rediscore.Option) (*rediscore.Locker, func()) {
	o := rueidislib.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true}
	if user != "" {
		o.Username, o.Password = user, password
	}
	client, err := rueidislib.NewClient(o)
	if client == nil { // with ForceSingleClient there is one although it could not connect
		require.NoError(t, err)
	}
	t.Cleanup(client.Close)
	return rueidis.New(client, opts...), client.Close
}

func connectRedigo(t testing.TB, addr, user string, opts ...rediscore.Option) (*rediscore.Locker, func()) {
	var options []redigolib.DialOption
	if user != "" {
		options = append(options, redigolib.DialUsername(user), redigolib.DialPassword(password))
	}
	pool := &redigolib.Pool{MaxIdle: 10, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
		return redigolib.DialContext(ctx, "tcp", addr, options...)
	}}
	t.Cleanup(func() { pool.Close() })
	return redigo.New(pool, opts...), func() { pool.Close() }
}

// A connectCluster function is connect for a cluster.
type connectCluster func(t testing.TB, addrs []string, user string, opts ...rediscore.Option) (l *rediscore.Locker, closeClient func(), err error)

func (c connectCluster) dial(t testing.TB, cluster *redistest.Cluster, opts ...rediscore.Option) *rediscore.Locker {
	l, _, err := c(t, cluster.Addrs(), "", opts...)
	require.NoError(t, err)
	return l
}

// clusterAdapters are those whose client libraries support Redis Cluster.
var clusterAdapters = map[string]connectCluster{
	"goredis": func(t testing.TB, addrs []string, user string, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
		o := &goredislib.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true}
		if user != "" {
			o.Username, o.Password = user, password
		}
		client := goredislib.NewClusterClient(o)
		t.Cleanup(func() { client.Close() })
		return goredis.New(client, opts...), func() { client.Close() }, nil
	},
	"rueidis": func(t testing.TB, addrs []string, user string, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
		o := rueidislib.ClientOption{InitAddress: addrs, DisableCache: true}
		if user != "" {
			o.Username, o.Password = user, password
		}
		client, err := rueidislib.NewClient(o)
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(client.Close)
		return rueidis.New(client, opts...), client.Close, nil
	},
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
	if _, err := s.Do("SPUBLISH", "x", "x"); err != nil && strings.Contains(err.Error(), "unknown command") {
		t.Skip("before Redis 7.0")
	}
}
