package dlock

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/errs"
	"github.com/dlock-go/dlock/internal/hooks"
	"github.com/dlock-go/dlock/internal/owed"
	"github.com/dlock-go/dlock/internal/storewait"
)

// An Observer is called when something happens in a Client: see [WithObserver]. Functions that
// are nil are not called, and a Client without an Observer pays nothing. [NewLogObserver] makes
// one that logs. More fields may be added: name those that you set.
//
// Each call of Acquire, TryAcquire, Do or Adopt has one AcquireStart and one AcquireDone,
// whatever happens. Each lease that such a call was granted has one LeaseDone, after that
// AcquireDone. Holders that pass a lease on (see [WithLocalTurns], [Lease.Detach]) have one each.
//
// No mutex is held while functions run. They may call methods of the Client:
//
//   - What a caller does is reported in its goroutine, before its call returns; for a set, in
//     several goroutines at once. These are the functions for acquiring and releasing, the
//     LeaseDone of Release, the RenewDone of [Lease.Renew], and BreakDone.
//   - Losses, renewals, owed releases, StoreWait and InboxMissing come from the background: one goroutine reports
//     them in order. It also reports the LeaseDone of Detach, since the taker must not wait for that. If it falls
//     behind by 4,096 events (2,048 for all except losses), further ones are dropped, and counted in [Stats]. Close
//     and Shutdown wait for it for up to 5 s.
//
// A slow function delays only its caller. But the lock is held while AcquireDone runs, so whoever
// wants the key waits for it, too. An Acquire of the same key in AcquireDone waits for its own
// caller, and so does a Shutdown. While a set is acquired, so does a Close, for 5 s.
//
// A function may panic: the panic is recovered, and the first one is logged with [slog.Default].
// It must not call [runtime.Goexit].
//
// Of the ctx that a function returns, only the values are used: cancellation, deadline and any value
// that it lacks stay the caller's. Leases in it are not used: see [LeaseFromContext]. If it is nil,
// nothing changes. The ctx of AcquireStart is that of the acquisition. The ctx of AcquireDone is
// that of the lease: its later events have these values, as do its renewals and its release if they
// are sent alone. So a tracer can keep them out of a span that has ended.
//
// If a lease was lost before AcquireDone returned, Acquire returns the loss instead of the
// lease. AcquireDone has reported the grant by then, and LeaseDone reports the loss.
//
// The errors of events do not show keys: the event has the key. Tokens are never in an event.
type Observer struct {
	AcquireStart func(context.Context, AcquireStartInfo) context.Context
	WaitStart    func(context.Context, WaitStartInfo) // at most once for each acquisition
	StoreWait    func(context.Context, StoreWaitInfo)
	InboxMissing func(context.Context, InboxMissingInfo) // at most once for each acquisition
	AcquireDone  func(context.Context, AcquireDoneInfo) context.Context
	RenewDone    func(context.Context, RenewDoneInfo) // once for each lease of a batch
	LeaseDone    func(context.Context, LeaseDoneInfo)
	ReleaseDone  func(context.Context, ReleaseDoneInfo)
	OwedDone     func(context.Context, OwedDoneInfo)
	BreakDone    func(context.Context, BreakDoneInfo)
}

// WithObserver adds an Observer. If there are several, they are called in the order in which
// they were added. A Client made by [Client.With] has those of the Client that it was made from.
// o is copied: changing it later has no effect.
func WithObserver(o *Observer) Option {
	return func(options *options) {
		if o == nil {
			options.refuse("WithObserver: nil")
			return
		}
		if reflect.ValueOf(*o).IsZero() {
			return
		}
		all := options.observers
		options.observers = append(all[:len(all):len(all)], *o)
	}
}

// An AcquireOp is the method that acquires.
type AcquireOp string

// The methods that acquire.
const (
	OpAcquire AcquireOp = "acquire" // Acquire or Do
	OpTry     AcquireOp = "try"     // TryAcquire
	OpAdopt   AcquireOp = "adopt"   // Adopt
)

// An AcquireStartInfo describes an acquisition that begins.
type AcquireStartInfo struct {
	Op  AcquireOp
	Key string // empty if Adopt was called with an empty Detached
}

