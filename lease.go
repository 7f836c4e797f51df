package dlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/errs"
	"github.com/dlock-go/dlock/internal/hooks"
)

// A Lease is a lock that is held. Until its [Lease.Deadline] nobody else is granted the lock.
// The Client renews the lease in the background for as long as it is held. Its methods are safe
// for concurrent use.
//
// A lease ends once: when it is released, detached or lost, or when [Client.Shutdown] ends
// it. Then its contexts end, Done is closed, and Err says why. Printed or logged, a Lease
// shows its key and fence, never its token.
type Lease struct {
	keeper  *keeper
	options *options
	key     string
	token   string
	ttl     time.Duration // of a renewal; the first may be shorter
	fence   int64
	granted time.Time     // when the holder got it; earlier by before, if the lease was adopted
	before  time.Duration // of the hold, by givers
	step    uint8         // how many times it was passed on, or detached and adopted, since the grant
	standIn bool          // granted it, as Degraded says

	tentative bool // its set is not complete, so it has no MinHold yet; guarded by mu
	awaited   bool // nor was it released: it counts as a call, for which Close waits; guarded by mu

	inherited time.Duration // remaining time of the giver's lease, which may be longer than the TTL

	// Guarded by the keeper's mutex.
	alarm   alarm.Alarm // in the schedule
	waiting alarm.Alarm // among the leases that are due for a renewal, by the deadline when it became due
	halved  uint8       // how many times its largest batch was
	silent  bool        // its renewal has failed, and the store has answered no other since
	counted bool        // it has been in the schedule

	mu       sync.Mutex
	values   context.Context // of Acquire's ctx and its Observers; it never ends. Only announce changes it
	extended time.Time       // when the last acknowledged request was sent
	deadline time.Time
	wall     time.Time      // the deadline on the wall clock
	renewAt  time.Time      // when a renewal is due, until when a young lease is passed on; zero if none is
	retry    retry          // since the last renewal that succeeded
	reports  bool           // its end is to be reported: AcquireDone has returned
	line     *line          // to which it may be passed on; nil if it may not
	err      error          // nil while held
	ended    time.Time      // what Deadline returns after the end
	lives    contexts.Lives // of its contexts and its set
	custody  *custody       // the lease has ended, and its key is renewed for its MinHold; else nil

	sending contexts.Mutex // locked while a call of Release is in flight
	release struct {       // its progress
		sent     int   // calls that may have reached the store
		called   bool  // Release was, with Observers
		answered bool  // the store has answered
		settled  bool  // there is nothing to send: it was answered, detached, or is kept for its MinHold
		owed     bool  // the keeper repeats it
		err      error // once settled, of the answer: nil or ErrLost; before, of the last call
	}
}

// The state of a lease: start begins it. It is held while err is nil. Only endLocked ends it:
// with ErrReleased for Release and Detach, with a LostError if the deadline has passed or the
// store does not know the lease, and with ErrClosed if Shutdown has given up on it. While it
// is held, it alternates between waiting for its next renewal (planLocked, due) and being
// renewed (beginRenewal, then noteRenewal). Every method looks at the clocks first (lookLocked).

var errMaxHold = errors.New("held for longer than WithMaxHold allows")

// drift is subtracted from a TTL, for clocks that run at different speeds. It is that of the
// Redlock algorithm.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// newLease makes the lease of a token that was granted for ttl, which may be shorter than the TTL
// of the request. The grant came at a given time.
func newLease(r *request, token string, at time.Time, grant Attempt, ttl time.Duration) *Lease {
	l := &Lease{
		keeper:  r.client.keeper,
		options: &r.client.options,
		key:     r.key,
		token:   token,
		ttl:     r.ttl,
		fence:   grant.Fence,
		standIn: grant.Degraded,
		values:  contexts.WithoutCancel(r.ctx),
		granted: at,

		tentative: r.set != nil,
	}
	l.alarm.For, l.alarm.Wall, l.waiting.For = l, true, l
	l.extendLocked(grant.Since, ttl)
	l.renewAt = l.extended.Add(renewalPeriod(ttl))
	if ttl < l.ttl {
		l.renewAt = l.granted.Add(firstRenewal)
	}
	return l
}

