package rueidis

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestInboxOnAReplica makes Listen believe that a replica has a slot, as a former master says of
// itself. The replica confirms the subscription, but the scripts on the master do not see it.
func TestInboxOnAReplica(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	if _, err := cluster.Nodes[0].Do("PUBSUB", "SHARDCHANNELS"); err != nil {
		t.Skipf("no shard channels: %v", err)
	}
	client := newClient(t, rueidis.ClientOption{InitAddress: cluster.Addrs()})
	master, replica := cluster.MasterOf(t, "k"), cluster.Nodes[3]
	for i, m := range cluster.Nodes[:3] {
		if m == master {
			replica = cluster.Nodes[3+i]
		}
	}
	c := newConn(client)
	l := rediscore.New(c)
	defer l.Close()
	c.masters.ranges = []slotRange{{0, 16383, replica.Addr()}}
	c.masters.since = time.Now().Add(time.Second) // they stay for so long
	inbox := func(s *redistest.Server) func() bool {
		return func() bool {
			channels, err := s.Do("PUBSUB", "SHARDCHANNELS")
			return err == nil && len(channels.([]any)) == 1
		}
	}
	adaptertest.HandOver(t, l, inbox(replica), inbox(master), func() bool { return c.Locate(t.Context(), "k") == master.Addr() })
}
