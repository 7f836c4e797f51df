package dlock_test

import (
	"context"
	"errors"
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
				s.hook = func(c *call) {
					if c.op != "release" && time.Since(start) < test.back {
						test.away(c)
					}
				}
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
		s.hook = func(c *call) {
			if time.Since(start) < 2*time.Second {
				c.err = errDial
			}
		}
		lease := acquire(t, dlock.New(l, dlock.WithOutage(3*time.Second)), "k")
		require.InDelta(t, 10, time.Since(start).Seconds(), 0.01)
		require.NoError(t, lease.Release())
	})
}

// The caller's ctx and Close end the patience.
func TestEndsOfPatience(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		s.hook = func(c *call) { c.err = errDial }
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
					s.hook = func(c *call) {
						if away.Load() && c.op != "release" {
							c.hang()
						}
					}
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
