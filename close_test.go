package dlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

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

func TestCloseWhileAdopting(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		h := detach(t, acquire(t, c, "k"))
		s.onCall(func(c *call) { c.delay = time.Second })
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

// The attempt is granted while Close waits, and its reply is lost.
func TestCloseWaitsForCallsInFlight(t *testing.T) {
	for _, delay := range []time.Duration{2 * time.Second, 10 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				s.onCall(func(c *call) {
					if c.op == "try" {
						c.delay, c.reply = delay, errStore
					}
				})
				c := dlock.New(s)
				result := make(chan error, 1)
				go func() { _, err := c.TryAcquire(t.Context(), "k"); result <- err }()
				synctest.Wait()
				err := c.Close()
				require.Equal(t, delay > 5*time.Second, err != nil, "%v", err)
				if err == nil {
					requireFree(t, store, "k")
				}
				require.ErrorIs(t, <-result, errStore)
			})
		})
	}
}

// A set that is not complete is a call in flight, also between its calls to the store: what it holds is free
// when Close or Shutdown returns.
func TestCloseWaitsForASet(t *testing.T) {
	slow := dlock.WithObserver(&dlock.Observer{AcquireDone: func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context {
		time.Sleep(20 * time.Millisecond)
		return ctx
	}})
	for name, end := range map[string]func(t *testing.T, c *dlock.Client){
		"Close":    func(t *testing.T, c *dlock.Client) { require.NoError(t, c.Close()) },
		"Shutdown": func(t *testing.T, c *dlock.Client) { require.Error(t, c.Shutdown(ended(t))) },
	} {
		t.Run(name, func(t *testing.T) {
			waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
				s.onCall(func(c *call) {
					if c.op == "release" {
						c.take(10 * time.Millisecond)
					}
				})
				for _, turns := range []int{1, 8} {
					holdKey(t, store, "a", time.Second)
					holdKey(t, store, "c", time.Minute)
					c := dlock.New(l, slow, dlock.WithLocalTurns(turns))
					result := make(chan error, 1)
					go func() { _, err := c.AcquireAll(t.Context(), "a", "c"); result <- err }()
					time.Sleep(2 * time.Second)
					end(t, c)
					requireHolders(t, store, "", "c")
					require.ErrorIs(t, <-result, dlock.ErrClosed)
					time.Sleep(time.Minute)
				}
			})
		})
	}
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

func TestCloseLetsReleasesFinish(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.onCall(func(c *call) {
			switch c.op {
			case "try":
				c.reply = errStore
			case "release":
				c.take(2 * time.Second)
			}
		})
		c := dlock.New(s)
		_, err := c.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, errStore)
		time.Sleep(time.Second)
		require.NoError(t, c.Close())
		requireFree(t, store, "k")
		synctest.Wait()
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

// A release that no try can make any more was given up. Close and Shutdown say so while its key may stay.
func TestCloseAfterAReleaseWasGivenUp(t *testing.T) {
	closed := &dlock.NoEffectError{Err: dlock.ErrClosed}
	causes := map[string]error{"closed": closed, "no right": &dlock.NoEffectError{Err: errStore}}
	ways := map[string]func(t *testing.T, c *dlock.Client, fail func()){
		"Do": func(t *testing.T, c *dlock.Client, fail func()) {
			require.NoError(t, c.Do(t.Context(), "k", func(context.Context, *dlock.Lease) error { fail(); return nil }))
		},
		"Release": func(t *testing.T, c *dlock.Client, fail func()) {
			l := acquire(t, c, "k")
			fail()
			require.Error(t, l.Release())
		},
		"a set": func(t *testing.T, c *dlock.Client, fail func()) {
			leases := take(t, c, "j", "k")
			fail()
			require.Error(t, leases.Release())
		},
		"MinHold": func(t *testing.T, c *dlock.Client, fail func()) {
			l := acquire(t, c.With(dlock.WithMinHold(time.Minute)), "k")
			fail()
			require.NoError(t, l.Release())
		},
		"an unknown outcome": func(t *testing.T, c *dlock.Client, fail func()) {
			fail()
			_, err := c.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, errStore)
		},
	}
	for why, cause := range causes {
		for way, happens := range ways {
			for name, end := range map[string]func(*dlock.Client) error{
				"close":    (*dlock.Client).Close,
				"shutdown": func(c *dlock.Client) error { return c.Shutdown(t.Context()) },
			} {
				t.Run(why+", "+way+", "+name, func(t *testing.T) {
					in(t, func(t *testing.T, store *memory.Locker, s *spy) {
						for _, later := range []time.Duration{0, 2 * time.Second, dlock.DefaultTTL + time.Second} {
							c := dlock.New(s)
							happens(t, c, func() {
								s.onCall(func(c *call) {
									if c.err = cause; c.op == "try" {
										c.err, c.reply = nil, errStore
									}
								})
							})
							time.Sleep(later)
							begun, err := time.Now(), end(c)
							require.Zero(t, time.Since(begun))
							if later < dlock.DefaultTTL {
								require.ErrorContains(t, err, "dlock: "+name+": a release was given up, and its key may stay")
								require.ErrorIs(t, err, cause)
								requireTaken(t, store, "k")
							} else if way != "MinHold" || cause == closed { // else it still owes the release
								require.NoError(t, err)
							}
							s.onCall(nil)
							time.Sleep(time.Minute)
							requireFree(t, store, "k")
						}
					})
				})
			}
		}
	}
	t.Run("a place in the queue", func(t *testing.T) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s)
			s.onCall(func(c *call) {
				c.answers(dlock.Attempt{Holder: "other", Remaining: time.Hour}, nil)
				if c.op != "try" {
					c.err = closed
				}
			})
			_, err := c.Acquire(t.Context(), "k")
			require.ErrorIs(t, err, dlock.ErrClosed)
			synctest.Wait()
			require.Len(t, s.made("release"), 1)
			require.NoError(t, c.Close(), "no key stays")
		})
	})
}

