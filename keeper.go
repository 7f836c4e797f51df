package dlock

import (
	"container/heap"
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// A keeper is shared by a Client and those made from it by With. It renews leases and sends
// owed releases, by a schedule of what is due when. One timer wakes it. There is no goroutine
// while nothing is due, and no timer while there is neither a lease nor an owed release.
//
// Locks: a function whose name ends in Locked is called while its receiver's mutex is locked,
// and neither unlocks it nor waits. For a Lease and its trouble that is the mutex of the lease;
// for the keeper, an owedRelease and workers it is that of the keeper. The mutex of a
// lease is locked before that of lines or of the keeper. Those of lazyTimeout and hookQueue are
// locked last. No mutex is locked during a call of the Locker or of an
// Observer. A new lease that has not started needs no lock.
type keeper struct {
	locker Locker
	lines  lines
	hooks  hookQueue

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
	nested    atomic.Uint64 // waits inside the work of another lease, so far
	changed   chan struct{} // of capacity 1: calls, leases or owed releases have become fewer

	mu       sync.Mutex
	schedule schedule
	timer    *time.Timer
	timerAt  time.Time // when timer fires; zero if it does not
	looked   time.Time // when the clocks were last compared
	lookedAt time.Time // the same on the wall clock
	leases   int       // that are held
	lost     uint64
	owed     struct {
		workers workers
		all     list.List    // those answered first, then the oldest, without those of a MinHold that lasts
		holds   list.List    // those of a MinHold that lasts; the lease is renewed meanwhile
		ready   [2]list.List // those that are due: of attempts, of leases
		turn    int          // which of the two was last

		unanswered int           // of all and holds: Close waits for them
		silent     int           // tries in a row that got no answer
		fastest    time.Duration // answer so far; 0 before the first
		away       alarm         // the next try while the store is away
		awayTryAt  time.Time     // its earliest time
		dropped    uint64
		finished   bool // no more are taken on
	}

	due       schedule  // leases that are due for a renewal, the earliest deadline first
	renewers  workers   // make the calls of renewals
	unbatched bool      // RenewBatch is unsupported
	answered  time.Time // when the latest successful renewal was sent
	asked     time.Time // when a lease was last renewed alone, to hear whether the store answers
	failed    uint64    // how many leases were not renewed by a call

	adopted map[string]struct{}
}

func newKeeper(l Locker) *keeper {
	_, batches := l.(BatchRenewer)
	k := &keeper{
		locker:    l,
		unbatched: !batches,
		changed:   make(chan struct{}, 1),
		adopted:   make(map[string]struct{}),
	}
	k.renewers = workers{mu: &k.mu, size: renewers, most: maxRenewals, hungAfter: renewHungAfter, nextLocked: k.nextRenewalLocked}
	k.owed.workers = workers{mu: &k.mu, size: releasers, most: maxReleases, hungAfter: releaseHungAfter, nextLocked: k.nextReleaseLocked}
	k.hooks.idle = k.notify
	k.looked = time.Now()
	k.lookedAt = k.looked.Round(0)
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
	k.removeLocked(&l.alarm)
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

// countRenewal counts a renewal that was sent at sent.
func (k *keeper) countRenewal(sent time.Time, failed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if failed {
		k.failed++
	} else {
		k.answered = later(k.answered, sent)
	}
}

func (k *keeper) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// lookAround is how often the wall clock is compared with the monotonic one.
const lookAround = time.Second

// An alarm is when a lease or an owed release is due, or, if it has neither, when the owed
// releases as a whole are. It is guarded by the keeper's mutex.
type alarm struct {
	lease *Lease
	owed  *owedRelease
	at    time.Time
	slack time.Duration // how much earlier it may be taken, together with others
	index int           // in the schedule, from 1; 0 if it is not there
}

// scheduleLease puts a lease into the schedule, or moves it there.
func (k *keeper) scheduleLease(l *Lease, at time.Time, slack time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !l.counted {
		l.counted = true
		k.leases++
	}
	l.alarm.slack = slack
	if k.abandoned.Load() && l.kept == nil { // after abandon has looked for leases here
		at = time.Now()
	}
	k.scheduleLocked(&l.alarm, at)
}

// scheduleLocked puts an alarm into the schedule, or moves it there.
func (k *keeper) scheduleLocked(a *alarm, at time.Time) {
	a.at = at
	if a.index > 0 {
		heap.Fix(&k.schedule, a.index-1)
	} else {
		heap.Push(&k.schedule, a)
	}
	if k.timerAt.IsZero() || at.Before(k.timerAt) {
		k.setTimerLocked(time.Now(), at)
	}
}

func (k *keeper) removeLocked(a *alarm) {
	if a.index > 0 {
		heap.Remove(&k.schedule, a.index-1)
	}
}

// setTimerLocked makes the timer fire at the given time, or earlier to look at the wall clock.
func (k *keeper) setTimerLocked(now, at time.Time) {
	d := min(at.Sub(now), lookAround)
	if look := lookAround - now.Sub(k.looked); look > 0 {
		d = min(d, look)
	}
	k.timerAt = now.Add(d)
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
		if e.owed != nil {
			k.dueLocked(e.owed)
		}
	}
	k.wakeLocked()
}

// wakeLocked starts the calls that are due.
func (k *keeper) wakeLocked() {
	k.renewers.wakeLocked()
	k.owed.workers.wakeLocked()
}

// takeDue removes what is due from the schedule, and sets the timer for what remains.
func (k *keeper) takeDue() []*alarm {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.lookAroundLocked(now)
	var due []*alarm
	if len(k.schedule) > 0 && !k.schedule[0].at.After(now) {
		for len(k.schedule) > 0 && !k.schedule[0].at.Add(-k.schedule[0].slack).After(now) {
			due = append(due, heap.Pop(&k.schedule).(*alarm))
		}
	}
	k.timerAt = time.Time{}
	if len(k.schedule) > 0 {
		k.setTimerLocked(now, k.schedule[0].at)
	}
	return due
}

// lookAroundLocked compares the clocks. If the wall clock has run ahead, so do the alarms of leases:
// the monotonic one stood still while the machine was suspended.
func (k *keeper) lookAroundLocked(now time.Time) {
	if now.Sub(k.looked) < lookAround {
		return
	}
	ahead := now.Round(0).Sub(k.lookedAt) - now.Sub(k.looked)
	k.looked, k.lookedAt = now, now.Round(0)
	if ahead <= 0 {
		return
	}
	for _, e := range k.schedule {
		if e.lease != nil {
			e.at = e.at.Add(-ahead)
		}
	}
	heap.Init(&k.schedule)
}

// A schedule is a heap of alarms, the earliest first.
type schedule []*alarm

func (a schedule) Len() int { return len(a) }

func (a schedule) Less(i, j int) bool { return a[i].at.Before(a[j].at) }

func (a schedule) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i+1, j+1
}

