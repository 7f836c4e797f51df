package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
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

func TestForeignValueIsNotShown(t *testing.T) {
	for _, foreign := range []string{"s3cret", "dlock1.s3cret.s3cret", "dlock1.", "dlock1.abcdefghijklmnopqrstuvwxyz.s3cret", "dlock1.ABCDEFGHIJKLMNOPQRSTUVWXYZ.s3cret"} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			_, err := store.TryAcquire(t.Context(), "k", foreign, time.Minute)
			require.NoError(t, err)
			c := dlock.New(s)
			_, err = c.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, dlock.ErrHeld)
			require.NotContains(t, err.Error(), "s3cret")
			holder, err := c.Inspect(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, dlock.Status{Held: true, Remaining: time.Minute}, holder)
		})
	}
}

func TestInspect(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithOwner("web-7"))
		holder, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, holder)
		defer acquire(t, c, "k").Release()
		holder, err = c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, holder.Held)
		require.Equal(t, "web-7", holder.Owner)
		require.Equal(t, time.Now().Local(), holder.Started)
		require.Equal(t, 30*time.Second, holder.Remaining)
		_, err = dlock.New(plain{s}).Inspect(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Contains(t, err.Error(), `dlock: inspect "k"`)
		store.Fail(errStore)
		_, err = c.Inspect(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
	})
}

// Both ways of waiting, through a queue of the store and by polling.
func waiting(t *testing.T, f func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker)) {
	t.Helper()
	t.Run("queue", func(t *testing.T) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) { f(t, store, s, s) })
	})
	t.Run("poll", func(t *testing.T) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) { f(t, store, s, plain{s}) })
	})
}

func TestErrorBeforeTheFirstAnswerIsReturned(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		store.Fail(errStore)
		_, err := dlock.New(l).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		require.NotErrorIs(t, err, dlock.ErrHeld)
		require.Equal(t, `dlock: acquire "k": store: connection refused`, err.Error())
	})
}

func TestErrorsAfterHeldAreRetried(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		start := time.Now()
		_, err := store.TryAcquire(t.Context(), "k", "dead", 20*time.Second)
		require.NoError(t, err)
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
		require.ErrorIs(t, err, dlock.ErrHeld, "the lease that the store told of may last for 30 s")
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

// Started is when the holder began to acquire the key: for one that waited, when it began
// to wait.
func TestStartedOfAWaiter(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		_, err := store.TryAcquire(t.Context(), "k", "dead", 10*time.Second)
		require.NoError(t, err)
		start := time.Now().Local()
		waiter := acquire(t, dlock.New(l), "k")
		require.NotEqual(t, start, time.Now())
		holder, err := dlock.New(store).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, start, holder.Started)
		require.NoError(t, waiter.Release())
	})
}

func TestStatusTellsHowManyWait(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		defer acquire(t, c, "k").Release()
		for range 7 {
			go c.With(dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		}
		synctest.Wait()
		status, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 7, status.Waiting)
		time.Sleep(time.Minute)
	})
}

// NoLimit undoes a MaxWait.
func TestNoLimit(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		_, err := store.TryAcquire(t.Context(), "k", "dead", 24*time.Hour)
		require.NoError(t, err)
		c := dlock.New(l, dlock.WithMaxWait(time.Second))
		lease := acquire(t, c.With(dlock.WithMaxWait(dlock.NoLimit)), "k")
		require.NoError(t, lease.Release())
	})
}

func TestEndedContextSendsNothing(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
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

func TestTokensAreUsedOnce(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		defer acquire(t, dlock.New(store), "k").Release()
		s.hook = func(c *call) {
			if n := len(s.made("try", "acquire")); n > 1 && n < 5 && c.op != "release" {
				c.err = errStore
			}
		}
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

func (s *spy) released(token string) bool {
	for _, c := range s.made("release") {
		if c.token == token {
			return true
		}
	}
	return false
}

func TestFailedAcquireIsReleased(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		_, err := dlock.New(s, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		synctest.Wait()
		tokens := s.made("acquire")
		require.Len(t, tokens, 1)
		require.True(t, s.released(tokens[0].token))
	})
}

func TestCancelledPollOwesNothing(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		_, err := dlock.New(plain{s}, dlock.WithMaxWait(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(time.Minute)
		require.Empty(t, s.made("release"), "every attempt was answered")
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
				require.Greater(t, len(tries), 5*20, "it hardly asks")
				require.Less(t, len(tries), 14*20, "it asks too often")
			})
		})
	}
}

