package rueidis

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestListenOnAReplica makes Listen believe that a replica has a slot, as a former master says of
// itself. The replica confirms the subscription, but the scripts on the master do not see it.
func TestListenOnAReplica(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: cluster.Addrs()})
	require.NoError(t, err)
	defer client.Close()
	const channel = "inbox"
	replica := cluster.Nodes[3]
	for i, master := range cluster.Nodes[:3] {
		if master == cluster.MasterOf(t, channel) {
			replica = cluster.Nodes[3+i]
		}
	}
	c := newConn(client)
	c.masters.ranges = []slotRange{{0, 16383, replica.Addr()}}
	c.masters.since = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	subscribed := false
	err = c.Listen(ctx, channel, true, func(e rediscore.Event) { subscribed = e.Kind == rediscore.Subscribed })
	require.ErrorIs(t, err, errReplaced)
	require.True(t, subscribed)
	require.Equal(t, cluster.MasterOf(t, channel).Addr(), c.masters.of(ctx, client, rediscore.Slot(channel)))
}
