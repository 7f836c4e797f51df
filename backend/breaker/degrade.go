package breaker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A Degradation lets a process go on with locks of its own while the store is away. It is for
// locks that only save work, such as that of a cache which is filled once. It is unsound
// across processes: each has its own locks then.
//
// When the breaker has been open for After, attempts on certain keys are granted in memory.
// Such a lease has fence 0, and [dlock.Lease.Degraded] is true. A Client with
// [dlock.WithFence] gets [dlock.ErrUnavailable] instead.
//
// Within the process nothing overlaps. A lease that the store has granted blocks its key
// until it is released or has ended. A degraded lease blocks its key for attempts at the
// store. Waiters poll. When the breaker has closed, the next renewal of a degraded lease
// takes its key in the store: if another holds it there, the lease is lost.
type Degradation struct {
	// After is how long the breaker must have been open. It is at least the longest TTL of all
	// processes: if the store is away for all of them, their leases have ended then.
	After time.Duration

	// Keys reports whether a key may be degraded. It must not block.
	Keys func(key string) bool
}

// WithDegradation turns degradation on. The default is off.
func WithDegradation(d Degradation) Option {
	return func(b *Locker) {
		switch {
		case d.After <= 0:
			b.refuse("WithDegradation: After %v: not positive", d.After)
		case d.Keys == nil:
			b.refuse("WithDegradation: Keys: nil")
		default:
			b.degradation = &d
			b.granted, b.standIns = make(map[string]hold), make(map[string]*standIn)
		}
	}
}

// A hold is a lease of this process, as long as its holder may be certain of it.
type hold struct {
	token string
	until time.Time
}

func (h *hold) extend(until time.Time) {
	if until.After(h.until) {
		h.until = until
	}
}

// A standIn is a degraded lease.
type standIn struct {
	hold
	asked bool // the store was asked for it, and may have granted it
	ended bool // it was released
}

var errHeldHere = errors.New("another lease of this process holds the key")

func (b *Locker) degrades(key string) bool { return b.degradation != nil && b.degradation.Keys(key) }