// A store that does not answer is asked more and more seldom, and at the usual pace when
// it answers again.
func TestPollingPaceOfFailures(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		start := time.Now()
		s.hook = func(c *call) {
			if at := time.Since(start); at > time.Second && at < time.Minute {
				c.err = errStore
			}
		}
		_, err := dlock.New(plain{s}, dlock.WithMaxWait(2*time.Minute)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld)
		asked := func(from, to time.Duration) (n int) {
			for _, c := range s.made("try") {
				if at := c.at.Sub(start); at >= from && at < to {
					n++
				}
			}
			return n
		}
		require.InDelta(t, 60, asked(10*time.Second, time.Minute), 15, "attempts in 50 s, while it fails")
		require.InDelta(t, 6.7*50, asked(65*time.Second, 115*time.Second), 70, "attempts in 50 s, when it answers again")
	})
}

func TestPollAsksWhenTheLeaseEnds(t *testing.T) {
	for _, rest := range []time.Duration{3 * time.Millisecond, 30 * time.Millisecond, 1234 * time.Millisecond, 30 * time.Second} {
		t.Run(rest.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				_, err := store.TryAcquire(t.Context(), "k", "dead", rest)
				require.NoError(t, err)
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

func TestWhatWasNotSentIsNotOwed(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("pool: %w", &net.OpError{Op: "dial", Net: "tcp", Err: errStore}),
		fmt.Errorf("%w key: has a hash tag", dlock.ErrInvalid),
		errors.ErrUnsupported,
	} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s)
			store.Fail(err)
			_, got := c.Acquire(t.Context(), "k")
			require.ErrorIs(t, got, err)
			time.Sleep(time.Minute)
			require.Empty(t, s.made("release"))
			require.NoError(t, c.Close())
		})
	}
}

func TestUnsupportedQueueIsNotThere(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		_, err := store.TryAcquire(t.Context(), "k", "dead", time.Second)
		require.NoError(t, err)
		l := acquire(t, dlock.New(dlock.Forward{Locker: plain{s}}), "k")
		require.NoError(t, l.Release())
		require.Empty(t, s.made("acquire"))
		require.Len(t, s.made("release"), 1, "nothing was sent, so nothing is owed")
	})
}

func TestQueueThatReturnsNothing(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, _ *spy) {
		defer acquire(t, dlock.New(store), "k").Release()
		_, err := dlock.New(lazyQueue{plain{store}}, dlock.WithMaxWait(10*time.Second)).Acquire(t.Context(), "k")
		require.Error(t, err)
		requireNoContextError(t, err)
	})
}

// lazyQueue breaks the contract of Acquirer.
type lazyQueue struct{ dlock.Locker }

func (lazyQueue) Acquire(context.Context, string, string, time.Duration) (dlock.Attempt, error) {
	return dlock.Attempt{}, nil
}

// A grant whose answer comes when the deadline has passed.
func TestLateGrantIsNotBelieved(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if len(s.made("try")) == 1 {
				c.delay = time.Minute
			}
		}
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

