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
// passed. If the Client has been closed, it makes the store keep the key itself, and nothing
// releases it then.
func (l *Lease) keepForMinHoldLocked() {
	if l.options.minHold == 0 {
		return
	}
	until := l.holdUntil(time.Now())
	if until.IsZero() {
		return
	}
	l.release.settled = true
	if l.release.owed = l.keeper.owe(&owedRelease{lease: l, hold: until}); l.release.owed {
		return
	}
	ctx := newLazyTimeout(l.values, min(l.restLocked(time.Now()), releaseTimeout))
	defer ctx.cancel()
	var err error
	l.stepOutLocked(func() { _, err = l.keepUntil(ctx, until) })
	l.release.result = err
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
			k.kept(r)
		} else {
			k.tried(r, sent, held, err)
		}
	}()
	held, err = r.lease.keepUntil(ctx, r.hold)
}

// kept plans the release of a lease that the store keeps for its MinHold.
func (k *keeper) kept(r *owedRelease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.trying--
	if r.listed.list == nil {
		return
	}
	if r.abandoned {
		k.dropLocked(r, nil)
		return
	}
	k.settleLocked(r)
	r.answered, r.tries = true, 0
	r.until = later(r.until, r.hold)
	r.queued.leave()
	k.scheduleLocked(&r.event, r.hold)
}
