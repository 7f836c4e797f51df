package dlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
)

func TestLease(t *testing.T) {
	inCases{
		"done and err": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
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
			requireErr(t, l.Err(), dlock.ErrLost, not{dlock.ErrReleased})
			<-l.Done()
		},
		"prints and logs without token": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			check := func(what string, v any, token string) {
				var out bytes.Buffer
				for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%t"} {
					fmt.Fprintf(&out, format+"\n", v)
				}
				slog.New(slog.NewTextHandler(&out, nil)).Info("x", what, v)
				slog.New(slog.NewJSONHandler(&out, nil)).Info("x", what, v)
				require.NotContains(t, out.String(), token)
				require.NotContains(t, out.String(), token[8:20])
				require.Contains(t, out.String(), fmt.Sprint(l.Fence()/10), "the fence is shown")
			}
			check("lease", l, l.Token())
			h := detach(t, l)
			text, err := h.MarshalText()
			require.NoError(t, err)
			check("detached", h, l.Token())
			check("detached", h, string(text[7:]))
			check("detached", &h, l.Token())
			type job struct{ h dlock.Detached } // fmt does not call the methods of an unexported field
			require.NotContains(t, fmt.Sprintf("%+v", job{h}), l.Token())
		},
		"lease context": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			cause := errors.New("shutting down")
			type keyType struct{}
			parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), keyType{}, "value"))
			l := acquire(t, c, "k")
			first, second := l.Context(parent), l.Context(t.Context())
			other := l.Context(context.WithValue(parent, keyType{}, "another"))
			require.Equal(t, "value", first.Value(keyType{}))
			require.Equal(t, "another", other.Value(keyType{}))
			before := runtime.NumGoroutine()
			child, stop := context.WithCancel(other)
			defer stop()
			require.Equal(t, before, runtime.NumGoroutine(), "a goroutine watches the context")
			cancel(cause)
			<-child.Done()
			require.ErrorIs(t, first.Err(), context.Canceled)
			require.Equal(t, []error{cause, cause}, []error{context.Cause(first), context.Cause(child)})
			require.NoError(t, second.Err())
			require.NoError(t, l.Err())
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
		},
		"a call is not nested any more once the lease that its ctx carries has run out": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(s, dlock.WithRenewal(false))
			l := acquire(t, c, "k")
			ctx := context.WithoutCancel(l.Context(t.Context()))
			time.Sleep(time.Until(l.Deadline()))
			next, err := c.Acquire(ctx, "k")
			require.NoError(t, err)
			require.NoError(t, next.Release())
		},
	}.run(t)
}

// However a lease has ended, and whenever its deadline is asked for, that is the end: a loop until the
// deadline ends, and a write after the end was not made in time.
func TestDeadlineAfterTheEnd(t *testing.T) {
	const ttl = 30 * time.Second
	await := func(t *testing.T, l *dlock.Lease) { <-l.Done() }
	for name, c := range map[string]struct {
		options []dlock.Option
		end     func(t *testing.T, store *memory.Locker, c *dlock.Client, l *dlock.Lease)
	}{
		"Release": {nil, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			require.NoError(t, l.Release())
		}},
		"Release that fails": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Fail(errStore)
			require.ErrorIs(t, l.Release(), errStore)
		}},
		"Release with MinHold": {[]dlock.Option{dlock.WithMinHold(time.Minute)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			require.NoError(t, l.Release())
		}},
		"Detach": {nil, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			_ = detach(t, l)
		}},
		"taken by another": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Steal("k", time.Hour)
			await(t, l)
		}},
		"Renew finds it taken": {[]dlock.Option{dlock.WithRenewal(false)}, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Steal("k", time.Hour)
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		}},
		"store out of reach": {nil, func(t *testing.T, store *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			store.Fail(errStore)
			await(t, l)
		}},
		"MaxHold": {[]dlock.Option{dlock.WithMaxHold(time.Minute)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			await(t, l)
		}},
		"no renewal": {[]dlock.Option{dlock.WithRenewal(false)}, func(t *testing.T, _ *memory.Locker, _ *dlock.Client, l *dlock.Lease) {
			await(t, l)
		}},
		"Close": {nil, func(t *testing.T, _ *memory.Locker, c *dlock.Client, l *dlock.Lease) {
			require.NoError(t, c.Close())
			await(t, l)
		}},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			client := dlock.New(s, append(c.options, dlock.WithTTL(ttl))...)
			l := acquire(t, client, "k")
			require.True(t, l.Deadline().After(time.Now()), "Deadline of a lease that is held: not in the future")
			time.Sleep(time.Second)
			c.end(t, store, client, l)
			end := time.Now()
			time.Sleep(time.Second)
			require.Equal(t, end, l.Deadline(), "Deadline a second after the end, which was: %v", l.Err())
			_ = client.Close()
		})
	}
}

