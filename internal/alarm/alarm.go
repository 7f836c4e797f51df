// Package alarm says when something is due: one timer serves many alarms.
package alarm

import (
	"container/heap"
	"sync"
	"time"
)

// An Alarm is for something that is due at one time. Its zero value is not set.
type Alarm struct {
	For   any           // what is due
	Slack time.Duration // how much earlier it may ring, together with others
	Wall  bool          // its time is also that of the wall clock, which goes on while the machine is suspended
	index int32         // in the queue, from 1; 0 if it is not there
	at    time.Time
}

// IsSet reports whether the alarm is in a queue.
func (a *Alarm) IsSet() bool { return a.index > 0 }

// A Queue holds alarms, the earliest first. The zero value is empty.
type Queue struct{ all alarms }

// Set puts an alarm into the queue, or moves it there.
func (q *Queue) Set(a *Alarm, at time.Time) {
	a.at = at
	if a.IsSet() {
		heap.Fix(&q.all, int(a.index)-1)
	} else {
		heap.Push(&q.all, a)
	}
}

// Unset removes an alarm, if it is set.
func (q *Queue) Unset(a *Alarm) {
	if a.IsSet() {
		heap.Remove(&q.all, int(a.index)-1)
	}
}

// Pop removes the earliest alarm.
func (q *Queue) Pop() *Alarm { return heap.Pop(&q.all).(*Alarm) }

// Return puts back an alarm that Pop has removed.
func (q *Queue) Return(a *Alarm) { q.Set(a, a.at) }

// Len returns how many alarms are set.
func (q *Queue) Len() int { return len(q.all) }

// All returns the alarms in no order. The caller must not change the slice.
func (q *Queue) All() []*Alarm { return q.all }

type alarms []*Alarm

func (a alarms) Len() int { return len(a) }

func (a alarms) Less(i, j int) bool { return a[i].at.Before(a[j].at) }

func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = int32(i+1), int32(j+1)
}

func (a *alarms) Push(x any) {
	e := x.(*Alarm)
	*a = append(*a, e)
	e.index = int32(len(*a))
}

func (a *alarms) Pop() any {
	last := len(*a) - 1
	e := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	e.index = 0
	return e
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// lookAround is how often the wall clock is compared with the monotonic one.
const lookAround = time.Second

// A Clock rings alarms. Its methods are called while its mutex is locked. There is no timer once no
// alarm is set, and no goroutine while none rings.
type Clock struct {
	Queue
	mu       sync.Locker
	ring     func(due []*Alarm)
	timer    *time.Timer
	timerAt  time.Time // when timer fires; zero if it does not
	looked   time.Time // when the clocks were last compared
	lookedAt time.Time // the same on the wall clock
}

// NewClock returns a Clock whose mutex is mu. It calls ring for alarms that are due, which are not set any
// more. mu is not locked then.
func NewClock(mu sync.Locker, ring func(due []*Alarm)) *Clock {
	now := time.Now()
	return &Clock{mu: mu, ring: ring, looked: now, lookedAt: now.Round(0)}
}

// Set sets an alarm, or moves it.
func (c *Clock) Set(a *Alarm, at time.Time) {
	c.Queue.Set(a, at)
	if c.timerAt.IsZero() || at.Before(c.timerAt) {
		c.setTimer(time.Now(), at)
	}
}

// Rest stops the timer if no alarm is set, instead of letting it fire once more.
func (c *Clock) Rest() {
	if len(c.all) == 0 && c.timer != nil {
		c.timer.Stop()
		c.timerAt = time.Time{}
	}
}

// Suspend is for tests: the wall clock seems to run ahead by d, as if the machine had been suspended.
func (c *Clock) Suspend(d time.Duration) { c.lookedAt = c.lookedAt.Add(-d) }

// setTimer makes the timer fire at the given time, or earlier to look at the wall clock.
func (c *Clock) setTimer(now, at time.Time) {
	d := min(at.Sub(now), lookAround)
	if look := lookAround - now.Sub(c.looked); look > 0 {
		d = min(d, look)
	}
	c.timerAt = now.Add(d)
	if c.timer == nil {
		c.timer = time.AfterFunc(d, func() { c.ring(c.take()) })
	} else {
		c.timer.Reset(d)
	}
}

// take removes what is due, and sets the timer for what remains.
func (c *Clock) take() (due []*Alarm) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.lookAround(now)
	if len(c.all) > 0 && !c.all[0].at.After(now) {
		for len(c.all) > 0 && !c.all[0].at.Add(-c.all[0].Slack).After(now) {
			due = append(due, c.Pop())
		}
	}
	c.timerAt = time.Time{}
	if len(c.all) > 0 {
		c.setTimer(now, c.all[0].at)
	}
	return due
}

// lookAround compares the clocks. If the wall clock has run ahead, so do its alarms: the monotonic
// one stood still while the machine was suspended.
func (c *Clock) lookAround(now time.Time) {
	if now.Sub(c.looked) < lookAround {
		return
	}
	ahead := now.Round(0).Sub(c.lookedAt) - now.Sub(c.looked)
	c.looked, c.lookedAt = now, now.Round(0)
	if ahead <= 0 {
		return
	}
	for _, a := range c.all {
		if a.Wall {
			a.at = a.at.Add(-ahead)
		}
	}
	heap.Init(&c.all)
}
