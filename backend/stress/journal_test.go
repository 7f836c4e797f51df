package stress

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/history"
)

// A wait is one for a lock, in progress.
type wait struct {
	who, key string
	from     time.Duration
	failed   string // the last error
}

func (w *wait) String() string { return line(w.from, "%s waits for %q %s", w.who, w.key, w.failed) }

// line is a text with the instant that it begins with, as in a history.
func line(at time.Duration, format string, args ...any) string {
	return fmt.Sprintf("%10.3fms ", float64(at)/1e6) + fmt.Sprintf(format, args...)
}

// A journal records what happened in a round.
type journal struct {
	*history.Recorder // of all holds, and of all losses of data
	begun             time.Time

	mu     sync.Mutex
	waits  map[*wait]bool // in progress
	seen   map[string]int
	faults map[time.Duration]string
	errors []string // of what must never happen
}

func newJournal() *journal {
	begun := time.Now()
	return &journal{
		Recorder: history.NewRecorder(begun), begun: begun,
		waits: make(map[*wait]bool), seen: make(map[string]int), faults: make(map[time.Duration]string),
	}
}

func (j *journal) waitBegins(who, key string) *wait {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := &wait{who: who, key: key, from: j.Now()}
	j.waits[w] = true
	return w
}

func (j *journal) waitEnds(w *wait) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waits, w)
}

// waiting returns the waits in progress that some are about.
func (j *journal) waiting(about func(*wait) bool) (lines []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for w := range j.waits {
		if about(w) {
			lines = append(lines, w.String())
		}
	}
	slices.Sort(lines)
	return lines
}

func (j *journal) happened(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen[what]++
}

func (j *journal) count(what string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seen[what]
}

// fault records a fault that the test injected, or what it has led to.
func (j *journal) fault(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults[j.Now()] = fmt.Sprintf(format, args...)
}

// wrong records what must never happen.
func (j *journal) wrong(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.errors = append(j.errors, line(j.Now(), format, args...))
}

// missing returns those kinds of things that have not happened yet.
func (j *journal) missing(kinds []string) []string {
	return slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return j.count(kind) > 0 })
}

func (j *journal) summary() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	parts := []string{time.Since(j.begun).Round(time.Millisecond).String()}
	for _, what := range slices.Sorted(maps.Keys(j.seen)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, j.seen[what]))
	}
	return strings.Join(parts, ", ")
}

// judged returns what has happened, and what must not have happened.
func (j *journal) judged() (h *history.History, violations []*history.Violation) {
	h = j.History()
	return h, slices.Concat(h.Losses(), h.Overlaps(), h.Disorders(1))
}

// around returns the holds of a violation's key around it, and the faults injected then.
func (j *journal) around(h *history.History, v *history.Violation) string {
	const near = 3 * time.Second
	at := v.Holds[0].End
	var lines []string
	for _, hold := range h.Holds {
		if hold.Key == v.Key && hold.Start < at+near && hold.End > at-near {
			lines = append(lines, hold.String())
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for when, fault := range j.faults {
		if (when - at).Abs() < near {
			lines = append(lines, line(when, "%s", fault))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
