package modelcheck

import (
	"errors"
	"slices"
	"testing"
)

var errBad = errors.New("bad")

// A clock has a number, which is doubled or made one larger. There is no room for 50 and more.
type clock struct{ bad, badStep uint8 }

func (clock) Start() (uint8, []string) { return 1, []string{"start"} }

func (clock) Each(_ *uint8, f func(string)) { f("double"); f("add") }

func (c clock) Do(s *uint8, e string) (uint8, error) {
	to := *s + 1
	if e == "double" {
		to = *s * 2
	}
	if to >= 50 {
		return to, ErrFull
	}
	if to == c.badStep {
		return to, errBad
	}
	return to, nil
}

func (c clock) Check(s *uint8) error {
	if *s == c.bad {
		return errBad
	}
	return nil
}

func TestSearchSeesAllStates(t *testing.T) {
	r := Search(clock{}, 1000)
	if r.Err != nil || !r.Complete || r.States != 49 || r.Full != 26 {
		t.Errorf("got %+v, want 49 states, all of them, and 26 steps not taken", r)
	}
}

func TestSearchFindsTheShortestTrace(t *testing.T) {
	want := []string{"start", "add", "add", "double", "double"}
	for _, c := range []clock{{bad: 12}, {badStep: 12}} {
		if r := Search(c, 1000); r.Err != errBad || !slices.Equal(r.Trace, want) {
			t.Errorf("got %v, %v, want %v, %v", r.Err, r.Trace, errBad, want)
		}
	}
}

func TestSearchHasALimit(t *testing.T) {
	if r := Search(clock{}, 10); r.Complete || r.States < 11 || r.States > 12 {
		t.Errorf("got %+v, want a search that ends soon after 10 states", r)
	}
}

func TestWalkRepeatsItself(t *testing.T) {
	first, second := Walk(clock{bad: 48}, 7, 10_000, 30), Walk(clock{bad: 48}, 7, 10_000, 30)
	if first.Err != errBad || !slices.Equal(first.Trace, second.Trace) || first.Trace[0] != "start" {
		t.Errorf("got %+v and %+v, want the same walk to 48", first, second)
	}
	if r := Walk(clock{}, 7, 1000, 30); r.Err != nil || r.States < 1000 || r.Full == 0 {
		t.Errorf("got %+v, want 1000 steps", r)
	}
}
