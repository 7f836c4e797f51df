package dlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A keeper is shared by a Client and those made from it by With. It renews leases and sends
// owed releases, by a schedule of what is due when. One timer wakes it. There is no goroutine
// while nothing is due, and no timer while there is neither a lease nor an owed release.
//
// Locks: a function whose name ends in Locked is called while its receiver's mutex is locked.
// For a Lease and its trouble that is the mutex of the lease; for the keeper, renewals,
// owedReleases and workers it is that of the keeper. The mutex of a lease is locked before
// that of turns or of the keeper. Those of contendedKeys, lazyTimeout and events are locked
// last. No mutex is locked during a call of the Locker or of an Observer. A new lease that has
// not started needs no lock.
type keeper struct {
	locker    Locker
	contended contendedKeys
	turns     turns
	events    events

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
	changed   chan struct{} // of capacity 1: calls, leases or owed releases have become fewer

	mu       sync.Mutex
	schedule schedule
	timer    *time.Timer
	timerAt  time.Time // when timer fires; zero if it does not
	looked   time.Time // when leases were last compared with the wall clock
	leases   int       // that are held
	lost     uint64
	renewals renewals
	owed     owedReleases
	adopted  map[string]struct{}
}

func newKeeper(l Locker) *keeper {
	k := &keeper{
		locker:  l,
		changed: make(chan struct{}, 1),
		adopted: make(map[string]struct{}),
	}
	k.renewals.epoch = time.Now()
	k.renewals.latest.Store(-1)
	k.renewals.workers = workers{mu: &k.mu, size: renewers, most: maxRenewals - maxHolds, hungAfter: renewHungAfter, nextLocked: k.nextRenewalLocked}
	k.owed.workers = workers{mu: &k.mu, size: releasers, most: maxReleases, hungAfter: releaseHungAfter, nextLocked: k.nextReleaseLocked}
	k.owed.holdWorkers = workers{mu: &k.mu, size: renewers, most: maxHolds, hungAfter: renewHungAfter, nextLocked: k.nextHoldLocked}
	k.events.idle = k.notify
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

// untilClosed returns the context of a wait. It ends with ctx, or with cause ErrClosed when
// the Client is closed.
func (k *keeper) untilClosed(ctx context.Context) (context.Context, func()) {
	k.waiters.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(k.open, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		k.waiters.Add(-1)
	}
}

// within returns a context for a call in the background: it has values, and ends after d or
// with end.
func within(values context.Context, d time.Duration, end context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(values, d)
	stop := context.AfterFunc(end, cancel)
	return ctx, func() {
		stop()
		cancel()
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
	k.removeLocked(&l.event)
	if k.renewals.probe == l {
		k.renewals.probe = nil
	}
	delete(k.adopted, l.token)
	if k.closed.Load() {
		k.notify()
	}
}

// countLoss counts a loss that a release has found.
func (k *keeper) countLoss() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost++
}

func (k *keeper) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}
