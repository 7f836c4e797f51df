package dlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// A Lease is a lock that is held. Until its [Lease.Deadline] nobody else is granted the lock.
// The Client moves the deadline on in the background for as long as the lease is held. Its
// methods are safe for concurrent use.
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

	announced bool // AcquireDone has returned, so the end of the lease is reported; guarded by mu

	inherited time.Duration // remaining time of the giver's lease, which may be longer than the TTL

	// Guarded by the keeper's mutex.
	alarm   alarm     // in the schedule
	counted bool      // it has been in the schedule
	queued  bool      // it is due for a renewal
	dueBy   time.Time // its deadline when it became due

	mu       sync.Mutex
	values   context.Context // of Acquire's ctx and its Observers; it never ends. Only announce changes it
	extended time.Time       // when the last acknowledged request was sent
	deadline time.Time
	wall     time.Time // the deadline on the wall clock
	renewAt  time.Time // when a renewal is due, until when a young lease is passed on; zero if none is
	trouble  trouble   // with its renewals
	line     *line     // to which it may be passed on; nil if it may not
	err      error     // nil while held
	ended    time.Time // what Deadline returns after the end
	done     chan struct{}
	lives    map[<-chan struct{}]*life // of its contexts, by the Done of their parents
	release  release
}

// The state of a lease: start begins it. It is held while err is nil. Only endLocked ends it:
// with ErrReleased for Release and Detach, with a LostError if the deadline has passed or the
// store does not know the lease, and with ErrClosed if Shutdown has given up on it. While it
// is held, it alternates between waiting for its next renewal (planLocked, due) and being
// renewed (beginRenewal, then renewed). Every method looks at the clocks first (lookLocked).

var errMaxHold = errors.New("held for longer than WithMaxHold allows")

// drift is subtracted from a TTL, for clocks that run at different speeds. It is that of the
// Redlock algorithm.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// newLease makes the lease that was granted to a for ttl, which may be shorter than the TTL
// of the options.
func newLease(a *acquisition, grant Attempt, ttl time.Duration) *Lease {
	l := &Lease{
		keeper:  a.client.keeper,
		options: &a.client.options,
		key:     a.key,
		token:   a.token,
		ttl:     a.ttl,
		fence:   grant.Fence,
		standIn: grant.Degraded,
		values:  withoutCancel(a.ctx),
		granted: a.returned,
	}
	l.alarm.lease = l
	l.extendLocked(grant.Since, ttl)
	l.renewAt = l.extended.Add(renewalPeriod(ttl))
	if ttl < l.ttl {
		l.renewAt = l.granted.Add(firstRenewal)
	}
	return l
}

func withoutCancel(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx // it never ends anyway
	}
	return context.WithoutCancel(ctx)
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

// Degraded reports whether the store was away when the lease was granted, and a stand-in in
// this process has granted it: other processes may hold the key, too. It needs a backend that
// does this, such as a breaker with WithDegradation. The fence is 0 then.
func (l *Lease) Degraded() bool { return l.standIn }

// Deadline returns the instant, on this process's clock, until which the lease is certain to
// be held, unless the store loses data. Renewals move it on. It is the earlier of the
// deadlines on the process's two clocks. Once the lease has ended, it is the instant of the end.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookLocked() != nil {
		return l.ended
	}
	now := time.Now()
	return earlier(l.deadline, now.Add(l.restLocked(now)))
}

// Done returns a channel that is closed when the lease ends.
func (l *Lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.lookLocked()
	if l.done == nil {
		l.done = make(chan struct{})
		if err != nil {
			close(l.done)
		}
	}
	return l.done
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
	l.planLocked(l.renewAt)
	return true
}

// restLocked returns how long the lease is still certain to be held, by the clock that ends
// it first: the monotonic one stops while the machine is suspended.
func (l *Lease) restLocked(now time.Time) time.Duration {
	return min(l.deadline.Sub(now), l.wall.Sub(now.Round(0)))
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
		if hold := l.holdUntil(now); !hold.IsZero() {
			l.keeper.owe(&owedRelease{lease: l, hold: hold, abandoned: true})
		}
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
	l.keeper.owe(&owedRelease{lease: l, hold: l.holdUntil(now)})
}

func (l *Lease) loseLocked(reason LossReason) { l.endLocked(l.lostLocked(reason)) }

// lostLocked returns the error of a loss.
func (l *Lease) lostLocked(reason LossReason) error {
	err := &LostError{Key: l.key, Reason: reason}
	if reason != LossRemoved { // for that the store has answered
		err.Err = l.trouble.causeLocked(time.Now())
	}
	return err
}

// endLocked ends the lease, once, and everything that depends on it.
func (l *Lease) endLocked(err error) {
	l.err = err
	if l.ended.IsZero() {
		l.ended = earlier(l.deadline, time.Now())
	}
	l.keeper.forget(l, errors.Is(err, ErrLost))
	if l.done != nil {
		close(l.done)
	}
	for _, life := range l.lives {
		life.cancel(err)
	}
	l.lives = nil
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
	if l.options.autoRenew && !l.overheld(renewAt) && renewAt.Before(l.deadline) {
		l.renewAt = renewAt
	}
	if l.renewAt.IsZero() {
		l.keeper.scheduleLease(l, l.deadline, 0)
	} else {
		l.keeper.scheduleLease(l, l.renewAt, l.slackLocked())
	}
}

