package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

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
				s.hook = func(c *call) {
					if time.Since(start) < test.ready {
						c.err = errLoading
					}
				}
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
			s.hook = func(c *call) {
				if c.err = errLoading; len(s.made("try")) > 3 {
					c.err = other
				}
			}
			_, err := dlock.New(s).Acquire(t.Context(), "k")
			require.ErrorIs(t, err, other)
			require.Len(t, s.made("try"), 4)
			time.Sleep(time.Minute)
		})
	}
}

// Once the store is ready, the wait is like any other.
func TestWaitAfterTheStoreIsReady(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		hold(t, store, 10*time.Second)
		start := time.Now()
		s.hook = func(c *call) {
			if time.Since(start) < 3*time.Second {
				c.err = errLoading
			}
		}
		lease := acquire(t, dlock.New(l), "k")
		require.InDelta(t, 10, time.Since(start).Seconds(), 0.01)
		require.NoError(t, lease.Release())
	})
}
