package breaker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A Degradation lets a process go on with locks of its own while the store is away. It is for
// locks that only save work, such as one that lets a single process fill a cache. It is unsound
// across processes: each has its own locks then.
//
// When the breaker has been open for After, attempts on certain keys are granted in memory.
// Such a lease has fence 0, and [dlock.Lease.Degraded] is true. It cannot be detached. A Client
// with [dlock.WithFence] gets [dlock.ErrUnavailable] instead.
//
// The evidence that the store is away must not be older than three probe intervals (see
// [WithProbe]). If it is, an attempt waits for the next probe, for at most one interval. It is
// then sent if the store has answered, and granted in memory if not.
//
// Within the process nothing overlaps, even if Keys changes its mind. A lease that the store has
// granted blocks degraded leases of its key until it is released or has ended. A degraded lease
// blocks its key for attempts at the store, too: they find it held. Acquire waits for such a key
// in the process, in no particular order.
//
// While the breaker is open, a degraded lease is renewed in memory, and its renewals start probes.
// When the breaker has closed, the next renewal takes the key in the store: if another holds it
// there, the lease is lost. At most 32 leases of a batch do so at the same time. A release waits
// for the outcome.
type Degradation struct {
	// After is how long the breaker must have been open. Set at least the longest TTL of all
	// processes: if the store is away for all of them, their leases have ended by then.
	After time.Duration

	// Keys reports whether a key may be degraded. It must not block.
	Keys func(key string) bool
}

const maxMovers = 32 // degraded leases of batches whose keys are taken in the store at the same time

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
			b.holds, b.movers = make(map[string]*hold), make(chan struct{}, maxMovers)
		}
	}
}

// degrades reports whether an attempt may be granted in memory.
func (b *Locker) degrades(set []dlock.Acquisition) bool {
	if b.degradation == nil {
		return false
	}
	keys := make(map[string]bool, len(set))
	for _, a := range set {
		if a.Key == "" || a.Token == "" || a.TTL < time.Millisecond || keys[a.Key] || !b.degradation.Keys(a.Key) {
			return false
		}
		keys[a.Key] = true
	}
	return true
}

// A hold is the lease of a key in this process. There is at most one for each key, whether the
// store or the breaker has granted it.
type hold struct {
	token   string
	until   time.Time // for so long its holder may be certain of it
	where   location
	since   time.Time     // when it began
	noted   time.Time     // when its last answer came
	shared  bool          // of several leases of the store, the answers do not tell which is the latest
	changed chan struct{} // closed when the hold ends or is that of the store; nil if nobody waits
	moving  chan struct{} // closed when the store has been asked for the key; nil if it is not being asked
}

// A location is where a lease is kept. Unless it is inStore, the lease is degraded: the breaker
// refuses its key to other tokens.
type location int

const (
	inMemory location = iota // the store was never asked
	unknown                  // the store was asked, and may have granted it
	inStore
)

// holdLocked returns the lease of a key, or nil.
func (b *Locker) holdLocked(key string, now time.Time) *hold {
	if h := b.holds[key]; h != nil && now.Before(h.until) {
		return h
	}
	return nil
}

// degradedLocked returns the degraded lease of a key and a token, or nil.
func (b *Locker) degradedLocked(key, token string, now time.Time) *hold {
	if h := b.holdLocked(key, now); h != nil && h.token == token && h.where != inStore {
		return h
	}
	return nil
}

// theirsLocked reports whether a lease of this process holds a key of set for another token, and whether such a lease is degraded.
func (b *Locker) theirsLocked(set []dlock.Acquisition, now time.Time) (theirs, degraded bool) {
	for _, a := range set {
		if h := b.holdLocked(a.Key, now); h != nil && h.token != a.Token {
			theirs, degraded = true, degraded || h.where != inStore
		}
	}
	return theirs, degraded
}

// foundHeldLocked is the plan of an attempt of other tokens: it finds a key held. A wait looks again
// after each probe interval.
func (b *Locker) foundHeldLocked(set []dlock.Acquisition, now time.Time) plan {
	p := plan{answers: make([]dlock.Attempt, len(set))}
	for i, a := range set {
		h := b.holdLocked(a.Key, now)
		if h == nil || h.token == a.Token {
			p.answers[i] = dlock.Attempt{Free: true, Degraded: true}
			continue
		}
		if h.changed == nil {
			h.changed = make(chan struct{})
		}
		rest := h.until.Sub(now)
		p.answers[i] = dlock.Attempt{Holder: h.token, Remaining: rest, HeldSince: h.since, Degraded: true}
		p.again, p.within = h.changed, min(rest, b.probe)
	}
	return p
}

