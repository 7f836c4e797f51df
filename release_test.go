package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
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
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

func TestRelease(t *testing.T) {
	inCases{
		"release is detached from the context": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			type trace struct{}
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), trace{}, "id"))
			l, err := c.Acquire(ctx, "k")
			require.NoError(t, err)
			cancel()
			require.NoError(t, l.Release())
			requireFree(t, store, "k")
			release := s.made("release")[0]
			require.Equal(t, "id", release.ctx.Value(trace{}))
			require.NoError(t, l.Release())
			require.Len(t, s.made("release"), 1)
		},
		"release of a lost lease": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			store.Steal("k", time.Hour)
			require.NoError(t, l.Err(), "it cannot know yet")
			require.ErrorIs(t, l.Release(), dlock.ErrLost)
			require.ErrorIs(t, l.Release(), dlock.ErrLost, "it stays so")
			require.Len(t, s.made("release"), 1)
			require.Equal(t, dlock.ErrReleased, l.Err())
		},
		"release with lost reply": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			store.FailReplies(errStore)
			requireErr(t, l.Release(), errStore, not{dlock.ErrLost})
			store.FailReplies(nil)
			require.NoError(t, l.Release(), `"not held" means that the first try worked`)
			n := len(s.made("release"))
			time.Sleep(time.Hour)
			require.LessOrEqual(t, len(s.made("release")), n+1)
			require.NoError(t, l.Release())
		},
		// A Release without effect does not count as a call: if the retry finds the lease gone, that is a loss.
		"release without effect then not held": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.first("release", func(c *call) {
				c.err = &dlock.NoEffectError{Err: errStore}
				store.Steal("k", time.Hour)
			})
			l := acquire(t, c, "k")
			require.ErrorIs(t, l.Release(), errStore)
			synctest.Wait()
			require.Len(t, s.made("release"), 2)
			require.ErrorIs(t, l.Release(), dlock.ErrLost)
			require.Len(t, s.made("release"), 2)
		},
		"the first retry is slow, and arrives after a second call of Release": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
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
			l := acquire(t, c, "k")
			require.Error(t, l.Release())
			time.Sleep(200 * time.Millisecond)
			require.NoError(t, l.Release(), "held, now free")
			time.Sleep(time.Second)
			require.NoError(t, l.Release(), "the store released it at the holder's will")
		},
		"release that ran out on the way": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
			time.Sleep(29 * time.Second)
			s.onCall(func(c *call) { // a Locker that ignores its ctx
				c.ctx = context.WithoutCancel(c.ctx)
				time.Sleep(10 * time.Second)
			})
			require.NoError(t, l.Release(), "it was certain until Release was called")
		},
		"release and renew from many goroutines": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
	}.run(t)
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
			requireErr(t, err, noContext, not{dlock.ErrLost}, `dlock: release "k"`)
			require.Equal(t, dlock.ErrReleased, l.Err())
		})
	}
}

// A renewal that the release has overtaken finds nothing, so the release need not wait.
func TestReleaseOvertakesAHangingRenewal(t *testing.T) {
	renewing.run(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		s.on("renew batch", func(c *call) { time.Sleep(14 * time.Second) }) // before it takes effect
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
				run(t, fmt.Sprintf("%s,%s,manual=%v", name, f, manual), func(t *testing.T, store *memory.Locker, n *spy) {
					n.setRTT(rtt)
					c := dlock.New(wrap(n))
					l := acquire(t, c, "k")
					acquire(t, c, "k2")
					n.set(f)
					if manual {
						go l.Renew(t.Context())
					}
					for len(n.made("renew", "batch")) == 0 {
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
			}
		}
	}
}

// A key is taken until its MinHold has passed, which counts from the answer. All times here do, too.
func TestMinHold(t *testing.T) {
	type end = func(t *testing.T, store *memory.Locker, c *dlock.Client, l *dlock.Lease)
	release := func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
		work, begun := l.Context(t.Context()), time.Now()
		require.NoError(t, l.Release())
		require.NoError(t, l.Release())
		require.Equal(t, begun, time.Now(), "it returns at once")
		require.Error(t, work.Err())
		require.Equal(t, dlock.ErrReleased, l.Err())
	}
	atOnce := func(t *testing.T, f func() error) {
		begun := time.Now()
		require.NoError(t, f())
		require.Zero(t, time.Since(begun))
	}
	in := func(d time.Duration, then end) end {
		return func(t *testing.T, store *memory.Locker, c *dlock.Client, l *dlock.Lease) {
			time.Sleep(d)
			then(t, store, c, l)
		}
	}
	close := func(t *testing.T, _ *memory.Locker, c *dlock.Client, _ *dlock.Lease) { atOnce(t, c.Close) }
	both := func(first, then end) end {
		return func(t *testing.T, store *memory.Locker, c *dlock.Client, l *dlock.Lease) {
			first(t, store, c, l)
			then(t, store, c, l)
		}
	}
	for name, m := range map[string]struct {
		minHold            time.Duration
		opts               []dlock.Option
		end                end
		renewals, releases int
	}{
		"within the TTL":            {20 * time.Second, nil, in(time.Second, release), 0, 1},
		"longer":                    {10 * time.Minute, nil, in(time.Second, release), 1, 1},
		"over":                      {time.Minute, nil, in(time.Minute, release), -1, 1},
		"Close":                     {10 * time.Minute, nil, both(release, close), 1, 0},
		"Close before Release":      {time.Minute, nil, both(close, release), 1, 0},
		"Close long before Release": {10 * time.Minute, nil, both(close, in(20*time.Second, release)), 1, 0},
		"the store fails for 20 s": {10 * time.Minute, nil, func(t *testing.T, store *memory.Locker, c *dlock.Client, l *dlock.Lease) {
			store.Fail(errStore)
			release(t, store, c, l)
			time.Sleep(20 * time.Second)
			store.Fail(nil)
		}, -1, 1},
		"a lost lease": {10 * time.Minute, []dlock.Option{dlock.WithRenewal(false)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			<-l.Done()
			require.ErrorIs(t, l.Release(), dlock.ErrLost)
		}, 1, 1},
		"Shutdown": {10 * time.Minute, nil, both(release, func(t *testing.T, _ *memory.Locker, c *dlock.Client, _ *dlock.Lease) {
			atOnce(t, func() error { return c.Shutdown(t.Context()) })
		}), 1, 0},
		"Shutdown gives up": {time.Minute, []dlock.Option{dlock.WithTTL(5 * time.Second)}, func(t *testing.T, _ *memory.Locker, c *dlock.Client, _ *dlock.Lease) {
			require.Error(t, c.Shutdown(ended(t)))
		}, 1, 0},
		"Release fails after Close": {time.Minute, nil, both(close, func(t *testing.T, store *memory.Locker, c *dlock.Client, l *dlock.Lease) {
			store.Fail(errStore)
			require.ErrorIs(t, l.Release(), errStore)
			require.ErrorIs(t, l.Release(), errStore)
			store.Fail(nil)
			release(t, store, c, l)
		}), 3, 0},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			s.on("try", func(c *call) { c.delay = 3 * time.Second })
			c := dlock.New(s, append(m.opts, dlock.WithMinHold(m.minHold))...)
			l := acquire(t, c, "k")
			granted := time.Now()
			m.end(t, store, c, l)
			time.Sleep(time.Until(granted.Add(m.minHold - time.Millisecond)))
			if name != "over" {
				requireTaken(t, store, "k")
			}
			time.Sleep(3 * time.Millisecond)
			requireFree(t, store, "k")
			if m.renewals >= 0 {
				require.Len(t, s.made("renew", "batch"), m.renewals)
			}
			require.Len(t, s.made("release"), m.releases)
			require.NoError(t, c.Close())
		})
	}
}

