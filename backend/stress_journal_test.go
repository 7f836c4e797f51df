package backend_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// An event is what a worker of a stress test reports, from whatever process. Times are
// of the wall clock, in nanoseconds, which all processes of a machine share.
type event struct {
	Kind  string
	ID    int64  // of the wait or hold, in its process
	Who   string // process, library and number of the worker
	Key   string
	At    int64
	Asked int64 // when the lock was asked for
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
	broken     = "broken" // what must not happen at all
)

// A span is the time in which something happened.
type span struct{ from, to int64 }

func (s span) String() string { return clock(s.from) + " to " + clock(s.to) }

func clock(ns int64) string { return time.Unix(0, ns).UTC().Format("04:05.000000") }

func now() int64 { return time.Now().UnixNano() }

// A stay is a wait or a hold.
type stay struct {
	span  // to is 0 while it goes on
	who   string
	key   string
	fence int64
	asked int64 // when Acquire was called
	until int64 // the deadline when the hold began
	lost  []event

	failed string // what was wrong last while it waited
}

func (s stay) String() string {
	if s.fence == 0 {
		return fmt.Sprintf("%-24s waits for %q since %s %s", s.who, s.key, clock(s.from), s.failed)
	}
	return fmt.Sprintf("%-24s held %s from %v, fence %d", s.who, s.key, s.span, s.fence)
}

type stayID struct {
	process string
	id      int64
}

// A journal is what happened in a stress test.
type journal struct {
	mu      sync.Mutex
	waits   map[stayID]*stay // those that go on
	going   map[stayID]*stay // holds that go on
	known   map[stayID]*stay // all holds
	holds   []*stay          // in the order of their beginning, roughly
	seen    map[string]int
	wipes   []span // the store lost everything
	faults  []string
	errors  []string
	offset  int64 // of the wall clock against the monotonic one, when last looked at
	stepped bool  // the wall clock was set meanwhile
}

func newJournal() *journal {
	return &journal{
		waits: make(map[stayID]*stay),
		going: make(map[stayID]*stay),
		known: make(map[stayID]*stay),
		seen:  make(map[string]int),
	}
}

// note takes in an event of a process.
func (j *journal) note(process string, e event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := stayID{process, e.ID}
	switch e.Kind {
	case waitBegins:
		j.waits[id] = &stay{span: span{from: e.At}, who: e.Who, key: e.Key}
	case waitFailed:
		if w := j.waits[id]; w != nil { // what failed may be something else
			w.failed = e.Text
		}
	case waitEnds:
		delete(j.waits, id)
	case holdBegins:
		h := &stay{span: span{from: e.At}, who: e.Who, key: e.Key, fence: e.Fence, asked: e.Asked, until: e.Until}
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

// died ends everything of a process that was killed at an instant or later: it held
// what it had not begun to release, at least until then or the deadline.
func (j *journal) died(process string, at int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, w := range j.waits {
		if id.process == process {
			j.count("killed while waiting", w.from < at)
			delete(j.waits, id)
		}
	}
	for id, h := range j.going {
		if id.process == process {
			h.to = min(at, h.until)
			j.count("killed while holding", h.from < h.to)
			delete(j.going, id)
		}
	}
}

// stopped counts what a process does that was stopped at an instant, and still is.
func (j *journal) stopped(process string, at int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, w := range j.waits {
		j.count("stopped while waiting", id.process == process && w.from < at)
	}
	for id, h := range j.going {
		j.count("stopped while holding", id.process == process && h.from < at)
	}
}

// busy reports whether a process holds something and waits for something.
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

// count counts something if it is so. j.mu is held.
func (j *journal) count(what string, so bool) {
	if so {
		j.seen[what]++
	}
}

func (j *journal) add(what string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seen[what] += n
}

// fault notes what the test itself did to make things difficult.
func (j *journal) fault(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults = append(j.faults, clock(now())+" "+fmt.Sprintf(format, args...))
}

// wiped notes that everything was lost at some time in s.
func (j *journal) wiped(s span) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wipes = append(j.wipes, s)
}

// look compares the clocks: if the wall clock is set, the times of events cannot be
// compared.
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

// missing returns which of the kinds of things have not happened yet.
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

// A flaw is something wrong with what happened to a key.
type flaw struct {
	key  string
	at   int64
	text string
}

// judge looks for certain holds of one key that overlap, for fences that do not rise,
// and for leases that the store forgot without having lost everything.
func (j *journal) judge() []flaw {
	j.mu.Lock()
	defer j.mu.Unlock()
	var flaws []flaw
	keys, all := make(map[string][]stay), make(map[string][]stay)
	for _, h := range j.holds {
		for _, e := range h.lost {
			if !j.explained(h, e.At) {
				flaws = append(flaws, flaw{h.key, e.At, fmt.Sprintf("%v: %s, at %s", h, e.Text, clock(e.At))})
			}
		}
		all[h.key] = append(all[h.key], *h)
		if certain, ok := j.certain(*h); ok {
			keys[h.key] = append(keys[h.key], certain)
		}
	}
	for _, holds := range keys {
		flaws = append(flaws, compare(holds)...)
	}
	for _, holds := range all {
		flaws = append(flaws, compareFences(holds)...)
	}
	return flaws
}

// A fence is the time of the grant in microseconds, or a little less, since the server
// looks at its clock every ten milliseconds only.
const fenceLag = 10 * time.Millisecond

// explained reports whether everything was lost between the grant of a hold and an
// instant. j.mu is held.
func (j *journal) explained(h *stay, at int64) bool {
	return slices.ContainsFunc(j.wipes, func(w span) bool {
		return w.from <= at && h.fence*1000 <= w.to
	})
}

// certain returns the part of a hold that nothing that was lost can have made
// uncertain. j.mu is held.
func (j *journal) certain(h stay) (stay, bool) {
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

// compare looks for flaws of the holds of one key.
func compare(holds []stay) (flaws []flaw) {
	slices.SortFunc(holds, func(a, b stay) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(holds); i++ {
		a, b := holds[i-1], holds[i]
		if b.from < a.to {
			flaws = append(flaws, flaw{b.key, b.from, fmt.Sprintf("two certain holds overlap by %v:\n%v\n%v", time.Duration(a.to-b.from), a, b)})
		}
		if b.fence <= a.fence {
			flaws = append(flaws, flaw{b.key, b.from, fmt.Sprintf("a later hold does not have a higher fence:\n%v\n%v", a, b)})
		}
		if a.to > b.to {
			holds[i] = a
		}
	}
	return flaws
}

// compareFences looks for grants that were asked for after others had been made, and do
// not have higher fences, whatever was lost between.
func compareFences(holds []stay) (flaws []flaw) {
	asked := slices.Clone(holds)
	slices.SortFunc(asked, func(a, b stay) int { return cmp.Compare(a.asked, b.asked) })
	slices.SortFunc(holds, func(a, b stay) int { return cmp.Compare(a.from, b.from) })
	var highest stay // of those that had been made
	for _, h := range asked {
		for len(holds) > 0 && holds[0].from < h.asked {
			if holds[0].fence > highest.fence {
				highest = holds[0]
			}
			holds = holds[1:]
		}
		if h.fence <= highest.fence {
			flaws = append(flaws, flaw{h.key, h.from, fmt.Sprintf("asked for at %s, and no higher fence than before:\n%v\n%v", clock(h.asked), highest, h)})
		}
	}
	return flaws
}

// history returns what happened to a key at about an instant, and what was done to make
// that difficult.
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