// grantLocked grants all keys of set in memory.
func (b *Locker) grantLocked(set []dlock.Acquisition, now time.Time) plan {
	p := plan{answers: make([]dlock.Attempt, len(set))}
	for i, a := range set {
		where := inMemory
		if h := b.holdLocked(a.Key, now); h != nil && h.where != inMemory {
			where = unknown
		}
		b.noteLocked(a.Key, a.Token, where, now.Add(a.TTL))
		p.answers[i] = dlock.Attempt{Acquired: true, Degraded: true, Since: now}
	}
	return p
}

// noteLocked notes a lease. It never shortens one. It forgets some whose release was not
// answered, in the map's random order.
func (b *Locker) noteLocked(key, token string, where location, until time.Time) {
	now := time.Now()
	if h := b.holdLocked(key, now); h != nil && h.token == token {
		if until.After(h.until) {
			h.until = until
		}
		if h.where != where {
			h.wake()
		}
		h.where, h.noted = where, now
		return
	}
	b.forgetLocked(key)
	for k, old := range b.holds {
		if now.Before(old.until) || old.moving != nil {
			break
		}
		b.forgetLocked(k)
	}
	b.holds[key] = &hold{token: token, until: until, where: where, since: now, noted: now}
}

func (b *Locker) forgetLocked(key string) {
	if h := b.holds[key]; h != nil {
		h.wake()
	}
	delete(b.holds, key)
}

// wake tells those who wait for a change.
func (h *hold) wake() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// settleUnlocking waits until the store is not being asked for the key of a token, or ctx ends: what is
// sent then cannot be overtaken by that.
func (b *Locker) settleUnlocking(ctx context.Context, key, token string) {
	for h := b.holds[key]; h != nil && h.token == token && h.moving != nil && ctx.Err() == nil; h = b.holds[key] {
		moving := h.moving
		b.mu.Unlock()
		wait(ctx, moving, dlock.NoLimit)
		b.mu.Lock()
	}
}

// allGranted notes what the store has granted to an attempt, and reports whether it is of use.
func (b *Locker) allGranted(set []dlock.Acquisition, attempts []dlock.Attempt) bool {
	all := true
	for i, a := range attempts {
		all = (!a.Acquired || b.granted(set[i].Key, set[i].Token, a.Since, set[i].TTL)) && all
	}
	return all
}

// granted notes that the store has kept a lease since the given time, and keeps it for ttl. It
// reports false, and notes nothing, if a degraded lease of another token holds the key. Answers
// may overtake each other: that of a renewal may come after the next holder's grant.
func (b *Locker) granted(key, token string, since time.Time, ttl time.Duration) bool {
	if b.degradation == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	until := since.Add(ttl)
	switch h := b.holdLocked(key, time.Now()); {
	case h == nil:
	case h.token == token:
		h.shared = h.shared && since.Before(h.noted)
	case h.where != inStore:
		return false
	case since.Before(h.noted): // either may be the latest
		h.shared = true
		if until.After(h.until) {
			h.until = until
		}
		return true
	}
	b.noteLocked(key, token, inStore, until)
	return true
}

// Renew implements [dlock.Locker]. It goes through an open breaker.
func (b *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if ctx.Err() == nil && ttl >= time.Millisecond {
		if held, degraded := b.renewDegraded(ctx, key, token, ttl); degraded {
			if !held {
				b.lost(key, token)
			}
			return held, nil
		}
	}
	begun := time.Now()
	held, err := b.Forward.Renew(ctx, key, token, ttl)
	b.probeIfAnswered(key, err)
	return held && b.granted(key, token, begun, ttl), err
}

