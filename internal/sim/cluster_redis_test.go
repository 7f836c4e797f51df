package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/sim"
)

// A twinCluster is a real cluster and one of this package: two masters with a replica each.
type twinCluster struct {
	t     *testing.T
	redis *redistest.Cluster
	sim   *sim.Cluster
	nodes []*twins

	mu     sync.Mutex
	differ []string
}

func newTwinCluster(t *testing.T) *twinCluster {
	c := &twinCluster{t: t, redis: redistest.StartCluster(t, 2, 1), sim: sim.NewCluster(2, 1)}
	for i, server := range c.redis.Nodes {
		c.nodes = append(c.nodes, twinsOf(t, server))
		c.nodes[i].sim = c.sim.Nodes[i]
	}
	return c
}

// named puts the names of this package's nodes in place of addresses.
func (c *twinCluster) named(text string) string {
	for i, server := range c.redis.Nodes {
		text = strings.ReplaceAll(text, server.Addr(), fmt.Sprintf("node%d:6379", i))
	}
	return text
}

// ask runs a script on each node, without and with ASKING before it, and notes what differs. It returns the
// reply of a node that has served it, or an error.
func (c *twinCluster) ask(source string, keys, args []string) (reply any, err error) {
	served := false
	for i, n := range c.nodes {
		for _, asking := range []bool{false, true} {
			eval := n.sim.Eval
			pipe := n.redis.Pipeline()
			if asking {
				eval = n.sim.EvalAsking
				pipe.Do(context.Background(), "ASKING")
			}
			cmd := pipe.Do(context.Background(), evalCommand(source, keys, args)...)
			pipe.Exec(context.Background())
			reply2, err2 := eval(source, sha(source), keys, args)
			if real, simulated := c.named(result(cmd.Result())), result(reply2, err2); real != simulated {
				c.differ = append(c.differ, fmt.Sprintf("Redis %s\nsim   %s\nof node %d, asking %t, %q %q %s", real, simulated, i, asking, keys, args, source[:min(len(source), 60)]))
			}
			if !served {
				reply, err, served = reply2, err2, !rediscore.IsRedirection(err2)
			}
		}
	}
	return reply, err
}

// An askedConn asks all nodes. Its waits have no inbox.
type askedConn struct {
	*sim.Conn
	*twinCluster
}

func (c askedConn) Eval(_ context.Context, call rediscore.Call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ask(call.Script.Source, call.Keys(), call.Args)
}

func (c askedConn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	for i, call := range calls {
		results[i].Reply, results[i].Err = c.Eval(ctx, call)
	}
}