func TestMinHolds(t *testing.T) {
	inCases{
		// A renewal from before the release is answered late. The key is not kept for its MinHold by that.
		"late renewal keeps no MinHold": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
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
		},
		"after Close nothing is sent for a MinHold, although the store has never answered": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			s.on("renew batch", func(c *call) { time.Sleep(time.Minute) }) // does not look at its ctx
			c := dlock.New(s, dlock.WithMinHold(time.Hour))
			require.NoError(t, acquire(t, c, "k").Release())
			time.Sleep(time.Second)
			require.ErrorIs(t, c.Close(), dlock.ErrUnavailable)
			s.forget()
			time.Sleep(time.Hour)
			require.Empty(t, s.made())
		},
		"after Close, the release finds that the key was stolen": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithMinHold(time.Minute))
			l := acquire(t, c, "k")
			require.NoError(t, c.Close())
			store.Steal("k", time.Hour)
			require.ErrorIs(t, l.Release(), dlock.ErrLost)
		},
		"MinHold behind hung releases": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
			s.onCall(func(c *call) { c.hangIf(strings.HasPrefix(c.key, "bad") && c.op != "renew") })
			for i := range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				require.Error(t, errOf(c.TryAcquire(ctx, fmt.Sprint("bad", i))))
				cancel()
			}
			require.NoError(t, acquire(t, c, "good").Release())
			time.Sleep(time.Minute)
			requireTaken(t, store, "good")
			c.Close()
		},
		"3,000 leases with a MinHold are released at the same time": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithMinHold(10*time.Minute))
			s.on("renew", func(c *call) { time.Sleep(time.Millisecond) })
			const n = 3000
			all, _ := acquireAll(t, c, "", n)
			releaseAll(t, all)
			time.Sleep(2 * time.Minute)
			for i := range n {
				requireTaken(t, store, fmt.Sprint(i)) // long before the end of the MinHold
			}
			c.Close()
		},
		"MinHold of a stolen key": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			l := acquire(t, dlock.New(s, dlock.WithMinHold(10*time.Minute)), "k")
			store.Steal("k", time.Hour)
			require.NoError(t, l.Release())
			time.Sleep(time.Hour)
			require.Len(t, s.made("renew"), 1)
			require.Empty(t, s.made("release"), "the store has said that the lease is gone")
		},
		"Close waits for a release whose MinHold is over": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithMinHold(time.Second))
			require.NoError(t, acquire(t, c, "k").Release())
			store.Fail(errStore)
			time.Sleep(1500 * time.Millisecond)
			require.Equal(t, 1, c.Stats().ReleasesOwed)
			time.AfterFunc(time.Second, func() { store.Fail(nil) })
			if err := c.Close(); err == nil {
				requireFree(t, store, "k")
			}
		},
		"after Shutdown, releases at the same time make one renewal for the MinHold": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.on("renew", func(c *call) { c.delay = 10 * time.Millisecond })
			c := dlock.New(s, dlock.WithTTL(30*time.Second), dlock.WithMinHold(time.Minute))
			l := acquire(t, c, "k")
			require.Error(t, c.Shutdown(ended(t)))
			s.forget()
			together(3, func(int) { l.Release() })
			require.NoError(t, l.Release())
			require.Len(t, s.made("renew"), 1, "one renewal keeps it")
		},
		"while the store is away, a MinHold is owed until it is over, however short the TTL": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			const n, minHold = 100, 10 * time.Second
			c, seen := watched(s, dlock.WithTTL(time.Second), dlock.WithMinHold(minHold))
			leases, _ := acquireAll(t, c, "", n)
			store.Fail(errStore)
			releaseAll(t, leases)
			time.Sleep(minHold - time.Millisecond)
			require.Equal(t, n, c.Stats().ReleasesOwed, "before the end of the MinHold")
			time.Sleep(2 * time.Millisecond)
			require.Zero(t, c.Stats().ReleasesOwed, "after the end of the MinHold")
			require.LessOrEqual(t, len(s.made("release")), 8, "of %d keys that the store has freed long ago", n)
			synctest.Wait()
			ends := of[dlock.OwedDoneInfo](seen)
			require.Len(t, ends, n)
			for _, i := range ends {
				require.ErrorIs(t, i.Err, errStore)
			}
			start := time.Now()
			require.NoError(t, c.Close())
			require.Zero(t, time.Since(start))
		},
		// A lease that Shutdown has given up on is not released when its MinHold is over, although no
		// renewal has succeeded: its work may still run.
		"shutdown releases nothing after a MinHold": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.onCall(func(c *call) { c.failIf(c.renews() && time.Since(s.made()[0].at) > time.Second, errStore) })
			c := dlock.New(s, dlock.WithTTL(9*time.Second), dlock.WithMinHold(10*time.Second))
			acquire(t, c, "k")
			time.Sleep(8 * time.Second)
			require.ErrorContains(t, c.Shutdown(ended(t)), "1 leases still held")
			time.Sleep(3 * time.Second)
			require.Empty(t, s.made("release"), "the work may still run")
		},
		"Close makes the store keep the key at once, also if a renewal for the MinHold has just failed": func(t *testing.T, store *memory.Locker, n *spy, _ *dlock.Client) {
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
		},
		"the longest MinHold": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			const most = 365 * 24 * time.Hour
			c := dlock.New(s, dlock.WithMinHold(most))
			require.NoError(t, acquire(t, c, "k").Release())
			synctest.Wait()
			renewals := s.made("renew")
			require.Len(t, renewals, 1)
			require.Equal(t, most, renewals[0].ttl)
			require.NoError(t, c.Close())
		},
	}.run(t)
}

