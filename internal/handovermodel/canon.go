package main

import (
	"cmp"
	"slices"
)

// canonical makes states equal that differ only in what does not matter: the order of
// what is in flight, how large fences and tickets are, and what is remembered of
// tokens that nothing refers to.
func (w *world) canonical() {
	for i := range w.Clients {
		if a := &w.Clients[i].Away; a.Rest == 0 && a.Token != w.Server.Holder && a.Token != w.Replica.Holder && a.Token != w.Former.Holder {
			*a = Away{}
		}
	}
	w.forgetUnused()
	for _, s := range []*Server{&w.Server, &w.Replica, &w.Former} {
		s.forgetUnheard(w.c)
	}
	for i := range w.Calls {
		w.Calls[i].trim()
	}
	slices.SortFunc(w.Calls[:], func(a, b Call) int { return a.order(b) })
	slices.SortFunc(w.Msgs[:], func(a, b Message) int { return cmp.Compare(b.key(), a.key()) })
	if !w.c.timed() && !w.plain {
		renumber(w.eachFence)
		renumber(w.eachTicket)
	}
}

// forgetUnheard forgets when processes called of which nobody waits.
func (s *Server) forgetUnheard(c *Config) {
	var heard [maxClients]uint8
	for i, e := range s.Queue {
		if p := c.process(c.client(token(i + 1))); e.Inbox {
			heard[p] = s.Heard[p]
		}
	}
	s.Heard = heard
}

// trim clears what is of no use any more.
func (c *Call) trim() {
	if c.Answer == answerHeld || c.Answer == answerNotHeld || c.Answer == answerUnknown {
		c.Ticket, c.Delay, c.Fence = 0, 0, 0
		if c.Script != renewScript {
			c.Age = 0
		}
	}
	if c.Answer == answerGranted || c.Answer == answerFound {
		c.Delay, c.Ticket = 0, 0
	}
	if c.Answer == answerWaits {
		c.Age = 0
	} else if c.Answer != unanswered {
		c.Stale = false
	}
	if !c.Wanted {
		c.Stale = false
	}
	c.Copied = c.Copied && c.counts()
	if c.Answer != unanswered {
		c.Inbox = false
	}
	if c.Answer != answerWaits {
		c.Term = 0
	}
	c.Former = c.Former && c.counts()
	if c.Script == releaseScript {
		c.Age, c.Delay = 0, 0
	}
}

func (c Call) order(d Call) int {
	a, b := c.key(), d.key()
	switch {
	case a > b:
		return -1
	case a < b:
		return 1
	}
	return 0
}

func (c Call) key() uint64 {
	k := uint64(c.Script)<<60 | uint64(c.Token)<<56 | uint64(c.Age)<<52 | uint64(c.Answer)<<48
	k |= uint64(c.Ticket)<<40 | uint64(c.Fence)<<32 | uint64(c.Delay)<<28 | uint64(c.Granted)<<24
	if c.Wanted {
		k |= 1
	}
	if c.Inbox {
		k |= 2
	}
	if c.Last {
		k |= 4
	}
	if c.Stale {
		k |= 8
	}
	if c.Copied {
		k |= 1 << 10
	}
	if c.Former {
		k |= 1 << 11
	}
	k |= uint64(c.Term) << 4
	return k
}

func (m Message) key() uint32 {
	k := uint32(m.Token)<<24 | uint32(m.Fence)<<16 | uint32(m.Age)<<8 | uint32(m.Term)<<4
	if m.Past {
		k |= 1
	}
	if m.Old {
		k |= 2
	}
	return k
}

// used tells for each token whether anything refers to it, apart from its own record
// and that of the last handover.
func (w *world) used() (used [maxTokens + 1]bool) {
	used[w.Server.Holder] = true
	used[w.Replica.Holder] = true
	used[w.Former.Holder] = true
	used[w.Written.Token] = true
	for i := range w.Tokens {
		if w.Server.Queue[i].Ticket != 0 || w.Replica.Queue[i].Ticket != 0 || w.Former.Queue[i].Ticket != 0 || w.Passed&(1<<i) != 0 || w.Tokens[i].Owed != nothingOwed {
			used[i+1] = true
		}
	}
	for i := range w.Calls {
		used[w.Calls[i].Token] = true
	}
	for i := range w.Msgs {
		used[w.Msgs[i].Token] = true
	}
	for i := range w.Clients {
		used[w.Clients[i].Token] = true
		used[w.Clients[i].Away.Token] = true
	}
	return used
}

func (w *world) forgetUnused() {
	used := w.used()
	for i := range w.Tokens {
		if !used[i+1] {
			w.Tokens[i] = Token{}
		}
	}
	w.Server.forgetUnused(used)
	w.Replica.forgetUnused(used)
	w.Former.forgetUnused(used)
}

func (s *Server) forgetUnused(used [maxTokens + 1]bool) {
	if !used[s.To] {
		s.To, s.Fence, s.Age = 0, 0, 0
	}
}

// renumber replaces numbers by their ranks.
func renumber(each func(func(*uint8))) {
	var present [64]bool
	var rank [64]uint8
	each(func(n *uint8) { present[*n] = true })
	next := uint8(0)
	for n := 1; n < 64; n++ {
		if present[n] {
			next++
			rank[n] = next
		}
	}
	each(func(n *uint8) { *n = rank[*n] })
}

func (w *world) eachFence(f func(*uint8)) {
	f(&w.Server.Counter)
	f(&w.Server.Fence)
	f(&w.Certain)
	for i := range w.Calls {
		f(&w.Calls[i].Fence)
	}
	for i := range w.Msgs {
		f(&w.Msgs[i].Fence)
	}
	for i := range w.Clients {
		f(&w.Clients[i].Fence)
		f(&w.Clients[i].Early.Fence)
		f(&w.Clients[i].Away.Fence)
	}
}

func (w *world) eachTicket(f func(*uint8)) {
	for i := range w.Server.Queue {
		f(&w.Server.Queue[i].Ticket)
	}
	for i := range w.Calls {
		f(&w.Calls[i].Ticket)
	}
	for i := range w.Clients {
		f(&w.Clients[i].Ticket)
	}
}
