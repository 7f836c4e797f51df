package goredis

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

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