// In an outage a MinHold costs few calls.
func TestCallsForMinHoldsInAnOutage(t *testing.T) {
	for name, err := range map[string]error{"refused": &dlock.NoEffectError{Err: errors.New("NOPERM")}, "down": errStore} {
		for _, ttl := range []time.Duration{10 * time.Millisecond, time.Second} {
			run(t, fmt.Sprint(name, ttl), func(t *testing.T, store *memory.Locker, s *spy) {
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
		}
	}
}

func TestOwedReleases(t *testing.T) {
	inCases{
		"owed release is repeated": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
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
		},
		"failed release is owed once": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			store.Fail(errStore)
			for range 3 {
				require.ErrorIs(t, l.Release(), errStore)
			}
			require.ErrorContains(t, c.Close(), "1 releases not answered")
		},
		"owed release is not sent after release": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			store.Fail(errStore)
			require.ErrorIs(t, l.Release(), errStore)
			synctest.Wait()
			store.Fail(nil)
			require.NoError(t, l.Release())
			n := len(s.made("release"))
			time.Sleep(time.Hour)
			require.Len(t, s.made("release"), n)
		},
		"owed release is given up after a TTL": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			store.Fail(errStore)
			start := time.Now()
			require.ErrorIs(t, l.Release(), errStore)
			time.Sleep(time.Hour)
			releases := s.made("release")
			require.Equal(t, start.Add(30*time.Second), releases[len(releases)-1].at)
			require.ErrorIs(t, l.Release(), errStore, "there is no time left for another try")
		},
		"lost lease that the store forgot is released once": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
			time.Sleep(29 * time.Second)
			require.True(t, store.Expire("k"))
			<-l.Done()
			time.Sleep(time.Hour)
			require.Len(t, s.made("release"), 1)
		},
		"a lease is adopted with a shorter TTL, and its release gets no answer for longer than that": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithTTL(time.Hour))
			d := detach(t, acquire(t, c, "k"))
			l := adopt(t, c.With(dlock.WithTTL(time.Second)), d)
			store.Fail(errStore)
			require.Error(t, l.Release())
			time.Sleep(3 * time.Second)
			store.Fail(nil)
			time.Sleep(10 * time.Second)
			require.NoError(t, c.Close())
			requireFree(t, store, "k")
		},
		"each try of a release ends": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(c *call) {
				if c.op == "try" {
					c.err = errStore
					return
				}
				c.hang()
			})
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
			time.Sleep(5500 * time.Millisecond)
			releases := s.made("release")
			require.Len(t, releases, 6, "one a second")
			require.Error(t, releases[0].ctx.Err(), "it ends after 5 s")
			require.NoError(t, releases[1].ctx.Err())
			start := time.Now()
			require.Error(t, c.Close())
			require.Equal(t, 5*time.Second, time.Since(start))
			synctest.Wait()
			for _, r := range s.made("release") {
				require.Error(t, r.ctx.Err(), "it outlives Close")
			}
		},
		// While the store answers, more and more releases that are owed are in flight at once: those who give up
		// a wait must be out of its queue before they are served. Without an answer, there are few again. (Those for a store that
		// does not combine calls are counted in package owed.)
		"owed releases go together": func(t *testing.T, _ *memory.Locker, s *spy, c *dlock.Client) {
			const n, roundTrip = 2000, 10 * time.Millisecond
			var down atomic.Bool
			s.onCall(func(c *call) {
				if c.op == "release" && down.Load() {
					c.err = errStore
				} else if c.op == "release" {
					c.take(roundTrip)
				}
			})
			for _, prefix := range []string{"first", "again"} {
				leases, _ := acquireAll(t, c, prefix, n)
				down.Store(true)
				for _, l := range leases {
					require.ErrorIs(t, l.Release(), errStore)
				}
				time.Sleep(2 * time.Second)
				s.forget()
				down.Store(false)
				time.Sleep(time.Second)
				require.Zero(t, c.Stats().ReleasesOwed, "a second after the store's return")
				together := make(map[time.Time]int)
				for _, c := range s.made("release") {
					together[c.at]++
				}
				var sizes []int
				for _, at := range slices.SortedFunc(maps.Keys(together), time.Time.Compare) {
					sizes = append(sizes, together[at])
				}
				require.Equal(t, []int{1, 129, 258, 512, 512, 512, 76}, sizes, "of a store that combines calls")
			}
		},
		"releases that stand in line for a few connections are few: renewals stand there, too": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(plain{s}, dlock.WithTTL(5*time.Second))
			held, _ := acquireAll(t, c, "held", 20)
			owed, _ := acquireAll(t, c.With(dlock.WithTTL(time.Hour)), "owed", 2000)
			s.onCall(says(errStore))
			for _, l := range owed {
				require.ErrorIs(t, l.Release(), errStore)
			}
			connections := make(chan struct{}, 2)
			s.onCall(func(c *call) {
				select {
				case connections <- struct{}{}:
					c.take(20 * time.Millisecond)
					<-connections
				case <-c.ctx.Done():
					c.err = c.ctx.Err()
				}
			})
			time.Sleep(time.Minute)
			requireNoneLost(t, held)
			require.Zero(t, c.Stats().RenewalsFailed)
			require.Zero(t, c.Stats().ReleasesOwed)
			require.NoError(t, c.Close())
		},
		"Close does not wait longer for a release than the store keeps the lease": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithTTL(3*time.Second))
			leases, _ := acquireAll(t, c, "", 100)
			store.Fail(errStore)
			for _, l := range leases {
				require.ErrorIs(t, l.Release(), errStore)
			}
			time.Sleep(time.Second)
			start := time.Now()
			require.NoError(t, c.Close(), "no key can stay")
			require.Equal(t, 2*time.Second, time.Since(start))
		},
		// An attempt without an answer is released; later tries, for a call that may be on its way, fail. The
		// release was answered, so its end has no error.
		"owed release was answered": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s)
			s.on("try", says(errStore))
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
			time.Sleep(time.Second)
			store.Fail(errStore)
			time.Sleep(time.Minute)
			require.NoError(t, c.Close())
			require.NoError(t, only[dlock.OwedDoneInfo](t, seen).Err)
		},
		"a retry is made soon, although new releases are owed all the time": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			var failed atomic.Int32
			s.onCall(func(c *call) {
				switch {
				case c.op == "release" && c.key == "real" && failed.Add(1) <= 2: // of the holder, and the first of the Client
					c.err = errStore
				case c.op == "release":
					time.Sleep(100 * time.Millisecond) // RTT
				case c.op == "try" && c.key != "real":
					c.err = errStore
				}
			})
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
			requireFree(t, store, "real") // the release that failed once, 10 s ago
			close(stop)
			c.Close()
		},
		"the release of an attempt on a live shard is sent soon, although many of leases to a dead one hang": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.onCall(func(c *call) {
				switch {
				case c.key[0] == 'd' && c.op == "release":
					c.hang()
				case c.key == "live" && c.op == "try":
					c.reply = errStore
				}
			})
			c := dlock.New(s, dlock.WithTTL(time.Minute))
			leases, _ := acquireAll(t, c, "dead", 20)
			for _, l := range leases {
				go l.Release()
			}
			time.Sleep(10 * time.Second)
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "live")), errStore)
			time.Sleep(10 * time.Second)
			requireFree(t, store, "live") // 10 s after the attempt
			c.Close()
		},
		"a release to a live shard is retried soon, although many to a dead shard hang": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			var failed atomic.Int32
			s.onCall(func(c *call) {
				dead := c.key[0] == 'd'
				switch {
				case c.op == "release" && c.key == "real" && failed.Add(1) == 1:
					c.err = errStore
				case dead && c.op == "release":
					c.hang()
				case dead && c.op == "try":
					c.err = errStore
				}
			})
			c := dlock.New(s, dlock.WithTTL(time.Minute))
			l := acquire(t, c, "real")
			for i := range 200 {
				c.TryAcquire(t.Context(), fmt.Sprint("dead", i))
			}
			time.Sleep(5 * time.Second)
			require.Error(t, l.Release())
			time.Sleep(10 * time.Second)
			requireFree(t, store, "real") // the release to the live shard that failed once, 10 s ago
			c.Close()
		},
	}.run(t)
}

