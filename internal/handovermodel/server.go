package main

import "slices"

// A world is a state that is being changed.
type world struct {
	State
	c      *Config
	broken Properties // by what has just happened
	why    string
	full   bool    // there was no room for something
	plain  bool    // numbers are left as they are
	former bool    // Server is the former one: no inbox listens to it
	after  []event // what follows without faults, if that breaks P4
}

// execute runs the script of a call: backend/rediscore/lua, one function for each.
func (w *world) execute(call *Call) {
	call.Delay, call.Term = call.Age, w.Term
	switch call.Script {
	case tryScript:
		w.acquire(call)
	case enqueueScript:
		w.enqueue(call)
	case checkInScript:
		w.checkIn(call)
	case renewScript:
		w.renew(call)
	case releaseScript:
		w.release(call)
	}
}

// acquire is acquire.lua.
func (w *world) acquire(call *Call) {
	holder, found := w.look(call.Token)
	switch {
	case found == unswept:
		call.Answer = answerUnswept
		return
	case found == reserved || holder != 0 && holder != call.Token:
		call.Answer = answerHeld
		return
	}
	call.Answer, call.Fence = answerGranted, w.grant(holder, call.Token, w.c.TTL)
}

// enqueue is enqueue.lua.
func (w *world) enqueue(call *Call) {
	holder, found := w.look(call.Token)
	if found == unswept {
		call.Answer = answerUnswept
		return
	}
	if found != reserved && (holder == 0 || holder == call.Token) {
		call.Answer, call.Fence = answerGranted, w.grant(holder, call.Token, w.c.FirstTTL)
		call.Ticket = 0
		return
	}
	w.takeIn(call)
	if queue := w.queue(); w.steady() {
		w.sweep(queue[:min(2, len(queue))])
	}
}

func (w *world) takeIn(call *Call) {
	e := w.entry(call.Token)
	if e.Ticket == 0 {
		e.Ticket = call.Ticket
		if e.Ticket == 0 {
			e.Ticket = w.newTicket()
		}
	}
	if w.c.timed() {
		w.Server.Last = max(w.Server.Last, e.Ticket)
	}
	e.Seen, e.Inbox = 0, call.Inbox
	if e.Inbox {
		w.Server.Heard[w.c.process(w.c.client(call.Token))] = uint8(w.c.longest())
	}
	call.Answer, call.Ticket = answerWaits, e.Ticket
}

// checkIn is checkin.lua.
func (w *world) checkIn(call *Call) {
	s := &w.Server
	before := s.Holder
	holder, found := w.look(call.Token)
	if found == unswept {
		call.Answer = answerUnswept
		return
	}
	call.Ticket = 0
	if holder == call.Token {
		if w.c.without(checkInCreatesNothing) {
			s.Rest = uint8(w.c.FirstTTL)
		}
		switch {
		case s.To != call.Token:
			call.Answer = answerUnknown
		case before == 0:
			call.Answer, call.Fence = answerGranted, s.Fence
		default:
			call.Answer, call.Fence, call.Granted = answerFound, s.Fence, s.Age
		}
		return
	}
	e := w.entry(call.Token)
	if e.Ticket == 0 && !w.c.without(checkInCreatesNothing) {
		call.Answer = answerUnknown
		return
	}
	w.takeIn(call)
	if w.steady() {
		w.sweep(w.queue())
	}
}

// sweep is sweep.lua. A check-in removes the silent, and an enqueue those among the first two.
func (w *world) sweep(tokens []token) {
	for _, t := range tokens {
		if w.silent(t) {
			*w.entry(t) = Entry{}
		}
	}
}

func (w *world) silent(t token) bool { return w.ago(t) >= w.c.Silent }

// ago returns how long ago a waiter, or another with the same inbox, has called.
func (w *world) ago(t token) int {
	if e := w.entry(t); !e.Inbox {
		return int(e.Seen)
	}
	return w.c.longest() - int(w.Server.Heard[w.c.process(w.c.client(t))])
}

// steady notes that a waiter has called, and reports whether such calls have come for so long that
// the silent are dead.
func (w *world) steady() bool {
	if w.c.Silent == 0 {
		return false
	}
	w.Server.Fresh = pause
	return int(w.Server.Steady) >= w.c.Silent
}

// renew is renew.lua.
func (w *world) renew(call *Call) {
	if w.Server.Holder != call.Token {
		call.Answer = answerNotHeld
		return
	}
	call.Answer = answerHeld
	w.lengthen(w.c.TTL)
}

// release is release.lua.
func (w *world) release(call *Call) {
	s := &w.Server
	held := s.Holder == call.Token
	call.Answer = answerNotHeld
	if held {
		call.Answer = answerHeld
	} else {
		*w.entry(call.Token) = Entry{}
	}
	if !held && s.Holder != 0 {
		return
	}
	_, found := w.serve(0)
	if found == unswept && !w.c.without(unsweptIsRepeated) {
		call.Answer = answerUnswept
		return
	}
	if held && (found == nobody || found == reserved) {
		s.Holder, s.Rest = 0, 0
	}
	if found == nobody {
		s.To, s.Fence, s.Age = 0, 0, 0
		s.Fresh, s.Steady, s.Last = 0, 0, 0
	}
}

