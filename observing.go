package dlock

import (
	"context"
	"errors"
	"strings"
	"time"
)

// An observation is what an acquisition tells its Observers.
type observation struct {
	start     time.Time
	waitStart time.Time // zero before WaitStart
	attempts  int
	contended bool
}

func (c *Client) observed() bool { return len(c.options.observers) > 0 && c.keeper != nil }

func (a *acquisition) observed() bool { return a.client.observed() }

func (l *Lease) observed() bool { return len(l.options.observers) > 0 }

// observe is take with Observers. They are called outside of the call that Close waits for.
func (a *acquisition) observe(d *detached) (lease *Lease, err error) {
	a.start = time.Now()
	hook := func(o *Observer) func(context.Context, AcquireStartInfo) context.Context { return o.AcquireStart }
	a.ctx = ask(&a.client.keeper.events, a.client.options.observers, hook, a.ctx, AcquireStartInfo{a.op, a.key})
	err = errPanic
	defer func() { lease, err = a.done(lease, err) }()
	return a.take(d)
}

// waits reports that a wait begins. If the Client was closed while an Observer ran, the wait
// must not begin.
func (a *acquisition) waits() error {
	if !a.observed() || !a.waitStart.IsZero() {
		return nil
	}
	a.waitStart = time.Now()
	info := WaitStartInfo{Key: a.key}
	if a.held != nil {
		info.Owner, info.Remaining = a.held.Owner, a.held.Remaining
	}
	k := a.client.keeper
	k.leave()
	hook := func(o *Observer) func(context.Context, WaitStartInfo) { return o.WaitStart }
	tell(&k.events, a.client.options.observers, hook, a.ctx, info)
	k.calls.Add(1)
	if k.closed.Load() {
		return ErrClosed
	}
	return nil
}

// done reports the end of the acquisition. A lease that has ended while the Observers ran is not
// returned.
func (a *acquisition) done(lease *Lease, err error) (*Lease, error) {
	var now time.Time
	if lease != nil {
		now = lease.grantedAt()
	} else {
		now = time.Now()
	}
	info := AcquireDoneInfo{
		Op:        a.op,
		Key:       a.key,
		Start:     a.start,
		Took:      now.Sub(a.start),
		Contended: a.contended,
		Attempts:  a.attempts,
		Err:       forEvent(a.ctx, err),
	}
	if !a.waitStart.IsZero() {
		info.Waited = max(0, now.Sub(a.waitStart)) // a lease may be passed on before WaitStart
	}
	if lease != nil {
		info.Fence, info.Degraded = lease.fence, lease.standIn
	}
	hook := func(o *Observer) func(context.Context, AcquireDoneInfo) context.Context { return o.AcquireDone }
	ctx := ask(&a.client.keeper.events, a.client.options.observers, hook, a.ctx, info)
	if lease == nil {
		return nil, a.wrap(err)
	}
	switch end := lease.announce(ctx, !same(ctx, a.ctx)); {
	case end == nil:
		return lease, nil
	case errors.Is(end, ErrLost):
		return nil, end
	default: // Shutdown has ended it, and nobody works with it
		_ = lease.Release()
		return nil, a.wrap(end)
	}
}

// announce notes that AcquireDone has returned. From now on the lease has the values of ctx, and
// reports its end. It returns the Err of the lease.
func (l *Lease) announce(ctx context.Context, changed bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if changed {
		l.values = withoutCancel(ctx)
	}
	err := l.lookLocked()
	l.announced = true
	l.reportEndLocked()
	return err
}

// lookAtValues is for the background: a lease may be renewed before AcquireDone has returned.
func (l *Lease) lookAtValues() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.values
}

// reportEndLocked reports the end of a lease, except to its holder: Release and Detach do that
// themselves.
func (l *Lease) reportEndLocked() {
	if !l.announced || l.err == nil || l.err == ErrReleased {
		return
	}
	l.tellDoneLater(l.doneInfo(endByError(l.err), l.err))
}

func (l *Lease) doneInfo(end LeaseEnd, err error) LeaseDoneInfo {
	return LeaseDoneInfo{
		Key:   l.key,
		Fence: l.fence,
		At:    l.ended,
		Held:  l.held(),
		End:   end,
		Err:   forEvent(l.values, err),
	}
}

// held returns for how long the holder held a lease that has ended.
func (l *Lease) held() time.Duration { return max(0, l.ended.Sub(l.grantedAt())) }

// grantedAt returns when this holder got the lease.
func (l *Lease) grantedAt() time.Time { return l.granted.Add(l.before) }

func leaseDone(o *Observer) func(context.Context, LeaseDoneInfo) { return o.LeaseDone }

// tellDone reports the end of a lease by its holder.
func (l *Lease) tellDone(info LeaseDoneInfo) {
	tell(&l.keeper.events, l.options.observers, leaseDone, l.values, info)
}

// tellDoneLater reports the end of a lease in the background.
func (l *Lease) tellDoneLater(info LeaseDoneInfo) {
	tellLater(&l.keeper.events, maxEvents, l.options.observers, leaseDone, l.values, info)
}

