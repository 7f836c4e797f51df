package goredis

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { adaptertest.Main(m) }

func TestAdapter(t *testing.T) {
	adaptertest.Run(t, adaptertest.Adapter{
		Dial: dialWith(redis.UniversalOptions{MaxRetries: 3}),
		Nil:  func(opts ...rediscore.Option) *rediscore.Locker { return New((*redis.Client)(nil), opts...) },
	})
}

// dialWith dials clients with some options.
func dialWith(o redis.UniversalOptions) adaptertest.Dial {
	return func(t testing.TB, s adaptertest.Settings) (rediscore.Conn, error) {
		o := o
		o.Addrs, o.MasterName, o.ContextTimeoutEnabled = s.Addrs, s.Master, true
		o.DialTimeout, o.ReadTimeout = max(5*time.Second, s.Timeout), s.Timeout
		client := redis.NewUniversalClient(&o)
		t.Cleanup(func() { client.Close() })
		return newConn(client), nil
	}
}

// A cluster's client, and a client that is not known, repeat what was not answered with the code of their own.
func TestNothingIsSentTwice(t *testing.T) {
	for name, wrap := range map[string]func(testing.TB, *redis.Options) redis.UniversalClient{
		"cluster": func(t testing.TB, o *redis.Options) redis.UniversalClient {
			return clusterClient(t, redis.ClusterOptions{MaxRetries: 3}, func() string { return o.Addr })
		},
		"wrapped": func(t testing.TB, o *redis.Options) redis.UniversalClient {
			client := redis.NewClient(o)
			t.Cleanup(func() { client.Close() })
			return struct{ *redis.Client }{client}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adaptertest.NothingIsSentTwice(t, adaptertest.Adapter{Dial: func(t testing.TB, s adaptertest.Settings) (rediscore.Conn, error) {
				return newConn(wrap(t, &redis.Options{Addr: s.Addrs[0], MaxRetries: 3})), nil
			}})
		})
	}
}

// A ring is refused: on two of its clients a key may be on two servers.
func TestRing(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { ring.Close() })
	l := New(ring)
	t.Cleanup(func() { l.Close() })
	adaptertest.RequireInvalid(t, l, "client: a ring")
}

// What a server has refused says so, though a decorated client repeats the call.
func TestRefusalsThatAreRepeated(t *testing.T) {
	replica := redistest.StartReplica(t, redistest.Start(t))
	client := redis.NewClient(&redis.Options{Addr: replica.Addr(), MaxRetries: 3})
	t.Cleanup(func() { client.Close() })
	l := New(struct{ *redis.Client }{client})
	_, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
	require.ErrorContains(t, err, "READONLY")
	require.True(t, dlock.NoEffect(err))
	require.NoError(t, l.Close())
}

