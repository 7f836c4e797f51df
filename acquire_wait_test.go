package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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
		s.onCall(func(c *call) {
			if c.op != "release" && len(s.made("try", "acquire")) > 1 && time.Since(start) < 10*time.Second {
				c.err = errStore
			}
		})
		waiter := acquire(t, dlock.New(l), "k")
		require.NoError(t, waiter.Release())
		require.Greater(t, len(s.made("try", "acquire")), 5)
	})
}

func TestFinalErrorsEndTheWait(t *testing.T) {
	for _, final := range []error{dlock.ErrInvalid, dlock.ErrClosed} {
		waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			defer acquire(t, dlock.New(store), "k").Release()
			s.onCall(func(c *call) {
				if c.op != "release" && len(s.made("try", "acquire")) > 1 {
					c.err = fmt.Errorf("locker: %w", final)
				}
			})
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
		s.onCall(func(c *call) {
			if len(s.made("try")) > 1 {
				c.hang()
			}
		})
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
		s.onCall(func(c *call) {
			if time.Since(c.at) == 0 && len(s.made("try", "acquire")) > 1 {
				c.err = errStore
			}
		})
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
					s.onCall(func(c *call) {
						c.take(700 * time.Millisecond)
					})
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
		s.onCall(func(c *call) {
			if c.op == "try" {
				c.hang()
			}
		})
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
		s.onCall(func(c *call) { c.delay = 2 * time.Second }) // a Locker that ignores its ctx
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

// A silent Locker does not say since when a key is held.
type silent struct{ dlock.Locker }

func (s silent) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a, err := s.Locker.TryAcquire(ctx, key, token, ttl)
	a.HeldSince = time.Time{}
	return a, err
}

// Started is when the holder was granted the key, however long it has waited. If the store does not say so, it is when
// the holder's last attempt was made, unless the holder may have waited in a queue.
func TestStartedOfAWaiter(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		hold(t, store, time.Hour)
		waiter := acquire(t, dlock.New(l), "k")
		granted := time.Now().Truncate(time.Millisecond)
		time.Sleep(time.Minute)
		started := func(l dlock.Locker) time.Time {
			_, err := dlock.New(l).TryAcquire(t.Context(), "k")
			held, ok := errors.AsType[*dlock.HeldError](err)
			require.True(t, ok, "%v", err)
			return held.Started
		}
		holder, err := dlock.New(store).Inspect(t.Context(), "k")
		require.NoError(t, err)
		for _, at := range []time.Time{holder.Started, started(l), started(dlock.Forward{Locker: store})} {
			require.True(t, granted.Equal(at), "%v, granted %v", at, granted)
		}
		if _, queue := l.(dlock.Acquirer); queue {
			granted = time.Time{}
		}
		require.True(t, granted.Equal(started(silent{store})))
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
		s.onCall(func(c *call) {
			if c.op == "try" && len(s.made("try")) > 1 {
				c.delay = 99 * time.Millisecond
			}
		})
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
		s.onCall(func(c *call) {
			if c.op == "acquire" {
				c.answers(dlock.Attempt{}, nil)
			}
		})
		_, err := dlock.New(s, dlock.WithMaxWait(10*time.Second)).Acquire(t.Context(), "k")
		require.ErrorContains(t, err, "the store last answered 10s ago: the store's queue returned neither a grant nor an error")
		require.ErrorIs(t, err, dlock.ErrHeld)
		requireNoContextError(t, err)
	})
}

