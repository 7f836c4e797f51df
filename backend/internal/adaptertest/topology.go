package adaptertest

import (
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

// RunTopologies runs the suite on Sentinel and on a cluster, with clients that are given the addresses
// of Sentinels or of nodes, if DLOCK_LONG has topology. Faulty networks are left out: a proxy stands
// before one address, and the client learns of others.
func RunTopologies(t *testing.T, dial Dial) {
	if long.Of("topology") == "" {
		t.Skip("DLOCK_LONG has no topology")
	}
	const master = "mymaster"
	startSentinels := func(t testing.TB) redistest.Bed { return redistest.StartSentinels(t, master) }
	startCluster := func(t testing.TB) redistest.Bed { return redistest.StartCluster(t, 3, 1) }
	for name, c := range map[string]struct {
		start    func(testing.TB) redistest.Bed
		master   string
		replicas int
	}{
		"Sentinel":           {startSentinels, master, 0},
		"SentinelReplicated": {startSentinels, master, 2},
		"Cluster":            {startCluster, "", 0},
		"ClusterReplicated":  {startCluster, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			bed := c.start(t)
			suite(t, conformance.Harness{
				New: func(t *testing.T) dlock.Locker {
					conn := dial.must(t, Settings{Addrs: bed.Addrs(), Master: c.master})
					l := rediscore.New(conn, rediscore.WithReplicas(c.replicas, patient))
					t.Cleanup(func() { l.Close() })
					return l
				},
				Wipe: func(t *testing.T) {
					for _, m := range bed.Masters(t) {
						do(t, m, "FLUSHALL")
					}
				},
				Count: func(t *testing.T) (n int) {
					for _, m := range bed.Masters(t) {
						n += stored(m.Keys(t))
					}
					return n
				},
			})
		})
	}
}
