package history

import (
	"slices"
	"time"
)

// A checker decides whether the answers to all operations on one key can be those of its model. It looks for an order in
// which each operation takes effect at one instant between its call and its return, such that every answer is right. An
// operation is placed when it returns, together with those that must have come before it.
//
// A mutex with expiry is not a matter of order alone. For each state the checker knows the earliest and the latest instant
// at which the lease may end on its own, and how late it is at least.
//
// An indeterminate operation is not placed. From its call on, the store may change its state as the operation would.
type checker struct {
	Model
	events []event
	tokens map[string]int
	extra  map[int]time.Duration // by token: what indeterminate renewals may add to a lease

	attempts map[string][]*Operation // by token: what may have taken the key, if Contenders is set

	pending       [64]*Operation // that have been called, have not returned, and are not indeterminate
	indeterminate []indeterminate
	states        []state // in which the store may be, before what is pending takes effect
	tooMany       bool    // states, or pending operations
}

// An event is a call or a return.
type event struct {
	operation     *Operation
	indeterminate bool
	isCall        bool
}

func (e event) place() int {
	if e.isCall {
		return e.operation.Begin
	}
	return e.operation.End
}

// An indeterminate operation may take effect any number of times.
type indeterminate struct {
	*Operation
	token int
}

// Tokens are numbered from 2. free is the holder of a free key. somebody stands for all
// tokens that may have held the key and that no answer names. nobody never holds it.
const (
	free     = 0
	somebody = 1
	nobody   = -1
)

// maxStates limits the search: a history that needs more is not checked.
const maxStates = 2000

// checker prepares to check operations, which are in the order of their calls. The
// outcomes of those that are not known are ignored; nil knows all.
func (m Model) checker(operations []*Operation, known func(*Operation) bool) *checker {
	c := &checker{Model: m, tokens: map[string]int{"": free}, extra: make(map[int]time.Duration), attempts: make(map[string][]*Operation), states: []state{{}}}
	isIndeterminate := func(o *Operation) bool { return o.Outcome == Unknown || known != nil && !known(o) }
	anonymous := c.number(operations, isIndeterminate)
	for _, o := range operations {
		if m.Contenders && o.Method.takes() {
			c.attempts[o.Token] = append(c.attempts[o.Token], o)
		}
		e := event{operation: o, indeterminate: isIndeterminate(o), isCall: true}
		unnamed := e.indeterminate && c.tokens[o.Token] == free
		switch {
		case e.indeterminate && o.Method == Inspect:
		case unnamed && o.Method.takes() && !anonymous: // nobody ever saw it
		case unnamed && o.Method == Release: // its hold is indeterminate too
		case e.indeterminate && o.Method == Renew:
			c.extra[c.token(o, somebody)] += o.TTL
		default:
			c.events = append(c.events, e)
			if o.End != Never && (!e.indeterminate || o.Outcome != Unknown) {
				e.isCall = false
				c.events = append(c.events, e)
			}
		}
	}
	slices.SortFunc(c.events, func(a, b event) int { return a.place() - b.place() })
	return c
}

// until is c without the events after end.
func (c *checker) until(end int) *checker {
	c.events = slices.DeleteFunc(c.events, func(e event) bool { return e.place() > end })
	return c
}

// number numbers the tokens that some answer shows to have held the key. It reports
// whether some answer shows that the key was held, but not by whom.
func (c *checker) number(operations []*Operation, isIndeterminate func(*Operation) bool) (anonymous bool) {
	name := func(token string) {
		if _, ok := c.tokens[token]; !ok {
			c.tokens[token] = somebody + len(c.tokens)
		}
	}
	for _, o := range operations {
		switch {
		case isIndeterminate(o):
		case o.Outcome == Granted, o.Outcome == Held && o.Method != Inspect:
			name(o.Token)
		case o.Outcome == Refused, o.Outcome == Held:
			name(o.Holder)
			anonymous = anonymous || o.Holder == ""
		}
	}
	return anonymous
}

