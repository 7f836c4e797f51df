package dlock

import (
	"sync"
	"time"
)

// workers makes calls to the store in the background. At most size calls are in
// flight that have not hung yet, and at most most in all. A call that takes longer
// than patience has hung: it leaves its place to another, so that calls that hang do
// not hold up the others. There is no goroutine while there are no jobs.
type workers struct {
	mu       *sync.Mutex // guards prompt and calls, and is held when next is called
	size     int
	most     int
	patience time.Duration
	next     func() func() // takes the next job; nil if there is none now
	prompt   int           // calls in flight that have not hung
	calls    int           // calls in flight
}

// wakeLocked starts the jobs that there are, as far as there is room for them.
func (w *workers) wakeLocked() {
	for w.prompt < w.size && w.calls < w.most {
		job := w.next()
		if job == nil {
			return
		}
		w.prompt++
		w.calls++
		go w.do(job)
	}
}

func (w *workers) do(job func()) {
	hung := time.AfterFunc(w.patience, w.hang)
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