// Key returns the name of the lock.
func (l *Lease) Key() string { return l.key }

// Token returns the secret of this lease: anyone who knows it can release the lock.
func (l *Lease) Token() string { return l.token }

// Fence returns the number of this grant, or 0 if the store has no fences. It is larger than
// that of every earlier grant of the same key, unless two masters have granted at once. A resource that
// remembers it can refuse a smaller one, from a holder that has lost its lease. Package fence does
// that, and also refuses an equal fence of another lease.
func (l *Lease) Fence() int64 { return l.fence }

// Degraded reports whether a stand-in in this process granted the lease, since the store was
// away: other processes may hold the key, too. Only some backends do this, such as a breaker
// with WithDegradation. The fence is 0 then.
func (l *Lease) Degraded() bool { return l.standIn }

// Deadline returns the instant, on this process's clock, until which the lease is certain to be
// held, unless the store loses data. Renewals extend it. It is the earlier of the deadlines on
// the process's two clocks. Once the lease has ended, it is the instant of the end.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookLocked() != nil {
		return l.ended
	}
	return l.endsLocked()
}

// Done returns a channel that is closed when the lease ends.
func (l *Lease) Done() <-chan struct{} {
	_ = l.Err() // which closes it if the lease has ended
	return l.lives.Done()
}

// Err returns nil while the lease is held. After that it returns [ErrReleased] if the lease
// was released or detached, a [*LostError], which matches [ErrLost], if it was lost, or
// [ErrClosed] if [Client.Shutdown] ended it.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lookLocked()
}

// String returns the key and the fence, not the token.
func (l *Lease) String() string { return fmt.Sprintf("lease %q (fence %d)", l.key, l.fence) }

// Format prints String, whatever the verb.
func (l *Lease) Format(s fmt.State, _ rune) { io.WriteString(s, l.String()) }

// LogValue returns the key and the fence, not the token.
func (l *Lease) LogValue() slog.Value {
	return slog.GroupValue(slog.String("key", l.key), slog.Int64("fence", l.fence))
}

// start schedules a new lease. It reports false if the Client has been closed.
func (l *Lease) start() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeper.closed.Load() {
		return false
	}
	if l.awaited = l.tentative; l.awaited {
		l.keeper.calls.Add(1)
	}
	l.planLocked(l.renewAt)
	return true
}

// unawaitLocked ends the wait of Close for the lease of a set.
func (l *Lease) unawaitLocked() {
	if l.awaited {
		l.awaited = false
		l.keeper.leave()
	}
}

// restLocked returns how long the lease is still certain to be held, by the clock that ends
// it first: the monotonic one stops while the machine is suspended.
func (l *Lease) restLocked(now time.Time) time.Duration {
	return min(l.deadline.Sub(now), l.wall.Sub(now.Round(0)))
}

// endsLocked returns until when the lease is certain to be held, or its key can be renewed for its MinHold.
func (l *Lease) endsLocked() time.Time {
	if l.custody != nil {
		return l.custody.until
	}
	now := time.Now()
	return now.Add(l.restLocked(now))
}

// lookLocked returns the Err of the lease, after a look at the clocks.
func (l *Lease) lookLocked() error {
	if l.err != nil {
		return l.err
	}
	if now := time.Now(); l.restLocked(now) <= 0 {
		l.expireLocked(now)
	} else if l.keeper.abandoned.Load() {
		l.endLocked(ErrClosed)
		l.keepLocked(true)
	}
	return l.err
}