// ErrClosed of the client of one node is not that of a cluster's client.
func TestErrClosedOfANode(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
	_, err := server.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	if err != nil {
		t.Skip(err)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	t.Cleanup(func() { client.Close() })
	c := newConn(client)
	node := &dlock.NoEffectError{Err: redis.ErrClosed}
	require.Equal(t, error(node), c.unlessClosed(t.Context(), node))
	require.NoError(t, client.Close())
	err = c.unlessClosed(t.Context(), node)
	require.ErrorIs(t, err, dlock.ErrClosed)
	require.ErrorIs(t, err, redis.ErrClosed)
	var unsent *dlock.NoEffectError
	require.ErrorAs(t, err, &unsent)
}

// A rebuildCounter is a hook of the user. go-redis asks it for its part of the chain each time a
// hook is added to the same client.
type rebuildCounter struct{ chains int }

func (c *rebuildCounter) DialHook(next redis.DialHook) redis.DialHook {
	c.chains++
	return next
}

func (c *rebuildCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (c *rebuildCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A Locker leaves nothing on the client, which may outlive thousands of them.
func TestLockersLeaveNoHooks(t *testing.T) {
	var hooks rebuildCounter
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { client.Close() })
	client.AddHook(&hooks)
	for range 1000 {
		New(client).Close()
	}
	require.Equal(t, 1, hooks.chains, "hooks of a client after 1000 Lockers")
}

// In a cluster, nothing is added to the nodes that the client learns of later.
func TestLockersLeaveNoHooksOnNodes(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
	if _, err := server.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
		t.Skip(err)
	}
	hooksAfter := func(lockers int) int {
		var hooks rebuildCounter
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
		defer client.Close()
		client.OnNewNode(func(node *redis.Client) { node.AddHook(&hooks) })
		for range lockers {
			New(client).Close()
		}
		_, err := client.MasterForKey(t.Context(), "k")
		require.NoError(t, err)
		return hooks.chains
	}
	require.Equal(t, hooksAfter(0), hooksAfter(1000), "hooks of a cluster's node after 1000 Lockers")
}

// TestInboxOnAReplica makes go-redis believe that a replica has all slots, as a former master says of
// itself. The replica confirms the subscription, but the scripts on the master do not see it.
func TestInboxOnAReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	var addr atomic.Value
	addr.Store(master.Addr())
	client := clusterClient(t, redis.ClusterOptions{}, func() string { return addr.Load().(string) })
	l := New(client)
	defer l.Close()
	var until []func() bool
	for _, s := range []*redistest.Server{master, replica, master} {
		move := sync.OnceFunc(func() { addr.Store(s.Addr()); client.ReloadState(t.Context()) })
		until = append(until, func() bool {
			move()
			channels, err := s.Do("PUBSUB", "CHANNELS")
			return err == nil && slices.ContainsFunc(channels.([]any), func(c any) bool { return strings.Contains(c.(string), "inbox") })
		})
	}
	adaptertest.HandOver(t, l, until...)
}

func TestTopology(t *testing.T) {
	adaptertest.RunTopologies(t, dialWith(redis.UniversalOptions{}))
}

// A cluster client for one master that is not a cluster, such as that of NewFailoverClusterClient,
// uses plain channels and one inbox.
func TestClusterClientOfOneMaster(t *testing.T) {
	server := redistest.Start(t)
	if reply, err := server.Do("COMMAND", "INFO", "SSUBSCRIBE"); err != nil || reply.([]any)[0] != nil { // since Redis 7.0
		server = redistest.Start(t, "--rename-command", "SSUBSCRIBE", "")
	}
	client := clusterClient(t, redis.ClusterOptions{ContextTimeoutEnabled: true}, server.Addr)
	require.False(t, newConn(client).Cluster())
	l := New(client)
	t.Cleanup(func() { l.Close() })
	adaptertest.HandOver(t, l, func() bool {
		channels, err := server.Do("PUBSUB", "CHANNELS")
		return err == nil && len(channels.([]any)) == 1
	})
}

// One whose masters share the slots uses shard channels.
func TestClusterClientOfTwoMasters(t *testing.T) {
	first, second := func() string { return "127.0.0.1:1" }, func() string { return "127.0.0.1:2" }
	client := clusterClient(t, redis.ClusterOptions{}, first, second)
	require.True(t, newConn(client).Cluster())
}

// clusterClient returns the client of a cluster whose masters have these addresses. The last one has nearly all slots.
func clusterClient(t testing.TB, o redis.ClusterOptions, masters ...func() string) *redis.ClusterClient {
	o.ClusterSlots = func(context.Context) (slots []redis.ClusterSlot, err error) {
		for i, addr := range masters {
			slots = append(slots, redis.ClusterSlot{Start: i, End: i, Nodes: []redis.ClusterNode{{Addr: addr()}}})
		}
		slots[len(slots)-1].End = 16383
		return slots, nil
	}
	client := redis.NewClusterClient(&o)
	t.Cleanup(func() { client.Close() })
	return client
}

func TestCluster(t *testing.T) {
	adaptertest.RunCluster(t, map[string]adaptertest.Dial{
		"Default":        dialWith(redis.UniversalOptions{}),
		"ReadOnly":       dialWith(redis.UniversalOptions{ReadOnly: true}),
		"RouteByLatency": dialWith(redis.UniversalOptions{RouteByLatency: true}),
	})
}
