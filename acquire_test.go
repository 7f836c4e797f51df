package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestContextOfAcquireBoundsTheWaitOnly(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := dlock.New(s).Acquire(ctx, "k")
		require.NoError(t, err)
		cancel()
		time.Sleep(time.Hour)
		require.NoError(t, l.Err())
		requireHeld(t, store, "k", l.Token())
		require.NoError(t, l.Release())
		requireFree(t, store, "k")
	})
}

func TestLocksAreNotReentrant(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		defer l.Release()
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
	})
}

func TestHeldErrorTellsTheOwner(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithOwner("web-7 \x00é")), "k")
		defer l.Release()
		time.Sleep(3 * time.Second)
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		var held *dlock.HeldError
		require.ErrorAs(t, err, &held)
		started := time.Now().Add(-3 * time.Second).Local()
		require.Equal(t, dlock.HeldError{Key: "k", Owner: "web-7 \x00é", Started: started, Remaining: 27 * time.Second}, *held)
		require.NotContains(t, err.Error(), l.Token())
		require.EqualError(t, err, fmt.Sprintf(`dlock: acquire "k": held by %q since %s, for 27s unless renewed`, "web-7 \x00é", started.UTC().Format(time.RFC3339)))
	})
}

func TestErrorBeforeTheFirstAnswerIsReturned(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		store.Fail(errStore)
		_, err := dlock.New(l).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		require.NotErrorIs(t, err, dlock.ErrHeld)
		require.Equal(t, `dlock: acquire "k": store unavailable: no answer: store: connection refused`, err.Error())
	})
}

func TestEndedContextSendsNothing(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		ctx := ended(t)
		c := dlock.New(s)
		for name, f := range map[string]func() error{
			"Acquire":    func() error { _, err := c.Acquire(ctx, "k"); return err },
			"TryAcquire": func() error { _, err := c.TryAcquire(ctx, "k"); return err },
			"Inspect":    func() error { _, err := c.Inspect(ctx, "k"); return err },
			"Do":         func() error { return c.Do(ctx, "k", func(context.Context, *dlock.Lease) error { return nil }) },
		} {
			require.ErrorIs(t, f(), context.Canceled, name)
		}
		require.Empty(t, s.made())
	})
}

func TestTryAcquireCutByContext(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "try" {
				<-c.ctx.Done()
				c.err = errStore // a client that has its own error for that
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := dlock.New(s).TryAcquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Minute)

		ended := ended(t)
		_, err = dlock.New(s).TryAcquire(ended, "k")
		require.EqualError(t, err, `dlock: acquire "k": context canceled`)
	})
}

func TestTokensAreUsedOnce(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
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
	})
}

// A grant whose answer comes when the deadline has passed.
func TestLateGrantIsNotBelieved(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if len(s.made("try")) == 1 {
				c.delay = time.Minute
			}
		})
		l := acquire(t, dlock.New(s), "k")
		tries := s.made("try")
		require.Len(t, tries, 2)
		require.Equal(t, tries[0].token, tries[1].token)
		require.Equal(t, tries[1].token, l.Token())
		require.Equal(t, time.Now().Add(30*time.Second-302*time.Millisecond), l.Deadline())
		hold, err := store.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 30*time.Second, hold.Remaining)
		require.Equal(t, time.Now().UnixMicro(), l.Fence(), "the fence of the second answer")
		require.NoError(t, l.Release())
	})
}

// A renewal may still save a lease that has little time left. Without renewal, the work would have
// only that.
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
			s.onCall(func(c *call) {
				if len(s.made("try")) == 1 {
					c.delay = test.delay
				}
			})
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
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				hold(t, store, time.Second)
				s.onCall(func(c *call) {
					if c.op == "acquire" && len(s.made("acquire")) == 1 {
						c.delay = time.Minute // granted after 1 s, lost after 31
						time.AfterFunc(40*time.Second, func() { other(t, store) })
					}
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
		})
	}
}

