package conformance

import (
	"slices"
	"time"
)

// A judge decides whether the answers to all ops on one key can be those of a
// fenced mutex with expiry. It looks for an order in which each op takes effect
// at one instant between its call and its return, such that every answer is
// right. (That is linearizability; the search is that of Wing and Gong, as
// improved by Lowe: an op is placed when it returns, with those that must have
// come before it.)
//
// A mutex with expiry is not a matter of order alone. The judge knows for each
// state the earliest and the latest instant at which the lease may end on its
// own, and the earliest instant that it can be by then.
//
// An op whose outcome is not known may take effect at any time after its call,
// or never, and is not placed at all. It is a rumour: from its call on, the
// store may change its state in the way that the op would.
//
// What is not allowed is never the fault of a slow machine: every doubt is
// decided in favour of the store.
type judge struct {
	late   func(ttl time.Duration) time.Duration // how long the store may take to expire a lease of ttl
	events []event
	tokens map[string]int
	slack  map[int]time.Duration // by token: what renewals of unknown outcome may add

	pending [64]*op // known ops that have been called and have not returned
	rumours []rumour
	states  []state // in which the store may be, before what is pending takes effect
	maze    bool    // there were too many states
}

// An event is a call or a return.
type event struct {
	op     *op
	rumour bool // its outcome is not known
	isCall bool
}

func (e event) place() int {
	if e.isCall {
		return e.op.call
	}
	return e.op.back
}

// A rumour is an op that may take effect, any number of times.
type rumour struct {
	op    *op
	token int
}

// A state is what the store may know of the key.
type state struct {
	holder int           // index of a token; 0 if the key is free
	fence  int64         // of the last grant
	now    time.Duration // it is not earlier than this
	least  time.Duration // the lease does not end on its own before
	most   time.Duration // nor after
	done   uint64        // which of the pending ops have taken effect
}

// Indices of tokens that no answer shows to have held the key: somebody stands
// for all that may have held it unseen.
const (
	somebody = 1
	nobody   = -1
)

// maxStates bounds the search: a history that needs more is not judged.
const maxStates = 2000

// drift is what a lease of ttl may last less than that: clocks do not run at the
// same speed, and the core allows for as much.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// newJudge prepares to judge ops, which are in the order of their calls. The
// outcome of those that are not in known is forgotten; nil knows all.
func newJudge(ops []*op, late func(time.Duration) time.Duration, known func(*op) bool) *judge {
	j := &judge{late: late, tokens: map[string]int{"": 0}, slack: make(map[int]time.Duration), states: []state{{}}}
	isRumour := func(o *op) bool { return o.outcome == unknown || known != nil && !known(o) }
	anonymous := j.name(ops, isRumour)
	for _, o := range ops {
		e := event{op: o, rumour: isRumour(o), isCall: true}
		switch {
		case e.rumour && o.action == doInspect:
		case e.rumour && o.action.takes() && j.tokens[o.token] == 0 && !anonymous: // nobody ever saw it
		case e.rumour && o.action == doRelease && j.tokens[o.token] == 0: // of a hold that is a rumour itself
		case e.rumour && o.action == doRenew:
			j.slack[j.token(o, somebody)] += o.ttl
		default:
			j.events = append(j.events, e)
			if o.back != never && (!e.rumour || o.outcome != unknown) {
				e.isCall = false
				j.events = append(j.events, e)
			}
		}
	}
	slices.SortFunc(j.events, func(a, b event) int { return a.place() - b.place() })
	return j
}

// name numbers the tokens that some answer shows to have held the key. It reports
// whether there are answers that show that somebody did, but not who.
func (j *judge) name(ops []*op, isRumour func(*op) bool) (anonymous bool) {
	index := func(token string) {
		if _, ok := j.tokens[token]; !ok {
			j.tokens[token] = somebody + len(j.tokens)
		}
	}
	for _, o := range ops {
		switch {
		case isRumour(o):
		case o.outcome == granted, o.outcome == wasHeld && o.action != doInspect:
			index(o.token)
		case o.outcome == refused, o.outcome == wasHeld:
			index(o.holder)
			anonymous = anonymous || o.holder == ""
		}
	}
	return anonymous
}

// token is the index of the op's token, or other if no answer names it.
func (j *judge) token(o *op, other int) int {
	if i := j.tokens[o.token]; i != 0 {
		return i
	}
	return other
}

// run returns the first return that no lock could have made, and the states in
// which the store may have been before it; or nil.
func (j *judge) run() (wrong *op, before []state) {
	for _, e := range j.events {
		before := j.states
		switch {
		case e.isCall && e.rumour:
			j.hear(e.op)
		case e.isCall:
			if e.op.action == doWait {
				j.hear(e.op) // it may be granted and expire unseen, and be granted again
			}
			j.enter(e.op)
		default:
			j.settle(e.op, !e.rumour)
			j.forget(e.op)
		}
		if len(j.states) == 0 {
			return e.op, before
		}
		if j.maze {
			return nil, nil
		}
	}
	return nil, nil
}

func (j *judge) hear(o *op) {
	r := rumour{o, j.token(o, somebody)}
	if r.token == somebody && slices.ContainsFunc(j.rumours, r.sameAs) {
		return
	}
	j.rumours = append(j.rumours, r)
}

// sameAs reports whether other makes r superfluous.
func (r rumour) sameAs(other rumour) bool {
	return other.token == r.token && other.op.back == never && other.op.ttl >= r.op.ttl && other.op.action.takes() && r.op.action.takes()
}

func (j *judge) enter(o *op) {
	i := slices.Index(j.pending[:], nil)
	if i < 0 {
		j.maze = true
		return
	}
	j.pending[i] = o
}

