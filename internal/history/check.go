package history

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Model is the lock that a history is checked against: a fenced mutex with expiry.
type Model struct {
	FenceStep int64                                 // each fence is larger than the one before by at least that; 8 for a dlock.Locker
	Late      func(ttl time.Duration) time.Duration // how long after its TTL a lease may end

	// Contenders says that an answer may name as the holder one whose attempt is under way.
	Contenders bool
}

// Drift is how much earlier than after ttl a lease may end: clocks do not run at the
// same speed, and a dlock.Client allows for as much.
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ErrTooConcurrent says that the answers for a key were not checked.
var ErrTooConcurrent = errors.New("too many calls overlapped to check their answers")

// Check returns a piece of h that the model cannot have, or nil. If some keys were not
// checked, the error names them and matches [ErrTooConcurrent].
func (m Model) Check(h *History) (*Violation, error) {
	for _, found := range [][]*Violation{h.Overlaps(), h.Losses(), h.Disorders(m.FenceStep)} {
		if len(found) > 0 {
			return found[0], nil
		}
	}
	var unchecked error
	for _, key := range h.keys() {
		v, err := m.checkAnswers(h.of(key))
		if err != nil {
			unchecked = errors.Join(unchecked, fmt.Errorf("%q: %w", key, err))
		}
		if v != nil {
			v.Key = key
			return v, unchecked
		}
	}
	return nil, unchecked
}

// checkAnswers returns the fewest answers to operations on one key that cannot all be right.
func (m Model) checkAnswers(operations []*Operation) (*Violation, error) {
	c := m.checker(operations, nil)
	wrong, _ := c.run()
	switch {
	case c.tooMany:
		return nil, ErrTooConcurrent
	case wrong == nil:
		return nil, nil
	}
	end := wrong.End // what comes later is not to blame, and not known
	operations = slices.DeleteFunc(slices.Clone(operations), func(o *Operation) bool { return o.Begin > end })
	needed := shrink(operations, func(known func(*Operation) bool) bool {
		wrong, _ := m.checker(operations, known).until(end).run()
		return wrong != nil
	})
	c = m.checker(operations, func(o *Operation) bool { return slices.Contains(needed, o) }).until(end)
	last, before := c.run()
	return &Violation{
		What: fmt.Sprintf("these answers cannot all be right: %v of %s is impossible where %s",
			last, last.Client, c.describe(last, before)),
		History: History{Operations: withGrants(needed, operations)},
	}, nil
}

// shrink returns a small part of operations, such that bad remains true if the outcomes of the others are forgotten. It
// forgets halves first, then quarters, as delta debugging does.
func shrink(operations []*Operation, bad func(known func(*Operation) bool) bool) []*Operation {
	dropped := make(map[*Operation]bool)
	known := func(o *Operation) bool { return !dropped[o] && o.Outcome != Unknown }
	kept := func() []*Operation {
		return slices.DeleteFunc(slices.Clone(operations), func(o *Operation) bool { return !known(o) })
	}
	for size := len(operations); size > 0; size /= 2 {
		for chunk := range slices.Chunk(kept(), size) {
			drop := func(yes bool) {
				for _, o := range chunk {
					dropped[o] = yes
				}
			}
			if drop(true); !bad(known) {
				drop(false)
			}
		}
	}
	return kept()
}

// withGrants adds the latest grants of the tokens in question, which a reader wants to see.
func withGrants(needed, operations []*Operation) []*Operation {
	var all []*Operation
	for i, o := range operations {
		later := func(p *Operation) bool { return p.Outcome == Granted && p.Token == o.Token && p.Begin > o.Begin }
		about := func(p *Operation) bool { return p.Begin > o.Begin && (p.Token == o.Token || p.Holder == o.Token) }
		if slices.Contains(needed, o) ||
			o.Outcome == Granted && slices.ContainsFunc(needed, about) && !slices.ContainsFunc(operations[i+1:], later) {
			all = append(all, o)
		}
	}
	return all
}
