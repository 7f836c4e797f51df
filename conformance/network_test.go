package conformance

import (
	"maps"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/museum"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/redistest"
)

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
	const together = 6
	errs := make([]error, n)
	places := make(chan struct{}, together)
	var all sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			errs[i] = play(i)
		})
	}
	all.Wait()
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
