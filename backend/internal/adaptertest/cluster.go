package adaptertest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

// RunCluster tests Listen on a Redis Cluster, with clients of several settings, of which
// one is called Default.
func RunCluster(t *testing.T, dials map[string]Dial) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	if _, err := cluster.Nodes[0].Do("PUBSUB", "SHARDNUMSUB"); err != nil {
		t.Skipf("no shard channels: %v", err)
	}
	dial := func(t *testing.T, settings string) rediscore.Conn {
		conn := dials[settings].must(t, Settings{Addrs: cluster.Addrs()})
		require.True(t, conn.Cluster())
		return conn
	}
	t.Run("ListenOnTheMaster", func(t *testing.T) {
		for settings := range dials {
			listenOnTheMaster(t, cluster, dial(t, settings))
		}
	})
	t.Run("ListensShare", func(t *testing.T) { listensShare(t, cluster, dial(t, "Default")) })
	t.Run("ListenFollowsTheMaster", func(t *testing.T) { listenFollowsTheMaster(t, cluster, dial(t, "Default")) })
}

func listenOnTheMaster(t *testing.T, cluster *redistest.Cluster, conn rediscore.Conn) {
	inbox := Subscribe(t, conn, inboxChannel, true)
	master := cluster.MasterOf(t, inboxChannel)
	for _, n := range cluster.Nodes {
		require.Equal(t, n == master, subscribers(t, n) == 1, "subscribed on %s, the master being %s", n.Addr(), master.Addr())
	}
	require.EqualValues(t, 1, do(t, master, "SPUBLISH", inboxChannel, "hello"))
	inbox.RequireMessage("hello")
	inbox.Close()
	requireNoSubscribers(t, cluster)
}

// listensShare subscribes in many slots: that needs one connection to each master. A slot that
// moves ends its own subscription only: that Listen returns, does not subscribe again, and can be called
// again. What is cancelled is subscribed to again at once.
func listensShare(t *testing.T, cluster *redistest.Cluster, conn rediscore.Conn) {
	inboxes := make(map[string]*Inbox)
	inboxes[inboxChannel] = Subscribe(t, conn, inboxChannel, true)
	for i := range 110 {
		channel := "c" + strconv.Itoa(i%100)
		if i >= 100 {
			inboxes[channel].Close()
		}
		inboxes[channel] = Subscribe(t, conn, channel, true)
	}
	requireOneListener(t, cluster)
	cluster.StartMigration(t, inboxChannel).Finish(t)
	inboxes[inboxChannel].requireLost()
	delete(inboxes, inboxChannel)
	listenAgain(t, cluster.MasterOf(t, inboxChannel), conn)
	requireOneListener(t, cluster)
	for channel, inbox := range inboxes {
		require.EqualValues(t, 1, do(t, cluster.MasterOf(t, channel), "SPUBLISH", channel, "to "+channel), "listeners of %s", channel)
		inbox.RequireMessage("to " + channel)
	}
	for _, inbox := range inboxes {
		inbox.Close()
	}
	requireOfAll(t, cluster, "no subscription was left behind", func(n *redistest.Server) bool {
		return len(do(t, n, "PUBSUB", "SHARDCHANNELS").([]any)) == 0
	})
}

func requireOneListener(t *testing.T, cluster *redistest.Cluster) {
	t.Helper()
	requireOfAll(t, cluster, "one connection has all subscriptions on a master", func(n *redistest.Server) bool {
		return strings.Count(do(t, n, "CLIENT", "LIST", "TYPE", "pubsub").(string), "\n") <= 1
	})
}

// requireOfAll waits until something is so on all nodes.
func requireOfAll(t *testing.T, cluster *redistest.Cluster, what string, is func(*redistest.Server) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(cluster.Nodes, func(n *redistest.Server) bool { return !is(n) })
	}, 20*time.Second, time.Millisecond, what)
}

// Listen finds the replica that takes the place of a master that was killed, though the
// client is used for nothing else.
func listenFollowsTheMaster(t *testing.T, cluster *redistest.Cluster, conn rediscore.Conn) {
	inbox := Subscribe(t, conn, inboxChannel, true)
	master := cluster.MasterOf(t, inboxChannel)
	master.Kill()
	require.Error(t, <-inbox.Ended)
	successor := cluster.AwaitFailover(t, master)
	promoted := time.Now()
	listenAgain(t, successor, conn)
	require.Less(t, time.Since(promoted), 10*time.Second)
}

// listenAgain calls Listen until the client has learnt that the slot is on master now.
func listenAgain(t *testing.T, master *redistest.Server, conn rediscore.Conn) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		inbox := Listen(t, conn, inboxChannel, true)
		select {
		case e := <-inbox.events:
			require.Equal(t, rediscore.Subscribed, e.Kind)
			require.EqualValues(t, 1, subscribers(t, master))
			inbox.cancel()
			<-inbox.Ended
			return
		case err := <-inbox.Ended:
			require.True(t, time.Now().Before(limit), "Listen still fails: %v", err)
		}
	}
}

func subscribers(t *testing.T, n *redistest.Server) int64 {
	t.Helper()
	return do(t, n, "PUBSUB", "SHARDNUMSUB", inboxChannel).([]any)[1].(int64)
}

func requireNoSubscribers(t *testing.T, cluster *redistest.Cluster) {
	t.Helper()
	requireOfAll(t, cluster, "no subscription was left behind", func(n *redistest.Server) bool { return subscribers(t, n) == 0 })
}

// RunTopologies runs the suite on Sentinel and on a cluster, with clients that are given the addresses
// of Sentinels or of nodes, if DLOCK_LONG has topology. Faulty networks are left out: a proxy stands
// before one address, and the client learns of others.
func RunTopologies(t *testing.T, dial Dial) {
	if long.Of("topology") == "" {
		t.Skip("DLOCK_LONG has no topology")
	}
	const master = "mymaster"
	startSentinels := func(t testing.TB) redistest.Bed { return redistest.StartSentinels(t, master) }
	startCluster := func(t testing.TB) redistest.Bed { return redistest.StartCluster(t, 3, 1) }
	for name, c := range map[string]struct {
		start    func(testing.TB) redistest.Bed
		master   string
		replicas int
	}{
		"Sentinel":           {startSentinels, master, 0},
		"SentinelReplicated": {startSentinels, master, 2},
		"Cluster":            {startCluster, "", 0},
		"ClusterReplicated":  {startCluster, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			bed := c.start(t)
			suite(t, conformance.Harness{
				New: func(t *testing.T) dlock.Locker {
					conn := dial.must(t, Settings{Addrs: bed.Addrs(), Master: c.master})
					l := rediscore.New(conn, rediscore.WithReplicas(c.replicas, patient))
					t.Cleanup(func() { l.Close() })
					return l
				},
				Wipe: func(t *testing.T) {
					for _, m := range bed.Masters(t) {
						do(t, m, "FLUSHALL")
					}
				},
				Count: func(t *testing.T) (n int) {
					for _, m := range bed.Masters(t) {
						n += stored(m.Keys(t))
					}
					return n
				},
			})
		})
	}
}
