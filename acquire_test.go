package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestAcquire(t *testing.T) {
	inCases{
		"context of acquire bounds the wait only": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			ctx, cancel := context.WithCancel(t.Context())
			l, err := c.Acquire(ctx, "k")
			require.NoError(t, err)
			cancel()
			time.Sleep(time.Hour)
			require.NoError(t, l.Err())
			requireHeld(t, store, "k", l.Token())
			require.NoError(t, l.Release())
			requireFree(t, store, "k")
		},
		"HeldError tells the owner": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, dlock.New(s, dlock.WithOwner("web-7 \x00é")), "k")
			defer l.Release()
			time.Sleep(3 * time.Second)
			_, err := c.TryAcquire(t.Context(), "k")
			held := as[*dlock.HeldError](t, err)
			started := time.Now().Add(-3 * time.Second).Local()
			require.Equal(t, dlock.HeldError{Key: "k", Owner: "web-7 \x00é", Started: started, Remaining: 27 * time.Second}, *held)
			require.NotContains(t, err.Error(), l.Token())
			require.EqualError(t, err, fmt.Sprintf(`dlock: acquire "k": held by %q since %s, for 27s unless renewed`, "web-7 \x00é", started.UTC().Format(time.RFC3339)))
		},
		"ended context sends nothing": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			ctx, c := ended(t), dlock.New(s)
			for name, err := range map[string]error{
				"Acquire": errOf(c.Acquire(ctx, "k")), "TryAcquire": errOf(c.TryAcquire(ctx, "k")), "Inspect": errOf(c.Inspect(ctx, "k")), "Do": c.Do(ctx, "k", noWork),
			} {
				require.ErrorIs(t, err, context.Canceled, name)
			}
			require.EqualError(t, errOf(c.TryAcquire(ctx, "k")), `dlock: acquire "k": context canceled`)
			require.Empty(t, s.made())
		},
		"unwanted grant is owed if its release fails": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.first("release", says(errStore))
			c := dlock.New(noFences{dlock.Forward{Locker: s}}, dlock.WithFence(true))
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), errors.ErrUnsupported)
			time.Sleep(time.Second)
			requireFree(t, store, "k")
		},
		"background calls keep the values": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			type trace struct{}
			ctx := context.WithValue(t.Context(), trace{}, "id")
			c := dlock.New(plain{s})
			l, err := c.Acquire(ctx, "k")
			require.NoError(t, err)
			time.Sleep(15 * time.Second)
			require.NoError(t, l.Release())
			require.Equal(t, "id", s.made("renew")[0].ctx.Value(trace{}))
			s.on("try", says(errStore))
			n := len(s.made("release"))
			require.ErrorIs(t, errOf(c.TryAcquire(ctx, "k")), errStore)
			synctest.Wait()
			require.Equal(t, "id", s.made("release")[n].ctx.Value(trace{}))
		},
		"concurrent clients": func(t *testing.T, store *memory.Locker, _ *spy, _ *dlock.Client) {
			var holders, grants atomic.Int64
			together(20, func(int) {
				c := dlock.New(store, dlock.WithTTL(100*time.Millisecond))
				for range 20 {
					l, err := c.Acquire(t.Context(), "k")
					if err != nil || holders.Add(1) != 1 {
						t.Errorf("%d holders, %v", holders.Load(), err)
					}
					time.Sleep(150 * time.Millisecond)
					holders.Add(-1)
					grants.Add(1)
					assert.NoError(t, l.Release())
				}
			})
			require.EqualValues(t, 400, grants.Load())
		},
		"while many first attempts are in flight, others join the queue at once": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(*call) { time.Sleep(time.Second) })
			together(200, func(i int) {
				lease, err := c.Acquire(t.Context(), fmt.Sprint("k", i))
				if err == nil {
					err = lease.Release()
				}
				require.NoError(t, err)
			})
			require.Len(t, s.made("try", "acquire"), 200)
			require.InDelta(t, 128, len(s.made("try")), 8) // those that begin at the same instant do not see each other
			require.Len(t, s.made("release"), 200)
			s.forget()
			require.NoError(t, acquire(t, c, "k").Release())
			require.Equal(t, []string{"try", "release"}, s.ops())
			require.NoError(t, c.Close())
		},
		"Without a queue each acquisition begins with an attempt": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.on("acquire", says(errors.ErrUnsupported))
			for range 2 {
				hold(t, store, 10*time.Millisecond)
				require.NoError(t, acquire(t, c, "k").Release())
			}
			require.Len(t, s.made("acquire"), 2)
			require.Equal(t, "try", s.ops()[len(s.made())/2])
		},
		"unsupported queue is not there": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			hold(t, store, time.Second)
			require.NoError(t, acquire(t, dlock.New(dlock.Forward{Locker: plain{s}}), "k").Release())
			require.Empty(t, s.made("acquire"))
			require.Len(t, s.made("release"), 1, "nothing was sent, so nothing is owed")
		},
	}.run(t)
}

