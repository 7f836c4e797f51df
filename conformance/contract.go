package conformance

import (
	"cmp"
	"testing"
)

// A testCase checks one clause. Its check returns what is wrong: the call, its
// answer, and what the contract wants.
type testCase struct {
	name   string
	clause clause
	check  func(*scene) error
	alone  bool // runs while no other case does
	once   bool // takes long, and would find nothing more with a Forward
	idles  bool // lets idleTimes pass
	faults bool // makes the network faulty, so that a time-out is a result
	needs  need

	whole func(*testing.T, Harness) error // in place of check: makes its own scenes
}

// A need is what a case wants of the harness: it returns the reason why the
// harness does not have it, or "".
type need func(Harness) string

func (n need) missing(h Harness) error {
	if n == nil {
		return nil
	}
	if reason := n(h); reason != "" {
		return skipError{reason}
	}
	return nil
}

func needsWipe(h Harness) string {
	if h.Wipe == nil {
		return "Harness.Wipe is nil"
	}
	return ""
}

func needsOrder(h Harness) string {
	if h.Unordered {
		return "Harness.Unordered is set"
	}
	return ""
}

func needsClock(h Harness) string {
	if h.Advance != nil {
		return "Harness.Advance is set: the store's clock is not the process's"
	}
	return ""
}

func needsIdleness(h Harness) string {
	if !h.Bubble && h.Advance == nil {
		return "neither Harness.Bubble nor Harness.Advance is set: it would take days"
	}
	return ""
}

func needsClockAndWipe(h Harness) string { return cmp.Or(needsClock(h), needsWipe(h)) }

func needsVia(h Harness) string {
	if h.Dial == nil && h.DialAll == nil || len(h.addrs()) == 0 {
		return "Harness.Dial or Harness.Addr is not set: there is no network to make faulty"
	}
	return ""
}

func needsNetwork(h Harness) string { return cmp.Or(needsVia(h), needsClock(h)) }

// A chapter is a part of the contract.
type chapter struct {
	title string
	cases []testCase
}

// file is where its table stands.
func (c chapter) file() string { return c.cases[0].clause.file() }

// chapters is the contract.
var chapters = []chapter{
	{"Taking", takingCases},
	{"Renewing", renewingCases},
	{"Releasing", releasingCases},
	{"Batches", batchesCases},
	{"Time", timeCases},
	{"Keys and tokens", keysCases},
	{"Fences", fencesCases},
	{"Waiting", waitingCases},
	{"Clients and the network", clientsCases},
	{"Inspecting", inspectingCases},
	{"Random histories", randomCases},
}

// cases are those of all chapters.
var cases = allCases()

func allCases() (all []testCase) {
	for _, c := range chapters {
		all = append(all, c.cases...)
	}
	return all
}
