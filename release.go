package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/owed"
)

const releaseTimeout = 5 * time.Second // for one try of a release

var errUnsent = fmt.Errorf("%w: not sent, since others of its set took too long", ErrUnavailable)

// Release ends the lease and frees the lock. It takes no context, so that a context that has
// ended cannot prevent it. Its request takes at most 5 s, and no longer than the lease lasts. The
// Locker gets the values of Acquire's ctx. A backend that sends several calls together, such as those
// on Redis, then sends them without the values of any caller.
//
// If Release returns nil, the lease was certain to be held until Release was called. The error
// matches [ErrLost] if another may have held the lock before that. After any other error the
// key may stay locked for up to one TTL, and the release is owed: the Client repeats it in the
// background, until it is closed.
//
// If you defer Release and drop its result, end the work with return lease.Err(), so that a
// loss is not overlooked; or use [Client.Do].
//
// Calling Release again retries a release that failed. Otherwise it does nothing and returns
// nil, or the same [ErrLost]. After Detach it returns nil.
func (l *Lease) Release() error {
	return l.releaseWithin(releaseTimeout)
}

// releaseWithin is Release with a time limit. If none is left, the release is owed.
func (l *Lease) releaseWithin(limit time.Duration) error {
	c, err := releaseCall{limit: limit, at: time.Now()}, errPanic
	if l.observed() {
		defer func() { l.reportRelease(&c, err) }()
	}
	err = l.releaseOnce(&c)
	return wrapUnlessLost(l.values, "release", l.key, err)
}

func (l *Lease) releaseOnce(c *releaseCall) error {
	l.keeper.calls.Add(1)
	defer l.keeper.leave()
	l.pruneLine()
	rest, err := l.endForRelease(c)
	if rest <= 0 {
		return err
	}
	ctx, sent := contexts.NewLazy(l.values, rest), time.Now()
	defer ctx.Cancel()
	return l.sentRelease(c, sent, l.sendRelease(ctx, c))
}

// endForRelease ends the lease for a call of Release. It returns how long that may take to send a
// request; if there is none to send, it returns what Release returns. After a Shutdown that gave up on
// the lease, the first Release counts as its end.
func (l *Lease) endForRelease(c *releaseCall) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := &l.release, l.lookLocked()
	rest := l.restLocked(time.Now())
	c.beginLocked(l, err)
	l.unawaitLocked() // the call counts from now on
	late := err == ErrClosed && r.sent == 0 && r.err == nil && !r.settled
	switch {
	case errors.Is(err, ErrLost):
		return 0, err
	case late && rest <= 0:
		return 0, l.lostLocked(LossExpired)
	case err == nil:
		l.endLocked(ErrReleased)
	}
	if (err == nil || late) && l.keepLocked(false) {
		r.settled, r.owed = true, true
	}
	if rest > 0 && c.limit <= 0 && !r.settled {
		rest, r.err = 0, errUnsent
	}
	if !r.settled && rest <= 0 {
		l.oweReleaseLocked(r.err)
	}
	c.owed = r.owed && !r.answered
	if r.settled || rest <= 0 {
		return 0, r.err
	}
	return min(rest, c.limit), nil
}

// sendRelease makes one try, when no other call of Release is in flight. It does not wait for
// renewals: a later one finds nothing to renew.
func (l *Lease) sendRelease(ctx context.Context, c *releaseCall) error {
	if !l.sending.Lock(ctx) {
		return endOf(ctx)
	}
	defer l.sending.Unlock()
	_, err := l.tryRelease(ctx, c)
	return err
}

// tryRelease makes one call of Release of the Locker, unless the store has answered one; or, before the
// end of the MinHold, one that makes the store keep the key until then.
func (l *Lease) tryRelease(ctx context.Context, c *releaseCall) (held bool, err error) {
	l.mu.Lock()
	if l.release.answered {
		c.useless = true
		l.mu.Unlock()
		return true, nil
	}
	ttl, kept := l.keepForLocked(time.Now())
	l.release.sent++
	l.mu.Unlock()
	switch {
	case kept:
		held = true
	case ttl == 0:
		held, err = l.keeper.locker.Release(ctx, l.key, l.token)
	default:
		held, err = l.keeper.locker.Renew(ctx, l.key, l.token, ttl)
	}
	l.triedRelease(held, err)
	return held, err
}

// triedRelease notes the result of a try. Another call may have ended the lease, or it expired on the
// way. Otherwise "not held" means that somebody else has ended it.
func (l *Lease) triedRelease(held bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.release
	switch {
	case err == nil:
		r.settled, r.answered, r.err = true, true, nil
		if !held && r.sent == 1 && l.restLocked(time.Now()) > 0 {
			r.err = l.lostLocked(LossRemoved)
			l.keeper.mu.Lock()
			defer l.keeper.mu.Unlock()
			l.keeper.lost++
		}
	case NoEffect(err):
		r.sent--
	}
}

// sentRelease returns what Release returns after a call that was sent at sent.
func (l *Lease) sentRelease(c *releaseCall, sent time.Time, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.release
	if err = callError(l.values, sent, err); err == nil {
		err = r.err
	} else if !r.settled {
		r.err = err
		l.oweReleaseLocked(err)
	}
	c.owed = r.owed && !r.answered
	return err
}

// oweReleaseLocked leaves the release to the keeper.
func (l *Lease) oweReleaseLocked(err error) {
	if r := &l.release; !r.owed {
		r.owed = l.keeper.owe(&owedRelease{lease: l, Call: owed.Call{Err: err}})
	}
}

