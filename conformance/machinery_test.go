package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/conformance/internal/museum"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHangingCallIsNamed(t *testing.T) {
	h := harnessOf("near", around(func(ctx context.Context, r request, l dlock.Forward) (any, error) {
		if r.name == "Renew" {
			select {}
		}
		return r.send(ctx, l)
	}))
	err := play(t, h, caseNamed(t, "RenewExtends"))
	assert.ErrorContains(t, err, "did not end within")
	assert.ErrorContains(t, err, "B.Renew(")
	assert.ErrorContains(t, err, "has not returned")
}

func TestSkipsNameTheReason(t *testing.T) {
	full := harnessOf("near")
	bare := Harness{New: full.New, Bubble: true, Unordered: true}
	slow := harnessOf("near", func(m dlock.Locker) dlock.Locker { return plain{m} })
	noFence := harnessOf("unfenced")
	lying := harnessOf("near", func(m dlock.Locker) dlock.Locker { return dlock.Forward{Locker: plain{m}} })
	for _, c := range []struct {
		h            Harness
		name, reason string
	}{
		{bare, "FenceSurvivesDataLoss", "Harness.Wipe is nil"},
		{bare, "WaitEndsOnRemoval", "Harness.Wipe is nil"},
		{bare, "FirstComeFirstServed", "Harness.Unordered is set"},
		{bare, "UnreachableStore", "Harness.Dial or Harness.Addr is not set"},
		{bare, "UnsupportedSendsNothing", "no method of the Locker answers errors.ErrUnsupported"},
		{slow, "DecoratorHidesNothing", "not built around another"},
		{slow, "CancelledWait", "the Locker is no Acquirer"},
		{slow, "BatchKeepsOrder", "the Locker is no BatchRenewer"},
		{slow, "InspectTells", "the Locker is no Inspector"},
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

// TestSkipsOnPurpose is for the tests of what Run says in the end.
func TestSkipsOnPurpose(t *testing.T) {
	switch os.Getenv(onPurpose) {
	case "":
		t.Skip("this test is run by others")
	case "bare":
		Run(t, Harness{New: harnessOf("near").New, Bubble: true, Unordered: true})
	case "slow":
		late := harnessOf("near", distant(20*time.Millisecond))
		Run(t, Harness{New: late.New, TTL: 5 * time.Millisecond, Grace: time.Millisecond})
	}
}

// runOnPurpose runs the subtests of TestSkipsOnPurpose that match, in a process of their own.
func runOnPurpose(harness, match, strict string) (string, error) {
	test := exec.Command(os.Args[0], "-test.v", "-test.run=^TestSkipsOnPurpose$/"+match)
	test.Env = append(os.Environ(), onPurpose+"="+harness, strictVariable+"="+strict)
	output, err := test.CombinedOutput()
	return string(output), err
}

// At its end, Run tells which cases were skipped, and each reason once.
func TestSkipsAreSummedUp(t *testing.T) {
	output, err := runOnPurpose("bare", "^(FenceSurvivesDataLoss|FenceRises|WaitEndsOnRemoval|FirstComeFirstServed)$", "1")
	require.NoErrorf(t, err, "%s", output)
	assert.Contains(t, output, `
    skipped, and why:
      Harness.Unordered is set
        FirstComeFirstServed
      Harness.Wipe is nil
        FenceSurvivesDataLoss, WaitEndsOnRemoval
`)
	assert.NotContains(t, output, "inconclusive", "all that was skipped is what the store does not have")
	assert.NotRegexp(t, `\w\.go:\d+`, output, "no file of the suite is to blame")
}

// Cases that are inconclusive each time are skipped, and counted in the end; if the caller is strict, they fail.
func TestInconclusiveCases(t *testing.T) {
	const tooSlow, cases = "the machine was too slow to tell, 5 times", "^(NotBefore|Expiry)$"
	output, err := runOnPurpose("slow", cases, "")
	require.NoErrorf(t, err, "%s", output)
	assert.Regexp(t, "--- SKIP: TestSkipsOnPurpose/NotBefore ", output)
	assert.Contains(t, output, `
    skipped, and why:
      `+tooSlow+`: raise Harness.TTL
        Expiry, NotBefore
    inconclusive cases: 2 (Expiry, NotBefore)
`)
	output, err = runOnPurpose("slow", cases, "1")
	require.Errorf(t, err, "%s", output)
	assert.Regexp(t, "--- FAIL: TestSkipsOnPurpose/NotBefore ", output)
	assert.Contains(t, output, tooSlow+", which DLOCK_CONFORMANCE_STRICT=1 makes a failure: raise Harness.TTL")
	assert.NotContains(t, output, "skipped, and why")
	output, err = runOnPurpose("slow", cases, "yes")
	require.Errorf(t, err, "%s", output)
	assert.Contains(t, output, `conformance: DLOCK_CONFORMANCE_STRICT is "yes"; want 1, 0 or nothing`)
	assert.NotContains(t, output, "TestSkipsOnPurpose/", "no case runs")
}

// What a slow machine leaves open is skipped; if the caller is strict, it fails. TestInconclusiveCases sees what Run says.
func TestSlowMachineIsNoViolation(t *testing.T) {
	slow := testCase{name: "slow", check: func(s *scene, a, b *client) {
		g := s.grant(s.client(), s.key(), s.token("holder"), s.h.ttl())
		s.lapse(s.h.ttl())
		s.held(s.client(), g)
	}}
	h := harnessOf("near")
	assert.ErrorContains(t, play(t, h, slow), "raise Harness.TTL", "in a bubble nothing can be slow")
	h.Bubble, h.TTL, h.Grace = false, 5*time.Millisecond, time.Millisecond
	for strict, skips := range map[string]bool{"": true, "0": true, "1": false} {
		t.Setenv(strictVariable, strict)
		err := play(t, h, slow)
		assert.ErrorContains(t, err, "too slow")
		assert.Equal(t, skips, isSkip(err), "%s=%s", strictVariable, strict)
	}
}

// The error of a Client whose store answers too late is known as such, and others are not.
func TestTooLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := harnessOf("near").New(t)
		c := dlock.New(distant(475*time.Millisecond)(store), dlock.WithTTL(time.Second))
		_, err := c.Acquire(t.Context(), "k")
		require.Error(t, err)
		assert.True(t, tooLate(err), "%v", err)
		assert.False(t, tooLate(errUnreliable))
		assert.NoError(t, c.Close())
	})
}

