package backend_test

import (
	"context"
	"sync/atomic"
	"testing"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/redistest"
)

// Decorators have the methods of what is embedded, as those for metrics and traces do.
type (
	ofSingle  struct{ *goredislib.Client }
	ofCluster struct{ *goredislib.ClusterClient }
	ofRing    struct{ *goredislib.Ring }
	ofAny     struct{ goredislib.UniversalClient } // hides what it is for
	ofRueidis struct{ rueidislib.Client }

	clusterMethods interface {
		goredislib.UniversalClient
		MasterForKey(ctx context.Context, key string) (*goredislib.Client, error)
		ForEachShard(ctx context.Context, f func(context.Context, *goredislib.Client) error) error
	}
	ofMethods struct{ clusterMethods }
)

// TestDecorators uses decorated clients: they serve waiters by messages, as the client inside does.
func TestDecorators(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	single := goredislib.NewClient(&goredislib.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { single.Close() })
	for name, l := range map[string]func(opts ...rediscore.Option) *rediscore.Locker{
		"goredis":        func(opts ...rediscore.Option) *rediscore.Locker { return goredis.New(ofSingle{single}, opts...) },
		"goredis/hidden": func(opts ...rediscore.Option) *rediscore.Locker { return goredis.New(ofAny{single}, opts...) },
		"rueidis": func(opts ...rediscore.Option) *rediscore.Locker {
			return rueidis.New(ofRueidis{rueidisClient(t, server.Addr())}, opts...)
		},
	} {
		t.Run(name, func(t *testing.T) { requireHandover(t, server, l(rediscore.WithPrefix(t.Name()))) })
	}
}

