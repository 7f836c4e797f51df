package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A History is what clients have done with some keys. Its instants count from its beginning.
type History struct {
	Operations []*Operation // in the order of their calls
	Holds      []*Hold      // in no order
}

// keys returns the keys of all operations, in the order of their first calls.
func (h *History) keys() []string {
	var keys []string
	for _, o := range h.Operations {
		if o.Key != "" && !slices.Contains(keys, o.Key) {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// of returns the operations on key, and those on every key.
func (h *History) of(key string) []*Operation {
	return slices.DeleteFunc(slices.Clone(h.Operations), func(o *Operation) bool { return o.Key != key && o.Method != Wipe })
}

// Listing has a line for each call and each certain hold of h, key by key and in the order of time. Those of what is to
// blame, if that is not nil, are marked.
func (h *History) Listing(blame *Violation) string {
	var text strings.Builder
	var marked []string
	if blame != nil {
		marked = blame.lines()
	}
	for _, key := range h.keys() {
		fmt.Fprintf(&text, "all that happened to %q:\n", key)
		part := History{
			slices.DeleteFunc(slices.Clone(h.Operations), func(o *Operation) bool { return o.Key != key && o.Key != "" }),
			slices.DeleteFunc(h.certain(), func(h *Hold) bool { return h.Key != key }),
		}
		for _, line := range part.lines() {
			mark := ' '
			if slices.Contains(marked, line) {
				mark = '>'
			}
			fmt.Fprintf(&text, "%c %s\n", mark, line)
		}
	}
	return text.String()
}

// lines has a line for each hold and each operation, in the order of time.
func (h *History) lines() []string {
	lines := make(map[string]time.Duration)
	for _, h := range h.Holds {
		lines[h.String()] = h.Start
	}
	for _, o := range h.Operations {
		lines[o.line()] = o.Called
	}
	return slices.SortedFunc(maps.Keys(lines), func(a, b string) int {
		return cmp.Or(cmp.Compare(lines[a], lines[b]), cmp.Compare(a, b))
	})
}

// An Operation is one call of a Locker for one key.
type Operation struct {
	Method     Method
	Client     string
	Key, Token string
	TTL        time.Duration

	Begin, End       int           // places in the order of all calls and returns, which is known even if the clock stands still
	Called, Returned time.Duration // 0 and Never, if it has not returned

	Outcome Outcome
	Holder  string        // of Refused and of Inspect: who holds the key; "" if unknown
	Fence   int64         // of Granted
	Since   time.Duration // of Granted: the store keeps the grant at least until Since+TTL
	Err     error
}

// Never is the End of an operation that has not returned.
const Never = int(^uint(0) >> 1)

// A Method is that of a Locker, or what happens to a client or to the store.
type Method int

// The methods.
const (
	TryAcquire Method = iota
	Acquire
	Renew
	Release
	Inspect
	Wipe   // all data is lost
	Outage // the client's connection fails
)

func (m Method) String() string {
	return [...]string{"TryAcquire", "Acquire", "Renew", "Release", "Inspect", "Wipe", "Outage"}[m]
}

// takes reports whether the method may make its token the holder.
func (m Method) takes() bool { return m == TryAcquire || m == Acquire }

// An Outcome is the answer to an operation.
type Outcome int

// The outcomes.
const (
	Unknown  Outcome = iota // an error, or no answer yet: it may take effect at any time, or never
	Granted                 // the token holds the key now
	Refused                 // another token holds it
	Held                    // the token held the key; of Inspect: somebody did
	NotHeld                 // it did not; of Inspect: nobody did
	Happened                // of Wipe and Outage
)

func (o *Operation) String() string {
	call := fmt.Sprintf("%v(%s)", o.Method, short(o.Token))
	switch o.Method {
	case Wipe:
		return "everything is lost"
	case Outage:
		return "the connection fails"
	case Inspect:
		call = "Inspect()"
	case TryAcquire, Acquire, Renew:
		call = fmt.Sprintf("%v(%s, %v)", o.Method, short(o.Token), o.TTL)
	}
	return call + " = " + o.answer()
}

func (o *Operation) answer() string {
	switch {
	case o.Outcome == Granted:
		return fmt.Sprintf("acquired, fence %d, since %s", o.Fence, millis(o.Since))
	case o.Outcome == Refused, o.Outcome == Held && o.Method == Inspect:
		return "held by " + short(o.Holder)
	case o.Outcome == NotHeld && o.Method == Inspect:
		return "not held"
	case o.Outcome == Held, o.Outcome == NotHeld:
		return fmt.Sprint(o.Outcome == Held)
	case o.End == Never:
		return "…has not returned"
	}
	return fmt.Sprint(o.Err)
}

// short is as much of a token as tells it from the others of a history.
func short(token string) string {
	if token == "" {
		return "?"
	}
	token = strings.TrimSuffix(token, ".") // without an owner's label
	if len(token) > 8 {
		token = token[:4] + "…" + token[len(token)-4:]
	}
	return fmt.Sprintf("%q", token)
}

// A Violation is a piece of a history that no lock can have, as short as possible:
// either one or two holds, or some operations.
type Violation struct {
	Key  string
	What string // is wrong
	History
}

// String is the piece, one line each, in the order of time.
func (v *Violation) String() string {
	return fmt.Sprintf("%s, on %q:\n%s", v.What, v.Key, strings.Join(v.lines(), "\n"))
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