func TestReleasesOfAttempts(t *testing.T) {
	inCases{
		"an answer that comes when the Client is closed causes no call": func(t *testing.T, _ *memory.Locker, s *spy, c *dlock.Client) {
			s.on("try", func(c *call) {
				c.err = &dlock.UnansweredError{Err: errStore, Late: func(f func(dlock.Attempt, error)) {
					time.AfterFunc(time.Minute, func() { f(dlock.Attempt{Acquired: true}, nil) })
				}}
			})
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errStore)
			require.NoError(t, c.Close())
			n := len(s.made("release"))
			require.Equal(t, 1, n)
			time.Sleep(time.Hour)
			require.Len(t, s.made("release"), n)
		},
		"a wait may be several requests, so the release that ends one grant is not the last": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			hold(t, store, time.Hour)
			s.on("acquire", func(c *call) {
				<-c.ctx.Done()
				store.Expire("k")
				require.NoError(t, errOf(store.TryAcquire(context.Background(), "k", c.token, time.Minute)))
				c.answers(dlock.Attempt{Holder: "other"}, errStore)
			})
			require.ErrorIs(t, errOf(dlock.New(s, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")), dlock.ErrHeld)
			synctest.Wait()
			requireFree(t, store, "k")
			time.Sleep(time.Hour)
			require.Greater(t, len(s.made("release")), 3)
		},
		"a token that tries again may be granted the key after a release has ended its first grant": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.onCall(func(c *call) {
				switch {
				case c.op == "try" && len(s.made("try")) == 1:
					c.delay = 950 * time.Millisecond // granted, and found late
				case c.op == "try":
					c.err = io.ErrUnexpectedEOF // still on its way
				}
			})
			require.ErrorIs(t, errOf(dlock.New(s, dlock.WithTTL(time.Second)).Acquire(t.Context(), "k")), io.ErrUnexpectedEOF)
			synctest.Wait()
			token := s.made("try")[0].token
			require.True(t, s.released(token))
			requireFree(t, store, "k")
			late, err := store.TryAcquire(t.Context(), "k", token, time.Second)
			require.NoError(t, err)
			require.True(t, late.Acquired)
			time.Sleep(300 * time.Millisecond)
			requireFree(t, store, "k")
			settle(time.Second)
			n := len(s.made("release"))
			time.Sleep(time.Minute)
			require.Len(t, s.made("release"), n, "it is released for ever")
		},
		// A release that is answered after a TTL has passed is not the last: the attempt may have arrived in between.
		"release answered after a TTL": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.onCall(func(c *call) {
				switch {
				case c.op == "try":
					c.err = io.ErrUnexpectedEOF // still on its way
				case len(s.made("release")) == 1:
					c.delay = 2 * time.Second
				}
			})
			require.ErrorIs(t, errOf(dlock.New(s, dlock.WithTTL(time.Second)).Acquire(t.Context(), "k")), io.ErrUnexpectedEOF)
			time.Sleep(500 * time.Millisecond)
			late, err := store.TryAcquire(t.Context(), "k", s.made("try")[0].token, time.Hour)
			require.NoError(t, err)
			require.True(t, late.Acquired)
			time.Sleep(5 * time.Second)
			requireFree(t, store, "k")
		},
		"nothing is owed to a store that is away for longer than the TTL": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithTTL(10*time.Second))
			store.Fail(errStore)
			for i := range 100 {
				c.TryAcquire(t.Context(), fmt.Sprint(i))
			}
			time.Sleep(5 * time.Minute)
			require.Zero(t, c.Stats().ReleasesOwed)
			require.NoError(t, c.Close(), "no key can stay")
		},
	}.run(t)
}

