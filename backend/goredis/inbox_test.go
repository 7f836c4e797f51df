package goredis

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

// TestInboxOnAReplica makes go-redis believe that a replica has all slots, as a former master says of
// itself. The replica confirms the subscription, but the scripts on the master do not see it.
func TestInboxOnAReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	var addr atomic.Value
	addr.Store(master.Addr())
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr.Load().(string)}}}}, nil
		},
	})
	defer client.Close()
	l := New(client)
	defer l.Close()
	_, err := l.TryAcquire(t.Context(), "k", "holder", time.Minute)
	require.NoError(t, err)
	granted := make(chan error, 1)
	go func() { _, err := l.Acquire(t.Context(), "k", "waiter", time.Minute); granted <- err }()
	for _, s := range []*redistest.Server{master, replica, master} {
		addr.Store(s.Addr())
		client.ReloadState(t.Context())
		require.Eventually(t, func() bool {
			channels, err := s.Do("PUBSUB", "CHANNELS")
			return err == nil && slices.ContainsFunc(channels.([]any), func(c any) bool { return strings.Contains(c.(string), "inbox") })
		}, 30*time.Second, time.Millisecond, "no inbox on %s", s.Addr())
	}
	_, err = l.Release(t.Context(), "k", "holder")
	require.NoError(t, err)
	require.NoError(t, <-granted)
}