// A waiter whose goroutine is stopped when it was granted the key, for longer
// than the lease lasts.
func TestWaiterStoppedPastItsDeadline(t *testing.T) {
	for name, other := range map[string]func(t *testing.T, store *memory.Locker){
		"free":  func(*testing.T, *memory.Locker) {},
		"taken": func(_ *testing.T, store *memory.Locker) { store.Steal("k", time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				_, err := store.TryAcquire(t.Context(), "k", "dead", time.Second)
				require.NoError(t, err)
				s.hook = func(c *call) {
					if c.op == "acquire" && len(s.made("acquire")) == 1 {
						c.delay = time.Minute // granted after 1 s, lost after 31
						time.AfterFunc(40*time.Second, func() { other(t, store) })
					}
				}
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

// A token that is tried again may be granted the key after a release of it was
// answered "held", which was the first grant.
func TestReleaseOfTheFirstGrantIsNotTheLastWord(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			switch {
			case c.op == "try" && len(s.made("try")) == 1:
				c.delay = 950 * time.Millisecond // granted, and found late
			case c.op == "try":
				c.err = io.ErrUnexpectedEOF // still on its way
			}
		}
		_, err := dlock.New(s, dlock.WithTTL(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		synctest.Wait()
		token := s.made("try")[0].token
		require.True(t, s.released(token))
		requireFree(t, store, "k")
		late, err := store.TryAcquire(t.Context(), "k", token, time.Second)
		require.NoError(t, err)
		require.True(t, late.Acquired)
		time.Sleep(300 * time.Millisecond)
		requireFree(t, store, "k")
		time.Sleep(time.Second)
		synctest.Wait()
		n := len(s.made("release"))
		time.Sleep(time.Minute)
		require.Len(t, s.made("release"), n, "it is released for ever")
	})
}

// A release that was sent in time, but answered when the debt would have ended, is
// not the last: the attempt may have come between.
func TestReleaseAnsweredAtTheEndOfADebt(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			switch {
			case c.op == "try":
				c.err = io.ErrUnexpectedEOF // still on its way
			case len(s.made("release")) == 1:
				c.delay = 2 * time.Second
			}
		}
		_, err := dlock.New(s, dlock.WithTTL(time.Second)).Acquire(t.Context(), "k")
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		time.Sleep(500 * time.Millisecond)
		late, err := store.TryAcquire(t.Context(), "k", s.made("try")[0].token, time.Hour)
		require.NoError(t, err)
		require.True(t, late.Acquired)
		time.Sleep(5 * time.Second)
		requireFree(t, store, "k")
	})
}

func TestAnswersAlwaysTooLate(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "try" {
				c.delay = 99 * time.Millisecond
			}
		}
		_, err := dlock.New(s, dlock.WithTTL(100*time.Millisecond)).Acquire(t.Context(), "k")
		require.ErrorContains(t, err, "took nearly as long as the TTL")
		synctest.Wait()
		require.True(t, s.released(s.made("try")[0].token))
	})
}

// An Acquirer that dates its grants, as a store with a server does.
func TestDeadlineCountsFromSince(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		_, err := store.TryAcquire(t.Context(), "k", "dead", time.Second)
		require.NoError(t, err)
		var since time.Time
		s.hook = func(c *call) {
			if c.op == "acquire" {
				c.delay = 2 * time.Second
				since = c.at.Add(time.Second)
			}
		}
		l := acquire(t, dlock.New(s), "k")
		require.Equal(t, since.Add(5*time.Second-52*time.Millisecond), l.Deadline())
		require.NoError(t, l.Release())
	})
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
			_, err := store.TryAcquire(t.Context(), "k", "dead", time.Second)
			require.NoError(t, err)
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

// A lease that is released soon after a wait costs no renewal, also if the Client
// is busy with others.
func TestShortHoldAfterAWaitIsNotRenewed(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		other := acquire(t, c, "other")
		time.Sleep(9 * time.Second)
		_, err := store.TryAcquire(t.Context(), "k", "dead", 950*time.Millisecond)
		require.NoError(t, err)
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

func TestSinceInTheFutureIsNotBelieved(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			c.attempt = &dlock.Attempt{Acquired: true, Fence: 8, Since: c.at.Add(time.Hour)}
			c.delay = time.Second
		}
		start := time.Now()
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		require.Equal(t, start.Add(30*time.Second-302*time.Millisecond), l.Deadline())
		s.hook = nil
		require.NoError(t, l.Release())
	})
}