// A loss has its reason as a value, and the last renewal's error.
func TestLossReasons(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []dlock.Option
		happen func(store *memory.Locker)
		reason dlock.LossReason
		err    error
	}{
		"expired":           {[]dlock.Option{dlock.WithRenewal(false)}, nil, dlock.LossExpired, nil},
		"renewals failed":   {nil, func(s *memory.Locker) { s.Fail(errStore) }, dlock.LossExpired, errStore},
		"removed":           {nil, func(s *memory.Locker) { s.Steal("k", time.Hour) }, dlock.LossRemoved, nil},
		"held for too long": {[]dlock.Option{dlock.WithMaxHold(time.Minute)}, nil, dlock.LossMaxHold, nil},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			l := acquire(t, dlock.New(s, c.opts...), "k")
			if c.happen != nil {
				c.happen(store)
			}
			<-l.Done()
			store.Fail(nil)
			lost := as[*dlock.LostError](t, l.Err())
			require.Equal(t, "k", lost.Key)
			require.Equal(t, c.reason, lost.Reason)
			require.ErrorContains(t, l.Err(), c.reason.String())
			require.ErrorIs(t, l.Err(), dlock.ErrLost)
			if c.err == nil {
				require.NoError(t, lost.Err)
			} else {
				require.ErrorIs(t, l.Err(), c.err)
				require.ErrorContains(t, l.Err(), c.err.Error())
			}
		})
	}
}

// A context of the lease for each tick keeps no memory.
func TestContextOncePerTick(t *testing.T) {
	const (
		ticks = 100_000 / israce.Slower
		most  = 100 // bytes
	)
	for name, derive := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"background":  func(context.Context) (context.Context, context.CancelFunc) { return context.Background(), func() {} },
		"cancellable": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := dlock.New(memory.New())
				l := acquire(t, c, "k")
				parent, cancel := derive(t.Context())
				defer cancel()
				before := heap()
				for range ticks {
					if err := l.Context(parent).Err(); err != nil {
						t.Fatal(err)
					}
				}
				if each := (heap() - before) / ticks; each > most {
					t.Errorf("Context keeps %d bytes per call, want at most %d", each, most)
				}
				last := l.Context(parent)
				require.NoError(t, l.Release())
				<-last.Done()
				require.ErrorIs(t, context.Cause(last), dlock.ErrReleased)
				runtime.KeepAlive(parent)
				require.NoError(t, c.Close())
			})
		})
	}
}

func TestLeaseFromContext(t *testing.T) {
	type trace struct{}
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s)
		require.NoError(t, c.Do(t.Context(), "a", func(ctx context.Context, a *dlock.Lease) error {
			b := acquire(t, c, "b")
			other := acquire(t, dlock.New(memory.New()), "a") // of another store
			ctx = context.WithValue(b.Context(ctx), trace{}, "id")
			for key, want := range map[string]*dlock.Lease{"a": a, "b": b, "c": nil} {
				got, ok := dlock.LeaseFromContext(ctx, key)
				require.Same(t, want, got)
				require.Equal(t, want != nil, ok)
			}
			got, _ := dlock.LeaseFromContext(other.Context(ctx), "a")
			require.Same(t, other, got, "the innermost")
			require.NoError(t, other.Release())
			got, _ = dlock.LeaseFromContext(other.Context(ctx), "a")
			require.Same(t, a, got, "of a lease that has ended there is none")
			_, ok := dlock.LeaseFromContext(t.Context(), "a")
			require.False(t, ok)
			require.NotContains(t, fmt.Sprint(ctx), a.Token()[10:20])
			require.Contains(t, fmt.Sprint(ctx), `.WithLease("a")`)
			return b.Release()
		}))
	})
}

