package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Violation is a piece of a history that no lock can have, as short as possible:
// either one or two holds, or some operations.
type Violation struct {
	Key  string
	What string // is wrong
	History
}

// String is the piece, one line each, in the order of time.
func (v *Violation) String() string {
	lines := make(map[string]time.Duration)
	for _, h := range v.Holds {
		lines[h.String()] = h.Start
	}
	for _, o := range v.Operations {
		lines[o.line()] = o.Called
	}
	inOrder := slices.SortedFunc(maps.Keys(lines), func(a, b string) int {
		return cmp.Or(cmp.Compare(lines[a], lines[b]), cmp.Compare(a, b))
	})
	return fmt.Sprintf("%s, on %q:\n%s", v.What, v.Key, strings.Join(inOrder, "\n"))
}

func (o *Operation) line() string { return line(o.Called, o.Returned, o.Client, o.String()) }

func line(from, to time.Duration, client, what string) string {
	end := "…"
	if to >= from {
		end = millis(to)
	}
	return fmt.Sprintf("%12s to %12s  %-6s  %s", millis(from), end, client, what)
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
		if s.holder != free {
			until := millis(s.most) + " at most"
			if s.least > o.Returned {
				until = millis(s.least) + " at least"
			}
			text = fmt.Sprintf("%s holds the key until %s", cmp.Or(names[s.holder], "an unknown token"), until)
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
