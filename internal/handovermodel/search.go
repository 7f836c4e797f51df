package main

import "hash/maphash"

// A Result is what a search has found.
type Result struct {
	States   int
	Depth    int
	Complete bool // all states were seen
	Full     int  // steps that were not taken since there was no room for them
	Broken   Properties
	Why      string
	Trace    []Step // to the violation
	After    []Step // what follows without faults, if it is P4 that is broken
}

// A Step is an event, with the state before it and after it.
type Step struct {
	Event         event
	Before, After State
}

// A search goes through all states breadth first. Of a state that it has seen it keeps
// 64 bits of a hash, so that it may take two for one: with n states, with probability
// n²/2⁶⁵.
type search struct {
	c       *Config
	seed    maphash.Seed
	prints  []uint64 // of the states, in the order in which they were found
	parents []uint32
	table   []uint32 // 1 + where a state stands in prints
	good    set      // of states from which P4 holds
	result  Result
}

// A found is a state whose successors are still to be found.
type found struct {
	state State
	n     uint32
}

// Search goes through all states of a configuration until a property is broken.
func Search(c *Config) Result {
	s := &search{c: c, seed: maphash.MakeSeed(), table: make([]uint32, 1<<16)}
	first, _ := c.start()
	s.add(&first, 0)
	level := []found{{first, 0}}
	for ; len(level) > 0 && s.result.Broken == 0; s.result.Depth++ {
		next := make([]found, 0, len(level))
		for i := range level {
			if next = s.expand(&level[i], next); s.result.Broken != 0 || len(s.prints) > c.Limit {
				s.result.States = len(s.prints)
				return s.result
			}
		}
		level = next
	}
	s.result.States, s.result.Complete = len(s.prints), true
	return s.result
}

// expand adds the successors of a state to next.
func (s *search) expand(from *found, next []found) []found {
	w := world{State: from.state, c: s.c}
	w.each(func(e event) {
		if s.result.Broken != 0 || e.kind == tick && s.c.timed() && int(from.state.Time) >= s.c.LastTick {
			return
		}
		to := world{State: from.state, c: s.c}
		to.happen(e)
		if to.full {
			s.result.Full++
			return
		}
		to.canonical()
		n, isNew := s.add(&to.State, from.n)
		if to.broken != 0 {
			s.violation(from, e, &to)
			return
		}
		if !isNew {
			return
		}
		to.check(s)
		if to.broken != 0 {
			s.violation(from, e, &to)
			return
		}
		next = append(next, found{to.State, n})
	})
	return next
}

func (s *search) violation(from *found, e event, to *world) {
	s.result.Broken, s.result.Why = to.broken, to.why
	s.result.Trace = append(s.trace(from.n), Step{e, from.state, to.State})
	s.result.After = to.after
}

// add notes that a state was seen, and returns its number and whether it is new.
func (s *search) add(state *State, parent uint32) (n uint32, isNew bool) {
	if 2*len(s.prints) >= len(s.table) {
		s.grow()
	}
	print := s.print(state)
	slot := s.slot(print)
	if s.table[slot] != 0 {
		return s.table[slot] - 1, false
	}
	s.prints, s.parents = append(s.prints, print), append(s.parents, parent)
	s.table[slot] = uint32(len(s.prints))
	return s.table[slot] - 1, true
}

func (s *search) slot(print uint64) uint64 {
	mask := uint64(len(s.table) - 1)
	slot := print & mask
	for s.table[slot] != 0 && s.prints[s.table[slot]-1] != print {
		slot = (slot + 1) & mask
	}
	return slot
}

func (s *search) grow() {
	s.table = make([]uint32, 2*len(s.table))
	for n, print := range s.prints {
		s.table[s.slot(print)] = uint32(n + 1)
	}
}

// trace finds the steps to a state again.
func (s *search) trace(n uint32) []Step {
	var path []uint32
	for ; n != 0; n = s.parents[n] {
		path = append(path, n)
	}
	first, steps := s.c.start()
	w := world{State: first, c: s.c}
	for i := len(path) - 1; i >= 0; i-- {
		step := s.stepTo(w.State, s.prints[path[i]])
		steps = append(steps, step)
		w.State = step.After
	}
	return steps
}

func (s *search) stepTo(from State, print uint64) (step Step) {
	w := world{State: from, c: s.c}
	w.each(func(e event) {
		to := world{State: from, c: s.c}
		to.happen(e)
		to.canonical()
		if s.print(&to.State) == print {
			step = Step{e, from, to.State}
		}
	})
	return step
}

func (s *search) print(state *State) uint64 { return maphash.Bytes(s.seed, state.bytes()) }

// A set is a set of numbers other than 0.
type set struct {
	slots []uint64
	n     int
}

func (s *set) has(n uint64) bool { return s.n > 0 && s.slots[s.slot(n)] == n }

func (s *set) add(n uint64) {
	if 3*s.n >= 2*len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, max(1<<10, 2*len(old)))
		for _, n := range old {
			if n != 0 {
				s.slots[s.slot(n)] = n
			}
		}
	}
	if slot := s.slot(n); s.slots[slot] != n {
		s.slots[slot] = n
		s.n++
	}
}

func (s *set) slot(n uint64) uint64 {
	mask := uint64(len(s.slots) - 1)
	slot := n & mask
	for s.slots[slot] != 0 && s.slots[slot] != n {
		slot = (slot + 1) & mask
	}
	return slot
}
