package dlock

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// lookAround is how often leases are compared with the wall clock.
const lookAround = time.Second

// A keeper is what a Client shares with those made from it by With. It keeps
// leases alive and sends the releases that are owed, by an agenda of what is due
// when. One timer wakes it; there is no goroutine while nothing is due, and the timer
// is not set again when there is neither a lease nor an owed release.
//
// Where both are locked, the mutex of a lease is locked before that of the keeper.
type keeper struct {
	locker  Locker
	crowded crowd // where the Locker's queue is joined at once

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
	changed   chan struct{} // of capacity 1: calls, leases or owed releases have become fewer

	mu       sync.Mutex
	agenda   agenda
	timer    *time.Timer
	wake     time.Time // when timer fires; zero if it does not
	looked   time.Time // when leases were last compared with the wall clock
	leases   int       // that are held
	lost     uint64
	renewals renewals
	owed     owed
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
	k.renewals.workers = workers{mu: &k.mu, size: renewers, most: maxRenewals, patience: renewPatience, next: k.nextRenewal}
	k.owed.workers = workers{mu: &k.mu, size: releasers, most: maxReleases, patience: releasePatience, next: k.nextRelease}
	k.owed.holds = workers{mu: &k.mu, size: renewers, most: maxRenewals, patience: renewPatience, next: k.nextHold}
	k.open, k.endOpen = context.WithCancel(context.Background())
	k.renewing, k.endRenew = context.WithCancel(context.Background())
	k.over, k.endOver = context.WithCancel(context.Background())
	return k
}

// enter begins a call of the Client. It reports false if that is closed;
// otherwise leave must follow.
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

// untilClosed returns the context of a wait, which ends with ctx, or with cause
// ErrClosed when the Client is closed.
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

// within returns a context for a call in the background: with the values of one,
// and an end after d or with the other.
func within(values context.Context, d time.Duration, end context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(values, d)
	stop := context.AfterFunc(end, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

func (k *keeper) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
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

// countLoss counts the loss of a lease that its release has found.
func (k *keeper) countLoss() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost++
}

// An event is something on the agenda: a lease or an owed release that wants to be
// looked at, or, if it is neither, the owed releases as a whole. It is guarded by the
// keeper's mutex.
type event struct {
	lease *Lease
	debt  *debt
	at    time.Time
	slack time.Duration // how much earlier will do, if others are due then
	wall  time.Time     // for a lease: its deadline on the wall clock
	index int           // in the agenda, from 1; 0 if it is not there
}

// schedule puts a lease on the agenda, or moves it there.
func (k *keeper) schedule(l *Lease, at time.Time, slack time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !l.counted {
		l.counted = true
		k.leases++
	}
	l.event.slack, l.event.wall = slack, l.wall
	if k.abandoned.Load() { // after abandon has looked for leases here
		at = time.Now()
	}
	k.scheduleLocked(&l.event, at)
}

func (k *keeper) scheduleLocked(e *event, at time.Time) {
	e.at = at
	if e.index > 0 {
		heap.Fix(&k.agenda, e.index-1)
	} else {
		heap.Push(&k.agenda, e)
	}
	if k.wake.IsZero() || at.Before(k.wake) {
		k.setTimerLocked(time.Now(), at)
	}
}

func (k *keeper) removeLocked(e *event) {
	if e.index > 0 {
		heap.Remove(&k.agenda, e.index-1)
	}
}

// setTimerLocked makes the timer fire at the given time, or earlier to look around.
func (k *keeper) setTimerLocked(now, at time.Time) {
	d := min(at.Sub(now), lookAround)
	if look := lookAround - now.Sub(k.looked); look > 0 {
		d = min(d, look)
	}
	k.wake = now.Add(d)
	if k.timer == nil {
		k.timer = time.AfterFunc(d, k.tick)
	} else {
		k.timer.Reset(d)
	}
}

// tick does what is due.
func (k *keeper) tick() {
	due := k.takeDue()
	for _, e := range due {
		if e.lease != nil {
			e.lease.due()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range due {
		if e.debt != nil {
			k.dueLocked(e.debt)
		}
	}
	k.wakeLocked()
}

func (k *keeper) wakeLocked() {
	k.renewals.workers.wakeLocked()
	k.owed.workers.wakeLocked()
	k.owed.holds.wakeLocked()
}

// takeDue removes from the agenda what is due, and sets the timer for the rest.
func (k *keeper) takeDue() []*event {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	due := k.takeOverdueLocked(now)
	if len(k.agenda) > 0 && !k.agenda[0].at.After(now) {
		for len(k.agenda) > 0 && !k.agenda[0].at.Add(-k.agenda[0].slack).After(now) {
			due = append(due, heap.Pop(&k.agenda).(*event))
		}
	}
	k.wake = time.Time{}
	if len(k.agenda) > 0 {
		k.setTimerLocked(now, k.agenda[0].at)
	}
	return due
}

// takeOverdueLocked finds the leases whose deadline has passed on the wall clock
// only: the other one has stood still while the machine was suspended.
func (k *keeper) takeOverdueLocked(now time.Time) []*event {
	if now.Sub(k.looked) < lookAround {
		return nil
	}
	k.looked = now
	var overdue []*event
	for _, e := range k.agenda {
		if e.lease != nil && !now.Round(0).Before(e.wall) {
			overdue = append(overdue, e)
		}
	}
	for _, e := range overdue {
		k.removeLocked(e)
	}
	return overdue
}

// agenda is a heap of events, the earliest first.
type agenda []*event

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].at.Before(a[j].at) }

func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i+1, j+1
}

func (a *agenda) Push(x any) {
	e := x.(*event)
	*a = append(*a, e)
	e.index = len(*a)
}

func (a *agenda) Pop() any {
	last := len(*a) - 1
	e := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	e.index = 0
	return e
}
