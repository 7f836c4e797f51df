package adaptertest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A DialCluster makes a Conn that knows of the nodes of a cluster at addrs, and closes
// its client when t ends.
type DialCluster func(t testing.TB, addrs []string) rediscore.Conn

// RunCluster tests Listen on a Redis Cluster, with clients of several settings, of which
// one is called Default.
func RunCluster(t *testing.T, dials map[string]DialCluster) {
	t.Cleanup(AwaitGoroutines)
	cluster := redistest.StartCluster(t, 3, 1)
	if _, err := cluster.Nodes[0].Do("PUBSUB", "SHARDNUMSUB"); err != nil {
		t.Skipf("no shard channels: %v", err)
	}
	for settings, dial := range dials {
		for name, test := range map[string]func(*testing.T, *redistest.Cluster, rediscore.Conn){
			"ListenOnTheMaster":     listenOnTheMaster,
			"ListenEndsWithTheSlot": listenEndsWithTheSlot,
			"ListensShare":          listensShare,
		} {
			t.Run(settings+"/"+name, func(t *testing.T) {
				conn := dial(t, cluster.Addrs())
				require.True(t, conn.Cluster())
				test(t, cluster, conn)
			})
		}
	}
	t.Run("ListenFollowsTheMaster", func(t *testing.T) {
		listenFollowsTheMaster(t, cluster, dials["Default"](t, cluster.Addrs()))
	})
}

const shardChannel = "ch {1}\n" // that of an inbox

func listenOnTheMaster(t *testing.T, cluster *redistest.Cluster, conn rediscore.Conn) {
	inbox := start(t, conn, true)
	require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, inbox.next())
	master := cluster.MasterOf(t, shardChannel)
	for _, n := range cluster.Nodes {
		require.Equal(t, n == master, subscribers(t, n) == 1, "subscribed on %s, the master being %s", n.Addr(), master.Addr())
	}
	require.EqualValues(t, 1, do(t, master, "SPUBLISH", shardChannel, "hello"))
	require.Equal(t, rediscore.Event{Kind: rediscore.Message, Payload: "hello"}, inbox.next())
	inbox.cancel()
	require.ErrorIs(t, <-inbox.ended, context.Canceled)
	requireNoSubscribers(t, cluster)
}

// The server ends a subscription when the slot of the channel moves. Listen
// returns then, does not subscribe again, and can be called again.
func listenEndsWithTheSlot(t *testing.T, cluster *redistest.Cluster, conn rediscore.Conn) {
	inbox := start(t, conn, true)
	require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, inbox.next())
	moveSlot(t, cluster)
	select {
	case err := <-inbox.ended:
		require.Error(t, err)
		require.NotErrorIs(t, err, context.Canceled)
		t.Logf("Listen returned %q", err)
	case <-time.After(10 * time.Second):
		t.Fatal("Listen did not notice that the slot has moved")
	}
	requireNoSubscribers(t, cluster)
	listenAgain(t, cluster.MasterOf(t, shardChannel), conn)
}

// listensShare subscribes in many slots: that needs one connection to each master. A slot that
// moves ends its own subscription only. What is cancelled is subscribed to again at once.
func listensShare(t *testing.T, cluster *redistest.Cluster, conn rediscore.Conn) {
	inboxes := make(map[string]*inbox)
	subscribe := func(channel string) {
		inboxes[channel] = startOn(t, conn, channel, true)
		require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, inboxes[channel].next(), channel)
	}
	subscribe(shardChannel)
	for i := range 100 {
		subscribe("c" + strconv.Itoa(i))
	}
	for i := range 10 {
		channel := "c" + strconv.Itoa(i)
		inboxes[channel].cancel()
		require.ErrorIs(t, <-inboxes[channel].ended, context.Canceled)
		subscribe(channel)
	}
	requireOneListener(t, cluster)
	moveSlot(t, cluster)
	select {
	case err := <-inboxes[shardChannel].ended:
		require.Error(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("Listen did not notice that the slot has moved")
	}
	delete(inboxes, shardChannel)
	listenAgain(t, cluster.MasterOf(t, shardChannel), conn)
	requireOneListener(t, cluster)
	for channel, inbox := range inboxes {
		require.EqualValues(t, 1, do(t, cluster.MasterOf(t, channel), "SPUBLISH", channel, "to "+channel), "listeners of %s", channel)
		require.Equal(t, rediscore.Event{Kind: rediscore.Message, Payload: "to " + channel}, inbox.next())
	}
	for _, inbox := range inboxes {
		inbox.cancel()
		require.ErrorIs(t, <-inbox.ended, context.Canceled)
	}
	require.Eventually(t, func() bool {
		for _, n := range cluster.Nodes {
			if len(do(t, n, "PUBSUB", "SHARDCHANNELS").([]any)) > 0 {
				return false
			}
		}
		return true
	}, 5*time.Second, time.Millisecond, "a subscription was left behind")
}

func requireOneListener(t *testing.T, cluster *redistest.Cluster) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, n := range cluster.Nodes {
			if strings.Count(do(t, n, "CLIENT", "LIST", "TYPE", "pubsub").(string), "\n") > 1 {
				return false
			}
		}
		return true
	}, 5*time.Second, time.Millisecond, "several connections with subscriptions on one master")
}

// Listen finds the replica that takes the place of a master that was killed, though the
// client is used for nothing else.
func listenFollowsTheMaster(t *testing.T, cluster *redistest.Cluster, conn rediscore.Conn) {
	inbox := start(t, conn, true)
	require.Equal(t, rediscore.Event{Kind: rediscore.Subscribed}, inbox.next())
	master := cluster.MasterOf(t, shardChannel)
	master.Kill()
	require.Error(t, <-inbox.ended)
	successor := cluster.AwaitFailover(t, master)
	promoted := time.Now()
	listenAgain(t, successor, conn)
	require.Less(t, time.Since(promoted), 10*time.Second)
}

// listenAgain calls Listen until the client has learnt that the slot is on master now.
func listenAgain(t *testing.T, master *redistest.Server, conn rediscore.Conn) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		inbox := start(t, conn, true)
		select {
		case e := <-inbox.events:
			require.Equal(t, rediscore.Subscribed, e.Kind)
			require.EqualValues(t, 1, subscribers(t, master))
			inbox.cancel()
			<-inbox.ended
			return
		case err := <-inbox.ended:
			require.True(t, time.Now().Before(limit), "Listen still fails: %v", err)
		}
	}
}

// moveSlot gives the slot of the channel to another master.
func moveSlot(t *testing.T, cluster *redistest.Cluster) {
	t.Helper()
	cluster.StartMigration(t, shardChannel).Finish(t)
}

func subscribers(t *testing.T, n *redistest.Server) int64 {
	t.Helper()
	return do(t, n, "PUBSUB", "SHARDNUMSUB", shardChannel).([]any)[1].(int64)
}

func requireNoSubscribers(t *testing.T, cluster *redistest.Cluster) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, n := range cluster.Nodes {
			if subscribers(t, n) != 0 {
				return false
			}
		}
		return true
	}, 20*time.Second, time.Millisecond, "a subscription was left behind")
}