// A WaitStartInfo describes an acquisition that begins to wait.
type WaitStartInfo struct {
	Key string

	// Owner and Remaining are what the store has said about the holder, as in [HeldError]. They
	// are zero if the acquisition waits without having asked: the key was contended lately, or
	// the Client is making many attempts.
	Owner     string
	Remaining time.Duration

	// Inside is a key that the caller holds meanwhile: its ctx carries the lease, of the same Client or
	// one that is related to it by With. It is empty if there is none. If each of two callers holds
	// what the other waits for, they wait until WithMaxWait or ctx ends one wait: see
	// [Client.AcquireAll].
	Inside string
}

// A StoreWaitInfo describes an acquisition that waits for the store, not for a holder: its last request to the
// store has failed, and it goes on trying. It is reported after each such request, and once when the wait for
// the store is over. [Stats] counts the calls that wait for the store now.
type StoreWaitInfo struct {
	Key   string
	Since time.Time     // when the first of the requests that failed in a row was sent
	Took  time.Duration // since then
	Over  bool
	Err   error // of the last request. If Over: nil if the store has answered; else why the acquisition has ended

	call *storewait.Call
}

// An InboxMissingInfo describes a wait in the store's queue to which the store can send no message when it grants
// the lock, for example because its user has no right to subscribe. The waiter polls more often instead, and is
// served more slowly.
type InboxMissingInfo struct {
	Key string
	Err error // why
}

// An AcquireDoneInfo describes the end of an acquisition.
type AcquireDoneInfo struct {
	Op        AcquireOp
	Key       string
	Start     time.Time
	Took      time.Duration // until the lease was granted, or the acquisition failed
	Waited    time.Duration // the part of Took after WaitStart; 0 if there was none
	Contended bool          // another held the key, or the acquisition waited for at least 1 ms in the store's queue
	Attempts  int           // calls to the store; 0 if the lease was passed on inside the process. A call for a set counts for each key
	Fence     int64         // of the lease
	Degraded  bool          // see [Lease.Degraded]

	// Err is nil if a lease was granted. If the store takes a set as a whole, and this key was free while another key
	// of the set was held, Err matches [ErrHeld] but is no [*HeldError], and Contended is false.
	Err error
}

// A RenewDoneInfo describes the end of one renewal of one lease. A renewal that was overtaken by
// the end of its lease is not reported.
type RenewDoneInfo struct {
	Key    string
	Fence  int64
	Took   time.Duration
	Margin time.Duration // of the lease before its deadline when the answer came; not positive if that was too late
	TTL    time.Duration // with which the lease was extended last; shorter than that of WithTTL at the first renewal after a wait
	Batch  int           // how many leases were renewed by the same call
	Err    error         // matches ErrLost if the lease was lost, and context.Canceled if Close has cut it off
}

// A LeaseEnd is how a lease ended, in a word.
type LeaseEnd string

// The ends of leases.
const (
	EndReleased LeaseEnd = "released"
	EndDetached LeaseEnd = "detached"
	EndShutdown LeaseEnd = "shutdown" // [Client.Shutdown] has given up on it
	EndExpired  LeaseEnd = "expired"  // lost: [LossExpired]
	EndRemoved  LeaseEnd = "removed"  // lost: [LossRemoved]
	EndMaxHold  LeaseEnd = "max_hold" // lost: [LossMaxHold]
	EndClock    LeaseEnd = "clock"    // lost: [LossClock]
)

// A LeaseDoneInfo describes the end of a lease.
type LeaseDoneInfo struct {
	Key   string
	Fence int64
	At    time.Time     // of its end; the deadline, if that has passed
	Held  time.Duration // by this holder, until At
	End   LeaseEnd
	Err   error // as from [Lease.Err]. If its release found out that the lease was lost before, it matches ErrLost
}

// A ReleaseDoneInfo describes a call of [Lease.Release]. Calls that do nothing are not reported.
type ReleaseDoneInfo struct {
	Key  string
	Held time.Duration // as in [LeaseDoneInfo]
	Took time.Duration

	// Overrun is the time from the loss of the lease to the first call of Release: work that was
	// done without the lock. It is 0 if the lease was not lost, or if only its release found the
	// loss: nobody knows when that was.
	Overrun time.Duration

	Owed bool // the Client completes the release in the background
	Err  error
}

// An OwedDoneInfo describes the end of an owed release: of a lease, or of an attempt with an
// unknown outcome.
type OwedDoneInfo struct {
	Key  string
	Took time.Duration // since it was owed

	// Err is nil if the store has answered the release, or kept the key for its MinHold. If the
	// lease ended by itself before that, Err is that of the last call. Otherwise it says why the
	// Client gave up.
	Err error
}