func TestAnswersAlwaysTooLate(t *testing.T) {
	for renewal, delay := range map[bool]time.Duration{true: 99 * time.Millisecond, false: 50 * time.Millisecond} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			s.onCall(func(c *call) {
				if c.op == "try" {
					c.delay = delay
				}
			})
			_, err := dlock.New(s, dlock.WithTTL(100*time.Millisecond), dlock.WithRenewal(renewal)).Acquire(t.Context(), "k")
			require.ErrorContains(t, err, "took too much of the TTL", "renewal %v, answer after %v", renewal, delay)
			require.NotErrorIs(t, err, dlock.ErrUnavailable, "it has answered")
			require.Len(t, s.made("try"), 2)
			synctest.Wait()
			require.True(t, s.released(s.made("try")[0].token))
		})
	}
}

// The Since of a grant counts, if the Acquirer sets it.
func TestDeadlineCountsFromSince(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Second)
		var since time.Time
		s.onCall(func(c *call) {
			if c.op == "acquire" {
				c.delay = 2 * time.Second
				since = c.at.Add(time.Second)
			}
		})
		l := acquire(t, dlock.New(s), "k")
		require.Equal(t, since.Add(5*time.Second-52*time.Millisecond), l.Deadline())
		require.NoError(t, l.Release())
	})
}

// If Since is zero or in the future, the lease counts from the call.
func TestSinceThatIsNotBelieved(t *testing.T) {
	for name, since := range map[string]func(c *call) time.Time{
		"zero":          func(*call) time.Time { return time.Time{} },
		"in the future": func(c *call) time.Time { return c.at.Add(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
				s.onCall(func(c *call) {
					c.attempt = &dlock.Attempt{Acquired: true, Fence: 8, Since: since(c)}
					c.delay = time.Second
				})
				start := time.Now()
				l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
				require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
				s.onCall(nil)
				require.NoError(t, l.Release())
			})
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

// The first TTL after a wait is short, in case the waiter is dead, and the lease is
// renewed soon.
func TestFirstTTLAfterAWait(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
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
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
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
	})
}

// A lease that is released soon after a wait is not renewed, even if others are.
func TestShortHoldAfterAWaitIsNotRenewed(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
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
	})
}

func TestWithFence(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		c := dlock.New(noFences{dlock.Forward{Locker: l}})
		fenced := c.With(dlock.WithFence(true))
		_, err := fenced.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		requireFree(t, store, "k")

		lease := acquire(t, c, "k")
		require.Zero(t, lease.Fence())
		time.AfterFunc(time.Second, func() { lease.Release() })
		_, err = fenced.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		requireFree(t, store, "k")

		lease = acquire(t, dlock.New(s, dlock.WithFence(true)), "k")
		require.NotZero(t, lease.Fence())
		require.NoError(t, lease.Release())
	})
}

func TestUnwantedGrantIsOwedIfItsReleaseFails(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "release" && len(s.made("release")) == 1 {
				c.err = errStore
			}
		})
		c := dlock.New(noFences{dlock.Forward{Locker: s}}, dlock.WithFence(true))
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		time.Sleep(time.Second)
		requireFree(t, store, "k")
	})
}

func TestBackgroundCallsKeepTheValues(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		type trace struct{}
		ctx := context.WithValue(t.Context(), trace{}, "id")
		c := dlock.New(plain{s})
		l, err := c.Acquire(ctx, "k")
		require.NoError(t, err)
		time.Sleep(15 * time.Second)
		require.NoError(t, l.Release())
		require.Equal(t, "id", s.made("renew")[0].ctx.Value(trace{}))
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.err = errStore
			}
		})
		n := len(s.made("release"))
		_, err = c.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, errStore)
		synctest.Wait()
		require.Equal(t, "id", s.made("release")[n].ctx.Value(trace{}))
		time.Sleep(time.Hour)
	})
}

func TestConcurrentClients(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, _ *spy) {
		var holders, grants atomic.Int64
		done := make(chan struct{})
		for range 20 {
			c := dlock.New(store, dlock.WithTTL(100*time.Millisecond))
			go func() {
				defer func() { done <- struct{}{} }()
				for range 20 {
					l, err := c.Acquire(t.Context(), "k")
					if err != nil || holders.Add(1) != 1 {
						t.Errorf("%d holders, %v", holders.Load(), err)
					}
					time.Sleep(150 * time.Millisecond)
					holders.Add(-1)
					grants.Add(1)
					if err := l.Release(); err != nil {
						t.Error(err)
					}
				}
			}()
		}
		for range 20 {
			<-done
		}
		require.EqualValues(t, 400, grants.Load())
	})
}

