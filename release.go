package dlock

import (
	"context"
	"time"
)

const (
	releaseTimeout = 5 * time.Second // for one try of a release
	closeTimeout   = 5 * time.Second // for all that are owed when a Client is closed
	maxDebts       = 1024            // releases that a Client can owe
)

// Release ends the lease and frees the lock. It needs no context, because a
// release that is not sent since a context has ended strands the key: it keeps
// the values of Acquire's, and takes at most 5 s, or less if less is left of the
// lease.
//
// Release returns nil if the lease was certain to be held until Release was
// called. It returns an error that matches [ErrLost] if another may have held
// the lock meanwhile. Any other error means only that the key may stay locked
// for up to one TTL, and that the release is owed: the Client repeats it in the
// background, until it is closed.
//
// Where Release is deferred and its result dropped, end the work with
// return lease.Err(), so that a loss does not go unnoticed; or use [Client.Do].
//
// Calling Release again retries one that failed. Otherwise it does nothing and
// returns nil, or the [ErrLost] of before. After Detach it returns nil.
func (l *Lease) Release() error {
	l.keeper.calls.Add(1)
	defer l.keeper.leave()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look() == nil {
		l.end(ErrReleased)
		if l.options.minHold > 0 {
			l.linger()
		}
	} else if l.err != ErrReleased {
		return l.err
	}
	return wrapUnlessLost(l.values, "release", l.key, l.sendRelease())
}

// linger leaves a lease that has ended to the keeper, if it is to be kept for
// longer. If the Client has been closed, it makes the store keep it and leaves it
// to that.
func (l *Lease) linger() {
	until := l.granted.Add(l.options.minHold)
	if now := time.Now(); !now.Before(until) {
		return
	}
	l.release.settled = true
	if !l.keeper.owe(&debt{lease: l, hold: until}) {
		ctx := newLimit(l.values, min(l.rest(time.Now()), releaseTimeout))
		defer ctx.cancel()
		_, err := l.keepUntil(ctx, until)
		l.release.verdict = err
	}
}

// sendRelease makes one try, in the time that is left of the lease.
func (l *Lease) sendRelease() error {
	r := &l.release
	if r.settled {
		return r.verdict
	}
	rest := min(l.rest(time.Now()), releaseTimeout)
	if rest <= 0 {
		l.oweRelease()
		return r.failure
	}
	ctx := newLimit(l.values, rest)
	defer ctx.cancel()
	if _, err := l.callRelease(ctx); err != nil {
		r.failure = err
		l.oweRelease()
		return err
	}
	return r.verdict
}

// callRelease calls Release of the Locker when it is the turn of that, unless
// another has done so meanwhile.
func (l *Lease) callRelease(ctx context.Context) (held bool, err error) {
	if err := l.takeTurn(ctx); err != nil {
		return false, err
	}
	defer l.endTurn()
	r := &l.release
	if r.settled {
		return true, nil
	}
	first := !r.sent
	r.sent = true
	l.unlocked(func() { held, err = l.keeper.locker.Release(ctx, l.key, l.token) })
	if err != nil {
		return false, err
	}
	// The store need not know a lease any more that an earlier call has ended,
	// or that ran out on the way. Otherwise somebody else has ended it.
	r.settled = true
	if !held && first && l.rest(time.Now()) > 0 {
		r.verdict = l.lost(errTaken)
	}
	return held, nil
}

// oweRelease leaves the release to the keeper.
func (l *Lease) oweRelease() {
	if !l.release.owed {
		l.release.owed = l.keeper.owe(&debt{lease: l})
	}
}
