package dlock

import (
	"context"
	"time"
)

const releaseTimeout = 5 * time.Second // for one try of a release

// A release is the progress of the release of a lease.
type release struct {
	idle     chan struct{} // closed when the call in flight returns; nil if nobody waits for that
	sent     int           // calls that may have reached the store
	busy     bool          // a call of Release is in flight
	called   bool          // Release was, with Observers
	answered bool          // the store has answered
	settled  bool          // there is nothing to send: it was answered, detached, or is kept for its MinHold
	owed     bool          // the keeper repeats it
	result   error         // of the answer: nil or ErrLost
	failure  error         // of the last call, if there was no answer
}

// Release ends the lease and frees the lock. It takes no context, so that a context that has
// ended cannot prevent it. Its request carries the values of Acquire's ctx, and takes at most
// 5 s, and no longer than the lease lasts.
//
// Release returns nil if the lease was certain to be held until Release was called. It
// returns an error that matches [ErrLost] if another may have held the lock meanwhile. After
// any other error the key may stay locked for up to one TTL, and the release is owed: the
// Client repeats it in the background, until it is closed.
//
// If you defer Release and drop its result, end the work with return lease.Err(), so that a
// loss is not overlooked; or use [Client.Do].
//
// Calling Release again retries a release that failed. Otherwise it does nothing and returns
// nil, or the same [ErrLost]. After Detach it returns nil.
func (l *Lease) Release() error {
	if l.observed() {
		return l.observeRelease()
	}
	err := l.releaseOnce(&releaseCall{})
	return wrapUnlessLost(l.values, "release", l.key, err)
}

func (l *Lease) releaseOnce(c *releaseCall) error {
	l.keeper.calls.Add(1)
	defer l.keeper.leave()
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.endForReleaseLocked(c)
	if err == nil {
		err = l.sendReleaseLocked(c)
	}
	c.owed = l.release.owed && !l.release.answered
	return err
}

// sendReleaseLocked makes one try, within the remaining time of the lease.
func (l *Lease) sendReleaseLocked(c *releaseCall) error {
	r := &l.release
	if r.settled {
		return r.result
	}
	sent := time.Now()
	rest := min(l.restLocked(sent), releaseTimeout)
	if rest <= 0 {
		l.oweReleaseLocked()
		return r.failure
	}
	ctx := newLazyTimeout(l.values, rest)
	defer ctx.cancel()
	if err := l.callReleaseLocked(ctx, c); err != nil {
		r.failure = said(l.values, sent, err)
		l.oweReleaseLocked()
		return r.failure
	}
	return r.result
}

// callReleaseLocked calls Release of the Locker, unless another call of Release did so
// meanwhile. It does not wait for renewals: a later one finds nothing to renew.
func (l *Lease) callReleaseLocked(ctx context.Context, c *releaseCall) error {
	if err := l.takeTurnLocked(ctx); err != nil {
		return err
	}
	defer l.endTurnLocked()
	if l.release.settled {
		c.useless = true
		return nil
	}
	_, err := l.tryReleaseLocked(ctx)
	return err
}

// tryReleaseLocked makes one call of Release of the Locker; or, before the end of the MinHold, one
// that makes the store keep the key until then.
func (l *Lease) tryReleaseLocked(ctx context.Context) (held bool, err error) {
	r, hold := &l.release, l.holdUntil(time.Now())
	r.sent++
	l.stepOutLocked(func() {
		if hold.IsZero() {
			held, err = l.keeper.locker.Release(ctx, l.key, l.token)
		} else {
			held, err = l.keepUntil(ctx, hold)
		}
	})
	if err != nil {
		if NoEffect(err) {
			r.sent--
		}
		return false, err
	}
	// Another call may have ended the lease, or it expired on the way. Otherwise "not held"
	// means that somebody else has ended it.
	r.settled, r.answered = true, true
	if !held && r.sent == 1 && l.restLocked(time.Now()) > 0 {
		r.result = l.lostLocked(LossRemoved)
		l.keeper.countLoss()
	}
	return held, nil
}

// oweReleaseLocked leaves the release to the keeper.
func (l *Lease) oweReleaseLocked() {
	if !l.release.owed {
		l.release.owed = l.keeper.owe(&owedRelease{lease: l, err: l.release.failure})
	}
}

// retryRelease makes one try for the keeper, unless a call of Release got an answer meanwhile.
func (l *Lease) retryRelease(ctx context.Context) (held bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.release.answered {
		return true, nil
	}
	return l.tryReleaseLocked(ctx)
}

// takeTurnLocked waits until no other call of Release is in flight; endTurnLocked must follow.
func (l *Lease) takeTurnLocked(ctx context.Context) error {
	r := &l.release
	for r.busy {
		if r.idle == nil {
			r.idle = make(chan struct{})
		}
		idle := r.idle
		l.stepOutLocked(func() {
			select {
			case <-idle:
			case <-ctx.Done():
			}
		})
		if ended(ctx) != nil {
			return endOf(ctx)
		}
	}
	r.busy = true
	return nil
}

func (l *Lease) endTurnLocked() {
	r := &l.release
	r.busy = false
	if r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// stepOutLocked calls f without the mutex.
func (l *Lease) stepOutLocked(f func()) {
	l.mu.Unlock()
	defer l.mu.Lock()
	f()
}