// slackLocked is how much earlier than planned a renewal may be sent, so that those of many leases
// share a batch: a quarter of the wait, or half of it for a repetition, and a twelfth of the TTL at
// most. Leases whose plans differ by less than that are therefore renewed at one instant.
func (l *Lease) slackLocked() time.Duration {
	slack := time.Until(l.renewAt) / 4
	if l.trouble.inFlight > 0 || l.trouble.err != nil {
		slack *= 2
	}
	return min(l.ttl/12, slack)
}

// due is called when the lease's alarm is due. It ends the lease, or queues it for a renewal.
func (l *Lease) due() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookLocked() != nil {
		return
	}
	l.leaveBlockLocked(false)
	renew := !l.renewAt.IsZero() && l.keeper.renewing.Err() == nil
	l.renewAt = time.Time{}
	l.keeper.scheduleLease(l, l.deadline, 0)
	if renew {
		if t := &l.trouble; t.inFlight > 0 {
			l.unansweredLocked(outcome{sent: t.sent, answered: time.Now(), size: t.inFlight})
		}
		l.keeper.queueRenewal(l, l.deadline, l.trouble.queue)
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

// beginRenewal reports whether a call that is made now is to renew the lease, and how long
// the lease still lasts. If that call hangs, the lease becomes due again.
func (l *Lease) beginRenewal(now time.Time, size int) (rest time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookLocked() != nil || l.keeper.renewing.Err() != nil || l.overheld(now) {
		return 0, false
	}
	t := &l.trouble
	t.sent, t.inFlight = now, size
	if t.silentSince.IsZero() {
		t.silentSince = now
	}
	t.suspect = !t.failedAt.IsZero() && l.keeper.renewals.answeredSince(t.failedAt)
	l.planLocked(now.Add(l.patienceLocked(now)))
	return l.restLocked(now), true
}

// renewed notes the result of a renewal. An answer after the deadline revives nothing.
func (l *Lease) renewed(o outcome, r RenewResult) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.observed() && l.err == nil {
		return l.observeRenewalUnlocking(o, r)
	}
	return l.renewedLocked(o, r)
}

func (l *Lease) renewedLocked(o outcome, r RenewResult) error {
	if r.Err != nil {
		return l.renewalFailedLocked(o, r.Err)
	}
	switch {
	case l.lookLocked() != nil:
		return l.err
	case !r.Held:
		l.loseLocked(LossRemoved)
		return l.err
	}
	l.keeper.renewals.succeeded(o.sent)
	if l.trouble.queue >= queueSmaller {
		l.keeper.endProbe(l)
	}
	l.trouble = trouble{sent: l.trouble.sent}
	l.extendLocked(o.sent, l.ttl)
	l.planLocked(l.extended.Add(renewalPeriod(l.ttl)))
	return nil
}

// renewalFailedLocked plans the next try, if this was the latest planned renewal.
func (l *Lease) renewalFailedLocked(o outcome, err error) error {
	l.keeper.renewals.failed.Add(1)
	err = hide(err, ErrLost, ErrReleased) // of another lease, if err is the cause of a ctx
	t := &l.trouble
	overtaken := o.sent.Before(l.extended) // by one that has succeeded
	if !overtaken {
		t.err = err
		if t.silentSince.IsZero() {
			t.silentSince = o.sent
		}
	}
	if l.lookLocked() != nil {
		return l.err
	}
	if overtaken {
		return err
	}
	if o.size != manual && t.inFlight > 0 && !o.sent.Before(t.sent) {
		again := o.sent.Add(min(l.ttl/20, time.Second, l.patienceLocked(o.sent)))
		if l.unansweredLocked(o) {
			again = o.answered
		}
		l.planLocked(later(again, o.answered))
	}
	return err
}

// unansweredLocked chooses the queue of a lease whose latest renewal failed or hangs. It
// reports whether the lease is the probe now.
func (l *Lease) unansweredLocked(o outcome) (probe bool) {
	t := &l.trouble
	t.inFlight = 0
	t.noteLocked(l, o)
	if l.keeper.chooseProbe(l, o.size) {
		t.queue = queueCount - 1
		return true
	}
	return false
}

// patienceLocked returns how long after sent a renewal is repeated at the latest, if it has
// no answer. All leases of the Client need a number of rounds of calls. The remaining time is
// divided so that all of them are renewed in time whenever the store begins to answer, less
// one round trip. With one round that is half of the remaining time.
func (l *Lease) patienceLocked(sent time.Time) time.Duration {
	rounds := time.Duration(l.keeper.renewals.rounds.Load())
	return max(l.deadline.Sub(sent)/(rounds+1), time.Millisecond)
}

