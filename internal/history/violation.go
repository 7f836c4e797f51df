package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Violation is a piece of a history that no lock can have, as short as possible:
// either two certain holds, or some operations.
type Violation struct {
	Key        string
	What       string // is wrong
	Holds      []*Hold
	Operations []*Operation
}

// String is the piece, one line each, in the order of time.
func (v *Violation) String() string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, h := range v.Holds {
		lines = append(lines, line{h.Start, h.line()})
	}
	for _, o := range v.Operations {
		lines = append(lines, line{o.Called, o.line()})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	var b strings.Builder
	fmt.Fprintf(&b, "%s, on %q:", v.What, v.Key)
	for _, l := range lines {
		b.WriteString("\n" + l.text)
	}
	return b.String()
}

// span is the time that a violation takes.
func (v *Violation) span() (from, to time.Duration) {
	from = 1 << 62
	for _, h := range v.Holds {
		from, to = min(from, h.Start), max(to, h.End)
	}
	for _, o := range v.Operations {
		from, to = min(from, o.Called), max(to, o.Returned)
	}
	return from, to
}

func (h *Hold) line() string { return line(h.Start, h.End, h.Client, h) }

func (o *Operation) line() string { return line(o.Called, o.Returned, o.Client, o) }

func line(from, to time.Duration, client int, what fmt.Stringer) string {
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

// describe says in words what the store may have known when o returned.
func (c *checker) describe(o *Operation, states []state) string {
	names := make(map[int]string)
	for token, i := range c.tokens {
		names[i] = short(token)
	}
	var all []string
	for _, s := range states {
		text := "the key is free"
		switch {
		case s.holder != free && s.least > o.Returned:
			text = fmt.Sprintf("%s holds the key until %s at least", cmp.Or(names[s.holder], "an unknown token"), millis(s.least))
		case s.holder != free:
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
