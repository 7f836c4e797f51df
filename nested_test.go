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

// The end of a lease ends what its contexts carry.
func TestLeaseFromContextEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, store *memory.Locker, l *dlock.Lease){
		"released": func(t *testing.T, _ *memory.Locker, l *dlock.Lease) { require.NoError(t, l.Release()) },
		"detached": func(t *testing.T, _ *memory.Locker, l *dlock.Lease) {
			_, err := l.Detach()
			require.NoError(t, err)
		},
		"lost": func(t *testing.T, store *memory.Locker, l *dlock.Lease) {
			store.Expire("k")
			require.ErrorIs(t, l.Renew(t.Context()), dlock.ErrLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
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
		})
	}
}

// An Acquire that would wait for its own caller fails at once, and sends nothing.
func TestNestedAcquire(t *testing.T) {
	waiting(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		c := dlock.New(l)
		require.NoError(t, c.Do(t.Context(), "a", func(ctx context.Context, _ *dlock.Lease) error {
			return c.Do(ctx, "b", func(ctx context.Context, _ *dlock.Lease) error {
				ctx, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				s.forget()
				start := time.Now()
				for name, f := range map[string]func(key string) error{
					"Acquire": func(key string) error { _, err := c.Acquire(ctx, key); return err },
					"With":    func(key string) error { _, err := c.With(dlock.WithTTL(time.Minute)).Acquire(ctx, key); return err },
					"MaxWait": func(key string) error { _, err := c.With(dlock.WithMaxWait(time.Minute)).Acquire(ctx, key); return err },
					"Do": func(key string) error {
						return c.Do(ctx, key, func(context.Context, *dlock.Lease) error { return errors.New("called") })
					},
				} {
					for _, key := range []string{"a", "b"} {
						err := f(key)
						require.ErrorIs(t, err, dlock.ErrNested, name)
						require.NotErrorIs(t, err, dlock.ErrHeld)
						require.EqualError(t, err, fmt.Sprintf("dlock: acquire %q: already held by the caller", key))
					}
				}
				require.Empty(t, s.made())

				_, err := c.TryAcquire(ctx, "a")
				require.ErrorIs(t, err, dlock.ErrHeld)
				require.NotErrorIs(t, err, dlock.ErrNested)
				_, err = c.With(dlock.WithMaxWait(0)).Acquire(ctx, "a")
				require.ErrorIs(t, err, dlock.ErrHeld)
				_, err = dlock.New(l, dlock.WithMaxWait(time.Second)).Acquire(ctx, "a")
				require.ErrorIs(t, err, dlock.ErrHeld, "another Client may have another store")
				require.Equal(t, time.Second, time.Since(start))

				lease, err := c.Acquire(ctx, "other")
				require.NoError(t, err)
				return lease.Release()
			})
		}))
	})
}

// A nested call at the end of the lease that its ctx carries: it is not nested any more.
func TestNestedWithALeaseThatHasRunOut(t *testing.T) {
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		c := dlock.New(s, dlock.WithRenewal(false))
		l := acquire(t, c, "k")
		ctx := context.WithoutCancel(l.Context(t.Context()))
		time.Sleep(time.Until(l.Deadline()))
		next, err := c.Acquire(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, next.Release())
	})
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