// What is owed after an acquisition that failed: nothing, one release, or releases for a TTL, in which a call may arrive.
func TestWhatAnAcquisitionOwes(t *testing.T) {
	mark := func(err error) error { return &dlock.NoEffectError{Err: err} }
	held, none := dlock.Attempt{Holder: "other", Remaining: time.Minute}, dlock.Attempt{}
	const once, forATTL = 1, 2
	for _, test := range []struct {
		name   string
		queue  error // of Acquire
		answer dlock.Attempt
		try    error // of TryAcquire; nil: another holds the key, which is waited for
		want   int
	}{
		{"try, unknown", nil, none, errStore, forATTL},
		{"try, marked", nil, none, mark(errStore), 0},
		{"try, marked, held: it has no place in a queue", nil, held, mark(errStore), 0},
		{"try, marked within", nil, none, fmt.Errorf("client: %w", mark(errStore)), 0},
		{"try, not dialled", nil, none, errDial, 0},
		{"try, not dialled by a pool", nil, none, fmt.Errorf("pool: %w", errDial), 0},
		{"try, invalid", nil, none, fmt.Errorf("%w key: has a hash tag", dlock.ErrInvalid), 0},
		{"try, unsupported", nil, none, errors.ErrUnsupported, 0},
		{"try, marked among others", nil, none, errors.Join(mark(errStore), io.EOF), forATTL},
		{"try, not dialled among others, and granted", nil, none, errors.Join(errDial, errStore), once},
		{"queue, unknown", errStore, none, nil, forATTL},
		{"queue, unknown, held", errStore, held, nil, forATTL},
		{"queue, marked", mark(errStore), none, nil, 0},
		{"queue, marked, held", mark(errStore), held, nil, once},
		{"queue, marked, only when", mark(errStore), dlock.Attempt{Since: time.Now()}, nil, once},
		{"queue, cut", nil, none, nil, once},
		{"polls, cut", nil, none, nil, 0},
	} {
		run(t, test.name, func(t *testing.T, store *memory.Locker, s *spy) {
			s.onCall(func(c *call) {
				switch {
				case c.op == "try" && test.try != nil && test.want == once:
					c.reply = test.try // the grant is lost
				case c.op == "try" && test.try != nil:
					c.answers(test.answer, test.try)
				case c.op == "acquire" && test.queue != nil:
					time.Sleep(time.Second)
					c.answers(test.answer, test.queue)
				}
			})
			var l dlock.Locker = s
			if test.name == "polls, cut" {
				l = plain{s}
			}
			acquire, err := dlock.New(l).TryAcquire, test.try
			if err == nil {
				hold(t, store, time.Hour)
				acquire, err = dlock.New(l, dlock.WithMaxWait(time.Second)).Acquire, dlock.ErrHeld
			}
			require.ErrorIs(t, errOf(acquire(t.Context(), "k")), err)
			ended := time.Now()
			synctest.Wait()
			require.Equal(t, test.try == nil, holder(t, store, "k").Held)
			time.Sleep(59 * time.Minute)
			releases := s.made("release")
			for _, r := range releases {
				require.Equal(t, s.made("try", "acquire")[len(s.made("try", "acquire"))-1].token, r.token)
			}
			if test.want != forATTL {
				require.Len(t, releases, test.want)
				return
			}
			require.Equal(t, ended, releases[0].at)
			require.Equal(t, ended.Add(dlock.DefaultTTL), releases[len(releases)-1].at)
			require.InDelta(t, 9, len(releases), 5)
		})
	}
}