// A BreakDoneInfo describes a call of [Client.Break].
type BreakDoneInfo struct {
	Key   string // empty if the Status shows no holder that Break accepts
	Owner string // of the lock, as in [Status]
	Took  time.Duration
	Err   error
}

// How many events of the background may wait for their Observers: losses, and all others.
const (
	maxEvents  = 4096
	maxRoutine = maxEvents / 2
)

func (c *Client) observed() bool { return len(c.options.observers) > 0 && c.keeper != nil }

func (l *Lease) observed() bool { return len(l.options.observers) > 0 }

// observe is take with Observers. They are called outside of the call that Close waits for.
func (r *request) observe(f func() (*Lease, error)) (lease *Lease, err error) {
	r.start = time.Now()
	hook := func(o *Observer) func(context.Context, AcquireStartInfo) context.Context { return o.AcquireStart }
	r.ctx, _ = hooks.Ask(&r.client.keeper.hooks, r.client.options.observers, hook, r.ctx, AcquireStartInfo{r.op, r.key})
	err = errPanic
	defer func() { lease, err = r.done(lease, err) }()
	return f()
}

// reportWait reports that a wait begins. If the Client was closed while an Observer ran, the wait
// must not begin.
func (r *request) reportWait(held *HeldError) error {
	if !r.waitStart.IsZero() {
		return nil
	}
	r.waitStart = time.Now()
	k, info := r.client.keeper, WaitStartInfo{Key: r.key}
	if inside := findLease(r.ctx, "", k); inside != nil {
		info.Inside = inside.key
		k.nested.Add(1)
	}
	if !r.client.observed() {
		return nil
	}
	if held != nil {
		info.Owner, info.Remaining = held.Owner, held.Remaining
	}
	k.leave()
	hook := func(o *Observer) func(context.Context, WaitStartInfo) { return o.WaitStart }
	hooks.Tell(&k.hooks, r.client.options.observers, hook, r.ctx, info)
	k.calls.Add(1)
	if k.closed.Load() {
		return ErrClosed
	}
	return nil
}

// reportStoreWait reports, in the background, that the acquisition waits for the store, or does so no more.
func (l *listener) reportStoreWait(info StoreWaitInfo) {
	info.Key, info.Err, info.call = l.key, forEvent(l.ctx, info.Err), &l.call
	hook := func(o *Observer) func(context.Context, StoreWaitInfo) { return o.StoreWait }
	hooks.TellLater(&l.client.keeper.hooks, maxRoutine, l.client.options.observers, hook, contexts.WithoutCancel(l.ctx), info)
}

func (l *listener) reportInboxMissing(err error) {
	info := InboxMissingInfo{Key: l.key, Err: forEvent(l.ctx, err)}
	hook := func(o *Observer) func(context.Context, InboxMissingInfo) { return o.InboxMissing }
	hooks.TellLater(&l.client.keeper.hooks, maxRoutine, l.client.options.observers, hook, contexts.WithoutCancel(l.ctx), info)
}

// done reports the end of the acquisition. A lease that has ended while the Observers ran is not
// returned.
func (r *request) done(lease *Lease, err error) (*Lease, error) {
	now := time.Now()
	info := AcquireDoneInfo{Op: r.op, Key: r.key, Start: r.start, Contended: r.contended, Attempts: r.attempts, Err: forEvent(r.ctx, err)}
	if lease != nil {
		now, info.Fence, info.Degraded = lease.grantedAt(), lease.fence, lease.standIn
	}
	info.Took = now.Sub(r.start)
	if !r.waitStart.IsZero() {
		info.Waited = max(0, now.Sub(r.waitStart)) // a lease may be passed on before WaitStart
	}
	hook := func(o *Observer) func(context.Context, AcquireDoneInfo) context.Context { return o.AcquireDone }
	ctx, differs := hooks.Ask(&r.client.keeper.hooks, r.client.options.observers, hook, r.ctx, info)
	if lease != nil {
		err = lease.announce(ctx, differs)
		if err == nil {
			return lease, nil
		}
		if errors.Is(err, ErrLost) {
			return nil, err
		}
		if r.op != OpAdopt { // Shutdown has ended it, and nobody works with it; but what is detached can be adopted again
			_ = lease.Release()
		}
	}
	return nil, r.wrap(err)
}

