package rueidis

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { adaptertest.Main(m) }

func TestAdapter(t *testing.T) {
	adaptertest.Run(t, adaptertest.Adapter{
		Dial: dialWith(rueidis.ClientOption{}),
		Nil:  func(opts ...rediscore.Option) *rediscore.Locker { return New(nil, opts...) },
	})
}

// dialWith dials clients with some options.
func dialWith(option rueidis.ClientOption) adaptertest.Dial {
	return func(t testing.TB, s adaptertest.Settings) (rediscore.Conn, error) {
		option := option
		option.InitAddress, option.Sentinel.MasterSet = s.Addrs, s.Master
		option.ConnWriteTimeout, option.Dialer.Timeout = s.Timeout, max(5*time.Second, s.Timeout)
		client, err := rueidis.NewClient(option)
		if errors.Is(err, rueidis.ErrNoCache) { // miniredis
			option.DisableCache = true
			option.ForceSingleClient = true // it says that it is a cluster, and has no SSUBSCRIBE
			option.AlwaysRESP2 = true       // it refuses all other commands on a connection with a subscription
			client, err = rueidis.NewClient(option)
		}
		if err != nil {
			return nil, err
		}
		t.Cleanup(client.Close)
		return newConn(client), nil
	}
}

func newClient(t testing.TB, option rueidis.ClientOption) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(option)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func TestTopology(t *testing.T) {
	adaptertest.RunTopologies(t, dialWith(rueidis.ClientOption{}))
}

// Subscriptions need no connection of the blocking pool, and leave no goroutine behind: with a pool
// of one, the application's own blocking command works beside them, and they beside it.
func TestListenLeavesTheBlockingPool(t *testing.T) {
	server := redistest.Start(t)
	client := newClient(t, rueidis.ClientOption{InitAddress: []string{server.Addr()}, BlockingPoolSize: 1})
	blocked := make(chan error, 1)
	go func() { blocked <- client.Do(t.Context(), client.B().Blpop().Key("list").Timeout(0).Build()).Error() }()
	require.Eventually(t, func() bool {
		reply, err := server.Do("INFO", "clients")
		return err == nil && strings.Contains(reply.(string), "blocked_clients:1")
	}, 30*time.Second, time.Millisecond)
	connections := connected(t, server)

	var all []*adaptertest.Inbox
	for i := range 10 {
		all = append(all, adaptertest.Listen(t, newConn(client), fmt.Sprint("inbox", i), false))
	}
	for _, inbox := range all {
		inbox.RequireSubscribed()
	}
	require.Equal(t, connections, connected(t, server), "connections")
	_, err := server.Do("RPUSH", "list", "x")
	require.NoError(t, err)
	require.NoError(t, <-blocked)
	for _, inbox := range all {
		inbox.Close()
	}
	reply, err := server.Do("PUBSUB", "CHANNELS")
	require.NoError(t, err)
	require.Empty(t, reply, "channels after the end of all Listens")
}

// connected returns how many clients the server has.
func connected(t *testing.T, server *redistest.Server) string {
	reply, err := server.Do("INFO", "clients")
	require.NoError(t, err)
	return regexp.MustCompile(`connected_clients:\d+`).FindString(reply.(string))
}

// While the shared connections lead to a former master, calls and the inbox use one connection of the blocking pool. They
// return to the shared ones when these lead to a master, and the connection to the pool.
func TestDetour(t *testing.T) {
	old, master := redistest.Start(t), redistest.Start(t)
	proxy, err := faultproxy.New(old.Addr())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	client := newClient(t, rueidis.ClientOption{InitAddress: []string{proxy.Addr()}, BlockingPoolSize: 1})
	c := newConn(client)
	l := rediscore.New(c)
	_, err = l.TryAcquire(t.Context(), "k", "t", time.Minute)
	require.NoError(t, err)
	_, err = old.Do("REPLICAOF", "127.0.0.1", "1")
	require.NoError(t, err)
	proxy.Move(master.Addr())

	attempt, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
	require.NoError(t, err)
	require.True(t, attempt.Acquired)
	granted := make(chan error, 1)
	go func() { _, err := l.Acquire(t.Context(), "k", "waiter", time.Minute); granted <- err }()
	require.Eventually(t, func() bool {
		reply, err := master.Do("PUBSUB", "CHANNELS")
		return err == nil && len(reply.([]any)) == 1
	}, 10*time.Second, time.Millisecond, "the inbox is on the master")
	time.Sleep(2 * trialPause)
	held, err := l.Release(t.Context(), "k", "t")
	require.NoError(t, err)
	require.True(t, held)
	require.NoError(t, <-granted)
	require.NotNil(t, c.detour.line.Load())

	_, err = old.Do("CLIENT", "KILL", "TYPE", "normal")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := l.Renew(t.Context(), "k", "waiter", time.Minute)
		require.NoError(t, err)
		return c.detour.line.Load() == nil
	}, 30*time.Second, time.Millisecond, "the shared connections are used again")
	require.NoError(t, l.Close())
	blocking := client.B().Blpop().Key("list").Timeout(0.01).Build()
	require.ErrorIs(t, client.Do(t.Context(), blocking).Error(), rueidis.Nil, "the pool has its connection")
}