// What is owed after an attempt that was given up, whose answer comes later. The release waits for it for a moment. If it
// was sent before, the answer decides whether it is repeated.
func TestWhatALateAnswerOwes(t *testing.T) {
	mark := func(err error) error { return &dlock.NoEffectError{Err: err} }
	held, none := dlock.Attempt{Holder: "other", Remaining: time.Minute}, dlock.Attempt{}
	const soon, later, afterATTL = 100 * time.Millisecond, time.Second, time.Minute
	for name, test := range map[string]struct {
		op     string
		after  time.Duration
		answer dlock.Attempt
		err    error
		want   int // releases from then on
	}{
		"try, held":                {"try", soon, held, nil, 0},
		"try, held, later":         {"try", later, held, nil, 0},
		"try, granted":             {"try", soon, dlock.Attempt{Acquired: true}, nil, 1},
		"try, granted, later":      {"try", later, dlock.Attempt{Acquired: true}, nil, 1},
		"try, granted, much later": {"try", afterATTL, dlock.Attempt{Acquired: true}, nil, 1},
		"try, refused":             {"try", soon, none, mark(errStore), 0},
		"try, failed":              {"try", soon, none, errStore, 8},
		"queue, waits":             {"acquire", soon, held, mark(errStore), 1},
		"queue, waits, later":      {"acquire", later, held, mark(errStore), 1},
		"queue, waits, much later": {"acquire", afterATTL, held, mark(errStore), 1},
		"queue, granted":           {"acquire", soon, dlock.Attempt{Acquired: true}, nil, 1},
		"queue, refused":           {"acquire", soon, none, mark(errStore), 0},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			hold(t, store, time.Hour)
			var ended time.Time
			s.onCall(func(c *call) {
				if c.op == "try" && test.op != "try" || c.op == "release" {
					return
				}
				<-c.ctx.Done()
				ended = time.Now()
				c.answers(none, fmt.Errorf("decorated: %w", &dlock.UnansweredError{Err: c.ctx.Err(), Late: func(f func(dlock.Attempt, error)) {
					time.AfterFunc(test.after, func() { f(test.answer, test.err) })
				}}))
			})
			c := dlock.New(s)
			require.ErrorIs(t, errOf(c.Acquire(within(t, 10*time.Millisecond), "k")), context.DeadlineExceeded)
			time.Sleep(time.Hour)
			require.Zero(t, c.Stats().ReleasesOwed)
			before, from := 0, 0
			for _, r := range s.made("release") {
				if since := r.at.Sub(ended); since < test.after {
					require.GreaterOrEqual(t, since, 250*time.Millisecond)
					before++
				} else {
					from++
				}
			}
			require.Equal(t, test.after > soon, before > 0)
			require.Equal(t, test.want, from)
			require.NoError(t, c.Close())
		})
	}
}

// Callers give up before the answer to their attempt comes. There are no more releases than attempts whose answer never
// comes: those that travelled alone.
func TestReleasesOfAnsweredAttempts(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, _ *spy) {
		server := sim.NewServer()
		c, _ := dial(t, server, func(sim.Trip) (f sim.Fate) {
			f.Request.Delay, f.Reply.Delay = 5*time.Millisecond, 5*time.Millisecond
			return f
		}, true)
		acquire(t, c, "k")
		before := server.Cost().Scripts
		together(100, func(int) {
			require.ErrorIs(t, errOf(c.Acquire(within(t, 5*time.Millisecond), "k")), context.DeadlineExceeded)
		})
		time.Sleep(time.Minute)
		const alone, repeated, renewals = 2, 8, 6
		require.LessOrEqual(t, server.Cost().Scripts-before, 100+alone*repeated+renewals)
		require.Zero(t, c.Stats().ReleasesOwed)
	})
}

// Where waiters give up soon and the server is busy, locks are granted nevertheless: the server is not kept busy by those
// who have gone. A hundred and twenty goroutines want twelve keys for 10 ms each, and wait for 10 to 30 ms. If several
// Clients share the server, each has to do without it for a while, and no estimate of one knows of the others.
func TestGrantsWhereWaitersGiveUp(t *testing.T) {
	type load struct {
		call, trip time.Duration
		clients    int
		queue      bool
	}
	const near, far = 500 * time.Microsecond, 5 * time.Millisecond
	for l, want := range map[load]int{ // grants in a second
		{85 * time.Microsecond, near, 1, true}: 900, {100 * time.Microsecond, near, 1, true}: 500, {150 * time.Microsecond, near, 1, true}: 300,
		{200 * time.Microsecond, near, 4, true}: 200,
		{30 * time.Microsecond, far, 1, true}:   700, {100 * time.Microsecond, far, 1, true}: 120,
		{100 * time.Microsecond, near, 1, false}: 900, {150 * time.Microsecond, near, 1, false}: 500,
	} {
		if israce.Enabled && l.clients == 1 {
			continue // the race detector takes minutes, and learns enough from four Clients
		}
		bubble.Test(t, func(t *testing.T) {
			require.GreaterOrEqual(t, grantsOfQuitters(t, l.call, l.trip, l.clients, l.queue), want, "%+v", l)
		})
	}
}