// expireLocked ends a lease whose deadline has passed. The store may keep it a little longer,
// so its release is owed, after its MinHold.
func (l *Lease) expireLocked(now time.Time) {
	reason := LossExpired
	switch {
	case l.overheld(now):
		reason = LossMaxHold
	case l.deadline.After(now):
		reason = LossClock
	}
	l.loseLocked(reason)
	if !l.keepLocked(false) {
		l.keeper.owe(&owedRelease{lease: l})
	}
}

func (l *Lease) loseLocked(reason LossReason) { l.endLocked(l.lostLocked(reason)) }

// lostLocked returns the error of a loss.
func (l *Lease) lostLocked(reason LossReason) error {
	err := &LostError{Key: l.key, Reason: reason}
	if reason != LossRemoved { // for that the store has answered
		now := time.Now()
		if reason == LossExpired {
			l.retry.noteLateLocked(l.renewAt, now, l.ttl)
		}
		err.Err = l.retry.causeLocked(now)
	}
	return err
}

// endLocked ends the lease, once, and everything that depends on it.
func (l *Lease) endLocked(err error) {
	l.err = err
	if l.ended.IsZero() {
		l.ended = alarm.Earlier(l.deadline, time.Now())
	}
	if err != ErrClosed { // which its set has to release
		l.unawaitLocked()
	}
	l.keeper.forget(l, errors.Is(err, ErrLost))
	l.lives.End(err)
	l.release.settled = l.leaveBlockLocked(err == ErrReleased)
	l.reportEndLocked()
}

// overheld reports whether the MaxHold has passed.
func (l *Lease) overheld(now time.Time) bool {
	return l.options.maxHold > 0 && now.Sub(l.granted) >= l.options.maxHold
}

// extendLocked moves the deadline on: the store has acknowledged a request for ttl that was
// sent at since.
func (l *Lease) extendLocked(since time.Time, ttl time.Duration) {
	if deadline := since.Add(ttl - drift(ttl)); deadline.After(l.deadline) {
		l.extended, l.deadline, l.wall = since, deadline, deadline.Round(0)
	}
}

// lastTTLLocked returns the TTL of the request that extended the lease last.
func (l *Lease) lastTTLLocked() time.Duration {
	return (l.deadline.Sub(l.extended) + drift(0)) / 99 * 100
}

// planLocked schedules the lease: for a renewal at renewAt if it can be renewed then, else
// for its deadline.
func (l *Lease) planLocked(renewAt time.Time) {
	l.renewAt = time.Time{}
	if l.renewableLocked(renewAt) {
		l.renewAt = renewAt
		l.keeper.scheduleLease(l, renewAt, l.slackLocked())
	} else if l.custody == nil {
		l.keeper.scheduleLease(l, l.endsLocked(), 0)
	}
}

// renewableLocked reports whether the Client may renew the lease, or its key for its MinHold, at a given time.
func (l *Lease) renewableLocked(at time.Time) bool {
	if l.custody != nil {
		return at.Before(l.custody.until)
	}
	return l.options.autoRenew && !l.overheld(at) && at.Before(l.deadline)
}

// slackLocked is how much earlier than planned a renewal may be sent, so that those of many leases
// share a batch: a quarter of the wait, or half of it for a repetition, and a twelfth of the TTL at
// most. Leases whose plans differ by less than that are therefore renewed at one instant.
func (l *Lease) slackLocked() time.Duration {
	slack := time.Until(l.renewAt) / 4
	if !l.retry.since.IsZero() {
		slack *= 2
	}
	return min(l.ttl/12, slack)
}

// due is called when the lease's alarm is due. It ends the lease, or queues it for a renewal.
func (l *Lease) due() {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.lookLocked() == nil
	l.retry.noteLateLocked(l.renewAt, time.Now(), l.ttl)
	renew := !l.renewAt.IsZero() && (l.custody != nil || l.keeper.renewing.Err() == nil)
	l.renewAt = time.Time{}
	if held {
		l.leaveBlockLocked(false)
		l.keeper.scheduleLease(l, l.endsLocked(), 0)
	}
	if renew && (held || l.custody != nil) {
		l.retry.inFlight = false // it hangs
		l.keeper.dueForRenewal(l, l.endsLocked(), &l.retry)
	}
}

