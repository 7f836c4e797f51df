package dlock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestReleaseIsDetachedFromTheContext(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		type trace struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), trace{}, "id"))
		l, err := dlock.New(s).Acquire(ctx, "k")
		require.NoError(t, err)
		cancel()
		require.NoError(t, l.Release())
		requireFree(t, store, "k")
		release := s.made("release")[0]
		require.Equal(t, "id", release.ctx.Value(trace{}))
		require.NoError(t, l.Release())
		require.Len(t, s.made("release"), 1)
	})
}

func TestReleaseIsBounded(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		30 * time.Second: 5 * time.Second,
		3 * time.Second:  3*time.Second - 32*time.Millisecond,
	} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			l := acquire(t, dlock.New(s, dlock.WithTTL(ttl)), "k")
			store.Delay(time.Hour)
			start := time.Now()
			err := l.Release()
			require.Equal(t, want, time.Since(start))
			requireNoContextError(t, err)
			require.NotErrorIs(t, err, dlock.ErrLost)
			require.ErrorContains(t, err, `dlock: release "k"`)
			require.Equal(t, dlock.ErrReleased, l.Err())
			time.Sleep(time.Hour)
		})
	}
}

// A renewal that the release has overtaken finds nothing, so the release need not wait.
func TestReleaseOvertakesAHangingRenewal(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		s.hook = func(c *call) {
			if c.op == "renew" || c.op == "batch" {
				time.Sleep(14 * time.Second) // before it takes effect
			}
		}
		l := acquire(t, dlock.New(locker), "k")
		time.Sleep(11 * time.Second)
		require.NotEmpty(t, s.made("renew", "batch"))
		start := time.Now()
		require.NoError(t, l.Release())
		require.Equal(t, start, time.Now())
		requireFree(t, store, "k")
		n := len(s.made())
		time.Sleep(time.Hour)
		require.Len(t, s.made(), n)
		requireFree(t, store, "k")
		require.Equal(t, dlock.ErrReleased, l.Err())
	})
}

func TestReleaseOfALostLease(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		store.Steal("k", time.Hour)
		require.NoError(t, l.Err(), "it cannot know yet")
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		require.ErrorIs(t, l.Release(), dlock.ErrLost, "it stays so")
		require.Len(t, s.made("release"), 1)
		require.Equal(t, dlock.ErrReleased, l.Err())
	})
}

func TestReleaseWithLostReply(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		store.FailReplies(errStore)
		err := l.Release()
		require.ErrorIs(t, err, errStore)
		require.NotErrorIs(t, err, dlock.ErrLost)
		store.FailReplies(nil)
		require.NoError(t, l.Release(), `"not held" means that the first try worked`)
		n := len(s.made("release"))
		time.Sleep(time.Hour)
		require.LessOrEqual(t, len(s.made("release")), n+1)
		require.NoError(t, l.Release())
	})
}

func TestReleaseThatRanOutOnTheWay(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		time.Sleep(29 * time.Second)
		s.hook = func(c *call) { // a Locker that ignores its ctx
			c.ctx = context.WithoutCancel(c.ctx)
			time.Sleep(10 * time.Second)
		}
		require.NoError(t, l.Release(), "it was certain until Release was called")
	})
}

func TestOwedReleaseIsRepeated(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		store.Fail(errStore)
		require.ErrorIs(t, l.Release(), errStore)
		time.Sleep(10 * time.Second)
		requireOwed := len(s.made("release"))
		require.Greater(t, requireOwed, 4)
		require.Less(t, requireOwed, 15)
		store.Fail(nil)
		time.Sleep(8 * time.Second)
		requireFree(t, store, "k")
		n := len(s.made("release"))
		require.NoError(t, l.Release())
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), n)
	})
}

func TestOwedReleaseIsGivenUpAfterATTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		store.Fail(errStore)
		start := time.Now()
		require.ErrorIs(t, l.Release(), errStore)
		time.Sleep(time.Hour)
		releases := s.made("release")
		require.Equal(t, start.Add(30*time.Second), releases[len(releases)-1].at)
		require.ErrorIs(t, l.Release(), errStore, "there is no time left for another try")
	})
}

// An attempt that arrives after the first release of its token.
func TestLateAttemptIsReleased(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.err = errStore
				time.AfterFunc(7*time.Second, func() { store.TryAcquire(context.Background(), c.key, c.token, c.ttl) })
			}
		}
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		start := time.Now()
		l, err := dlock.New(store).Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, l.Release())
		time.Sleep(8 * time.Second)
		hold, err := store.Inspect(t.Context(), "k")
		require.NoError(t, err)
		if hold.Held {
			time.Sleep(8 * time.Second)
		}
		requireFree(t, store, "k")
		require.Less(t, time.Since(start), 20*time.Second)
		time.Sleep(time.Minute)
		releases := s.made("release")
		require.Less(t, releases[len(releases)-1].at.Sub(start), 20*time.Second, `"held, now free" is the end of it`)
	})
}

func TestAttemptThatNeverArrives(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.err = errStore
			}
		}
		start := time.Now()
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Hour)
		releases := s.made("release")
		require.Equal(t, start, releases[0].at)
		require.Equal(t, start.Add(30*time.Second), releases[len(releases)-1].at, "one TTL after the last try")
		require.Less(t, len(releases), 15)
	})
}

func TestMinHold(t *testing.T) {
	for _, minHold := range []time.Duration{20 * time.Second, 10 * time.Minute} {
		t.Run(minHold.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				c := dlock.New(s, dlock.WithMinHold(minHold))
				l := acquire(t, c, "k")
				start := time.Now()
				work := l.Context(t.Context())
				time.Sleep(time.Second)
				released := time.Now()
				require.NoError(t, l.Release())
				require.Equal(t, released, time.Now(), "Release returns at once")
				require.Error(t, work.Err())
				require.Equal(t, dlock.ErrReleased, l.Err())
				require.NoError(t, l.Release())

				next := acquire(t, dlock.New(store), "k")
				require.Equal(t, start.Add(minHold), time.Now())
				require.Len(t, s.made("release"), 1, "by the Client")
				require.LessOrEqual(t, len(s.made("renew", "batch")), 1)
				require.NoError(t, next.Release())
			})
		})
	}
}

func TestMinHoldOutlivesTheClient(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
		l := acquire(t, c, "k")
		start := time.Now()
		require.NoError(t, l.Release())
		require.NoError(t, c.Close())
		next := acquire(t, dlock.New(store), "k")
		require.InDelta(t, 600, time.Since(start).Seconds(), 0.002)
		require.NoError(t, next.Release())
	})
}

func TestMinHoldThatIsOver(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithMinHold(time.Minute)), "k")
		time.Sleep(time.Minute)
		require.NoError(t, l.Release())
		requireFree(t, store, "k")
	})
}

func TestMinHoldWhileTheStoreFails(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithMinHold(10*time.Minute)), "k")
		start := time.Now()
		store.Fail(errStore)
		require.NoError(t, l.Release())
		time.Sleep(20 * time.Second)
		store.Fail(nil)
		next := acquire(t, dlock.New(store), "k")
		require.Equal(t, start.Add(10*time.Minute), time.Now())
		require.NoError(t, next.Release())
	})
}

func TestReleaseAndRenewFromManyGoroutines(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(*call) { time.Sleep(time.Millisecond) }
		c := dlock.New(s, dlock.WithTTL(50*time.Millisecond))
		for i := range 50 {
			l := acquire(t, c, "k")
			time.Sleep(time.Duration(i) * 3 * time.Millisecond)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() { l.Renew(t.Context()) })
				wg.Go(func() {
					if err := l.Release(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			requireFree(t, store, "k")
		}
		synctest.Wait()
	})
}
