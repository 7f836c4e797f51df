package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// ours are the errors of a call itself. They must not come from the cause of its context,
// which is about another lease or Client.
var ours = []error{dlock.ErrHeld, dlock.ErrUnavailable, dlock.ErrNested, dlock.ErrLost, dlock.ErrReleased, dlock.ErrInvalid, dlock.ErrClosed}

// lostContext returns a context that ends with the loss of another lease at once, or at
// the next call to the store.
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
			c.hang()
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
			d := detach(t, acquire(t, c(s), "k"))
			_, err := c(s).Adopt(ctx(), d)
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
					err := f(t, s, func() context.Context { return lostContext(t, s, early) })
					require.ErrorIs(t, err, context.Canceled)
					for _, our := range ours {
						require.NotErrorIs(t, err, our)
					}
					if early {
						require.ErrorContains(t, err, `"other": lease lost`, "the cause is shown as text")
					}
					time.Sleep(time.Hour)
				})
			})
		}
	}
}

// The error of a wait that such a context ends still matches ErrHeld, and shows the cause.
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

// Some client libraries return the cause of a context.
func TestAdoptWhereTheLockerReturnsTheCause(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		c := dlock.New(s)
		d := detach(t, acquire(t, c, "k"))
		s.hook = func(c *call) { c.err = fmt.Errorf("client: %w", dlock.ErrLost) }
		_, err := c.Adopt(t.Context(), d)
		require.NotErrorIs(t, err, dlock.ErrLost)
		require.EqualError(t, err, `dlock: adopt "k": store unavailable: no answer: client: lease lost`)
		s.hook = nil
		l := adopt(t, c, d)
		require.NoError(t, l.Release())
	})
}

// Renew with a Locker that returns the cause of its ctx, which another lease ended.
func TestRenewWhereTheLockerReturnsTheCause(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(single{s}, dlock.WithTTL(30*time.Second))
		var n atomic.Int32
		other := acquire(t, c, "other")
		l := acquire(t, c, "k")
		s.hook = func(c *call) {
			if c.op == "renew" && c.key == "k" && c.ctx.Done() != nil && n.Add(1) == 1 {
				<-c.ctx.Done()
				c.err = context.Cause(c.ctx)
			}
		}
		ctx := other.Context(t.Context())
		time.AfterFunc(time.Second, func() { store.Expire("other") })
		err := l.Renew(ctx)
		require.ErrorIs(t, other.Err(), dlock.ErrLost)
		require.Error(t, err)
		require.NotErrorIs(t, err, dlock.ErrLost)
		require.NoError(t, l.Err())
		require.NoError(t, c.Close())
	})
}

func TestCancelledCallsMatchTheContextError(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithRenewal(false))
		l := acquire(t, c, "k")
		h := detach(t, acquire(t, c, "h"))
		s.hook = func(c *call) {
			if c.op == "renew" {
				<-c.ctx.Done()
				c.err = errors.New("read tcp: i/o timeout") // what a client library may say
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Renew(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error("Renew: not the ctx's error")
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Adopt(ctx, h)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error("Adopt: not the ctx's error")
		}
		require.NoError(t, l.Release())
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