// A context does not carry a lease that has ended.
func TestLeaseFromContextEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, store *memory.Locker, l *dlock.Lease){
		"released": func(t *testing.T, _ *memory.Locker, l *dlock.Lease) { require.NoError(t, l.Release()) },
		"detached": func(t *testing.T, _ *memory.Locker, l *dlock.Lease) {
			_ = detach(t, l)
		},
		"lost": func(t *testing.T, store *memory.Locker, l *dlock.Lease) {
			store.Expire("k")
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s)
			l := acquire(t, c, "k")
			ctx := context.WithoutCancel(l.Context(t.Context()))
			_, ok := dlock.LeaseFromContext(ctx, "k")
			require.True(t, ok)
			end(t, store, l)
			_, ok = dlock.LeaseFromContext(ctx, "k")
			require.False(t, ok)
			next, err := c.Acquire(ctx, "k") // it waits for the taker of a detached lease
			require.NoError(t, err)
			require.NoError(t, next.Release())
		})
	}
}

// A lookup costs no allocation.
func TestLeaseFromContextIsCheap(t *testing.T) {
	c := dlock.New(memory.New())
	l, m := acquire(t, c, "k"), acquire(t, c, "l")
	defer l.Release()
	defer m.Release()
	ctx := m.Context(l.Context(t.Context()))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if got, _ := dlock.LeaseFromContext(ctx, "k"); got != l {
			t.Fatal("not found")
		}
	}))
}

// An Acquire that would wait for its own caller fails at once, and sends nothing.
func TestNestedAcquire(t *testing.T) {
	waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		c := dlock.New(l)
		require.NoError(t, c.Do(t.Context(), "a", func(ctx context.Context, _ *dlock.Lease) error {
			return c.Do(ctx, "b", func(ctx context.Context, _ *dlock.Lease) error {
				ctx, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				s.forget()
				start := time.Now()
				for _, key := range []string{"a", "b"} {
					for name, err := range map[string]error{
						"Acquire": errOf(c.Acquire(ctx, key)),
						"With":    errOf(c.With(dlock.WithTTL(time.Minute)).Acquire(ctx, key)),
						"MaxWait": errOf(c.With(dlock.WithMaxWait(time.Minute)).Acquire(ctx, key)),
						"Do":      c.Do(ctx, key, func(context.Context, *dlock.Lease) error { return errors.New("called") }),
					} {
						require.ErrorIs(t, err, dlock.ErrNested, name)
						requireErr(t, err, not{dlock.ErrHeld}, exactly(fmt.Sprintf("dlock: acquire %q: already held by the caller", key)))
					}
				}
				require.Empty(t, s.made())
				requireErr(t, errOf(c.TryAcquire(ctx, "a")), dlock.ErrHeld, not{dlock.ErrNested})
				require.ErrorIs(t, errOf(c.With(dlock.WithMaxWait(0)).Acquire(ctx, "a")), dlock.ErrHeld)
				require.ErrorIs(t, errOf(dlock.New(l, dlock.WithMaxWait(time.Second)).Acquire(ctx, "a")), dlock.ErrHeld, "another Client may have another store")
				require.Equal(t, time.Second, time.Since(start))
				lease, err := c.Acquire(ctx, "other")
				require.NoError(t, err)
				return lease.Release()
			})
		}))
	})
}

// The root is asked once for a value, however many leases there are on the way.
func TestValueOfNestedLeaseContexts(t *testing.T) {
	c := dlock.New(memory.New())
	asked := 0
	var ctx context.Context = countingValues{t.Context(), &asked}
	for i := range 16 {
		l := acquire(t, c, fmt.Sprint(i))
		defer l.Release()
		ctx = l.Context(ctx)
	}
	asked = 0
	ctx.Value("key")
	require.Equal(t, 1, asked)
}

type countingValues struct {
	context.Context
	asked *int
}

func (c countingValues) Value(key any) any {
	*c.asked++
	return c.Context.Value(key)
}

