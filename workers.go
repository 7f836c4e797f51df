package dlock

import (
	"errors"
	"sync"
	"time"
)

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
