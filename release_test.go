package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
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
		s.onCall(func(c *call) {
			if c.renews() {
				time.Sleep(14 * time.Second) // before it takes effect
			}
		})
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
					bubble.Test(t, func(t *testing.T) {
						store, n := overWire(t)
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
		s.onCall(func(c *call) {
			if c.op == "release" && len(s.made("release")) == 1 {
				c.err = &dlock.NoEffectError{Err: errStore}
				store.Steal("k", time.Hour)
			}
		})
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
		s.onCall(func(c *call) {
			if c.op != "release" {
				return
			}
			switch n.Add(1) {
			case 1: // of the holder: there is no connection
				c.err = errDial
			case 2: // of the Client, in the background: slow on the way
				time.Sleep(300 * time.Millisecond)
			}
		})
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
		s.onCall(func(c *call) { // a Locker that ignores its ctx
			c.ctx = context.WithoutCancel(c.ctx)
			time.Sleep(10 * time.Second)
		})
		require.NoError(t, l.Release(), "it was certain until Release was called")
	})
}

func TestReleaseAndRenewFromManyGoroutines(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(*call) { time.Sleep(time.Millisecond) })
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

func TestMinHoldThatIsOver(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithMinHold(time.Minute)), "k")
		time.Sleep(time.Minute)
		require.NoError(t, l.Release())
		requireFree(t, store, "k")
	})
}

func TestMinHoldWithinTheTTLSendsNoRenewal(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithMinHold(20*time.Second)), "k")
		require.NoError(t, l.Release())
		time.Sleep(time.Minute)
		require.Empty(t, s.made("renew", "batch"))
		require.Len(t, s.made("release"), 1)
	})
}

func TestMinHoldCountsFromTheAnswer(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.delay = 3 * time.Second
			}
		})
		l := acquire(t, dlock.New(s, dlock.WithMinHold(10*time.Second)), "k")
		start := time.Now()
		require.NoError(t, l.Release())
		next := acquire(t, dlock.New(store), "k")
		require.Equal(t, start.Add(10*time.Second), time.Now())
		require.NoError(t, next.Release())
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

// In an outage a MinHold costs few calls.
func TestCallsForMinHoldsInAnOutage(t *testing.T) {
	for name, err := range map[string]error{"refused": &dlock.NoEffectError{Err: errors.New("NOPERM")}, "down": errStore} {
		for _, ttl := range []time.Duration{10 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprint(name, ttl), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					c := dlock.New(s, dlock.WithTTL(ttl), dlock.WithMinHold(time.Hour))
					l := acquire(t, c, "k")
					store.Fail(err)
					require.NoError(t, l.Release())
					time.Sleep(10 * time.Second) // the lease has ended long ago
					s.forget()
					time.Sleep(10 * time.Second)
					require.LessOrEqual(t, len(s.made("renew")), 20, "calls in 10 s for a lease that has ended")
					c.Close()
				})
			})
		}
	}
}

// A renewal from before the release is answered late. The key is not kept for its MinHold by that.
func TestLateRenewalKeepsNoMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		start := time.Now()
		s.onCall(func(c *call) {
			switch at := time.Since(start); {
			case !c.renews():
			case len(s.made("renew")) == 1:
				c.delay = 3 * time.Second
			case at < 15*time.Second:
				c.err = errStore
			}
		})
		l := acquire(t, dlock.New(single{s}, dlock.WithMinHold(10*time.Minute)), "k")
		time.Sleep(11 * time.Second)
		require.NoError(t, l.Release())
		time.Sleep(5 * time.Minute)
		requireTaken(t, store, "k")
		time.Sleep(10 * time.Minute)
	})
}

// Close makes the store keep the key at once, also if a renewal for the MinHold has just failed.
func TestCloseHurriesMinHolds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, n := overWire(t)
		n.setRTT(10 * time.Millisecond)
		c := dlock.New(n, dlock.WithMinHold(10*time.Minute))
		l := acquire(t, c, "k")
		n.set(refuse)
		require.NoError(t, l.Release())
		time.Sleep(100 * time.Millisecond)
		n.set(up)
		start := time.Now()
		require.NoError(t, c.Close())
		require.LessOrEqual(t, time.Since(start), 100*time.Millisecond)
		time.Sleep(5 * time.Minute)
		requireTaken(t, store, "k")
	})
}

