package dlock

import "time"

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
// background.
//
// Where Release is deferred and its result dropped, end the work with
// return lease.Err(), so that a loss does not go unnoticed; or use [Client.Do].
//
// Calling Release again retries one that failed. Otherwise it does nothing and
// returns nil, or the [ErrLost] of before. After Detach it returns nil.
func (l *Lease) Release() error {
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
	if l.settled {
		return l.verdict
	}
	if err := l.sendRelease(); err != nil {
		return wrapUnlessLost(l.values, "release", l.key, err)
	}
	return nil
}

// linger leaves a lease that has ended to the keeper, if it is to be kept for
// longer.
func (l *Lease) linger() {
	if until := l.granted.Add(l.options.minHold); time.Now().Before(until) {
		l.settled = true
		l.keeper.owe(&debt{lease: l, hold: until})
	}
}

// sendRelease makes one try, in the time that is left of the lease.
func (l *Lease) sendRelease() error {
	rest := min(l.rest(time.Now()), releaseTimeout)
	if rest <= 0 {
		return l.unanswered
	}
	ctx := newLimit(l.values, rest)
	defer ctx.cancel()
	if err := l.takeTurn(ctx); err != nil {
		return l.oweRelease(err)
	}
	defer l.endTurn()
	if l.settled {
		return l.verdict
	}
	l.mu.Unlock()
	held, err := l.keeper.locker.Release(ctx, l.key, l.token)
	l.mu.Lock()
	if err != nil {
		return l.oweRelease(err)
	}
	// The store need not know a lease that an earlier try has released, or that
	// ran out on the way. Otherwise somebody else has ended it.
	l.settled = true
	if !held && l.unanswered == nil && l.rest(time.Now()) > 0 {
		l.verdict = l.lost(errTaken)
	}
	return l.verdict
}

func (l *Lease) oweRelease(err error) error {
	if l.unanswered == nil {
		l.keeper.owe(&debt{lease: l})
	}
	l.unanswered = err
	return err
}
