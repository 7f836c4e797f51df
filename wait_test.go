package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestErrorsAfterHeldAreRetried(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		start := time.Now()
		hold(t, store, 20*time.Second)
		s.hook = func(c *call) {
			if c.op != "release" && len(s.made("try", "acquire")) > 1 && time.Since(start) < 10*time.Second {
				c.err = errStore
			}
		}
		waiter := acquire(t, dlock.New(l), "k")
		require.NoError(t, waiter.Release())
		require.Greater(t, len(s.made("try", "acquire")), 5)
	})
}

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

func TestWaitCutByContext(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		defer acquire(t, dlock.New(store, dlock.WithOwner("web-7")), "k").Release()
		cause := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		start := time.Now()
		_, err := dlock.New(l).Acquire(ctx, "k")
		require.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)
		require.ErrorIs(t, err, dlock.ErrHeld)
		require.Contains(t, err.Error(), "web-7")
	})
}

func TestWaitCutByContextWhileStoreFails(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		time.AfterFunc(time.Second, func() { store.Fail(errStore) })
		_, err := dlock.New(plain{s}).Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errStore)
		require.ErrorIs(t, err, dlock.ErrHeld, "the lease of the last answer may last for 30 s")
	})
}

func TestWaitCutDuringAnAttempt(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store, dlock.WithRenewal(false), dlock.WithTTL(time.Hour)), "k").Release()
		s.hook = func(c *call) {
			if len(s.made("try")) > 1 {
				c.hang()
			}
		}
		c := dlock.New(plain{s}, dlock.WithMaxWait(time.Second))
		_, err := c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld, "the last answer was that")
		requireNoContextError(t, err)
		c.Close()
	})
}

func TestMaxWait(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		defer acquire(t, dlock.New(store), "k").Release()
		c := dlock.New(l, dlock.WithMaxWait(2*time.Second))
		start := time.Now()
		_, err := c.Acquire(t.Context(), "k")
		require.Equal(t, 2*time.Second, time.Since(start))
		require.ErrorIs(t, err, dlock.ErrHeld)
		requireNoContextError(t, err)

		before := len(s.made("try", "acquire"))
		_, err = c.With(dlock.WithMaxWait(0)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		require.Len(t, s.made("try", "acquire"), before+1)
		require.Equal(t, 2*time.Second, time.Since(start))
	})
}

func TestMaxWaitWithoutAnAnswer(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		store.Delay(time.Hour)
		c := dlock.New(s, dlock.WithMaxWait(2*time.Second))
		_, err := c.Acquire(t.Context(), "k")
		requireNoContextError(t, err)
		require.NotErrorIs(t, err, dlock.ErrHeld)
		require.Error(t, c.Close(), "the release is owed, and goes unanswered too")
	})
}

func TestMaxWaitEndsWhileStoreFails(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		defer acquire(t, dlock.New(store), "k").Release()
		s.hook = func(c *call) {
			if time.Since(c.at) == 0 && len(s.made("try", "acquire")) > 1 {
				c.err = errStore
			}
		}
		_, err := dlock.New(l, dlock.WithMaxWait(5*time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		require.ErrorIs(t, err, dlock.ErrHeld)
		require.ErrorContains(t, err, "for 30s unless renewed; the store last answered 5s ago: store: connection refused")
		requireNoContextError(t, err)
	})
}

// A MaxWait that is shorter than one round trip.
func TestMaxWaitShorterThanARoundTrip(t *testing.T) {
	for _, wait := range []time.Duration{1, time.Millisecond, 600 * time.Millisecond} {
		for _, contended := range []bool{false, true} {
			t.Run(fmt.Sprint(wait, contended), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					c := dlock.New(s)
					if contended {
						hold(t, store, 100*time.Millisecond)
						require.NoError(t, acquire(t, c, "k").Release())
					}
					s.hook = func(c *call) {
						c.take(700 * time.Millisecond)
					}
					short := c.With(dlock.WithMaxWait(wait))
					l, err := short.Acquire(t.Context(), "k")
					require.NoError(t, err, "the key is free")
					start := time.Now()
					_, err = short.Acquire(t.Context(), "k")
					require.ErrorIs(t, err, dlock.ErrHeld)
					requireNoContextError(t, err)
					require.Equal(t, 700*time.Millisecond, time.Since(start), "it does not wait")
					require.NoError(t, l.Release())
				})
			})
		}
	}
}

// However short MaxWait is, the first attempt has a second, or ends with ctx.
func TestMaxWaitShorterThanAnAttempt(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.hang()
			}
		}
		c := dlock.New(s, dlock.WithMaxWait(time.Millisecond))
		start := time.Now()
		_, err := c.Acquire(t.Context(), "k")
		requireNoContextError(t, err)
		require.NotErrorIs(t, err, dlock.ErrHeld)
		require.Equal(t, time.Second, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1100*time.Millisecond, time.Since(start))
		time.Sleep(time.Minute)
	})
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

// NoLimit overrides a MaxWait.
func TestNoLimit(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		hold(t, store, 24*time.Hour)
		c := dlock.New(l, dlock.WithMaxWait(time.Second))
		lease := acquire(t, c.With(dlock.WithMaxWait(dlock.NoLimit)), "k")
		require.NoError(t, lease.Release())
	})
}

// Started is when the holder began to acquire the key, also if it had to wait.
func TestStartedOfAWaiter(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		hold(t, store, 10*time.Second)
		start := time.Now().Local()
		waiter := acquire(t, dlock.New(l), "k")
		require.NotEqual(t, start, time.Now())
		holder, err := dlock.New(store).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, start, holder.Started)
		require.NoError(t, waiter.Release())
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

func TestLateGrantsAfterHeldAreNotHeld(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Second)
		s.hook = func(c *call) {
			if c.op == "try" && len(s.made("try")) > 1 {
				c.delay = 99 * time.Millisecond
			}
		}
		c := dlock.New(plain{s}, dlock.WithTTL(100*time.Millisecond), dlock.WithMaxWait(5*time.Second))
		_, err := c.Acquire(t.Context(), "k")
		requireNoContextError(t, err)
		require.NotErrorIs(t, err, dlock.ErrHeld, "the last answers were grants")
		time.Sleep(time.Second)
	})
}

func TestUnsupportedQueueIsNotThere(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		hold(t, store, time.Second)
		l := acquire(t, dlock.New(dlock.Forward{Locker: plain{s}}), "k")
		require.NoError(t, l.Release())
		require.Empty(t, s.made("acquire"))
		require.Len(t, s.made("release"), 1, "nothing was sent, so nothing is owed")
	})
}

// A queue that breaks the contract of Acquirer counts as failed.
func TestQueueThatReturnsNothing(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		s.hook = func(c *call) {
			if c.op == "acquire" {
				c.answers(dlock.Attempt{}, nil)
			}
		}
		_, err := dlock.New(s, dlock.WithMaxWait(10*time.Second)).Acquire(t.Context(), "k")
		require.ErrorContains(t, err, "the store last answered 10s ago: the store's queue returned neither a grant nor an error")
		require.ErrorIs(t, err, dlock.ErrHeld)
		requireNoContextError(t, err)
	})
}
