package conformance

import (
	"runtime"
	"testing"
)

// A testCase checks one clause. Its check finds what is wrong: the call, its answer, and what the contract wants.
type testCase struct {
	name   string
	clause clause
	check  func(s *scene, a, b *client)
	method optionalMethod // which b has, if not zero
	alone  bool           // runs while no other case does
	idles  bool           // lets idleTimes pass
	faults bool           // makes the network faulty, so that a time-out is a result
	needs  need

	whole func(*testing.T, Harness) error // in place of check: makes its own scenes
}

// is returns a case. Its clause is the line that calls it.
func is(name string, check func(s *scene, a, b *client), text string) testCase {
	_, file, line, _ := runtime.Caller(1)
	return testCase{name: name, check: check, clause: clause{place{file, line}, text}}
}

func (c testCase) with(m optionalMethod) testCase { c.method = m; return c }
func (c testCase) needing(n need) testCase        { c.needs = n; return c }
func (c testCase) single() testCase               { c.alone = true; return c }
func (c testCase) idle() testCase                 { c.idles = true; return c }
func (c testCase) faulty() testCase               { c.faults = true; return c }

func (c testCase) play(s *scene) {
	a, b := s.clients2()
	if c.method.name != "" {
		s.requires(b, c.method)
	}
	c.check(s, a, b)
}

// A need is what a case wants of the harness, and what is said where that is not there.
type need struct {
	met    func(Harness) bool
	reason string
}

func (n need) missing(h Harness) error {
	if n.met == nil || n.met(h) {
		return nil
	}
	return skipError{n.reason}
}

var (
	needsWipe    = need{func(h Harness) bool { return h.Wipe != nil }, "Harness.Wipe is nil"}
	needsOrder   = need{func(h Harness) bool { return !h.Unordered }, "Harness.Unordered is set"}
	needsBubble  = need{func(h Harness) bool { return h.Bubble }, "Harness.Bubble is not set: it would take days"}
	needsNetwork = need{func(h Harness) bool { return h.Dial != nil && h.Addr != "" },
		"Harness.Dial or Harness.Addr is not set: there is no network to make faulty"}
)

type chapter struct {
	title string
	cases []testCase
}

// file is where its table stands.
func (c chapter) file() string { return c.cases[0].clause.file() }

var chapters = []chapter{
	{"Taking", takingCases},
	{"Renewing", renewingCases},
	{"Releasing", releasingCases},
	{"Batches", batchesCases},
	{"Sets", setsCases},
	{"Time", timeCases},
	{"Keys and tokens", keysCases},
	{"Fences", fencesCases},
	{"Waiting", waitingCases},
	{"Clients and the network", clientsCases},
	{"Inspecting", inspectingCases},
	{"Random histories", randomCases},
}

var cases = allCases()

func allCases() (all []testCase) {
	for _, c := range chapters {
		all = append(all, c.cases...)
	}
	return all
}
