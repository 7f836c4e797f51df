package dlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/errs"
	"github.com/dlock-go/dlock/internal/hooks"
	"github.com/dlock-go/dlock/internal/owed"
	"github.com/dlock-go/dlock/internal/pace"
	"github.com/dlock-go/dlock/internal/storewait"
	"github.com/dlock-go/dlock/internal/workers"
)

// A keeper is shared by a Client and those made from it by With. It renews leases and sends owed
// releases. There is no goroutine while nothing is due, and no timer while there is neither a lease nor
// an owed release.
//
// Locks: a function whose name ends in Locked is called while its receiver's mutex is locked,
// and neither unlocks it nor waits. For a Lease and its retry that is the mutex of the lease;
// for the keeper, its clock and its renewers it is that of the keeper. The mutex of a lease is locked
// before that of lines or of the keeper, and these before those of internal packages. No mutex is locked
// during a call of the Locker or of an Observer, except the sending of a lease, which is for that. A new
// lease that has not started needs no lock.
type keeper struct {
	locker    Locker
	lines     lines
	contended pace.Keys // that were waited for
	hooks     hooks.Queue
	owed      *owed.Queue // its releases

	open      context.Context // ends when Close or Shutdown is called
	endOpen   context.CancelFunc
	renewing  context.Context // ends when leases are not renewed any more
	endRenew  context.CancelFunc
	over      context.Context // ends when Close or Shutdown returns
	endOver   context.CancelFunc
	closed    atomic.Bool   // no new calls
	abandoned atomic.Bool   // leases that are still held have ended with ErrClosed
	calls     atomic.Int64  // of the Client, in flight
	waiters   atomic.Int64  // calls that wait for a key
	attempts  atomic.Int64  // first attempts, in flight
	unbatched atomic.Bool   // RenewBatch is unsupported
	nested    atomic.Uint64 // waits inside the work of another lease, so far
	noInbox   atomic.Uint64 // waits to which the store could send no messages, so far
	silence   storewait.Watch
	changed   chan struct{} // of capacity 1: calls, leases or owed releases have become fewer

	mu       sync.Mutex
	clock    *alarm.Clock // for leases
	leases   int          // that are held
	lost     uint64
	due      alarm.Queue  // leases that are due for a renewal, the earliest deadline first
	renewers workers.Pool // make the calls of renewals
	answered time.Time    // when the latest successful renewal was sent
	asked    time.Time    // when a lease was last renewed alone, to hear whether the store answers
	failed   uint64       // how many leases were not renewed by a call

	adopted map[string]struct{}
}

func newKeeper(l Locker) *keeper {
	_, batches := l.(BatchRenewer)
	k := &keeper{
		locker:  l,
		lines:   lines{all: make(map[lineID]*line)},
		changed: make(chan struct{}, 1),
		adopted: make(map[string]struct{}),
	}
	k.unbatched.Store(!batches)
	k.renewers = workers.Pool{Mu: &k.mu, Size: renewers, Most: maxRenewals, HungAfter: renewHungAfter, Next: k.nextRenewalLocked}
	k.owed = owed.New(k.sendOwed, k.reportOwed, k.notify, batches)
	k.hooks.Idle = k.notify
	k.clock = alarm.NewClock(&k.mu, k.ring)
	k.open, k.endOpen = context.WithCancel(context.Background())
	k.renewing, k.endRenew = context.WithCancel(context.Background())
	k.over, k.endOver = context.WithCancel(context.Background())
	return k
}

// enter begins a call of the Client. It reports false if the Client is closed; otherwise
// leave must follow.
func (k *keeper) enter() bool {
	k.calls.Add(1)
	if k.closed.Load() {
		k.leave()
		return false
	}
	return true
}

func (k *keeper) leave() {
	if k.calls.Add(-1) == 0 && k.closed.Load() {
		k.notify()
	}
}

// forget removes a lease that has ended.
func (k *keeper) forget(l *Lease, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.counted {
		k.leases--
	}
	if lost {
		k.lost++
	}
	k.clock.Unset(&l.alarm)
	delete(k.adopted, l.token)
	if k.closed.Load() {
		k.notify()
	}
}

// countRenewal counts a renewal that was sent at sent.
func (k *keeper) countRenewal(sent time.Time, failed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if failed {
		k.failed++
	} else {
		k.answered = alarm.Later(k.answered, sent)
	}
}

func (k *keeper) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// scheduleLease puts a lease into the schedule, or moves it there.
func (k *keeper) scheduleLease(l *Lease, at time.Time, slack time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !l.counted {
		l.counted = true
		k.leases++
	}
	l.alarm.Slack = slack
	if k.abandoned.Load() && l.custody == nil { // after abandon has looked for leases here
		at = time.Now()
	}
	k.clock.Set(&l.alarm, at)
}

