package backend_test

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestFencesAfterPromotions promotes a replica again and again, without its master's last writes, while locks are taken
// and released on both. The fences of the new master are all larger than those of its former master. There are twelve
// promotions if DLOCK_ADAPTERS is all.
func TestFencesAfterPromotions(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	lockers := make(map[*redistest.Server]*rediscore.Locker)
	for _, s := range []*redistest.Server{master, replica} {
		lockers[s] = connect(connectGoRedis).dial(t, s.Addr())
	}
	promotions := 2
	if adaptertest.All() {
		promotions = 12
	}
	fences := 0
	for n := range promotions {
		stop := make(chan struct{})
		var old, next struct {
			sync.WaitGroup
			grants
		}
		old.take(t, &old.WaitGroup, lockers[master], stop)
		time.Sleep(200 * time.Millisecond)
		do(t, replica, "REPLICAOF", "NO", "ONE")
		next.take(t, &next.WaitGroup, lockers[replica], stop)
		time.Sleep(500 * time.Millisecond)
		close(stop)
		old.Wait()
		next.Wait()
		for key, last := range old.last {
			require.Greater(t, next.first[key], last, "%s after promotion %d", key, n+1)
		}
		fences += old.count + next.count
		do(t, master, append([]string{"REPLICAOF"}, strings.Split(replica.Addr(), ":")...)...)
		master, replica = replica, master
		do(t, master, "SET", "promotion", fmt.Sprint(n))
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			reply, err := replica.Do("GET", "promotion")
			assert.NoError(t, err)
			assert.Equal(t, fmt.Sprint(n), reply)
		}, 30*time.Second, 10*time.Millisecond)
		time.Sleep(time.Second) // a copy of the last second has the master's marks
	}
	t.Logf("%d fences, %d promotions", fences, promotions)
}

// grants are the fences of keys on a server.
type grants struct {
	mu          sync.Mutex
	first, last map[string]int64
	count       int
}

// take takes and releases some locks, one after another each, until stop is closed.
func (g *grants) take(t *testing.T, all *sync.WaitGroup, l *rediscore.Locker, stop <-chan struct{}) {
	g.first, g.last = make(map[string]int64), make(map[string]int64)
	for i := range 8 {
		all.Go(func() {
			key, last := fmt.Sprint("key", i), int64(math.MinInt64)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				token := fmt.Sprintf("%p %d", g, n)
				a, err := l.TryAcquire(t.Context(), key, token, 50*time.Millisecond)
				if err == nil && !a.Acquired { // the former master's last lease
					continue
				}
				if err != nil || a.Fence <= last {
					t.Errorf("%+v after fence %d, %v", a, last, err)
					return
				}
				last = a.Fence
				g.note(key, a.Fence)
				if _, err := l.Release(t.Context(), key, token); err != nil {
					t.Errorf("not released: %v", err)
					return
				}
			}
		})
	}
}

func (g *grants) note(key string, fence int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count++
	g.last[key] = fence
	if _, ok := g.first[key]; !ok {
		g.first[key] = fence
	}
}