// With WithOutage, the first attempt is repeated while the store cannot be reached.
func TestWithOutage(t *testing.T) {
	refuses := func(c *call) { c.err = errDial }
	hangs := func(c *call) { c.hang() }
	fails := func(c *call) { c.err = errStore }
	unsent := func(c *call) {
		c.hang()
		c.err = &dlock.NoEffectError{Err: context.DeadlineExceeded}
	}
	password := &dlock.NoEffectError{Err: errors.New("WRONGPASS")}
	breaker := &dlock.NoEffectError{Err: fmt.Errorf("%w: breaker open", dlock.ErrUnavailable)}
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
		{"behind a breaker", with(), func(c *call) { c.err = breaker }, 4 * time.Second, 4 * time.Second, 5 * time.Second, nil},
		{"is loading", with(), func(c *call) { c.err = errLoading }, 20 * time.Second, 20 * time.Second, 21 * time.Second, nil},
		{"refuses for too long", with(), refuses, time.Hour, 29 * time.Second, 30 * time.Second, errDial},
		{"hangs for too long", with(), hangs, time.Hour, 30 * time.Second, 30 * time.Second, dlock.ErrUnavailable},
		{"refuses for longer than MaxWait", with(dlock.WithMaxWait(2 * time.Second)), refuses, time.Hour, 2 * time.Second, 2 * time.Second, errDial},
		{"hangs for longer than MaxWait", with(dlock.WithMaxWait(2 * time.Second)), hangs, time.Hour, 2 * time.Second, 2 * time.Second, nil},
		{"no wait", with(dlock.WithMaxWait(0)), refuses, time.Hour, 0, 0, errDial},
		{"wrong password", with(), func(c *call) { c.err = password }, time.Hour, 0, 0, password},
		{"closed", with(), func(c *call) { c.err = dlock.ErrClosed }, time.Hour, 0, 0, dlock.ErrClosed},
		{"no patience", nil, refuses, time.Hour, 0, 0, errDial},
	} {
		t.Run(test.name, func(t *testing.T) {
			waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
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
				if test.back < time.Hour {
					require.NoError(t, err)
					require.NoError(t, lease.Release())
					return
				}
				require.Error(t, err)
				requireNoContextError(t, err)
				if test.want != nil {
					require.ErrorIs(t, err, test.want)
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

// A key that is held when the store is back is waited for, however long.
func TestWaitAfterAnOutage(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		hold(t, store, 10*time.Second)
		start := time.Now()
		s.onCall(func(c *call) {
			if time.Since(start) < 2*time.Second {
				c.err = errDial
			}
		})
		lease := acquire(t, dlock.New(l, dlock.WithOutage(3*time.Second)), "k")
		require.InDelta(t, 10, time.Since(start).Seconds(), 0.01)
		require.NoError(t, lease.Release())
	})
}

// The caller's ctx and Close end the patience.
func TestEndsOfPatience(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		s.onCall(func(c *call) { c.err = errDial })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		c := dlock.New(l, dlock.WithOutage(time.Minute))
		_, err := c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errDial)
		require.Equal(t, 2*time.Second, time.Since(start))

		time.AfterFunc(time.Second, func() { c.Close() })
		_, err = c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrClosed)
		require.Equal(t, 3*time.Second, time.Since(start))
	})
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
			t.Run(fmt.Sprint(name, ", turns ", turns), func(t *testing.T) {
				in(t, func(t *testing.T, store *memory.Locker, s *spy) {
					var away atomic.Bool
					s.onCall(func(c *call) {
						if away.Load() && c.op != "release" {
							c.hang()
						}
					})
					c := dlock.New(s, dlock.WithLocalTurns(turns))
					test.before(t, store, c)
					away.Store(true)
					c = c.With(dlock.WithOutage(outage), dlock.WithMaxWait(7*time.Second))
					start, late := time.Now(), atomic.Int32{}
					var all sync.WaitGroup
					for i := range test.calls {
						key := "k"
						if i > 0 {
							key = fmt.Sprint("k", i)
						}
						all.Go(func() {
							_, err := c.Acquire(t.Context(), key)
							if !errors.Is(err, dlock.ErrUnavailable) || time.Since(start) > outage {
								late.Add(1)
							}
						})
					}
					all.Wait()
					require.Zero(t, late.Load(), "calls, of %d, that did not fail with ErrUnavailable within %v; the last took %v", test.calls, outage, time.Since(start))
					away.Store(false)
					c.Close()
				})
			})
		}
	}
}

