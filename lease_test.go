package dlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestDoneAndErr(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		select {
		case <-l.Done():
			t.Fatal("done while it is held")
		default:
		}
		require.NoError(t, l.Err())
		require.NoError(t, l.Release())
		<-l.Done()
		require.Equal(t, dlock.ErrReleased, l.Err())

		l = acquire(t, c, "k")
		store.Steal("k", time.Hour)
		<-l.Done()
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		require.NotErrorIs(t, l.Err(), dlock.ErrReleased)
		<-l.Done()
	})
}

func TestLeaseContext(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		cause := errors.New("shutting down")
		type keyType struct{}
		parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), keyType{}, "value"))

		l := acquire(t, c, "k")
		first, second := l.Context(parent), l.Context(t.Context())
		require.Equal(t, "value", first.Value(keyType{}))
		cancel(cause)
		require.ErrorIs(t, first.Err(), context.Canceled)
		require.Equal(t, cause, context.Cause(first))
		require.NoError(t, second.Err())
		require.NoError(t, l.Release())
		require.Equal(t, context.Canceled, second.Err(), "at once, when Release has returned")
		require.Equal(t, dlock.ErrReleased, context.Cause(second))
		require.Equal(t, dlock.ErrReleased, context.Cause(l.Context(t.Context())), "of a lease that has ended")
		require.Equal(t, cause, context.Cause(l.Context(parent)), "of a parent that has ended")

		l = acquire(t, c, "k")
		work := l.Context(t.Context())
		store.Steal("k", time.Hour)
		<-work.Done()
		require.ErrorIs(t, context.Cause(work), dlock.ErrLost)
	})
}

func TestPrintsAndLogsWithoutToken(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		check := func(what string, v any, token string) {
			var out bytes.Buffer
			for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
				fmt.Fprintf(&out, format+"\n", v)
			}
			slog.New(slog.NewTextHandler(&out, nil)).Info("x", what, v)
			slog.New(slog.NewJSONHandler(&out, nil)).Info("x", what, v)
			require.NotContains(t, out.String(), token)
			require.NotContains(t, out.String(), token[8:20])
			require.Contains(t, out.String(), fmt.Sprint(l.Fence()/10), "the fence is shown")
		}
		check("lease", l, l.Token())
		h, err := l.Detach()
		require.NoError(t, err)
		text, err := h.MarshalText()
		require.NoError(t, err)
		check("detached", h, l.Token())
		check("detached", h, string(text[7:]))
		check("detached", &h, l.Token())
	})
}

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
		require.Len(t, s.made("release"), 1)
	})
}

// Work that detaches its lease: its context ends, and Do returns what it returns.
func TestDoWithDetachedLease(t *testing.T) {
	wrong := errors.New("not delivered")
	for _, want := range []error{nil, wrong} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			var d dlock.Detached
			c := dlock.New(s)
			require.Equal(t, want, c.Do(t.Context(), "k", func(ctx context.Context, l *dlock.Lease) (err error) {
				d, err = l.Detach()
				require.NoError(t, err)
				require.Equal(t, dlock.ErrReleased, context.Cause(ctx))
				return want
			}))
			require.Empty(t, s.made("release"))
			l, err := c.Adopt(t.Context(), d)
			require.NoError(t, err)
			require.NoError(t, l.Release())
		})
	}
}

// The taker was not reached: the giver takes the lease back, and releases it.
func TestDetachedThatCouldNotBeSent(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		d, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		requireHeld(t, store, "k", s.made("try")[0].token)
		back, err := c.Adopt(t.Context(), d)
		require.NoError(t, err)
		require.NoError(t, back.Release())
		requireFree(t, store, "k")
	})
}

