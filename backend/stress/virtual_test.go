package stress

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// TestBrokenLocksAreFound has workers use locks in memory that are broken in different ways, and one
// that is right.
func TestBrokenLocksAreFound(t *testing.T) {
	for _, test := range []struct {
		name                       string
		stores                     int // of the workers, in turn
		fault                      func(*journal, *memory.Locker)
		overlaps, losses, disorder bool
	}{
		{"right", 1, func(j *journal, l *memory.Locker) { j.Wipe(l.Wipe) }, false, false, false},
		{"data are lost", 1, func(_ *journal, l *memory.Locker) { l.Wipe() }, true, true, false},
		{"two stores", 2, func(*journal, *memory.Locker) {}, true, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				stores := []*memory.Locker{memory.New(), memory.New()}
				stores[1].SetClock(-time.Hour)
				r := newRound(t, nil)
				g := r.workers
				g.keys, g.ttls = []string{"k"}, lockTTLs
				for i := range 4 {
					open := func() (dlock.Locker, func(), error) { return stores[i%test.stores], func() {}, nil }
					_, err := g.start("memory", open, 1, (*worker).anything)
					require.NoError(t, err)
				}
				for time.Since(r.begun) < 10*time.Second {
					time.Sleep(20 * time.Millisecond)
					test.fault(r.journal, stores[0])
				}
				r.endWork()
				g.close()
				r.giveUp()
				h, all := r.judged()
				require.Equal(t, test.overlaps, len(h.Overlaps()) > 0, "%v", h.Overlaps())
				require.Equal(t, test.losses, len(h.Losses()) > 0, "%v", h.Losses())
				require.Equal(t, test.disorder, len(h.Disorders(1)) > 0, "%v", h.Disorders(1))
				require.Equal(t, test.overlaps, len(all) > 0, "%v", all)
			})
		})
	}
}

// TestManyWait cancels more than a thousand waits for one lock together, and the holder releases. All
// others are served, and nothing stays.
func TestManyWait(t *testing.T) {
	const fickles, others = 1100, 100
	bubble.Test(t, func(t *testing.T) {
		server := sim.NewServer()
		conn := sim.Dial(server, nil)
		l := rediscore.New(conn)
		c := dlock.New(l)
		first, err := c.Acquire(t.Context(), "k")
		require.NoError(t, err)
		fickle, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var served atomic.Int64
		acquire := func(ctx context.Context) {
			lease, err := c.Acquire(ctx, "k")
			if err == nil {
				served.Add(1)
				err = lease.Release()
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		for i := range fickles {
			all.Go(func() { acquire(fickle) })
			if i < others {
				all.Go(func() { acquire(t.Context()) })
			}
		}
		synctest.Wait()
		hold, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, fickles+others, hold.Waiting)
		cancel()
		require.NoError(t, first.Release())
		all.Wait()
		require.GreaterOrEqual(t, served.Load(), int64(others))
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
		conn.Close()
		keys := server.Keys()
		require.Len(t, keys, 1, "only the fence counter stays")
		require.Contains(t, keys[0], "dlock1:fence")
	})
}
