package dlock

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/contexts"
)

const releaseTimeout = 5 * time.Second // for one try of a release

var errUnsent = fmt.Errorf("%w: not sent, since others of its set took too long", ErrUnavailable)

// Release ends the lease and frees the lock. It takes no context, so that a context that has
// ended cannot prevent it. Its request takes at most 5 s, and no longer than the lease lasts. The
// Locker gets the values of Acquire's ctx. A backend that sends several calls together, such as those
// on Redis, then sends them without the values of any caller.
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
	defer l.unlock()
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
	for idle := l.enterRelease(); idle != nil; idle = l.enterRelease() {
		select {
		case <-idle:
		case <-ctx.Done():
		}
		if ended(ctx) != nil {
			return endOf(ctx)
		}
	}
	defer l.leaveRelease()
	_, err := l.tryRelease(ctx, c)
	return err
}

// enterRelease returns nil, and leaveRelease must follow, or what is closed when the call that is in
// flight returns.
func (l *Lease) enterRelease() (idle chan struct{}) {
	l.mu.Lock()
	defer l.unlock()
	r := &l.release
	if !r.busy {
		r.busy = true
		return nil
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	return r.idle
}

func (l *Lease) leaveRelease() {
	l.mu.Lock()
	defer l.unlock()
	r := &l.release
	r.busy = false
	if r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// tryRelease makes one call of Release of the Locker, unless the store has answered one; or, before the
// end of the MinHold, one that makes the store keep the key until then.
func (l *Lease) tryRelease(ctx context.Context, c *releaseCall) (held bool, err error) {
	l.mu.Lock()
	hold := l.holdUntil(time.Now())
	kept := !hold.IsZero() && !l.deadline.Before(hold)
	if l.release.answered {
		c.useless = true
		l.unlock()
		return true, nil
	}
	l.release.sent++
	l.unlock()
	switch {
	case kept:
		held = true
	case hold.IsZero():
		held, err = l.keeper.locker.Release(ctx, l.key, l.token)
	default:
		held, err = l.keeper.locker.Renew(ctx, l.key, l.token, keepTTL(hold, time.Now()))
	}
	l.triedRelease(held, err)
	return held, err
}

// triedRelease notes the result of a try. Another call may have ended the lease, or it expired on the
// way. Otherwise "not held" means that somebody else has ended it.
func (l *Lease) triedRelease(held bool, err error) {
	l.mu.Lock()
	defer l.unlock()
	r := &l.release
	switch {
	case err == nil:
		r.settled, r.answered, r.err = true, true, nil
		if !held && r.sent == 1 && l.restLocked(time.Now()) > 0 {
			r.err = l.lostLocked(LossRemoved)
			l.keeper.countLoss()
		}
	case NoEffect(err):
		r.sent--
	}
}

// sentRelease returns what Release returns after a call that was sent at sent.
func (l *Lease) sentRelease(c *releaseCall, sent time.Time, err error) error {
	l.mu.Lock()
	defer l.unlock()
	r := &l.release
	if err = said(l.values, sent, err); err == nil {
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
		r.owed = l.keeper.owe(&owedRelease{lease: l, err: err})
	}
}

const (
	maxOwed          = 100_000 // releases that a Client can owe
	releasers        = 8       // owed releases in flight that have not hung, and one more for each prompt answer in a row
	maxReleasers     = 128     // so many at most
	maxReleases      = 192     // owed releases in flight
	releaseHungAfter = 500 * time.Millisecond
	promptly         = 20 * time.Millisecond  // a prompt answer takes this and twice the time of the fastest, at most
	firstRetryPause  = 100 * time.Millisecond // before a release is tried again, doubled each time
	maxRetryPause    = time.Second            // while there is no answer
	awayPause        = 500 * time.Millisecond // between two tries of any, while the store is away
)

// An owedRelease is a release that the keeper repeats: of a lease, or of the token of an
// attempt with an unknown outcome.
type owedRelease struct {
	lease      *Lease // nil for an attempt
	key, token string
	ttl        time.Duration
	values     context.Context

	// inFlight says how many calls for the token the store may still receive. If there is one, the
	// answer "not held" is final only after a TTL; if there are several, so is "held, now free".
	inFlight int

	observers []Observer
	since     time.Time // it is owed, if there are observers
	hold      time.Time // end of the MinHold: no release is sent before
	renewable time.Time // until then the lease can be renewed for its MinHold
	abandoned bool      // only the MinHold is owed: the work that holds the lease still runs

	// Guarded by the keeper's mutex.
	state  owedState
	over   bool          // the MinHold is
	alarm  alarm.Alarm   // for the next try, but at the latest for the end of the lease
	listed *list.Element // among all owed releases; nil once dropped
	ready  *list.Element // among those that are due; nil if it is not
	until  time.Time     // by then the lease has ended by itself
	sent   time.Time     // when the last try was sent
	err    error         // of the last try, or of the call before the first one
	tries  int           // since the last answer
	trying int           // tries in flight
}

// An owedState is what the store has said.
type owedState int

const (
	pending owedState = iota // nothing: Close waits for it
	refused                  // it would not release
	settled                  // it has released, or keeps the lease until its MinHold has passed
)

const several = 2 // calls, or more

var (
	errTooManyOwed = errors.New("the Client owes too many releases")
	errUnanswered  = fmt.Errorf("%w: no answer within one TTL", ErrUnavailable)
)

// While the store answers promptly, more and more releases are in flight at once, so that those who give up a wait
// are out of its queue before they are served. Where they stand in line for a few connections, there are few: they
// must not keep renewals waiting. A release without an answer is retried after 0.1 to 1 s, even if the
// last try still hangs. When several tries in a row got no answer, the store counts as away: then one release is
// retried every half second. Once one is answered, all others follow at once.
//
// At the end of its lease a release is dropped if it still waits for its turn. If it does not, a last
// try is made: then it is dropped if that cannot be sent at once, or has no answer after a second.

// owe takes on a release, and tries it at once, or when the MinHold is over. It is owed until the
// store has ended the lease, or until one TTL has passed: the lease has ended by itself then. owe
// reports false if the Client has been closed.
func (k *keeper) owe(r *owedRelease) bool {
	if l := r.lease; l != nil {
		r.key, r.token, r.ttl, r.values = l.key, l.token, max(l.ttl, l.inherited), l.values
		r.observers = l.options.observers
	}
	if len(r.observers) > 0 {
		r.since = time.Now()
	}
	r.until = time.Now().Add(r.ttl)
	r.alarm.For = r
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.owed.finished {
		return false
	}
	if r.state == pending {
		k.owed.unanswered++
	}
	if r.over = r.hold.IsZero(); r.over {
		k.listLocked(r)
		k.dueLocked(r)
		k.wakeLocked()
	} else {
		r.listed = k.owed.holds.PushBack(r)
		k.clock.Set(&r.alarm, r.hold)
	}
	return true
}

// listLocked adds a release to all others. It drops one if there are too many: one that was answered,
// or else the oldest. Those of a MinHold that lasts do not count: there are no more of them than there
// were leases.
func (k *keeper) listLocked(r *owedRelease) {
	o := &k.owed
	if o.all.Len() >= maxOwed {
		o.dropped++
		k.dropLocked(o.all.Front().Value.(*owedRelease), errTooManyOwed)
	}
	r.listed = o.all.PushBack(r)
}

// dropLocked ends a release that is owed. err is why the Client gives it up, or nil.
func (k *keeper) dropLocked(r *owedRelease, err error) {
	k.reportOwed(r, err)
	k.becomeLocked(r, settled)
	k.owed.all.Remove(r.listed) // which does nothing if it is in the other list
	k.owed.holds.Remove(r.listed)
	r.listed = nil
	k.leaveLocked(r)
	k.clock.Unset(&r.alarm)
}

// leaveLocked ends the wait of a release for its turn.
func (k *keeper) leaveLocked(r *owedRelease) {
	if r.ready != nil {
		r.line(k).Remove(r.ready)
		r.ready = nil
	}
}

func (r *owedRelease) line(k *keeper) *list.List {
	if r.lease == nil {
		return &k.owed.ready[0]
	}
	return &k.owed.ready[1]
}

// becomeLocked notes what the store has said.
func (k *keeper) becomeLocked(r *owedRelease, s owedState) {
	if r.state == pending && s != pending {
		k.owed.unanswered--
		k.notify()
	} else if r.state != pending && s == pending {
		k.owed.unanswered++
	}
	r.state = s
}

// dueLocked does what is due for a release: it queues it for its next try, or ends it.
func (k *keeper) dueLocked(r *owedRelease) {
	o, now := &k.owed, time.Now()
	ended := !now.Before(r.until)
	switch {
	case r.listed == nil:
		return
	case !r.over && r.abandoned, ended && (r.ready != nil || !r.sent.Before(r.until)):
		k.dropLocked(r, r.lastErr())
		return
	case !r.over:
		r.over = true
		k.becomeLocked(r, pending)
		o.holds.Remove(r.listed)
		k.listLocked(r)
	}
	if r.trying > 0 && now.Sub(r.sent) >= maxRetryPause { // it hangs
		k.silentLocked()
	}
	if r.ready == nil {
		r.ready = r.line(k).PushBack(r)
	}
	k.clock.Set(&r.alarm, r.until)
}

// lastErr returns why a release is dropped at the end of its lease.
func (r *owedRelease) lastErr() error {
	if r.err == nil && r.state != settled {
		return errUnanswered
	}
	return r.err
}

// nextReleaseLocked returns the next try of an owed release, or nil. Those of leases and of attempts
// take turns. If a try hangs, the release becomes due again.
func (k *keeper) nextReleaseLocked() func() {
	o, now := &k.owed, time.Now()
	turn := 1 - o.turn
	if o.ready[turn].Len() == 0 {
		turn = o.turn
	}
	next := o.ready[turn].Front()
	switch {
	case next == nil, o.silent >= releasers && now.Before(o.awayTryAt):
		return nil
	case o.silent >= releasers: // the store is away
		o.awayTryAt = now.Add(awayPause)
		k.clock.Set(&o.away, o.awayTryAt)
	}
	o.turn = turn
	r := next.Value.(*owedRelease)
	k.leaveLocked(r)
	r.trying++
	r.tries++
	r.sent = now
	at := now.Add(maxRetryPause)
	if r.until.After(now) { // it is not the last try
		at = earlier(at, r.until)
	}
	k.clock.Set(&r.alarm, at)
	return func() { k.sendOwed(r) }
}

// sendOwed makes one try of an owed release.
func (k *keeper) sendOwed(r *owedRelease) {
	ctx, cancel := contexts.Within(r.values, releaseTimeout, k.over)
	defer cancel()
	sent, held, err := time.Now(), false, errPanic
	defer func() { k.tried(r, sent, held, err) }()
	if r.lease != nil {
		held, err = r.lease.tryRelease(ctx, &releaseCall{})
	} else {
		held, err = k.locker.Release(ctx, r.key, r.token)
	}
}

// tried notes the answer to a try that was made at sent, and plans the next try if there is
// one.
func (k *keeper) tried(r *owedRelease, sent time.Time, held bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.trying--
	if err == nil || r.state != settled {
		r.err = said(r.values, sent, err)
	}
	o := &k.owed
	refuses := k.heardLocked(sent, err)
	pause := min(firstRetryPause<<min(max(r.tries-1, 0), 10), maxRetryPause)
	switch {
	case r.listed == nil: // dropped
		return
	case err == nil && (held && r.inFlight < several || r.inFlight == 0), hopeless(err), !sent.Before(r.until):
		k.dropLocked(r, r.err)
		return
	case err == nil: // a call for the token may reach the store after this one
		if r.state != settled {
			k.becomeLocked(r, settled)
			r.tries = 0
			o.all.MoveToFront(r.listed)
		}
		pause = firstRetryPause << min(2*r.tries, 20)
	case refuses:
		if r.state == pending {
			k.becomeLocked(r, refused)
		}
		pause = time.Second << min(r.tries, 10)
	case r.trying > 0:
		return
	}
	if r.ready == nil {
		at := r.sent.Add(min(pause, r.ttl/4))
		k.clock.Set(&r.alarm, later(earlier(at, r.until), time.Now()))
	}
}

// heardLocked notes whether a call that was sent at sent was answered. It reports whether the store refuses.
func (k *keeper) heardLocked(sent time.Time, err error) (refuses bool) {
	o := &k.owed
	if refuses = Refused(err); err != nil && !refuses {
		k.silentLocked()
		return false
	}
	o.silent = 0
	took := time.Since(sent)
	o.fastest = min(took, cmp.Or(o.fastest, took))
	if took <= 2*o.fastest+promptly {
		o.workers.Size = min(o.workers.Size+1, maxReleasers)
	} else {
		o.workers.Size = releasers
	}
	return refuses
}

// silentLocked notes that a call got no answer.
func (k *keeper) silentLocked() {
	k.owed.silent++
	k.owed.workers.Size = releasers
}

// holdUntil returns when the MinHold ends, or zero if that has passed.
func (l *Lease) holdUntil(now time.Time) time.Time {
	if until := l.granted.Add(l.options.minHold); now.Before(until) && !l.tentative {
		return until
	}
	return time.Time{}
}

// keepLocked has a lease that has ended renewed until its MinHold has passed, and released then unless
// it is abandoned. It reports false if the MinHold has passed. It also does so if the Client has been
// closed: Release itself makes the store keep the key then, and nothing releases it.
func (l *Lease) keepLocked(abandoned bool) bool {
	now := time.Now()
	hold := l.holdUntil(now)
	enough := !l.deadline.Before(hold)
	if hold.IsZero() || enough && abandoned {
		return false
	}
	if l.kept != nil && l.keeper.resume(l.kept) {
		return true
	}
	r := &owedRelease{lease: l, hold: hold, abandoned: abandoned, renewable: earlier(hold, now.Add(max(l.ttl, l.inherited)))}
	if enough {
		r.state = settled
	}
	if !l.keeper.owe(r) {
		return false
	}
	if !enough {
		l.kept, l.trouble = r, trouble{}
		l.planLocked(now)
	}
	return true
}

// resume has the MinHold of an abandoned lease end with its release. It reports false if nothing is owed any more.
func (k *keeper) resume(r *owedRelease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.abandoned = false
	return r.listed != nil
}

// keepTTL is the TTL of a renewal for a MinHold.
func keepTTL(hold, now time.Time) time.Duration {
	return min(max(0, hold.Sub(now)).Truncate(time.Millisecond)+time.Millisecond, maxTTL)
}

// kept notes the result of a renewal for a MinHold. It reports whether that is to be repeated.
func (k *keeper) kept(r *owedRelease, c renewal, result RenewResult) (again bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	refuses := k.heardLocked(c.sent, result.Err)
	if r.listed == nil || r.over { // dropped, or the MinHold is over
		return false
	}
	r.err = said(r.values, c.sent, result.Err)
	switch {
	case result.Err != nil && !hopeless(result.Err):
		if refuses {
			k.becomeLocked(r, refused)
		}
		return true
	case !result.Held, r.abandoned:
		k.dropLocked(r, r.err)
	default:
		r.until = later(r.until, time.Now().Add(c.ttl))
		k.becomeLocked(r, settled)
	}
	return false
}
