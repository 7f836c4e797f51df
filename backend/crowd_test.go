package backend_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

// crowdRTT is the round trip of the network in TestCrowd.
const crowdRTT = 5 * time.Millisecond

// A crowdClient is the user's client, with the Locker on it.
type crowdClient struct {
	locker *rediscore.Locker
	ping   func(context.Context) error
}

// A dialFunc connects to an address through a slow network.
type dialFunc func(ctx context.Context, addr string) (net.Conn, error)

var crowdClients = []struct {
	name    string
	cluster bool // it can be used for one
	narrow  bool // its calls share one connection
	dial    func(t *testing.T, addrs []string, cluster bool, dial dialFunc) crowdClient
}{
	{"goredis", true, false, crowdGoRedis(0)},
	{"goredis,PoolSize=1", true, true, crowdGoRedis(1)},
	{"rueidis", true, true, crowdRueidis},
	{"redigo,MaxActive=20", false, false, crowdRedigo(20)},
	{"redigo,MaxActive=1", false, true, crowdRedigo(1)},
}

func crowdGoRedis(pool int) func(*testing.T, []string, bool, dialFunc) crowdClient {
	return func(t *testing.T, addrs []string, cluster bool, dial dialFunc) crowdClient {
		o := &goredislib.UniversalOptions{
			Addrs: addrs, PoolSize: pool, PoolTimeout: time.Minute, ContextTimeoutEnabled: true,
			Dialer: func(ctx context.Context, _, addr string) (net.Conn, error) { return dial(ctx, addr) },
		}
		client := goredislib.UniversalClient(goredislib.NewClient(o.Simple()))
		if cluster {
			client = goredislib.NewClusterClient(o.Cluster())
		}
		t.Cleanup(func() { client.Close() })
		return crowdClient{goredis.New(client), func(ctx context.Context) error { return client.Do(ctx, "ping").Err() }}
	}
}

func crowdRueidis(t *testing.T, addrs []string, cluster bool, dial dialFunc) crowdClient {
	client, err := rueidislib.NewClient(rueidislib.ClientOption{
		InitAddress: addrs, ForceSingleClient: !cluster,
		DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, addr)
		},
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return crowdClient{rueidis.New(client), func(ctx context.Context) error {
		return client.Do(ctx, client.B().Ping().Build()).Error()
	}}
}

func crowdRedigo(pool int) func(*testing.T, []string, bool, dialFunc) crowdClient {
	return func(t *testing.T, addrs []string, _ bool, dial dialFunc) crowdClient {
		p := &redigolib.Pool{MaxActive: pool, MaxIdle: pool, Wait: true, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			return redigolib.DialContext(ctx, "tcp", addrs[0], redigolib.DialContextFunc(
				func(ctx context.Context, _, addr string) (net.Conn, error) { return dial(ctx, addr) }))
		}}
		t.Cleanup(func() { p.Close() })
		return crowdClient{redigo.New(p), func(ctx context.Context) error {
			conn, err := p.GetContext(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Do("PING")
			return err
		}}
	}
}

// slowNetwork returns a function that connects to servers through proxies with the round trip of
// TestCrowd.
func slowNetwork(t *testing.T, servers ...*redistest.Server) dialFunc {
	proxies := make(map[string]string)
	for _, s := range servers {
		p, err := faultproxy.New(s.Addr())
		require.NoError(t, err)
		t.Cleanup(p.Close)
		p.Slow(faultproxy.Both, faultproxy.Pace{Latency: crowdRTT / 2})
		proxies[s.Addr()] = p.Addr()
	}
	return func(ctx context.Context, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", proxies[addr])
	}
}