// MaxHold and MinHold count from the grant, through all holders, whose clocks differ.
func TestHoldCountsFromTheGrant(t *testing.T) {
	pass := func(t *testing.T, c *dlock.Client, l *dlock.Lease) *dlock.Lease {
		d, err := l.Detach()
		require.NoError(t, err)
		text, err := d.MarshalText()
		require.NoError(t, err)
		var sent dlock.Detached
		require.NoError(t, sent.UnmarshalText(text))
		next, err := c.Adopt(t.Context(), sent)
		require.NoError(t, err)
		return next
	}
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMaxHold(time.Minute))
		start, l := time.Now(), acquire(t, c, "k")
		for range 3 {
			time.Sleep(15 * time.Second)
			l = pass(t, c, l)
		}
		<-l.Done()
		require.ErrorIs(t, l.Err(), dlock.ErrLost)
		held := time.Since(start)
		require.LessOrEqual(t, held, 90*time.Second, "at most a TTL after MaxHold")
		require.GreaterOrEqual(t, held, time.Minute)
	})
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMaxHold(time.Minute))
		first := acquire(t, dlock.New(s), "k")
		time.Sleep(2 * time.Minute)
		start, l := time.Now(), pass(t, c, first)
		require.Error(t, l.Renew(t.Context()))
		<-l.Done()
		require.InDelta(t, 29.698, time.Since(start).Seconds(), 0.001, "one TTL, not renewed")
	})
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithMinHold(time.Minute))
		start, l := time.Now(), acquire(t, c, "k")
		time.Sleep(20 * time.Second)
		require.NoError(t, pass(t, c, l).Release())
		next := acquire(t, dlock.New(store), "k")
		require.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, next.Release())
	})
}

func TestDetachAndAdopt(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		giver := acquire(t, dlock.New(s), "k\x00é")
		work := giver.Context(t.Context())
		time.Sleep(5 * time.Second)
		deadline := giver.Deadline()
		h, err := giver.Detach()
		require.NoError(t, err)
		require.Error(t, work.Err())
		require.Equal(t, dlock.ErrReleased, giver.Err())
		_, err = giver.Detach()
		require.ErrorIs(t, err, dlock.ErrReleased)

		text, err := h.MarshalText()
		require.NoError(t, err)
		require.Regexp(t, "^[ -~]+$", string(text))
		var sent dlock.Detached
		require.NoError(t, sent.UnmarshalText(text))
		require.Equal(t, h, sent)
		require.Equal(t, "k\x00é", sent.Key())
		require.Equal(t, giver.Fence()+1, sent.Fence())
		require.Equal(t, deadline.UnixMilli(), sent.Deadline().UnixMilli())
		var none dlock.Detached
		require.True(t, none.Key() == "" && none.Fence() == 0 && none.Deadline().IsZero())

		c := dlock.New(s, dlock.WithTTL(time.Minute))
		taker, err := c.Adopt(t.Context(), sent)
		require.NoError(t, err)
		require.Equal(t, giver.Key(), taker.Key())
		require.Equal(t, giver.Token(), taker.Token())
		require.Equal(t, giver.Fence()+1, taker.Fence())
		require.Equal(t, time.Now().Add(time.Minute-602*time.Millisecond), taker.Deadline())
		time.Sleep(time.Hour)
		require.NoError(t, taker.Err())

		require.NoError(t, giver.Release())
		require.Empty(t, s.made("release"), "Release of a detached lease sends nothing")
		_, err = c.Adopt(t.Context(), sent)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "adopted already")
		require.NoError(t, taker.Release())
		requireFree(t, store, "k\x00é")
		_, err = c.Adopt(t.Context(), sent)
		require.ErrorIs(t, err, dlock.ErrLost, "the lease is gone")
	})
}

func TestNobodyAdopts(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s), "k")
		h, err := l.Detach()
		require.NoError(t, err)
		time.Sleep(30 * time.Second)
		requireFree(t, store, "k")
		_, err = dlock.New(s).Adopt(t.Context(), h)
		require.ErrorIs(t, err, dlock.ErrLost)
		require.NoError(t, acquire(t, dlock.New(s), "k").Release())
	})
}

func TestEighthDetachInARowIsRefused(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		l := acquire(t, c, "k")
		first := l.Fence()
		for i := int64(1); i <= 7; i++ {
			h, err := l.Detach()
			require.NoError(t, err)
			l, err = c.Adopt(t.Context(), h)
			require.NoError(t, err)
			require.Equal(t, first+i, l.Fence())
		}
		_, err := l.Detach()
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "7 in a row")
		require.NoError(t, l.Err(), "it is still held")
		require.NoError(t, l.Release())
		next := acquire(t, c, "k")
		require.Greater(t, next.Fence(), l.Fence())
		require.NoError(t, next.Release())
	})
}

