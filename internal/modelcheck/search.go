// Package modelcheck goes through all states of a model, or walks through them at random, and looks
// for one in which something is broken.
package modelcheck

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"unsafe"
)

// A Model says what may happen. S is a state: a struct of bytes, without pointers or gaps, which is
// hashed as it lies in memory. E is an event.
type Model[S, E any] interface {
	// Start returns the first state, and the events that have led to it.
	Start() (S, []E)

	// Each calls f for each event that may happen in a state.
	Each(s *S, f func(E))

	// Do returns the state after an event, and what the event has broken. States that differ only
	// in what does not matter are the same. The error is ErrFull if there is no room for the state.
	Do(s *S, e E) (S, error)

	// Check returns what is broken in a state.
	Check(s *S) error
}

// ErrFull says that a state has no room for what happens. The step is not taken.
var ErrFull = errors.New("no room in the state")

// A Result is what a search or a walk has found.
type Result[E any] struct {
	States   int
	Depth    int
	Complete bool  // all states were seen
	Full     int   // steps that were not taken
	Err      error // what is broken
	Trace    []E   // from before Start to there
}

// Summary is a result in one line, without its error.
func (r *Result[E]) Summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d states, depth %d", r.States, r.Depth)
	if !r.Complete {
		b.WriteString(", not complete")
	}
	if r.Full > 0 {
		fmt.Fprintf(&b, ", %d steps not taken or judged for want of room", r.Full)
	}
	return b.String()
}

// A search goes through all states breadth first. Of a state that it has seen it keeps
// 64 bits of a hash, so that it may take two for one: with n states, with probability
// n²/2⁶⁵.
type search[S, E any] struct {
	m       Model[S, E]
	seed    maphash.Seed
	prints  []uint64 // of the states, in the order in which they were found
	parents []uint32
	table   []uint32 // 1 + where a state stands in prints
	result  Result[E]
}

// A found is a state whose successors are still to be found.
type found[S any] struct {
	state S
	n     uint32
}

// Search goes through all states until something is broken, or until there are more than limit.
func Search[S, E any](m Model[S, E], limit int) Result[E] {
	s := &search[S, E]{m: m, seed: maphash.MakeSeed(), table: make([]uint32, 1<<16)}
	first, _ := m.Start()
	s.add(&first, 0)
	level := []found[S]{{first, 0}}
	for ; len(level) > 0 && s.result.Err == nil; s.result.Depth++ {
		next := make([]found[S], 0, len(level))
		for i := range level {
			if next = s.expand(&level[i], next); s.result.Err != nil || len(s.prints) > limit {
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
func (s *search[S, E]) expand(from *found[S], next []found[S]) []found[S] {
	s.m.Each(&from.state, func(e E) {
		if s.result.Err != nil {
			return
		}
		to, err := s.m.Do(&from.state, e)
		if err == ErrFull {
			s.result.Full++
			return
		}
		n, isNew := s.add(&to, from.n)
		if err == nil && isNew {
			err = s.m.Check(&to)
		}
		if err != nil {
			s.result.Err, s.result.Trace = err, append(s.trace(from.n), e)
		} else if isNew {
			next = append(next, found[S]{to, n})
		}
	})
	return next
}

// add notes that a state was seen, and returns its number and whether it is new.
func (s *search[S, E]) add(state *S, parent uint32) (n uint32, isNew bool) {
	if 2*len(s.prints) >= len(s.table) {
		s.grow()
	}
	print := Print(s.seed, state)
	slot := s.slot(print)
	if s.table[slot] != 0 {
		return s.table[slot] - 1, false
	}
	s.prints, s.parents = append(s.prints, print), append(s.parents, parent)
	s.table[slot] = uint32(len(s.prints))
	return s.table[slot] - 1, true
}

func (s *search[S, E]) slot(print uint64) uint64 {
	mask := uint64(len(s.table) - 1)
	slot := print & mask
	for s.table[slot] != 0 && s.prints[s.table[slot]-1] != print {
		slot = (slot + 1) & mask
	}
	return slot
}

func (s *search[S, E]) grow() {
	s.table = make([]uint32, 2*len(s.table))
	for n, print := range s.prints {
		s.table[s.slot(print)] = uint32(n + 1)
	}
}

// trace finds the events that have led to a state again.
func (s *search[S, E]) trace(n uint32) []E {
	var path []uint32
	for ; n != 0; n = s.parents[n] {
		path = append(path, n)
	}
	state, events := s.m.Start()
	for i := len(path) - 1; i >= 0; i-- {
		var e E
		e, state = s.stepTo(state, s.prints[path[i]])
		events = append(events, e)
	}
	return events
}

func (s *search[S, E]) stepTo(from S, print uint64) (event E, after S) {
	s.m.Each(&from, func(e E) {
		if to, err := s.m.Do(&from, e); err == nil && Print(s.seed, &to) == print {
			event, after = e, to
		}
	})
	return event, after
}

// Print is a hash of a state.
func Print[S any](seed maphash.Seed, s *S) uint64 {
	return maphash.Bytes(seed, unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)))
}

// Walk takes random steps from the start, and starts again when no step is left or after as many as
// length, until something is broken or steps are taken.
func Walk[S, E any](m Model[S, E], seed uint64, steps, length int) (r Result[E]) {
	random := rand.New(rand.NewPCG(seed, 0))
	for r.States < steps {
		state, trace := m.Start()
		for range length {
			var events []E
			m.Each(&state, func(e E) { events = append(events, e) })
			if len(events) == 0 {
				break
			}
			e := events[random.IntN(len(events))]
			to, err := m.Do(&state, e)
			if r.States++; err == ErrFull {
				r.Full++
				continue
			}
			trace = append(trace, e)
			if err == nil {
				err = m.Check(&to)
			}
			if state = to; err != nil {
				r.Err, r.Trace = err, trace
				return r
			}
			r.Depth = max(r.Depth, len(trace))
		}
	}
	return r
}