// TestCrowd has a crowd of goroutines of one process wait, all for one lock or each for its own.
// The user's own calls and the holder's renewals do not suffer, there is at most one more
// connection per master, and all are served. crowd of DLOCK_LONG is the size of a crowd that is measured with
// all clients. Otherwise a hundred wait for one lock, on the connection that they share.
func TestCrowd(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	oneKey := func(t *testing.T, n, c int, window time.Duration) {
		server := redistest.Start(t)
		client := crowdClients[c].dial(t, []string{server.Addr()}, false, slowNetwork(t, server))
		crowdOnOneKey(t, server, client, n, window)
	}
	if long.Of("crowd") == "" {
		t.Parallel()
		for i, c := range crowdClients {
			if c.narrow {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					oneKey(t, 100, i, time.Second)
				})
			}
		}
		return
	}
	n, err := strconv.Atoi(long.Of("crowd"))
	require.NoError(t, err, "crowd")
	for i, c := range crowdClients {
		t.Run(c.name+"/OneKey", func(t *testing.T) { oneKey(t, n, i, crowdWindow) })
		t.Run(c.name+"/ManyKeys", func(t *testing.T) {
			server := redistest.Start(t)
			dial := slowNetwork(t, server)
			holder := crowdClients[0].dial(t, []string{server.Addr()}, false, dial)
			crowdOnManyKeys(t, []*redistest.Server{server}, c.dial(t, []string{server.Addr()}, false, dial), holder, n)
		})
	}
	t.Run("Cluster", func(t *testing.T) { crowdInCluster(t, n) })
}

func crowdInCluster(t *testing.T, n int) {
	cluster := redistest.StartCluster(t, 3, 0)
	if _, err := cluster.Nodes[0].Do("PUBSUB", "SHARDNUMSUB"); err != nil {
		t.Skipf("no shard channels: %v", err)
	}
	dial := slowNetwork(t, cluster.Nodes...)
	for _, c := range crowdClients {
		if c.cluster {
			t.Run(c.name, func(t *testing.T) {
				holder := crowdClients[0].dial(t, cluster.Addrs(), true, dial)
				crowdOnManyKeys(t, cluster.Nodes, c.dial(t, cluster.Addrs(), true, dial), holder, n)
			})
		}
	}
}

// crowdWindow is how long calls are counted while all wait: more than one check-in period.
const crowdWindow = 3 * time.Second

func crowdOnOneKey(t *testing.T, server *redistest.Server, c crowdClient, n int, window time.Duration) {
	defer c.locker.Close()
	locks := dlock.New(c.locker, dlock.WithTTL(10*time.Second))
	defer locks.Close()
	unloaded := pings(t, c, window/5)
	holder, err := locks.Acquire(t.Context(), "k")
	require.NoError(t, err)
	const enough = 2000 // handovers
	grants := make(chan time.Time, n)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range n {
		all.Go(func() {
			lease, err := locks.Acquire(ctx, "k")
			if err != nil {
				if ctx.Err() == nil {
					t.Error("acquire:", err)
				}
				return
			}
			grants <- time.Now()
			if err := lease.Release(); err != nil {
				t.Error("release:", err)
			}
		})
	}
	awaitQueues(t, []*redistest.Server{server}, n)
	loaded := pings(t, c, window)
	require.NoError(t, holder.Err(), "the holder's lease")
	requireListeners(t, server)
	was := time.Now()
	require.NoError(t, holder.Release())
	var gaps []time.Duration
	for range min(n, enough) {
		select {
		case at := <-grants:
			gaps = append(gaps, at.Sub(was))
			was = at
		case <-time.After(time.Minute):
			t.Fatalf("%d were served, and then nobody for a minute", len(gaps))
		}
	}
	t.Logf("%d waiters: PING %v, %v unloaded; handover %v", n, loaded, unloaded, inRTT(gaps[1:], unloaded))
}