// errLoading is the answer of a store that will soon be ready.
var errLoading = fmt.Errorf("client: %w", &dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true})

// The first attempt is repeated while the store says that it will soon be ready.
func TestStoreThatIsSoonReady(t *testing.T) {
	for _, test := range []struct {
		name    string
		options []dlock.Option
		ready   time.Duration
		least   time.Duration // of the acquisition
		most    time.Duration
		want    error
	}{
		{"ready soon", nil, 3 * time.Second, 3 * time.Second, 4 * time.Second, nil},
		{"ready in time", []dlock.Option{dlock.WithMaxWait(5 * time.Second)}, 3 * time.Second, 3 * time.Second, 4 * time.Second, nil},
		{"never ready", nil, time.Hour, 9 * time.Second, 10 * time.Second, errLoading},
		{"not in MaxWait", []dlock.Option{dlock.WithMaxWait(2 * time.Second)}, time.Hour, 2 * time.Second, 2 * time.Second, errLoading},
		{"no wait", []dlock.Option{dlock.WithMaxWait(0)}, 3 * time.Second, 0, 0, errLoading},
		{"backoff", []dlock.Option{dlock.WithBackoff(func(int) time.Duration { return 4 * time.Second })}, 3 * time.Second, 4 * time.Second, 4 * time.Second, nil},
		{"bad backoff", []dlock.Option{dlock.WithBackoff(func(int) time.Duration { return 0 })}, 3 * time.Second, 0, 0, dlock.ErrInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
				start := time.Now()
				s.onCall(func(c *call) {
					if time.Since(start) < test.ready {
						c.err = errLoading
					}
				})
				c := dlock.New(l, test.options...)
				lease, err := c.Acquire(t.Context(), "k")
				took := time.Since(start)
				require.ErrorIs(t, err, test.want)
				require.GreaterOrEqual(t, took, test.least)
				require.LessOrEqual(t, took, test.most)
				if err == nil {
					require.NoError(t, lease.Release())
					require.Len(t, s.made("release"), 1)
				} else {
					requireNoContextError(t, err)
					require.NoError(t, c.Close())
					require.Empty(t, s.made("release"), "nothing is owed")
				}
				tokens := make(map[string]bool)
				for _, c := range s.made("try") {
					tokens[c.token] = true
				}
				require.Len(t, tokens, 1, "nothing has happened to the token")
			})
		})
	}
}

func TestEndsOfAWaitForAStoreThatIsSoonReady(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		store.Fail(errLoading)
		_, err := dlock.New(s).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errLoading)
		require.Len(t, s.made("try"), 1, "TryAcquire does not wait")

		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		_, err = dlock.New(s).Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errLoading)
		require.Equal(t, 2*time.Second, time.Since(start))

		c := dlock.New(s)
		time.AfterFunc(time.Second, func() { c.Close() })
		_, err = c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrClosed)

		time.Sleep(time.Minute)
	})
}

// Any other error ends that, also one that joins the errors of several stores.
func TestErrorWhileTheStoreIsNotReady(t *testing.T) {
	for _, other := range []error{errStore, errors.Join(errLoading, errStore), &dlock.NoEffectError{Err: errStore}} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			s.onCall(func(c *call) {
				if c.err = errLoading; len(s.made("try")) > 3 {
					c.err = other
				}
			})
			_, err := dlock.New(s).Acquire(t.Context(), "k")
			require.ErrorIs(t, err, other)
			require.Len(t, s.made("try"), 4)
			time.Sleep(time.Minute)
		})
	}
}