// mayRenew returns how long the lease still lasts, or why it cannot be renewed.
func (l *Lease) mayRenew(ctx context.Context) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch err := l.lookLocked(); {
	case err != nil:
		return 0, err
	case ended(ctx) != nil:
		return 0, endOf(ctx)
	case l.keeper.renewing.Err() != nil:
		return 0, ErrClosed
	case l.overheld(now):
		return 0, errMaxHold
	}
	l.leaveBlockLocked(false)
	return l.restLocked(now), nil
}

// beginRenewal returns the TTL with which a call that is made now is to renew the lease, and how long
// the lease still lasts. The TTL is 0 if the lease is not to be renewed. If that call hangs, the lease
// becomes due again.
func (l *Lease) beginRenewal(now time.Time, size int) (ttl, rest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.lookLocked() == nil
	switch {
	case held && l.keeper.renewing.Err() == nil && !l.overheld(now):
		ttl = l.ttl
	case l.custody != nil && l.renewableLocked(now) && l.keeper.over.Err() == nil:
		ttl = l.custody.ttl(now)
	default:
		return 0, 0
	}
	t := &l.retry
	t.sent, t.size, t.inFlight = now, size, true
	if t.since.IsZero() {
		t.since = now
	}
	l.planLocked(now.Add(l.patienceLocked(now)))
	return ttl, l.endsLocked().Sub(now)
}

// noteRenewal notes the result of a renewal. An answer after the deadline revives nothing. It is reported
// before the loss that it may have found.
func (l *Lease) noteRenewal(c renewal, r RenewResult) error {
	l.mu.Lock()
	report, now := l.observed() && l.err == nil, time.Now()
	info := RenewDoneInfo{Key: l.key, Fence: l.fence, Took: now.Sub(c.sent), Margin: l.restLocked(now), TTL: l.lastTTLLocked(), Batch: max(1, c.size)}
	reports := l.reports
	l.reports = false // not yet: first the renewal
	err := l.noteRenewalLocked(c, r)
	if report {
		caller := l.values
		if c.size == 0 || c.ctx.Err() == context.Canceled { // the latter by Close
			caller = c.ctx
		}
		info.Err = forEvent(caller, callError(c.ctx, c.sent, err))
	}
	if report && c.size > 0 {
		hooks.TellLater(&l.keeper.hooks, maxRoutine, l.options.observers, renewDone, l.values, info)
	}
	l.reports = reports
	l.reportEndLocked()
	l.mu.Unlock()
	if report && c.size == 0 {
		hooks.Tell(&l.keeper.hooks, l.options.observers, renewDone, l.values, info)
	}
	return err
}

func (l *Lease) noteRenewalLocked(c renewal, r RenewResult) error {
	switch {
	case l.custody != nil:
		l.noteKeptLocked(c, r)
		return l.err
	case r.Err != nil:
		return l.noteFailedRenewalLocked(c, r.Err)
	case l.lookLocked() != nil:
		return l.err
	case !r.Held:
		l.loseLocked(LossRemoved)
		return l.err
	}
	l.retry = retry{sent: l.retry.sent}
	l.extendLocked(c.sent, c.ttl)
	l.keeper.countRenewal(c.sent, false)
	l.planLocked(l.extended.Add(renewalPeriod(l.ttl)))
	return nil
}

func (l *Lease) noteFailedRenewalLocked(c renewal, err error) error {
	l.keeper.countRenewal(c.sent, true)
	err = errs.Hide(err, ErrLost, ErrReleased) // of another lease, if err is the cause of a ctx
	overtaken := c.sent.Before(l.extended)     // by one that has succeeded
	if t := &l.retry; !overtaken {
		t.noteLocked(err, time.Now())
		if t.since.IsZero() {
			t.since = c.sent
		}
	}
	if l.lookLocked() != nil {
		return l.err
	}
	if !overtaken {
		l.renewAgainLocked(c)
	}
	return err
}