// announce notes that AcquireDone has returned. From now on the lease has the values of ctx, and
// reports its end. It returns the Err of the lease.
func (l *Lease) announce(ctx context.Context, changed bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if changed {
		l.values = contexts.WithoutCancel(ctx)
	}
	l.reports = true
	l.reportEndLocked() // if it has ended already
	return l.lookLocked()
}

// lookAtValues is for the background: a lease may be renewed before AcquireDone has returned.
func (l *Lease) lookAtValues() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.values
}

// reportEndLocked reports the end of the lease, if it has ended and that is to be reported; but not to its holder:
// Release and Detach do that themselves.
func (l *Lease) reportEndLocked() {
	if !l.reports || l.err == nil {
		return
	}
	l.reports = false
	if l.err != ErrReleased {
		l.reportDone(l.doneInfo(endByError(l.err), l.err))
	}
}

func (l *Lease) doneInfo(end LeaseEnd, err error) LeaseDoneInfo {
	return LeaseDoneInfo{Key: l.key, Fence: l.fence, At: l.ended, Held: l.held(), End: end, Err: forEvent(l.values, err)}
}

// held returns for how long the holder held a lease that has ended.
func (l *Lease) held() time.Duration { return max(0, l.ended.Sub(l.grantedAt())) }

// grantedAt returns when this holder got the lease.
func (l *Lease) grantedAt() time.Time { return l.granted.Add(l.before) }

func renewDone(o *Observer) func(context.Context, RenewDoneInfo) { return o.RenewDone }

func leaseDone(o *Observer) func(context.Context, LeaseDoneInfo) { return o.LeaseDone }

// reportDone reports the end of a lease in the background.
func (l *Lease) reportDone(info LeaseDoneInfo) {
	hooks.TellLater(&l.keeper.hooks, maxEvents, l.options.observers, leaseDone, l.values, info)
}

func endByError(err error) LeaseEnd {
	if lost, ok := err.(*LostError); ok {
		return map[LossReason]LeaseEnd{LossExpired: EndExpired, LossRemoved: EndRemoved, LossMaxHold: EndMaxHold, LossClock: EndClock}[lost.Reason]
	}
	return EndShutdown
}

// A releaseCall is what a call of Release tells the Observers.
type releaseCall struct {
	limit   time.Duration
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
		l.ended = alarm.Earlier(l.deadline, c.at)
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

func (l *Lease) reportRelease(c *releaseCall, err error) {
	took := time.Since(c.at)
	if c.ended {
		end, reason := EndReleased, ErrReleased
		if errors.Is(err, ErrLost) {
			end, reason = EndRemoved, err
		}
		hooks.Tell(&l.keeper.hooks, l.options.observers, leaseDone, l.values, l.doneInfo(end, reason))
	}
	if c.useless {
		return
	}
	info := ReleaseDoneInfo{Key: l.key, Held: l.held(), Took: took, Overrun: c.overrun, Owed: c.owed, Err: forEvent(l.values, err)}
	hook := func(o *Observer) func(context.Context, ReleaseDoneInfo) { return o.ReleaseDone }
	hooks.Tell(&l.keeper.hooks, l.options.observers, hook, l.values, info)
}

// reportOwed reports the end of an owed release.
func (k *keeper) reportOwed(c *owed.Call, err error) {
	r := c.For.(*owedRelease)
	switch {
	case len(r.observers) == 0:
		return
	case err == owed.ErrTooMany:
		err = errTooManyOwed
	case err == owed.ErrUnanswered:
		err = errUnanswered
	}
	info := OwedDoneInfo{Key: r.key, Took: time.Since(r.since), Err: forEvent(r.values, err)}
	hook := func(o *Observer) func(context.Context, OwedDoneInfo) { return o.OwedDone }
	hooks.TellLater(&k.hooks, maxRoutine, r.observers, hook, r.values, info)
}

// forEvent returns an error as a caller gets it, without keys in its text: neither that of the
// call, nor that of another lease or call whose error is the cause of ctx.
func forEvent(ctx context.Context, err error) error {
	if err == nil || err == ErrReleased {
		return err
	}
	if lost, ok := err.(*LostError); ok {
		return errs.Reword(lost.text(), nil, lost)
	}
	err = withEnd(ctx, err)
	cause := context.Cause(ctx)
	if cause == nil || ours(cause) == nil {
		return err
	}
	instead := ours(cause).Error()
	if lost, ok := cause.(*LostError); ok {
		instead = lost.text()
	}
	return errs.Reword(strings.ReplaceAll(err.Error(), cause.Error(), instead), nil, err)
}