// decide makes an attempt in memory if another lease of this process holds the key, or if the
// breaker has refused the attempt and has been open for long enough.
func (b *Locker) decide(ctx context.Context, key, token string, ttl time.Duration, refused bool) (attempt dlock.Attempt, decided bool) {
	if ctx.Err() != nil || key == "" || token == "" || ttl < time.Millisecond || !b.degrades(key) {
		return dlock.Attempt{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	s := b.standInLocked(key, now)
	if s != nil && s.token != token {
		return s.answer(now), true
	}
	if !refused || now.Sub(b.state.Since) < b.degradation.After {
		return dlock.Attempt{}, false
	}
	if g := b.granted[key]; g.token != token && now.Before(g.until) {
		return g.answer(now), true
	}
	if s == nil {
		s = &standIn{hold: hold{token: token}}
		b.standIns[key] = s
	}
	s.extend(now.Add(ttl))
	return dlock.Attempt{Acquired: true, Degraded: true, Since: now}, true
}

func (h *hold) answer(now time.Time) dlock.Attempt {
	return dlock.Attempt{Holder: h.token, Remaining: h.until.Sub(now)}
}

// standInLocked returns the degraded lease of a key, or nil.
func (b *Locker) standInLocked(key string, now time.Time) *standIn {
	if s := b.standIns[key]; s != nil && now.Before(s.until) {
		return s
	}
	return nil
}

// use returns the answer of the inner Locker to an attempt. A grant is of no use if a degraded
// lease holds the key: the caller releases it.
func (b *Locker) use(key, token string, ttl time.Duration, begun time.Time, a dlock.Attempt, err error) (dlock.Attempt, error) {
	if err == nil && a.Acquired {
		since := a.Since
		if since.IsZero() {
			since = begun
		}
		if !b.noteGranted(key, token, since.Add(ttl)) {
			return dlock.Attempt{}, fmt.Errorf("%w: %w", dlock.ErrUnavailable, errHeldHere)
		}
	}
	return a, err
}

// noteGranted notes that the store has granted key to token until the given time. It reports
// false, and notes nothing, if a degraded lease of another token holds the key.
func (b *Locker) noteGranted(key, token string, until time.Time) bool {
	if !b.degrades(key) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if s := b.standInLocked(key, now); s != nil && s.token != token {
		return false
	}
	delete(b.standIns, key)
	for k, g := range b.granted { // those whose release failed: some, in the map's random order
		if now.Before(g.until) {
			break
		}
		delete(b.granted, k)
	}
	g := b.granted[key]
	if g.token != token {
		g = hold{token: token}
	}
	g.extend(until)
	b.granted[key] = g
	return true
}

// Renew implements [dlock.Locker]. It goes through an open breaker.
func (b *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if held, decided := b.renewStandIn(ctx, key, token, ttl); decided {
		return held, nil
	}
	begun := time.Now()
	held, err := b.Forward.Renew(ctx, key, token, ttl)
	return held && b.noteGranted(key, token, begun.Add(ttl)), err
}

// RenewBatch implements [dlock.BatchRenewer]. It renews degraded leases one by one, beside the
// others.
func (b *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if b.degradation == nil {
		return b.Forward.RenewBatch(ctx, batch)
	}
	results := make([]dlock.RenewResult, len(batch))
	var single sync.WaitGroup
	var rest []dlock.Renewal
	var index []int // in results, of each of the rest
	for i, r := range batch {
		if b.isStandIn(r.Key, r.Token) {
			single.Go(func() { results[i].Held, results[i].Err = b.Renew(ctx, r.Key, r.Token, r.TTL) })
		} else {
			rest, index = append(rest, r), append(index, i)
		}
	}
	var err error
	if len(rest) > 0 || len(batch) == 0 {
		var answers []dlock.RenewResult
		begun := time.Now()
		answers, err = b.Forward.RenewBatch(ctx, rest)
		for i, a := range answers {
			r := rest[i]
			a.Held = a.Held && b.noteGranted(r.Key, r.Token, begun.Add(r.TTL))
			results[index[i]] = a
		}
	}
	single.Wait()
	return results, err
}

func (b *Locker) isStandIn(key, token string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.standInLocked(key, time.Now())
	return s != nil && s.token == token
}

// renewStandIn renews a degraded lease: in the store if the breaker is closed and the store
// answers, else in memory.
func (b *Locker) renewStandIn(ctx context.Context, key, token string, ttl time.Duration) (held, decided bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.standInLocked(key, time.Now())
	if s == nil || s.token != token || ctx.Err() != nil || ttl < time.Millisecond {
		return false, false
	}
	if !b.state.Open {
		s.asked = true
		changes := b.changes
		b.mu.Unlock()
		attempt, err := b.try(ctx, changes, key, token, ttl)
		b.mu.Lock()
		switch {
		case s.ended: // meanwhile, and the attempt may have come later than the release
			b.mu.Unlock()
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.slow)
			_, _ = b.release(limited, key, token)
			cancel()
			b.mu.Lock()
			return false, true
		case err == nil:
			return attempt.Acquired, true
		}
	}
	now := time.Now()
	if b.standInLocked(key, now) != s {
		return false, true
	}
	s.extend(now.Add(ttl))
	return true, true
}

// Release implements [dlock.Locker]. It goes through an open breaker, unless the store was
// never asked for the lease.
func (b *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if b.degradation == nil || ctx.Err() != nil {
		return b.Forward.Release(ctx, key, token)
	}
	b.mu.Lock()
	var was, asked bool
	if s := b.standIns[key]; s != nil && s.token == token {
		was, asked, s.ended = time.Now().Before(s.until), s.asked, true
		delete(b.standIns, key)
	}
	b.mu.Unlock()
	if was && !asked {
		return true, nil
	}
	held, err := b.release(ctx, key, token)
	return held || was, err
}

// release is Release of the inner Locker.
func (b *Locker) release(ctx context.Context, key, token string) (bool, error) {
	held, err := b.Forward.Release(ctx, key, token)
	if err == nil {
		b.mu.Lock()
		if b.granted[key].token == token {
			delete(b.granted, key)
		}
		b.mu.Unlock()
	}
	return held, err
}

// Inspect implements [dlock.Inspector]. It goes through an open breaker. It shows a degraded
// lease of this process.
func (b *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	b.mu.Lock()
	now := time.Now()
	if s := b.standInLocked(key, now); s != nil && ctx.Err() == nil {
		defer b.mu.Unlock()
		return dlock.Hold{Held: true, Token: s.token, Remaining: s.until.Sub(now)}, nil
	}
	b.mu.Unlock()
	return b.Forward.Inspect(ctx, key)
}
