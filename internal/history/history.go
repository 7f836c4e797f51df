package history

import (
	"slices"
	"time"
)

// A History is what clients have done with some keys. Its instants count from its
// beginning.
type History struct {
	Operations []*Operation // in the order of their calls
	Holds      []*Hold      // in no order
	Outages    []Outage     // in no order
}

// An Outage is the time in which a client's connection failed.
type Outage struct {
	Client   int
	From, To time.Duration
}

// keys returns the keys of all operations, in the order of their first calls.
func (h *History) keys() []string {
	var keys []string
	for _, o := range h.Operations {
		if o.Method != Wipe && !slices.Contains(keys, o.Key) {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// of returns the operations on key, and those on every key.
func (h *History) of(key string) []*Operation {
	return slices.DeleteFunc(slices.Clone(h.Operations), func(o *Operation) bool { return o.Key != key && o.Method != Wipe })
}

// clients is the number of the clients.
func (h *History) clients() int {
	n := 0
	for _, o := range h.Operations {
		n = max(n, o.Client+1)
	}
	return n
}

// end is when the last thing happened.
func (h *History) end() time.Duration {
	end := time.Duration(1)
	for _, o := range h.Operations {
		end = max(end, o.Called, o.Returned)
	}
	for _, hold := range h.Holds {
		end = max(end, hold.End)
	}
	return end
}

// ttl is the longest TTL of an operation.
func (h *History) ttl() time.Duration {
	ttl := time.Duration(1)
	for _, o := range h.Operations {
		ttl = max(ttl, o.TTL)
	}
	return ttl
}
