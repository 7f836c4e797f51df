package backend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestClusterInPart changes a cluster that serves the other slots when a master is down: a master joins,
// slots get lost, and then a master.
func TestClusterInPart(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for _, n := range cluster.Nodes {
		do(t, n, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	joined := join(t, cluster)
	t.Run("NewMaster", func(t *testing.T) { newMaster(t, cluster, joined) })
	t.Run("LostSlot", func(t *testing.T) { lostSlot(t, cluster) })
	t.Run("DeadMaster", func(t *testing.T) { deadMaster(t, cluster) })
}

// newMaster moves the slots of locks to a master that has joined the cluster after the clients have
// read the table of slots. The master has no replicas, which shows that it was asked.
func newMaster(t *testing.T, cluster *redistest.Cluster, master *redistest.Server) {
	for _, a := range clients.Topologies {
		name := a.Name
		l := dialCluster(t, a, cluster, rediscore.WithReplicas(1, time.Millisecond))
		key := "new " + name
		var few *rediscore.ReplicasError
		_, err := l.TryAcquire(t.Context(), key, "t", ttl)
		require.ErrorAs(t, err, &few)
		m := cluster.StartMigrationTo(t, key, master)
		m.MoveKeys(t)
		_, err = l.TryAcquire(t.Context(), key+"{"+key+"}", "t", ttl)
		var unsent *dlock.NoEffectError
		require.ErrorAs(t, err, &unsent, name)
		require.True(t, unsent.Temporary, "%s: an ASK that cannot be followed yet: %v", name, err)
		m.Finish(t)
		require.Eventually(t, func() bool {
			_, err = l.Renew(t.Context(), key, "t", ttl)
			return errors.As(err, &few)
		}, patient, pause, "%s: the new master is not known", name)
	}
}

// join adds a master without slots to a cluster, and waits until all others know it. It ends with t.
func join(t *testing.T, cluster *redistest.Cluster) *redistest.Server {
	t.Helper()
	s := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
	host, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	id := do(t, s, "CLUSTER", "MYID").(string)
	for _, n := range cluster.Nodes {
		do(t, n, "CLUSTER", "MEET", host, port)
	}
	for _, n := range cluster.Nodes {
		require.Eventually(t, func() bool { return strings.Contains(do(t, n, "CLUSTER", "NODES").(string), id) }, patient, pause)
	}
	require.Eventually(t, func() bool {
		info := do(t, s, "CLUSTER", "INFO").(string)
		return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384")
	}, patient, pause)
	return s
}

// lostSlot takes the slot of a key away. The error of a cluster client says that the call had no effect.
func lostSlot(t *testing.T, cluster *redistest.Cluster) {
	lockers := make(map[string]*rediscore.Locker)
	for _, a := range clients.Topologies {
		lockers[a.Name] = dialCluster(t, a, cluster)
		acquire(t, lockers[a.Name], "lost "+a.Name, "H") // connects
		release(t, lockers[a.Name], "lost "+a.Name, "H")
	}
	for name, l := range lockers {
		slot := strconv.Itoa(cluster.Nodes[0].Slot(t, "lost "+name))
		for _, n := range cluster.Nodes {
			_, _ = n.Do("CLUSTER", "DELSLOTS", slot)
		}
		for method, call := range calls(l, "lost "+name) {
			err := refusedWith(t, "CLUSTERDOWN", call)
			require.Equal(t, "no effect, for now", verdictOf(err), "%s, %s: %v", name, method, err)
		}
	}
}

// deadMaster renews a batch while one master hangs and the others have forgotten the scripts, as after a
// failover, and when it is down. The leases on the others are renewed, and reported so: through clients
// that have connections to all masters, and through clients without one to the dead master.
func deadMaster(t *testing.T, cluster *redistest.Cluster) {
	dead := cluster.Nodes[2]
	batch := make([]dlock.Renewal, 60)
	onDead := make([]bool, len(batch))
	for i := range batch {
		batch[i] = dlock.Renewal{Key: fmt.Sprint("k", i), Token: "mine", TTL: ttl}
		onDead[i] = cluster.MasterOf(t, batch[i].Key) == dead
	}
	require.False(t, onDead[0], "the key that cold clients use")
	connect := func(a clients.Library) map[string]dlock.BatchRenewer {
		warm, cold := dialCluster(t, a, cluster), dialCluster(t, a, cluster)
		acquireAll(t, warm, batch)
		requireRenewed(t, warm, batch)
		require.True(t, renew(t, cold, batch[0].Key, batch[0].Token))
		return map[string]dlock.BatchRenewer{"Warm": warm, "Cold": cold}
	}
	hung, down := make(map[string]map[string]dlock.BatchRenewer), make(map[string]map[string]dlock.BatchRenewer)
	for _, a := range clients.Topologies {
		hung[a.Name], down[a.Name] = connect(a), connect(a)
	}
	dead.Suspend()
	for name, lockers := range hung {
		for _, n := range cluster.Nodes[:2] {
			do(t, n, "SCRIPT", "FLUSH")
		}
		t.Run("Suspended/"+name, func(t *testing.T) { requireLivingRenewed(t, lockers, batch, onDead) })
	}
	dead.Kill()
	for name, lockers := range down {
		t.Run("Killed/"+name, func(t *testing.T) { requireLivingRenewed(t, lockers, batch, onDead) })
	}
}

func requireRenewed(t *testing.T, l dlock.BatchRenewer, batch []dlock.Renewal) {
	t.Helper()
	results, err := l.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	for i, r := range results {
		require.Equal(t, dlock.RenewResult{Held: true}, r, "%q", batch[i].Key)
	}
}

// requireLivingRenewed has all lockers renew a batch at the same time.
func requireLivingRenewed(t *testing.T, lockers map[string]dlock.BatchRenewer, batch []dlock.Renewal, onDead []bool) {
	for name, l := range lockers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			start := time.Now()
			results, err := l.RenewBatch(ctx, batch)
			require.Less(t, time.Since(start), 15*time.Second, "RenewBatch did not end with its context")
			require.NoError(t, err)
			for i, r := range results {
				if onDead[i] {
					require.Error(t, r.Err, "%q, on the dead master", batch[i].Key)
					require.False(t, r.Held, "%q, on the dead master", batch[i].Key)
				} else {
					require.Equal(t, dlock.RenewResult{Held: true}, r, "%q, on a living master", batch[i].Key)
				}
			}
		})
	}
}