// contended runs a test with a Client that has just waited for the key k in the queue of
// the store, and released it.
func contended(t *testing.T, f func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client)) {
	t.Helper()
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		hold(t, store, 100*time.Millisecond)
		require.NoError(t, acquire(t, c, "k").Release())
		require.Equal(t, []string{"try", "acquire", "release"}, s.ops())
		s.forget()
		f(t, store, s, c)
		require.NoError(t, c.Close())
	})
}

// For a second after a wait, the next acquisition of the key joins the queue at once,
// held or free, and others do not.
func TestContendedKey(t *testing.T) {
	for _, free := range []bool{true, false} {
		t.Run(fmt.Sprint("free ", free), func(t *testing.T) {
			contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
				time.Sleep(time.Second - 2*time.Millisecond)
				if !free {
					hold(t, store, 500*time.Microsecond) // too short to be a new wait
				}
				require.NoError(t, acquire(t, c.With(dlock.WithMaxWait(time.Minute)), "k").Release())
				require.Equal(t, []string{"acquire", "release"}, s.ops())
				s.forget()
				time.Sleep(2 * time.Millisecond)
				require.NoError(t, acquire(t, c, "k").Release())
				require.Equal(t, []string{"try", "release"}, s.ops())
			})
		})
	}
	contended(t, func(t *testing.T, _ *memory.Locker, s *spy, c *dlock.Client) {
		require.NoError(t, acquire(t, c, "other").Release())
		require.Equal(t, []string{"try", "release"}, s.ops())
	})
	contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		hold(t, store, time.Minute)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		_, err = c.With(dlock.WithMaxWait(0)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		require.Equal(t, []string{"try", "try"}, s.ops())
	})
}

// While many first attempts are in flight, others join the queue at once.
func TestManyAttempts(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		s.onCall(func(*call) { time.Sleep(time.Second) })
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				lease, err := c.Acquire(t.Context(), fmt.Sprint("k", i))
				if err == nil {
					err = lease.Release()
				}
				require.NoError(t, err)
			})
		}
		all.Wait()
		ops := make(map[string]int)
		for _, op := range s.ops() {
			ops[op]++
		}
		require.Equal(t, 200, ops["try"]+ops["acquire"])
		require.InDelta(t, 128, ops["try"], 8) // those that begin at the same instant do not see each other
		require.Equal(t, 200, ops["release"])
		s.forget()
		require.NoError(t, acquire(t, c, "k").Release())
		require.Equal(t, []string{"try", "release"}, s.ops())
		require.NoError(t, c.Close())
	})
}

// A key stays contended for as long as calls wait for it. A grant at once does not
// prolong that.
func TestKeyStaysContended(t *testing.T) {
	contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
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
	})
}

// Without a queue each acquisition begins with an attempt.
func TestNoContendedKeysWithoutQueue(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			if c.op == "acquire" {
				c.err = errors.ErrUnsupported
			}
		})
		c := dlock.New(s)
		for range 2 {
			hold(t, store, 10*time.Millisecond)
			require.NoError(t, acquire(t, c, "k").Release())
		}
		require.Len(t, s.made("acquire"), 2)
		require.Equal(t, "try", s.ops()[len(s.made())/2])
	})
}

// If the queue fails, an attempt decides the acquisition: an error of
// the store is returned at once, and a key that is held is waited for.
func TestContendedKeyFails(t *testing.T) {
	t.Run("store down", func(t *testing.T) {
		contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			s.onCall(func(c *call) {
				if c.op != "release" {
					c.err = errStore
				}
			})
			begin := time.Now()
			_, err := c.Acquire(t.Context(), "k")
			require.ErrorIs(t, err, errStore)
			require.NotErrorIs(t, err, dlock.ErrHeld)
			require.Equal(t, begin, time.Now())
			tries := s.made("try", "acquire")
			require.Len(t, tries, 2)
			require.NotEqual(t, tries[0].token, tries[1].token, "the first may have been granted")
			time.Sleep(time.Minute)
			require.True(t, s.released(tries[0].token))
			require.True(t, s.released(tries[1].token))
			requireFree(t, store, "k")
		})
	})
	for name, failure := range map[string]error{"queue lost": errStore, "queue gone": errors.ErrUnsupported} {
		t.Run(name, func(t *testing.T) {
			contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
				failed := false
				s.onCall(func(c *call) {
					if c.op == "acquire" && !failed {
						failed, c.err = true, failure
					}
				})
				hold(t, store, time.Second)
				require.NoError(t, acquire(t, c, "k").Release())
				require.Equal(t, "acquire", s.ops()[0])
				require.Len(t, s.made("try"), 1)
			})
		})
	}
	t.Run("the queue says held, then fails", func(t *testing.T) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			hold(t, store, time.Second)
			c := dlock.New(s)
			require.NoError(t, acquire(t, c, "k").Release())
			s.forget()
			s.onCall(func(c *call) {
				if c.op == "acquire" && len(s.made("acquire")) <= 3 {
					c.answers(dlock.Attempt{Holder: "other", Remaining: time.Second}, errStore)
				}
			})
			hold(t, store, time.Second)
			require.NoError(t, acquire(t, c, "k").Release())
			require.Empty(t, s.made("try"), "it was known to be held")
			require.Len(t, s.made("acquire"), 4)
		})
	})
}