// Who was found to have the lock, or to get it.
type outcome uint8

const (
	nobody outcome = iota
	somebody
	reserved // for a waiter without an inbox
	unswept  // there are more dead waiters than one call removes
)

// look, serve, grant, lengthen and mint are those of queue.lua.
func (w *world) look(caller token) (holder token, is outcome) {
	if w.Server.Holder != 0 {
		return w.Server.Holder, somebody
	}
	return w.serve(caller)
}

func (w *world) serve(caller token) (holder token, is outcome) {
	for dead := 0; w.c.Sweep == 0 || dead < w.c.Sweep; dead++ {
		t := w.first()
		if t == 0 {
			return 0, nobody
		}
		e, ago := *w.entry(t), w.ago(t)
		if !e.Inbox && t != caller && int(e.Seen) < w.c.UnsubscribedSeen {
			return 0, reserved
		}
		*w.entry(t) = Entry{}
		alive := e.Inbox && !w.former && ago < w.c.Seen && w.Clients[w.c.process(w.c.client(t))].Sub
		if t != caller && !alive {
			continue
		}
		s := &w.Server
		s.To, s.Fence, s.Age = t, w.grant(0, t, w.c.FirstTTL), 0
		if e.Inbox && t != caller {
			w.publish(Message{Token: t, Fence: s.Fence, Term: w.Term})
		}
		return t, somebody
	}
	return 0, unswept
}

func (w *world) grant(holder, t token, ttl int) (fence uint8) {
	fence = w.mint()
	if holder == 0 {
		w.Server.Holder, w.Server.Rest = t, uint8(ttl)
	} else {
		w.lengthen(ttl)
	}
	return fence
}

// lengthen extends the lease to at least a TTL from now, and never shortens it.
func (w *world) lengthen(ttl int) {
	if w.Server.Rest < uint8(ttl) || w.c.without(nothingIsShortened) {
		w.Server.Rest = uint8(ttl)
	}
}

// grantsPerTick is more than the server ever numbers in a tick.
const (
	grantsPerTick = 20
	lastTick      = 12
)

func (w *world) mint() uint8 {
	s := &w.Server
	s.Counter++
	if !w.c.without(fencesFollowTime) {
		s.Counter = max(s.Counter, w.Time*grantsPerTick)
	}
	if s.Counter <= w.Lost {
		w.breaks(P2, "a fence is not above those from before the data was lost")
	}
	return s.Counter
}

// pause is after how many ticks without an enqueue or a check-in nobody is swept.
const pause = 2

// newTicket returns a ticket that is behind all. Only the order of tickets matters, so that they follow
// the time only where they can be lost.
func (w *world) newTicket() (last uint8) {
	if w.c.timed() {
		return max(w.Server.Last+1, w.Time*grantsPerTick)
	}
	w.eachTicket(func(t *uint8) { last = max(last, *t) })
	return last + 1
}

func (w *world) entry(t token) *Entry { return &w.Server.Queue[t-1] }

func (w *world) first() (first token) {
	for i := range w.Server.Queue {
		if t := w.Server.Queue[i].Ticket; t != 0 && (first == 0 || t < w.entry(first).Ticket) {
			first = token(i + 1)
		}
	}
	return first
}

// queue returns the tokens that wait, in order.
func (w *world) queue() (tokens []token) {
	for i, e := range w.Server.Queue {
		if e.Ticket != 0 {
			tokens = append(tokens, token(i+1))
		}
	}
	slices.SortFunc(tokens, func(a, b token) int { return int(w.entry(a).Ticket) - int(w.entry(b).Ticket) })
	return tokens
}

func (w *world) publish(m Message) {
	for i := range w.Msgs {
		if w.Msgs[i].Token == 0 {
			w.Msgs[i] = m
			return
		}
	}
	w.full = true
}

// pass lets a tick of time pass for the server.
func (s *Server) pass(c *Config) {
	if s.Holder != 0 {
		if s.Rest--; s.Rest == 0 {
			s.Holder = 0
		}
	}
	if s.To != 0 {
		s.Age = min(s.Age+1, uint8(c.FirstTTL))
	}
	for i := range s.Queue {
		if e := &s.Queue[i]; e.Ticket != 0 && !e.Inbox {
			e.Seen = min(e.Seen+1, uint8(c.longest()))
		}
	}
	for i := range s.Heard {
		s.Heard[i] = max(s.Heard[i], 1) - 1
	}
	if s.Fresh > 0 {
		s.Fresh--
		s.Steady = min(s.Steady+1, uint8(c.Silent))
	}
	if s.Fresh == 0 {
		s.Steady = 0
	}
}
