package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestDo(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		wrong := errors.New("went wrong")
		for _, want := range []error{nil, wrong} {
			require.Equal(t, want, c.Do(t.Context(), "k", func(ctx context.Context, l *dlock.Lease) error {
				requireHeld(t, store, "k", l.Token())
				require.NoError(t, ctx.Err())
				return want
			}))
			requireFree(t, store, "k")
		}
	})
}

func TestDoContextBoundsTheWork(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := dlock.New(s).Do(ctx, "k", func(ctx context.Context, _ *dlock.Lease) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, dlock.ErrLost)
		requireFree(t, store, "k")
	})
}

func TestDoReleasesOnPanic(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		require.PanicsWithValue(t, "boom", func() {
			dlock.New(s).Do(t.Context(), "k", func(context.Context, *dlock.Lease) error { panic("boom") })
		})
		requireFree(t, store, "k")
	})
}

func TestOwedReleaseIsNoErrorOfTheWork(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		s.hook = func(c *call) {
			if c.op == "release" {
				c.err = errStore
			}
		}
		require.NoError(t, dlock.New(s).Do(t.Context(), "k", func(context.Context, *dlock.Lease) error { return nil }))
		synctest.Wait()
		require.Len(t, s.made("release"), 2, "that of Do, and the first of the Client")
	})
}

// If the work detaches its lease, its context ends, and Do returns its error.
func TestDoWithDetachedLease(t *testing.T) {
	wrong := errors.New("not delivered")
	for _, want := range []error{nil, wrong} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			var d dlock.Detached
			c := dlock.New(s)
			require.Equal(t, want, c.Do(t.Context(), "k", func(ctx context.Context, l *dlock.Lease) (err error) {
				d = detach(t, l)
				require.Equal(t, dlock.ErrReleased, context.Cause(ctx))
				return want
			}))
			require.Empty(t, s.made("release"))
			l := adopt(t, c, d)
			require.NoError(t, l.Release())
		})
	}
}

func TestDoWithLostLease(t *testing.T) {
	wrong := errors.New("went wrong")
	run := func(fn func(context.Context) error) (err error) {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			err = dlock.New(s).Do(t.Context(), "k", func(ctx context.Context, _ *dlock.Lease) error {
				store.Steal("k", time.Hour)
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), dlock.ErrLost)
				return fn(ctx)
			})
		})
		require.ErrorIs(t, err, dlock.ErrLost)
		return err
	}
	run(func(context.Context) error { return nil })
	require.ErrorIs(t, run(func(context.Context) error { return wrong }), wrong)
	err := run(func(ctx context.Context) error { return fmt.Errorf("row 7: %w", ctx.Err()) })
	require.NotErrorIs(t, err, context.Canceled, "it would be taken for the end of the caller's context")
	require.ErrorContains(t, err, "row 7: context canceled")
	err = run(func(context.Context) error { return context.DeadlineExceeded })
	require.ErrorIs(t, err, context.DeadlineExceeded, "that is the work's own")
}

func TestDoWithLostLeaseAndEndedContext(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		ctx, cancel := context.WithCancel(t.Context())
		err := dlock.New(s).Do(ctx, "k", func(ctx context.Context, _ *dlock.Lease) error {
			cancel()
			store.Steal("k", time.Hour)
			return ctx.Err()
		})
		require.ErrorIs(t, err, dlock.ErrLost, "found by the release")
		require.ErrorIs(t, err, context.Canceled)
	})
}

// A loss is printed once, whether fn's error is the loss, wraps it, follows from it, or is
// another one.
func TestDoPrintsALossOnce(t *testing.T) {
	other := errors.New("row 7")
	for name, fn := range map[string]func(ctx context.Context, l *dlock.Lease) error{
		"nothing": func(context.Context, *dlock.Lease) error { return nil },
		"Err":     func(_ context.Context, l *dlock.Lease) error { return l.Err() },
		"cause":   func(ctx context.Context, _ *dlock.Lease) error { return fmt.Errorf("row 7: %w", context.Cause(ctx)) },
		"text":    func(ctx context.Context, _ *dlock.Lease) error { return fmt.Errorf("row 7: %v", context.Cause(ctx)) },
		"call": func(ctx context.Context, _ *dlock.Lease) error {
			_, err := dlock.New(memory.New()).Acquire(ctx, "second")
			return err
		},
		"other": func(context.Context, *dlock.Lease) error { return other },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				var loss error
				err := dlock.New(s).Do(t.Context(), "k", func(ctx context.Context, l *dlock.Lease) error {
					store.Steal("k", time.Hour)
					<-ctx.Done()
					loss = context.Cause(ctx)
					return fn(ctx, l)
				})
				require.ErrorIs(t, err, dlock.ErrLost)
				require.ErrorIs(t, err, loss)
				requireNoContextError(t, err)
				require.Equal(t, 1, strings.Count(err.Error(), "lease lost"), err)
				if name == "other" {
					require.ErrorIs(t, err, other)
				}
			})
		})
	}
}
