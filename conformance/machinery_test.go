package conformance

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func caseNamed(t *testing.T, name string) testCase {
	for _, c := range cases {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("no case is named %q", name)
	return testCase{}
}

func TestHangingCallIsNamed(t *testing.T) {
	h := toyHarness("", func(m *toy) dlock.Locker { return &hanging{dlock.Forward{Locker: m}} })
	err := play(t, h, caseNamed(t, "RenewExtends"))
	assert.ErrorContains(t, err, "did not end within")
	assert.ErrorContains(t, err, "B.Renew(")
	assert.ErrorContains(t, err, "has not returned")
}

func TestFailureShowsTheCalls(t *testing.T) {
	err := play(t, toyHarness("release does not compare", itself), caseNamed(t, "ReleaseByStranger"))
	assert.ErrorContains(t, err, "held = true; want false")
	assert.ErrorContains(t, err, "the latest calls:")
	assert.ErrorContains(t, err, "A.TryAcquire(")
}

func TestSkipsNameTheReason(t *testing.T) {
	full := toyHarness("", itself)
	bare := Harness{New: full.New, Bubble: true, Unordered: true}
	slow := toyHarness("", func(m *toy) dlock.Locker { return plain{m} })
	slow.Sleep = time.Sleep
	noFence := toyHarness("no fences", itself)
	lying := toyHarness("", func(m *toy) dlock.Locker { return dlock.Forward{Locker: plain{m}} })
	for _, c := range []struct {
		h            Harness
		name, reason string
	}{
		{bare, "FenceSurvivesDataLoss", "Harness.Wipe is nil"},
		{bare, "WaitEndsOnRemoval", "Harness.Wipe is nil"},
		{bare, "FirstComeFirstServed", "Harness.Unordered is set"},
		{bare, "UnreachableStore", "Harness.Via or Harness.Addr is not set"},
		{bare, "UnsupportedSendsNothing", "no method of the Locker answers errors.ErrUnsupported"},
		{bare, "DecoratorHidesNothing", "not built around another"},
		{slow, "CancelledWait", "the Locker is no Acquirer"},
		{slow, "BatchKeepsOrder", "the Locker is no BatchRenewer"},
		{slow, "InspectTells", "the Locker is no Inspector"},
		{slow, "History", "Harness.Sleep is set"},
		{lying, "WaitEndsOnExpiry", "Acquire answers errors.ErrUnsupported"},
		{lying, "BatchKeepsOrder", "RenewBatch answers errors.ErrUnsupported"},
		{lying, "InspectTells", "Inspect answers errors.ErrUnsupported"},
		{noFence, "FenceRises", "Fence is 0"},
		{noFence, "FenceSurvivesDataLoss", "Fence is 0"},
	} {
		var skip skipError
		require.ErrorAs(t, play(t, c.h, caseNamed(t, c.name)), &skip, c.name)
		assert.Contains(t, skip.reason, c.reason, c.name)
	}
}

func TestSlowMachineIsNoViolation(t *testing.T) {
	slow := testCase{name: "slow", check: func(s *scene) error {
		g := s.grant(s.client(), s.key(), s.token("holder"), s.h.ttl())
		s.lapse(s.h.ttl())
		s.held(s.client(), g)
		return s.result()
	}}
	h := toyHarness("", itself)
	assert.ErrorContains(t, play(t, h, slow), "raise Harness.TTL", "in a bubble nothing can be slow")
	h.Bubble, h.TTL, h.Grace = false, 5*time.Millisecond, time.Millisecond
	var skip skipError
	require.ErrorAs(t, play(t, h, slow), &skip)
	assert.Contains(t, skip.reason, "too slow")
}

// A store whose clock stands still unless it is moved must pass as well.
func TestSleepMovesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := toyHarness("", itself)
		s := newScene(t, Harness{New: h.New, Sleep: func(time.Duration) {}}, 0)
		before := s.now()
		s.sleep(time.Hour)
		assert.Equal(t, time.Hour, s.now().Sub(before), "now is not an upper bound of the store's time")

		s = newScene(t, Harness{New: h.New, Sleep: time.Sleep}, 0)
		before = s.now()
		s.sleep(time.Hour)
		assert.Equal(t, time.Hour, s.now().Sub(before), "time that really passed is counted twice")
	})
}

