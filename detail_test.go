package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestFinalErrorsEndTheWait(t *testing.T) {
	for _, final := range []error{dlock.ErrInvalid, dlock.ErrClosed} {
		waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			defer acquire(t, dlock.New(store), "k").Release()
			s.hook = func(c *call) {
				if c.op != "release" && len(s.made("try", "acquire")) > 1 {
					c.err = fmt.Errorf("locker: %w", final)
				}
			}
			_, err := dlock.New(l, dlock.WithMaxWait(time.Minute)).Acquire(t.Context(), "k")
			require.ErrorIs(t, err, final)
			require.Len(t, s.made("try", "acquire"), 2, "it is not retried")
			time.Sleep(time.Minute)
			if final == dlock.ErrInvalid {
				require.Empty(t, s.made("release"), "nothing was sent, so nothing is owed")
			}
		})
	}
}

func TestAnswerAfterMaxWaitIsNotWaitedOn(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		s.hook = func(c *call) { c.delay = 2 * time.Second } // a Locker that ignores its ctx
		_, err := dlock.New(s, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		require.Empty(t, s.made("acquire"))
	})
}

func TestQueueThatReturnsNothingIsNotHeld(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		_, err := dlock.New(lazyQueue{plain{store}}, dlock.WithMaxWait(10*time.Second)).Acquire(t.Context(), "k")
		require.ErrorContains(t, err, "neither a grant nor an error")
		require.NotErrorIs(t, err, dlock.ErrHeld)
	})
}

func TestLateGrantsAfterHeldAreNotHeld(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		_, err := store.TryAcquire(t.Context(), "k", "dead", time.Second)
		require.NoError(t, err)
		s.hook = func(c *call) {
			if c.op == "try" && len(s.made("try")) > 1 {
				c.delay = 99 * time.Millisecond
			}
		}
		c := dlock.New(plain{s}, dlock.WithTTL(100*time.Millisecond), dlock.WithMaxWait(5*time.Second))
		_, err = c.Acquire(t.Context(), "k")
		requireNoContextError(t, err)
		require.NotErrorIs(t, err, dlock.ErrHeld, "the last answers were grants")
		time.Sleep(time.Second)
	})
}

func TestGrantFoundNearlyTooLateIsNotBelieved(t *testing.T) {
	for delay, tries := range map[time.Duration]int{26 * time.Second: 1, 27 * time.Second: 2} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			s.hook = func(c *call) {
				if len(s.made("try")) == 1 {
					c.delay = delay
				}
			}
			l := acquire(t, dlock.New(s), "k")
			require.Len(t, s.made("try"), tries, "answer after %v", delay)
			require.NoError(t, l.Release())
		})
	}
}

func TestZeroSinceIsTheCall(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			c.attempt, c.delay = &dlock.Attempt{Acquired: true, Fence: 8}, time.Second
		}
		start := time.Now()
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
		s.hook = nil
		require.NoError(t, l.Release())
	})
}

func TestUnwantedGrantIsOwedIfItsReleaseFails(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "release" && len(s.made("release")) == 1 {
				c.err = errStore
			}
		}
		c := dlock.New(noFences{dlock.Forward{Locker: s}}, dlock.WithFence(true))
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		time.Sleep(time.Second)
		requireFree(t, store, "k")
	})
}

func TestWaitTellsTheLastHolder(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
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
		var held *dlock.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "second", held.Owner)
		time.Sleep(time.Hour)
	})
}

func TestWaitCutDuringAnAttempt(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store, dlock.WithRenewal(false), dlock.WithTTL(time.Hour)), "k").Release()
		s.hook = func(c *call) {
			if len(s.made("try")) > 1 {
				<-c.ctx.Done()
				c.err = c.ctx.Err()
			}
		}
		c := dlock.New(plain{s}, dlock.WithMaxWait(time.Second))
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld, "the last answer was that")
		requireNoContextError(t, err)
		c.Close()
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
		s.hook = func(c *call) {
			if c.op == "try" {
				c.err = errStore
			}
		}
		n := len(s.made("release"))
		_, err = c.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, errStore)
		synctest.Wait()
		require.Equal(t, "id", s.made("release")[n].ctx.Value(trace{}))
		time.Sleep(time.Hour)
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

func TestRenewReturnsOnTheDeadline(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		deadline := l.Deadline()
		store.Delay(time.Hour)
		require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		require.Equal(t, deadline, time.Now())
		store.Delay(0)
		time.Sleep(time.Hour)
	})
}