// With PerCase every case has a store of its own, and cases run together.
func TestEach(t *testing.T) {
	var met sync.WaitGroup
	met.Add(2)
	meet := func(s *scene, a, b *client) {
		s.grant(s.client(), "key", "token of "+s.t.Name(), long)
		met.Done()
		met.Wait()
	}
	h := Harness{verdicts: newVerdicts(""), PerCase: func(t *testing.T) Harness { return Harness{New: harnessOf("near").New} }}
	runAll(t, h, []testCase{{name: "one", check: meet}, {name: "two", check: meet}})
	assert.Empty(t, h.verdicts.running)
}

// Outside of a bubble goroutines are counted, and the clock runs.
func TestRealTime(t *testing.T) {
	real := harnessOf("near")
	real.Bubble, real.TTL = false, 30*time.Millisecond
	for _, name := range []string{"Exclusion", "HeldIsUntouched", "Expiry", "RenewExtends", "SinceIsConservative", "CancelledWait", "WaitEndsOnExpiry", "History"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := play(t, real, caseNamed(t, name))
			if isSkip(err) && strings.Contains(err.Error(), errInconclusive.Error()) {
				t.Skip(err)
			}
			assert.NoError(t, err)
		})
	}
}

func TestRealLeaksAreCounted(t *testing.T) {
	redistest.Real(t)
	for _, c := range []struct{ leaks, counted, stack string }{
		{"leavesAGoroutine", "after 6 rounds with new clients", "museum.idle"},
		{"watchesItsContext", "after 5 rounds of calls under a ctx that has not ended", "museum.watch"},
	} {
		real := harnessOf(c.leaks)
		real.Bubble, real.TTL, real.patient = false, 30*time.Millisecond, 2*time.Second
		err := play(t, real, caseNamed(t, "NoLeaks"))
		assert.ErrorContains(t, err, c.counted)
		assert.ErrorContains(t, err, c.stack, "the stacks do not show who leaks")
	}
}

