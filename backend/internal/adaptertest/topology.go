package adaptertest

import (
	"os"
	"path"
	"slices"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/votetest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/redistest"
)

// RunTopologies runs the suite on Sentinel and on a cluster, with clients that are given the addresses
// of Sentinels or of nodes. Faulty networks are left out: a proxy stands before one address, and
// the client learns of others.
//
// Unless DLOCK_TOPOLOGY is set, only shortRound runs, on Sentinel without WithReplicas and on a cluster
// with it.
func RunTopologies(t *testing.T, dial Dial) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	const master = "mymaster"
	startSentinels := func(t testing.TB) redistest.Bed { return redistest.StartSentinels(t, master) }
	startCluster := func(t testing.TB) redistest.Bed { return redistest.StartCluster(t, 3, 1) }
	for name, c := range map[string]struct {
		start    func(testing.TB) redistest.Bed
		master   string
		replicas int
		long     bool
	}{
		"Sentinel":           {startSentinels, master, 0, false},
		"SentinelReplicated": {startSentinels, master, 2, true},
		"Cluster":            {startCluster, "", 0, true},
		"ClusterReplicated":  {startCluster, "", 1, false},
	} {
		if c.long && os.Getenv("DLOCK_TOPOLOGY") == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBed(t, c.start, func(t testing.TB, addrs []string) rediscore.Conn {
				return dial.must(t, Settings{Addrs: addrs, Master: c.master})
			}, rediscore.WithReplicas(c.replicas, patient))
		})
	}
}

// shortRound has the cases for which it matters most that there are several servers, and takes no case
// that needs the process for itself.
var shortRound = []string{
	"Exclusion", "SameTokenAgain", "ReleaseForgets",
	"BatchKeepsOrder", "BatchOfAnySize", "KeysAreIndependent", "FenceRises", "FenceSurvivesDataLoss",
	"CancelledWait", "WaitEndsOnRelease", "WaitEndsOnExpiry", "FirstComeFirstServed", "DeadHostManyWaiters",
	"InspectTells", "WaitingIsCounted", "History", "GuardedCounter",
}

func onBed(t *testing.T, start func(testing.TB) redistest.Bed, dial func(testing.TB, []string) rediscore.Conn, replicas rediscore.Option) {
	process.RLock()
	t.Cleanup(process.RUnlock) // when the servers have ended
	bed := start(t)
	t.Cleanup(process.RLock)
	process.RUnlock()
	long := os.Getenv("DLOCK_TOPOLOGY") != ""
	locker := func(t *testing.T) *rediscore.Locker {
		l := rediscore.New(dial(t, bed.Addrs()), replicas)
		t.Cleanup(func() { l.Close() })
		return l
	}
	wipe := func(t *testing.T) {
		for _, m := range bed.Masters(t) {
			do(t, m, "FLUSHALL")
		}
	}
	h := conformance.Harness{
		New:  func(t *testing.T) dlock.Locker { return locker(t) },
		Wipe: wipe,
		Count: func(t *testing.T) (n int) {
			for _, m := range bed.Masters(t) {
				n += stored(m.Keys(t))
			}
			return n
		},
	}
	conformance.Run(t, conformance.Harness{SkipForward: !long, PerCase: func(t *testing.T) conformance.Harness {
		if !long && !slices.Contains(shortRound, path.Base(t.Name())) {
			t.Skip("left out unless DLOCK_TOPOLOGY is set")
		}
		share(t)
		return h
	}})
	if long {
		t.Run("Votes", func(t *testing.T) {
			votetest.Run(t, sharing, func(t *testing.T) votetest.Store {
				return votetest.Store{
					New:  func() votetest.Client { return locker(t) },
					Wipe: func() { wipe(t) },
				}
			})
		})
	}
}
