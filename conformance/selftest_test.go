package conformance

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCorrectStorePasses(t *testing.T) {
	for _, c := range []struct{ ttl, grace time.Duration }{
		{}, {10 * time.Millisecond, 0}, {10 * time.Millisecond, time.Millisecond}, {time.Second, 3 * time.Second}, {3 * time.Second, time.Millisecond},
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
	for name, around := range map[string]func(dlock.Locker) dlock.Locker{
		"the store itself":        func(l dlock.Locker) dlock.Locker { return l },
		"Forward":                 func(l dlock.Locker) dlock.Locker { return dlock.Forward{Locker: l} },
		"embeds Forward":          func(l dlock.Locker) dlock.Locker { return &struct{ dlock.Forward }{dlock.Forward{Locker: l}} },
		"Forward, around a Voter": func(dlock.Locker) dlock.Locker { return dlock.Forward{Locker: memory.New()} },
		"embeds the store":        func(dlock.Locker) dlock.Locker { return struct{ *memory.Locker }{memory.New()} },
		"many stores":             func(l dlock.Locker) dlock.Locker { return &manyStores{plain{l}, []dlock.Locker{l}} },
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