// A wait that joined the queue at once ends like any other.
func TestContendedKeyEnds(t *testing.T) {
	contended(t, func(t *testing.T, store *memory.Locker, _ *spy, c *dlock.Client) {
		hold(t, store, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, dlock.ErrHeld)
	})
	contended(t, func(t *testing.T, store *memory.Locker, _ *spy, c *dlock.Client) {
		hold(t, store, time.Minute)
		_, err := c.With(dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
	contended(t, func(t *testing.T, store *memory.Locker, _ *spy, c *dlock.Client) {
		hold(t, store, time.Minute)
		time.AfterFunc(time.Second, func() { c.Close() })
		begin := time.Now()
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrClosed)
		require.Equal(t, time.Second, time.Since(begin))
	})
	contended(t, func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
		s.onCall(func(c *call) { c.attempt = &dlock.Attempt{Acquired: true} }) // without a fence
		_, err := c.With(dlock.WithFence(true)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Equal(t, []string{"acquire", "release"}, s.ops())
	})
}

func TestPollingPace(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 30 * time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				defer acquire(t, dlock.New(store, dlock.WithTTL(ttl)), "k").Release()
				_, err := dlock.New(plain{s}, dlock.WithMaxWait(20*time.Second)).Acquire(t.Context(), "k")
				require.ErrorIs(t, err, dlock.ErrHeld)
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
		})
	}
}

// While the store does not answer, pauses become longer; once it answers, they are as usual.
func TestPollingPaceOfFailures(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		start := time.Now()
		s.onCall(func(c *call) {
			if at := time.Since(start); at > time.Second && at < time.Minute {
				c.err = errStore
			}
		})
		_, err := dlock.New(plain{s}, dlock.WithMaxWait(2*time.Minute)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
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
	})
}

func TestPollersDoNotStayTogether(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
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
	})
}

func TestPollAtTheEndOfTheLease(t *testing.T) {
	for _, rest := range []time.Duration{3 * time.Millisecond, 30 * time.Millisecond, 1234 * time.Millisecond, 30 * time.Second} {
		t.Run(rest.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				hold(t, store, rest)
				start := time.Now()
				l := acquire(t, dlock.New(plain{s}), "k")
				require.InDelta(t, rest.Seconds(), time.Since(start).Seconds(), 0.004)
				require.NoError(t, l.Release())
			})
		})
	}
}

func TestBackoff(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		var attempts []int
		c := dlock.New(plain{s}, dlock.WithMaxWait(time.Minute), dlock.WithBackoff(func(attempt int) time.Duration {
			attempts = append(attempts, attempt)
			return time.Duration(4-attempt) * time.Second
		}))
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.Contains(t, err.Error(), "0s for attempt 4")
		require.Equal(t, []int{1, 2, 3, 4}, attempts)
		require.Len(t, s.made("try"), 4)

		_, err = c.With(dlock.WithBackoff(nil)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
	})
}

// A lease may last for as long as a Duration can be.
func TestPaceOverflow(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.onCall(func(c *call) { c.answers(dlock.Attempt{Holder: "x", Remaining: math.MaxInt64}, nil) })
		_, err := dlock.New(plain{s}, dlock.WithMaxWait(10*time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		tries := s.made("try")
		for i := 1; i < len(tries); i++ {
			require.GreaterOrEqual(t, tries[i].at.Sub(tries[i-1].at), 50*time.Millisecond, "pause %d", i)
		}
	})
}
