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
// to that is dropped.
func (k *keeper) owe(d *debt) {
	if l := d.lease; l != nil {
		d.key, d.token, d.ttl, d.values = l.key, l.token, l.options.ttl, l.values
	}
	now := time.Now()
	d.until = now.Add(d.ttl)
	if d.hold.After(now) {
		d.until = d.hold.Add(d.ttl)
	}
	d.event.debt = d
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.finished {
		return
	}
	if len(k.debts) >= maxDebts {
		k.drop(k.oldestDebt())
	}
	k.debts[d] = struct{}{}
	k.payments.add(func() { k.pay(d) })
}

// pay makes one try to pay a debt. It keeps the order of the calls of a lease.
func (k *keeper) pay(d *debt) {
	if !k.owes(d) {
		return
	}
	ctx, cancel := within(d.values, releaseTimeout, k.over)
	defer cancel()
	keep := time.Now().Before(d.hold)
	held, err := true, error(nil)
	switch {
	case d.lease == nil:
		held, err = k.locker.Release(ctx, d.key, d.token)
	case keep:
		held, err = d.lease.keepUntil(ctx, d.hold)
	default:
		held, err = d.lease.payRelease(ctx, !d.hold.IsZero())
	}
	k.paid(d, keep, held, err)
}

// paid notes what came of a try, and plans the next one if one is needed.
func (k *keeper) paid(d *debt, kept, held bool, err error) {
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
	case err == nil && (held || !d.pending), hopeless(err), !now.Before(d.until):
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

// keepUntil makes the store keep a lease that has ended until hold. l.mu is not
// held, here and below.
func (l *Lease) keepUntil(ctx context.Context, hold time.Time) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.deadline.Before(hold) {
		return true, nil
	}
	if err := l.takeTurn(ctx); err != nil {
		return false, err
	}
	defer l.endTurn()
	l.mu.Unlock()
	defer l.mu.Lock()
	rest := max(time.Until(hold), 0).Truncate(time.Millisecond) + time.Millisecond
	return l.keeper.locker.Renew(ctx, l.key, l.token, rest)
}

// payRelease releases a lease that has ended, unless Release has done so itself.
func (l *Lease) payRelease(ctx context.Context, always bool) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takeTurn(ctx); err != nil {
		return false, err
	}
	defer l.endTurn()
	if l.settled && !always {
		return true, nil
	}
	l.mu.Unlock()
	held, err := l.keeper.locker.Release(ctx, l.key, l.token)
	l.mu.Lock()
	l.settled = l.settled || err == nil
	return held, err
}

func (k *keeper) owes(d *debt) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.debts[d]
	return ok
}

// oldestDebt returns the debt that is given up first. k.mu is held, here and
// below.
func (k *keeper) oldestDebt() *debt {
	var oldest *debt
	for d := range k.debts {
		if oldest == nil || d.until.Before(oldest.until) {
			oldest = d
		}
	}
	return oldest
}

func (k *keeper) drop(d *debt) {
	delete(k.debts, d)
	k.removeLocked(&d.event)
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