// A store that refuses because of its own state is waited for if WithOutage says so, also in the middle of
// an outage. What the user may not do ends the patience at once.
func TestStateOfTheStore(t *testing.T) {
	ways := map[string]func(c *dlock.Client, ctx context.Context) error{
		"Acquire":    func(c *dlock.Client, ctx context.Context) error { _, err := c.Acquire(ctx, "k"); return err },
		"Do":         func(c *dlock.Client, ctx context.Context) error { return c.Do(ctx, "k", noWork) },
		"AcquireAll": func(c *dlock.Client, ctx context.Context) error { _, err := c.AcquireAll(ctx, "k", "l"); return err },
		"turns": func(c *dlock.Client, ctx context.Context) error {
			_, err := c.With(dlock.WithLocalTurns(8)).Acquire(ctx, "k")
			return err
		},
	}
	for name, way := range ways {
		for _, test := range []struct {
			says   []error // a second each, and the last one from then on
			outage time.Duration
			took   time.Duration
			text   string // of the error; none if it is empty
		}{
			{[]error{errOOM}, 0, 0, "the store refused: OOM"},
			{[]error{errLoading, errOOM}, 0, time.Second, "the store refused: OOM"},
			{[]error{errOOM, errOOM, nil}, time.Minute, 2 * time.Second, ""},
			{[]error{errOOM, errStore, errOOM, nil}, time.Minute, 3 * time.Second, ""},
			{[]error{errOOM}, 3 * time.Second, 3 * time.Second, "store unavailable: no success for 3s: the store refused: OOM"},
			{[]error{errStore, errOOM}, 3 * time.Second, 3 * time.Second, "store unavailable: no success for 3s: the store refused: OOM"},
			{[]error{errOOM, errOOM, errNoRight}, time.Minute, 2 * time.Second, "the store refused: NOPERM"},
			{[]error{errOOM, errStore, errNoRight}, dlock.NoLimit, 2 * time.Second, "the store refused: NOPERM"},
		} {
			t.Run(fmt.Sprint(name, test.says, test.outage), func(t *testing.T) {
				in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
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
			})
		}
	}
}

// The patience with a state of the store ends with the wait. One attempt has none.
func TestEndsOfAWaitForTheStateOfTheStore(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, _ *spy) {
		store.Fail(errOOM)
		c := dlock.New(store, dlock.WithOutage(time.Minute))
		_, err := c.TryAcquire(t.Context(), "k")
		require.EqualError(t, err, `dlock: acquire "k": the store refused: OOM command not allowed`)
		for d, text := range map[time.Duration]string{0: "", 2 * time.Second: "waited for 2s: store unavailable: no success for 2s: "} {
			begun := time.Now()
			_, err = c.With(dlock.WithMaxWait(d)).Acquire(t.Context(), "k")
			require.EqualError(t, err, `dlock: acquire "k": `+text+"the store refused: OOM command not allowed")
			require.Equal(t, d, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err = c.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, dlock.ErrUnavailable)
		require.ErrorContains(t, err, ": the store refused: OOM")
		time.AfterFunc(time.Second, func() { c.Close() })
		_, err = c.Acquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrClosed)
	})
}

// The last attempt is cut off with the patience. The socket's error says less than the answer before.
func TestPatienceThatCutsAnAttempt(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		begun := time.Now()
		s.onCall(func(c *call) {
			if c.err = errOOM; time.Since(begun) > 900*time.Millisecond {
				c.take(time.Minute)
				c.err = &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
			}
		})
		_, err := dlock.New(s, dlock.WithOutage(1800*time.Millisecond)).Acquire(t.Context(), "k")
		require.ErrorContains(t, err, "store unavailable: no success for 1.8s: the store refused: OOM")
		_, err = dlock.New(s, dlock.WithOutage(1800*time.Millisecond)).Acquire(t.Context(), "k")
		require.ErrorContains(t, err, "store unavailable: no answer for 1.8s: read: i/o timeout")
	})
}

func noWork(context.Context, *dlock.Lease) error { return nil }

// Once the store is ready, the wait is like any other.
func TestWaitAfterTheStoreIsReady(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		hold(t, store, 10*time.Second)
		start := time.Now()
		s.onCall(func(c *call) {
			if time.Since(start) < 3*time.Second {
				c.err = errLoading
			}
		})
		lease := acquire(t, dlock.New(l), "k")
		require.InDelta(t, 10, time.Since(start).Seconds(), 0.01)
		require.NoError(t, lease.Release())
	})
}
