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
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: server.Addr()}}}}, nil
		},
	})
	t.Cleanup(func() { client.Close() })
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
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: 9, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}},
				{Start: 10, End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:2"}}},
			}, nil
		},
	})
	t.Cleanup(func() { client.Close() })
	require.True(t, newConn(client).Cluster())
}

func TestCluster(t *testing.T) {
	adaptertest.RunCluster(t, map[string]adaptertest.Dial{
		"Default":        dialWith(redis.UniversalOptions{}),
		"ReadOnly":       dialWith(redis.UniversalOptions{ReadOnly: true}),
		"RouteByLatency": dialWith(redis.UniversalOptions{RouteByLatency: true}),
	})
}
