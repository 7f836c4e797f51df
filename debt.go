package dlock

import (
	"context"
	"time"
)

// A debt is a release that is owed to the store: of a lease, or of the token of
// an attempt that got no answer.
type debt struct {
	lease      *Lease // nil for an attempt
	key, token string
	ttl        time.Duration
	values     context.Context

	// pending says that an attempt may still be on its way, so that "not held"
	// is not the last word until a TTL has passed.
	pending bool

	// often says that there may be several, so that "held, now free" is not the
	// last word either.
	often bool

	// hold is when a lease with a MinHold is to be released: not before, and
	// until then the store is to keep it.
	hold time.Time

	// The keeper's, and guarded by its mutex.
	event    event
	until    time.Time
	tries    int
	answered bool
}

// owe takes on a debt and makes a first try to pay it. A debt is paid when the
// store has ended the lease; otherwise it is given up one TTL after it was made,
// when the lease has ended by itself. Of too many debts, the one that is closest
// to that is dropped. It reports false if the Client has been closed.
func (k *keeper) owe(d *debt) bool {
	if l := d.lease; l != nil {
		d.key, d.token, d.ttl, d.values = l.key, l.token, l.options.ttl, l.values
	}
	now := time.Now()
	d.until = now.Add(d.ttl)
	if d.hold.After(d.until) {
		d.until = d.hold
	}
	d.event.debt = d
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.finished {
		return false
	}
	if d.hold.IsZero() {
		k.makeRoom()
	}
	k.debts[d] = struct{}{}
	k.crewFor(d).add(d)
	return true
}

// crewFor returns who makes the next try: what keeps a lease is urgent, and must
// not wait behind releases that hang.
func (k *keeper) crewFor(d *debt) *crew[*debt] {
	if time.Now().Before(d.hold) {
		return &k.holds
	}
	return &k.payments
}

// pay makes one try to pay a debt: a release, or what keeps a lease until it is
// time for that.
func (k *keeper) pay(d *debt) {
	if !k.owes(d) {
		return
	}
	ctx, cancel := within(d.values, releaseTimeout, k.over)
	defer cancel()
	sent, kept, held, err := time.Now(), false, false, errPanic
	defer func() { k.paid(d, sent, kept, held, err) }()
	switch {
	case d.lease == nil, !d.hold.IsZero() && !time.Now().Before(d.hold):
		held, err = k.locker.Release(ctx, d.key, d.token)
	case d.hold.IsZero():
		held, err = d.lease.payRelease(ctx)
	default:
		kept = true
		held, err = d.lease.keep(ctx, d.hold)
	}
}

// paid notes what came of a try that was made at sent, and plans the next one if one
// is needed.
func (k *keeper) paid(d *debt, sent time.Time, kept, held bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.debts[d]; !ok {
		return // dropped
	}
	d.answered = d.answered || err == nil
	now := time.Now()
	switch {
	case kept && held && err == nil:
		d.tries = 0
		k.scheduleLocked(&d.event, d.hold)
	case err == nil && (held && !d.often || !d.pending), hopeless(err), !sent.Before(d.until):
		k.drop(d)
	default:
		next := now.Add(min(100*time.Millisecond<<min(d.tries, 10), d.ttl/4))
		if next.After(d.until) {
			next = d.until
		}
		d.tries++
		k.scheduleLocked(&d.event, next)
	}
	k.notify()
}

// payRelease releases a lease that has ended. l.mu is not held.
func (l *Lease) payRelease(ctx context.Context) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.callRelease(ctx)
}

// keep is keepUntil without l.mu held.
func (l *Lease) keep(ctx context.Context, hold time.Time) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keepUntil(ctx, hold)
}

// keepUntil makes the store keep a lease that has ended until hold, and reports
// whether it does.
func (l *Lease) keepUntil(ctx context.Context, hold time.Time) (held bool, err error) {
	if !l.deadline.Before(hold) {
		return true, nil
	}
	if err := l.takeTurn(ctx); err != nil {
		return false, err
	}
	defer l.endTurn()
	rest := min(max(0, time.Until(hold)).Truncate(time.Millisecond)+time.Millisecond, maxTTL)
	l.unlocked(func() { held, err = l.keeper.locker.Renew(ctx, l.key, l.token, rest) })
	return held, err
}

func (k *keeper) owes(d *debt) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.debts[d]
	return ok
}

// makeRoom drops a debt if there are too many. Those of a MinHold do not count:
// they keep what was promised, and there are no more of them than there were
// leases. k.mu is held, here and below.
func (k *keeper) makeRoom() {
	n := 0
	var oldest *debt
	for d := range k.debts {
		if !d.hold.IsZero() {
			continue
		}
		n++
		if oldest == nil || d.until.Before(oldest.until) {
			oldest = d
		}
	}
	if n >= maxDebts {
		k.drop(oldest)
	}
}

func (k *keeper) drop(d *debt) {
	delete(k.debts, d)
	k.removeLocked(&d.event)
	k.payments.remove(d)
	k.holds.remove(d)
}

// unanswered returns how many debts the store has never answered.
func (k *keeper) unanswered() int {
	n := 0
	for d := range k.debts {
		if !d.answered {
			n++
		}
	}
	return n
}