func TestWaits(t *testing.T) {
	waiting.cases(t, map[string]test{
		"tokens are used once": func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			defer acquire(t, dlock.New(store), "k").Release()
			s.onCall(func(c *call) {
				if n := len(s.made("try", "acquire")); n > 1 && n < 5 && c.op != "release" {
					c.err = errStore
				}
			})
			time.AfterFunc(time.Minute, func() { store.Expire("k") })
			lease := acquire(t, dlock.New(l), "k")
			defer lease.Release()
			failed := make(map[string]bool)
			for _, c := range s.made("try", "acquire") {
				require.False(t, failed[c.token], "a token whose outcome was unknown is used again")
				failed[c.token] = c.err != nil
			}
			time.Sleep(time.Minute)
			for token, f := range failed {
				if f {
					require.True(t, s.released(token), "the release of a failed attempt was not sent")
				}
			}
			require.False(t, s.released(lease.Token()))
		},
		"with fence": func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			c := dlock.New(noFences{dlock.Forward{Locker: l}})
			fenced := c.With(dlock.WithFence(true))
			require.ErrorIs(t, errOf(fenced.TryAcquire(t.Context(), "k")), errors.ErrUnsupported)
			requireFree(t, store, "k")
			lease := acquire(t, c, "k")
			require.Zero(t, lease.Fence())
			time.AfterFunc(time.Second, func() { lease.Release() })
			require.ErrorIs(t, errOf(fenced.Acquire(t.Context(), "k")), errors.ErrUnsupported)
			requireFree(t, store, "k")
			lease = acquire(t, dlock.New(s, dlock.WithFence(true)), "k")
			require.NotZero(t, lease.Fence())
			require.NoError(t, lease.Release())
		},
		"MaxWait": func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			defer acquire(t, dlock.New(store), "k").Release()
			c := dlock.New(l, dlock.WithMaxWait(2*time.Second))
			start := time.Now()
			_, err := c.Acquire(t.Context(), "k")
			require.Equal(t, 2*time.Second, time.Since(start))
			requireErr(t, err, dlock.ErrHeld, noContext)
			before := len(s.made("try", "acquire"))
			require.ErrorIs(t, errOf(c.With(dlock.WithMaxWait(0)).Acquire(t.Context(), "k")), dlock.ErrHeld)
			require.Len(t, s.made("try", "acquire"), before+1)
			require.Equal(t, 2*time.Second, time.Since(start))
		},
		"MaxWait ends while store fails": func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			defer acquire(t, dlock.New(store), "k").Release()
			s.onCall(func(c *call) { c.failIf(time.Since(c.at) == 0 && len(s.made("try", "acquire")) > 1, errStore) })
			_, err := dlock.New(l, dlock.WithMaxWait(5*time.Second)).Acquire(t.Context(), "k")
			requireErr(t, err, errStore, dlock.ErrHeld, "for 30s unless renewed; the store last answered 5s ago: store: connection refused")
			requireErr(t, err, noContext)
		},
		"NoLimit overrides a MaxWait": func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			hold(t, store, time.Hour)
			c := dlock.New(l, dlock.WithMaxWait(time.Second))
			require.NoError(t, acquire(t, c.With(dlock.WithMaxWait(dlock.NoLimit)), "k").Release())
		},
		// Started is when the holder was granted the key, however long it has waited. If the store does not say so, it is when
		// the holder's last attempt was made, unless the holder may have waited in a queue.
		"started of a waiter": func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			hold(t, store, time.Hour)
			waiter := acquire(t, dlock.New(l), "k")
			granted := time.Now().Truncate(time.Millisecond)
			time.Sleep(time.Minute)
			started := func(l dlock.Locker) time.Time {
				return as[*dlock.HeldError](t, errOf(dlock.New(l).TryAcquire(t.Context(), "k"))).Started
			}
			holder := inspect(t, dlock.New(store))
			for _, at := range []time.Time{holder.Started, started(l), started(dlock.Forward{Locker: store})} {
				require.True(t, granted.Equal(at), "%v, granted %v", at, granted)
			}
			if _, queue := l.(dlock.Acquirer); queue {
				granted = time.Time{}
			}
			require.True(t, granted.Equal(started(silent{store})))
			require.NoError(t, waiter.Release())
		},
		"a key that is held when the store is back is waited for, however long": func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			for away, outage := range map[error]time.Duration{errDial: 3 * time.Second, errLoading: 0} {
				hold(t, store, 10*time.Second)
				start := time.Now()
				s.onCall(func(c *call) { c.failIf(time.Since(start) < 2*time.Second, away) })
				lease := acquire(t, dlock.New(l, dlock.WithOutage(outage)), "k")
				require.InDelta(t, 10, time.Since(start).Seconds(), 0.01)
				require.NoError(t, lease.Release())
			}
		},
	})
}

