package memory

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A Locker keeps leases in the memory of one process. It implements [dlock.Locker] and every
// optional interface. All methods are safe for concurrent use. The zero value is an empty
// store.
type Locker struct {
	mu      sync.Mutex // guards all fields, and what they point to; functions named …Locked need it
	locks   map[string]*lock
	fence   int64
	sweepAt int // the number of locks at which expired ones are removed
	faults  faults
}

var (
	_ dlock.Locker       = (*Locker)(nil)
	_ dlock.Acquirer     = (*Locker)(nil)
	_ dlock.BatchRenewer = (*Locker)(nil)
	_ dlock.Inspector    = (*Locker)(nil)
)

// New returns an empty store. Clients that share it exclude each other.
func New() *Locker { return &Locker{locks: make(map[string]*lock)} }

// A lock is a key that is held or waited for. It is held if token is not empty and until is in
// the future.
type lock struct {
	token string
	until time.Time
	queue []*waiter
}

type waiter struct {
	ctx   context.Context
	token string
	ttl   time.Duration
	ended chan result // of capacity 1; gets the result when the waiter is removed from the queue
	timer *time.Timer // for the first in the queue, it fires when the holder's lease ends, or earlier
}

type result struct {
	attempt dlock.Attempt
	err     error
}

// TryAcquire implements [dlock.Locker].
func (m *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	reply, err := m.begin(ctx, key, token, ttl)
	if err != nil {
		return dlock.Attempt{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tryLocked(key, token, ttl), reply
}

// Acquire implements [dlock.Acquirer]. Waiters are served in the order of arrival. The call that
// frees the key hands it to the first. A Release of token during the wait ends the wait with
// [dlock.ErrReleased].
func (m *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	reply, err := m.begin(ctx, key, token, ttl)
	if err != nil {
		return dlock.Attempt{}, err
	}
	m.mu.Lock()
	a := m.tryLocked(key, token, ttl)
	if a.Acquired || reply != nil {
		m.mu.Unlock()
		return a, reply
	}
	w := &waiter{ctx, token, ttl, make(chan result, 1), time.NewTimer(a.Remaining)}
	l := m.locks[key]
	l.queue = append(l.queue, w)
	m.mu.Unlock()
	return m.wait(key, w)
}

// Renew implements [dlock.Locker].
func (m *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	reply, err := m.begin(ctx, key, token, ttl)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.renewLocked(key, token, ttl), reply
}

// RenewBatch implements [dlock.BatchRenewer].
func (m *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	reply, err := m.send(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	results := make([]dlock.RenewResult, len(batch))
	for i, r := range batch {
		if results[i].Err = check(r.Key, r.Token, r.TTL); results[i].Err == nil {
			results[i].Held = m.renewLocked(r.Key, r.Token, r.TTL)
		}
	}
	return results, reply
}

// Release implements [dlock.Locker].
func (m *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	const anyTTL = time.Second
	reply, err := m.begin(ctx, key, token, anyTTL)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.advanceLocked(key)
	if l == nil {
		return false, reply
	}
	l.queue = slices.DeleteFunc(l.queue, func(w *waiter) bool {
		if w.token != token {
			return false
		}
		w.ended <- result{err: noEffect(dlock.ErrReleased)}
		return true
	})
	l.watchLocked(now)
	if l.token != token {
		return false, reply
	}
	m.freeLocked(key, l, now)
	return true, reply
}

// Inspect implements [dlock.Inspector].
func (m *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	reply, err := m.send(ctx)
	if err != nil {
		return dlock.Hold{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.advanceLocked(key)
	if l == nil {
		return dlock.Hold{}, reply
	}
	return dlock.Hold{Held: true, Token: l.token, Remaining: l.until.Sub(now), Waiting: len(l.queue)}, reply
}

func check(key, token string, ttl time.Duration) error {
	switch {
	case key == "":
		return noEffect(fmt.Errorf("%w key: empty", dlock.ErrInvalid))
	case token == "":
		return noEffect(fmt.Errorf("%w token: empty", dlock.ErrInvalid))
	case ttl <= 0:
		return noEffect(fmt.Errorf("%w TTL %v: not positive", dlock.ErrInvalid, ttl))
	}
	return nil
}

// noEffect returns the error of a call that changed nothing.
func noEffect(err error) error { return &dlock.NoEffectError{Err: err} }

// tryLocked grants key to token if it is free or already token's. Afterwards m.locks has key.
func (m *Locker) tryLocked(key, token string, ttl time.Duration) dlock.Attempt {
	l, now := m.advanceLocked(key)
	if l == nil {
		l = m.addLocked(key, now)
	}
	if l.token != "" && l.token != token {
		return dlock.Attempt{Holder: l.token, Remaining: l.until.Sub(now)}
	}
	return m.grantLocked(l, token, ttl, now)
}

func (m *Locker) renewLocked(key, token string, ttl time.Duration) bool {
	l, now := m.advanceLocked(key)
	if l == nil || l.token != token {
		return false
	}
	l.extendLocked(now.Add(ttl))
	return true
}

// grantLocked makes token the holder. The fence is the wall clock in microseconds, so that fences
// also rise across a restart of the process, or the last fence + 8 if that is larger.
func (m *Locker) grantLocked(l *lock, token string, ttl time.Duration, now time.Time) dlock.Attempt {
	m.fence = max(m.fence+8, now.UnixMicro())
	l.token = token
	l.extendLocked(now.Add(ttl))
	l.watchLocked(now)
	return dlock.Attempt{Acquired: true, Since: now, Fence: m.fence}
}

func (l *lock) extendLocked(until time.Time) {
	if until.After(l.until) {
		l.until = until
	}
}

// watchLocked sets the timer of the first waiter to the end of the lease. So no goroutine is
// needed to expire leases.
func (l *lock) watchLocked(now time.Time) {
	if len(l.queue) > 0 {
		l.queue[0].timer.Reset(l.until.Sub(now))
	}
}

// advanceLocked returns the lock of key, or nil if it is free. If the lease has expired, it
// first grants the key to the next waiter.
func (m *Locker) advanceLocked(key string) (*lock, time.Time) {
	now := time.Now()
	l := m.locks[key]
	if l == nil || now.Before(l.until) {
		return l, now
	}
	m.freeLocked(key, l, now)
	return m.locks[key], now
}

// freeLocked ends the lease of l, and grants the key to the first waiter whose ctx has not ended.
func (m *Locker) freeLocked(key string, l *lock, now time.Time) {
	l.token, l.until = "", time.Time{}
	for len(l.queue) > 0 {
		w := l.queue[0]
		l.queue = slices.Delete(l.queue, 0, 1)
		if err := w.ctx.Err(); err != nil {
			w.ended <- result{err: noEffect(err)}
			continue
		}
		w.ended <- result{attempt: m.grantLocked(l, w.token, w.ttl, now)}
		return
	}
	delete(m.locks, key)
}

// addLocked makes the lock of a key. Whenever the number of locks has doubled, it removes expired
// locks that have no waiters. This takes constant time per addition on average.
func (m *Locker) addLocked(key string, now time.Time) *lock {
	if len(m.locks) >= m.sweepAt {
		for k, l := range m.locks {
			if len(l.queue) == 0 && !now.Before(l.until) {
				delete(m.locks, k)
			}
		}
		m.sweepAt = 2*len(m.locks) + 64
	}
	if m.locks == nil {
		m.locks = make(map[string]*lock)
	}
	l := new(lock)
	m.locks[key] = l
	return l
}

// wait returns when w has been removed from the queue, or its ctx ends.
func (m *Locker) wait(key string, w *waiter) (dlock.Attempt, error) {
	defer w.timer.Stop()
	for {
		select {
		case r := <-w.ended:
			return r.attempt, r.err
		case <-w.ctx.Done():
			return m.leave(key, w)
		case <-w.timer.C:
			m.mu.Lock()
			if l, now := m.advanceLocked(key); l != nil {
				l.watchLocked(now)
			}
			m.mu.Unlock()
		}
	}
}

// leave removes a waiter whose ctx has ended from the queue. If the waiter was granted the key
// before that, leave returns the grant.
func (m *Locker) leave(key string, w *waiter) (dlock.Attempt, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.advanceLocked(key)
	select {
	case r := <-w.ended:
		return r.attempt, r.err
	default:
	}
	l.queue = slices.DeleteFunc(l.queue, func(other *waiter) bool { return other == w })
	l.watchLocked(now)
	return dlock.Attempt{Since: now, Holder: l.token, Remaining: l.until.Sub(now)}, noEffect(w.ctx.Err())
}

func stranger() string { return "stranger " + rand.Text() }