// A parent may ask the lease, also while the lease ends.
func TestParentThatAsksTheLease(t *testing.T) {
	l := acquire(t, dlock.New(memory.New()), "k")
	done := make(chan struct{})
	go func() {
		defer close(done)
		parent := asking{t.Context(), l}
		ctx := l.Context(parent)
		require.NoError(t, ctx.Err())
		require.NoError(t, l.Release())
		require.ErrorIs(t, context.Cause(ctx), dlock.ErrReleased)
		require.ErrorIs(t, context.Cause(l.Context(parent)), dlock.ErrReleased)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("deadlock")
	}
}

// asking is a context that asks a lease whenever it is asked.
type asking struct {
	context.Context
	lease *dlock.Lease
}

func (a asking) Done() <-chan struct{} {
	_ = a.lease.Done()
	return a.Context.Done()
}

func (a asking) Err() error {
	_ = a.lease.Done()
	return a.Context.Err()
}

func (a asking) Value(key any) any {
	_ = a.lease.Done()
	return a.Context.Value(key)
}

func (a asking) AfterFunc(f func()) func() bool {
	stop := context.AfterFunc(a.Context, f)
	return func() bool {
		_ = a.lease.Done()
		return stop()
	}
}

func TestDetach(t *testing.T) {
	inCases{
		"detach and adopt": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			giver := acquire(t, dlock.New(s), "k\x00é")
			work := giver.Context(t.Context())
			time.Sleep(5 * time.Second)
			deadline := giver.Deadline()
			h := detach(t, giver)
			require.Error(t, work.Err())
			require.Equal(t, dlock.ErrReleased, giver.Err())
			require.ErrorIs(t, errOf(giver.Detach()), dlock.ErrReleased)
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
			taker := adopt(t, c, sent)
			require.Equal(t, giver.Key(), taker.Key())
			require.Equal(t, giver.Token(), taker.Token())
			require.Equal(t, giver.Fence()+1, taker.Fence())
			require.Equal(t, time.Now().Add(time.Minute-602*time.Millisecond), taker.Deadline())
			time.Sleep(time.Hour)
			require.NoError(t, taker.Err())
			require.NoError(t, giver.Release())
			require.Empty(t, s.made("release"), "Release of a detached lease sends nothing")
			requireErr(t, errOf(c.Adopt(t.Context(), sent)), dlock.ErrInvalid, "adopted already")
			require.NoError(t, taker.Release())
			requireFree(t, store, "k\x00é")
			require.ErrorIs(t, errOf(c.Adopt(t.Context(), sent)), dlock.ErrLost, "the lease is gone")
		},
		"eighth detach in a row is refused": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "k")
			first := l.Fence()
			for i := int64(1); i <= 7; i++ {
				h := detach(t, l)
				l = adopt(t, c, h)
				require.Equal(t, first+i, l.Fence())
			}
			requireErr(t, errOf(l.Detach()), dlock.ErrInvalid, "passed on 7 times")
			require.NoError(t, l.Err(), "it is still held")
			require.NoError(t, l.Release())
			next := acquire(t, c, "k")
			require.Greater(t, next.Fence(), l.Fence())
			require.NoError(t, next.Release())
		},
		// After a wait a lease is granted for 5 s at first. Its taker still has the full TTL, or the
		// remaining time if the store does not answer.
		"detach right after a wait": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			first := acquire(t, dlock.New(store), "k")
			time.AfterFunc(time.Second, func() { first.Release() })
			l := acquire(t, dlock.New(s), "k")
			require.Less(t, time.Until(l.Deadline()), 5*time.Second)
			d := detach(t, l)
			require.Greater(t, time.Until(d.Deadline()), 29*time.Second)
			time.Sleep(29 * time.Second)
			heir := adopt(t, dlock.New(s), d)
			time.AfterFunc(time.Second, func() { heir.Release() })
			l = acquire(t, dlock.New(s), "k")
			store.Delay(time.Hour)
			start := time.Now()
			d = detach(t, l)
			require.Equal(t, time.Second, time.Since(start))
			require.Greater(t, time.Until(d.Deadline()), 3*time.Second)
			store.Delay(0)
		},
		"detach of lost lease": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			l := acquire(t, dlock.New(s, dlock.WithRenewal(false)), "k")
			time.Sleep(30 * time.Second)
			require.ErrorIs(t, errOf(l.Detach()), dlock.ErrLost)
		},
		"nobody adopts": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			l := acquire(t, dlock.New(s), "k")
			h := detach(t, l)
			time.Sleep(30 * time.Second)
			requireFree(t, store, "k")
			require.ErrorIs(t, errOf(dlock.New(s).Adopt(t.Context(), h)), dlock.ErrLost)
			require.NoError(t, acquire(t, dlock.New(s), "k").Release())
		},
		"the taker was not reached: the giver takes the lease back, and releases it": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			d := detach(t, acquire(t, c, "k"))
			requireHeld(t, store, "k", s.made("try")[0].token)
			require.NoError(t, adopt(t, c, d).Release())
			requireFree(t, store, "k")
		},
		"adopt may be repeated after an error": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			h := detach(t, acquire(t, c, "k"))
			store.FailReplies(errStore)
			requireErr(t, errOf(c.Adopt(t.Context(), h)), errStore, `dlock: adopt "k"`)
			store.FailReplies(nil)
			time.Sleep(time.Second)
			l := adopt(t, c, h)
			require.Empty(t, s.made("release"))
			require.NoError(t, l.Release())
		},
		"adopt that answers late": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			h := detach(t, acquire(t, c, "k"))
			s.first("renew", func(c *call) { c.delay = 30 * time.Second })
			requireErr(t, errOf(c.Adopt(t.Context(), h)), "took too much of the TTL", not{dlock.ErrLost})
		},
		"adopt deadline counts from sending": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			h := detach(t, acquire(t, c, "k"))
			s.onCall(func(c *call) { c.delay = time.Second })
			start := time.Now()
			l := adopt(t, c, h)
			require.Equal(t, start.Add(30*time.Second-drift), l.Deadline())
			require.NoError(t, l.Release())
		},
		"adopt with fence": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c := dlock.New(noFences{s.Forward})
			h := detach(t, acquire(t, c, "k"))
			require.ErrorIs(t, errOf(c.With(dlock.WithFence(true)).Adopt(t.Context(), h)), errors.ErrUnsupported)
			l := adopt(t, c, h)
			require.Zero(t, l.Fence(), "a store without fences has none after a Detach either")
			require.NoError(t, l.Release())
		},
		"bad detached": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			requireErr(t, errOf(c.Adopt(t.Context(), dlock.Detached{})), dlock.ErrInvalid, "Detached: empty")
			require.ErrorIs(t, errOf(dlock.Detached{}.MarshalText()), dlock.ErrInvalid)
			h := detach(t, acquire(t, c, "k"))
			text, err := h.MarshalText()
			require.NoError(t, err)
			for i := range text {
				require.ErrorIs(t, new(dlock.Detached).UnmarshalText(text[:i]), dlock.ErrInvalid)
				changed := bytes.Clone(text)
				changed[i] ^= 1
				require.ErrorIs(t, new(dlock.Detached).UnmarshalText(changed), dlock.ErrInvalid, "byte %d", i)
			}
			for _, around := range []string{"\n", "\r\n", " ", "\t\n "} {
				var got dlock.Detached
				require.NoError(t, got.UnmarshalText([]byte(around+string(text)+around)))
				require.Equal(t, h, got)
				require.ErrorIs(t, got.UnmarshalText([]byte(around)), dlock.ErrInvalid)
			}
			err = new(dlock.Detached).UnmarshalText([]byte("my-secret"))
			requireErr(t, err, "invalid Detached of 9 bytes: does not begin with dlock1-", without("my-secret"))
			require.ErrorIs(t, errOf(c.With(dlock.WithTTL(0)).Adopt(t.Context(), h)), dlock.ErrInvalid)
			require.Empty(t, s.made("renew"))
		},
	}.run(t)
}

// MaxHold and MinHold count from the grant, through all holders, whose clocks differ.
func TestHoldCountsFromTheGrant(t *testing.T) {
	pass := func(t *testing.T, c *dlock.Client, l *dlock.Lease) *dlock.Lease {
		d := detach(t, l)
		text, err := d.MarshalText()
		require.NoError(t, err)
		var sent dlock.Detached
		require.NoError(t, sent.UnmarshalText(text))
		next := adopt(t, c, sent)
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