// endForReleaseLocked ends the lease for a call of Release, or returns its loss. After a
// Shutdown that gave up on the lease, the first Release counts as its end.
func (l *Lease) endForReleaseLocked(c *releaseCall) error {
	err, r := l.lookLocked(), &l.release
	c.beginLocked(l, err)
	switch {
	case errors.Is(err, ErrLost):
		return err
	case err == nil:
		l.endLocked(ErrReleased)
		l.keepForMinHoldLocked()
	case err == ErrClosed && r.sent == 0 && r.failure == nil && !r.settled: // the first call
		if l.restLocked(time.Now()) <= 0 {
			return l.lostLocked(LossExpired)
		}
		l.keepForMinHoldLocked()
	}
	return nil
}

// replan makes a lease due at once.
func (l *Lease) replan() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookLocked() == nil {
		l.planLocked(time.Now())
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// A life is shared by all contexts of a lease whose parents end together. The lease keeps
// nothing else of its contexts, so a context for each step of a long work costs nothing once
// it is dropped.
type life struct {
	context.Context // ends with the parents or the lease
	cancel          context.CancelCauseFunc
}

// A leaseContext has the values of its parent, ends with its life, and carries its lease: it
// is the value for leaseKey, so that a search for another lease can continue at its parent.
type leaseContext struct {
	context.Context // the parent
	life            *life
	first           bool // the life was made for this parent, and has its values
	lease           *Lease
}

type leaseKey struct{}

// Context returns a context for work that needs the lock. It ends with parent or with the
// lease, whichever is first; [context.Cause] returns parent's cause or the lease's Err. It
// need not be cancelled. [LeaseFromContext] finds the lease in it.
func (l *Lease) Context(parent context.Context) context.Context {
	life, made := l.lifeOf(parent)
	return &leaseContext{parent, life, made, l}
}

// lifeOf returns the life of contexts of parent, and whether it was made for this one. It asks
// parent without the mutex, since parent may ask the lease.
func (l *Lease) lifeOf(parent context.Context) (_ *life, made bool) {
	ends := parent.Done()
	if shared := l.share(ends, nil); shared != nil {
		return shared, false
	}
	outer, leave := context.WithCancel(parent)
	ctx, cancel := context.WithCancelCause(outer) // endLocked calls cancel, which asks nothing but outer
	own := &life{ctx, cancel}
	shared := l.share(ends, own)
	if shared != own { // another was made meanwhile
		leave()
		return shared, false
	}
	context.AfterFunc(ctx, func() {
		leave()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.lives, ends)
	})
	return own, true
}

// share returns the life of contexts whose parents end with ends, if there is one. Otherwise it
// makes own that life, unless own is nil, and returns own.
func (l *Lease) share(ends <-chan struct{}, own *life) *life {
	l.mu.Lock()
	defer l.mu.Unlock()
	if shared := l.lives[ends]; shared != nil || own == nil {
		return shared
	}
	if err := l.lookLocked(); err != nil {
		own.cancel(err)
		return own
	}
	if l.lives == nil {
		l.lives = make(map[<-chan struct{}]*life)
	}
	l.lives[ends] = own
	return own
}

func (c *leaseContext) Done() <-chan struct{} { return c.life.Done() }

func (c *leaseContext) Err() error { return c.life.Err() }

// Value returns the parent's values, with two exceptions: leaseKey, and the key by which
// package context finds its own contexts. The life answers that one.
func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c
	}
	if v := c.life.Value(key); c.first || v == any(c.life.Context) {
		return v
	}
	return c.Context.Value(key)
}

// String returns a text like those of package context, without the token.
func (c *leaseContext) String() string {
	return fmt.Sprintf("%v.WithLease(%q)", c.Context, c.lease.key)
}

// LeaseFromContext returns the lease of key that ctx carries, while it is held. [Client.Do]
// and [Lease.Context] put it there. With it, code deep in the call tree finds the fence.
// LeaseFromContext returns false if ctx carries no lease of key, or if that lease was
// released, detached or lost. If ctx carries leases of key from Clients of several stores, it
// returns the one that was put there last.
//
// A goroutine that outlives the work needs a ctx from before Do or Lease.Context. A ctx of
// the work carries the lease, even through [context.WithoutCancel]. While the lease is held,
// the goroutine would take it for its own, and its Acquire of the same key would fail with
// [ErrNested] instead of waiting.
func LeaseFromContext(ctx context.Context, key string) (*Lease, bool) {
	l := findLease(ctx, func(l *Lease) bool { return l.key == key })
	return l, l != nil
}

// findLease returns the innermost wanted lease in ctx that is held, or nil.
func findLease(ctx context.Context, wanted func(*Lease) bool) *Lease {
	for {
		c, _ := ctx.Value(leaseKey{}).(*leaseContext)
		if c == nil {
			return nil
		}
		if wanted(c.lease) && c.lease.Err() == nil {
			return c.lease
		}
		ctx = c.Context
	}
}
