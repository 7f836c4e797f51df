package dlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
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
			if c.renews() {
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

// A Release does not wait for a renewal that hangs.
func TestReleaseBehindARenewalThatHangs(t *testing.T) {
	const rtt = 10 * time.Millisecond
	for name, wrap := range lockers {
		for _, f := range []fault{hang, ignore, lose} {
			for _, manual := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,%s,manual=%v", name, f, manual), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						store, n := overLine(t)
						n.setRTT(rtt)
						c := dlock.New(wrap(n))
						l := acquire(t, c, "k")
						acquire(t, c, "k2")
						n.set(f)
						if manual {
							go l.Renew(t.Context())
						}
						for n.made("renew", "batch") == 0 {
							time.Sleep(rtt)
						}
						time.Sleep(rtt)
						n.set(up)
						begin := time.Now()
						err := l.Release()
						if d := time.Since(begin); err != nil || d > rtt {
							t.Errorf("Release behind a renewal that hangs: %v after %v, want no error after %v", err, d, rtt)
						}
						requireFree(t, store, "k")
						time.Sleep(time.Minute)
						requireFree(t, store, "k")
						require.NoError(t, c.Close())
					})
				})
			}
		}
	}
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

// A Release without effect does not count as a call: if the retry finds the lease gone, that
// is a loss.
func TestReleaseWithoutEffectThenNotHeld(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "release" && len(s.made("release")) == 1 {
				c.err = &dlock.NoEffectError{Err: errStore}
				store.Steal("k", time.Hour)
			}
		}
		l := acquire(t, dlock.New(s), "k")
		require.ErrorIs(t, l.Release(), errStore)
		synctest.Wait()
		require.Len(t, s.made("release"), 2)
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		require.Len(t, s.made("release"), 2)
	})
}

// The first retry is slow, and arrives after a second call of Release.
func TestSlowTryOfAReleaseGivesNoVerdict(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var n atomic.Int32
		s.hook = func(c *call) {
			if c.op != "release" {
				return
			}
			switch n.Add(1) {
			case 1: // of the holder: there is no connection
				c.err = errDial
			case 2: // of the Client, in the background: slow on the way
				time.Sleep(300 * time.Millisecond)
			}
		}
		c := dlock.New(s)
		l := acquire(t, c, "k")
		require.Error(t, l.Release())
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, l.Release(), "held, now free")
		time.Sleep(time.Second)
		require.NoError(t, l.Release(), "the store released it at the holder's will")
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
