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

// A Locker keeps leases in the memory of one process. It is a [dlock.Locker]
// with every optional interface. All methods may be called by any number of
// goroutines.
type Locker struct {
	mu      sync.Mutex
	locks   map[string]*lock
	fence   int64
	sweepAt int // how many locks there may be before expired ones are looked for
	faults  faults
}

var (
	_ dlock.Locker       = (*Locker)(nil)
	_ dlock.Acquirer     = (*Locker)(nil)
	_ dlock.BatchRenewer = (*Locker)(nil)
	_ dlock.Inspector    = (*Locker)(nil)
)

// New returns an empty store. Several Clients may share it.
func New() *Locker { return &Locker{locks: make(map[string]*lock)} }

// A lock is a key that is held or waited for. It is held while token is not
// empty and until has not come.
type lock struct {
	token string
	until time.Time
	queue []*waiter
}

type waiter struct {
	ctx   context.Context
	token string
	ttl   time.Duration
	ended chan result // of capacity 1; sent to by whoever takes the waiter out of the queue
	timer *time.Timer // of the first in the queue: fires when the holder's lease ends, or earlier
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
	return m.try(key, token, ttl), reply
}

// Acquire implements [dlock.Acquirer]. Waiters are served first come first
// served; the call that frees the key hands it over. A Release of token by
// another goroutine ends the wait with [dlock.ErrReleased].
func (m *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	reply, err := m.begin(ctx, key, token, ttl)
	if err != nil {
		return dlock.Attempt{}, err
	}
	m.mu.Lock()
	a := m.try(key, token, ttl)
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
	return m.renew(key, token, ttl), reply
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
			results[i].Held = m.renew(r.Key, r.Token, r.TTL)
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
	l, now := m.drive(key)
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
	l.watch(now)
	if l.token != token {
		return false, reply
	}
	m.free(key, l, now)
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
	l, now := m.drive(key)
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

// noEffect marks an error of a call that changed nothing.
func noEffect(err error) error { return &dlock.NoEffectError{Err: err} }

// try grants key to token if it is free or already token's. The lock exists
// afterwards. m.mu is held, as it is for all that follow.
func (m *Locker) try(key, token string, ttl time.Duration) dlock.Attempt {
	l, now := m.drive(key)
	if l == nil {
		l = m.add(key, now)
	}
	if l.token != "" && l.token != token {
		return dlock.Attempt{Holder: l.token, Remaining: l.until.Sub(now)}
	}
	return m.grant(l, token, ttl, now)
}

func (m *Locker) renew(key, token string, ttl time.Duration) bool {
	l, now := m.drive(key)
	if l == nil || l.token != token {
		return false
	}
	l.extend(now.Add(ttl))
	return true
}

// grant makes token the holder. Fences are microseconds of the wall clock, or
// the last one + 8 where grants come faster than that, so that they still rise
// when the process has been started anew.
func (m *Locker) grant(l *lock, token string, ttl time.Duration, now time.Time) dlock.Attempt {
	m.fence = max(m.fence+8, now.UnixMicro())
	l.token = token
	l.extend(now.Add(ttl))
	l.watch(now)
	return dlock.Attempt{Acquired: true, Since: now, Fence: m.fence}
}

func (l *lock) extend(until time.Time) {
	if until.After(l.until) {
		l.until = until
	}
}

// watch makes the first in the queue look again when the lease ends, so that no
// goroutine is needed to expire it.
func (l *lock) watch(now time.Time) {
	if len(l.queue) > 0 {
		l.queue[0].timer.Reset(l.until.Sub(now))
	}
}

// drive returns the lock of key, or nil if it is free. Leases expire when they
// are looked at; one that has goes to the first in the queue.
func (m *Locker) drive(key string) (*lock, time.Time) {
	now := time.Now()
	l := m.locks[key]
	if l == nil || now.Before(l.until) {
		return l, now
	}
	m.free(key, l, now)
	return m.locks[key], now
}

// free ends the lease of l, and hands it to the oldest waiter that still waits.
func (m *Locker) free(key string, l *lock, now time.Time) {
	l.token, l.until = "", time.Time{}
	for len(l.queue) > 0 {
		w := l.queue[0]
		l.queue = slices.Delete(l.queue, 0, 1)
		if err := w.ctx.Err(); err != nil {
			w.ended <- result{err: noEffect(err)}
			continue
		}
		w.ended <- result{attempt: m.grant(l, w.token, w.ttl, now)}
		return
	}
	delete(m.locks, key)
}

// add makes the lock of a key. Expired locks that nobody asks for any more are
// removed whenever the number of locks has doubled, which costs each addition
// constant time on average.
func (m *Locker) add(key string, now time.Time) *lock {
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

// wait returns when w has been taken out of the queue, or its ctx ends. m.mu is
// not held.
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
			if l, now := m.drive(key); l != nil {
				l.watch(now)
			}
			m.mu.Unlock()
		}
	}
}

// leave takes a waiter whose ctx has ended out of the queue. A grant that came
// first stands.
func (m *Locker) leave(key string, w *waiter) (dlock.Attempt, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.drive(key)
	select {
	case r := <-w.ended:
		return r.attempt, r.err
	default:
	}
	l.queue = slices.DeleteFunc(l.queue, func(other *waiter) bool { return other == w })
	l.watch(now)
	return dlock.Attempt{Holder: l.token, Remaining: l.until.Sub(now)}, noEffect(w.ctx.Err())
}

func stranger() string { return "stranger " + rand.Text() }