func TestCloseEndsRenewalsInFlight(t *testing.T) {
	renewing(t, func(t *testing.T, store *memory.Locker, s *spy, locker dlock.Locker) {
		s.onCall(func(c *call) {
			switch c.op {
			case "renew", "batch":
				c.hang()
			case "try":
				if c.key == "owed" {
					c.err = errStore
				}
			case "release":
				c.err = errStore // so that Close takes its time
			}
		})
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

// Shutdown waits for the holders, whose leases are renewed meanwhile. Waits end, and new
// calls are refused.
func TestShutdownWaitsForHolders(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		waiter := make(chan error)
		go func() {
			_, err := c.Acquire(t.Context(), "k")
			waiter <- err
		}()
		synctest.Wait()
		done := make(chan error)
		go func() { done <- c.Shutdown(t.Context()) }()
		require.ErrorIs(t, <-waiter, dlock.ErrClosed)
		_, err := c.TryAcquire(t.Context(), "other")
		require.ErrorIs(t, err, dlock.ErrClosed)

		time.Sleep(5 * time.Minute)
		require.NoError(t, l.Err(), "renewed while Shutdown waits")
		select {
		case err := <-done:
			t.Fatalf("Shutdown returned %v while a lease was held", err)
		default:
		}
		require.NoError(t, l.Release())
		require.NoError(t, <-done)
		require.NoError(t, c.Shutdown(t.Context()), "once more")
		require.NoError(t, c.Close())
		requireFree(t, store, "k")
	})
}

// When ctx ends, leases end with ErrClosed and stay in the store until their TTL has passed,
// unless their holders release them.
func TestShutdownGivesUp(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		stuck, late := acquire(t, c, "stuck"), acquire(t, c, "late")
		work := stuck.Context(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		err := c.Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "2 leases still held")
		require.Equal(t, 3*time.Second, time.Since(start))
		<-work.Done()
		<-stuck.Done()
		require.ErrorIs(t, context.Cause(work), dlock.ErrClosed)
		require.ErrorIs(t, stuck.Err(), dlock.ErrClosed)
		require.NotErrorIs(t, stuck.Err(), dlock.ErrLost)
		require.False(t, time.Now().Before(stuck.Deadline()))
		require.ErrorIs(t, stuck.Renew(t.Context()), dlock.ErrClosed)
		require.Empty(t, s.made("release"), "the work may still run")
		require.Zero(t, c.Stats().Leases)

		require.NoError(t, late.Release(), "its work has ended")
		requireFree(t, store, "late")
		time.Sleep(20 * time.Second)
		_, err = dlock.New(store).TryAcquire(t.Context(), "stuck")
		require.ErrorIs(t, err, dlock.ErrHeld)
		time.Sleep(10 * time.Second)
		requireFree(t, store, "stuck")
	})
}

// After Shutdown, a Release that comes after the deadline reports the loss.
// The holder releases while Shutdown, which has given up on it, makes the store keep the key for its MinHold.
func TestReleaseDuringShutdown(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		const minHold = 2 * time.Minute
		c := dlock.New(s, dlock.WithMinHold(minHold))
		l := acquire(t, c, "k")
		s.onCall(func(c *call) { c.take(time.Second) })
		begun := time.Now()
		time.AfterFunc(500*time.Millisecond, func() { assert.NoError(t, l.Release()) })
		require.ErrorIs(t, c.Shutdown(ended(t)), context.Canceled)
		require.Equal(t, time.Second, time.Since(begun))
		require.Len(t, s.made("renew"), 1)
		time.Sleep(time.Until(begun.Add(minHold - time.Millisecond)))
		requireTaken(t, store, "k")
		time.Sleep(time.Second + 2*time.Millisecond)
		requireFree(t, store, "k")
	})
}

func TestReleaseLongAfterShutdown(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(3*time.Second))
		l := acquire(t, c, "k")
		ctx := ended(t)
		require.Error(t, c.Shutdown(ctx))
		time.Sleep(time.Minute)
		other := acquire(t, dlock.New(store), "k") // works at the same time
		require.ErrorIs(t, l.Release(), dlock.ErrLost)
		require.NoError(t, other.Release())
	})
}

// If Shutdown ended the work, the error of Do says so.
func TestDoThatShutdownEnds(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		done := make(chan error)
		go func() {
			done <- c.Do(t.Context(), "k", func(ctx context.Context, _ *dlock.Lease) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, c.Shutdown(ctx))
		err := <-done
		require.ErrorIs(t, err, dlock.ErrClosed)
		requireNoContextError(t, err)
	})
}

func TestDoLongAfterShutdown(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithTTL(3*time.Second))
		err := c.Do(t.Context(), "k", func(_ context.Context, l *dlock.Lease) error {
			ctx := ended(t)
			require.Error(t, c.Shutdown(ctx))
			time.Sleep(time.Minute)
			return nil
		})
		require.ErrorIs(t, err, dlock.ErrLost)
	})
}