func rueidisClient(t *testing.T, addrs ...string) rueidislib.Client {
	client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: addrs, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// TestDecoratorsInACluster does the same in a cluster, also with replicas.
func TestDecoratorsInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	sinceRedis7(t, cluster.Nodes[0])
	client := goredislib.NewClusterClient(&goredislib.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	for name, l := range map[string]func(opts ...rediscore.Option) *rediscore.Locker{
		"goredis":         func(opts ...rediscore.Option) *rediscore.Locker { return goredis.New(ofCluster{client}, opts...) },
		"goredis/methods": func(opts ...rediscore.Option) *rediscore.Locker { return goredis.New(ofMethods{client}, opts...) },
		"goredis/inside": func(opts ...rediscore.Option) *rediscore.Locker {
			return goredis.New(ofAny{client}, append(opts, goredis.WithInside(client))...)
		},
		"rueidis": func(opts ...rediscore.Option) *rediscore.Locker {
			return rueidis.New(ofRueidis{rueidisClient(t, cluster.Addrs()...)}, opts...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			requireHandover(t, cluster.MasterOf(t, t.Name()+"k"), l(rediscore.WithPrefix(t.Name())))
			requireCycle(t, l(rediscore.WithPrefix(t.Name()), rediscore.WithReplicas(1, patient)), "replicated")
		})
	}
	t.Run("single", func(t *testing.T) { // a client of one server at a node
		for _, a := range clients.All {
			for _, node := range cluster.Nodes[:3] {
				if node == cluster.MasterOf(t, "k") {
					continue
				}
				for method, call := range calls(dial(t, a, node.Addr()), "k") {
					err := call(t.Context())
					require.ErrorContains(t, err, "locks need a client of the cluster", "%s, %s", a.Name, method)
					require.True(t, dlock.NoEffect(err) && dlock.Refused(err), "%s, %s: %v", a.Name, method, err)
				}
			}
		}
	})
	t.Run("hidden", func(t *testing.T) {
		requireRefused(t, ofAny{client}, "hides whether it is for one server, a cluster or a ring")
		requireRefused(t, ofAny{ofAny{ofCluster{client}}}, "hides whether")
	})
}

// TestDecoratedRings wraps a ring: on two of its clients a key may be on two servers.
func TestDecoratedRings(t *testing.T) {
	ring := goredislib.NewRing(&goredislib.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { ring.Close() })
	requireRefused(t, ring, "a ring")
	requireRefused(t, ofRing{ring}, "a ring")
	requireRefused(t, ofAny{ring}, "hides whether")
	requireRefused(t, ofAny{ofRing{ring}}, "hides whether")
	requireRefused(t, ofAny{ring}, "a ring", goredis.WithInside(ring))
	requireRefused(t, ofAny{ring}, "WithInside(<nil>)", goredis.WithInside(nil))
}

// requireRefused fails unless all calls fail with a reason, and had no effect.
func requireRefused(t *testing.T, client goredislib.UniversalClient, reason string, opts ...rediscore.Option) {
	t.Helper()
	l := goredis.New(client, opts...)
	defer l.Close()
	for method, call := range calls(l, "k") {
		err := call(t.Context())
		require.ErrorIs(t, err, dlock.ErrInvalid, method)
		require.ErrorContains(t, err, reason, method)
		require.True(t, dlock.NoEffect(err), method)
	}
}

// A chaos panics in all methods of a client, while it is on.
type chaos struct{ on atomic.Bool }

func (c *chaos) strike() {
	if c.on.Load() {
		panic("chaos")
	}
}

type (
	chaoticGoRedis struct {
		*goredislib.Client
		*chaos
	}
	chaoticRueidis struct {
		rueidislib.Client
		*chaos
	}
	chaoticRedigo struct {
		redigolib.Conn
		*chaos
	}
)

func (c chaoticGoRedis) Options() *goredislib.Options { c.strike(); return c.Client.Options() }

func (c chaoticGoRedis) Process(ctx context.Context, cmd goredislib.Cmder) error {
	c.strike()
	return c.Client.Process(ctx, cmd)
}

func (c chaoticGoRedis) Pipeline() goredislib.Pipeliner { c.strike(); return c.Client.Pipeline() }

func (c chaoticGoRedis) Subscribe(ctx context.Context, channels ...string) *goredislib.PubSub {
	if c.on.Load() {
		return nil // dlock panics then, in a goroutine
	}
	return c.Client.Subscribe(ctx, channels...)
}

func (c chaoticRueidis) B() rueidislib.Builder       { c.strike(); return c.Client.B() }
func (c chaoticRueidis) Mode() rueidislib.ClientMode { c.strike(); return c.Client.Mode() }
func (c chaoticRueidis) Nodes() map[string]rueidislib.Client {
	c.strike()
	return c.Client.Nodes()
}

func (c chaoticRueidis) Do(ctx context.Context, cmd rueidislib.Completed) rueidislib.RedisResult {
	defer c.strike()
	return c.Client.Do(ctx, cmd)
}

func (c chaoticRueidis) DoMulti(ctx context.Context, cmds ...rueidislib.Completed) []rueidislib.RedisResult {
	defer c.strike()
	return c.Client.DoMulti(ctx, cmds...)
}

func (c chaoticRueidis) Receive(ctx context.Context, cmd rueidislib.Completed, f func(rueidislib.PubSubMessage)) error {
	defer c.strike()
	return c.Client.Receive(ctx, cmd, f)
}

func (c chaoticRedigo) Do(name string, args ...any) (any, error) {
	defer c.strike()
	return c.Conn.Do(name, args...)
}

func (c chaoticRedigo) Receive() (any, error) { c.strike(); return c.Conn.Receive() }
func (c chaoticRedigo) Close() error          { defer c.strike(); return c.Conn.Close() }

// TestClientsThatPanic uses clients that panic in all their methods for a while: in calls, subscriptions, and what they tell
// of themselves. The calls fail, their outcome is unknown, and the process goes on. Waiters are served afterwards.
func TestClientsThatPanic(t *testing.T) {
	t.Parallel()
	for name, dial := range map[string]func(t *testing.T, addr string, c *chaos, opts ...rediscore.Option) *rediscore.Locker{
		"goredis": func(t *testing.T, addr string, c *chaos, opts ...rediscore.Option) *rediscore.Locker {
			client := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
			t.Cleanup(func() { client.Close() })
			return goredis.New(chaoticGoRedis{client, c}, append(opts, rediscore.WithPrefix(t.Name()))...)
		},
		"rueidis": func(t *testing.T, addr string, c *chaos, opts ...rediscore.Option) *rediscore.Locker {
			return rueidis.New(chaoticRueidis{rueidisClient(t, addr), c}, append(opts, rediscore.WithPrefix(t.Name()))...)
		},
		"redigo": func(t *testing.T, addr string, c *chaos, opts ...rediscore.Option) *rediscore.Locker {
			pool := &redigolib.Pool{MaxIdle: 10, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
				conn, err := redigolib.DialContext(ctx, "tcp", addr)
				return chaoticRedigo{conn, c}, err
			}}
			t.Cleanup(func() { pool.Close() })
			return redigo.New(pool, append(opts, rediscore.WithPrefix(t.Name()))...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			c := new(chaos)
			l := dial(t, server.Addr(), c)
			acquire(t, l, "held", "H")
			granted := make(chan error, 1)
			go func() { _, err := l.Acquire(t.Context(), "held", "w", ttl); granted <- err }()
			require.Eventually(t, func() bool { return listening(t, server, t.Name()) == 1 }, patient, pause)
			reasons := make(chan error, 1)
			without := dial(t, server.Addr(), c, rediscore.WithInboxError(func(err error) { reasons <- err }))
			defer without.Close()
			c.on.Store(true)
			for _, l := range []*rediscore.Locker{l, without} {
				for method, call := range calls(l, "k") {
					ctx, cancel := context.WithTimeout(t.Context(), patient)
					err := call(ctx)
					cancel()
					require.ErrorContains(t, err, "the Redis client panicked", method)
					require.False(t, dlock.NoEffect(err), "%s: %v", method, err)
				}
			}
			require.ErrorContains(t, <-reasons, "panicked", "without has no inbox yet")
			c.on.Store(false)
			require.True(t, release(t, l, "held", "H"))
			require.NoError(t, <-granted)
			require.True(t, release(t, l, "held", "w"))
			l.Close()
		})
	}
}
