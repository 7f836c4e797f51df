package dlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/hooks"
	"github.com/dlock-go/dlock/internal/owed"
	"github.com/dlock-go/dlock/internal/recent"
	"github.com/dlock-go/dlock/internal/storewait"
	"github.com/dlock-go/dlock/internal/workers"
)

// A keeper is shared by a Client and those made from it by With. It renews leases and sends owed
// releases. There is no goroutine while nothing is due, and no timer while there is neither a lease nor
// an owed release.
//
// Locks: a function whose name ends in Locked is called while its receiver's mutex is locked,
// and neither unlocks it nor waits. For a Lease and its trouble that is the mutex of the lease;
// for the keeper, its clock and its renewers it is that of the keeper. The mutex of a lease is locked
// before that of lines or of the keeper, and these before those of internal packages. No mutex is locked
// during a call of the Locker or of an Observer, except the sending of a lease, which is for that. A new
// lease that has not started needs no lock.
type keeper struct {
	locker    Locker
	lines     lines
	contended recent.Keys // that were waited for
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
		lines:   lines{all: make(map[class]*line)},
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
	if k.abandoned.Load() && l.kept == nil { // after abandon has looked for leases here
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