// After Close nothing is sent for a MinHold, although the store has never answered.
func TestNoCallsForAMinHoldAfterClose(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.renews() {
				time.Sleep(time.Minute) // does not look at its ctx
			}
		})
		c := dlock.New(s, dlock.WithMinHold(time.Hour))
		require.NoError(t, acquire(t, c, "k").Release())
		time.Sleep(time.Second)
		require.ErrorIs(t, c.Close(), dlock.ErrUnavailable)
		s.forget()
		time.Sleep(time.Hour)
		require.Empty(t, s.made())
	})
}

func TestMinHoldBehindHungReleases(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
		s.onCall(func(c *call) {
			if strings.HasPrefix(c.key, "bad") && c.op != "renew" {
				c.hang()
			}
		})
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := c.TryAcquire(ctx, fmt.Sprint("bad", i))
			require.Error(t, err)
			cancel()
		}
		l := acquire(t, c, "good")
		require.NoError(t, l.Release())
		time.Sleep(time.Minute)
		requireTaken(t, store, "good")
		c.Close()
	})
}

// 3,000 leases with a MinHold are released at the same time.
func TestMinHoldOfMany(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
		s.onCall(func(c *call) {
			if c.op == "renew" {
				time.Sleep(time.Millisecond)
			}
		})
		const n = 3000
		all, _ := acquireAll(t, c, "", n)
		for _, l := range all {
			require.NoError(t, l.Release())
		}
		time.Sleep(2 * time.Minute)
		free := 0
		for i := range n {
			hold, err := store.Inspect(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			if !hold.Held {
				free++
			}
		}
		c.Close()
		require.Zero(t, free, "keys free long before the MinHold")
	})
}

// A lost lease also keeps its MinHold.
func TestMinHoldOfALostLease(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithRenewal(false), dlock.WithMinHold(10*time.Minute))
		l := acquire(t, c, "k")
		<-l.Done()
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		time.Sleep(time.Until(s.made()[0].at.Add(10*time.Minute - time.Second)))
		_, err := dlock.New(store).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(time.Second + time.Millisecond)
		requireFree(t, store, "k")
	})
}

func TestMinHoldOfAStolenKey(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithMinHold(10*time.Minute)), "k")
		store.Steal("k", time.Hour)
		require.NoError(t, l.Release())
		time.Sleep(time.Hour)
		require.Len(t, s.made("renew"), 1)
		require.Empty(t, s.made("release"), "the store has said that the lease is gone")
	})
}

// The store keeps the key for the MinHold after the Client is closed, before or after Release.
func TestMinHoldOutlivesTheClient(t *testing.T) {
	for _, minHold := range []time.Duration{time.Minute, 10 * time.Minute} {
		for _, first := range []string{"Release", "Close"} {
			t.Run(first+"/"+minHold.String(), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					c := dlock.New(s, dlock.WithMinHold(minHold))
					l := acquire(t, c, "k")
					start := time.Now()
					if first == "Close" {
						require.NoError(t, c.Close())
					}
					require.NoError(t, l.Release())
					require.NoError(t, c.Close())
					next := acquire(t, dlock.New(store), "k")
					require.InDelta(t, minHold.Seconds(), time.Since(start).Seconds(), 0.002)
					require.NoError(t, next.Release())
				})
			})
		}
	}
}

// Close waits for a release whose MinHold is over.
func TestCloseWaitsForAReleaseAfterItsMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(time.Second))
		l := acquire(t, c, "k")
		require.NoError(t, l.Release())
		store.Fail(errStore)
		time.Sleep(1500 * time.Millisecond)
		require.Equal(t, 1, c.Stats().ReleasesOwed)
		time.AfterFunc(time.Second, func() { store.Fail(nil) })
		if err := c.Close(); err == nil {
			requireFree(t, store, "k")
		}
	})
}

// Shutdown makes the store keep the key for the MinHold, and does not wait until it has passed.
func TestShutdownKeepsMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
		l := acquire(t, c, "k")
		require.NoError(t, l.Release())
		start := time.Now()
		require.NoError(t, c.Shutdown(t.Context()))
		require.Equal(t, start, time.Now())
		time.Sleep(10*time.Minute - time.Second)
		_, err := dlock.New(store).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(time.Second + time.Millisecond)
		requireFree(t, store, "k")
	})
}