// grantsOfQuitters is how many grants there are in a second, if a server makes one call after the other.
func grantsOfQuitters(t *testing.T, call, trip time.Duration, clients int, queue bool) (grants int) {
	const keys, hold, patience = 12, 10 * time.Millisecond, 20 * time.Millisecond
	server, free, end := sim.NewServer(), time.Now(), time.Now().Add(time.Second)
	var mu sync.Mutex
	fate := func(trips sim.Trip) (f sim.Fate) {
		mu.Lock()
		defer mu.Unlock()
		free = slices.MaxFunc([]time.Time{free, time.Now().Add(trip / 2)}, time.Time.Compare).Add(time.Duration(len(trips.Calls)) * call)
		f.Request.Delay, f.Reply.Delay = time.Until(free), trip/2
		return f
	}
	all := make([]*dlock.Client, clients)
	for i := range all {
		all[i], _ = dial(t, server, fate, queue)
	}
	random := rand.New(rand.NewPCG(1, 2))
	together(10*keys, func(i int) {
		for time.Now().Before(end) {
			mu.Lock()
			key, wait := fmt.Sprint("k", random.IntN(keys)), patience/2+time.Duration(random.Int64N(int64(patience)))
			mu.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			lease, err := all[i%clients].Acquire(ctx, key)
			cancel()
			if err == nil {
				mu.Lock()
				grants++
				mu.Unlock()
				time.Sleep(hold)
				_ = lease.Release()
			}
		}
	})
	return grants
}

// A call that was slow once does not make the Locker take later waits for hurried.
func TestSlowCallHurriesNobody(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, _ *spy) {
		server, slow := sim.NewServer(), new(atomic.Int64)
		other, _ := dial(t, server, func(sim.Trip) (f sim.Fate) { return f }, true)
		mine, _ := dial(t, server, func(sim.Trip) (f sim.Fate) { f.Reply.Delay = time.Millisecond + time.Duration(slow.Load()); return f }, true)
		for _, key := range []string{"x", "k"} {
			l := acquire(t, other, key)
			defer time.AfterFunc(6*time.Second, func() { _ = l.Release() }).Stop()
		}
		slow.Store(int64(2500 * time.Millisecond))
		var both sync.WaitGroup
		defer both.Wait()
		both.Go(func() { _ = mine.With(dlock.WithMaxWait(20*time.Second)).Do(t.Context(), "x", noWork) })
		time.Sleep(5100 * time.Millisecond) // an attempt and an enqueue
		slow.Store(0)
		require.NoError(t, errOf(mine.With(dlock.WithMaxWait(2*time.Second)).Acquire(t.Context(), "k")))
	})
}

// The calls of one token count together: the first grant is late, so the token tries again.
func TestWhatATokenOwesAfterALateGrant(t *testing.T) {
	for name, test := range map[string]struct {
		second func(c *call)
		once   bool
	}{
		"marked":  {func(c *call) { c.err = &dlock.NoEffectError{Err: errStore} }, true},
		"held":    {func(c *call) { c.attempt = &dlock.Attempt{Holder: "other"} }, true},
		"unknown": {func(c *call) { c.err = errStore }, false},
		"late":    {func(c *call) { c.delay = 29 * time.Second }, true},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			s.onCall(func(c *call) {
				switch {
				case c.op != "try":
				case len(s.made("try")) == 1:
					c.delay = 29 * time.Second
				default:
					test.second(c)
				}
			})
			require.Error(t, errOf(dlock.New(s).TryAcquire(t.Context(), "k")))
			require.Len(t, s.made("try"), 2)
			synctest.Wait()
			requireFree(t, store, "k")
			time.Sleep(time.Hour)
			if test.once {
				require.Len(t, s.made("release"), 1)
			} else {
				require.Greater(t, len(s.made("release")), 3)
			}
		})
	}
}

// An attempt that arrives after the first release of its token is released within a quarter of the TTL.
func TestLateAttemptIsReleased(t *testing.T) {
	for _, late := range []time.Duration{7 * time.Second, 13 * time.Second} {
		run(t, late.String(), func(t *testing.T, store *memory.Locker, s *spy) {
			s.on("try", func(c *call) {
				c.err = errStore
				time.AfterFunc(late, func() { store.TryAcquire(context.Background(), c.key, c.token, c.ttl) })
			})
			start := time.Now()
			require.ErrorIs(t, errOf(dlock.New(s).TryAcquire(t.Context(), "k")), errStore)
			require.NoError(t, acquire(t, dlock.New(store), "k").Release())
			time.Sleep(late + 7600*time.Millisecond)
			requireFree(t, store, "k")
			time.Sleep(time.Minute)
			releases := s.made("release")
			require.Less(t, releases[len(releases)-1].at.Sub(start), late+8*time.Second, `"held, now free" is the end of it`)
		})
	}
}

