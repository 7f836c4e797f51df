package backend_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
		require.Eventually(t, func() bool { return listening(t, server, t.Name()) == 2 }, patient, pause)
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
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
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
	require.Eventually(t, func() bool {
		inboxes := do(t, server, "PUBSUB", "CHANNELS", t.Name()+"dlock1:inbox:*").([]any)
		return len(inboxes) == len(lockers)
	}, patient, pause)
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
