package stress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
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

// A span is the time from one instant to another.
type span struct{ from, to int64 }

func (s span) String() string { return clock(s.from) + " to " + clock(s.to) }

func clock(ns int64) string { return time.Unix(0, ns).UTC().Format("04:05.000000") }

func now() int64 { return time.Now().UnixNano() }

// An interval is a wait or a hold.
type interval struct {
	span  // to is 0 while it goes on
	who   string
	key   string
	fence int64
	asked int64 // when Acquire was called
	until int64 // the deadline when the hold began
	lost  []event

	failed string // the last error of the wait
}

func (s interval) String() string {
	if s.fence == 0 {
		return fmt.Sprintf("%-24s waits for %q since %s %s", s.who, s.key, clock(s.from), s.failed)
	}
	return fmt.Sprintf("%-24s held %s from %v, fence %d", s.who, s.key, s.span, s.fence)
}

type intervalID struct {
	process string
	id      int64
}

// A journal records what happened in a round.
type journal struct {
	mu      sync.Mutex
	waits   map[intervalID]*interval // in progress
	going   map[intervalID]*interval // holds in progress
	known   map[intervalID]*interval // all holds
	holds   []*interval              // by their beginning, roughly
	seen    map[string]int
	wipes   []span // the server lost all data
	faults  []string
	errors  []string
	offset  int64 // of the wall clock against the monotonic one, at the last look
	stepped bool  // the wall clock was set during the round
}

func newJournal() *journal {
	return &journal{
		waits: make(map[intervalID]*interval),
		going: make(map[intervalID]*interval),
		known: make(map[intervalID]*interval),
		seen:  make(map[string]int),
	}
}

// note records an event of a process.
func (j *journal) note(process string, e event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := intervalID{process, e.ID}
	switch e.Kind {
	case waitBegins:
		j.waits[id] = &interval{span: span{from: e.At}, who: e.Who, key: e.Key}
	case waitFailed:
		if w := j.waits[id]; w != nil { // the error may be of another call
			w.failed = e.Text
		}
	case waitEnds:
		delete(j.waits, id)
	case holdBegins:
		h := &interval{span: span{from: e.At}, who: e.Who, key: e.Key, fence: e.Fence, asked: e.Asked, until: e.Until}
		j.going[id], j.known[id], j.holds = h, h, append(j.holds, h)
	case holdLost:
		h := j.known[id]
		h.lost = append(h.lost, e)
	case holdEnds:
		j.known[id].to = e.At
		delete(j.going, id)
	case happened:
		j.seen[e.Text]++
	case broken:
		j.errors = append(j.errors, fmt.Sprintf("%s: %s, at %s: %s", e.Who, e.Key, clock(e.At), e.Text))
	}
}

// died ends all waits and holds of a process that was killed at an instant or later. It
// held what it had not begun to release, at least until that instant or the deadline.
func (j *journal) died(process string, at int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, w := range j.waits {
		if id.process == process {
			j.countLocked("killed while waiting", w.from < at)
			delete(j.waits, id)
		}
	}
	for id, h := range j.going {
		if id.process == process {
			h.to = min(at, h.until)
			j.countLocked("killed while holding", h.from < h.to)
			delete(j.going, id)
		}
	}
}

// stopped counts the waits and holds of a process that was stopped at an instant, and
// still is.
func (j *journal) stopped(process string, at int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, w := range j.waits {
		j.countLocked("stopped while waiting", id.process == process && w.from < at)
	}
	for id, h := range j.going {
		j.countLocked("stopped while holding", id.process == process && h.from < at)
	}
}

// busy reports whether a process holds one lock and waits for another.
func (j *journal) busy(process string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	waits, holds := false, false
	for id := range j.waits {
		waits = waits || id.process == process
	}
	for id := range j.going {
		holds = holds || id.process == process
	}
	return waits && holds
}

// countLocked counts what has happened, if it has.
func (j *journal) countLocked(what string, has bool) {
	if has {
		j.seen[what]++
	}
}

func (j *journal) add(what string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen[what] += n
}

// fault records a fault that the test injected.
func (j *journal) fault(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults = append(j.faults, clock(now())+" "+fmt.Sprintf(format, args...))
}

// wiped records that all data was lost at some time in s.
func (j *journal) wiped(s span) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wipes = append(j.wipes, s)
}

