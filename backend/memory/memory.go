package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/chance"
)

// A Locker keeps leases in the memory of one process. It implements [dlock.Locker] and every
// optional interface but [dlock.TTLLimiter]. All methods are safe for concurrent use. The zero
// value is an empty store.
type Locker struct {
	mu      sync.Mutex // guards all fields, and what they point to; functions named …Locked need it
	locks   map[string]*lock
	fence   int64
	sweepAt int // the number of locks at which expired ones are removed
	faults  faults
	store   string    // identifies the store; empty until first needed
	since   time.Time // it has forgotten nothing since then; set with store
}

var (
	_ dlock.Locker        = (*Locker)(nil)
	_ dlock.Acquirer      = (*Locker)(nil)
	_ dlock.BatchRenewer  = (*Locker)(nil)
	_ dlock.SetAcquirer   = (*Locker)(nil)
	_ dlock.Inspector     = (*Locker)(nil)
	_ quorum.VoteAcquirer = (*Locker)(nil)
)

// New returns an empty store. Clients that share it exclude each other.
func New() *Locker {
	m := &Locker{locks: make(map[string]*lock)}
	m.rememberLocked(time.Now())
	return m
}

// A lock is a key that is held or waited for. It is held if token is not empty and until is in
// the future.
type lock struct {
	token string
	since time.Time // when the token was granted the key
	until time.Time
	queue []*waiter // in the order of their places; if these are equal, of their tokens
}

type waiter struct {
	ctx   context.Context
	token string
	ttl   time.Duration
	place int64
	ended chan result // of capacity 1; gets the result when the waiter is removed from the queue
	timer *time.Timer // for the first in the queue, it fires when the holder's lease ends, or earlier
}

type result struct {
	ballot quorum.Ballot
	err    error
}

// TryAcquire implements [dlock.Locker].
func (m *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	b, err := m.Vote(ctx, key, token, ttl, 0)
	return b.Attempt, err
}

// TryAcquireSet implements [dlock.SetAcquirer].
func (m *Locker) TryAcquireSet(ctx context.Context, set []dlock.Acquisition) ([]dlock.Attempt, error) {
	if err := checkSet(set); err != nil {
		return nil, err
	}
	reply, err := m.send(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	attempts, now := make([]dlock.Attempt, len(set)), time.Now()
	free := 0
	for i, a := range set {
		if l := m.advanceToLocked(a.Key, now); l == nil || l.token == a.Token {
			attempts[i].Free = true
			free++
		} else {
			attempts[i] = m.refuseLocked(l, dlock.Attempt{}, now).Attempt
		}
	}
	for i, a := range set {
		if free == len(set) {
			attempts[i] = m.grantLocked(m.addLocked(a.Key, now), a.Token, a.TTL, 0, now).Attempt
		}
	}
	return attempts, reply
}

// Acquire implements [dlock.Acquirer]. Waiters are served in the order of arrival. The call that
// frees the key hands it to the first. A Release of token during the wait ends the wait with
// [dlock.ErrReleased].
func (m *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	b, err := m.acquire(ctx, key, token, ttl, 0, 0)
	return b.Attempt, err
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
	return m.Pass(ctx, key, token, "", 0)
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
	return dlock.Hold{Held: true, Token: l.token, Remaining: l.until.Sub(now), Since: l.since, Waiting: len(l.queue)}, reply
}

func check(key, token string, ttl time.Duration) error {
	switch {
	case key == "":
		return mark(fmt.Errorf("%w key: empty", dlock.ErrInvalid))
	case token == "":
		return mark(fmt.Errorf("%w token: empty", dlock.ErrInvalid))
	case ttl <= 0:
		return mark(fmt.Errorf("%w TTL %v: not positive", dlock.ErrInvalid, ttl))
	}
	return nil
}

func checkSet(set []dlock.Acquisition) error {
	if len(set) == 0 {
		return mark(fmt.Errorf("%w set: empty", dlock.ErrInvalid))
	}
	keys := make(map[string]bool, len(set))
	for _, a := range set {
		if err := check(a.Key, a.Token, a.TTL); err != nil {
			return err
		}
		if keys[a.Key] {
			return mark(fmt.Errorf("%w key %q: twice in a set", dlock.ErrInvalid, a.Key))
		}
		keys[a.Key] = true
	}
	return nil
}

// mark returns err as that of a call that changed nothing.
func mark(err error) error { return &dlock.NoEffectError{Err: err} }

// tryLocked grants key to token if it is free or already token's. Afterwards m.locks has key.
func (m *Locker) tryLocked(key, token string, ttl time.Duration, floor int64) quorum.Ballot {
	_, now := m.advanceLocked(key)
	l := m.addLocked(key, now)
	if l.token != "" && l.token != token {
		return m.refuseLocked(l, dlock.Attempt{}, now)
	}
	return m.grantLocked(l, token, ttl, floor, now)
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
// also rise across a restart of the process; the floor if that is up to a second later; or the
// last fence + 8 if that is larger.
func (m *Locker) grantLocked(l *lock, token string, ttl time.Duration, floor int64, now time.Time) quorum.Ballot {
	b := m.ballotLocked(now)
	if b.Fresh = l.token != token; b.Fresh {
		l.since = now
	}
	m.fence = max(m.fence+8, b.Clock, min(floor, b.Clock+time.Second.Microseconds()))
	l.token = token
	l.extendLocked(now.Add(ttl))
	l.watchLocked(now)
	b.Attempt = dlock.Attempt{Acquired: true, Since: now, Fence: m.fence}
	return b
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
	return m.advanceToLocked(key, now), now
}

func (m *Locker) advanceToLocked(key string, now time.Time) *lock {
	l := m.locks[key]
	if l == nil || now.Before(l.until) {
		return l
	}
	m.freeLocked(key, l, 0, now)
	return m.locks[key]
}

// freeLocked ends the lease of l, and grants the key to the first waiter whose ctx has not ended.
func (m *Locker) freeLocked(key string, l *lock, floor int64, now time.Time) {
	l.token, l.until = "", time.Time{}
	for len(l.queue) > 0 {
		w := l.queue[0]
		l.queue = slices.Delete(l.queue, 0, 1)
		if err := w.ctx.Err(); err != nil {
			w.ended <- result{err: mark(err)}
			continue
		}
		w.ended <- result{ballot: m.grantLocked(l, w.token, w.ttl, floor, now)}
		return
	}
	delete(m.locks, key)
}

// addLocked returns the lock of a key, and makes it if there is none. Whenever the number of locks has doubled, it removes expired
// locks that have no waiters. This takes constant time per addition on average.
func (m *Locker) addLocked(key string, now time.Time) *lock {
	if l := m.locks[key]; l != nil {
		return l
	}
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
func (m *Locker) wait(key string, w *waiter) (quorum.Ballot, error) {
	defer w.timer.Stop()
	for {
		select {
		case r := <-w.ended:
			return r.ballot, r.err
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
func (m *Locker) leave(key string, w *waiter) (quorum.Ballot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.advanceLocked(key)
	select {
	case r := <-w.ended:
		return r.ballot, r.err
	default:
	}
	l.queue = slices.DeleteFunc(l.queue, func(other *waiter) bool { return other == w })
	l.watchLocked(now)
	return m.refuseLocked(l, dlock.Attempt{Since: now}, now), mark(w.ctx.Err())
}

func stranger() string { return "stranger " + chance.Text() }
