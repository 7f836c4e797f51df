package history

import (
	"slices"
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

// clients returns the names of the clients.
func (h *History) clients() []string {
	var names []string
	for _, o := range h.Operations {
		if o.Method != Wipe {
			names = append(names, o.Client)
		}
	}
	for _, hold := range h.Holds {
		names = append(names, hold.Client)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// span is the time that h takes: a violation is a short history.
func (h *History) span() (from, to time.Duration) {
	from = 1 << 62
	for _, hold := range h.Holds {
		from, to = min(from, hold.Start), max(to, hold.End)
	}
	for _, o := range h.Operations {
		from, to = min(from, o.Called), max(to, o.Called, o.Returned)
	}
	return from, to
}

// ttl is the longest TTL of an operation.
func (h *History) ttl() time.Duration {
	ttl := time.Duration(1)
	for _, o := range h.Operations {
		ttl = max(ttl, o.TTL)
	}
	return ttl
}
