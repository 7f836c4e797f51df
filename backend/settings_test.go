package backend_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// requireByMessage repeats a handover until it was made by a message. The handover returns how
// many scripts the server has run from a release to the grant, but for the release: a waiter that
// gets no message has to check in. One that gets it may do so too, every two seconds.
func requireByMessage(t *testing.T, handover func() (others int64)) {
	t.Helper()
	const tries = 10
	for range tries {
		if handover() == 0 {
			return
		}
	}
	t.Fatalf("none of %d handovers was made by a message", tries)
}

// scripts returns how many scripts the server has run.
func scripts(t *testing.T, server *redistest.Server) int64 {
	t.Helper()
	count := server.CommandCount(t)
	return count["eval"] + count["evalsha"]
}

func newGoRedis(t testing.TB, o goredislib.Options) *rediscore.Locker {
	o.ContextTimeoutEnabled = true
	client := goredislib.NewClient(&o)
	t.Cleanup(func() { client.Close() })
	return goredis.New(client, rediscore.WithPrefix(t.Name()))
}

func newRueidis(t testing.TB, o rueidislib.ClientOption) *rediscore.Locker {
	client, err := rueidislib.NewClient(o)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return rueidis.New(client, rediscore.WithPrefix(t.Name()))
}

func newRedigo(t testing.TB, pool *redigolib.Pool, addr string) *rediscore.Locker {
	pool.DialContext = func(ctx context.Context) (redigolib.Conn, error) { return redigolib.DialContext(ctx, "tcp", addr) }
	t.Cleanup(func() { pool.Close() })
	return redigo.New(pool, rediscore.WithPrefix(t.Name()))
}

// A hook counts the commands of a go-redis client, as tracing hooks do.
type hook struct{ calls atomic.Int32 }

func (h *hook) DialHook(next goredislib.DialHook) goredislib.DialHook { return next }

func (h *hook) ProcessHook(next goredislib.ProcessHook) goredislib.ProcessHook {
	return func(ctx context.Context, cmd goredislib.Cmder) error {
		h.calls.Add(1)
		_, _ = cmd.FullName(), cmd.String()
		return next(ctx, cmd)
	}
}

func (h *hook) ProcessPipelineHook(next goredislib.ProcessPipelineHook) goredislib.ProcessPipelineHook {
	return next
}

