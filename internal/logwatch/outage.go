package logwatch

import (
	"sync"
	"time"
)

// An ID tells things apart.
type ID struct {
	Key    string
	Number int64
}

// longest is for how long a failure speaks of an outage: it may have been the last try of its thing.
const longest = time.Minute

// A Watch says which failures of many things that are tried again and again are one outage: when it begins, and when it is over. It begins with a failure. It is over when each thing
// whose last try has failed was tried with success, is gone, or counts no more, and there is a sign of life. A try that
// succeeds is one. An outage is as long as the time from its first failure to the first sign of life after its
// last failure.
//
// The zero value is ready for use. Methods are safe for concurrent use.
type Watch struct {
	mu      sync.Mutex
	since   time.Time        // of the outage; zero if there is none
	alive   time.Time        // when the first sign of life came after the last failure; zero if none has
	failing map[ID]time.Time // until when the things count whose last try has failed
}

// Alive notes a sign of life. It reports whether an outage is over, and how long it was.
func (w *Watch) Alive() (after time.Duration, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.aliveLocked()
}

func (w *Watch) aliveLocked() (after time.Duration, over bool) {
	now := time.Now()
	if w.since.IsZero() {
		return 0, false
	}
	if w.alive.IsZero() {
		w.alive = now
	}
	if w.goesOnLocked(now) {
		return 0, false
	}
	after = w.alive.Sub(w.since)
	w.since, w.alive = time.Time{}, time.Time{}
	return after, true
}

// Failed notes a failed try of a thing, which counts for so long. It reports whether an outage begins with it.
func (w *Watch) Failed(id ID, counts time.Duration) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if first = !w.goesOnLocked(now) && (w.since.IsZero() || !w.alive.IsZero()); first {
		w.since = now
	}
	w.alive = time.Time{}
	if w.failing == nil {
		w.failing = make(map[ID]time.Time)
	}
	w.failing[id] = now.Add(min(counts, longest))
	return first
}

// Succeeded notes a try that succeeded, which is a sign of life.
func (w *Watch) Succeeded(id ID) (after time.Duration, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.failing, id)
	return w.aliveLocked()
}

// Gone notes that a thing is not tried any more.
func (w *Watch) Gone(id ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.failing, id)
}

// goesOnLocked reports whether a thing counts whose last try has failed. The caller may not have heard
// that it is gone.
func (w *Watch) goesOnLocked(now time.Time) bool {
	for id, end := range w.failing {
		if now.Before(end) {
			return true
		}
		delete(w.failing, id)
	}
	return false
}