func TestGrants(t *testing.T) {
	inCases{
		"a grant whose answer comes when the deadline has passed": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(c *call) { c.delayIf(len(s.made("try")) == 1, time.Minute) })
			l := acquire(t, c, "k")
			tries := s.made("try")
			require.Len(t, tries, 2)
			require.Equal(t, tries[0].token, tries[1].token)
			require.Equal(t, tries[1].token, l.Token())
			require.Equal(t, time.Now().Add(30*time.Second-302*time.Millisecond), l.Deadline())
			require.Equal(t, 30*time.Second, holder(t, store, "k").Remaining)
			require.Equal(t, time.Now().UnixMicro(), l.Fence(), "the fence of the second answer")
			require.NoError(t, l.Release())
		},
		"the Since of a grant counts, if the Acquirer sets it": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, time.Second)
			var since time.Time
			s.on("acquire", func(c *call) {
				c.delay = 2 * time.Second
				since = c.at.Add(time.Second)
			})
			l := acquire(t, c, "k")
			require.Equal(t, since.Add(5*time.Second-52*time.Millisecond), l.Deadline())
			require.NoError(t, l.Release())
		},
		"the first TTL after a wait is short, in case the waiter is dead, and the lease is renewed soon": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			for _, w := range []struct {
				options []dlock.Option
				first   time.Duration
				renewed bool
			}{
				{nil, 5 * time.Second, true},
				{[]dlock.Option{dlock.WithTTL(5*time.Second + time.Millisecond)}, 5 * time.Second, true},
				{[]dlock.Option{dlock.WithTTL(5 * time.Second)}, 5 * time.Second, false},
				{[]dlock.Option{dlock.WithTTL(3 * time.Second)}, 3 * time.Second, false},
				{[]dlock.Option{dlock.WithRenewal(false)}, 30 * time.Second, false},
				{[]dlock.Option{dlock.WithMaxHold(100 * time.Millisecond)}, 30 * time.Second, false},
				{[]dlock.Option{dlock.WithMaxHold(time.Second)}, 5 * time.Second, true},
				{[]dlock.Option{dlock.WithMinHold(7 * time.Second)}, 7 * time.Second, true},
				{[]dlock.Option{dlock.WithMinHold(time.Hour)}, 30 * time.Second, false},
			} {
				s.forget()
				hold(t, store, time.Second)
				l := acquire(t, c.With(w.options...), "k")
				at := time.Now()
				require.Equal(t, w.first, s.made("acquire")[0].ttl)
				require.Equal(t, at.Add(w.first-w.first/100-2*time.Millisecond), l.Deadline())
				settle(100 * time.Millisecond)
				if w.renewed {
					require.Len(t, s.made("renew"), 1)
					full := s.made("try")[0].ttl
					require.Equal(t, full, s.made("renew")[0].ttl)
					require.Equal(t, time.Now().Add(full-full/100-2*time.Millisecond), l.Deadline())
				} else {
					require.Empty(t, s.made("renew"))
				}
				require.NoError(t, l.Release())
				time.Sleep(2 * time.Hour)
			}
		},
		"a lease that is released soon after a wait is not renewed, even if others are": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			other := acquire(t, c, "other")
			time.Sleep(9 * time.Second)
			hold(t, store, 950*time.Millisecond)
			l := acquire(t, c, "k")
			time.Sleep(60 * time.Millisecond) // other has been renewed now
			synctest.Wait()
			require.NoError(t, l.Release())
			time.Sleep(time.Second)
			require.NoError(t, other.Release())
			for _, r := range s.made("renew", "batch") {
				require.NotEqual(t, l.Token(), r.token)
			}
			require.Len(t, s.made("renew"), 1)
			require.Empty(t, s.made("batch"))
		},
		"a Since that is zero or in the future is not believed: the lease counts from the call": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			for since, ahead := range map[bool]time.Duration{false: 0, true: time.Hour} {
				s.onCall(func(c *call) {
					c.attempt, c.delay = &dlock.Attempt{Acquired: true, Fence: 8}, time.Second
					if since {
						c.attempt.Since = c.at.Add(ahead)
					}
				})
				start := time.Now()
				l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
				require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
				s.onCall(nil)
				require.NoError(t, l.Release())
			}
		},
		"late grants after held are not held": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			hold(t, store, time.Second)
			s.onCall(func(c *call) { c.delayIf(c.op == "try" && len(s.made("try")) > 1, 99*time.Millisecond) })
			c := dlock.New(plain{s}, dlock.WithTTL(100*time.Millisecond), dlock.WithMaxWait(5*time.Second))
			requireErr(t, errOf(c.Acquire(t.Context(), "k")), noContext, not{dlock.ErrHeld}) // the last answers were grants
		},
	}.run(t)
}

// A renewal may still save a lease that has little time left. Without renewal, the work would have only that.
func TestGrantFoundNearlyTooLateIsNotBelieved(t *testing.T) {
	for _, test := range []struct {
		renewal bool
		delay   time.Duration
		tries   int
	}{
		{true, 26 * time.Second, 1},
		{true, 27 * time.Second, 2},
		{false, 14 * time.Second, 1},
		{false, 15 * time.Second, 2},
	} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			s.onCall(func(c *call) { c.delayIf(len(s.made("try")) == 1, test.delay) })
			l := acquire(t, dlock.New(s, dlock.WithRenewal(test.renewal)), "k")
			require.Len(t, s.made("try"), test.tries, "renewal %v, answer after %v", test.renewal, test.delay)
			require.NoError(t, l.Release())
		})
	}
}

// A waiter is paused after the grant for longer than the lease lasts.
func TestWaiterStoppedPastItsDeadline(t *testing.T) {
	for name, other := range map[string]func(t *testing.T, store *memory.Locker){
		"free":  func(*testing.T, *memory.Locker) {},
		"taken": func(_ *testing.T, store *memory.Locker) { store.Steal("k", time.Hour) },
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			hold(t, store, time.Second)
			s.first("acquire", func(c *call) {
				c.delay = time.Minute // granted after 1 s, lost after 31
				time.AfterFunc(40*time.Second, func() { other(t, store) })
			})
			l := acquire(t, dlock.New(s), "k")
			require.NoError(t, l.Err())
			requireHeld(t, store, "k", l.Token())
			require.Greater(t, time.Until(l.Deadline()), 4*time.Second)
			first := s.made("acquire")[0].token
			synctest.Wait()
			if name == "taken" {
				require.NotEqual(t, first, l.Token(), "the token was given up")
				require.True(t, s.released(first))
			} else {
				require.Equal(t, first, l.Token())
			}
			time.Sleep(time.Hour)
			require.NoError(t, l.Err(), "an owed release has ended the lease")
			require.NoError(t, l.Release())
		})
	}
}