// An owedRelease is a release that the keeper repeats: of a lease, or of the token of an
// attempt with an unknown outcome.
type owedRelease struct {
	owed.Call
	lease      *Lease // nil for an attempt
	key, token string
	values     context.Context

	// inFlight says how many calls for the token the store may still receive. If there is one, the
	// answer "not held" is final only after a TTL; if there are several, so is "held, now free".
	inFlight int

	observers []Observer
	since     time.Time // it is owed, if there are observers
}

const several = 2 // calls, or more

var (
	errTooManyOwed = errors.New("the Client owes too many releases")
	errUnanswered  = fmt.Errorf("%w: no answer within one TTL", ErrUnavailable)
)

// owe takes on a release, and tries it at once, or when the MinHold is over. It is owed until the
// store has ended the lease, or until one TTL has passed: the lease has ended by itself then. owe
// reports false if the Client has been closed.
func (k *keeper) owe(r *owedRelease) bool {
	if l := r.lease; l != nil {
		r.key, r.token, r.TTL, r.values, r.Lane = l.key, l.token, max(l.ttl, l.inherited), l.values, 1
		r.observers = l.options.observers
	}
	if len(r.observers) > 0 {
		r.since = time.Now()
	}
	r.For = r
	return k.owed.Add(&r.Call)
}

// answerTime is how long the release of an attempt that was given up waits for the answer to that.
const answerTime = 250 * time.Millisecond

// lateAnswer notes the answer to an attempt that was given up, which leaves something, or nothing.
func (k *keeper) lateAnswer(r *owedRelease, left remains) {
	if left == unknown {
		k.owed.Due(&r.Call)
	} else {
		k.owed.Settle(&r.Call, left == something)
	}
}

// sendOwed makes one try of an owed release. If it is sure, no call for the token is on its way.
func (k *keeper) sendOwed(c *owed.Call, sure bool) {
	r := c.For.(*owedRelease)
	ctx, cancel := contexts.Within(r.values, releaseTimeout, k.over)
	defer cancel()
	sent, held, err := time.Now(), false, errPanic
	defer func() {
		final := err == nil && (sure || held && r.inFlight < several || r.inFlight == 0) // else a call for the token may reach the store after this one
		k.owed.Tried(c, sent, r.answer(sent, err, final))
	}()
	if r.lease != nil {
		held, err = r.lease.tryRelease(ctx, &releaseCall{})
	} else {
		held, err = k.locker.Release(ctx, r.key, r.token)
	}
}

// answer is that to a call which was sent at sent.
func (r *owedRelease) answer(sent time.Time, err error, final bool) owed.Answer {
	return owed.Answer{Err: callError(r.values, sent, err), Refused: Refused(err), Final: final || hopeless(err)}
}

// A custody keeps the key of a lease that has ended until its MinHold has passed: the key is renewed like a lease, and
// its release is owed.
type custody struct {
	release *owedRelease // due when the MinHold has passed
	until   time.Time    // when the key can be renewed no more
}

// ttl is that of a renewal which is sent now.
func (c *custody) ttl(now time.Time) time.Duration { return keepTTL(c.release.Hold, now) }

// keepTTL is the TTL with which a key is kept until hold.
func keepTTL(hold, now time.Time) time.Duration {
	return min(max(0, hold.Sub(now)).Truncate(time.Millisecond)+time.Millisecond, maxTTL)
}

// minHoldEnd returns when the MinHold ends, or zero if that has passed.
func (l *Lease) minHoldEnd(now time.Time) time.Time {
	if end := l.granted.Add(l.options.minHold); now.Before(end) && !l.tentative {
		return end
	}
	return time.Time{}
}

// keepForLocked returns the TTL of a renewal that makes the store keep the key until the MinHold has passed. It is 0
// if that has passed, or if the store keeps the key for so long already.
func (l *Lease) keepForLocked(now time.Time) (ttl time.Duration, kept bool) {
	hold := l.minHoldEnd(now)
	switch {
	case hold.IsZero():
		return 0, false
	case !l.deadline.Before(hold):
		return 0, true
	}
	return keepTTL(hold, now), false
}

// keepLocked has the key of a lease that has ended renewed until its MinHold has passed, and released then unless
// it is abandoned. It reports false if the MinHold has passed. It also does so if the Client has been
// closed: Release itself makes the store keep the key then, and nothing releases it.
func (l *Lease) keepLocked(abandoned bool) bool {
	now := time.Now()
	hold := l.minHoldEnd(now)
	enough := !l.deadline.Before(hold)
	if hold.IsZero() || enough && abandoned {
		return false
	}
	if l.custody != nil && l.keeper.owed.Resume(&l.custody.release.Call) {
		return true
	}
	r := &owedRelease{lease: l}
	r.Hold, r.Moot, r.Answered = hold, abandoned, enough
	if !l.keeper.owe(r) {
		return false
	}
	if !enough {
		l.custody = &custody{r, alarm.Earlier(hold, now.Add(max(l.ttl, l.inherited)))}
		l.retry = retry{}
		l.planLocked(now)
	}
	return true
}

// noteKeptLocked notes the result of a renewal for the MinHold.
func (l *Lease) noteKeptLocked(c renewal, r RenewResult) {
	release := l.custody.release
	if c.sent.Add(c.ttl).Before(release.Hold) { // sent before the lease ended
		return
	}
	answer := release.answer(c.sent, r.Err, r.Err == nil && !r.Held)
	if l.keeper.owed.Kept(&release.Call, c.sent, c.ttl, answer) {
		l.renewAgainLocked(c)
	} else {
		l.custody = nil
	}
}