// While the store is away, a release is owed for one TTL, and is then dropped without a call.
func TestOwedReleasesEndWithTheirTTL(t *testing.T) {
	const n, ttl = 1000, time.Second
	for name, away := range map[string]func(c *call){
		"refuses": func(c *call) { c.err = errStore },
		"hangs":   func(c *call) { c.hang() },
	} {
		run(t, name, func(t *testing.T, _ *memory.Locker, s *spy) {
			var down atomic.Bool
			s.onCall(func(c *call) {
				if down.Load() {
					away(c)
				}
			})
			c, seen := watched(s, dlock.WithTTL(ttl))
			leases, _ := acquireAll(t, c, "", n)
			down.Store(true)
			var all sync.WaitGroup
			for i, l := range leases {
				all.Go(func() { l.Release() })
				all.Go(func() {
					c.TryAcquire(within(t, ttl/2), fmt.Sprint("attempt", i))
				})
			}
			all.Wait()
			require.Equal(t, 2*n, c.Stats().ReleasesOwed)
			time.Sleep(ttl + time.Millisecond)
			require.LessOrEqual(t, c.Stats().ReleasesOwed, 128, "of %d, a TTL later: last tries", 2*n)
			time.Sleep(time.Second)
			require.Zero(t, c.Stats().ReleasesOwed, "of %d, a TTL and a second later", 2*n)
			synctest.Wait()
			unanswered := slices.DeleteFunc(of[dlock.OwedDoneInfo](seen), func(i dlock.OwedDoneInfo) bool { return i.Err == nil || i.Took > ttl+time.Second })
			require.Len(t, unanswered, 2*n, "events with an error")
			s.forget()
			down.Store(false)
			time.Sleep(time.Second)
			require.Empty(t, s.made(), "calls in the first second of the store's return")
			start := time.Now()
			require.NoError(t, c.Close(), "no key can stay")
			require.Zero(t, time.Since(start), "time that Close took")
		})
	}
}

func arrived(c *call) bool { return c.arrived }

// requireReleased says that a release of each token reached the store. It returns how many were sent for each on average.
func requireReleased(t *testing.T, s *spy, tokens map[string]int) (mean float64) {
	t.Helper()
	never, sent := 0, 0
	all, came := s.tokens("release", func(*call) bool { return true }), s.tokens("release", arrived)
	for token := range tokens {
		sent += all[token]
		if came[token] == 0 {
			never++
		}
	}
	mean = float64(sent) / float64(len(tokens))
	t.Logf("%d tokens: %d never released, %.2f releases sent for each", len(tokens), never, mean)
	require.Zero(t, never, "never released, of %d", len(tokens))
	return mean
}

// requireReleasedOnce says the same of waits that the store had answered, with at most two releases for each on average.
func requireReleasedOnce(t *testing.T, s *spy) {
	t.Helper()
	require.LessOrEqual(t, requireReleased(t, s, s.tokens("acquire", arrived)), 2.0, "releases for each cut wait")
}

// Of any number of waits that are cut at one instant, each is released.
func TestWaitsCutTogether(t *testing.T) {
	const waits = 5000 / israce.Slower
	for _, ttl := range []time.Duration{30 * time.Second, time.Hour} {
		run(t, ttl.String(), func(t *testing.T, store *memory.Locker, n *spy) {
			n.setRTT(time.Millisecond)
			keys := holdAll(t, store, 100)
			c := dlock.New(n, dlock.WithTTL(ttl))
			ctx, cut := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for i := range waits {
				all.Go(func() { _, _ = c.Acquire(ctx, keys[i%len(keys)]) })
			}
			time.Sleep(time.Second)
			require.Len(t, n.tokens("acquire", arrived), waits)
			cut()
			all.Wait()
			time.Sleep(2 * ttl)
			requireReleasedOnce(t, n)
			require.NoError(t, c.Close())
		})
	}
}

// 500 waits a second are cut for 20 s, and in their middle the store is out of reach
// for 5 s, in which 50 leases are released.
func TestCutWaitsBesideAnOutage(t *testing.T) {
	notShort(t)
	const (
		waits = 10_000 / israce.Slower
		real  = 50
		pace  = israce.Slower * 2 * time.Millisecond
		wait  = 100 * time.Millisecond
	)
	for f, apart := range map[fault]time.Duration{ // between the releases
		refuse: 90 * time.Millisecond,
		hang:   0, // so that all have failed when the store is back
	} {
		run(t, string(f), func(t *testing.T, store *memory.Locker, n *spy) {
			n.setRTT(time.Millisecond)
			keys := holdAll(t, store, 100)
			c := dlock.New(n)
			leases, mine := acquireAll(t, c, "mine", real)
			var all sync.WaitGroup
			all.Go(func() {
				for i := range waits {
					all.Go(func() {
						_, _ = c.Acquire(within(t, wait), keys[i%len(keys)])
					})
					time.Sleep(pace)
				}
			})
			time.Sleep(7 * time.Second)
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
			requireReleased(t, n, n.tokens("try", func(c *call) bool { return !c.refused }))
			require.NoError(t, c.Close())
		})
	}
}

// Attempts that took effect, and whose replies were lost together, are undone as soon as the store is back.
func TestLostRepliesOfManyAttempts(t *testing.T) {
	notShort(t)
	const attempts = 2000 / israce.Slower
	for _, then := range []fault{up, refuse, hang, ignore} {
		run(t, string(then), func(t *testing.T, store *memory.Locker, n *spy) {
			n.setRTT(time.Millisecond)
			c := dlock.New(n)
			keys := make([]string, attempts)
			n.set(lose)
			ctx := within(t, 100*time.Millisecond)
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
	}
}

// What is owed takes little memory, and is sent when the store is back.
func TestManyOwed(t *testing.T) {
	const owed = 10_000
	in(t, func(t *testing.T, _ *memory.Locker, n *spy) {
		c := dlock.New(n, dlock.WithTTL(time.Hour))
		n.set(refuse)
		before := heap()
		for i := range owed {
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), strconv.Itoa(i))), errStore)
		}
		time.Sleep(time.Minute)
		require.Equal(t, dlock.Stats{ReleasesOwed: owed}, c.Stats())
		n.forget()
		require.True(t, israce.Enabled || heap()-before <= 1000*owed, "bytes of what is owed")
		n.setRTT(time.Millisecond)
		n.set(up)
		time.Sleep(time.Minute)
		require.Len(t, n.tokens("release", func(*call) bool { return true }), owed)
		require.NoError(t, c.Close())
	})
}