func endByError(err error) LeaseEnd {
	lost, ok := err.(*LostError)
	if !ok {
		return EndShutdown
	}
	switch lost.Reason {
	case LossRemoved:
		return EndRemoved
	case LossMaxHold:
		return EndMaxHold
	case LossClock:
		return EndClock
	}
	return EndExpired
}

// observeRenewalLocked is renewedLocked with Observers. A loss is reported after the renewal that
// found it.
func (l *Lease) observeRenewalLocked(o outcome, r RenewResult) error {
	announced, margin, ttl := l.announced, l.restLocked(o.answered), l.lastTTLLocked()
	l.announced = false
	err := l.renewedLocked(o, r)
	caller := l.values
	if o.size == manual || o.ctx.Err() == context.Canceled { // the latter by Close
		caller = o.ctx
	}
	info := RenewDoneInfo{
		Key:    l.key,
		Fence:  l.fence,
		Took:   o.answered.Sub(o.sent),
		Margin: margin,
		TTL:    ttl,
		Batch:  o.leases,
		Err:    forEvent(caller, said(o.ctx, o.sent, err)),
	}
	e, all, ctx := &l.keeper.events, l.options.observers, l.values
	hook := func(o *Observer) func(context.Context, RenewDoneInfo) { return o.RenewDone }
	if o.size != manual {
		tellLater(e, maxRoutine, all, hook, ctx, info)
	}
	l.announced = announced
	l.reportEndLocked()
	if o.size == manual {
		l.stepOutLocked(func() { tell(e, all, hook, ctx, info) })
	}
	return err
}

// A releaseCall is what a call of Release tells the Observers.
type releaseCall struct {
	at      time.Time
	ended   bool // it has ended the lease
	useless bool // it has nothing to do
	owed    bool
	overrun time.Duration
}

// beginLocked notes the state of the lease at the call.
func (c *releaseCall) beginLocked(l *Lease, err error) {
	if !l.observed() {
		return
	}
	r := &l.release
	c.ended, c.useless = err == nil, r.settled
	if c.ended {
		l.ended = earlier(l.deadline, c.at)
	}
	lostAt := l.ended
	if err == ErrClosed { // by Shutdown, and lost since, if its deadline has passed
		lostAt = l.deadline
	}
	if errors.Is(err, ErrLost) || err == ErrClosed && !c.at.Before(lostAt) {
		c.overrun, c.useless = max(0, c.at.Sub(lostAt)), r.called
	}
	r.called = true
}

// observeRelease is Release with Observers.
func (l *Lease) observeRelease() error {
	c, err := releaseCall{at: time.Now()}, errPanic
	defer func() { l.reportRelease(&c, err) }()
	err = l.releaseOnce(&c)
	return wrapUnlessLost(l.values, "release", l.key, err)
}

func (l *Lease) reportRelease(c *releaseCall, err error) {
	took := time.Since(c.at)
	if c.ended {
		end, reason := EndReleased, ErrReleased
		if errors.Is(err, ErrLost) {
			end, reason = EndRemoved, err
		}
		l.tellDone(l.doneInfo(end, reason))
	}
	if c.useless {
		return
	}
	info := ReleaseDoneInfo{
		Key:     l.key,
		Held:    l.held(),
		Took:    took,
		Overrun: c.overrun,
		Owed:    c.owed,
		Err:     forEvent(l.values, err),
	}
	hook := func(o *Observer) func(context.Context, ReleaseDoneInfo) { return o.ReleaseDone }
	tell(&l.keeper.events, l.options.observers, hook, l.values, info)
}

// reportOwed reports the end of an owed release.
func (k *keeper) reportOwed(r *owedRelease, err error) {
	if len(r.observers) == 0 {
		return
	}
	info := OwedDoneInfo{Key: r.key, Took: time.Since(r.since), Err: forEvent(r.values, err)}
	hook := func(o *Observer) func(context.Context, OwedDoneInfo) { return o.OwedDone }
	tellLater(&k.events, maxRoutine, r.observers, hook, r.values, info)
}

func (c *Client) tellBreak(ctx context.Context, info BreakDoneInfo) {
	hook := func(o *Observer) func(context.Context, BreakDoneInfo) { return o.BreakDone }
	tell(&c.keeper.events, c.options.observers, hook, ctx, info)
}

// forEvent returns an error as a caller gets it, without keys in its text: neither that of the
// call, nor that of another lease or call whose error is the cause of ctx.
func forEvent(ctx context.Context, err error) error {
	if err == nil || err == ErrReleased {
		return err
	}
	if lost, ok := err.(*LostError); ok {
		return keyless{lost, lost}
	}
	err = withEnd(ctx, err)
	if cause := context.Cause(ctx); cause != nil && ours(cause) != nil {
		return keyless{err, cause}
	}
	return err
}

// A keyless is an error whose text does not show a part of it, which has a key.
type keyless struct{ err, part error }

func (e keyless) Error() string {
	instead := ours(e.part).Error()
	if lost, ok := e.part.(*LostError); ok {
		instead = lost.text()
	}
	return strings.ReplaceAll(e.err.Error(), e.part.Error(), instead)
}

func (e keyless) Unwrap() error { return e.err }
