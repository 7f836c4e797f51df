package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// ours are the errors that say something of the call that returns them, and that
// must not come from the cause of its context, which is of another lease or Client.
var ours = []error{dlock.ErrHeld, dlock.ErrUnavailable, dlock.ErrNested, dlock.ErrLost, dlock.ErrReleased, dlock.ErrInvalid, dlock.ErrClosed}

// lostContext returns a context that ends with the loss of another lease at once, or as
// soon as the store is asked next.
func lostContext(t *testing.T, s *spy, early bool) context.Context {
	t.Helper()
	store := memory.New()
	l := acquire(t, dlock.New(store), "other")
	ctx := l.Context(t.Context())
	lose := func() {
		store.Expire("other")
		require.ErrorIs(t, l.Renew(context.Background()), dlock.ErrLost)
	}
	if early {
		lose()
	} else {
		s.hook = func(c *call) {
			s.hook = nil
			lose()
			<-c.ctx.Done()
			c.err = c.ctx.Err()
		}
	}
	return ctx
}

func TestLossOfAnotherLeaseIsNotOfThisCall(t *testing.T) {
	c := func(s *spy) *dlock.Client { return dlock.New(single{s}) }
	calls := map[string]func(t *testing.T, s *spy, ctx func() context.Context) error{
		"Acquire": func(_ *testing.T, s *spy, ctx func() context.Context) error {
			_, err := c(s).Acquire(ctx(), "k")
			return err
		},
		"TryAcquire": func(_ *testing.T, s *spy, ctx func() context.Context) error {
			_, err := c(s).TryAcquire(ctx(), "k")
			return err
		},
		"Inspect": func(_ *testing.T, s *spy, ctx func() context.Context) error {
			_, err := c(s).Inspect(ctx(), "k")
			return err
		},
		"Do": func(_ *testing.T, s *spy, ctx func() context.Context) error {
			return c(s).Do(ctx(), "k", func(context.Context, *dlock.Lease) error { return nil })
		},
		"Renew": func(t *testing.T, s *spy, ctx func() context.Context) error {
			l := acquire(t, c(s), "k")
			err := l.Renew(ctx())
			require.NoError(t, l.Err(), "it is held")
			require.NoError(t, l.Release())
			return err
		},
		"Adopt": func(t *testing.T, s *spy, ctx func() context.Context) error {
			d, err := acquire(t, c(s), "k").Detach()
			require.NoError(t, err)
			_, err = c(s).Adopt(ctx(), d)
			l, again := c(s).Adopt(t.Context(), d)
			require.NoError(t, again, "it is good")
			require.NoError(t, l.Release())
			return err
		},
	}
	for name, f := range calls {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/early=%v", name, early), func(t *testing.T) {
				in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
					if name == "Inspect" && !early {
						return // the spy does not see it
					}
					err := f(t, s, func() context.Context { return lostContext(t, s, early) })
					require.ErrorIs(t, err, context.Canceled)
					for _, our := range ours {
						require.NotErrorIs(t, err, our)
					}
					if early {
						require.ErrorContains(t, err, `"other": lease lost`, "the cause is told as text")
					}
					time.Sleep(time.Hour)
				})
			})
		}
	}
}

// A wait that such a context ends matches ErrHeld still, and the cause of a context
// that is none of this package's is found.
func TestWaitCutByTheLossOfAnotherLease(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		defer acquire(t, dlock.New(store), "k").Release()
		for _, ours := range ours {
			for _, cause := range []error{ours, fmt.Errorf("of another: %w", ours)} {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(cause) })
				_, err := dlock.New(l).Acquire(ctx, "k")
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, dlock.ErrHeld)
				if ours != dlock.ErrHeld {
					require.NotErrorIs(t, err, ours)
				}
				require.ErrorContains(t, err, cause.Error())
			}
		}
	})
}

// A loss is printed once, whether fn returns the loss, wraps it, says what it
// brought about, or something else.
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

// Some client libraries return the cause of a context.
func TestAdoptWhereTheLockerReturnsTheCause(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s)
		d, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		s.hook = func(c *call) { c.err = fmt.Errorf("client: %w", dlock.ErrLost) }
		_, err = c.Adopt(t.Context(), d)
		require.NotErrorIs(t, err, dlock.ErrLost)
		require.EqualError(t, err, `dlock: adopt "k": client: lease lost`)
		s.hook = nil
		l, err := c.Adopt(t.Context(), d)
		require.NoError(t, err)
		require.NoError(t, l.Release())
	})
}