func (askedConn) Listen(ctx context.Context, _ string, _ bool, _ func(rediscore.Event)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A twinMigration moves the same slot on both sides.
type twinMigration struct {
	c    *twinCluster
	real *redistest.Migration
	sim  *sim.Migration
}

func (c *twinCluster) migrate(key string) twinMigration {
	m := c.redis.StartMigration(c.t, key)
	to := slices.Index(c.redis.Nodes, m.To)
	return twinMigration{c, m, c.sim.Migrate(key, c.sim.Nodes[to])}
}

// moveKey moves one key that is left, if there is one.
func (m twinMigration) moveKey(r *rand.Rand) {
	m.c.t.Helper()
	keys := m.sim.From.Keys()
	if len(keys) == 0 {
		return
	}
	key := keys[r.IntN(len(keys))]
	host, port, _ := net.SplitHostPort(m.real.To.Addr())
	_, err := m.real.From.Do("MIGRATE", host, port, "", "0", "4000", "REPLACE", "KEYS", key)
	require.NoError(m.c.t, err)
	m.sim.MoveKeys(key)
}

func (m twinMigration) finish() {
	m.real.MoveKeys(m.c.t)
	m.real.Finish(m.c.t)
	m.sim.Finish()
}

// What scripts do to keys that are not there, while a slot moves.
var clusterScripts = []string{
	"redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 'v')", "return redis.call('GET', 'elsewhere')", "return redis.pcall('SPUBLISH', 'elsewhere', 'm')",
	"return {redis.pcall('SPUBLISH', KEYS[1], 'm'), redis.call('PUBSUB', 'SHARDNUMSUB', KEYS[1])[2]}", "return redis.call('EXISTS', KEYS[1], KEYS[1] .. '2')",
	"return redis.call('PUBLISH', 'elsewhere', 'm')", "return redis.call('SET', KEYS[1], 'v')", "return redis.call('RENAMENX', KEYS[1], KEYS[1] .. '3')",
}

// Random calls of a Locker, while their slot moves, get the same replies from each node.
func TestClusterAsRedis(t *testing.T) {
	t.Parallel()
	c := newTwinCluster(t)
	for seed := range sequences(10) {
		for _, n := range c.nodes[:2] {
			require.NoError(t, n.redis.FlushAll(t.Context()).Err())
			n.sim.FlushAll()
		}
		tag := fmt.Sprintf("{%d}", seed)
		conn := askedConn{sim.Dial(c.sim.Nodes[0], nil), c}
		l := rediscore.New(conn, rediscore.WithPrefix(tag))
		r := rand.New(rand.NewPCG(seed, 5))
		var waits sync.WaitGroup
		var m twinMigration
		some := func(f func()) {
			for range 15 {
				randomCall(t.Context(), l, r, &waits)
				c.mu.Lock()
				if r.IntN(3) == 0 {
					keys := []string{tag + "k", tag + "k"}[:1+r.IntN(2)]
					c.ask(clusterScripts[r.IntN(len(clusterScripts))], keys, nil)
				}
				f()
				c.mu.Unlock()
			}
		}
		some(func() {})
		c.mu.Lock()
		c.ask("return 1", []string{tag, "other"}, nil)
		m = c.migrate(tag)
		c.mu.Unlock()
		some(func() {
			if r.IntN(4) == 0 {
				m.moveKey(r)
			}
		})
		c.mu.Lock()
		m.finish()
		c.mu.Unlock()
		some(func() {})
		waits.Wait()
		l.Close()
		conn.Close()
		require.Empty(t, c.differ, "seed %d", seed)
		for _, n := range c.nodes[:2] {
			n.compareKeys("")
		}
		for _, n := range c.nodes[2:] {
			require.Eventually(t, func() bool {
				keys := n.redis.Keys(t.Context(), "*").Val()
				slices.Sort(keys)
				return slices.Equal(keys, n.sim.Keys())
			}, 10*time.Second, time.Millisecond)
		}
	}
	c.publishes()
	c.subscriptionsEnd()
}

// publishes shows whether PUBLISH and SPUBLISH move the offset of the replication, and where messages of
// PUBLISH come.
func (c *twinCluster) publishes() {
	n := c.nodes[0]
	for _, setting := range [][]any{{"CONFIG", "SET", "repl-ping-replica-period", "3600"}, {"DEBUG", "SET-ACTIVE-EXPIRE", "0"}} {
		n.do(setting...)
	}
	for _, command := range []string{"PUBLISH", "SPUBLISH"} {
		before := n.info("master_repl_offset")
		n.eval("return redis.call(ARGV[1], KEYS[1], 'm')", []string{"0"}, []string{command})
		after := n.info("master_repl_offset")
		require.Equal(c.t, before[0] != after[0], before[1] != after[1], command)
	}
	for i, at := range c.nodes {
		sub := &twinSubscription{twinCluster: c, redis: at.redis.Subscribe(c.t.Context(), "c")}
		c.t.Cleanup(func() { sub.redis.Close() })
		_, err := sub.redis.Receive(c.t.Context())
		require.NoError(c.t, err)
		sub.sim, err = at.sim.Subscribe("c", false)
		require.NoError(c.t, err)
		n.eval("return redis.call('PUBLISH', 'c', 'm')", []string{"0"}, nil)
		require.Equal(c.t, sub.real(), sub.simulated(), "node %d", i)
	}
}

// subscriptionsEnd compares where one can subscribe to a shard channel while its slot moves and after a
// failover, where its messages come, and which subscriptions end.
func (c *twinCluster) subscriptionsEnd() {
	const channel = "k"
	from := slices.Index(c.redis.Nodes, c.redis.MasterOf(c.t, channel))
	require.Same(c.t, c.sim.MasterOf(channel), c.sim.Nodes[from])
	var m twinMigration
	for n, step := range []func(){
		func() {},
		func() { m = c.migrate(channel) },
		func() { m.finish() },
		func() {
			replica := c.nodes[3-from]
			replica.do("CLUSTER", "FAILOVER", "TAKEOVER")
			replica.sim.Promote()
			c.sim.Nodes[1-from].Follow(replica.sim)
		},
		func() { // until the new master has heard of its replica
			do := c.nodes[3-from].do
			require.Eventually(c.t, func() bool {
				return len(do("CLUSTER", "REPLICAS", do("CLUSTER", "MYID")).([]any)) == 1
			}, 10*time.Second, time.Millisecond)
		},
	} {
		subs := make([]*twinSubscription, len(c.nodes))
		for i, n := range c.nodes {
			subs[i] = c.subscribe(n, channel)
		}
		step()
		require.Eventually(c.t, func() bool { // all nodes have heard of it
			c.differ = nil
			c.ask("return 1", []string{channel}, nil)
			return c.differ == nil
		}, 10*time.Second, time.Millisecond)
		for _, n := range c.nodes {
			if n.sim == c.sim.MasterOf(channel) {
				n.do("SPUBLISH", channel, "m")
				doing(c.t, n.sim)("SPUBLISH", channel, "m")
			}
		}
		for i, sub := range subs {
			require.Equal(c.t, sub.real(), sub.simulated(), "step %d, node %d", n, i)
		}
	}
}

// A twinSubscription is one to a shard channel, on a node. It may have been refused.
type twinSubscription struct {
	*twinCluster
	redis *redis.PubSub
	sim   *sim.Subscription
	err   string // of both
}

func (c *twinCluster) subscribe(n *twins, channel string) *twinSubscription {
	sub := n.redis.SSubscribe(c.t.Context(), channel)
	c.t.Cleanup(func() { sub.Close() })
	_, real := sub.Receive(c.t.Context())
	sub2, simulated := n.sim.Subscribe(channel, true)
	require.Equal(c.t, c.named(fmt.Sprint(real)), fmt.Sprint(simulated))
	return &twinSubscription{c, sub, sub2, fmt.Sprint(simulated)}
}

// real is what comes next: an end or a message.
func (s *twinSubscription) real() string {
	if s.sim == nil {
		return s.err
	}
	event, err := s.redis.ReceiveTimeout(s.t.Context(), 10*time.Second)
	if err != nil {
		return err.Error()
	}
	if sub, ok := event.(*redis.Subscription); ok {
		return sub.Kind
	}
	return event.(*redis.Message).Payload
}

func (s *twinSubscription) simulated() string {
	if s.sim == nil {
		return s.err
	}
	select {
	case <-s.sim.Ended:
		return "sunsubscribe"
	case <-s.sim.Came:
		return s.sim.Take()[0].Text
	default:
		return "nothing"
	}
}