// A lease that Shutdown gives up on keeps its MinHold.
func TestShutdownKeepsMinHoldOfWhatIsStillHeld(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(3*time.Second), dlock.WithMinHold(time.Minute))
		acquire(t, c, "k")
		ctx := ended(t)
		require.Error(t, c.Shutdown(ctx))
		time.Sleep(30 * time.Second)
		requireTaken(t, store, "k")
	})
}

// After Shutdown, releases at the same time make one renewal for the MinHold.
func TestReleaseTwiceAfterShutdownWithMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "renew" {
				c.delay = 10 * time.Millisecond
			}
		})
		c := dlock.New(s, dlock.WithTTL(30*time.Second), dlock.WithMinHold(time.Minute))
		l := acquire(t, c, "k")
		ctx := ended(t)
		require.Error(t, c.Shutdown(ctx))
		s.forget()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { l.Release() })
		}
		wg.Wait()
		require.NoError(t, l.Release())
		require.Len(t, s.made("renew"), 1, "one renewal keeps it")
	})
}

func TestMinHoldMax(t *testing.T) {
	const most = 365 * 24 * time.Hour
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(most))
		require.NoError(t, acquire(t, c, "k").Release())
		synctest.Wait()
		renewals := s.made("renew")
		require.Len(t, renewals, 1)
		require.Equal(t, most, renewals[0].ttl)
		require.NoError(t, c.Close())
	})
}

// While the store is away, a MinHold is owed until it is over, however short the TTL.
func TestMinHoldsOutliveTheirTTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		const n, minHold = 100, 10 * time.Second
		seen := make(chan dlock.OwedDoneInfo, n)
		c := dlock.New(s, dlock.WithTTL(time.Second), dlock.WithMinHold(minHold), dlock.WithObserver(&dlock.Observer{
			OwedDone: func(_ context.Context, i dlock.OwedDoneInfo) { seen <- i },
		}))
		leases, _ := acquireAll(t, c, "", n)
		store.Fail(errStore)
		for _, l := range leases {
			require.NoError(t, l.Release())
		}
		time.Sleep(minHold - time.Millisecond)
		require.Equal(t, n, c.Stats().ReleasesOwed, "before the end of the MinHold")
		time.Sleep(2 * time.Millisecond)
		require.Zero(t, c.Stats().ReleasesOwed, "after the end of the MinHold")
		require.LessOrEqual(t, len(s.made("release")), 8, "of %d keys that the store has freed long ago", n)
		for range n {
			require.ErrorIs(t, (<-seen).Err, errStore)
		}
		start := time.Now()
		require.NoError(t, c.Close())
		require.Zero(t, time.Since(start))
	})
}

// A lease that Shutdown has given up on is not released when its MinHold is over, although no
// renewal has succeeded: its work may still run.
func TestShutdownReleasesNothingAfterAMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.renews() && time.Since(s.made()[0].at) > time.Second {
				c.err = errStore
			}
		})
		c := dlock.New(s, dlock.WithTTL(9*time.Second), dlock.WithMinHold(10*time.Second))
		acquire(t, c, "k")
		time.Sleep(8 * time.Second)
		require.ErrorContains(t, c.Shutdown(ended(t)), "1 leases still held")
		time.Sleep(3 * time.Second)
		require.Empty(t, s.made("release"), "the work may still run")
	})
}

// After Close, a Release that failed can be repeated: the store then keeps the key for its MinHold.
func TestReleaseAgainAfterCloseWithMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(time.Minute))
		l := acquire(t, c, "k")
		start := time.Now()
		require.NoError(t, c.Close())
		store.Fail(errStore)
		require.ErrorIs(t, l.Release(), errStore)
		require.ErrorIs(t, l.Release(), errStore)
		store.Fail(nil)
		require.NoError(t, l.Release())
		require.NoError(t, l.Release())
		require.Len(t, s.made("renew"), 3)
		next := acquire(t, dlock.New(store), "k")
		require.InDelta(t, time.Minute, time.Since(start), float64(2*time.Millisecond))
		require.NoError(t, next.Release())
	})
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(time.Minute))
		l := acquire(t, c, "k")
		require.NoError(t, c.Close())
		store.Steal("k", time.Hour)
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
	})
}
