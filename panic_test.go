package dlock_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// A panic in a Locker reaches the caller, and the Client remains usable.
func TestPanicInTheLocker(t *testing.T) {
	panicky := func(t *testing.T, op string, f func(t *testing.T, c *dlock.Client)) {
		t.Run(op, func(t *testing.T) {
			in(t, func(t *testing.T, store *memory.Locker, s *spy) {
				s.hook = func(c *call) {
					if c.op == op {
						s.hook = nil
						if op == "try" {
							_, err := store.TryAcquire(c.ctx, c.key, c.token, c.ttl)
							require.NoError(t, err)
						}
						panic(op)
					}
				}
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