func TestAdoptMayBeRepeatedAfterAnError(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		h, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		store.FailReplies(errStore)
		_, err = c.Adopt(t.Context(), h)
		require.ErrorIs(t, err, errStore)
		require.ErrorContains(t, err, `dlock: adopt "k"`)
		store.FailReplies(nil)
		time.Sleep(time.Second)
		l, err := c.Adopt(t.Context(), h)
		require.NoError(t, err)
		require.Empty(t, s.made("release"))
		require.NoError(t, l.Release())
	})
}

func TestBadDetached(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		_, err := c.Adopt(t.Context(), dlock.Detached{})
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "Detached: empty")
		_, err = dlock.Detached{}.MarshalText()
		require.ErrorIs(t, err, dlock.ErrInvalid)

		h, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		text, err := h.MarshalText()
		require.NoError(t, err)
		for i := range text {
			require.ErrorIs(t, new(dlock.Detached).UnmarshalText(text[:i]), dlock.ErrInvalid)
			changed := bytes.Clone(text)
			changed[i] ^= 1
			require.ErrorIs(t, new(dlock.Detached).UnmarshalText(changed), dlock.ErrInvalid, "byte %d", i)
		}
		err = new(dlock.Detached).UnmarshalText([]byte("my-secret"))
		require.ErrorContains(t, err, "invalid Detached of 9 bytes: does not begin with dlock1-")
		require.NotContains(t, err.Error(), "my-secret")
		_, err = c.With(dlock.WithTTL(0)).Adopt(t.Context(), h)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.Empty(t, s.made("renew"))
	})
}

func FuzzDetached(f *testing.F) {
	f.Add([]byte("dlock1-AYCAgA"))
	f.Add([]byte("dlock1-AYCAgA"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, text []byte) {
		var h dlock.Detached
		if err := h.UnmarshalText(text); err != nil {
			require.ErrorIs(t, err, dlock.ErrInvalid)
			return
		}
		again, err := h.MarshalText()
		require.NoError(t, err)
		require.Equal(t, string(bytes.TrimSpace(text)), string(again))
	})
}

func TestAdoptWithFence(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(noFences{s.Forward})
		h, err := acquire(t, c, "k").Detach()
		require.NoError(t, err)
		_, err = c.With(dlock.WithFence(true)).Adopt(t.Context(), h)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		l, err := c.Adopt(t.Context(), h)
		require.NoError(t, err)
		require.Zero(t, l.Fence(), "a store without fences has none after a Detach either")
		require.NoError(t, l.Release())
	})
}

func TestDetachOfLostLease(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
		time.Sleep(30 * time.Second)
		_, err := l.Detach()
		require.ErrorIs(t, err, dlock.ErrLost)
		synctest.Wait()
	})
}

// A lease that was waited for is granted for 5 s at first. Its taker has the full TTL all
// the same, or what is left if the store does not answer.
func TestDetachRightAfterAWait(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		first := acquire(t, dlock.New(store), "k")
		time.AfterFunc(time.Second, func() { first.Release() })
		l := acquire(t, dlock.New(s), "k")
		require.Less(t, time.Until(l.Deadline()), 5*time.Second)
		d, err := l.Detach()
		require.NoError(t, err)
		require.Greater(t, time.Until(d.Deadline()), 29*time.Second)
		time.Sleep(29 * time.Second)
		heir, err := dlock.New(s).Adopt(t.Context(), d)
		require.NoError(t, err)

		time.AfterFunc(time.Second, func() { heir.Release() })
		l = acquire(t, dlock.New(s), "k")
		store.Delay(time.Hour)
		start := time.Now()
		d, err = l.Detach()
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(start))
		require.Greater(t, time.Until(d.Deadline()), 3*time.Second)
		store.Delay(0)
		time.Sleep(time.Hour)
	})
}
