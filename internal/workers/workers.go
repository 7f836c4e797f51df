// Package workers does jobs in several goroutines at once.
package workers

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Pool does jobs in the background: at most Size at a time, and at most Most with those that hang. A
// job that takes longer than HungAfter counts as hung, and makes room for another. There is no goroutine
// while there are no jobs.
type Pool struct {
	Mu        *sync.Mutex // guards the pool, and is locked when Next is called
	Size      int
	Most      int
	HungAfter time.Duration
	Next      func() func() // takes the next job; nil if there is none now
	Jobs      int           // under way
	prompt    int           // jobs under way that have not hung
}

// Wake starts jobs while there is room for them. Mu is locked.
func (p *Pool) Wake() {
	for p.prompt < p.Size && p.Jobs < p.Most {
		job := p.Next()
		if job == nil {
			return
		}
		p.prompt++
		p.Jobs++
		go p.do(job)
	}
}

func (p *Pool) do(job func()) {
	hung := time.AfterFunc(p.HungAfter, p.hang)
	defer func() { // also if the job ends its goroutine
		p.Mu.Lock()
		defer p.Mu.Unlock()
		if hung.Stop() {
			p.prompt--
		}
		p.Jobs--
		p.Wake()
	}()
	job()
}

func (p *Pool) hang() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.prompt--
	p.Wake()
}

// Each calls f for 0 to n-1, most at once, until a call returns false or panics. The calls that were made
// are those for the first numbers. Each waits for them, and returns what a call has panicked with.
func Each(n, most int, f func(i int) (more bool)) (panicked any) {
	var (
		next    atomic.Int64
		stopped atomic.Bool
		all     sync.WaitGroup
		once    sync.Once
	)
	for range min(n, most) {
		all.Go(func() {
			defer func() {
				if reason := recover(); reason != nil {
					once.Do(func() { panicked = reason })
					stopped.Store(true)
				}
			}()
			for !stopped.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if !f(i) {
					stopped.Store(true)
				}
			}
		})
	}
	all.Wait()
	return panicked
}