// A Since without a monotonic reading would move with the clock on the wall: the lease is
// counted from the call. (In a bubble no time has such a reading.)
func TestSinceOnTheWallIsNotBelieved(t *testing.T) {
	s := &spy{Forward: dlock.Forward{Locker: memory.New()}}
	s.hook = func(c *call) {
		c.attempt = &dlock.Attempt{Acquired: true, Fence: 8, Since: time.Now().Add(time.Millisecond).Round(0)}
		time.Sleep(2 * time.Millisecond)
	}
	l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
	require.NotEqual(t, l.Deadline().Round(0), l.Deadline())
	require.NoError(t, l.Release())
}

func TestWholeMilliseconds(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op != "release" {
				require.Zero(t, c.ttl%time.Millisecond, "%s sends a TTL of %v", c.op, c.ttl)
			}
		}
		start := time.Now()
		c := dlock.New(s, dlock.WithTTL(1500*time.Microsecond+time.Second), dlock.WithMinHold(time.Minute+time.Nanosecond))
		l := acquire(t, c, "k")
		require.Equal(t, start.Add(1001*time.Millisecond-10010*time.Microsecond-2*time.Millisecond), l.Deadline())
		time.Sleep(1234567 * time.Microsecond)
		require.NoError(t, l.Release())
		time.Sleep(2 * time.Minute)
		require.Len(t, s.made("renew"), 1+3, "a background renewal each third of the TTL, and one for MinHold")
	})
}

// noFences is a store that does not number its grants.
type noFences struct{ dlock.Forward }

func (n noFences) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := n.Forward.TryAcquire(ctx, key, token, ttl)
	a.Fence = 0
	return a, err
}

func (n noFences) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := n.Forward.Acquire(ctx, key, token, ttl)
	a.Fence = 0
	return a, err
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

func TestClose(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		c := dlock.New(l)
		held, lost := acquire(t, c, "k"), acquire(t, c, "lost")
		wait := make(chan error)
		go func() { _, err := c.Acquire(t.Context(), "k"); wait <- err }()
		time.Sleep(time.Second)
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-wait, dlock.ErrClosed)
		require.NoError(t, c.Close())

		_, err := c.Acquire(t.Context(), "other")
		require.ErrorIs(t, err, dlock.ErrClosed)
		_, err = c.With(dlock.WithTTL(time.Second)).TryAcquire(t.Context(), "other")
		require.ErrorIs(t, err, dlock.ErrClosed)
		_, err = c.Inspect(t.Context(), "other")
		require.ErrorIs(t, err, dlock.ErrClosed)
		require.ErrorIs(t, held.Renew(t.Context()), dlock.ErrClosed)

		require.NoError(t, held.Err(), "it may be used until its deadline")
		require.NoError(t, held.Release())
		requireFree(t, store, "k")
		<-lost.Done()
		require.Equal(t, lost.Deadline(), time.Now())
		require.ErrorIs(t, lost.Err(), dlock.ErrLost)
	})
}

func TestCloseWhileAcquiring(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		store.Delay(time.Second)
		result := make(chan error)
		go func() { _, err := c.TryAcquire(t.Context(), "k"); result <- err }()
		synctest.Wait()
		go c.Close()
		require.ErrorIs(t, <-result, dlock.ErrClosed)
		requireFree(t, store, "k")
	})
}

func TestCloseWaitsForWhatIsOwed(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		store.FailReplies(errStore)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		store.FailReplies(nil)
		store.Fail(errStore)
		time.AfterFunc(3*time.Second, func() { store.Fail(nil) })
		start := time.Now()
		require.NoError(t, c.Close())
		requireFree(t, store, "k")
		require.Less(t, time.Since(start), 5*time.Second)
	})
}

func TestCloseGivesUp(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		store.Fail(errStore)
		require.ErrorIs(t, l.Release(), errStore)
		start := time.Now()
		require.ErrorContains(t, c.Close(), "1 releases not answered, and 0 calls not ended, within 5s")
		require.Equal(t, 5*time.Second, time.Since(start))
		n := len(s.made())
		time.Sleep(time.Hour)
		require.Len(t, s.made(), n, "calls after Close")
	})
}

