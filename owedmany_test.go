package dlock_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// requireReleased says that a release of each token that was counted reached the store. It
// returns how many were sent for each on average.
func requireReleased(t *testing.T, n *line, what string) (mean float64) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	never, sent, tokens := 0, 0, n.counts[what]
	for token := range tokens {
		sent += n.counts[releasesMade][token]
		if n.counts[releasesArrived][token] == 0 {
			never++
		}
	}
	mean = float64(sent) / float64(len(tokens))
	t.Logf("%d %s: %d never released, %.2f releases sent for each", len(tokens), what, never, mean)
	if never > 0 {
		t.Errorf("%d of %d %s were never released, want 0", never, len(tokens), what)
	}
	return mean
}

// requireReleasedOnce says the same of waits that the store had answered, with at most
// two releases for each on average.
func requireReleasedOnce(t *testing.T, n *line) {
	t.Helper()
	const most = 2
	if mean := requireReleased(t, n, waitsArrived); mean > most {
		t.Errorf("%.2f releases were sent for each of %d cut waits, want at most %d", mean, n.tokens(waitsArrived), most)
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
				require.Equal(t, waits, n.tokens(waitsArrived))
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
	if testing.Short() {
		t.Skip("left out with -short")
	}
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
				requireReleased(t, n, attemptsMade)
				require.NoError(t, c.Close())
			})
		})
	}
}

// Attempts that took effect, and whose replies were lost together, are undone as soon
// as the store is back.
func TestLostRepliesOfManyAttempts(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
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
					time.Sleep(ignored)
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
	if testing.Short() {
		t.Skip("left out with -short")
	}
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
		released := n.tokens(releasesMade)
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

// A retry is made soon, although new releases are owed all the time.
func TestOwedAgainIsNotStarved(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var failed atomic.Int32
		s.hook = func(c *call) {
			switch {
			case c.op == "release" && c.key == "real" && failed.Add(1) <= 2: // of the holder, and the first of the Client
				c.err = errStore
			case c.op == "release":
				time.Sleep(100 * time.Millisecond) // RTT
			case c.op == "try" && c.key != "real":
				c.err = errStore
			}
		}
		c := dlock.New(s, dlock.WithTTL(time.Minute))
		l := acquire(t, c, "real")
		stop := make(chan struct{})
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond): // 100 cut attempts a second
					c.TryAcquire(t.Context(), fmt.Sprint(i))
				}
			}
		}()
		time.Sleep(time.Second)
		require.Error(t, l.Release())
		time.Sleep(10 * time.Second)
		taken := holder(t, store, "real").Held
		close(stop)
		c.Close()
		time.Sleep(time.Minute)
		require.False(t, taken, "the release that failed once, 10 s ago")
	})
}

// A release to a live shard is retried soon, although many to a dead shard hang.
func TestDeadShardAndLiveReleases(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var failed atomic.Int32
		s.hook = func(c *call) {
			dead := c.key[0] == 'd'
			switch {
			case c.op == "release" && c.key == "real" && failed.Add(1) == 1:
				c.err = errStore
			case dead && c.op == "release":
				c.hang()
			case dead && c.op == "try":
				c.err = errStore
			}
		}
		c := dlock.New(s, dlock.WithTTL(time.Minute))
		l := acquire(t, c, "real")
		for i := range 200 {
			c.TryAcquire(t.Context(), fmt.Sprint("dead", i))
		}
		time.Sleep(5 * time.Second)
		require.Error(t, l.Release())
		time.Sleep(10 * time.Second)
		taken := holder(t, store, "real").Held
		c.Close()
		time.Sleep(time.Minute)
		require.False(t, taken, "the release to the live shard that failed once, 10 s ago")
	})
}
