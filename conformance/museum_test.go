package conformance

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/conformance/internal/museum"
)

// mustCatch returns the cases that must catch e in a bubble: none, if it takes a network.
func mustCatch(e museum.Exhibit) names {
	if e.BeyondModel || e.Sporadic || e.Cases == nil {
		return e.Cases
	}
	return append(slices.Clone(e.Cases), "AgreesWithModel")
}

// byChance are the cases whose calls are random. A broken lock may be lucky in one of fifty,
// but not in five that follow each other.
var byChance = names{"History", "HistoryAcrossDataLoss"}

// TestMuseum demands that every broken lock is caught by the cases that it names, and by the model.
func TestMuseum(t *testing.T) {
	for _, e := range museum.Broken {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			for _, name := range mustCatch(e) {
				if testing.Short() && name == "AgreesWithModel" {
					continue // package rapid makes too few checks
				}
				h := museumHarness(e)
				h.explore = time.Minute // the same sequences on a busy machine
				err := play(t, h, caseNamed(t, name))
				for more := 4; slices.Contains(byChance, name) && more > 0 && (err == nil || errors.Is(err, errInconclusive)); more-- {
					err = play(t, museumHarness(e), caseNamed(t, name))
				}
				require.Errorf(t, err, "%s does not catch it", name)
				require.Falsef(t, isSkip(err), "%s does not try: %v", name, err)
				require.NotErrorIs(t, err, errInconclusive)
				showsWhatItNames(t, err)
			}
		})
	}
}

// TestMuseumRight demands that the locks that are built in the same way, but have no
// flaw, pass, and that nearly nothing is skipped.
func TestMuseumRight(t *testing.T) {
	skipped := map[string]names{
		"lock": {"SinceIsConservative", "CancelledWait", "WaitEndsOnRelease", "WaitEndsOnExpiry", "WaitEndsOnRemoval", "FirstComeFirstServed", "LongQueue",
			"DeadWaiterIsSkipped", "DeadHostManyWaiters", "HolderAcquiresAgain", "WaiterIsNoHolder", "ReleaseForgets", "OneReleaseSettles", "HeldSinceTheGrant", "UnsupportedSendsNothing", "DecoratorHidesNothing", "SetOvertakesNobody"},
		"queue":       {"UnsupportedSendsNothing"},
		"near":        {"UnsupportedSendsNothing"},
		"unfenced":    {"UnsupportedSendsNothing", "FenceRises", "FenceSurvivesIdleness", "FenceSurvivesDataLoss"},
		"joinsErrors": {"OneReleaseSettles"},
	}
	for _, e := range museum.Right {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			for _, c := range cases {
				h := museumHarness(e)
				if e.Cases != nil && !slices.Contains(e.Cases, c.name) || isSkip(c.needs.missing(h)) {
					continue // there is no network
				}
				if err := play(t, h, c); isSkip(err) {
					assert.Contains(t, skipped[e.Name], c.name, "%v", err)
				} else {
					require.NoError(t, err, c.name)
				}
			}
		})
	}
}

// TestEveryCaseCatches makes sure that no case is there in vain, and that each broken lock names a case.
func TestEveryCaseCatches(t *testing.T) {
	catches, shown := make(map[string]bool), make(map[string]bool)
	for _, e := range museum.Broken {
		by := slices.Concat(e.Cases, slices.Collect(maps.Keys(e.Network)))
		assert.NotEmpty(t, by, e.Name)
		assert.False(t, shown[e.Name], "two exhibits are named %s", e.Name)
		shown[e.Name] = true
		for _, name := range append(by, mustCatch(e)...) {
			caseNamed(t, name)
			catches[name] = true
		}
	}
	for _, c := range cases {
		assert.NotEmpty(t, c.clause, c.name)
		assert.True(t, catches[c.name], "no broken lock shows that %s catches anything", c.name)
	}
}
