package stress

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/history"
)

// An event is what a worker reports, in this process or a child. Times are nanoseconds of
// the wall clock, which all processes of a machine share.
type event struct {
	Kind  string
	ID    int64  // of the wait or hold, in its process
	Who   string // process, library and number of the worker
	Key   string
	At    int64
	Asked int64 // when Acquire was called
	Until int64 // the deadline of the lease
	Fence int64
	Text  string
}

// The kinds of events.
const (
	waitBegins = "wait"
	waitFailed = "failed" // and goes on
	waitEnds   = "waited"
	holdBegins = "hold" // at the return of Acquire
	holdEnds   = "held" // at the call of Release, or the deadline if that is earlier
	holdLost   = "lost" // the store does not know a lease whose deadline has not passed
	happened   = "happened"
	broken     = "broken" // what must never happen
)

func now() int64 { return time.Now().UnixNano() }

// A wait is one for a lock, in progress or ended.
type wait struct {
	who, key string
	from, to time.Duration
	failed   string // the last error
}

func (w wait) String() string { return line(w.from, "%s waits for %q %s", w.who, w.key, w.failed) }

// line is a text with the instant that it begins with, as in a history.
func line(at time.Duration, format string, args ...any) string {
	return fmt.Sprintf("%10.3fms ", float64(at)/1e6) + fmt.Sprintf(format, args...)
}

// An intervalID is that of a wait or a hold.
type intervalID struct {
	process string
	id      int64
}

// A journal records what happened in a round. Its instants count from its beginning.
type journal struct {
	*history.Recorder // of all holds, and of all losses of data
	begun             time.Time

	mu       sync.Mutex
	waits    map[intervalID]*wait // in progress
	waited   []wait
	going    map[intervalID]*history.Hold // in progress
	known    map[intervalID]*history.Hold // all
	seen     map[string]int
	failures map[string]int // errors of waits that went on, without addresses and times
	faults   map[time.Duration]string
	errors   []string
	offset   time.Duration // of the wall clock against the monotonic one, at the last look
	stepped  bool          // the wall clock was set during the round
}

func newJournal() *journal {
	begun := time.Now()
	return &journal{
		Recorder: history.NewRecorder(begun.Round(0)),
		begun:    begun,
		waits:    make(map[intervalID]*wait),
		going:    make(map[intervalID]*history.Hold),
		known:    make(map[intervalID]*history.Hold),
		seen:     make(map[string]int),
		failures: make(map[string]int),
		faults:   make(map[time.Duration]string),
	}
}

// by returns the note of the workers of a process.
func (j *journal) by(process string) func(event) { return func(e event) { j.note(process, e) } }

var address = regexp.MustCompile(`127\.0\.0\.1:\d+|"[^"]*"|\b\d[\d.]*[nµm]?s\b|: node \d+: .*`)

// note records an event of a process.
func (j *journal) note(process string, e event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := func(ns int64) time.Duration { return j.At(time.Unix(0, ns)) }
	id, then := intervalID{process, e.ID}, at(e.At)
	switch e.Kind {
	case waitBegins:
		j.waits[id] = &wait{who: e.Who, key: e.Key, from: then}
	case waitFailed:
		if w := j.waits[id]; w != nil { // the error may be of another call
			w.failed = e.Text
		}
		j.failures[address.ReplaceAllString(e.Text, "…")]++
	case waitEnds:
		if w := j.waits[id]; w != nil {
			w.to = then
			j.waited = append(j.waited, *w)
		}
		delete(j.waits, id)
	case holdBegins:
		h := &history.Hold{Client: e.Who, Key: e.Key, Asked: at(e.Asked), Start: then, End: at(e.Until), Fence: e.Fence}
		j.going[id], j.known[id] = h, h
		j.Held(h)
	case holdLost:
		h := j.known[id]
		h.Lost = then
		j.faults[then] = fmt.Sprintf("%s: %s", h.Client, e.Text)
	case holdEnds:
		j.known[id].End = then
		delete(j.going, id)
	case happened:
		j.seen[e.Text]++
	case broken:
		j.errors = append(j.errors, line(then, "%s: %s: %s", e.Who, e.Key, e.Text))
	}
}

// interrupted counts the waits and holds of a process that was stopped or killed at an instant, as
// how says.
func (j *journal) interrupted(process, how string, at time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, w := range j.waits {
		if id.process == process && w.from < at {
			j.seen[how+" while waiting"]++
		}
	}
	for id, h := range j.going {
		if id.process == process && h.Start < at {
			j.seen[how+" while holding"]++
		}
	}
}

// died ends all waits and holds of a process that was killed at an instant or later. It
// held what it had not begun to release, at least until that instant or the deadline.
func (j *journal) died(process string, at time.Duration) {
	j.interrupted(process, "killed", at)
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, h := range j.going {
		if id.process == process {
			h.End = min(at, h.End)
		}
	}
	maps.DeleteFunc(j.going, func(id intervalID, _ *history.Hold) bool { return id.process == process })
	maps.DeleteFunc(j.waits, func(id intervalID, _ *wait) bool { return id.process == process })
}

// busy reports whether a process holds one lock and waits for another.
func (j *journal) busy(process string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	of := func(id intervalID) bool { return id.process == process }
	return slices.ContainsFunc(slices.Collect(maps.Keys(j.waits)), of) && slices.ContainsFunc(slices.Collect(maps.Keys(j.going)), of)
}

func (j *journal) add(what string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen[what] += n
}

func (j *journal) count(what string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seen[what]
}

func (j *journal) longestWait() (longest time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, w := range j.waited {
		longest = max(longest, w.to-w.from)
	}
	return longest
}

// fault records a fault that the test injected.
func (j *journal) fault(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults[j.Now()] = fmt.Sprintf(format, args...)
}

// look compares the wall clock with the monotonic one. If the wall clock was set, the times
// of events cannot be compared.
func (j *journal) look() {
	t := time.Now()
	offset := t.Round(0).Sub(j.begun.Round(0)) - t.Sub(j.begun)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stepped = j.stepped || (j.offset-offset).Abs() > time.Millisecond
	j.offset = offset
}

func (j *journal) waiting() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var lines []string
	for _, w := range j.waits {
		lines = append(lines, w.String())
	}
	slices.Sort(lines)
	return lines
}

// missing returns those kinds of things that have not happened yet.
func (j *journal) missing(kinds []string) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return j.seen[kind] > 0 })
}

func (j *journal) summary() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	parts := []string{fmt.Sprintf("%v: %d holds", time.Since(j.begun).Round(time.Millisecond), len(j.known))}
	for _, what := range slices.Sorted(maps.Keys(j.seen)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, j.seen[what]))
	}
	return strings.Join(parts, ", ")
}

// judged returns what has happened until now, and what must not have happened. A fence is higher by at least
// step than the one before.
func (j *journal) judged(step int64) (h *history.History, violations []*history.Violation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	h = j.History()
	return h, slices.Concat(h.Losses(), h.Overlaps(), h.Disorders(step))
}

// around returns the holds of a key around an instant, and the faults injected then.
func (j *journal) around(key string, at time.Duration) string {
	const near = 3 * time.Second
	h, _ := j.judged(1)
	j.mu.Lock()
	defer j.mu.Unlock()
	var lines []string
	for _, hold := range h.Holds {
		if hold.Key == key && hold.Start < at+near && hold.End > at-near {
			lines = append(lines, hold.String())
		}
	}
	for when, fault := range j.faults {
		if (when - at).Abs() < near {
			lines = append(lines, line(when, "%s", fault))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