func (a *schedule) Push(x any) {
	e := x.(*alarm)
	*a = append(*a, e)
	e.index = len(*a)
}

func (a *schedule) Pop() any {
	last := len(*a) - 1
	e := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	e.index = 0
	return e
}

// errPanic is the error of a call that did not return.
var errPanic = errors.New("the Locker panicked")

// workers make calls to the store in the background: at most size at a time, and at most most
// with those that hang. A call that takes longer than hungAfter counts as hung, and makes room
// for another. There is no goroutine while there are no jobs.
type workers struct {
	mu         *sync.Mutex // guards prompt and calls, and is locked when nextLocked is called
	size       int
	most       int
	hungAfter  time.Duration
	nextLocked func() func() // takes the next job; nil if there is none now
	prompt     int           // calls in flight that have not hung
	calls      int           // calls in flight
}

// wakeLocked starts jobs while there is room for them.
func (w *workers) wakeLocked() {
	for w.prompt < w.size && w.calls < w.most {
		job := w.nextLocked()
		if job == nil {
			return
		}
		w.prompt++
		w.calls++
		go w.do(job)
	}
}

func (w *workers) do(job func()) {
	hung := time.AfterFunc(w.hungAfter, w.hang)
	defer func() { // also if the job ends its goroutine
		w.mu.Lock()
		defer w.mu.Unlock()
		if hung.Stop() {
			w.prompt--
		}
		w.calls--
		w.wakeLocked()
	}()
	job()
}

func (w *workers) hang() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prompt--
	w.wakeLocked()
}