// renewAgainLocked plans the next try, if a failed renewal was the latest planned one.
func (l *Lease) renewAgainLocked(c renewal) {
	t := &l.retry
	if c.size == 0 || !t.inFlight || c.sent.Before(t.sent) {
		return
	}
	if t.inFlight = false; c.spared {
		t.size = maxBatch
	}
	again := c.sent.Add(min(c.ttl/20, time.Second, l.patienceLocked(c.sent)))
	l.planLocked(alarm.Later(again, time.Now()))
}

// patienceLocked returns how long after sent a renewal is repeated at the latest, if it has
// no answer. All leases of the Client need a number of rounds of calls. The remaining time is
// divided so that all of them are renewed in time whenever the store begins to answer, less
// one round trip. With one round that is half of the remaining time. While the spoiler of a batch is
// looked for, it is an eighth: that takes ten calls at most.
func (l *Lease) patienceLocked(sent time.Time) time.Duration {
	parts := l.keeper.rounds() + 1
	if 0 < l.retry.halved && l.retry.size > 1 {
		parts = 8
	}
	return max(l.endsLocked().Sub(sent)/time.Duration(parts), time.Millisecond)
}

// replan makes a lease due at once.
func (l *Lease) replan() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookLocked() == nil || l.custody != nil {
		l.planLocked(time.Now())
	}
}

// Context returns a context for work that needs the lock. It ends with parent or with the
// lease, whichever is first; [context.Cause] returns parent's cause or the lease's Err. It
// need not be cancelled. [LeaseFromContext] finds the lease in it.
func (l *Lease) Context(parent context.Context) context.Context {
	_ = l.Err() // which ends what needs the lease if it has ended
	return l.lives.Context(parent, l, nameOf)
}

// nameOf is the name of a lease or a set in the text of a context. It shows no token.
func nameOf(owner any) string {
	if set, ok := owner.(*Leases); ok {
		return fmt.Sprintf("WithLeases(%d)", len(set.all))
	}
	return fmt.Sprintf("WithLease(%q)", owner.(*Lease).key)
}

// LeaseFromContext returns the lease of key that ctx carries, while it is held. [Client.Do],
// [Client.DoAll], [Lease.Context] and [Leases.Context] put it there. With it, code deep in the
// call tree finds the fence. LeaseFromContext returns false if ctx carries no lease of key, or if
// that lease was released, detached or lost. If ctx carries leases of key from Clients of several
// stores, it returns the one that was put there last.
//
// A goroutine that outlives the work needs a ctx from before Do or Lease.Context. A ctx of the
// work carries the lease, even through [context.WithoutCancel]. While the lease is held, an
// Acquire of the same key in that goroutine would fail with [ErrNested] instead of waiting.
func LeaseFromContext(ctx context.Context, key string) (*Lease, bool) {
	l := findLease(ctx, key, nil)
	return l, l != nil
}

// findLease returns the innermost lease of key in ctx that is held, or nil. An empty key means any,
// and so does k if it is nil.
func findLease(ctx context.Context, key string, k *keeper) *Lease {
	wanted := func(l *Lease) bool {
		return l != nil && (k == nil || l.keeper == k) && (key == "" || l.key == key) && l.Err() == nil
	}
	for {
		var owner any
		switch owner, ctx = contexts.Owner(ctx); owner := owner.(type) {
		case nil:
			return nil
		case *Lease:
			if wanted(owner) {
				return owner
			}
		case *Leases:
			if l := owner.byKey[key]; wanted(l) {
				return l
			}
			if key != "" {
				continue
			}
			if i := slices.IndexFunc(owner.all, wanted); i >= 0 {
				return owner.all[i]
			}
		}
	}
}