// TestSettingsOfClients uses a lock through clients with the settings found in services.
func TestSettingsOfClients(t *testing.T) {
	t.Parallel()
	for name, dial := range map[string]func(t *testing.T, addr string) *rediscore.Locker{
		"goredis/RESP2": func(t *testing.T, addr string) *rediscore.Locker {
			return newGoRedis(t, goredislib.Options{Addr: addr, Protocol: 2})
		},
		"goredis/OneConnection": func(t *testing.T, addr string) *rediscore.Locker {
			return newGoRedis(t, goredislib.Options{Addr: addr, PoolSize: 1, MaxActiveConns: 2})
		},
		"goredis/Hook": func(t *testing.T, addr string) *rediscore.Locker {
			client := goredislib.NewClient(&goredislib.Options{Addr: addr})
			h := new(hook)
			client.AddHook(h)
			t.Cleanup(func() { client.Close(); require.NotZero(t, h.calls.Load()) })
			return goredis.New(client, rediscore.WithPrefix(t.Name()))
		},
		"rueidis/RESP2": func(t *testing.T, addr string) *rediscore.Locker {
			return newRueidis(t, rueidislib.ClientOption{InitAddress: []string{addr}, AlwaysRESP2: true, DisableCache: true})
		},
		"rueidis/Pipelining": func(t *testing.T, addr string) *rediscore.Locker {
			return newRueidis(t, rueidislib.ClientOption{InitAddress: []string{addr}, DisableCache: true, AlwaysPipelining: true})
		},
		"rueidis/OneConnection": func(t *testing.T, addr string) *rediscore.Locker {
			return newRueidis(t, rueidislib.ClientOption{InitAddress: []string{addr}, PipelineMultiplex: -1, BlockingPoolSize: 1})
		},
		"redigo/OneConnection": func(t *testing.T, addr string) *rediscore.Locker {
			return newRedigo(t, &redigolib.Pool{MaxIdle: 1, MaxActive: 1, Wait: true}, addr)
		},
		"goredis/Decorated": func(t *testing.T, addr string) *rediscore.Locker {
			return goredis.New(ofSingle{goRedisClient(t, addr)}, rediscore.WithPrefix(t.Name()))
		},
		"goredis/Hidden": func(t *testing.T, addr string) *rediscore.Locker {
			return goredis.New(ofAny{goRedisClient(t, addr)}, rediscore.WithPrefix(t.Name()))
		},
		"rueidis/Decorated": func(t *testing.T, addr string) *rediscore.Locker {
			return rueidis.New(ofRueidis{rueidisClient(t, addr)}, rediscore.WithPrefix(t.Name()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			requireHandover(t, server, dial(t, server.Addr()))
		})
	}
}

// TestInboxIsOnTheMaster uses clients that read from replicas, and take SUBSCRIBE for a read.
func TestInboxIsOnTheMaster(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	reads := func(cmd rueidislib.Completed) bool { return cmd.IsReadOnly() }
	t.Run("Replicas", func(t *testing.T) {
		requireHandover(t, master, newRueidis(t, rueidislib.ClientOption{
			InitAddress: []string{master.Addr()}, SendToReplicas: reads,
			Standalone: rueidislib.StandaloneOption{ReplicaAddress: []string{replica.Addr()}},
		}))
	})
	t.Run("Sentinel", func(t *testing.T) {
		sentinel := redistest.StartSentinel(t, master, masterName, 1)
		requireHandover(t, master, newRueidis(t, rueidislib.ClientOption{
			InitAddress: []string{sentinel.Addr()}, SendToReplicas: reads, Sentinel: rueidislib.SentinelOption{MasterSet: masterName},
		}))
	})
}

// requireHandover uses a lock through one client, with two waiters that are served by
// messages.
func requireHandover(t *testing.T, server *redistest.Server, l *rediscore.Locker) {
	t.Helper()
	const key = "k"
	defer l.Close()
	requireCycle(t, l, key)
	requireByMessage(t, func() (others int64) {
		acquire(t, l, key, "w0")
		granted := make(chan string, 2)
		for _, token := range []string{"w1", "w2"} {
			go func() {
				if _, err := l.Acquire(t.Context(), key, token, ttl); err == nil {
					granted <- token
				}
			}()
		}
		soon(t, func() bool { return listening(t, server, t.Name()) == 2 })
		holder := "w0"
		for range 2 {
			before := scripts(t, server)
			require.True(t, release(t, l, key, holder))
			select {
			case holder = <-granted:
				others += scripts(t, server) - before - 1
			case <-time.After(patient):
				t.Fatal("nobody was served")
			}
		}
		require.True(t, release(t, l, key, holder))
		return others
	})
}

// listening counts the waiters under a prefix that have registered an inbox.
func listening(t *testing.T, server *redistest.Server, prefix string) (n int) {
	t.Helper()
	for _, key := range server.Keys(t) {
		if !strings.HasPrefix(key, prefix+"{") || !strings.Contains(key, "dlock1:waiters:") {
			continue
		}
		for _, waiter := range do(t, server, "HVALS", key).([]any) {
			if strings.Contains(waiter.(string), "dlock1:inbox:") {
				n++
			}
		}
	}
	return n
}

// TestSocket uses locks over a Unix socket.
func TestSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "dlock") // the path of a socket has to be short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	server := redistest.Start(t, "--unixsocket", socket)
	s := clients.Settings{Addrs: []string{socket}, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			l, _ := a.Dial(t, s, rediscore.WithPrefix(t.Name()))
			requireHandover(t, server, l)
		})
	}
}

// TestDatabases waits for the same key in two databases, which share their channels.
func TestDatabases(t *testing.T) {
	t.Parallel()
	each(t, clients.All, func(t *testing.T, a clients.Library) {
		server := redistest.Start(t)
		var lockers []*rediscore.Locker
		for _, db := range []int{3, 4} {
			l, _ := a.Dial(t, clients.Settings{Addrs: []string{server.Addr()}, DB: db, Caches: true}, rediscore.WithPrefix(t.Name()))
			t.Cleanup(func() { l.Close() })
			lockers = append(lockers, l)
		}
		requireByMessage(t, func() (others int64) { return handOverInTurn(t, server, lockers) })
	})
}