// A renewal that waits for its turn among many when the lease is released.
func TestReleasedLeaseIsNotRenewedLater(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "renew" {
				time.Sleep(5 * time.Second)
			}
		}
		c := dlock.New(plain{s})
		var leases []*dlock.Lease
		for i := range 33 {
			leases = append(leases, acquire(t, c, fmt.Sprint(i)))
		}
		time.Sleep(10*time.Second + 10*time.Millisecond)
		renewed := make(map[string]bool)
		for _, c := range s.made("renew") {
			renewed[c.key] = true
		}
		require.Len(t, renewed, 32, "at most so many at once, while they are quick")
		for _, l := range leases {
			if !renewed[l.Key()] {
				require.NoError(t, l.Release())
				time.Sleep(10 * time.Second)
				for _, c := range s.made("renew") {
					require.NotEqual(t, l.Key(), c.key, "renewed after its release")
				}
			}
		}
		for _, l := range leases {
			require.NoError(t, l.Release())
		}
		time.Sleep(time.Minute) // for the renewals
	})
}

func TestBatchesAreUsedAgainAfterAFailure(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l, m := acquire(t, c, "k"), acquire(t, c, "l")
		store.Fail(errStore)
		time.Sleep(20 * time.Second)
		store.Fail(nil)
		time.Sleep(20 * time.Second)
		n, singly := len(s.made("batch")), len(s.made("renew"))
		require.NotZero(t, singly)
		time.Sleep(time.Minute)
		require.Greater(t, len(s.made("batch")), n)
		require.Len(t, s.made("renew"), singly)
		require.NoError(t, l.Release())
		require.NoError(t, m.Release())
	})
}

func TestCloseEndsRenewalsOnTheirWay(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		s.hook = func(c *call) {
			switch c.op {
			case "renew", "batch":
				<-c.ctx.Done()
				c.err = c.ctx.Err()
			case "try":
				if c.key == "owed" {
					c.err = errStore
				}
			case "release":
				c.err = errStore // so that Close takes its time
			}
		}
		c := dlock.New(locker)
		acquire(t, c, "k")
		time.Sleep(12 * time.Second)
		calls := s.made("renew", "batch")
		require.NotEmpty(t, calls)
		_, err := c.TryAcquire(t.Context(), "owed")
		require.ErrorIs(t, err, errStore)
		go c.Close()
		synctest.Wait()
		for _, r := range calls {
			require.Error(t, r.ctx.Err())
		}
		time.Sleep(time.Hour)
		require.Len(t, s.made("renew", "batch"), len(calls), "renewed after Close")
	})
}

func TestFailedReleaseIsOwedOnce(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		store.Fail(errStore)
		for range 3 {
			require.ErrorIs(t, l.Release(), errStore)
		}
		require.ErrorContains(t, c.Close(), "1 releases not answered")
	})
}

func TestOwedReleaseIsNotSentAfterRelease(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		store.Fail(errStore)
		require.ErrorIs(t, l.Release(), errStore)
		synctest.Wait()
		store.Fail(nil)
		require.NoError(t, l.Release())
		n := len(s.made("release"))
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), n)
	})
}

func TestNothingIsOwedAfterClose(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		require.NoError(t, c.Close())
		store.Fail(errStore)
		require.ErrorIs(t, l.Release(), errStore)
		n := len(s.made())
		time.Sleep(time.Hour)
		require.Len(t, s.made(), n)
	})
}

func TestLostLeaseThatTheStoreForgotIsReleasedOnce(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		time.Sleep(29 * time.Second)
		require.True(t, store.Expire("k"))
		<-l.Done()
		time.Sleep(time.Hour)
		require.Len(t, s.made("release"), 1)
	})
}

func TestMinHoldOfAStolenKey(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithMinHold(10*time.Minute)), "k")
		store.Steal("k", time.Hour)
		require.NoError(t, l.Release())
		time.Sleep(time.Hour)
		require.Len(t, s.made("renew"), 1)
		require.Empty(t, s.made("release"), "it was told that the lease is gone")
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

func TestVeryLateAttemptIsReleasedWithinAQuarterOfTheTTL(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.err = errStore
				time.AfterFunc(13*time.Second, func() { store.TryAcquire(context.Background(), c.key, c.token, c.ttl) })
			}
		}
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(13*time.Second + 7600*time.Millisecond)
		requireFree(t, store, "k")
		time.Sleep(time.Minute)
	})
}

