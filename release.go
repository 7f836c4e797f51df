package dlock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
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
		err = l.sendReleaseUnlocking(c)
	}
	c.owed = l.release.owed && !l.release.answered
	return err
}

// sendReleaseUnlocking makes one try, within the remaining time of the lease.
func (l *Lease) sendReleaseUnlocking(c *releaseCall) error {
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
	if err := l.callReleaseUnlocking(ctx, c); err != nil {
		r.failure = said(l.values, sent, err)
		l.oweReleaseLocked()
		return r.failure
	}
	return r.result
}

// callReleaseUnlocking calls Release of the Locker, unless another call of Release did so
// meanwhile. It does not wait for renewals: a later one finds nothing to renew.
func (l *Lease) callReleaseUnlocking(ctx context.Context, c *releaseCall) error {
	if err := l.beginCallUnlocking(ctx); err != nil {
		return err
	}
	defer l.endCallLocked()
	if l.release.settled {
		c.useless = true
		return nil
	}
	_, err := l.tryReleaseUnlocking(ctx)
	return err
}

// tryReleaseUnlocking makes one call of Release of the Locker; or, before the end of the MinHold, one
// that makes the store keep the key until then.
func (l *Lease) tryReleaseUnlocking(ctx context.Context) (held bool, err error) {
	r, hold := &l.release, l.holdUntil(time.Now())
	r.sent++
	l.unlocking(func() {
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
	return l.tryReleaseUnlocking(ctx)
}

// beginCallUnlocking waits until no other call of Release is in flight; endCallLocked must follow.
func (l *Lease) beginCallUnlocking(ctx context.Context) error {
	r := &l.release
	for r.busy {
		if r.idle == nil {
			r.idle = make(chan struct{})
		}
		idle := r.idle
		l.unlocking(func() {
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

func (l *Lease) endCallLocked() {
	r := &l.release
	r.busy = false
	if r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// unlocking calls f without the mutex.
func (l *Lease) unlocking(f func()) {
	l.mu.Unlock()
	defer l.mu.Lock()
	f()
}

// A lazyTimeout is a context like that of context.WithTimeout, with the values of another
// context. It starts its timer only when Done is called. A client that sets the deadline on
// its connection never calls Done, so that a release costs no timer.
type lazyTimeout struct {
	context.Context // of the values
	deadline        time.Time

	mu    sync.Mutex
	done  chan struct{} // made by Done
	timer *time.Timer
	err   error
}

func newLazyTimeout(values context.Context, d time.Duration) *lazyTimeout {
	return &lazyTimeout{Context: values, deadline: time.Now().Add(d)}
}

func (l *lazyTimeout) Deadline() (time.Time, bool) { return l.deadline, true }

func (l *lazyTimeout) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
		} else {
			l.timer = time.AfterFunc(time.Until(l.deadline), func() { l.end(context.DeadlineExceeded) })
		}
	}
	return l.done
}

func (l *lazyTimeout) Err() error {
	if !time.Now().Before(l.deadline) {
		l.end(context.DeadlineExceeded)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// cancel must be called when the context is no longer needed.
func (l *lazyTimeout) cancel() { l.end(context.Canceled) }

func (l *lazyTimeout) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	if l.done != nil {
		l.timer.Stop()
		close(l.done)
	}
}

const (
	maxOwed          = 100_000 // releases that a Client can owe
	releasers        = 8       // owed releases in flight that have not hung
	maxReleases      = 64      // owed releases in flight
	releaseHungAfter = 500 * time.Millisecond
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

	// inFlight says how many calls for the token may still be in flight. If there is one, the
	// answer "not held" is final only after a TTL; if there are several, so is "held, now free".
	inFlight inFlight

	observers []Observer
	since     time.Time // it is owed, if there are observers

	hold      time.Time // end of the MinHold: the store keeps the lease until then
	abandoned bool      // only the MinHold is owed: the work that holds the lease still runs

	// Guarded by the keeper's mutex.
	alarm    alarm
	listed   position  // in one of the lists of all owed releases; nowhere once dropped
	queued   position  // in one of the queues; nowhere while it is not due
	until    time.Time // by then the lease has ended by itself
	sent     time.Time // when the last try was sent
	err      error     // of the last try, or of the call before the first one
	tries    int       // since the last answer
	trying   int       // tries in flight
	answered bool      // a release was; or the store keeps the lease for its MinHold, if it still has it
	refused  bool      // the store has answered, but would not release
}

var (
	errTooManyOwed = errors.New("the Client owes too many releases")
	errUnanswered  = fmt.Errorf("%w: no answer within one TTL", ErrUnavailable)
)

// owedReleases are guarded by the keeper's mutex.
//
// A release without an answer is retried after 0.1 to 1 s, even if the last try still hangs.
// When several tries in a row got no answer, the store counts as away: then one release is
// retried every half second. Once one is answered, all others follow at once.
//
// Each release has one alarm in the schedule: for its next try, but at the latest for the end of
// its lease. Then it is dropped if it is in a queue. If it is not, a last try is made: then it is
// dropped if that cannot be sent at once, or has no answer after a second.
type owedReleases struct {
	workers     workers
	holdWorkers workers // renewals for a MinHold, which must not wait behind releases

	fresh, settled, holds list.List    // all: those not answered, those answered, those with a MinHold; the oldest first
	due                   [3]list.List // those that are due: of leases, of attempts for their first try, of attempts for a later one
	next                  int          // which of the three is next
	dueHolds              list.List    // those that are due for a renewal, for their MinHold

	unanswered int       // of all, without those that were refused: Close waits for them
	silent     int       // tries in a row that got no answer
	away       alarm     // the next try while the store is away
	awayTryAt  time.Time // its earliest time
	dropped    uint64
	finished   bool // no more are taken on
}

// owe takes on a release, and tries it at once. It is owed until the store has ended the
// lease, or until one TTL has passed: the lease has ended by itself then. owe reports false if
// the Client has been closed.
func (k *keeper) owe(r *owedRelease) bool {
	if l := r.lease; l != nil {
		r.key, r.token, r.ttl, r.values = l.key, l.token, max(l.ttl, l.inherited), l.values
		r.observers = l.options.observers
	}
	if len(r.observers) > 0 {
		r.since = time.Now()
	}
	r.until = time.Now().Add(r.ttl)
	r.alarm.owed = r
	k.mu.Lock()
	defer k.mu.Unlock()
	o := &k.owed
	if o.finished {
		return false
	}
	if r.hold.IsZero() {
		k.makeRoomLocked()
		r.listed.enter(&o.fresh, r)
	} else {
		r.listed.enter(&o.holds, r)
	}
	o.unanswered++
	k.dueLocked(r)
	k.wakeLocked()
	return true
}

// makeRoomLocked drops a release if there are too many: one that was answered, or else the
// oldest. Those of a MinHold do not count: there are no more of them than there were leases.
func (k *keeper) makeRoomLocked() {
	o := &k.owed
	if o.fresh.Len()+o.settled.Len() < maxOwed {
		return
	}
	oldest := o.settled.Front()
	if oldest == nil {
		oldest = o.fresh.Front()
	}
	o.dropped++
	k.dropLocked(oldest.Value.(*owedRelease), errTooManyOwed)
}

// dropLocked ends a release that is owed. err is why the Client gives it up, or nil.
func (k *keeper) dropLocked(r *owedRelease, err error) {
	k.reportOwed(r, err)
	k.settleLocked(r)
	r.listed.leave()
	r.queued.leave()
	k.removeLocked(&r.alarm)
}

// settleLocked notes that Close need not wait for a release.
func (k *keeper) settleLocked(r *owedRelease) {
	if !r.answered && !r.refused {
		k.owed.unanswered--
		k.notify()
	}
}

// dueLocked does what is due for a release: it queues it for its next try, or ends it.
func (k *keeper) dueLocked(r *owedRelease) {
	o, now := &k.owed, time.Now()
	if r.listed.list == nil {
		return
	}
	held, ended := now.Before(r.hold), !now.Before(r.until)
	switch {
	case !held && r.abandoned, !held && ended && (r.queued.list != nil || !r.sent.Before(r.until)):
		k.dropLocked(r, r.lastErr())
		return
	case held && ended: // without an answer: a renewal may have succeeded
		r.err = r.lastErr()
		k.keepLocked(r)
		return
	}
	if r.trying > 0 && now.Sub(r.sent) >= maxRetryPause { // it hangs
		o.silent++
	}
	r.queued.leave()
	switch {
	case held:
		r.queued.enter(&o.dueHolds, r)
	case r.lease != nil:
		if r.answered { // it was kept; now its release is owed
			r.answered = false
			if !r.refused {
				o.unanswered++
			}
		}
		r.queued.enter(&o.due[0], r)
	case r.sent.IsZero():
		r.queued.enter(&o.due[1], r)
	default:
		r.queued.enter(&o.due[2], r)
	}
	k.scheduleLocked(&r.alarm, r.end(now))
}

// end returns when the state of a release changes by itself: its lease or its MinHold ends.
func (r *owedRelease) end(now time.Time) time.Time {
	if now.Before(r.hold) {
		return earlier(r.until, r.hold)
	}
	return r.until
}

// lastErr returns why a release is dropped at the end of its lease.
func (r *owedRelease) lastErr() error {
	if r.err == nil && !r.answered {
		return errUnanswered
	}
	return r.err
}

// nextReleaseLocked returns the next try of an owed release, or nil.
func (k *keeper) nextReleaseLocked() func() {
	o := &k.owed
	turn := o.next
	for o.due[turn].Len() == 0 {
		if turn = (turn + 1) % len(o.due); turn == o.next {
			return nil
		}
	}
	next := o.due[turn].Front()
	if o.silent >= releasers { // the store is away
		now := time.Now()
		if now.Before(o.awayTryAt) {
			return nil
		}
		o.awayTryAt = now.Add(awayPause)
		k.scheduleLocked(&o.away, o.awayTryAt)
	}
	o.next = (turn + 1) % len(o.due)
	return k.tryLocked(next.Value.(*owedRelease), k.sendOwed)
}

// tryLocked begins a try of a release. If it hangs, the release becomes due again.
func (k *keeper) tryLocked(r *owedRelease, try func(context.Context, *owedRelease)) func() {
	r.queued.leave()
	r.trying++
	r.tries++
	r.sent = time.Now()
	at := r.sent.Add(maxRetryPause)
	if end := r.end(r.sent); end.After(r.sent) { // it is not the last try
		at = earlier(at, end)
	}
	k.scheduleLocked(&r.alarm, at)
	return func() {
		ctx, cancel := within(r.values, releaseTimeout, k.over)
		defer cancel()
		try(ctx, r)
	}
}

// sendOwed makes one try of an owed release.
func (k *keeper) sendOwed(ctx context.Context, r *owedRelease) {
	sent, held, err := time.Now(), false, errPanic
	defer func() { k.tried(r, sent, held, err) }()
	if r.lease != nil {
		held, err = r.lease.retryRelease(ctx)
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
	if err == nil || !r.answered {
		r.err = said(r.values, sent, err)
	}
	o := &k.owed
	refused := Refused(err)
	if err == nil || refused {
		o.silent = 0
	} else {
		o.silent++
	}
	switch {
	case r.listed.list == nil: // dropped
	case err == nil && (held && r.inFlight < several || r.inFlight == none), hopeless(err), !sent.Before(r.until):
		k.dropLocked(r, r.err)
	case err == nil:
		k.answeredLocked(r)
	case refused:
		k.settleLocked(r)
		r.refused = true
		k.retryLocked(r, r.sent.Add(min(time.Second<<min(r.tries, 10), r.ttl/4)))
	case r.trying == 0:
		k.retryLocked(r, r.sent.Add(min(firstRetryPause<<min(max(r.tries-1, 0), 10), maxRetryPause, r.ttl/4)))
	}
}

// answeredLocked plans another try of a release that was answered: a call for the token may
// reach the store after it.
func (k *keeper) answeredLocked(r *owedRelease) {
	if !r.answered {
		k.settleLocked(r)
		r.answered, r.tries = true, 0
		r.listed.leave()
		r.listed.enter(&k.owed.settled, r)
	}
	k.retryLocked(r, r.sent.Add(min(firstRetryPause<<min(2*r.tries, 20), r.ttl/4)))
}

func (k *keeper) retryLocked(r *owedRelease, at time.Time) {
	if r.queued.list == nil {
		now := time.Now()
		k.scheduleLocked(&r.alarm, later(earlier(at, r.end(now)), now))
	}
}

// inFlight is a number of calls that the store may still receive.
type inFlight int

const (
	none inFlight = iota
	one
	several
)

// A position is where an owed release is in a list, if it is in one.
type position struct {
	list    *list.List
	element *list.Element
}

func (p *position) enter(l *list.List, r *owedRelease) { *p = position{l, l.PushBack(r)} }

func (p *position) leave() {
	if p.list != nil {
		p.list.Remove(p.element)
		*p = position{}
	}
}

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
	k.scheduleLocked(&r.alarm, r.hold)
}
