package dlock_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// holdAll makes another the holder of n keys for an hour, and returns them.
func holdAll(t *testing.T, store *memory.Locker, n int) []string {
	t.Helper()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("held", i)
		a, err := store.TryAcquire(t.Context(), keys[i], "other", time.Hour)
		require.NoError(t, err)
		require.True(t, a.Acquired)
	}
	return keys
}

// requireReleased says that a release of each token of asked, a map of n, reached the store. It
// returns how many were sent for each in the mean.
func requireReleased(t *testing.T, n *line, what string, asked *map[string]int) (mean float64) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	never, sent := 0, 0
	for token := range *asked {
		sent += n.released[token]
		if n.arrived[token] == 0 {
			never++
		}
	}
	mean = float64(sent) / float64(len(*asked))
	t.Logf("%d %s: %d never released, %.2f releases sent for each", len(*asked), what, never, mean)
	if never > 0 {
		t.Errorf("%d of %d %s were never released, want 0", never, len(*asked), what)
	}
	return mean
}

// requireReleasedOnce says the same of waits that the store had answered, with at most
// two releases for each in the mean.
func requireReleasedOnce(t *testing.T, n *line) {
	t.Helper()
	const most = 2
	if mean := requireReleased(t, n, "cut waits", &n.waited); mean > most {
		t.Errorf("%.2f releases were sent for each of %d cut waits, want at most %d", mean, n.tokens(&n.waited), most)
	}
}

// requireAllFree says that nobody holds the keys.
func requireAllFree(t *testing.T, store *memory.Locker, keys []string) {
	t.Helper()
	taken := 0
	for _, key := range keys {
		if hold, err := store.Inspect(t.Context(), key); err != nil || hold.Held {
			taken++
		}
	}
	if taken > 0 {
		t.Errorf("%d of %d keys are taken, want 0", taken, len(keys))
	}
}

// Of any number of waits that are cut at one instant, each is released.
func TestWaitsCutTogether(t *testing.T) {
	const waits = 5000 / slower
	for _, ttl := range []time.Duration{30 * time.Second, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, n := overLine(t)
				n.setRTT(time.Millisecond)
				keys := holdAll(t, store, 100)
				c := dlock.New(n, dlock.WithTTL(ttl))
				ctx, cut := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range waits {
					all.Go(func() { _, _ = c.Acquire(ctx, keys[i%len(keys)]) })
				}
				time.Sleep(time.Second)
				require.Equal(t, waits, n.tokens(&n.waited))
				cut()
				all.Wait()
				time.Sleep(2 * ttl)
				requireReleasedOnce(t, n)
				require.NoError(t, c.Close())
			})
		})
	}
}

// 500 waits a second are cut for a minute, and in its middle the store is out of reach
// for 5 s, in which 50 leases are released.
func TestCutWaitsBesideAnOutage(t *testing.T) {
	const (
		waits = 30_000 / slower
		real  = 50
		pace  = slower * 2 * time.Millisecond
		wait  = 100 * time.Millisecond
	)
	for f, apart := range map[fault]time.Duration{ // between the releases
		refuse: 90 * time.Millisecond,
		hang:   0, // so that all have failed when the store is back
	} {
		t.Run(string(f), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, n := overLine(t)
				n.setRTT(time.Millisecond)
				keys := holdAll(t, store, 100)
				c := dlock.New(n)
				leases, mine := acquireAll(t, c, "mine", real)
				var all sync.WaitGroup
				all.Go(func() {
					for i := range waits {
						all.Go(func() {
							ctx, cancel := context.WithTimeout(t.Context(), wait)
							defer cancel()
							_, _ = c.Acquire(ctx, keys[i%len(keys)])
						})
						time.Sleep(pace)
					}
				})
				time.Sleep(27 * time.Second)
				for i, l := range leases {
					all.Go(func() {
						time.Sleep(time.Duration(i)*apart + time.Nanosecond)
						_ = l.Release()
					})
				}
				n.fail(f, 5*time.Second)
				time.Sleep(2 * time.Second)
				requireAllFree(t, store, mine)
				all.Wait()
				time.Sleep(time.Minute)
				requireReleasedOnce(t, n)
				requireReleased(t, n, "tokens", &n.attempts)
				require.NoError(t, c.Close())
			})
		})
	}
}

func acquireAll(t *testing.T, c *dlock.Client, prefix string, n int) (leases []*dlock.Lease, keys []string) {
	t.Helper()
	for i := range n {
		keys = append(keys, prefix+strconv.Itoa(i))
		leases = append(leases, acquire(t, c, keys[i]))
	}
	return leases, keys
}

// Attempts that took effect, and whose replies were lost together, are undone as soon
// as the store is back.
func TestLostRepliesOfManyAttempts(t *testing.T) {
	const attempts = 5000 / slower
	for _, then := range []fault{up, refuse, hang, ignore} {
		t.Run(string(then), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, n := overLine(t)
				n.setRTT(time.Millisecond)
				c := dlock.New(n)
				keys := make([]string, attempts)
				n.set(lose)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				var all sync.WaitGroup
				for i := range keys {
					keys[i] = strconv.Itoa(i)
					all.Go(func() {
						if _, err := c.TryAcquire(ctx, keys[i]); err == nil {
							t.Errorf("TryAcquire(%q): no error", keys[i])
						}
					})
				}
				time.Sleep(50 * time.Millisecond)
				n.fail(then, 5*time.Second)
				time.Sleep(2 * time.Second)
				if then == ignore {
					time.Sleep(deaf)
				}
				all.Wait()
				requireAllFree(t, store, keys)
				require.NoError(t, c.Close())
			})
		})
	}
}

// More releases are owed than a Client keeps: it keeps 100,000, and they are made when
// the store is back.
func TestMoreOwedThanKept(t *testing.T) {
	const (
		attempts = 101_000
		kept     = 100_000
	)
	if slower > 1 {
		t.Skip("too slow with the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		_, n := overLine(t)
		c := dlock.New(n, dlock.WithTTL(time.Hour))
		n.set(refuse)
		before := heap()
		for i := range attempts {
			_, err := c.TryAcquire(t.Context(), strconv.Itoa(i))
			require.ErrorIs(t, err, errStore)
		}
		time.Sleep(time.Minute)
		require.Equal(t, dlock.Stats{ReleasesOwed: kept, ReleasesDropped: attempts - kept}, c.Stats())
		n.forget()
		bytes := heap() - before
		n.setRTT(time.Millisecond)
		n.set(up)
		time.Sleep(time.Minute)
		released := n.tokens(&n.released)
		t.Logf("%d owed: %d released after the return; %d bytes each", attempts, released, bytes/kept)
		if released < kept || released > kept+parallel {
			t.Errorf("%d of %d tokens were released in the minute after the return, want %d", released, attempts, kept)
		}
		if bytes > 1000*kept {
			t.Errorf("what is owed takes %d bytes, want at most %d", bytes, 1000*kept)
		}
		require.NoError(t, c.Close())
	})
}

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
