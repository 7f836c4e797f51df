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
	"github.com/dlock-go/dlock/internal/redistest"
)

// A grant is a hold of a key, and the server that granted it.
type grant struct {
	server          int
	fence           int64
	asked, from, to time.Time // when it was requested, and while it was held, as its holder saw it
}

// TestTopologyFences asks Sentinel for failovers, and acquires locks on the old and the new master
// at once, as clients do that are still connected to them. See the package documentation.
func TestTopologyFences(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv(envTopology))
	if err != nil {
		t.Skip(envTopology + "=1m makes failovers for a minute")
	}
	s := redistest.StartSentinels(t, masterName)
	stepDown := slices.IndexFunc(s.Faults(), func(f redistest.Fault) bool { return f.Name == "stepped down" })
	var failovers, pairs, equal, disordered int
	var worst int64
	for start := time.Now(); time.Since(start) < d; failovers++ {
		for _, grants := range grantsDuring(t, s, func() { s.Faults()[stepDown].Strike(t) }) {
			slices.SortFunc(grants, func(a, b grant) int { return a.from.Compare(b.from) })
			for i, first := range grants {
				for _, second := range grants[i+1:] {
					if second.server == first.server || !second.from.Before(first.to) {
						continue
					}
					pairs++
					switch lead := first.fence - second.fence; {
					case lead == 0:
						equal++
					case lead > 0 && second.asked.After(first.from):
						disordered++
						worst = max(worst, lead)
					}
				}
			}
		}
	}
	require.NotZero(t, pairs, "pairs of holders in %d failovers: nothing was measured", failovers)
	t.Logf("%d failovers, %d pairs of holders: %d with equal fences, %d in the wrong order by up to %v",
		failovers, pairs, equal, disordered, time.Duration(worst)*time.Microsecond)
	t.Logf("late writes of the first holder that a resource accepts: %d if it compares fences, %d if it compares leases, too",
		equal+disordered, disordered)
}

// grantsDuring acquires and releases locks on each server during f. It returns the grants by key.
func grantsDuring(t *testing.T, s *redistest.Sentinels, f func()) map[string][]grant {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	grants := make(map[string][]grant)
	var workers sync.WaitGroup
	for number, server := range s.Nodes {
		client := goredislib.NewClient(&goredislib.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		defer client.Close()
		l := goredis.New(client)
		defer l.Close()
		for range 8 {
			workers.Go(func() {
				for ctx.Err() == nil {
					asked, key, token := time.Now(), fmt.Sprint("key", rand.N(20)), fmt.Sprint(ids.Add(1))
					a, err := l.TryAcquire(ctx, key, token, loadTTL)
					g := grant{server: number, fence: a.Fence, asked: asked, from: time.Now()}
					sleep(ctx, rand.N(20*time.Millisecond))
					if err != nil || !a.Acquired {
						continue
					}
					g.to = time.Now()
					_, _ = l.Release(t.Context(), key, token)
					mu.Lock()
					grants[key] = append(grants[key], g)
					mu.Unlock()
				}
			})
		}
	}
	f()
	cancel()
	workers.Wait()
	return grants
}
