package history

import (
	"slices"
	"time"
)

// A state is what the store may know of the key.
type state struct {
	holder int           // number of a token
	fence  int64         // of the last grant
	now    time.Duration // it is not earlier than this
	least  time.Duration // the lease does not end on its own before
	most   time.Duration // nor after
	done   uint64        // which of the pending operations have taken effect
}

// freed is s after the key became free.
func (s state) freed(now time.Duration) state {
	s.holder, s.now, s.least, s.most = free, now, 0, 0
	return s
}

// heldBy reports whether token holds the key, and may still do so at now.
func (s state) heldBy(token int, now time.Duration) bool { return s.holder == token && now <= s.most }

// extended is s with a lease of ttl that ends between from+ttl, less the drift, and most, or later than that.
func (s state) extended(from, ttl, most time.Duration) state {
	s.least, s.most = max(s.least, from+ttl-Drift(ttl)), max(s.most, most)
	return s
}

// latest is the latest instant at which a lease can end that o granted or renewed before then.
func (c *checker) latest(token int, o *Operation, then time.Duration) time.Duration {
	return then + o.TTL + c.Late(o.TTL) + c.extra[token]
}

// mayChange is s after an indeterminate operation has taken effect. It reports false if that changes nothing.
func (c *checker) mayChange(s state, o indeterminate, then time.Duration) (state, bool) {
	now := max(s.now, o.Called)
	switch {
	case o.Method == Wipe:
		return s.freed(now), s.holder != free
	case o.Method == Release:
		return s.freed(now), s.heldBy(o.token, now)
	case s.holder == free:
		s.least = now
	case !s.heldBy(o.token, now):
		return s, false
	}
	s.holder, s.now, s.most = o.token, now, max(s.most, c.latest(o.token, o.Operation, then))
	return s, true
}

// takesEffect is s after o has been answered as it was, at the latest then. It reports
// false if s does not allow for that answer.
func (c *checker) takesEffect(s state, o *Operation, then time.Duration) (next state, ok bool) {
	s.now = max(s.now, o.Called)
	token := c.token(o, nobody)
	mine := s.heldBy(token, s.now)
	switch {
	case o.Method == Wipe:
		return s.freed(s.now), true
	case o.Outcome == Granted:
		return c.grant(s, o, then)
	case o.Holder != "" && c.contends(o.Holder, o):
		return s, true
	case o.Outcome == Refused, o.Outcome == Held && o.Method == Inspect:
		return s, s.holder != free && s.now <= s.most && (o.Holder == "" || s.holder == c.tokens[o.Holder]) &&
			(o.Method == Inspect || s.holder != token)
	case o.Outcome == Held && o.Method == Release:
		return s.freed(s.now), mine
	case o.Outcome == Held:
		return s.extended(o.Called, o.TTL, c.latest(token, o, then)), mine
	case o.Method == Inspect:
		return s, s.holder == free
	}
	return s, s.holder != token
}

// contends reports whether an attempt of token may be what o has seen of it.
func (c *checker) contends(token string, o *Operation) bool {
	return c.Contenders && slices.ContainsFunc(c.attempts[token], func(a *Operation) bool { return a.Begin < o.End && a.End > o.Begin })
}

// grant is s after o has made its token the holder, or has done so again.
func (c *checker) grant(s state, o *Operation, then time.Duration) (next state, ok bool) {
	token := c.token(o, nobody)
	if s.fence != 0 && o.Fence < s.fence+c.FenceStep || s.holder != free && !s.heldBy(token, s.now) {
		return s, false
	}
	s.holder, s.fence = token, o.Fence
	return s.extended(o.Since, o.TTL, c.latest(token, o, then)), true
}

// covers reports whether whatever may follow s2 may follow s as well. The same operations
// must have taken effect in both, except that s may have done more reads.
func (s state) covers(s2 state, reads uint64) bool {
	return s.holder == s2.holder && s.fence <= s2.fence && s.now <= s2.now && s.least <= s2.least && s.most >= s2.most &&
		s.done&s2.done == s2.done && s.done&^reads == s2.done&^reads
}

// A frontier is a set of states of which none covers another.
type frontier struct {
	reads   uint64
	states  []state
	covered []bool
}

func (f *frontier) add(s state) {
	for i, other := range f.states {
		if !f.covered[i] && other.covers(s, f.reads) {
			return
		}
	}
	for i, other := range f.states {
		f.covered[i] = f.covered[i] || s.covers(other, f.reads)
	}
	f.states, f.covered = append(f.states, s), append(f.covered, false)
}

func (f *frontier) best() []state {
	var best []state
	for i, s := range f.states {
		if !f.covered[i] {
			best = append(best, s)
		}
	}
	return best
}
