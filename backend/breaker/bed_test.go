package breaker_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errStore = errors.New("i/o timeout")
	errDial  = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
)

// An away is a Locker that makes calls fail as the test says.
type away struct {
	dlock.Forward
	err   error // of every attempt and Inspect; nil: it is made
	hang  bool  // until ctx ends
	end   error // of every wait, when its ctx ends
	look  error // of every Inspect; nil: as the other calls
	renew error // of every Renew and RenewBatch

	calls, looks atomic.Int64 // of TryAcquire, TryAcquireSet and Acquire; of Inspect

	mu             sync.Mutex
	delay          time.Duration // of TryAcquire, until ctx ends
	reply          error         // in place of its answer
	renewed        time.Duration // delays the answer of Renew
	inFlight, most int           // calls of TryAcquire
}

func (a *away) fail(ctx context.Context) error {
	if a.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return a.err
}

// slow delays attempts from now on, and loses their answers if reply is not nil.
func (a *away) slow(delay time.Duration, reply error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.delay, a.reply = delay, reply
}

func (a *away) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a.mu.Lock()
	a.inFlight++
	a.most = max(a.most, a.inFlight)
	delay := a.delay
	a.mu.Unlock()
	if delay > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
	a.mu.Lock()
	a.inFlight--
	reply := a.reply
	a.mu.Unlock()
	a.calls.Add(1)
	if err := a.fail(ctx); err != nil {
		return dlock.Attempt{}, cmp.Or(ctx.Err(), err)
	}
	attempt, err := a.Forward.TryAcquire(ctx, key, token, ttl)
	return attempt, cmp.Or(err, reply)
}

func (a *away) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	a.calls.Add(1)
	if err := cmp.Or(ctx.Err(), a.fail(ctx)); err != nil {
		return nil, err
	}
	return a.Locker.(dlock.SetAcquirer).TryAcquireSet(ctx, set)
}

func (a *away) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	a.calls.Add(1)
	if a.end != nil {
		<-ctx.Done()
		return dlock.Attempt{}, a.end
	}
	if err := a.fail(ctx); err != nil {
		return dlock.Attempt{}, err
	}
	return a.Forward.Acquire(ctx, key, token, ttl)
}

func (a *away) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if a.renew != nil {
		return false, a.renew
	}
	held, err := a.Forward.Renew(ctx, key, token, ttl)
	a.mu.Lock()
	late := a.renewed
	a.mu.Unlock()
	time.Sleep(late)
	return held, err
}

func (a *away) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if a.renew != nil {
		return nil, a.renew
	}
	return a.Forward.RenewBatch(ctx, batch)
}

func (a *away) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	a.looks.Add(1)
	if a.look != nil {
		return dlock.Hold{}, a.look
	}
	if err := a.fail(ctx); err != nil {
		return dlock.Hold{}, err
	}
	return a.Forward.Inspect(ctx, key)
}

// A bed is a breaker around a store in virtual time.
type bed struct {
	*testing.T
	*breaker.Locker
	s     *away // in front of the store
	store *memory.Locker
	locks *dlock.Client // with a TTL of 10 s
}

func in(t *testing.T, f func(*bed), opts ...breaker.Option) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		store := memory.New()
		s := &away{Forward: dlock.Forward{Locker: store}}
		b := breaker.New(s, opts...)
		w := &bed{t, b, s, store, dlock.New(b, dlock.WithTTL(10*time.Second))}
		f(w)
		require.NoError(t, w.locks.Close())
		time.Sleep(time.Minute) // calls and probes that are cut off
	})
}

// degrading runs a test with a breaker that degrades keys that begin with "k" after 30 s.
func degrading(t *testing.T, f func(*bed)) {
	t.Helper()
	in(t, f, breaker.WithDegradation(breaker.Degradation{After: 30 * time.Second, Keys: func(key string) bool { return strings.HasPrefix(key, "k") }}))
}

func all(string) bool { return true }

func try(ctx context.Context, b *breaker.Locker) error {
	_, err := b.TryAcquire(ctx, "k", "t", time.Minute)
	return err
}

func (w *bed) try() error { return try(w.Context(), w.Locker) }

// take makes an attempt, which the breaker answers.
func (w *bed) take(key, token string, ttl time.Duration) dlock.Attempt {
	w.Helper()
	a, err := w.TryAcquire(w.Context(), key, token, ttl)
	require.NoError(w, err)
	require.True(w, a.Acquired)
	return a
}

// other takes a key in the store, as another process does.
func (w *bed) other(key string) {
	w.Helper()
	_, err := w.store.TryAcquire(w.Context(), key, "of another process", time.Hour)
	require.NoError(w, err)
}

// stored is the lease of a key in the store.
func (w *bed) stored(key string) dlock.Hold {
	w.Helper()
	hold, err := w.store.Inspect(w.Context(), key)
	require.NoError(w, err)
	return hold
}

// open makes the store fail until the breaker opens.
func (w *bed) open() {
	w.Helper()
	synctest.Wait() // others may be about to read
	w.s.err = errStore
	for range 5 {
		require.ErrorIs(w, w.try(), errStore)
	}
	require.True(w, w.State().Open)
}

// down makes the store fail, and waits until degraded leases are granted.
func (w *bed) down() {
	w.Helper()
	w.open()
	time.Sleep(30 * time.Second)
}

// up lets the store answer. It locks the breaker, so that other goroutines see this.
func (w *bed) up() {
	synctest.Wait()
	w.s.err, w.s.hang = nil, false
	w.State()
}

// back lets the store answer, and waits until the breaker is closed.
func (w *bed) back() {
	w.Helper()
	synctest.Wait()
	w.s.err = nil
	for w.State().Open {
		time.Sleep(time.Second)
		_, _ = w.TryAcquire(w.Context(), "other", "t", time.Second)
		synctest.Wait()
	}
}

// degraded acquires a degraded lease.
func (w *bed) degraded(key string) *dlock.Lease {
	w.Helper()
	lease, err := w.locks.TryAcquire(w.Context(), key)
	require.NoError(w, err)
	require.True(w, lease.Degraded())
	return lease
}

// requireHeld fails unless the Client finds a key held.
func (w *bed) requireHeld(key, why string) {
	w.Helper()
	_, err := w.locks.TryAcquire(w.Context(), key)
	require.ErrorIs(w, err, dlock.ErrHeld, why)
}

func trySet(ctx context.Context, l dlock.SetAcquirer, token string, keys ...string) ([]dlock.Attempt, error) {
	var set []dlock.Acquisition
	for _, key := range keys {
		set = append(set, dlock.Acquisition{Key: key, Token: token, TTL: 10 * time.Second})
	}
	return l.TryAcquireSet(ctx, set)
}