func TestAnswersAlwaysTooLate(t *testing.T) {
	for renewal, delay := range map[bool]time.Duration{true: 99 * time.Millisecond, false: 50 * time.Millisecond} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			s.on("try", func(c *call) { c.delay = delay })
			_, err := dlock.New(s, dlock.WithTTL(100*time.Millisecond), dlock.WithRenewal(renewal)).Acquire(t.Context(), "k")
			require.ErrorContains(t, err, "took too much of the TTL", "renewal %v, answer after %v", renewal, delay)
			require.NotErrorIs(t, err, dlock.ErrUnavailable, "it has answered")
			require.Len(t, s.made("try"), 2)
			synctest.Wait()
			require.True(t, s.released(s.made("try")[0].token))
		})
	}
}

// A Since without a monotonic reading would move with the wall clock, so the lease counts
// from the call. (In a bubble no time has a monotonic reading.)
func TestSinceOnTheWallIsNotBelieved(t *testing.T) {
	s := &spy{Forward: dlock.Forward{Locker: memory.New()}}
	s.onCall(func(c *call) {
		c.attempt = &dlock.Attempt{Acquired: true, Fence: 8, Since: time.Now().Add(time.Millisecond).Round(0)}
		time.Sleep(2 * time.Millisecond)
	})
	l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
	require.NotEqual(t, l.Deadline().Round(0), l.Deadline())
	require.NoError(t, l.Release())
}

// For a second after a wait in the queue of the store, the next acquisition of the key joins the queue at once, held or free,
// and others do not. A wait that began so ends like any other. If the queue fails, an attempt decides the acquisition.
func TestContendedKey(t *testing.T) {
	soon := func(held time.Duration) func(*testing.T, *memory.Locker, *spy, *dlock.Client) {
		return func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			time.Sleep(time.Second - 2*time.Millisecond)
			if held > 0 {
				hold(t, store, held)
			}
			require.NoError(t, acquire(t, c.With(dlock.WithMaxWait(time.Minute)), "k").Release())
			require.Equal(t, []string{"acquire", "release"}, s.ops())
			s.forget()
			time.Sleep(2 * time.Millisecond)
			require.NoError(t, acquire(t, c, "k").Release())
			require.Equal(t, []string{"try", "release"}, s.ops())
		}
	}
	failsOnce := func(failure error) func(*testing.T, *memory.Locker, *spy, *dlock.Client) {
		return func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.first("acquire", says(failure))
			hold(t, store, time.Second)
			require.NoError(t, acquire(t, c, "k").Release())
			require.Equal(t, "acquire", s.ops()[0])
			require.Len(t, s.made("try"), 1)
		}
	}
	for name, f := range map[string]func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client){
		"free":                           soon(0),
		"held, too short for a new wait": soon(500 * time.Microsecond),
		"the queue is lost":              failsOnce(errStore),
		"the queue is gone":              failsOnce(errors.ErrUnsupported),
		"another key": func(t *testing.T, _ *memory.Locker, s *spy, c *dlock.Client) {
			require.NoError(t, acquire(t, c, "other").Release())
			require.Equal(t, []string{"try", "release"}, s.ops())
		},
		"one attempt": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			hold(t, store, time.Minute)
			require.ErrorIs(t, errOf(c.TryAcquire(t.Context(), "k")), dlock.ErrHeld)
			require.ErrorIs(t, errOf(c.With(dlock.WithMaxWait(0)).Acquire(t.Context(), "k")), dlock.ErrHeld)
			require.Equal(t, []string{"try", "try"}, s.ops())
		},
		"it stays so while calls wait for it, and a grant at once does not prolong that": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(c *call) { time.Sleep(10 * time.Microsecond) })
			for range 5 {
				time.Sleep(600 * time.Millisecond)
				hold(t, store, 5*time.Millisecond)
				require.NoError(t, acquire(t, c, "k").Release())
			}
			require.Empty(t, s.made("try"))
			for range 2 {
				time.Sleep(600 * time.Millisecond)
				require.NoError(t, acquire(t, c, "k").Release())
			}
			require.Len(t, s.made("try"), 1)
		},
		"the store is down": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(c *call) { c.failIf(c.op != "release", errStore) })
			begin := time.Now()
			requireErr(t, errOf(c.Acquire(t.Context(), "k")), errStore, not{dlock.ErrHeld})
			require.Equal(t, begin, time.Now())
			tries := s.made("try", "acquire")
			require.Len(t, tries, 2)
			require.NotEqual(t, tries[0].token, tries[1].token, "the first may have been granted")
			time.Sleep(time.Minute)
			require.True(t, s.released(tries[0].token) && s.released(tries[1].token))
			requireFree(t, store, "k")
		},
		"the queue says held, then fails": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(c *call) {
				if c.op == "acquire" && len(s.made("acquire")) <= 3 {
					c.answers(dlock.Attempt{Holder: "other", Remaining: time.Second}, errStore)
				}
			})
			hold(t, store, time.Second)
			require.NoError(t, acquire(t, c, "k").Release())
			require.Empty(t, s.made("try"), "it was known to be held")
			require.Len(t, s.made("acquire"), 4)
		},
		"the wait ends": func(t *testing.T, store *memory.Locker, _ *spy, c *dlock.Client) {
			hold(t, store, time.Minute)
			requireErr(t, errOf(c.Acquire(within(t, time.Second), "k")), context.DeadlineExceeded, dlock.ErrHeld)
			hasty := c.With(dlock.WithMaxWait(time.Second))
			requireErr(t, errOf(hasty.Acquire(t.Context(), "k")), dlock.ErrHeld, not{context.DeadlineExceeded})
			time.AfterFunc(time.Second, func() { c.Close() })
			begin := time.Now()
			require.ErrorIs(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrClosed)
			require.Equal(t, time.Second, time.Since(begin))
		},
		"granted without a fence": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(c *call) { c.attempt = &dlock.Attempt{Acquired: true} })
			require.ErrorIs(t, errOf(c.With(dlock.WithFence(true)).Acquire(t.Context(), "k")), errors.ErrUnsupported)
			require.Equal(t, []string{"acquire", "release"}, s.ops())
		},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s)
			hold(t, store, 100*time.Millisecond)
			require.NoError(t, acquire(t, c, "k").Release())
			require.Equal(t, []string{"try", "acquire", "release"}, s.ops())
			s.forget()
			f(t, store, s, c)
			require.NoError(t, c.Close())
		})
	}
}

