// Package outage tells which failures of many things that are tried again and again are one outage.
package outage

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

// A Watch says when an outage begins, and when it is over. It begins with a failure. It is over when each thing
// whose last try has failed was tried with success, is gone, or counts no more, and a try succeeds. If all these
// things are gone, and there was a sign of life since, the next failure begins another outage.
//
// The zero value is ready for use. Methods are safe for concurrent use.
type Watch struct {
	mu      sync.Mutex
	since   time.Time        // of the outage; zero if there is none
	alive   bool             // a sign of life came after the last failure
	failing map[ID]time.Time // until when the things count whose last try has failed
}

// Alive notes a sign of life.
func (w *Watch) Alive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive = true
}

// Failed notes a failed try of a thing, which counts for so long. It reports whether an outage begins with it.
func (w *Watch) Failed(id ID, counts time.Duration) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if first = !w.goesOnLocked(now) && (w.since.IsZero() || w.alive); first {
		w.since = now
	}
	w.alive = false
	if w.failing == nil {
		w.failing = make(map[ID]time.Time)
	}
	w.failing[id] = now.Add(min(counts, longest))
	return first
}

// Succeeded notes a try that succeeded. It reports whether an outage is over, and how long it was.
func (w *Watch) Succeeded(id ID) (after time.Duration, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.failing, id)
	now, since := time.Now(), w.since
	if since.IsZero() || w.goesOnLocked(now) {
		return 0, false
	}
	w.since = time.Time{}
	return now.Sub(since), true
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
