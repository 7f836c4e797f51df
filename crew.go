package dlock

import (
	"slices"
	"sync"
	"time"
)

// A crew does jobs in the background, in the order in which they come, size at a
// time. A job that takes longer than patience does not count any more, so that
// those that hang do not hold the others up. There is no goroutine while there
// are no jobs.
type crew[J comparable] struct {
	size     int
	patience time.Duration
	do       func(J)

	mu      sync.Mutex
	jobs    []J
	working int
}

func (c *crew[J]) add(job J) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = append(c.jobs, job)
	c.staff()
}

// remove forgets a job that has not begun.
func (c *crew[J]) remove(job J) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = slices.DeleteFunc(c.jobs, func(other J) bool { return other == job })
}

// staff starts a worker if one is needed. c.mu is held.
func (c *crew[J]) staff() {
	if len(c.jobs) > 0 && c.working < c.size {
		c.working++
		go c.work()
	}
}

func (c *crew[J]) work() {
	for {
		job, ok := c.next()
		if !ok || !c.try(job) {
			return
		}
	}
}

func (c *crew[J]) next() (job J, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.jobs) == 0 {
		c.working--
		return job, false
	}
	job = c.jobs[0]
	c.jobs = slices.Delete(c.jobs, 0, 1)
	return job, true
}

// try does one job, and reports whether this worker is to go on.
func (c *crew[J]) try(job J) (goOn bool) {
	overdue := time.AfterFunc(c.patience, c.leave)
	returned := false
	defer func() {
		if goOn = overdue.Stop(); goOn && !returned { // but ended its goroutine
			c.leave()
		}
	}()
	c.do(job)
	returned = true
	return
}

// leave gives the place of a worker to another.
func (c *crew[J]) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working--
	c.staff()
}