func TestPollingPace(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 30 * time.Second} {
		run(t, ttl.String(), func(t *testing.T, store *memory.Locker, s *spy) {
			defer acquire(t, dlock.New(store, dlock.WithTTL(ttl)), "k").Release()
			require.ErrorIs(t, errOf(dlock.New(plain{s}, dlock.WithMaxWait(20*time.Second)).Acquire(t.Context(), "k")), dlock.ErrHeld)
			tries := s.made("try")
			for i := range tries {
				n := 0
				for _, c := range tries[i:] {
					if c.at.Sub(tries[i].at) < time.Second {
						n++
					}
				}
				require.LessOrEqual(t, n, 21, "attempts in one second")
			}
			require.Greater(t, len(tries), 5*20, "it hardly polls")
			require.Less(t, len(tries), 14*20, "it polls too frequently")
		})
	}
}

func TestPolling(t *testing.T) {
	inCases{
		"while the store does not answer, pauses become longer; once it answers, they are as usual": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			defer acquire(t, dlock.New(store), "k").Release()
			start := time.Now()
			s.onCall(func(c *call) {
				if at := time.Since(start); at > time.Second && at < time.Minute {
					c.err = errStore
				}
			})
			require.ErrorIs(t, errOf(dlock.New(plain{s}, dlock.WithMaxWait(2*time.Minute)).Acquire(t.Context(), "k")), dlock.ErrHeld)
			polls := func(from, to time.Duration) (n int) {
				for _, c := range s.made("try") {
					if at := c.at.Sub(start); at >= from && at < to {
						n++
					}
				}
				return n
			}
			require.InDelta(t, 60, polls(10*time.Second, time.Minute), 15, "attempts in 50 s, while it fails")
			require.InDelta(t, 6.7*50, polls(65*time.Second, 115*time.Second), 70, "attempts in 50 s, when it answers again")
		},
		"pollers do not stay together": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			defer acquire(t, dlock.New(store, dlock.WithRenewal(false), dlock.WithTTL(time.Hour)), "k").Release()
			for range 10 {
				go dlock.New(plain{s}, dlock.WithMaxWait(5*time.Second)).Acquire(t.Context(), "k")
			}
			time.Sleep(time.Minute)
			instants := make(map[time.Time]bool)
			for _, c := range s.made("try") {
				instants[c.at] = true
			}
			require.Greater(t, len(instants), len(s.made("try"))/2)
		},
		"backoff": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			defer acquire(t, dlock.New(store), "k").Release()
			var attempts []int
			c := dlock.New(plain{s}, dlock.WithMaxWait(time.Minute), dlock.WithBackoff(func(attempt int) time.Duration {
				attempts = append(attempts, attempt)
				return time.Duration(4-attempt) * time.Second
			}))
			requireErr(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrInvalid, "0s for attempt 4")
			require.Equal(t, []int{1, 2, 3, 4}, attempts)
			require.Len(t, s.made("try"), 4)
			require.ErrorIs(t, errOf(c.With(dlock.WithBackoff(nil)).Acquire(t.Context(), "k")), dlock.ErrHeld)
		},
		"a lease may last for as long as a Duration can be": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			s.onCall(func(c *call) { c.answers(dlock.Attempt{Holder: "x", Remaining: math.MaxInt64}, nil) })
			require.ErrorIs(t, errOf(dlock.New(plain{s}, dlock.WithMaxWait(10*time.Second)).Acquire(t.Context(), "k")), dlock.ErrHeld)
			tries := s.made("try")
			for i := 1; i < len(tries); i++ {
				require.GreaterOrEqual(t, tries[i].at.Sub(tries[i-1].at), 50*time.Millisecond, "pause %d", i)
			}
		},
	}.run(t)
}

func TestPollAtTheEndOfTheLease(t *testing.T) {
	for _, rest := range []time.Duration{3 * time.Millisecond, 30 * time.Millisecond, 1234 * time.Millisecond, 30 * time.Second} {
		run(t, rest.String(), func(t *testing.T, store *memory.Locker, s *spy) {
			hold(t, store, rest)
			start := time.Now()
			l := acquire(t, dlock.New(plain{s}), "k")
			require.InDelta(t, rest.Seconds(), time.Since(start).Seconds(), 0.004)
			require.NoError(t, l.Release())
		})
	}
}

func TestFinalErrorsEndTheWait(t *testing.T) {
	for _, final := range []error{dlock.ErrInvalid, dlock.ErrClosed} {
		waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			defer acquire(t, dlock.New(store), "k").Release()
			s.onCall(func(c *call) {
				c.failIf(c.op != "release" && len(s.made("try", "acquire")) > 1, fmt.Errorf("locker: %w", final))
			})
			require.ErrorIs(t, errOf(dlock.New(l, dlock.WithMaxWait(time.Minute)).Acquire(t.Context(), "k")), final)
			require.Len(t, s.made("try", "acquire"), 2, "it is not retried")
			time.Sleep(time.Minute)
			if final == dlock.ErrInvalid {
				require.Empty(t, s.made("release"), "nothing was sent, so nothing is owed")
			}
		})
	}
}

