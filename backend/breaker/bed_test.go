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

// An away is in front of the store, and makes calls fail as the test says.
type away struct {
	dlock.Forward
	err     error                     // of every attempt and Inspect; nil: it is made
	hang    func(error) error         // of these: they last until ctx ends, and this makes their error; nil: they are made
	look    error                     // of every Inspect; nil: as the other calls
	renew   error                     // of every Renew and RenewBatch
	arrives chan struct{}             // sets arrive when it is closed; nil: at once
	fate    func(method string) error // of each call, before it is made, and of its answer; or nil

	calls, looks atomic.Int64 // of TryAcquire, TryAcquireSet and Acquire; of Inspect

	mu             sync.Mutex
	delay          time.Duration // of TryAcquire, until ctx ends
	reply          error         // in place of its answer
	renewed        time.Duration // delays the answer of Renew
	inFlight, most int           // calls
}

func hangs(err error) error { return err }

// slow delays attempts from now on, and loses their answers if reply is not nil.
func (a *away) slow(delay time.Duration, reply error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.delay, a.reply = delay, reply
}

func (a *away) flies(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inFlight += n
	a.most = max(a.most, a.inFlight)
}

// before returns the error of a call that is not made.
func (a *away) before(ctx context.Context, method string) error {
	switch method {
	case "TryAcquire", "TryAcquireSet", "Acquire":
		a.calls.Add(1)
	case "Inspect":
		if a.looks.Add(1); a.look != nil {
			return a.look
		}
	case "Renew", "RenewBatch":
		return a.renew
	case "Release":
		return nil
	}
	a.mu.Lock()
	delay := a.delay
	a.mu.Unlock()
	switch {
	case method == "TryAcquire" && delay > 0:
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	case method == "TryAcquireSet" && a.arrives != nil:
		<-a.arrives
	}
	switch hang := a.hang; {
	case hang != nil:
		<-ctx.Done()
		return hang(ctx.Err())
	case a.err != nil:
		return cmp.Or(ctx.Err(), a.err)
	}
	return nil
}

// after returns the error of a call whose answer is lost.
func (a *away) after(method string) error {
	a.mu.Lock()
	late, reply := a.renewed, a.reply
	a.mu.Unlock()
	switch method {
	case "TryAcquire":
		return reply
	case "Renew":
		time.Sleep(late)
	}
	return nil
}

func through[R any](ctx context.Context, a *away, method string, call func() (R, error)) (none R, err error) {
	a.flies(1)
	defer a.flies(-1)
	err = a.before(ctx, method)
	if err == nil && a.fate != nil {
		err = a.fate(method)
	}
	if err != nil {
		return none, err
	}
	r, err := call()
	lost := a.after(method)
	if lost == nil && a.fate != nil {
		lost = a.fate(method)
	}
	if lost != nil {
		return none, errors.Join(lost, err)
	}
	return r, err
}

func (a *away) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return through(ctx, a, "TryAcquire", func() (dlock.Attempt, error) { return a.Forward.TryAcquire(ctx, key, token, ttl) })
}

func (a *away) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	return through(ctx, a, "TryAcquireSet", func() ([]dlock.Attempt, error) { return a.Locker.(dlock.SetAcquirer).TryAcquireSet(ctx, set) })
}

func (a *away) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	return through(ctx, a, "Acquire", func() (dlock.Attempt, error) { return a.Forward.Acquire(ctx, key, token, ttl) })
}

func (a *away) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return through(ctx, a, "Renew", func() (bool, error) { return a.Forward.Renew(ctx, key, token, ttl) })
}

func (a *away) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	return through(ctx, a, "RenewBatch", func() ([]dlock.RenewResult, error) { return a.Forward.RenewBatch(ctx, batch) })
}

func (a *away) Release(ctx context.Context, key, token string) (bool, error) {
	return through(ctx, a, "Release", func() (bool, error) { return a.Forward.Release(ctx, key, token) })
}

func (a *away) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	return through(ctx, a, "Inspect", func() (dlock.Hold, error) { return a.Forward.Inspect(ctx, key) })
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

// scenes runs each scene on a bed of its own.
func scenes(t *testing.T, all map[string]func(*bed), opts ...breaker.Option) {
	for name, scene := range all {
		t.Run(name, func(t *testing.T) { in(t, scene, opts...) })
	}
}

// degrading degrades certain keys after 30 s.
func degrading(keys func(key string) bool) breaker.Option {
	return breaker.WithDegradation(breaker.Degradation{After: 30 * time.Second, Keys: keys})
}

// withK is which keys are degraded in most tests.
func withK(key string) bool { return strings.HasPrefix(key, "k") }

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

// renews makes a renewal that must succeed.
func (w *bed) renews(key, token string, ttl time.Duration) {
	w.Helper()
	held, err := w.Renew(w.Context(), key, token, ttl)
	require.True(w, held && err == nil, "%v, %v", held, err)
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
	w.s.err, w.s.hang = nil, nil
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