// The blocking pool may have many connections that lead to a former master. All are left at once.
func TestDetourWithManyIdleConnections(t *testing.T) {
	old, master := redistest.Start(t), redistest.Start(t)
	if _, err := old.Do("CLIENT", "INFO"); err != nil {
		t.Skip("before Redis 6.2, the age of a connection is not known: ", err)
	}
	proxy, err := faultproxy.New(old.Addr())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	client := newClient(t, rueidis.ClientOption{InitAddress: []string{proxy.Addr()}, PipelineMultiplex: -1})
	var giveBack []func()
	for range 40 {
		line, release := client.Dedicate()
		require.NoError(t, line.Do(t.Context(), line.B().Ping().Build()).Error())
		giveBack = append(giveBack, release)
	}
	for _, release := range giveBack {
		release()
	}
	time.Sleep(2 * time.Second) // the server counts their age in seconds
	l := rediscore.New(newConn(client))
	defer l.Close()
	_, err = old.Do("REPLICAOF", "127.0.0.1", "1")
	require.NoError(t, err)
	proxy.Move(master.Addr())
	_, err = l.TryAcquire(t.Context(), "k", "t", time.Minute)
	require.NoError(t, err)
}

// ErrClosing of one connection is not that of the client; and what was on its way when the
// client was closed may have had an effect.
func TestErrClosing(t *testing.T) {
	server := redistest.Start(t)
	option := rueidis.ClientOption{InitAddress: []string{server.Addr()}}
	option.Dialer.KeepAlive = time.Hour // without pings of its own
	client := newClient(t, option)
	c := newConn(client).closing
	require.Equal(t, rueidis.ErrClosing, c.after(t.Context(), rueidis.ErrClosing))
	results := []rediscore.Result{{Reply: int64(1)}, {Err: rueidis.ErrClosing}, {Err: rueidis.ErrClosing}}
	calls := server.CommandCount(t)
	c.afterAll(t.Context(), results)
	calls["ping"]++
	calls["info"]++ // of the first CommandCount
	require.Equal(t, calls, server.CommandCount(t))
	require.Equal(t, []rediscore.Result{{Reply: int64(1)}, {Err: rueidis.ErrClosing}, {Err: rueidis.ErrClosing}}, results)
	require.NoError(t, c.before())

	client.Close()
	c.afterAll(t.Context(), results)
	require.NoError(t, results[0].Err)
	var unsent *dlock.NoEffectError
	for _, r := range results[1:] {
		require.ErrorIs(t, r.Err, dlock.ErrClosed)
		require.ErrorIs(t, r.Err, rueidis.ErrClosing)
		require.False(t, errors.As(r.Err, &unsent))
	}
	require.ErrorIs(t, c.before(), dlock.ErrClosed)
	require.ErrorAs(t, c.before(), &unsent)
}

func TestCluster(t *testing.T) {
	replicas := func(cmd rueidis.Completed) bool { return cmd.IsReadOnly() }
	adaptertest.RunCluster(t, map[string]adaptertest.Dial{
		"Default":        dialWith(rueidis.ClientOption{}),
		"SendToReplicas": dialWith(rueidis.ClientOption{SendToReplicas: replicas}),
	})
}

// TestBatchWithASlotOfNobody renews a batch in a cluster that serves half of the slots. Since Redis 8
// rueidis leaves a dead master out of its table, so the other half has no node then.
func TestBatchWithASlotOfNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
	if _, err := server.Do("CLUSTER", "ADDSLOTSRANGE", "0", "8191"); err != nil {
		t.Skip(err)
	}
	client := newClient(t, rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	l := New(client)
	t.Cleanup(func() { l.Close() })
	served := func(key string) bool { return rediscore.Slot(key) < 8192 }
	batch := make([]dlock.Renewal, 60)
	for i := range batch {
		batch[i] = dlock.Renewal{Key: fmt.Sprint("k", i), Token: "mine", TTL: time.Minute}
		if served(batch[i].Key) {
			require.Eventually(t, func() bool { // the server is ready soon
				_, err := l.TryAcquire(t.Context(), batch[i].Key, "mine", time.Minute)
				return err == nil
			}, 30*time.Second, 10*time.Millisecond)
		}
	}
	results, err := l.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	for i, r := range results {
		if served(batch[i].Key) {
			require.Equal(t, dlock.RenewResult{Held: true}, r, "%q, whose slot is served", batch[i].Key)
			continue
		}
		require.True(t, dlock.NoEffect(r.Err), "%q, whose slot has no node: %v", batch[i].Key, r.Err)
		require.False(t, dlock.Refused(r.Err), "%q, whose slot may have a node soon: %v", batch[i].Key, r.Err)
	}
}

// TestInboxOnAReplica makes Listen believe that a replica has a slot, as a former master says of
// itself. The replica confirms the subscription, but the scripts on the master do not see it.
func TestInboxOnAReplica(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	if _, err := cluster.Nodes[0].Do("PUBSUB", "SHARDCHANNELS"); err != nil {
		t.Skipf("no shard channels: %v", err)
	}
	client := newClient(t, rueidis.ClientOption{InitAddress: cluster.Addrs()})
	master, replica := cluster.MasterOf(t, "k"), cluster.Nodes[3]
	for i, m := range cluster.Nodes[:3] {
		if m == master {
			replica = cluster.Nodes[3+i]
		}
	}
	c := newConn(client)
	l := rediscore.New(c)
	defer l.Close()
	c.masters.ranges = []slotRange{{0, 16383, replica.Addr()}}
	c.masters.since = time.Now().Add(time.Second) // they stay for so long
	inbox := func(s *redistest.Server) func() bool {
		return func() bool {
			channels, err := s.Do("PUBSUB", "SHARDCHANNELS")
			return err == nil && len(channels.([]any)) == 1
		}
	}
	adaptertest.HandOver(t, l, inbox(replica), inbox(master), func() bool { return c.Locate(t.Context(), "k") == master.Addr() })
}
