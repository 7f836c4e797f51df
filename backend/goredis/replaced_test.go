package goredis

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestListenOnAReplica makes go-redis believe that a replica has all slots, as a former master says of
// itself. The replica confirms the subscription, but the scripts on the master do not see it.
func TestListenOnAReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	var addr atomic.Value
	addr.Store(replica.Addr())
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr.Load().(string)}}}}, nil
		},
	})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := newConn(client).Listen(ctx, "inbox", false, func(e rediscore.Event) {
		if e.Kind == rediscore.Subscribed {
			addr.Store(master.Addr())
			client.ReloadState(ctx)
		}
	})
	require.ErrorIs(t, err, errReplaced)
}
