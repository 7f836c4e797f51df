package dlock

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// How many calls a Client makes at once in the background, and when one that hangs
// is not counted any more.
const (
	renewers       = 32
	renewPatience  = 20 * time.Millisecond
	payers         = 8
	payersPatience = time.Second
)

// lookAround is how often leases are compared with the wall clock.
const lookAround = time.Second

// A keeper is what a Client shares with those made from it by With. It keeps
// leases alive and pays debts, by an agenda of what is due when. One timer wakes
// it; there is no goroutine while nothing is due, and the timer is not set again
// when there is neither lease nor debt.
type keeper struct {
	locker    Locker
	noBatches atomic.Bool // the Locker's RenewBatch is unsupported
	crowded   crowd       // where the Locker's queue is joined at once
	renewals  crew[*renewal]
	payments  crew[*debt] // releases that are owed
	holds     crew[*debt] // renewals for a MinHold

	open    context.Context // ends when Close is called
	endOpen context.CancelFunc
	over    context.Context // ends when Close returns
	endOver context.CancelFunc
	closed  atomic.Bool
	calls   atomic.Int64  // of the Client, on their way
	changed chan struct{} // of capacity 1: calls or debts have become fewer, for close

	mu       sync.Mutex
	agenda   agenda
	timer    *time.Timer
	wake     time.Time // when timer fires; zero if it does not
	looked   time.Time // when leases were last compared with the wall clock
	debts    map[*debt]struct{}
	finished bool // no more debts are taken on
	adopted  map[string]struct{}
}

func newKeeper(l Locker) *keeper {
	k := &keeper{
		locker:  l,
		changed: make(chan struct{}, 1),
		debts:   make(map[*debt]struct{}),
		adopted: make(map[string]struct{}),
	}
	k.renewals = crew[*renewal]{size: renewers, patience: renewPatience, do: k.renew}
	k.holds = crew[*debt]{size: renewers, patience: renewPatience, do: k.pay}
	k.payments = crew[*debt]{size: payers, patience: payersPatience, do: k.pay}
	k.open, k.endOpen = context.WithCancel(context.Background())
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

// untilClosed returns a context that ends with ctx, or with cause ErrClosed when
// the Client is closed.
func (k *keeper) untilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(k.open, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
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

// close returns how many calls are still on their way, and how many releases are
// owed that the store has not answered.
func (k *keeper) close() (calls, debts int) {
	if k.closed.Swap(true) {
		return 0, 0
	}
	k.endOpen()
	k.hurry()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	for k.outstanding() {
		select {
		case <-k.changed:
		case <-timer.C:
			return k.finish()
		}
	}
	return k.finish()
}

// hurry tries at once to pay the debts that wait for their next try.
func (k *keeper) hurry() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for d := range k.debts {
		if !d.answered && d.event.index > 0 {
			k.removeLocked(&d.event)
			d.tries = 0
			k.crewFor(d).add(d)
		}
	}
}

func (k *keeper) outstanding() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls.Load() > 0 || k.unanswered() > 0
}

func (k *keeper) finish() (calls, debts int) {
	defer k.endOver()
	k.mu.Lock()
	defer k.mu.Unlock()
	calls, debts = int(k.calls.Load()), k.unanswered()
	k.finished = true
	for d := range k.debts {
		k.drop(d)
	}
	if len(k.agenda) == 0 && k.timer != nil {
		k.timer.Stop()
		k.wake = time.Time{}
	}
	return calls, debts
}

// forget removes a lease that has ended.
func (k *keeper) forget(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeLocked(&l.event)
	delete(k.adopted, l.token)
}

// An event is something on the agenda: a lease or a debt that wants to be looked
// at. It is guarded by the keeper's mutex.
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
	l.event.slack, l.event.wall = slack, l.wall
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
		k.setTimer(time.Now(), at)
	}
}

func (k *keeper) removeLocked(e *event) {
	if e.index > 0 {
		heap.Remove(&k.agenda, e.index-1)
	}
}

// setTimer makes the timer fire at the given time, or earlier to look around.
func (k *keeper) setTimer(now, at time.Time) {
	d := min(at.Sub(now), lookAround)
	k.wake = now.Add(d)
	if k.timer == nil {
		k.timer = time.AfterFunc(d, k.tick)
	} else {
		k.timer.Reset(d)
	}
}

// tick does what is due.
func (k *keeper) tick() {
	renewals := make(map[int][]*Lease) // by how often they failed together
	for _, e := range k.takeDue() {
		if e.debt != nil {
			k.crewFor(e.debt).add(e.debt)
		} else if group, renew := e.lease.due(); renew {
			renewals[group] = append(renewals[group], e.lease)
		}
	}
	for group, leases := range renewals {
		k.renewAll(leases, group)
	}
}

// takeDue removes from the agenda what is due, and sets the timer for the rest.
func (k *keeper) takeDue() []*event {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	due := k.takeOverdue(now)
	if len(k.agenda) > 0 && !k.agenda[0].at.After(now) {
		for len(k.agenda) > 0 && !k.agenda[0].at.Add(-k.agenda[0].slack).After(now) {
			due = append(due, heap.Pop(&k.agenda).(*event))
		}
	}
	k.wake = time.Time{}
	if len(k.agenda) > 0 {
		k.setTimer(now, k.agenda[0].at)
	}
	return due
}

// takeOverdue finds the leases whose deadline has passed on the wall clock only:
// the other one has stood still while the machine was suspended.
func (k *keeper) takeOverdue(now time.Time) []*event {
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
