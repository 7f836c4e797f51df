package backend_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestFencesAfterPromotions promotes a replica again and again, without its master's last writes, while locks are taken
// and released on both. Fences follow the clock, which both servers share here: a lock that is requested when another
// was granted has the larger fence, whichever server granted them. There are twelve promotions if DLOCK_LONG has adapters.
func TestFencesAfterPromotions(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	lockers := make(map[*redistest.Server]*rediscore.Locker)
	for _, s := range []*redistest.Server{master, replica} {
		lockers[s] = dial(t, clients.GoRedis, s.Addr())
	}
	promotions := 2
	if adaptertest.All() {
		promotions = 12
	}
	r := history.NewRecorder(time.Now())
	for n := range promotions {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		take(ctx, t, &all, r, master.Addr(), lockers[master])
		time.Sleep(200 * time.Millisecond)
		do(t, replica, "REPLICAOF", "NO", "ONE")
		take(ctx, t, &all, r, replica.Addr(), lockers[replica])
		time.Sleep(500 * time.Millisecond)
		cancel()
		all.Wait()
		do(t, master, append([]string{"REPLICAOF"}, strings.Split(replica.Addr(), ":")...)...)
		master, replica = replica, master
		do(t, master, "SET", "promotion", fmt.Sprint(n))
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			reply, err := replica.Do("GET", "promotion")
			assert.NoError(t, err)
			assert.Equal(t, fmt.Sprint(n), reply)
		}, 30*time.Second, 10*time.Millisecond)
	}
	h := r.History()
	require.Empty(t, h.Disorders(1))
	equal, near := sameFences(h.Holds)
	t.Logf("%d promotions, %d fences; of one key on the two servers: %d pairs of equal fences, %d others nearer than 8", promotions, len(h.Holds), equal, near)
}

// take takes and releases some locks on a server, one after another each, until ctx ends.
func take(ctx context.Context, t *testing.T, all *sync.WaitGroup, r *history.Recorder, server string, l *rediscore.Locker) {
	for i := range 8 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				h := &history.Hold{Client: server, Key: fmt.Sprint("key", i), Token: fmt.Sprint(server, n, r.Now()), Asked: r.Now()}
				a, err := l.TryAcquire(t.Context(), h.Key, h.Token, 50*time.Millisecond)
				h.Start, h.Fence = r.Now(), a.Fence
				if err == nil && !a.Acquired { // the former master's last lease
					continue
				}
				if !assert.NoError(t, err) {
					return
				}
				r.Held(h)
				if _, err := l.Release(t.Context(), h.Key, h.Token); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
}

// sameFences counts the pairs of two servers' fences of one key that are equal, and those that differ by less than 8.
func sameFences(holds []*history.Hold) (equal, near int) {
	slices.SortFunc(holds, func(a, b *history.Hold) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Fence, b.Fence)) })
	for i, h := range holds[1:] {
		before := holds[i]
		switch {
		case h.Key != before.Key || h.Client == before.Client:
		case h.Fence == before.Fence:
			equal++
		case h.Fence < before.Fence+8:
			near++
		}
	}
	return equal, near
}