// handOverInTurn has a waiter in each database, and hands over in one after the other. It
// returns how many other scripts the server has run meanwhile.
func handOverInTurn(t *testing.T, server *redistest.Server, lockers []*rediscore.Locker) (others int64) {
	t.Helper()
	const key = "k"
	granted := make([]chan error, len(lockers))
	waiter := func(db int) string { return "waiter" + strconv.Itoa(db) }
	for db, l := range lockers {
		granted[db] = make(chan error, 1)
		acquire(t, l, key, "holder")
		go func() { _, err := l.Acquire(t.Context(), key, waiter(db), ttl); granted[db] <- err }()
	}
	soon(t, func() bool {
		inboxes := do(t, server, "PUBSUB", "CHANNELS", t.Name()+"dlock1:inbox:*").([]any)
		return len(inboxes) == len(lockers)
	})
	for db, l := range lockers {
		before := scripts(t, server)
		require.True(t, release(t, l, key, "holder"))
		require.NoError(t, <-granted[db])
		others += scripts(t, server) - before - 1
		requireHeldBy(t, l, key, waiter(db))
		if other := db + 1; other < len(lockers) {
			require.Empty(t, granted[other], "a waiter of another database was served")
			requireHeldBy(t, lockers[other], key, "holder")
		}
	}
	for db, l := range lockers {
		require.True(t, release(t, l, key, waiter(db)))
	}
	return others
}

// TestIdleConnectionsAreCut uses a server that closes connections after a second without
// traffic. Leases stay, and waiters are served.
func TestIdleConnectionsAreCut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--timeout", "1")
	careful := newRedigo(t, &redigolib.Pool{MaxIdle: 1, IdleTimeout: 500 * time.Millisecond}, server.Addr())
	acquire(t, careful, "k", "t")
	leases := make([]*dlock.Lease, len(clients.All))
	granted := make([]chan error, len(clients.All))
	for i, a := range clients.All {
		client := dlock.New(dial(t, a, server.Addr()), dlock.WithTTL(5*time.Second))
		t.Cleanup(func() { client.Close() })
		lease, err := client.Acquire(t.Context(), a.Name)
		require.NoError(t, err)
		leases[i], granted[i] = lease, make(chan error, 1)
		go func() {
			next, err := client.Acquire(t.Context(), a.Name)
			granted[i] <- err
			if err == nil {
				_ = next.Release()
			}
		}()
	}
	time.Sleep(2600 * time.Millisecond) // past a renewal and an ask
	require.True(t, renew(t, careful, "k", "t"), "redigo finds no connection that is cut")
	for i, lease := range leases {
		require.NoError(t, lease.Err(), clients.All[i].Name)
		require.Eventually(t, func() bool { // some find out by using a connection that it is gone
			err := lease.Release()
			require.NotErrorIs(t, err, dlock.ErrLost, clients.All[i].Name)
			return err == nil
		}, 5*time.Second, pause)
		select {
		case err := <-granted[i]:
			require.NoError(t, err, clients.All[i].Name)
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the waiter was not served", clients.All[i].Name)
		}
	}
}

// A lease is lost, and an attempt fails, since the application has taken all connections of the pool. The errors say so.
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	redigoPool := &redigolib.Pool{MaxActive: 1, Wait: true, Dial: func() (redigolib.Conn, error) { return redigolib.Dial("tcp", server.Addr()) }}
	defer redigoPool.Close()
	goredisClient := goredislib.NewClient(&goredislib.Options{Addr: server.Addr(), PoolSize: 1, ContextTimeoutEnabled: true})
	defer goredisClient.Close()
	for name, c := range map[string]struct {
		locker *rediscore.Locker
		occupy func() (free func())
	}{
		"goredis": {goredis.New(goredisClient), func() func() { conn := goredisClient.Conn(); conn.Ping(t.Context()); return func() { conn.Close() } }},
		"redigo":  {redigo.New(redigoPool), func() func() { conn := redigoPool.Get(); return func() { conn.Close() } }},
	} {
		t.Run(name, func(t *testing.T) {
			client := dlock.New(c.locker, dlock.WithTTL(3*time.Second))
			defer client.Close()
			lease, err := client.Acquire(t.Context(), name)
			require.NoError(t, err)
			defer c.occupy()()
			<-lease.Done()
			require.ErrorContains(t, lease.Err(), "pool")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err = client.TryAcquire(ctx, name)
			require.ErrorIs(t, err, dlock.ErrUnavailable)
			require.ErrorContains(t, err, "no answer for ")
			require.ErrorContains(t, err, "pool")
			t.Log(lease.Err(), err)
		})
	}
}

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