func TestEndsOfWaits(t *testing.T) {
	inCases{
		"wait cut during an attempt": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			defer acquire(t, dlock.New(store, dlock.WithRenewal(false), dlock.WithTTL(time.Hour)), "k").Release()
			s.onCall(func(c *call) { c.hangIf(len(s.made("try")) > 1) })
			c := dlock.New(plain{s}, dlock.WithMaxWait(time.Second))
			requireErr(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrHeld, noContext)
			c.Close()
		},
		"answer after MaxWait is not waited on": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			defer acquire(t, dlock.New(store), "k").Release()
			s.onCall(func(c *call) { c.delay = 2 * time.Second }) // a Locker that ignores its ctx
			require.ErrorIs(t, errOf(dlock.New(s, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")), dlock.ErrHeld)
			require.Empty(t, s.made("acquire"))
		},
		"wait tells the last holder": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			first := acquire(t, dlock.New(store, dlock.WithOwner("first")), "k")
			time.AfterFunc(time.Second, func() { first.Release() })
			go func() {
				l, err := dlock.New(store, dlock.WithOwner("second"), dlock.WithMaxHold(time.Minute)).Acquire(t.Context(), "k")
				if err == nil {
					<-l.Done()
				}
			}()
			synctest.Wait()
			_, err := dlock.New(s, dlock.WithMaxWait(2*time.Second)).Acquire(t.Context(), "k")
			require.Equal(t, "second", as[*dlock.HeldError](t, err).Owner)
			time.Sleep(time.Hour) // for the second holder
		},
		"a queue that breaks the contract of Acquirer counts as failed": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			defer acquire(t, dlock.New(store), "k").Release()
			s.on("acquire", func(c *call) { c.answers(dlock.Attempt{}, nil) })
			_, err := dlock.New(s, dlock.WithMaxWait(10*time.Second)).Acquire(t.Context(), "k")
			requireErr(t, err, "the store last answered 10s ago: the store's queue returned neither a grant nor an error", dlock.ErrHeld, noContext)
		},
		// The last attempt is cut off with the patience. The socket's error says less than the answer before.
		"patience that cuts an attempt": func(t *testing.T, _ *memory.Locker, s *spy, _ *dlock.Client) {
			begun := time.Now()
			s.onCall(func(c *call) {
				if c.err = errOOM; time.Since(begun) > 900*time.Millisecond {
					c.take(time.Minute)
					c.err = &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
				}
			})
			for _, text := range []string{"no success for 1.8s: the store refused: OOM", "no answer for 1.8s: read: i/o timeout"} {
				_, err := dlock.New(s, dlock.WithOutage(1800*time.Millisecond)).Acquire(t.Context(), "k")
				require.ErrorContains(t, err, "store unavailable: "+text)
			}
		},
	}.run(t)
}

// A MaxWait that is shorter than one round trip.
func TestMaxWaitShorterThanARoundTrip(t *testing.T) {
	for _, wait := range []time.Duration{1, time.Millisecond, 600 * time.Millisecond} {
		for _, contended := range []bool{false, true} {
			run(t, fmt.Sprint(wait, contended), func(t *testing.T, store *memory.Locker, s *spy) {
				c := dlock.New(s)
				if contended {
					hold(t, store, 100*time.Millisecond)
					require.NoError(t, acquire(t, c, "k").Release())
				}
				s.onCall(func(c *call) { c.take(700 * time.Millisecond) })
				short := c.With(dlock.WithMaxWait(wait))
				l, err := short.Acquire(t.Context(), "k")
				require.NoError(t, err, "the key is free")
				start := time.Now()
				requireErr(t, errOf(short.Acquire(t.Context(), "k")), dlock.ErrHeld, noContext)
				require.Equal(t, 700*time.Millisecond, time.Since(start), "it does not wait")
				require.NoError(t, l.Release())
			})
		}
	}
}

// A silent Locker does not say since when a key is held.
type silent struct{ dlock.Locker }

func (s silent) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := s.Locker.TryAcquire(ctx, key, token, ttl)
	a.HeldSince = time.Time{}
	return a, err
}

// A wait for the store ends with ctx and with Close, and with MaxWait. One attempt waits for nothing.
func TestEndsOfAWaitForTheStore(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		opts []dlock.Option
		text string // of an answer
	}{
		"loading":   {errLoading, nil, ""},
		"no access": {errDial, []dlock.Option{dlock.WithOutage(time.Minute)}, ""},
		"state":     {errOOM, []dlock.Option{dlock.WithOutage(time.Minute)}, "the store refused: OOM command not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
				store.Fail(test.err)
				c, start := dlock.New(l, test.opts...), time.Now()
				for d, text := range map[time.Duration]string{-1: "", 0: "", 2 * time.Second: "waited for 2s: store unavailable: no success for 2s: "} {
					acquire, begun := c.With(dlock.WithMaxWait(max(0, d))).Acquire, time.Now()
					if d < 0 {
						acquire = c.TryAcquire
					}
					_, err := acquire(t.Context(), "k")
					require.ErrorIs(t, err, test.err)
					require.Equal(t, max(0, d), time.Since(begun))
					if test.text != "" {
						require.EqualError(t, err, `dlock: acquire "k": `+text+test.text)
					}
				}
				_, err := c.Acquire(within(t, 2*time.Second), "k")
				requireErr(t, err, context.DeadlineExceeded, dlock.ErrUnavailable, test.err)
				require.ErrorContains(t, err, test.text)
				time.AfterFunc(time.Second, func() { c.Close() })
				require.ErrorIs(t, errOf(c.Acquire(t.Context(), "k")), dlock.ErrClosed)
				require.Equal(t, 5*time.Second, time.Since(start))
				require.Empty(t, s.made("release"), "nothing is owed")
			})
		})
	}
}