// ring does what is due for leases.
func (k *keeper) ring(due []*alarm.Alarm) {
	for _, a := range due {
		a.For.(*Lease).due()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewers.Wake()
}

// errPanic is the error of a call that did not return.
var errPanic = errors.New("the Locker panicked")

const closeTimeout = 5 * time.Second // for all that is owed when a Client is closed

// Close ends all waits with [ErrClosed], and stops all renewal. Leases that are still held are
// lost at their deadlines; until then they can be released. Close waits up to 5 s for calls in
// flight to end, for the store to answer owed releases and the renewals of [WithMinHold], and
// for Observers. It does not wait for releases that the store refuses.
//
// If some releases were not answered, it returns an error that matches [ErrUnavailable]: their keys
// may stay for up to one TTL. So may the key of a release that was given up within the last TTL,
// because the store refuses it, or the Locker or the store's client was closed first: Close returns
// its error. [Stats] counts releases that were dropped because there were too many.
//
// Close does not close the Locker. Closing a closed Client does nothing.
//
// A Client that is not closed leaks nothing: it has no goroutine while there is nothing to
// do. But call Close or [Client.Shutdown] before the process ends. Otherwise owed releases
// are not sent, and keys may be freed before their [WithMinHold] has passed.
func (c *Client) Close() error {
	k := c.keeper
	if k == nil || k.closed.Swap(true) {
		return nil
	}
	k.endOpen()
	return k.close("close")
}

// Shutdown ends all waits with [ErrClosed], refuses new calls, and waits until all leases
// have been released or lost, or ctx ends. Leases are renewed meanwhile. When ctx ends,
// leases that are still held end with ErrClosed, and their contexts with them. They are not
// released, since their work may still run: unless their holders call Release, their keys
// stay until their TTL and their [WithMinHold] have passed. Then Shutdown does what Close
// does, for up to 5 s more.
//
// It returns nil if nothing is left to release. If leases were still held, it returns an error that matches that of
// ctx; otherwise it returns the error of Close. After Close or Shutdown, a call of either does nothing and returns
// nil at once.
func (c *Client) Shutdown(ctx context.Context) error {
	k := c.keeper
	if k == nil || k.closed.Swap(true) {
		return nil
	}
	k.endOpen()
	k.waitWhile(ctx, k.working)
	held := 0
	if k.working() {
		held = k.abandon()
	}
	err := k.close("shutdown")
	if held > 0 {
		return fmt.Errorf("dlock: shutdown: %w: %d leases still held", endOf(ctx), held)
	}
	return err
}

// working reports whether leases are held, or calls are in flight.
func (k *keeper) working() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leases > 0 || k.calls.Load() > 0
}

// abandon ends all leases without releasing them, and returns how many.
func (k *keeper) abandon() int {
	k.abandoned.Store(true)
	k.mu.Lock()
	n := k.leases
	var leases []*Lease
	for _, a := range k.clock.All() { // a lease that was just taken from it looks by itself
		leases = append(leases, a.For.(*Lease))
	}
	k.mu.Unlock()
	for _, l := range leases {
		_ = l.Err() // it ends the lease
	}
	return n
}

// close ends renewal, and waits for what is in flight and owed.
func (k *keeper) close(op string) error {
	k.endRenew()
	k.hurry()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	k.waitWhile(ctx, k.outstanding)
	calls, owed, last := k.finish()
	k.waitWhile(ctx, k.hooks.Running)
	switch {
	case calls > 0 || owed > 0:
		text := fmt.Sprintf("dlock: %s: %v: %d releases not answered, and %d calls not ended, within %v: their keys may stay for up to one TTL",
			op, ErrUnavailable, owed, calls, closeTimeout)
		return errs.Reword(text, ErrUnavailable, errs.HideContext(last))
	case last != nil:
		return fmt.Errorf("dlock: %s: a release was given up, and its key may stay for up to one TTL: %w", op, errs.HideContext(last))
	}
	return nil
}

// waitWhile waits until nothing is outstanding, or ctx ends.
func (k *keeper) waitWhile(ctx context.Context, outstanding func() bool) {
	for outstanding() && ctx.Err() == nil {
		select {
		case <-k.changed:
		case <-ctx.Done():
		}
	}
}

// hurry makes owed releases that wait for their next try due at once, and renewals for MinHolds.
func (k *keeper) hurry() {
	held := k.owed.Hurry()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range held {
		if l := c.For.(*owedRelease).lease; l != nil { // else the answer to an attempt is waited for
			k.clock.Set(&l.alarm, time.Now())
		}
	}
}

// outstanding reports whether there is anything for Close to wait for. Once there is not, no release is
// taken on any more: Close does not wait for a call of Release that begins after that.
func (k *keeper) outstanding() bool {
	return !k.owed.Seal(func() bool { return k.calls.Load() == 0 && !k.hooks.Running() })
}

// finish drops all owed releases. It returns for how many calls and releases Close has waited in vain, and
// the error of the last try of a release, or why one was given up.
func (k *keeper) finish() (calls, unanswered int, last error) {
	defer k.endOver()
	calls = int(k.calls.Load()) // before Finish: a call that fails after it is not owed
	inVain, unanswered, last := k.owed.Finish(ErrClosed)
	if !inVain {
		calls = 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clock.Rest()
	return calls, unanswered, last
}