func TestCloseLetsReleasesFinish(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			switch c.op {
			case "try":
				c.reply = errStore
			case "release":
				select {
				case <-time.After(2 * time.Second):
				case <-c.ctx.Done():
					c.err = c.ctx.Err()
				}
			}
		}
		c := dlock.New(s)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Second)
		require.NoError(t, c.Close())
		requireFree(t, store, "k")
		synctest.Wait()
	})
}

func TestEachTryOfAReleaseEnds(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.err = errStore
				return
			}
			<-c.ctx.Done()
			c.err = c.ctx.Err()
		}
		c := dlock.New(s)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
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
	})
}

func TestCloseHurries(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		store.Fail(errStore)
		require.ErrorIs(t, l.Release(), errStore)
		time.Sleep(14 * time.Second)
		store.Fail(nil)
		start := time.Now()
		require.NoError(t, c.Close())
		require.Zero(t, time.Since(start))
		requireFree(t, store, "k")
	})
}

func TestCloseWaitsForCallsOnTheirWay(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.delay, c.reply = 2*time.Second, errStore // granted, and the reply lost
			}
		}
		c := dlock.New(s)
		go c.TryAcquire(t.Context(), "k")
		synctest.Wait()
		require.NoError(t, c.Close())
		requireFree(t, store, "k")
	})
}

func TestShortLeaseBesideALongOne(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		long := acquire(t, c, "long")
		short := acquire(t, c.With(dlock.WithTTL(100*time.Millisecond)), "short")
		time.Sleep(time.Minute)
		require.NoError(t, short.Err())
		require.NoError(t, short.Release())
		require.NoError(t, long.Release())
	})
}

func TestAtMost32RenewalsAtOnce(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		var now, most atomic.Int64
		s.hook = func(c *call) {
			if c.op == "renew" {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Millisecond)
				now.Add(-1)
			}
		}
		c := dlock.New(plain{s})
		var leases []*dlock.Lease
		for i := range 1000 {
			leases = append(leases, acquire(t, c, fmt.Sprint(i)))
		}
		time.Sleep(time.Minute)
		require.EqualValues(t, 32, most.Load())
		for _, l := range leases {
			require.NoError(t, l.Release())
		}
	})
}

func TestAdoptThatAnswersLate(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		h, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		s.hook = func(c *call) {
			if c.op == "renew" && len(s.made("renew")) == 1 {
				c.delay = 30 * time.Second
			}
		}
		_, err = c.Adopt(t.Context(), h)
		require.ErrorContains(t, err, "took nearly as long as the TTL")
		require.NotErrorIs(t, err, dlock.ErrLost)
	})
}

func TestAdoptDeadlineCountsFromSending(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		h, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		s.hook = func(c *call) { c.delay = time.Second }
		start := time.Now()
		l, err := c.Adopt(t.Context(), h)
		require.NoError(t, err)
		require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
		require.NoError(t, l.Release())
	})
}

func TestCloseWhileAdopting(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		h, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		s.hook = func(c *call) { c.delay = time.Second }
		result := make(chan error)
		go func() { _, err := c.Adopt(t.Context(), h); result <- err }()
		synctest.Wait()
		go c.Close()
		require.ErrorIs(t, <-result, dlock.ErrClosed)
		l, err := dlock.New(s).Adopt(t.Context(), h)
		require.NoError(t, err, "it may be adopted again")
		require.NoError(t, l.Release())
	})
}

func TestTryAcquireCutByContext(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				<-c.ctx.Done()
				c.err = errStore // a client that has its own error for that
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := dlock.New(s).TryAcquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Minute)

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = dlock.New(s).TryAcquire(ended, "k")
		require.EqualError(t, err, `dlock: acquire "k": context canceled`)
	})
}

type storeError struct{ error }

func (e storeError) Unwrap() []error { return []error{e.error, errStore} }

func TestHiddenContextErrorShowsTheRest(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		store.Fail(storeError{context.DeadlineExceeded})
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		requireNoContextError(t, err)
		require.ErrorIs(t, err, errStore)
		var e storeError
		require.ErrorAs(t, err, &e)
		store.Fail(nil)
		time.Sleep(time.Minute)
	})
}

func TestMinHoldCountsFromTheAnswer(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.delay = 3 * time.Second
			}
		}
		l := acquire(t, dlock.New(s, dlock.WithMinHold(10*time.Second)), "k")
		start := time.Now()
		require.NoError(t, l.Release())
		next := acquire(t, dlock.New(store), "k")
		require.Equal(t, start.Add(10*time.Second), time.Now())
		require.NoError(t, next.Release())
	})
}
