package dlock

import (
	"context"
	"errors"
	"time"
)

const releaseTimeout = 5 * time.Second // for one try of a release

// A release is how far the release of a lease has come.
type release struct {
	busy     bool          // a call of Release is in flight
	idle     chan struct{} // closed when it returns; made by those that wait for it
	sent     int           // calls that may have reached the store
	answered bool          // the store has answered
	settled  bool          // it has, or it is the keeper's to send what is needed
	owed     bool          // it is left to the keeper, too
	verdict  error         // of the answer: nil or ErrLost
	failure  error         // of the last call, if there was no answer
}

// Release ends the lease and frees the lock. It takes no context: if a context that has
// ended stopped it, the key would stay locked. Its call carries the values of Acquire's
// ctx, and takes at most 5 s, and no longer than the lease lasts.
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
	switch err, r := l.look(), &l.release; {
	case errors.Is(err, ErrLost):
		return err
	case err == nil:
		l.end(ErrReleased)
		l.linger()
	case err == ErrClosed && r.sent == 0 && r.failure == nil && !r.settled: // the first call
		if l.rest(time.Now()) <= 0 {
			return l.lost(LossExpired)
		}
		l.linger()
	}
	return wrapUnlessLost(l.values, "release", l.key, l.sendRelease())
}

// holdUntil returns until when the MinHold keeps the key, or zero if that has passed.
func (l *Lease) holdUntil(now time.Time) time.Time {
	if until := l.granted.Add(l.options.minHold); now.Before(until) {
		return until
	}
	return time.Time{}
}

// linger leaves a lease that has ended to the keeper, if it is to be kept for
// longer. If the Client has been closed, it makes the store keep it and leaves it
// to that.
func (l *Lease) linger() {
	if l.options.minHold == 0 {
		return
	}
	until := l.holdUntil(time.Now())
	if until.IsZero() {
		return
	}
	l.release.settled = true
	if l.keeper.owe(&debt{lease: l, hold: until}) {
		return
	}
	ctx := newLimit(l.values, min(l.rest(time.Now()), releaseTimeout))
	defer ctx.cancel()
	var err error
	l.unlocked(func() { _, err = l.keepUntil(ctx, until) })
	l.release.verdict = err
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
	if err := l.callRelease(ctx); err != nil {
		r.failure = err
		l.oweRelease()
		return err
	}
	return r.verdict
}

// callRelease calls Release of the Locker, unless another call of Release has done so
// meanwhile. It waits for no renewal: one that comes later finds nothing.
func (l *Lease) callRelease(ctx context.Context) error {
	if err := l.takeTurn(ctx); err != nil {
		return err
	}
	defer l.endTurn()
	if l.release.settled {
		return nil
	}
	_, err := l.tryRelease(ctx)
	return err
}

// tryRelease makes one call of Release of the Locker.
func (l *Lease) tryRelease(ctx context.Context) (held bool, err error) {
	r := &l.release
	r.sent++
	l.unlocked(func() { held, err = l.keeper.locker.Release(ctx, l.key, l.token) })
	if err != nil {
		if noEffect(err) {
			r.sent--
		}
		return false, err
	}
	// The store need not know a lease any more that another call has ended,
	// or that ran out on the way. Otherwise somebody else has ended it.
	r.settled, r.answered = true, true
	if !held && r.sent == 1 && l.rest(time.Now()) > 0 {
		r.verdict = l.lost(LossRemoved)
		l.keeper.countLoss()
	}
	return held, nil
}

// takeTurn waits until no other call of Release is in flight; endTurn must follow.
func (l *Lease) takeTurn(ctx context.Context) error {
	r := &l.release
	for r.busy {
		if r.idle == nil {
			r.idle = make(chan struct{})
		}
		idle := r.idle
		l.unlocked(func() {
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

func (l *Lease) endTurn() {
	r := &l.release
	r.busy = false
	if r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// unlocked calls f without l.mu.
func (l *Lease) unlocked(f func()) {
	l.mu.Unlock()
	defer l.mu.Lock()
	f()
}

// oweRelease leaves the release to the keeper.
func (l *Lease) oweRelease() {
	if !l.release.owed {
		l.release.owed = l.keeper.owe(&debt{lease: l})
	}
}
