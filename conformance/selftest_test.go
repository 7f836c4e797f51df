package conformance

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/conformance/internal/museum"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type names = []string

// broad are the cases that use so much of a store that nearly any flaw may show.
var broad = names{"AgreesWithModel", "AnyTTL", "ExpiresForAll", "HolderAcquiresAgain", "WaiterIsNoHolder", "ReleaseForgets", "FenceSurvivesIdleness",
	"LeaseOutlivesContext", "LongQueue", "InspectTells", "WaitingIsCounted", "KeysAreIndependent", "KeyAndTokenApart", "TokenHoldsManyKeys", "ManyLeases", "HolderIsTold", "BatchOfAnySize", "BatchIsTheCallers", "BatchesCross",
	"ReleaseCrossesTakeover", "RenewCrossesTakeover",
	"History", "HistoryAcrossDataLoss", "GuardedCounter", "GuardedRegister"}

// decorators are lockers around a correct store.
var decorators = []struct {
	name   string
	around func(dlock.Locker) dlock.Locker
	caught bool
}{
	{"the store itself", func(l dlock.Locker) dlock.Locker { return l }, false},
	{"Forward", func(l dlock.Locker) dlock.Locker { return dlock.Forward{Locker: l} }, false},
	{"embeds Forward", func(l dlock.Locker) dlock.Locker { return &counting{Forward: dlock.Forward{Locker: l}} }, false},
	{"Forward, around a Voter", func(dlock.Locker) dlock.Locker { return dlock.Forward{Locker: memory.New()} }, false},
	{"embeds the store", func(dlock.Locker) dlock.Locker { return struct{ *memory.Locker }{memory.New()} }, false},
	{"many stores", func(l dlock.Locker) dlock.Locker { return &manyStores{plain{l}, []dlock.Locker{l}} }, false},
	{"embeds Locker", func(l dlock.Locker) dlock.Locker { return hiding{l} }, true},
	{"a pointer that embeds Locker", func(l dlock.Locker) dlock.Locker { return &hiding{l} }, true},
	{"an unexported field", func(l dlock.Locker) dlock.Locker { return bury(l) }, true},
	{"an unexported Forward, around a store without extras", func(l dlock.Locker) dlock.Locker { return bury(dlock.Forward{Locker: plain{l}}) }, false},
	{"below a Forward", func(l dlock.Locker) dlock.Locker { return dlock.Forward{Locker: hiding{l}} }, true},
	{"a method that answers ErrUnsupported", func(l dlock.Locker) dlock.Locker { return &refusing{dlock.Forward{Locker: l}} }, true},
}

func TestCorrectStorePasses(t *testing.T) {
	for i, c := range []struct{ ttl, grace time.Duration }{
		{}, {10 * time.Millisecond, 0}, {10 * time.Millisecond, time.Millisecond}, {time.Second, 3 * time.Second}, {3 * time.Second, time.Millisecond},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			h := harnessOf("near")
			h.TTL, h.Grace = c.ttl, c.grace
			h.SkipForward = i > 0 // a Forward does not know of either
			Run(t, h)
		})
	}
}

func TestStoreWithoutExtrasPasses(t *testing.T) {
	Run(t, harnessOf("near", withoutFences, func(l dlock.Locker) dlock.Locker { return plain{l} }))
}

// TestNoOtherCaseFails plays the cases that have nothing to do with a flaw: a failure must
// lead to its cause. Under the race detector this would take long, and find no more.
func TestNoOtherCaseFails(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	for _, e := range exhibits() {
		if israce.Enabled || e.Sporadic || e.Cases == nil {
			continue
		}
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			for _, c := range cases {
				if slices.Contains(slices.Concat(broad, e.Cases, e.Also), c.name) {
					continue
				}
				var skip skipError
				if err := play(t, museumHarness(e), c); err != nil && !errors.As(err, &skip) {
					t.Errorf("%s fails, which has nothing to do with the flaw: %v", c.name, err)
				}
			}
		})
	}
}

// TestEveryCaseCatches makes sure that no case is there in vain.
func TestEveryCaseCatches(t *testing.T) {
	var known names
	for _, c := range cases {
		known = append(known, c.name)
		assert.NotEmpty(t, c.clause, c.name)
	}
	catches := make(map[string]bool)
	for _, e := range exhibits() {
		for _, name := range slices.Concat(mustCatch(e), caughtBy(e)) {
			catches[name] = true
		}
		assert.Subset(t, known, slices.Concat(broad, caughtBy(e), e.Also), "%s names a case that does not exist", e.Name)
	}
	for _, name := range known {
		assert.True(t, catches[name], "no broken lock shows that %s catches anything", name)
	}
}

func TestDecorators(t *testing.T) {
	for _, d := range decorators {
		t.Run(d.name, func(t *testing.T) {
			err := play(t, harnessOf("near", d.around), caseNamed(t, "DecoratorHidesNothing"))
			var skip skipError
			if d.caught {
				assert.ErrorContains(t, err, "embed dlock.Forward")
			} else if !errors.As(err, &skip) {
				assert.NoError(t, err)
			}
		})
	}
}

// Errors that are marked though their call had an effect are caught each time, however near the
// store is.
func TestMarksAreCaught(t *testing.T) {
	tcp := networkHarness(t, exhibit("marksEveryError"))
	store := memory.New()
	for name, h := range map[string]Harness{
		"museum":           harnessOf("queue", reword(marked)),
		"museum, over TCP": {New: func(t *testing.T) dlock.Locker { return tcp.Dial(t, tcp.Addr) }},
		"memory, some way off": {New: func(*testing.T) dlock.Locker {
			return reword(marked)(&distant{dlock.Forward{Locker: store}, 20 * time.Microsecond})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for range museumRounds(t) {
				err := play(t, h, caseNamed(t, "NoEffect"))
				require.ErrorContains(t, err, "whose error says that it has no effect")
			}
		})
	}
}

// A joined error says nothing of the effect of its call: one of several stores may have refused it.
func TestJoinedErrorsClaimNothing(t *testing.T) {
	for _, name := range []string{"NoEffect", "CancelledWait", "OneReleaseSettles"} {
		err := play(t, harnessOf("queue", reword(joined)), caseNamed(t, name))
		assert.True(t, err == nil || isSkip(err), "%s: %v", name, err)
	}
	for _, name := range []string{"NoEffectOverNetwork", "UnreachableStore"} {
		h := networkHarness(t, museum.Exhibit{})
		dial := h.Dial
		h.Dial = func(t *testing.T, addr string) dlock.Locker { return reword(joined)(dial(t, addr)) }
		assert.NoError(t, play(t, h, caseNamed(t, name)), name)
	}
	n := &network{scene: newScene(t, Harness{}, 0)}
	n.unansweredBy(joined(io.EOF), "a call")
	assert.NoError(t, n.result())
}
