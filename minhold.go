package dlock

import (
	"context"
	"time"
)

// holdUntil returns when the MinHold ends, or zero if that has passed.
func (l *Lease) holdUntil(now time.Time) time.Time {
	if until := l.granted.Add(l.options.minHold); now.Before(until) {
		return until
	}
	return time.Time{}
}

// keepForMinHoldLocked leaves a lease that has ended to the keeper until its MinHold has
// passed. If the Client has been closed, Release itself makes the store keep the key, and nothing
// releases it then.
func (l *Lease) keepForMinHoldLocked() {
	hold := l.holdUntil(time.Now())
	if !hold.IsZero() && l.keeper.owe(&owedRelease{lease: l, hold: hold}) {
		l.release.settled, l.release.owed = true, true
	}
}

// keepUntil makes the store keep a lease that has ended until hold, and reports
// whether it does.
func (l *Lease) keepUntil(ctx context.Context, hold time.Time) (held bool, err error) {
	l.mu.Lock()
	enough := !l.deadline.Before(hold)
	l.mu.Unlock()
	if enough {
		return true, nil
	}
	rest := min(max(0, time.Until(hold)).Truncate(time.Millisecond)+time.Millisecond, maxTTL)
	return l.keeper.locker.Renew(ctx, l.key, l.token, rest)
}

// nextHoldLocked returns the next renewal for a MinHold, or nil.
func (k *keeper) nextHoldLocked() func() {
	next := k.owed.dueHolds.Front()
	if next == nil {
		return nil
	}
	return k.tryLocked(next.Value.(*owedRelease), k.keepHold)
}

// keepHold makes the store keep a lease until its MinHold has passed.
func (k *keeper) keepHold(ctx context.Context, r *owedRelease) {
	sent, held, err := time.Now(), false, errPanic
	defer func() {
		if held {
			k.kept(r, sent)
		} else {
			k.tried(r, sent, held, err)
		}
	}()
	held, err = r.lease.keepUntil(ctx, r.hold)
}

// kept notes that the store keeps a lease for its MinHold, since a renewal that was sent at sent.
func (k *keeper) kept(r *owedRelease, sent time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.trying--
	switch {
	case r.listed.list == nil: // dropped
	case r.abandoned:
		k.dropLocked(r, nil)
	default:
		r.err = nil
		r.until = later(r.until, time.Now().Add(r.hold.Sub(sent)+time.Millisecond))
		k.keepLocked(r)
	}
}

// keepLocked plans the release of a lease that the store keeps for its MinHold, if it still has it.
func (k *keeper) keepLocked(r *owedRelease) {
	k.settleLocked(r)
	r.answered, r.tries = true, 0
	r.queued.leave()
	k.scheduleLocked(&r.event, r.hold)
}
