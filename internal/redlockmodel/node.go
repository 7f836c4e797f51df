package main

// execute lets a node run a call. With a queue, a vote waits until the node is free.
func (w *world) execute(n, i int) {
	node := &w.Nodes[n]
	call := &node.Calls[i]
	s := &node.Store
	held := s.Holder == call.Token
	young := int(s.Age) < w.c.guard()
	call.Answer = no
	switch call.Kind {
	case vote:
		call.Young = young && !w.c.without(youngVotes)
		w.vote(s, call)
	case confirm:
		call.Young = young && !w.c.without(youngRenewals)
		if held {
			call.Answer, s.Rest = yes, max(s.Rest, uint8(w.c.TTL))
		}
		if held || w.c.without(raisedWhileHeld) {
			s.Counter = max(s.Counter, call.Fence)
		}
	case release:
		if held {
			s.Holder, s.Rest, call.Answer = 0, 0, yes
		}
	}
	if !call.Wanted && call.Answer != queued {
		*call = Call{}
	}
	if w.c.without(distinctNodes) && n < 2 {
		w.Nodes[1-n].Store = *s
	}
}

func (w *world) vote(s *Store, call *Call) {
	if s.Holder != 0 && s.Holder != call.Token {
		if w.c.Queue && call.Wanted {
			call.Answer = queued
		}
		return
	}
	call.Fresh = s.Holder == 0
	s.Counter++
	s.Holder, s.Rest = call.Token, max(s.Rest, uint8(w.c.TTL))
	if w.c.Queue {
		call.Age = 0
	}
	call.Answer, call.Fence = yes, s.Counter
}

// pass lets a tick of time pass for a store.
func (s *Store) pass(c *Config) {
	if s.Holder != 0 {
		if s.Rest--; s.Rest == 0 {
			s.Holder = 0
		}
	}
	s.Age = min(s.Age+1, uint8(c.guard()))
}

// restart makes a node go on with what is left, and young. Its fences are above all before, as its
// clock is.
func (w *world) restart(n int, left Store) {
	s := &w.Nodes[n].Store
	for i := range w.c.Nodes {
		left.Counter = max(left.Counter, w.Nodes[i].Counter)
	}
	*s = left
	if w.c.without(distinctNodes) && n < 2 {
		w.Nodes[1-n].Store = *s
	}
}
