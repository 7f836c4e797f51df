package dlock_test

import (
	"context"
	"encoding/json"
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
		s.onCall(func(c *call) {
			if c.op == "release" {
				c.err = errStore
			}
		})
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

// Break releases only the holder that was seen, and hands the lock over.
func TestBreak(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		stuck, operator := dlock.New(s, dlock.WithOwner("stuck")), dlock.New(store)
		l := acquire(t, stuck, "k")
		next := make(chan *dlock.Lease)
		go func() {
			l, err := dlock.New(store).Acquire(t.Context(), "k")
			require.NoError(t, err)
			next <- l
		}()
		synctest.Wait()
		status, err := operator.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, status.Held)
		require.Equal(t, "stuck", status.Owner)
		require.Equal(t, 1, status.Waiting)
		text, err := json.Marshal(status)
		require.NoError(t, err)
		for _, shown := range []string{fmt.Sprintf("%v %+v %#v", status, status, status), string(text)} {
			require.NotContains(t, shown, l.Token())
		}

		require.NoError(t, operator.Break(t.Context(), status))
		heir := <-next
		require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrReleased)
		require.NoError(t, heir.Renew(t.Context()))
		<-l.Done()
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.NoError(t, heir.Release())
		require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrReleased)
		require.NoError(t, operator.Close())
		require.ErrorIs(t, operator.Break(t.Context(), status), dlock.ErrClosed)
	})
}

// Break refuses a key that no Client holds.
func TestBreakRefuses(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		store.Steal("foreign", time.Hour)
		foreign, err := c.Inspect(t.Context(), "foreign")
		require.NoError(t, err)
		require.True(t, foreign.Held)
		free, err := c.Inspect(t.Context(), "free")
		require.NoError(t, err)
		n := len(s.made())
		for _, status := range []dlock.Status{{}, {Held: true, Owner: "x"}, free, foreign} {
			require.ErrorIs(t, c.Break(t.Context(), status), dlock.ErrInvalid)
		}
		require.Len(t, s.made(), n, "nothing was sent")
		ctx := ended(t)
		l := acquire(t, c, "k")
		status, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.ErrorIs(t, c.Break(ctx, status), context.Canceled)
		require.NoError(t, l.Err())
	})
}

// Break also frees a key that only a MinHold keeps.
func TestBreakOfAMinHold(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(time.Hour))
		require.NoError(t, acquire(t, c, "k").Release())
		synctest.Wait()
		status, err := c.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, status.Held)
		require.NoError(t, c.Break(t.Context(), status))
		requireFree(t, store, "k")
		time.Sleep(2 * time.Hour)
		requireFree(t, store, "k")
		require.Zero(t, c.Stats().ReleasesOwed)
	})
}

func TestStats(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		require.Zero(t, c.Stats())
		l, m := acquire(t, c, "k"), acquire(t, c, "m")
		ctx, cancel := context.WithCancel(t.Context())
		go c.With(dlock.WithOwner("x")).Acquire(ctx, "k")
		synctest.Wait()
		require.Equal(t, dlock.Stats{Leases: 2, Waiters: 1}, c.Stats())
		cancel()
		time.Sleep(time.Minute) // for what the wait owes
		require.NoError(t, m.Release())
		require.Equal(t, dlock.Stats{Leases: 1}, c.Stats())
		store.Fail(errStore)
		<-l.Done()
		synctest.Wait()
		got := c.Stats()
		require.NotZero(t, got.RenewalsFailed)
		got.RenewalsFailed = 0
		require.Equal(t, dlock.Stats{ReleasesOwed: 1, Lost: 1}, got)
		store.Fail(nil)
		time.Sleep(time.Minute)
		require.Zero(t, c.Stats().ReleasesOwed)
		n := acquire(t, c, "n")
		store.Steal("n", time.Hour)
		require.ErrorIs(t, n.Release(), dlock.ErrLost)
		require.EqualValues(t, 2, c.Stats().Lost)
		require.Zero(t, new(dlock.Client).Stats())
	})
}

// A panic in a Locker reaches the caller, and the Client remains usable.
func TestPanicInTheLocker(t *testing.T) {
	panicky := func(t *testing.T, op string, f func(t *testing.T, c *dlock.Client)) {
		t.Run(op, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				s.onCall(func(c *call) {
					if c.op == op {
						s.onCall(nil)
						if op == "try" {
							_, err := store.TryAcquire(c.ctx, c.key, c.token, c.ttl)
							require.NoError(t, err)
						}
						panic(op)
					}
				})
				f(t, dlock.New(s, dlock.WithRenewal(false)))
				synctest.Wait()
				requireFree(t, store, "k")
			})
		})
	}
	panicky(t, "try", func(t *testing.T, c *dlock.Client) {
		require.Panics(t, func() { c.TryAcquire(t.Context(), "k") })
	})
	panicky(t, "renew", func(t *testing.T, c *dlock.Client) {
		l := acquire(t, c, "k")
		require.Panics(t, func() { l.Renew(t.Context()) })
		require.NoError(t, l.Release())
	})
	panicky(t, "release", func(t *testing.T, c *dlock.Client) {
		l := acquire(t, c, "k")
		require.Panics(t, func() { l.Release() })
		require.NoError(t, l.Release())
	})
}