func (j *judge) forget(o *op) {
	j.rumours = slices.DeleteFunc(j.rumours, func(r rumour) bool { return r.op == o })
	if i := slices.Index(j.pending[:], o); i >= 0 {
		j.pending[i] = nil
	}
}

// settle replaces the states by those in which o has taken effect, if it must
// have, and by all that may be reached from them otherwise.
func (j *judge) settle(o *op, must bool) {
	var bit uint64
	if i := slices.Index(j.pending[:], o); i >= 0 {
		bit = 1 << i
	}
	reached, settled := front{reads: j.reads()}, front{reads: j.reads()}
	for _, s := range j.states {
		reached.add(s)
	}
	for i := 0; i < len(reached.states); i++ {
		s := reached.states[i]
		switch {
		case reached.beaten[i]:
			continue
		case !must:
			settled.add(s)
		case s.done&bit != 0:
			s.done &^= bit
			settled.add(s)
			continue
		}
		j.onward(s, o.returned, &reached)
		if len(reached.states) > maxStates {
			j.maze = true
			return
		}
	}
	j.states = settled.best()
}

// reads are the pending ops that change nothing.
func (j *judge) reads() uint64 {
	var bits uint64
	for i, o := range j.pending {
		if o != nil && (o.outcome == refused || o.outcome == wasFree || o.action == doInspect) {
			bits |= 1 << i
		}
	}
	return bits
}

// onward adds what may come after s until then.
func (j *judge) onward(s state, then time.Duration, to *front) {
	if s.holder != 0 && then >= s.least {
		to.add(s.freed(max(s.now, s.least)))
	}
	for _, r := range j.rumours {
		if next, ok := j.happens(s, r, then); ok {
			to.add(next)
		}
	}
	for i, o := range j.pending {
		if o == nil || s.done&(1<<i) != 0 {
			continue
		}
		if next, ok := j.takesEffect(s, o, then); ok {
			next.done |= 1 << i
			to.add(next)
		}
	}
}

func (s state) freed(now time.Duration) state {
	s.holder, s.now, s.least, s.most = 0, now, 0, 0
	return s
}

// heldBy reports whether token holds the key, and may still do so at now.
func (s state) heldBy(token int, now time.Duration) bool { return s.holder == token && now <= s.most }

// happens is s after the op of a rumour has taken effect.
func (j *judge) happens(s state, r rumour, then time.Duration) (state, bool) {
	now := max(s.now, r.op.called)
	switch {
	case r.op.action == doWipe:
		return s.freed(now), s.holder != 0
	case r.op.action == doRelease:
		return s.freed(now), s.heldBy(r.token, now)
	case s.holder == 0:
		s.least = now
	case !s.heldBy(r.token, now):
		return s, false
	}
	s.holder, s.now, s.most = r.token, now, max(s.most, j.latest(r.token, r.op, then))
	return s, true
}

// latest is the latest instant at which a lease can end that o granted or
// renewed before then.
func (j *judge) latest(token int, o *op, then time.Duration) time.Duration {
	return then + o.ttl + j.late(o.ttl) + j.slack[token]
}

// takesEffect is s after o has been answered as it was, at the latest then.
func (j *judge) takesEffect(s state, o *op, then time.Duration) (next state, ok bool) {
	s.now = max(s.now, o.called)
	token := j.token(o, nobody)
	mine := s.heldBy(token, s.now)
	switch {
	case o.action == doWipe:
		return s.freed(s.now), true
	case o.outcome == granted:
		return j.grant(s, o, then)
	case o.outcome == refused, o.outcome == wasHeld && o.action == doInspect:
		return s, s.holder != 0 && s.now <= s.most && (o.holder == "" || s.holder == j.tokens[o.holder]) &&
			(o.action == doInspect || s.holder != token)
	case o.outcome == wasHeld && o.action == doRelease:
		return s.freed(s.now), mine
	case o.outcome == wasHeld:
		return s.kept(o.called+o.ttl, o.ttl, j.latest(token, o, then)), mine
	case o.action == doInspect:
		return s, s.holder == 0
	}
	return s, s.holder != token
}

// grant is s after o has made its token the holder, or has done so again.
func (j *judge) grant(s state, o *op, then time.Duration) (next state, ok bool) {
	token := j.token(o, nobody)
	if s.fence != 0 && o.fence < s.fence+numbers || s.holder != 0 && !s.heldBy(token, s.now) {
		return s, false
	}
	s.holder, s.fence = token, o.fence
	return s.kept(o.since+o.ttl, o.ttl, j.latest(token, o, then)), true
}

// kept is s with a lease that lasts from until, less the drift of ttl, to most,
// or longer.
func (s state) kept(until, ttl, most time.Duration) state {
	s.least, s.most = max(s.least, until-drift(ttl)), max(s.most, most)
	return s
}

// beats reports whether whatever may follow s2 may follow s as well. The same ops
// must have taken effect in both, but reads that have are done with.
func (s state) beats(s2 state, reads uint64) bool {
	return s.holder == s2.holder && s.fence <= s2.fence && s.now <= s2.now && s.least <= s2.least && s.most >= s2.most &&
		s.done&s2.done == s2.done && s.done&^reads == s2.done&^reads
}

// A front is a set of states of which none beats another.
type front struct {
	reads  uint64
	states []state
	beaten []bool
}

func (f *front) add(s state) {
	for i, other := range f.states {
		if !f.beaten[i] && other.beats(s, f.reads) {
			return
		}
	}
	for i, other := range f.states {
		f.beaten[i] = f.beaten[i] || s.beats(other, f.reads)
	}
	f.states, f.beaten = append(f.states, s), append(f.beaten, false)
}

func (f *front) best() []state {
	var best []state
	for i, s := range f.states {
		if !f.beaten[i] {
			best = append(best, s)
		}
	}
	return best
}
