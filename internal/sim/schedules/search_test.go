package schedules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

// A deviation is a choice that is not the usual one.
type deviation struct{ at, n int }

// A run is what came of a schedule.
type run struct {
	widths []int // between how many there was the choice, each time
	broken string
	text   []string
}

// A search runs schedules.
type search struct {
	*config
	server *sim.Server
}

// A result is what a search has found.
type result struct {
	schedules int
	took      time.Duration
	broken    string // the first violation
	text      []string
}

func (r result) String() string {
	text := fmt.Sprintf("%d schedules in %v", r.schedules, r.took.Round(10*time.Millisecond))
	if r.broken != "" {
		text += ": " + r.broken + "\n  " + strings.Join(r.text, "\n  ")
	}
	return text
}

// explore runs all schedules with at most so many deviations, those with the fewest first, until a
// property is broken. Of those with two, it runs every fourth, unless large is set.
func explore(t *testing.T, c *config) (r result) {
	s := &search{config: c, server: sim.NewServer()}
	begun := time.Now()
	level := [][]deviation{nil}
	for depth := 0; depth <= c.depth && r.broken == ""; depth++ {
		var next [][]deviation
		for i, d := range level {
			if depth == 2 && !large && i%4 != 0 {
				continue
			}
			var after []deviation
			bubble.Test(t, func(*testing.T) {
				run := s.run(d)
				if r.broken, r.text = run.broken, run.text; depth < c.depth {
					after = run.after(d)
				}
			})
			if r.schedules++; r.broken != "" {
				break
			}
			for _, last := range after {
				next = append(next, append(slices.Clip(slices.Clone(d)), last))
			}
		}
		level = next
	}
	r.took = time.Since(begun)
	return r
}

// after returns what may follow the deviations of a run.
func (r *run) after(d []deviation) (all []deviation) {
	first := 0
	if len(d) > 0 {
		first = d[len(d)-1].at + 1
	}
	for at := first; at < len(r.widths); at++ {
		for n := 1; n < r.widths[at]; n++ {
			all = append(all, deviation{at, n})
		}
	}
	return all
}

// run runs a schedule until nothing is left to do.
func (s *search) run(d []deviation) *run {
	w := newWorld(s.config, s.server)
	r := &run{}
	synctest.Wait()
	r.broken = w.run(r, d)
	r.text = w.text
	w.close()
	return r
}

// maxPasses is how many times time passes without a deviation, at most.
const maxPasses = 40

func (w *world) run(r *run, d []deviation) string {
	passed, before := 0, ""
	for _, text := range w.begin {
		all := w.next()
		n := slices.IndexFunc(all, func(c choice) bool { return strings.HasPrefix(c.text, text) })
		if n < 0 {
			return "nothing that begins with " + text
		}
		w.choose(all, n)
		if broken := w.check(); broken != "" {
			return broken
		}
	}
	for passed < maxPasses {
		all, n := w.next(), 0
		if len(d) > 0 && d[0].at == len(r.widths) {
			n, d = d[0].n, d[1:]
			if n >= len(all) {
				return "" // it has taken another course
			}
			passed, before = 0, ""
		}
		r.widths = append(r.widths, len(all))
		if len(d) == 0 && all[0].rank[0] == passes { // nothing is in flight
			passed++
			token, _ := w.holder()
			switch {
			case w.finished() && token == "":
				return w.judge()
			case token != "" && token == before && !w.isRelied(token):
				return w.breaks(p4, "the lock stays with a token that nobody uses: %s", w.names[token])
			}
			before = token
		}
		w.choose(all, n)
		if broken := w.check(); broken != "" {
			return broken
		}
	}
	return w.breaks(p4, "a waiter is not served, or the lock is not free in the end")
}

func (w *world) isRelied(token string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.relied[token] > 0
}

// finished reports whether all have what they wanted.
func (w *world) finished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.actors {
		if a.doing != idle || a.left > 0 {
			return false
		}
	}
	for _, p := range w.processes {
		if p.client.Stats().ReleasesOwed > 0 {
			return false
		}
	}
	return true
}

// check looks at the leases of which a client is certain.
func (w *world) check() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	token, rest := w.holder()
	certain := 0
	for _, a := range w.actors {
		own, until := a.away, a.until
		if a.lease != nil {
			own, until = a.lease.Token(), a.lease.Deadline()
		}
		left := time.Until(until)
		if left <= 0 || !a.asked.After(w.wiped) {
			continue
		}
		certain++
		switch {
		case w.only != "" && w.only != p3:
		case token != own:
			return w.breaks(p3, "the server does not hold the token of %s, which is certain", a.name)
		case left > rest:
			return w.breaks(p3, "the server lets the lease of %s end %v before its deadline", a.name, left-rest)
		}
	}
	if certain > 1 {
		return w.breaks(p1, "two are certain to hold the lock")
	}
	return ""
}

// breaks returns what is broken, if the config looks at it.
func (w *world) breaks(p property, format string, args ...any) string {
	if w.only != "" && w.only != p {
		return ""
	}
	return fmt.Sprintf("%s: %s", p, fmt.Sprintf(format, args...))
}

// judge looks at the whole history.
func (w *world) judge() string {
	h := w.recorder.History()
	step := int64(8)
	if w.turns > 0 {
		step = 1
	}
	if found := h.Overlaps(); len(found) > 0 {
		return w.breaks(p1, "%v", found[0])
	}
	if found := h.Disorders(step); len(found) > 0 {
		return w.breaks(p2, "%v", found[0])
	}
	return ""
}