// look compares the wall clock with the monotonic one. If the wall clock was set, the times
// of events cannot be compared.
func (j *journal) look(start time.Time) {
	t := time.Now()
	offset := t.Round(0).Sub(start.Round(0)) - t.Sub(start)
	j.mu.Lock()
	defer j.mu.Unlock()
	if d := time.Duration(j.offset) - offset; d.Abs() > time.Millisecond {
		j.stepped = true
	}
	j.offset = int64(offset)
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
	parts := []string{fmt.Sprintf("%d holds", len(j.holds))}
	for _, what := range slices.Sorted(maps.Keys(j.seen)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, j.seen[what]))
	}
	return strings.Join(parts, ", ")
}

// A violation is a broken promise, for one key.
type violation struct {
	key     string
	at      int64
	text    string
	overlap bool // of certain holds
	masters bool // what two masters at the same time explain
}

// check looks for certain holds of one key that overlap, for fences that do not rise,
// and for leases that the server lost without having lost all data.
func (j *journal) check() []violation {
	j.mu.Lock()
	defer j.mu.Unlock()
	var violations []violation
	keys, all := make(map[string][]interval), make(map[string][]interval)
	for _, h := range j.holds {
		for _, e := range h.lost {
			if !j.explainedLocked(h, e.At) {
				violations = append(violations, violation{key: h.key, at: e.At, text: fmt.Sprintf("%v: %s, at %s", h, e.Text, clock(e.At))})
			}
		}
		all[h.key] = append(all[h.key], *h)
		if certain, ok := j.certainLocked(*h); ok {
			keys[h.key] = append(keys[h.key], certain)
		}
	}
	for _, holds := range keys {
		violations = append(violations, compare(holds)...)
	}
	for _, holds := range all {
		violations = append(violations, compareFences(holds)...)
	}
	return violations
}

// A fence is the time of the grant in microseconds, or up to this much less: the scripts
// read the clock every ten milliseconds only.
const fenceLag = 10 * time.Millisecond

// explainedLocked reports whether all data was lost between the grant of a hold and an
// instant.
func (j *journal) explainedLocked(h *interval, at int64) bool {
	return slices.ContainsFunc(j.wipes, func(w span) bool {
		return w.from <= at && h.fence*1000 <= w.to
	})
}

// certainLocked returns the part of a hold in which no loss of data can have ended it.
func (j *journal) certainLocked(h interval) (interval, bool) {
	for _, w := range j.wipes {
		switch granted := h.fence * 1000; {
		case granted > w.to:
		case granted+int64(fenceLag) < w.from:
			h.to = min(h.to, w.from)
		default:
			return h, false
		}
	}
	return h, h.from < h.to
}

// compare looks for violations among the holds of one key.
func compare(holds []interval) (violations []violation) {
	slices.SortFunc(holds, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(holds); i++ {
		a, b := holds[i-1], holds[i]
		switch {
		case b.from < a.to:
			violations = append(violations, violation{b.key, b.from, fmt.Sprintf("two certain holds overlap by %v:\n%v\n%v", time.Duration(a.to-b.from), a, b), true, true})
		case b.fence <= a.fence:
			violations = append(violations, violation{b.key, b.from, fmt.Sprintf("a later hold does not have a higher fence:\n%v\n%v", a, b), false, true})
		}
		if a.to > b.to {
			holds[i] = a
		}
	}
	return violations
}

// compareFences looks for grants that were requested after another grant had been made, and
// do not have a higher fence. This must hold even if all data was lost in between.
func compareFences(holds []interval) (violations []violation) {
	asked := slices.Clone(holds)
	slices.SortFunc(asked, func(a, b interval) int { return cmp.Compare(a.asked, b.asked) })
	slices.SortFunc(holds, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	var highest interval // of those that had been made before h was requested
	for _, h := range asked {
		for len(holds) > 0 && holds[0].from < h.asked {
			if holds[0].fence > highest.fence {
				highest = holds[0]
			}
			holds = holds[1:]
		}
		if h.fence <= highest.fence {
			violations = append(violations, violation{h.key, h.from, fmt.Sprintf("requested at %s, and no higher fence than before:\n%v\n%v", clock(h.asked), highest, h), false, highest.fence-h.fence < fenceLag.Microseconds()})
		}
	}
	return violations
}

// history returns the holds of a key around an instant, and the faults injected then.
func (j *journal) history(key string, at int64) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	const around = int64(3 * time.Second)
	var lines []string
	for _, h := range j.holds {
		if h.key == key && h.from < at+around && (h.to == 0 || h.to > at-around) {
			lines = append(lines, clock(h.from)+" "+h.String())
		}
	}
	for _, f := range j.faults {
		if clock(at-around) < f && f < clock(at+around) {
			lines = append(lines, f)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