// renewDegraded renews a lease if it is degraded: in the store if the breaker is closed and the
// store answers, else in memory. If the lease was lost, the caller calls lost when the holder
// learns of it: until then the key stays blocked.
func (b *Locker) renewDegraded(ctx context.Context, key, token string, ttl time.Duration) (held, degraded bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleUnlocking(ctx, key, token)
	now := time.Now()
	h := b.degradedLocked(key, token, now)
	if h == nil {
		return false, false
	}
	b.probeLocked(key, now)
	if b.state.Open || ctx.Err() != nil {
		b.noteLocked(key, token, h.where, now.Add(ttl))
		return true, true
	}
	if rest := h.until.Sub(now); rest > ttl { // the store must not shorten the lease
		ttl = (rest + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	moving := make(chan struct{})
	h.where, h.moving = unknown, moving
	changes := b.changes
	b.mu.Unlock()
	a, err := one(b.send(ctx, changes, only(key, token, ttl), single(b.Forward.TryAcquire), false))
	b.mu.Lock()
	close(moving)
	h.moving = nil
	now = time.Now()
	switch {
	case err == nil && !a.Acquired, b.holdLocked(key, now) != h: // it has ended meanwhile
		return false, true
	case err == nil:
		b.noteLocked(key, token, inStore, a.Since.Add(ttl))
	default:
		b.noteLocked(key, token, unknown, now.Add(ttl))
	}
	return true, true
}

// lost forgets a degraded lease whose key another holds in the store.
func (b *Locker) lost(key, token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.degradedLocked(key, token, time.Now()); h != nil {
		b.forgetLocked(key)
	}
}

// RenewBatch implements [dlock.BatchRenewer]. It renews degraded leases one by one, beside the
// others. If the call for the others fails, its error is in their results.
func (b *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	var stored []dlock.Renewal
	var others, degraded []int // in batch
	b.mu.Lock()
	now := time.Now()
	for i, r := range batch {
		if b.degradedLocked(r.Key, r.Token, now) != nil {
			degraded = append(degraded, i)
		} else {
			stored, others = append(stored, r), append(others, i)
		}
	}
	b.mu.Unlock()
	if len(degraded) == 0 || ctx.Err() != nil {
		return b.renewStored(ctx, batch)
	}
	results := make([]dlock.RenewResult, len(batch))
	var err error
	var calls sync.WaitGroup
	if len(stored) > 0 {
		calls.Go(func() {
			var answers []dlock.RenewResult
			answers, err = b.renewStored(ctx, stored)
			for i, at := range others {
				if results[at].Err = err; err == nil {
					results[at] = answers[i]
				}
			}
		})
	}
	for _, at := range degraded {
		r, result := batch[at], &results[at]
		renew := func() {
			var still bool
			if result.Held, still = b.renewDegraded(ctx, r.Key, r.Token, r.TTL); !still {
				result.Held, result.Err = b.Renew(ctx, r.Key, r.Token, r.TTL)
			}
		}
		select {
		case b.movers <- struct{}{}:
			calls.Go(func() {
				defer func() { <-b.movers }()
				renew()
			})
		case <-ctx.Done():
			renew() // without a call
		}
	}
	calls.Wait()
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	for _, at := range degraded { // now that their holders learn of it
		if results[at] == (dlock.RenewResult{}) {
			b.lost(batch[at].Key, batch[at].Token)
		}
	}
	return results, nil
}

// renewStored is RenewBatch for leases of the store.
func (b *Locker) renewStored(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	begun := time.Now()
	results, err := b.Forward.RenewBatch(ctx, batch)
	if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for a batch of %d", len(results), len(batch))
	}
	if err != nil {
		if len(batch) > 0 {
			b.probeIfAnswered(batch[0].Key, err)
		}
		return nil, err
	}
	if i := slices.IndexFunc(results, func(r dlock.RenewResult) bool { return verdictOf(r.Err) == answered }); i >= 0 {
		b.probeIfAnswered(batch[i].Key, nil)
	}
	for i, r := range batch {
		results[i].Held = results[i].Held && b.granted(r.Key, r.Token, begun, r.TTL)
	}
	return results, nil
}

// Release implements [dlock.Locker]. It goes through an open breaker if the store was ever
// asked for the lease.
func (b *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if ctx.Err() != nil {
		return b.Forward.Release(ctx, key, token)
	}
	b.mu.Lock()
	b.settleUnlocking(ctx, key, token)
	if err := ctx.Err(); err != nil {
		b.mu.Unlock()
		return false, err
	}
	h, now := b.holds[key], time.Now()
	degraded := h != nil && h.token == token && h.where != inStore
	if degraded {
		b.forgetLocked(key)
	}
	b.mu.Unlock()
	was := degraded && now.Before(h.until)
	if degraded && h.where == inMemory {
		return was, nil
	}
	held, err := b.Forward.Release(ctx, key, token)
	b.probeIfAnswered(key, err)
	if err != nil && degraded {
		err = errors.Join(err) // not without effect: the lease has ended in memory
	}
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if h := b.holds[key]; h != nil && h.token == token && !h.shared {
			b.forgetLocked(key)
		}
	}
	return held || was, err
}

// Inspect implements [dlock.Inspector]. It goes through an open breaker. It shows a degraded
// lease of this process.
func (b *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	b.mu.Lock()
	now := time.Now()
	if h := b.holdLocked(key, now); h != nil && h.where != inStore && ctx.Err() == nil {
		defer b.mu.Unlock()
		return dlock.Hold{Held: true, Token: h.token, Remaining: h.until.Sub(now), Since: h.since}, nil
	}
	b.mu.Unlock()
	return b.Forward.Inspect(ctx, key)
}
