package conformance

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/museum"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
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

func networkCases(t *testing.T) (found []testCase) {
	for _, c := range cases {
		if c.needs.missing(Harness{}) != nil && c.needs.missing(networkHarness(t, museum.Exhibit{})) == nil {
			found = append(found, c)
		}
	}
	require.Len(t, found, 8)
	return found
}

// playAll plays n cases, more of them at the same time than there would be of parallel
// tests: they wait for the network most of the time.
func playAll(n int, play func(i int) error) []error {
	errs := make([]error, n)
	together(6, n, func(i int) { errs[i] = play(i) })
	return errs
}

func TestNetworkStorePasses(t *testing.T) {
	redistest.Real(t)
	goroutines := goleak.IgnoreCurrent()
	t.Run("cases", func(t *testing.T) {
		found := networkCases(t)
		for i, err := range playAll(2*len(found), func(i int) error {
			h := networkHarness(t, museum.Exhibit{})
			if israce.Enabled { // the machine must tell right from wrong beside other tests
				h.TTL = 2 * defaultTTL
			}
			if via := h.Dial; i >= len(found) { // without queue and batches
				h.Dial = func(t *testing.T, addr string) dlock.Locker { return plain{via(t, addr)} }
			}
			return play(t, h, found[i%len(found)])
		}) {
			if i >= len(found) && found[i%len(found)].name == "DeadWaiterOverNetwork" {
				assert.True(t, isSkip(err), "%v", err)
				continue
			}
			assert.NoError(t, err, found[i%len(found)].name)
		}
	})
	goleak.VerifyNone(t, goroutines)
}

// A busy machine may hide a flaw that has to do with time, but hardly each of many times.
func TestNetworkFlawsAreCaught(t *testing.T) {
	redistest.Real(t)
	type flaw struct {
		museum.Exhibit
		caught, why string
	}
	var flaws []flaw
	for _, e := range museum.Broken {
		for _, name := range slices.Sorted(maps.Keys(e.Network)) {
			flaws = append(flaws, flaw{e, name, e.Network[name]})
		}
	}
	for i, err := range playAll(len(flaws), func(i int) (err error) {
		f := flaws[i]
		for range 25 {
			h := networkHarness(t, f.Exhibit)
			h.patient = 2 * time.Second
			err = play(t, h, caseNamed(t, f.caught))
			if err != nil && regexp.MustCompile(f.why).MatchString(err.Error()) {
				break
			}
		}
		return err
	}) {
		f := flaws[i]
		require.Error(t, err, "%s does not catch %s", f.caught, f.Name)
		require.False(t, isSkip(err), "%s of %s: %v", f.caught, f.Name, err)
		assert.Regexp(t, f.why, err.Error(), "%s of %s", f.caught, f.Name)
		showsWhatItNames(t, err)
	}
}

// A store whose requests hide key and token, behind TLS for instance, is no failure; what can be checked without them is.
func TestHiddenTraffic(t *testing.T) {
	sealed := func(e museum.Exhibit) Harness {
		h := networkHarness(t, e)
		h.Dial = func(_ *testing.T, addr string) dlock.Locker { return e.Dial(addr, true) }
		return h
	}
	right := museum.Exhibit{}
	for _, name := range []string{"LostReplyOverNetwork", "LateDuplicateOverNetwork", "Reconnection"} {
		var skip skipError
		require.ErrorAs(t, play(t, sealed(right), caseNamed(t, name)), &skip)
		assert.Contains(t, skip.reason, "literally")
	}
	assert.NoError(t, play(t, sealed(right), caseNamed(t, "UnreachableStore")))
	assert.NoError(t, play(t, sealed(right), caseNamed(t, "BlackHole")))
	assert.Error(t, play(t, sealed(exhibit("swallowsErrors")), caseNamed(t, "UnreachableStore")))
}
