package stress

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestTopologyFences asks Sentinel for failovers, and acquires locks on the old and the new master
// at once, as clients do that are still connected to them. If two hold a lock at once, the one on the new master has
// the larger fence.
func TestTopologyFences(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv(envTopology))
	if err != nil {
		t.Skip(envTopology + "=1m makes failovers for a minute")
	}
	s := redistest.StartSentinels(t, masterName)
	stepDown := slices.IndexFunc(s.Faults(), func(f redistest.Fault) bool { return f.Name == "stepped down" })
	failovers, pairs := 0, 0
	for start := time.Now(); time.Since(start) < d; failovers++ {
		h := grantsDuring(t, s, func() { s.Faults()[stepDown].Strike(t) })
		master := s.MasterOf(t, "").Addr()
		for _, pair := range h.Overlaps() {
			former, promoted := pair.Holds[0], pair.Holds[1]
			if former.Client == master {
				former, promoted = promoted, former
			}
			if former.Client == master || promoted.Client != master {
				continue
			}
			pairs++
			require.Greater(t, promoted.Fence, former.Fence, "%+v, %+v", promoted, former)
		}
	}
	require.NotZero(t, pairs, "pairs of holders in %d failovers: nothing was measured", failovers)
	t.Logf("%d failovers, %d pairs of holders", failovers, pairs)
}

// grantsDuring acquires and releases locks on each server during f.
func grantsDuring(t *testing.T, s *redistest.Sentinels, f func()) *history.History {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := history.NewRecorder(time.Now())
	var workers sync.WaitGroup
	for _, server := range s.Nodes {
		client := goredislib.NewClient(&goredislib.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		defer client.Close()
		l := goredis.New(client)
		defer l.Close()
		for range 8 {
			workers.Go(func() {
				for ctx.Err() == nil {
					h := &history.Hold{Client: server.Addr(), Key: fmt.Sprint("key", rand.N(20)), Token: fmt.Sprint(ids.Add(1)), Asked: r.Now()}
					a, err := l.TryAcquire(ctx, h.Key, h.Token, loadTTL)
					h.Start, h.Fence = r.Now(), a.Fence
					sleep(ctx, rand.N(20*time.Millisecond))
					if err != nil || !a.Acquired {
						continue
					}
					h.End = r.Now()
					r.Held(h)
					_, _ = l.Release(t.Context(), h.Key, h.Token)
				}
			})
		}
	}
	f()
	cancel()
	workers.Wait()
	return r.History()
}