// token is the number of the operation's token, or other if it has none.
func (c *checker) token(o *Operation, other int) int {
	if i := c.tokens[o.Token]; i != free {
		return i
	}
	return other
}

// run returns the first return that the model cannot have, and the states in which the store may have been before it; or nil.
func (c *checker) run() (wrong *Operation, before []state) {
	for _, e := range c.events {
		before := c.states
		switch {
		case e.isCall && e.indeterminate:
			c.suppose(e.operation)
		case e.isCall:
			if e.operation.Method == Acquire {
				c.suppose(e.operation) // it may be granted and expire unseen, and be granted again
			}
			c.begin(e.operation)
		default:
			c.settle(e.operation, !e.indeterminate)
			c.end(e.operation)
		}
		if len(c.states) == 0 {
			return e.operation, before
		}
		if c.tooMany {
			return nil, nil
		}
	}
	return nil, nil
}

// suppose lets o take effect from now on.
func (c *checker) suppose(o *Operation) {
	i := indeterminate{o, c.token(o, somebody)}
	if i.token == somebody && slices.ContainsFunc(c.indeterminate, i.sameAs) {
		return
	}
	c.indeterminate = append(c.indeterminate, i)
}

// sameAs reports whether other has every effect that i can have.
func (i indeterminate) sameAs(other indeterminate) bool {
	return other.token == i.token && other.End == Never && other.TTL >= i.TTL && other.Method.takes() && i.Method.takes()
}

func (c *checker) begin(o *Operation) {
	i := slices.Index(c.pending[:], nil)
	if i < 0 {
		c.tooMany = true
		return
	}
	c.pending[i] = o
}

func (c *checker) end(o *Operation) {
	c.indeterminate = slices.DeleteFunc(c.indeterminate, func(i indeterminate) bool { return i.Operation == o })
	if i := slices.Index(c.pending[:], o); i >= 0 {
		c.pending[i] = nil
	}
}

// settle replaces the states by all that may be reached from them until o returns;
// if o must have taken effect by then, by those in which it has.
func (c *checker) settle(o *Operation, must bool) {
	var bit uint64
	if i := slices.Index(c.pending[:], o); i >= 0 {
		bit = 1 << i
	}
	reached, settled := frontier{reads: c.reads()}, frontier{reads: c.reads()}
	for _, s := range c.states {
		reached.add(s)
	}
	for i := 0; i < len(reached.states); i++ {
		s := reached.states[i]
		switch {
		case reached.covered[i]:
			continue
		case !must:
			settled.add(s)
		case s.done&bit != 0:
			s.done &^= bit
			settled.add(s)
			continue
		}
		c.successors(s, o.Returned, &reached)
		if len(reached.states) > maxStates {
			c.tooMany = true
			return
		}
	}
	c.states = settled.best()
}

// reads are the pending operations that change nothing.
func (c *checker) reads() uint64 {
	var bits uint64
	for i, o := range c.pending {
		if o != nil && (o.Outcome == Refused || o.Outcome == NotHeld || o.Method == Inspect) {
			bits |= 1 << i
		}
	}
	return bits
}

// successors adds the states that may follow s until then.
func (c *checker) successors(s state, then time.Duration, to *frontier) {
	if s.holder != free && then >= s.least {
		to.add(s.freed(max(s.now, s.least)))
	}
	for _, i := range c.indeterminate {
		if next, ok := c.mayChange(s, i, then); ok {
			to.add(next)
		}
	}
	for i, o := range c.pending {
		if o == nil || s.done&(1<<i) != 0 {
			continue
		}
		if next, ok := c.takesEffect(s, o, then); ok {
			next.done |= 1 << i
			to.add(next)
		}
	}
}

// A state is what the store may know of the key.
type state struct {
	holder int           // number of a token
	fence  int64         // of the last grant
	now    time.Duration // it is not earlier than this
	least  time.Duration // the lease does not end on its own before
	most   time.Duration // nor after
	done   uint64        // which of the pending operations have taken effect
}

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