// crowdOnManyKeys has each goroutine wait for a key of its own, all of which another client holds.
func crowdOnManyKeys(t *testing.T, servers []*redistest.Server, c, other crowdClient, n int) {
	defer c.locker.Close()
	defer other.locker.Close()
	locks := dlock.New(c.locker)
	defer locks.Close()
	unloaded := pings(t, c, crowdWindow/5)
	keys := make([]string, n)
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
		slots <- struct{}{}
		all.Go(func() {
			acquire(t, other.locker, keys[i], "H")
			<-slots
		})
	}
	all.Wait()
	granted := make([]time.Time, n)
	for i, key := range keys {
		all.Go(func() {
			lease, err := locks.Acquire(t.Context(), key)
			if err != nil {
				t.Error("acquire:", err)
				return
			}
			granted[i] = time.Now()
			if err := lease.Release(); err != nil {
				t.Error("release:", err)
			}
		})
	}
	awaitQueues(t, servers, n)
	time.Sleep(time.Second) // those that have just opened their inbox check in
	before := scriptsOfAll(t, servers)
	loaded := pings(t, c, crowdWindow)
	perWaiter := float64(scriptsOfAll(t, servers)-before) / crowdWindow.Seconds() / float64(n)
	requireListeners(t, servers...)
	released := make([]time.Time, n)
	var releases sync.WaitGroup
	for i, key := range keys {
		slots <- struct{}{}
		releases.Go(func() {
			released[i] = time.Now()
			release(t, other.locker, key, "H")
			<-slots
		})
		time.Sleep(2 * time.Millisecond)
	}
	releases.Wait()
	all.Wait()
	served := make([]time.Duration, n)
	for i := range served {
		served[i] = granted[i].Sub(released[i])
	}
	t.Logf("%d waiters: PING %v, %v unloaded; %.2f scripts per waiter and second; served %v", n, loaded, unloaded, perWaiter, inRTT(served, unloaded))
	require.Less(t, perWaiter, 0.6, "scripts per waiter and second")
}

// pings returns the median of the user's pings.
func pings(t *testing.T, c crowdClient, window time.Duration) time.Duration {
	t.Helper()
	var all []time.Duration
	for end := time.Now().Add(window); time.Now().Before(end); time.Sleep(crowdRTT) {
		start := time.Now()
		require.NoError(t, c.ping(t.Context()))
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[len(all)/2].Round(10 * time.Microsecond)
}

// inRTT describes durations by some percentiles, in round trips as measured.
func inRTT(all []time.Duration, roundTrip time.Duration) string {
	slices.Sort(all)
	at := func(share float64) float64 {
		return float64(all[int(share*float64(len(all)-1))]) / float64(roundTrip)
	}
	return fmt.Sprintf("p50 %.2f, p99 %.2f, max %.2f round trips", at(0.5), at(0.99), at(1))
}

// awaitQueues waits until n tokens are in queues, all with an inbox.
func awaitQueues(t *testing.T, servers []*redistest.Server, n int) {
	t.Helper()
	const count = `local n = 0
		for _, key in ipairs(redis.call('KEYS', '*dlock1:waiters:*')) do
			for i, entry in ipairs(redis.call('HVALS', key)) do
				if entry:match('^%d+ %d+ %d+ [ps]') then n = n + 1 end
			end
		end
		return n`
	require.Eventually(t, func() bool {
		waiting := int64(0)
		for _, s := range servers {
			if waits, ok := do(t, s, "EVAL", count, "0").(int64); ok {
				waiting += waits
			}
		}
		return waiting == int64(n)
	}, 2*time.Minute, 100*time.Millisecond, "not all wait with an inbox")
}

func scriptsOfAll(t *testing.T, servers []*redistest.Server) (n int64) {
	for _, s := range servers {
		n += scripts(t, s)
	}
	return n
}

// requireListeners fails if a server has more than one connection with subscriptions.
func requireListeners(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		list := do(t, s, "CLIENT", "LIST", "TYPE", "pubsub").(string)
		require.LessOrEqual(t, strings.Count(list, "\n"), 1, "connections with subscriptions: %s", list)
	}
}
