package goredis

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/internal/redistest"
)

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