func TestHistoryVerdict(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	plenty := counts{held: 100, handed: 100, cancelled: 100, expired: 100}
	for _, c := range []struct {
		name  string
		seen  counts
		holds []certainHold
		want  string
	}{
		{"good", plenty, []certainHold{{0, at(0), at(5), 8}, {1, at(5), at(9), 16}}, ""},
		{"without fences", plenty, []certainHold{{0, at(0), at(5), 0}, {1, at(5), at(9), 0}}, ""},
		{"out of order", plenty, []certainHold{{1, at(5), at(9), 16}, {0, at(0), at(5), 8}}, ""},
		{"overlap", plenty, []certainHold{{0, at(0), at(6), 8}, {1, at(5), at(9), 16}}, "overlap by 1ms"},
		{"fence falls", plenty, []certainHold{{0, at(0), at(5), 16}, {1, at(5), at(9), 8}}, "higher fence"},
		{"fence repeats", plenty, []certainHold{{0, at(0), at(5), 8}, {1, at(5), at(9), 8}}, "higher fence"},
		{"fence vanishes", plenty, []certainHold{{0, at(0), at(5), 8}, {1, at(5), at(9), 0}}, "higher fence"},
		{"nothing happened", counts{}, nil, "too little"},
		{"nobody waited", counts{100, 0, 100, 100}, nil, "too little"},
		{"nothing expired", counts{100, 100, 100, 0}, nil, "too little"},
	} {
		err := (&chronicle{holds: c.holds, seen: c.seen}).verdict()
		if c.want == "" {
			assert.NoError(t, err, c.name)
		} else {
			assert.ErrorContains(t, err, c.want, c.name)
		}
	}
}

func TestSeedIsRepeated(t *testing.T) {
	t.Setenv(seedVariable, "42")
	assert.Equal(t, uint64(42), seed())
	err := play(t, toyHarness("fences in disorder", itself), caseNamed(t, "History"))
	assert.ErrorContains(t, err, seedVariable+"=42")
}

// Outside of a bubble goroutines are counted, and the clock runs.
func TestRealTime(t *testing.T) {
	real := toyHarness("", itself)
	real.Bubble, real.TTL = false, 30*time.Millisecond
	for _, name := range []string{"Exclusion", "HeldIsUntouched", "Expiry", "RenewExtends", "SinceIsConservative", "CancelledWait", "WaitEndsOnExpiry"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.NoError(t, play(t, real, caseNamed(t, name)))
		})
	}
}

func TestRealLeaksAreCounted(t *testing.T) {
	real := toyHarness("a wait leaves a goroutine", itself)
	real.Bubble, real.TTL, real.patient = false, 30*time.Millisecond, 200*time.Millisecond
	err := play(t, real, caseNamed(t, "NoLeaks"))
	assert.ErrorContains(t, err, "after 6 rounds with new clients")
	assert.ErrorContains(t, err, "(*toy).leak", "the stacks do not show who leaks")
}

func TestNilLocker(t *testing.T) {
	h := Harness{New: func(*testing.T) dlock.Locker { return nil }, Bubble: true}
	for _, c := range cases {
		var skip skipError
		err := play(t, h, c)
		if !errors.As(err, &skip) {
			assert.ErrorContains(t, err, "Harness.New returned nil", c.name)
		}
	}
}

func TestBriefQuotes(t *testing.T) {
	assert.Equal(t, `"a\x00b"`, brief("a\x00b"))
	assert.Less(t, len(brief(strings.Repeat("x", 1024))), 100)
	assert.Equal(t, "acquired, fence 8", show(dlock.Attempt{Acquired: true, Fence: 8}))
	assert.Equal(t, `held by "t" for 1s`, show(dlock.Attempt{Holder: "t", Remaining: time.Second}))
	assert.Equal(t, "skipped: why", fmt.Sprint(skipError{"why"}))
}

func BenchmarkToy(b *testing.B) { Bench(b, toyHarness("", itself)) }
