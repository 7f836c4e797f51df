package dlock

import (
	"container/heap"
	"time"
)

// lookAround is how often leases are compared with the wall clock.
const lookAround = time.Second

// An event is when a lease or an owed release is due, or, if it has neither, when the owed
// releases as a whole are. It is guarded by the keeper's mutex.
type event struct {
	lease *Lease
	owed  *owedRelease
	at    time.Time
	slack time.Duration // how much earlier it may be taken, together with others
	wall  time.Time     // for a lease: its deadline on the wall clock
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
	l.event.slack, l.event.wall = slack, l.wall
	if k.abandoned.Load() { // after abandon has looked for leases here
		at = time.Now()
	}
	k.scheduleLocked(&l.event, at)
}

// scheduleLocked puts an event into the schedule, or moves it there.
func (k *keeper) scheduleLocked(e *event, at time.Time) {
	e.at = at
	if e.index > 0 {
		heap.Fix(&k.schedule, e.index-1)
	} else {
		heap.Push(&k.schedule, e)
	}
	if k.timerAt.IsZero() || at.Before(k.timerAt) {
		k.setTimerLocked(time.Now(), at)
	}
}

func (k *keeper) removeLocked(e *event) {
	if e.index > 0 {
		heap.Remove(&k.schedule, e.index-1)
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
	k.renewals.workers.wakeLocked()
	k.owed.workers.wakeLocked()
	k.owed.holdWorkers.wakeLocked()
}

// takeDue removes what is due from the schedule, and sets the timer for what remains.
func (k *keeper) takeDue() []*event {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	due := k.takeOverdueLocked(now)
	if len(k.schedule) > 0 && !k.schedule[0].at.After(now) {
		for len(k.schedule) > 0 && !k.schedule[0].at.Add(-k.schedule[0].slack).After(now) {
			due = append(due, heap.Pop(&k.schedule).(*event))
		}
	}
	k.timerAt = time.Time{}
	if len(k.schedule) > 0 {
		k.setTimerLocked(now, k.schedule[0].at)
	}
	return due
}

// takeOverdueLocked removes the leases whose deadline has passed on the wall clock: the
// monotonic one stood still while the machine was suspended.
func (k *keeper) takeOverdueLocked(now time.Time) []*event {
	if now.Sub(k.looked) < lookAround {
		return nil
	}
	k.looked = now
	var overdue []*event
	for _, e := range k.schedule {
		if e.lease != nil && !now.Round(0).Before(e.wall) {
			overdue = append(overdue, e)
		}
	}
	for _, e := range overdue {
		k.removeLocked(e)
	}
	return overdue
}

// A schedule is a heap of events, the earliest first.
type schedule []*event

func (a schedule) Len() int { return len(a) }

func (a schedule) Less(i, j int) bool { return a[i].at.Before(a[j].at) }

func (a schedule) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i+1, j+1
}

func (a *schedule) Push(x any) {
	e := x.(*event)
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