func TestBadInput(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		good := dlock.New(s)
		for _, bad := range []struct {
			client *dlock.Client
			key    string
			want   string
		}{
			{good, "", "key: empty"},
			{good, strings.Repeat("k", 1025), "key: 1025 bytes, more than 1024"},
			{dlock.New(nil), "k", "Locker: nil"},
			{new(dlock.Client), "k", "Locker: nil"},
			{dlock.New(s, nil), "k", "Option 1 of 1: nil"},
			{good.With(dlock.WithTTL(0)), "k", "WithTTL(0s): less than 10ms"},
			{good.With(dlock.WithTTL(-time.Second)), "k", "WithTTL(-1s)"},
			{good.With(dlock.WithTTL(9999 * time.Microsecond)), "k", "WithTTL(9.999ms)"},
			{good.With(dlock.WithMaxWait(-1)), "k", "WithMaxWait(-1ns): negative"},
			{good.With(dlock.WithMaxWait(math.MinInt64)), "k", "negative"},
			{good.With(dlock.WithMaxHold(-1)), "k", "WithMaxHold(-1ns): negative"},
			{good.With(dlock.WithMinHold(-1)), "k", "WithMinHold(-1ns): negative"},
			{good.With(dlock.WithTTL(365*24*time.Hour + 1)), "k", "WithTTL(8760h0m0.000000001s): more than 8760h0m0s"},
			{good.With(dlock.WithMinHold(math.MaxInt64)), "k", "more than 8760h0m0s"},
			{good.With(dlock.WithOwner(strings.Repeat("o", 257))), "k", "257 bytes, more than 256"},
			{good.With(dlock.WithTTL(0)).With(dlock.WithTTL(time.Second)), "k", "WithTTL(0s)"},
		} {
			for name, f := range map[string]func() error{
				"Acquire":    func() error { _, err := bad.client.Acquire(t.Context(), bad.key); return err },
				"TryAcquire": func() error { _, err := bad.client.TryAcquire(t.Context(), bad.key); return err },
				"Inspect":    func() error { _, err := bad.client.Inspect(t.Context(), bad.key); return err },
				"Do": func() error {
					return bad.client.Do(t.Context(), bad.key, func(context.Context, *dlock.Lease) error { return nil })
				},
			} {
				err := f()
				require.ErrorIs(t, err, dlock.ErrInvalid, name)
				require.ErrorContains(t, err, bad.want, name)
			}
			if bad.client != good {
				require.NoError(t, bad.client.With().Close())
			}
		}
		require.ErrorIs(t, dlock.New(s).Do(t.Context(), "k", nil), dlock.ErrInvalid)
		require.Empty(t, s.made(), "something was sent to the store")
	})
}

func TestLimitsAreAccepted(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(10*time.Millisecond), dlock.WithOwner(strings.Repeat("o", 256)),
			dlock.WithMaxHold(0), dlock.WithMinHold(0))
		l := acquire(t, c, strings.Repeat("k", 1024))
		time.Sleep(time.Minute)
		require.NoError(t, l.Release())

		year := c.With(dlock.WithTTL(365*24*time.Hour), dlock.WithMinHold(0))
		require.NoError(t, acquire(t, year, "k").Release())
	})
}

func TestWithSharesTheRest(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithOwner("a"), dlock.WithMaxHold(time.Minute), dlock.WithMinHold(time.Minute))
		d := c.With(dlock.WithOwner(""), dlock.WithMaxHold(0), dlock.WithMinHold(0))
		l := acquire(t, d, "k")
		defer l.Release()
		time.Sleep(2 * time.Minute)
		require.NoError(t, l.Err())
		var held *dlock.HeldError
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorAs(t, err, &held)
		require.Empty(t, held.Owner)
		require.NoError(t, d.Close())
		_, err = c.TryAcquire(t.Context(), "other")
		require.ErrorIs(t, err, dlock.ErrClosed)
	})
}

func TestForward(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		f := dlock.Forward{Locker: plain{s}}
		_, err := f.Acquire(t.Context(), "k", "t", time.Second)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = f.RenewBatch(t.Context(), nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = f.Inspect(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Empty(t, s.made())
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