func goRedisClient(t *testing.T, addr string) *goredislib.Client {
	client := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	return client
}

func rueidisClient(t *testing.T, addrs ...string) rueidislib.Client {
	client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: addrs, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// TestDecoratorsInACluster uses decorated clients of a cluster, also with replicas: they serve waiters by messages, as the
// client inside does.
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
			return goredis.New(chaoticGoRedis{goRedisClient(t, addr), c}, append(opts, rediscore.WithPrefix(t.Name()))...)
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
			granted := startWait(t.Context(), l, "held", "w")
			soon(t, func() bool { return listening(t, server, t.Name()) == 1 })
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

// A wrapped connection has only the methods of redigo's Conn.
type wrapped struct{ redigolib.Conn }

// TestWrappedConnections uses redigo with connections that hide the methods for contexts and
// time-outs.
func TestWrappedConnections(t *testing.T) {
	skipIfShort(t)
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
	t.Run("Handover", func(t *testing.T) { requireHandover(t, server, redigo.New(pool, redigo.WithPrefix(t.Name()))) })
	t.Run("Lease", func(t *testing.T) {
		const ttl = 2 * time.Second
		client := dlock.New(redigo.New(pool), dlock.WithTTL(ttl))
		defer client.Close()
		for range 2 {
			lease, err := client.Acquire(t.Context(), t.Name())
			require.NoError(t, err)
			for first := lease.Deadline(); lease.Deadline().Sub(first) < ttl/2; time.Sleep(pause) {
				require.NoError(t, lease.Err())
			}
			require.NoError(t, lease.Release())
		}
	})
	t.Run("Inbox", func(t *testing.T) { // silent for longer than the connection's read time-out
		l := redigo.New(pool, redigo.WithPrefix(t.Name()))
		defer l.Close()
		acquire(t, l, "k", "H")
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		go l.Acquire(ctx, "k", "w", ttl)
		soon(t, func() bool { return listening(t, server, t.Name()) == 1 })
		subscribed := server.CommandCount(t)["subscribe"]
		<-ctx.Done()
		require.Equal(t, subscribed, server.CommandCount(t)["subscribe"])
	})
	t.Run("Hangs", func(t *testing.T) {
		pool := wrap(redigolib.DialReadTimeout(time.Minute))
		t.Cleanup(func() { pool.Close() })
		l := redigo.New(pool)
		acquire(t, l, t.Name(), "H")
		server.Suspend()
		for method, call := range calls(l, t.Name()) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			began := time.Now()
			err := call(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, method)
			require.Less(t, time.Since(began), 10*time.Second, method)
		}
		server.Resume()
		require.True(t, retry(func() error { _, err := l.Release(t.Context(), t.Name(), "H"); return err }) == nil)
		require.Eventually(t, func() bool { // every connection is given back
			return pool.ActiveCount() == pool.IdleCount()
		}, 20*time.Second, pause)
	})
}

// TestCrowd has a hundred goroutines of one process wait for one lock, through a client with one connection in a slow network.
// The holder's renewals do not suffer, there is at most one more connection, and all are served.
func TestCrowd(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const crowd = 100
	each(t, clients.All, func(t *testing.T, a clients.Library) {
		server := redistest.Start(t)
		proxy := adaptertest.Proxy(t, server.Addr())
		proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: 2500 * time.Microsecond})
		l, _ := a.Dial(t, clients.Settings{Addrs: []string{proxy.Addr()}, Pool: 1, Patience: time.Minute})
		defer l.Close()
		locks := dlock.New(l, dlock.WithTTL(10*time.Second))
		defer locks.Close()
		holder, err := locks.Acquire(t.Context(), "k")
		require.NoError(t, err)
		var all sync.WaitGroup
		defer all.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*patient)
		defer cancel()
		for range crowd {
			all.Go(func() {
				lease, err := locks.Acquire(ctx, "k")
				if err == nil {
					err = lease.Release()
				}
				assert.NoError(t, err)
			})
		}
		soon(t, func() bool { return listening(t, server, "") == crowd }, "not all wait with an inbox")
		time.Sleep(time.Second)
		require.NoError(t, holder.Err(), "the holder's lease")
		list := do(t, server, "CLIENT", "LIST", "TYPE", "pubsub").(string)
		require.LessOrEqual(t, strings.Count(list, "\n"), 1, "connections with subscriptions: %s", list)
		require.NoError(t, holder.Release())
		all.Wait()
	})
}
