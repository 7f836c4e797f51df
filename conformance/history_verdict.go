package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A sureHold is the time in which a holder was certain of its lease: from the
// return of Acquire to the call of Release, the deadline of the lease, or the
// loss of all data.
type sureHold struct {
	client     int
	key, token string
	asked      time.Duration // when Acquire was called
	start, end time.Duration
	fence      int64
}

func (h *sureHold) String() string {
	return fmt.Sprintf("certain of %s, fence %d", short(h.token), h.fence)
}

// An offence is a piece of a history that no lock can have, as short as
// possible.
type offence struct {
	key   string
	what  string
	holds []*sureHold
	ops   []*op
}

// String is the piece, one line each, in the order of time.
func (o *offence) String() string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, h := range o.holds {
		lines = append(lines, line{h.start, piece(h.start, h.end, h.client, h)})
	}
	for _, p := range o.ops {
		lines = append(lines, line{p.called, piece(p.called, p.returned, p.client, p)})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var b strings.Builder
	fmt.Fprintf(&b, "%s, on %s:", o.what, brief(o.key))
	for _, l := range lines {
		b.WriteString("\n" + l.text)
	}
	return b.String()
}

func piece(from, to time.Duration, client int, what fmt.Stringer) string {
	end := "…"
	if to >= from {
		end = millis(to)
	}
	return fmt.Sprintf("%12s to %12s  %-6s  %v", millis(from), end, clientName(client), what)
}

func clientName(i int) string {
	if i < 0 {
		return "store"
	}
	return fmt.Sprint("client ", i)
}

func millis(d time.Duration) string { return fmt.Sprintf("%.3fms", float64(d)/1e6) }

// cutAtWipes ends what was certain before the store lost its data. A grant that
// was asked for before the end of the loss may have been among it.
func cutAtWipes(holds []*sureHold, wipes []*op) []*sureHold {
	var left []*sureHold
	for _, h := range holds {
		for _, w := range wipes {
			if h.asked <= w.returned {
				h.end = min(h.end, w.called)
			}
		}
		if h.start < h.end {
			left = append(left, h)
		}
	}
	return left
}

// overlap returns two certain holds of one key at one time, or two whose fences
// are not in the order of the holds.
func overlap(holds []*sureHold) *offence {
	slices.SortStableFunc(holds, func(a, b *sureHold) int { return cmp.Compare(a.start, b.start) })
	latest := make(map[string]*sureHold)
	for _, h := range holds {
		before := latest[h.key]
		latest[h.key] = h
		switch {
		case before == nil:
		case h.start < before.end:
			return &offence{key: h.key, what: fmt.Sprintf("two certain holds overlap by %s", millis(min(before.end, h.end)-h.start)),
				holds: []*sureHold{before, h}}
		case cmp.Or(h.fence, before.fence) != 0 && h.fence < before.fence+numbers:
			return &offence{key: h.key, what: fmt.Sprintf("a later hold does not have a fence that is higher by at least %d", numbers),
				holds: []*sureHold{before, h}}
		}
	}
	return nil
}

// errMaze says that a history is too entangled to be judged.
var errMaze = errors.New("too many calls were under way at once to judge their answers")

// impossible returns the fewest answers that cannot all be right.
func impossible(key string, ops []*op, late func(time.Duration) time.Duration) (*offence, error) {
	j := newJudge(ops, late, nil)
	wrong, _ := j.run()
	if j.maze {
		return nil, errMaze
	}
	if wrong == nil {
		return nil, nil
	}
	ops = slices.DeleteFunc(slices.Clone(ops), func(o *op) bool { return o.call > wrong.back })
	needed := shrink(ops, func(known func(*op) bool) bool {
		wrong, _ := newJudge(ops, late, known).run()
		return wrong != nil
	})
	j = newJudge(ops, late, func(o *op) bool { return slices.Contains(needed, o) })
	last, before := j.run()
	return &offence{key: key, what: fmt.Sprintf("these answers cannot all be right: %v of %s is impossible where %s",
		last, clientName(last.client), j.describe(last, before)), ops: withGrants(needed, ops)}, nil
}

// withGrants adds the latest grants of the tokens in question, which a reader
// wants to see.
func withGrants(needed, ops []*op) []*op {
	var all []*op
	for i, o := range ops {
		later := func(p *op) bool { return p.outcome == granted && p.token == o.token && p.call > o.call }
		about := func(p *op) bool { return p.call > o.call && (p.token == o.token || p.holder == o.token) }
		if slices.Contains(needed, o) ||
			o.outcome == granted && slices.ContainsFunc(needed, about) && !slices.ContainsFunc(ops[i+1:], later) {
			all = append(all, o)
		}
	}
	return all
}

// shrink returns a small part of ops, such that bad remains true if the outcomes
// of the others are forgotten.
func shrink(ops []*op, bad func(known func(*op) bool) bool) []*op {
	dropped := make(map[*op]bool)
	known := func(o *op) bool { return !dropped[o] }
	for size := len(ops); size > 0; size /= 2 {
		for chunk := range slices.Chunk(slices.DeleteFunc(slices.Clone(ops), func(o *op) bool { return dropped[o] }), size) {
			for _, o := range chunk {
				dropped[o] = true
			}
			if bad(known) {
				continue
			}
			for _, o := range chunk {
				delete(dropped, o)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(ops), func(o *op) bool { return dropped[o] || o.outcome == unknown })
}

// describe says in words what the store may have known when o returned.
func (j *judge) describe(o *op, states []state) string {
	names := make(map[int]string)
	for token, i := range j.tokens {
		names[i] = short(token)
	}
	var all []string
	for _, s := range states {
		text := "the key is free"
		switch {
		case s.holder != 0 && s.least > o.returned:
			text = fmt.Sprintf("%s holds the key until %s at least", cmp.Or(names[s.holder], "an unknown token"), millis(s.least))
		case s.holder != 0:
			text = fmt.Sprintf("%s holds the key until %s at most", cmp.Or(names[s.holder], "an unknown token"), millis(s.most))
		}
		if s.fence != 0 {
			text += fmt.Sprintf(", and %d is the latest fence", s.fence)
		}
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all[:min(len(all), 3)], "; or ")
}
