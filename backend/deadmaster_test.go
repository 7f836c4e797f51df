package backend_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestClusterDeadMaster renews a batch while one master is down. The leases on the other
// masters are renewed, and reported so.
func TestClusterDeadMaster(t *testing.T) {
	t.Parallel()
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) { deadMaster(t, fail, true) })
	}
}

// TestClusterDeadMasterUnknownScript does the same when the living masters do not
// know the script, as after a failover.
func TestClusterDeadMasterUnknownScript(t *testing.T) {
	t.Parallel()
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) { deadMaster(t, fail, false) })
	}
}

var failures = map[string]func(*redistest.Server){
	"Stopped":   (*redistest.Server).Stop,    // refuses connections
	"Suspended": (*redistest.Server).Suspend, // accepts them, and does not answer
}

// deadMaster renews the same leases through clients with connections to all masters, and
// through clients without one to the dead master.
func deadMaster(t *testing.T, fail func(*redistest.Server), scripts bool) {
	cluster := partlyAvailable(t)
	batch := make([]dlock.Renewal, 60)
	onDead := make([]bool, len(batch))
	for i := range batch {
		batch[i] = dlock.Renewal{Key: fmt.Sprint("k", i), Token: "mine", TTL: ttl}
		onDead[i] = cluster.MasterOf(t, batch[i].Key) == cluster.Nodes[2]
	}
	require.False(t, onDead[0], "the key that cold clients use")
	lockers := make(map[string]dlock.BatchRenewer)
	for name, a := range clusterAdapters {
		warm, cold := a.dial(t, cluster), a.dial(t, cluster)
		acquireAll(t, warm, batch)
		requireRenewed(t, warm, batch)
		require.True(t, renew(t, cold, batch[0].Key, batch[0].Token))
		lockers[name+"/Warm"], lockers[name+"/Cold"] = warm, cold
	}
	if !scripts {
		flushScripts(t, cluster)
	}
	fail(cluster.Nodes[2])
	for name, l := range lockers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireLivingRenewed(t, l, batch, onDead)
		})
	}
}

// partlyAvailable starts a cluster that serves the other slots when a master is down.
func partlyAvailable(t *testing.T) *redistest.Cluster {
	t.Helper()
	cluster := redistest.StartCluster(t, 3, 0)
	for _, n := range cluster.Nodes {
		do(t, n, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	return cluster
}

func flushScripts(t *testing.T, cluster *redistest.Cluster) {
	t.Helper()
	for _, n := range cluster.Nodes {
		do(t, n, "SCRIPT", "FLUSH")
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

func requireLivingRenewed(t *testing.T, l dlock.BatchRenewer, batch []dlock.Renewal, onDead []bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
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
			require.NoError(t, r.Err, "%q, on a living master", batch[i].Key)
			require.True(t, r.Held, "%q, on a living master", batch[i].Key)
		}
	}
}