// The first attempt is repeated while the store says that it will soon be ready, and, with WithOutage, while it cannot be
// reached.
func TestWithOutage(t *testing.T) {
	refuses, hangs, fails, loading := says(errDial), (*call).hang, says(errStore), says(errLoading)
	unsent := func(c *call) {
		c.hang()
		c.err = &dlock.NoEffectError{Err: context.DeadlineExceeded}
	}
	password := &dlock.NoEffectError{Err: errors.New("WRONGPASS")}
	breaker := &dlock.NoEffectError{Err: fmt.Errorf("%w: breaker open", dlock.ErrUnavailable)}
	pauses := func(d time.Duration) []dlock.Option {
		return []dlock.Option{dlock.WithBackoff(func(int) time.Duration { return d })}
	}
	with := func(opts ...dlock.Option) []dlock.Option { return append(opts, dlock.WithOutage(30*time.Second)) }
	for _, test := range []struct {
		name    string
		options []dlock.Option
		away    func(c *call)
		back    time.Duration
		least   time.Duration // of the acquisition
		most    time.Duration
		want    error
	}{
		{"refuses", with(), refuses, 4 * time.Second, 4 * time.Second, 5 * time.Second, nil},
		{"hangs", with(), hangs, 4 * time.Second, 4 * time.Second, 8 * time.Second, nil},
		{"does not take what is sent", with(), unsent, 4 * time.Second, 4 * time.Second, 8 * time.Second, nil},
		{"fails", with(), fails, 4 * time.Second, 4 * time.Second, 5 * time.Second, nil},
		{"behind a breaker", with(), says(breaker), 4 * time.Second, 4 * time.Second, 5 * time.Second, nil},
		{"is loading", with(), loading, 20 * time.Second, 20 * time.Second, 21 * time.Second, nil},
		{"refuses for too long", with(), refuses, time.Hour, 29 * time.Second, 30 * time.Second, errDial},
		{"hangs for too long", with(), hangs, time.Hour, 30 * time.Second, 30 * time.Second, dlock.ErrUnavailable},
		{"refuses for longer than MaxWait", with(dlock.WithMaxWait(2 * time.Second)), refuses, time.Hour, 2 * time.Second, 2 * time.Second, errDial},
		{"hangs for longer than MaxWait", with(dlock.WithMaxWait(2 * time.Second)), hangs, time.Hour, 2 * time.Second, 2 * time.Second, nil},
		{"no wait", with(dlock.WithMaxWait(0)), refuses, time.Hour, 0, 0, errDial},
		{"wrong password", with(), says(password), time.Hour, 0, 0, password},
		{"closed", with(), says(dlock.ErrClosed), time.Hour, 0, 0, dlock.ErrClosed},
		{"no patience", nil, refuses, time.Hour, 0, 0, errDial},
		{"ready soon", nil, loading, 3 * time.Second, 3 * time.Second, 4 * time.Second, nil},
		{"ready in time", []dlock.Option{dlock.WithMaxWait(5 * time.Second)}, loading, 3 * time.Second, 3 * time.Second, 4 * time.Second, nil},
		{"never ready", nil, loading, time.Hour, 9 * time.Second, 10 * time.Second, errLoading},
		{"not ready in MaxWait", []dlock.Option{dlock.WithMaxWait(2 * time.Second)}, loading, time.Hour, 2 * time.Second, 2 * time.Second, errLoading},
		{"not ready, no wait", []dlock.Option{dlock.WithMaxWait(0)}, loading, 3 * time.Second, 0, 0, errLoading},
		{"not ready, backoff", pauses(4 * time.Second), loading, 3 * time.Second, 4 * time.Second, 4 * time.Second, nil},
		{"not ready, bad backoff", pauses(0), loading, 3 * time.Second, 0, 0, dlock.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
				start := time.Now()
				s.onCall(func(c *call) {
					if c.op != "release" && time.Since(start) < test.back {
						test.away(c)
					}
				})
				c := dlock.New(l, test.options...)
				lease, err := c.Acquire(t.Context(), "k")
				took := time.Since(start)
				require.GreaterOrEqual(t, took, test.least)
				require.LessOrEqual(t, took, test.most)
				ready := strings.Contains(test.name, "ready")
				if ready {
					tokens := make(map[string]bool)
					for _, c := range s.made("try") {
						tokens[c.token] = true
					}
					require.Len(t, tokens, 1, "nothing has happened to the token")
				}
				if test.back < time.Hour && test.want == nil {
					require.NoError(t, err)
					require.NoError(t, lease.Release())
					require.True(t, !ready || len(s.made("release")) == 1)
					return
				}
				requireErr(t, err, noContext)
				if test.want != nil {
					require.ErrorIs(t, err, test.want)
				}
				if errors.Is(test.want, errLoading) {
					require.Empty(t, s.made("release"), "nothing is owed")
				}
				if test.least >= 29*time.Second {
					require.ErrorIs(t, err, dlock.ErrUnavailable)
					require.ErrorContains(t, err, "no answer for "+took.Round(time.Millisecond).String())
				}
				require.NoError(t, c.Close())
				requireFree(t, store, "k")
			})
		})
	}
}

