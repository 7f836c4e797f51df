package main

import (
	"errors"
	"hash/maphash"

	"github.com/dlock-go/dlock/internal/modelcheck"
)

// A Result is what a search has found.
type Result struct {
	modelcheck.Result[event]
	Broken Properties
	Why    string
	After  []event // what follows without faults, if it is P4 that is broken
}

// A violation is what is broken in a world.
type violation struct{ *world }

func (v violation) Error() string { return v.why }

// A model is a configuration as a modelcheck.Model.
type model struct {
	*Config
	seed maphash.Seed
	good map[uint64]bool // states from which P4 holds
	full int             // futures that were not judged
}

// Search goes through all states of a configuration until a property is broken.
func Search(c *Config) Result {
	m := &model{Config: c, seed: maphash.MakeSeed(), good: map[uint64]bool{}}
	r := Result{Result: modelcheck.Search(m, c.Limit)}
	r.Full += m.full
	var v violation
	if errors.As(r.Err, &v) {
		r.Broken, r.Why, r.After = v.broken, v.why, v.after
	}
	return r
}

func (m *model) Start() (State, []event) { return m.start() }

func (m *model) Each(s *State, f func(event)) {
	w := world{State: *s, c: m.Config}
	w.each(f)
}

func (m *model) Do(s *State, e event) (State, error) {
	w := &world{State: *s, c: m.Config}
	w.happen(e)
	if w.full {
		return w.State, modelcheck.ErrFull
	}
	w.canonical()
	return w.State, w.err()
}

func (m *model) Check(s *State) error {
	w := &world{State: *s, c: m.Config}
	w.check(m)
	return w.err()
}

func (w *world) err() error {
	if w.broken == 0 {
		return nil
	}
	return violation{w}
}
