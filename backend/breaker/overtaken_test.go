package breaker_test

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

// A slowReply delays the requests of attempts and the replies of renewals, and fails attempts and
// inspections.
type slowReply struct {
	hooked
	try, renew atomic.Int64
	attempts   atomic.Pointer[error]
}

func newSlowReply(m *memory.Locker) *slowReply {
	s := new(slowReply)
	s.hooked = hooked{dlock.Forward{Locker: m}, func(op string) error {
		if op == "try" {
			time.Sleep(time.Duration(s.try.Load()))
		}
		if err := s.attempts.Load(); err != nil && (op == "try" || op == "inspect") {
			return *err
		}
		return nil
	}, func(op string) error {
		if op == "renew" {
			time.Sleep(time.Duration(s.renew.Load()))
		}
		return nil
	}}
	return s
}

// The reply of a renewal, overtaken by the Release of the same lease, must not replace what the
// breaker knows of the next holder.
func TestOvertakenRenewal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newSlowReply(memory.New())
		b := breaker.New(s, breaker.WithDegradation(breaker.Degradation{After: 30 * time.Second, Keys: all}))
		first := dlock.New(b, dlock.WithTTL(3*time.Second))
		second := dlock.New(b, dlock.WithTTL(30*time.Second), dlock.WithRenewal(false))
		l1, err := first.Acquire(t.Context(), "k")
		require.NoError(t, err)
		got := make(chan *dlock.Lease, 1)
		go func() {
			l, err := second.Acquire(t.Context(), "k")
			require.NoError(t, err)
			got <- l
		}()
		time.Sleep(time.Second)
		gone := errors.New("gone")
		s.attempts.Store(&gone)
		for !b.State().Open {
			_, _ = b.TryAcquire(t.Context(), "other", "t", time.Second)
		}
		time.Sleep(35 * time.Second)
		_, _ = b.TryAcquire(t.Context(), "other", "t", time.Second)
		require.NoError(t, l1.Err())
		s.renew.Store(int64(500 * time.Millisecond))
		done := make(chan error, 1)
		go func() { done <- l1.Renew(t.Context()) }()
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, l1.Release())
		l2 := <-got
		require.False(t, l2.Degraded())
		<-done
		time.Sleep(4 * time.Second)
		require.NoError(t, l2.Err())
		l3, err := first.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrHeld, "%v until %v, and %v", l2, l2.Deadline(), l3)
		s.attempts.Store(nil)
		require.NoError(t, l2.Release())
		require.NoError(t, first.Close())
		require.NoError(t, second.Close())
	})
}

// The release of a degraded lease that the store may have is not "no effect" if only the store's
// part failed: the next release that is answered would take the lease for lost.
func TestReleaseOfALeaseThatTheStoreMayHave(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		s := newSlowReply(m)
		b := breaker.New(s, breaker.WithDegradation(breaker.Degradation{After: 10 * time.Second, Keys: all}))
		locks := dlock.New(b, dlock.WithTTL(10*time.Second))
		gone := error(&net.OpError{Op: "dial", Err: errors.New("refused")})
		s.attempts.Store(&gone)
		for !b.State().Open {
			_, _ = b.TryAcquire(t.Context(), "other", "t", time.Second)
		}
		for range 11 {
			time.Sleep(time.Second)
			_, _ = b.TryAcquire(t.Context(), "other", "t", time.Second)
			synctest.Wait()
		}
		l, err := locks.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, l.Degraded())
		s.attempts.Store(nil)
		for b.State().Open {
			time.Sleep(time.Second)
			_, _ = b.TryAcquire(t.Context(), "other", "t", time.Second)
			synctest.Wait()
		}
		m.Fail(gone)                             // away again
		require.NoError(t, l.Renew(t.Context())) // asks the store
		require.Error(t, l.Release())
		m.Fail(nil)
		require.NoError(t, l.Release(), "nobody else has held the key")
		require.Zero(t, locks.Stats().Lost)
		require.NoError(t, locks.Close())
	})
}

// A degraded lease is released while its renewal takes the key in the store: the release waits for
// that, so that nothing is left there.
func TestReleaseDuringMove(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := memory.New()
		s := newSlowReply(m)
		b := breaker.New(s, breaker.WithDegradation(breaker.Degradation{After: 10 * time.Second, Keys: all}))
		locks := dlock.New(b, dlock.WithTTL(time.Minute))
		s.attempts.Store(&[]error{errStore}[0])
		for range 12 {
			for range 5 {
				_, _ = b.TryAcquire(t.Context(), "other", "t", time.Second)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		l, err := locks.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, l.Degraded())
		s.attempts.Store(nil)
		for b.State().Open {
			time.Sleep(time.Second)
			_, _ = b.TryAcquire(t.Context(), "k", "t", time.Second)
			synctest.Wait()
		}
		s.try.Store(int64(time.Second))
		go func() { _ = l.Renew(t.Context()) }()
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, l.Release())
		s.try.Store(0)
		hold, err := m.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, hold.Held, "%+v", hold)
		require.NoError(t, locks.Close())
	})
}