// With WithOutage, an acquisition begins with an attempt that has a limit: also for a key that has
// just been waited for, beside many others, and beside a line.
func TestOutageBeginsWithAnAttempt(t *testing.T) {
	const outage = 2 * time.Second
	for _, turns := range []int{1, 8} {
		for name, test := range map[string]struct {
			calls  int
			before func(t *testing.T, store *memory.Locker, c *dlock.Client)
		}{
			"key was contended": {1, func(t *testing.T, store *memory.Locker, c *dlock.Client) {
				hold(t, store, 100*time.Millisecond)
				require.NoError(t, acquire(t, c, "k").Release())
			}},
			"key has a line": {1, func(t *testing.T, store *memory.Locker, c *dlock.Client) {
				hold(t, store, time.Hour)
				go c.With(dlock.WithMaxWait(time.Minute)).Acquire(t.Context(), "k")
				synctest.Wait()
			}},
			"many calls": {300, func(*testing.T, *memory.Locker, *dlock.Client) {}},
		} {
			run(t, fmt.Sprint(name, ", turns ", turns), func(t *testing.T, store *memory.Locker, s *spy) {
				var away atomic.Bool
				s.onCall(func(c *call) { c.hangIf(away.Load() && c.op != "release") })
				c := dlock.New(s, dlock.WithLocalTurns(turns))
				test.before(t, store, c)
				away.Store(true)
				c = c.With(dlock.WithOutage(outage), dlock.WithMaxWait(7*time.Second))
				start, late := time.Now(), atomic.Int32{}
				together(test.calls, func(i int) {
					_, err := c.Acquire(t.Context(), []string{"k", fmt.Sprint("k", i)}[min(i, 1)])
					if !errors.Is(err, dlock.ErrUnavailable) || time.Since(start) > outage {
						late.Add(1)
					}
				})
				require.Zero(t, late.Load(), "calls, of %d, that did not fail with ErrUnavailable within %v; the last took %v", test.calls, outage, time.Since(start))
				away.Store(false)
				c.Close()
			})
		}
	}
}

// errLoading is the answer of a store that will soon be ready.
var errLoading = fmt.Errorf("client: %w", &dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true})

// A store that refuses because of its own state is waited for if WithOutage says so, also in the middle of
// an outage. What the user may not do ends the patience at once.
func TestStateOfTheStore(t *testing.T) {
	ways := map[string]func(c *dlock.Client, ctx context.Context) error{
		"Acquire":    func(c *dlock.Client, ctx context.Context) error { return errOf(c.Acquire(ctx, "k")) },
		"Do":         func(c *dlock.Client, ctx context.Context) error { return c.Do(ctx, "k", noWork) },
		"AcquireAll": func(c *dlock.Client, ctx context.Context) error { return errOf(c.AcquireAll(ctx, "k", "l")) },
		"turns": func(c *dlock.Client, ctx context.Context) error {
			return errOf(c.With(dlock.WithLocalTurns(8)).Acquire(ctx, "k"))
		},
	}
	for name, way := range ways {
		for _, test := range []struct {
			says         []error // a second each, and the last one from then on
			outage, took time.Duration
			text         string // of the error; none if it is empty
		}{
			{[]error{errOOM}, 0, 0, "the store refused: OOM"},
			{[]error{errLoading, errOOM}, 0, time.Second, "the store refused: OOM"},
			// Any other error ends the patience for a store that will soon be ready, also one that joins the errors of several.
			{[]error{errLoading, errStore}, 0, time.Second, "store unavailable: no answer for 1"},
			{[]error{errLoading, errors.Join(errLoading, errStore)}, 0, time.Second, "store unavailable: no answer for 1"},
			{[]error{errLoading, &dlock.NoEffectError{Err: errStore}}, 0, time.Second, "the store refused: store: connection refused"},
			{[]error{errOOM, errOOM, nil}, time.Minute, 2 * time.Second, ""},
			{[]error{errOOM, errStore, errOOM, nil}, time.Minute, 3 * time.Second, ""},
			{[]error{errOOM}, 3 * time.Second, 3 * time.Second, "store unavailable: no success for 3s: the store refused: OOM"},
			{[]error{errStore, errOOM}, 3 * time.Second, 3 * time.Second, "store unavailable: no success for 3s: the store refused: OOM"},
			{[]error{errOOM, errOOM, errNoRight}, time.Minute, 2 * time.Second, "the store refused: NOPERM"},
			{[]error{errOOM, errStore, errNoRight}, dlock.NoLimit, 2 * time.Second, "the store refused: NOPERM"},
		} {
			run(t, fmt.Sprint(name, test.says, test.outage), func(t *testing.T, _ *memory.Locker, s *spy) {
				begun := time.Now()
				s.onCall(func(c *call) { c.err = test.says[min(int(time.Since(begun)/time.Second), len(test.says)-1)] })
				err := way(dlock.New(s, dlock.WithOutage(test.outage)), t.Context())
				require.InDelta(t, test.took, time.Since(begun), float64(time.Second), "with a pause")
				if test.text == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, `dlock: acquire "k": `+test.text)
				require.Equal(t, strings.HasPrefix(test.text, "store unavailable"), errors.Is(err, dlock.ErrUnavailable))
			})
		}
	}
}

func noWork(context.Context, *dlock.Lease) error { return nil }