func TestNilLocker(t *testing.T) {
	h := Harness{New: func(*testing.T) dlock.Locker { return nil }, Bubble: true}
	for _, c := range cases {
		if err := play(t, h, c); !isSkip(err) {
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

// One cause of many failures has one hint.
func TestHint(t *testing.T) {
	right := museum.Right[0].Name
	assert.Empty(t, harnessOf(right).hint(t))
	var by sync.Map
	possessive := around(func(ctx context.Context, r request, l dlock.Forward) (any, error) {
		if r.name == "TryAcquire" {
			by.Store(r.token, l)
		}
		if owner, _ := by.Load(r.token); owner != l && r.name == "Release" {
			return false, nil // it releases only what it has acquired itself
		}
		return r.send(ctx, l)
	})
	assert.Contains(t, harnessOf(right, possessive).hint(t), "any client may renew or release it")
}

// What is known is printed before go test ends the process.
func TestVerdictsSoFar(t *testing.T) {
	v := newVerdicts("TestLock/")
	v.running["Endless"] = true
	v.failed = []string{"TestLock/Fences: wrong\n"}
	assert.Equal(t, "go test -timeout is about to end TestLock\nstill running: Endless\nfailed so far: 1\nTestLock/Fences: wrong\n", v.soFar())
}

func TestCorrectStorePasses(t *testing.T) {
	for _, c := range []struct{ ttl, grace time.Duration }{
		{10 * time.Millisecond, time.Millisecond}, {time.Second, 3 * time.Second}, {3 * time.Second, time.Millisecond},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			h := harnessOf("near")
			h.TTL, h.Grace = c.ttl, c.grace
			Run(t, h)
		})
	}
}

func TestStoreWithoutExtrasPasses(t *testing.T) {
	bare := func(l dlock.Locker) dlock.Locker { return plain{l} }
	Run(t, harnessOf("unfenced", bare))
	t.Run("Forward", func(t *testing.T) { // which has all methods
		Run(t, harnessOf("unfenced", bare, func(l dlock.Locker) dlock.Locker { return dlock.Forward{Locker: l} }))
	})
}

// Decorators that hide nothing pass. (Those that do are in the museum.)
func TestDecorators(t *testing.T) {
	type standsForNone struct {
		plain
		stores []dlock.Locker
	}
	for name, around := range map[string]func(dlock.Locker) dlock.Locker{
		"the store itself":        func(l dlock.Locker) dlock.Locker { return l },
		"Forward":                 func(l dlock.Locker) dlock.Locker { return dlock.Forward{Locker: l} },
		"embeds Forward":          func(l dlock.Locker) dlock.Locker { return &struct{ dlock.Forward }{dlock.Forward{Locker: l}} },
		"Forward, around a Voter": func(dlock.Locker) dlock.Locker { return dlock.Forward{Locker: memory.New()} },
		"embeds the store":        func(dlock.Locker) dlock.Locker { return struct{ *memory.Locker }{memory.New()} },
		"many stores":             func(l dlock.Locker) dlock.Locker { return &standsForNone{plain{l}, []dlock.Locker{l}} },
		"an unexported Forward around a store without extras": func(l dlock.Locker) dlock.Locker {
			return struct {
				plain
				inner dlock.Forward
			}{plain{l}, dlock.Forward{Locker: plain{l}}}
		},
	} {
		err := play(t, harnessOf("near", around), caseNamed(t, "DecoratorHidesNothing"))
		assert.True(t, err == nil || isSkip(err), "%s: %v", name, err)
	}
}

// Errors that are marked though their call had an effect are caught each time, however near the store is.
func TestMarksAreCaught(t *testing.T) {
	for name, of := range map[string]func(*testing.T) Harness{
		"museum, over TCP": func(t *testing.T) Harness {
			tcp := networkHarness(t, exhibit("marksEveryError"))
			return Harness{New: func(t *testing.T) dlock.Locker { return tcp.Dial(t, tcp.Addr) }}
		},
		"memory, some way off": func(*testing.T) Harness {
			store := distant(20 * time.Microsecond)(memory.New())
			return Harness{New: func(*testing.T) dlock.Locker { return store }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := of(t)
			require.ErrorContains(t, play(t, h, caseNamed(t, "NoEffect")), "whose error says that it has no effect")
		})
	}
}

// A joined error says nothing of the effect of its call, over a network either.
func TestJoinedErrorsClaimNothing(t *testing.T) {
	n := &network{scene: newScene(t, Harness{}, 0)}
	n.unansweredBy(errors.Join(io.EOF, dlock.ErrInvalid, &dlock.NoEffectError{Err: io.EOF}), "a call")
	assert.NoError(t, n.result())
	for _, name := range []string{"NoEffectOverNetwork", "UnreachableStore"} {
		assert.NoError(t, play(t, networkHarness(t, exhibit("joinsErrors")), caseNamed(t, name)), name)
	}
}
