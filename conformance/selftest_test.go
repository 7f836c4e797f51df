package conformance

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/stretchr/testify/assert"
)

// A broken store has one flaw. It must be caught by some cases, may be by
// others, which need what it breaks, and passes all the rest.
type broken struct {
	flaw   string
	caught []string
	also   []string
}

type names = []string

// Cases that cannot do their work where something elementary is broken.
var (
	waiting = names{"SinceIsConservative", "CancelledWait", "WaitEndsOnRelease", "WaitEndsOnExpiry", "WaitEndsOnRemoval",
		"FirstComeFirstServed", "DeadWaiterIsSkipped", "DeadHostManyWaiters", "NoStarvation", "LostReply", "NoLeaks", "History", "Exclusion", "FenceRises"}
	expiring = names{"Exclusion", "HeldIsUntouched", "RenewByStranger", "RenewAfterExpiry", "ReleaseAfterExpiry", "FenceRises",
		"EndedContext", "WaitEndsOnExpiry", "LateDuplicate", "NoLeaks", "BatchKeepsOrder", "BatchRenewsAsRenew", "InspectTells", "InspectChangesNothing"}
	lasting = names{"HeldIsUntouched", "RenewExtends", "SinceIsConservative", "WaitEndsOnExpiry", "LateDuplicate", "NoLeaks", "History",
		"BatchRenewsAsRenew", "InspectTells"}
)

var flaws = []broken{
	{flaw: "check, then act", caught: names{"Exclusion", "History"}, also: names{"NoStarvation", "FenceRises"}},

	{flaw: "a refused attempt prolongs", caught: names{"HeldIsUntouched"}, also: names{"WaitEndsOnExpiry"}},
	{flaw: "a refused attempt shortens", caught: names{"HeldIsUntouched"}, also: names{"WaitEndsOnExpiry", "LateDuplicate"}},
	{flaw: "a refused attempt replaces the holder", caught: names{"HeldIsUntouched", "Exclusion"},
		also: slices.Concat(waiting, names{"SameTokenAgain", "RenewExtends", "RenewNeverShortens", "RenewByStranger", "RenewAfterExpiry", "ReleaseByStranger",
			"ReleaseTwice", "ReleaseAfterExpiry", "TokensCompareWhole", "EndedContext", "LateDuplicate", "BatchRenewsAsRenew", "InspectChangesNothing"})},
	{flaw: "a refused attempt names the wrong holder", caught: names{"HeldIsUntouched"}},
	{flaw: "the rest of a lease is wrong", caught: names{"HeldIsUntouched"}},

	{flaw: "keys are folded", caught: names{"KeysAreIndependent"}},
	{flaw: "keys are trimmed", caught: names{"KeysAreIndependent"}},
	{flaw: "keys end at NUL", caught: names{"KeysAreIndependent"}},
	{flaw: "keys have 255 bytes", caught: names{"KeysAreIndependent"}},
	{flaw: "keys are made valid UTF-8", caught: names{"KeysAreIndependent"}},
	{flaw: "keys are hash tags", caught: names{"KeysAreIndependent"}},

	{flaw: "the same token is refused", caught: names{"SameTokenAgain", "LostReply"}, also: names{"LateDuplicate"}},
	{flaw: "the same token keeps its fence", caught: names{"SameTokenAgain"}, also: names{"LateDuplicate"}},
	{flaw: "the same token does not extend", caught: names{"SameTokenAgain"}},
	{flaw: "the same token shortens", caught: names{"SameTokenAgain", "LateDuplicate"}},

	{flaw: "leases never end", caught: names{"Expiry", "WaitEndsOnExpiry"}, also: expiring},
	{flaw: "twice the TTL", caught: names{"Expiry"}, also: expiring},
	{flaw: "TTL in seconds, rounded up", caught: names{"Expiry"}, also: expiring},
	{flaw: "TTL in seconds", caught: names{"NotBefore"}, also: append(lasting, "Expiry")},
	{flaw: "half the TTL", caught: names{"NotBefore"}, also: lasting},

	{flaw: "renewal does not extend", caught: names{"RenewExtends"}, also: names{"WaitEndsOnExpiry", "LateDuplicate", "History", "BatchRenewsAsRenew"}},
	{flaw: "renewal shortens", caught: names{"RenewNeverShortens", "LateDuplicate"}, also: names{"BatchRenewsAsRenew"}},
	{flaw: "renewal does not compare", caught: names{"RenewByStranger", "TokensCompareWhole", "LateDuplicate"},
		also: names{"RenewAfterExpiry", "BatchKeepsOrder", "BatchRenewsAsRenew"}},
	{flaw: "renewal revives", caught: names{"RenewAfterExpiry", "LateDuplicate"}, also: names{"BatchKeepsOrder", "BatchRenewsAsRenew"}},
	{flaw: "renewal creates", caught: names{"RenewByStranger", "RenewAfterExpiry"}, also: names{"LateDuplicate", "BatchRenewsAsRenew"}},

	{flaw: "release only marks", caught: names{"ReleaseFrees"},
		also: slices.Concat(waiting, names{"SameTokenAgain", "RenewExtends", "ReleaseTwice", "FenceSurvivesDataLoss", "EndedContext", "LateDuplicate", "InspectTells", "InspectChangesNothing"})},
	{flaw: "release does not compare", caught: names{"ReleaseByStranger", "ReleaseTwice", "ReleaseAfterExpiry", "TokensCompareWhole", "LateDuplicate"},
		also: names{"CancelledWait", "NoStarvation", "LostReply", "NoLeaks", "History"}},
	{flaw: "release of what was is true", caught: names{"ReleaseTwice", "ReleaseAfterExpiry"}, also: names{"LostReply", "LateDuplicate"}},

	{flaw: "tokens compare as prefixes", caught: names{"TokensCompareWhole"}},
	{flaw: "tokens end at NUL", caught: names{"TokensCompareWhole"}},
	{flaw: "tokens are folded", caught: names{"TokensCompareWhole"}},

	{flaw: "a fence twice", caught: names{"FenceRises"}, also: names{"SameTokenAgain", "History"}},
	{flaw: "fences without room", caught: names{"FenceRises"}, also: names{"SameTokenAgain", "FenceSurvivesDataLoss", "History"}},
	{flaw: "fences in disorder", caught: names{"FenceRises", "History"}},
	{flaw: "fences restart on release", caught: names{"FenceRises", "History"}},
	{flaw: "the fence of a handover is lost", caught: names{"FenceRises", "History"}},
	{flaw: "fences are lost with the data", caught: names{"FenceSurvivesDataLoss"}},

	{flaw: "Since is dated at discovery", caught: names{"SinceIsConservative"}},

	{flaw: "TryAcquire under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "Renew under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "Release under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "Acquire under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "RenewBatch under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "Inspect under an ended ctx", caught: names{"EndedContext"}},

	{flaw: "a wait that ignores its ctx", caught: names{"CancelledWait", "NoLeaks"}, also: names{"DeadWaiterIsSkipped", "DeadHostManyWaiters", "History"}},
	{flaw: "a grant is lost on cancel", caught: names{"CancelledWait"}},
	{flaw: "release forgets the queue", caught: names{"CancelledWait", "NoLeaks"}, also: names{"DeadWaiterIsSkipped", "DeadHostManyWaiters"}},
	{flaw: "a queue that is not cleaned", caught: names{"CancelledWait", "DeadWaiterIsSkipped"}, also: names{"DeadHostManyWaiters", "NoLeaks", "History"}},
	{flaw: "release wakes nobody", caught: names{"WaitEndsOnRelease"},
		also: names{"Exclusion", "SinceIsConservative", "FirstComeFirstServed", "DeadWaiterIsSkipped", "DeadHostManyWaiters", "NoStarvation", "LostReply", "History"}},
	{flaw: "expiry wakes nobody", caught: names{"WaitEndsOnExpiry"}},
	{flaw: "removal wakes nobody", caught: names{"WaitEndsOnRemoval"}},
	{flaw: "last come, first served", caught: names{"FirstComeFirstServed", "NoStarvation"}, also: names{"DeadWaiterIsSkipped"}},
	{flaw: "a dead waiter is served", caught: names{"DeadWaiterIsSkipped", "DeadHostManyWaiters"}},
	{flaw: "a dead waiter costs a second", caught: names{"DeadHostManyWaiters"}},
	{flaw: "a wait leaves a goroutine", caught: names{"NoLeaks"}, also: waiting},

	{flaw: "an empty batch is an error", caught: names{"BatchKeepsOrder"}},
	{flaw: "a batch stops at a stranger", caught: names{"BatchKeepsOrder"}, also: names{"BatchRenewsAsRenew"}},
	{flaw: "a batch is answered backwards", caught: names{"BatchKeepsOrder"}, also: names{"BatchRenewsAsRenew"}},
	{flaw: "a batch merges its keys", caught: names{"BatchKeepsOrder"}},
	{flaw: "a batch shortens", caught: names{"BatchRenewsAsRenew", "LateDuplicate"}},
	{flaw: "a batch does not extend", caught: names{"BatchRenewsAsRenew"}, also: names{"History"}},
	{flaw: "a batch does not compare", caught: names{"BatchRenewsAsRenew"}},
	{flaw: "a batch revives", caught: names{"BatchRenewsAsRenew", "LateDuplicate"}},

	{flaw: "inspecting does not look at the time", caught: names{"InspectTells"}},
	{flaw: "inspecting reveals the last holder", caught: names{"InspectTells"}},
	{flaw: "inspecting tells the TTL in seconds", caught: names{"InspectTells"}},
	{flaw: "inspecting prolongs", caught: names{"InspectChangesNothing"}},
	{flaw: "inspecting cuts", caught: names{"InspectChangesNothing"}, also: names{"InspectTells"}},
	{flaw: "inspecting takes", caught: names{"InspectChangesNothing"}, also: names{"InspectTells"}},

	{flaw: "Acquire is unsupported, but acquires", caught: names{"UnsupportedSendsNothing"}},
}

// decorators are lockers around a correct store.
var decorators = []struct {
	name   string
	around func(*toy) dlock.Locker
	caught bool
}{
	{"the store itself", func(m *toy) dlock.Locker { return m }, false},
	{"Forward", func(m *toy) dlock.Locker { return dlock.Forward{Locker: m} }, false},
	{"embeds Forward", func(m *toy) dlock.Locker { return &counting{Forward: dlock.Forward{Locker: m}} }, false},
	{"embeds the store", func(m *toy) dlock.Locker { return struct{ *toy }{m} }, false},
	{"many stores", func(m *toy) dlock.Locker { return &quorum{plain{m}, []dlock.Locker{m}} }, false},
	{"embeds Locker", func(m *toy) dlock.Locker { return hiding{m} }, true},
	{"a pointer that embeds Locker", func(m *toy) dlock.Locker { return &hiding{m} }, true},
	{"an unexported field", func(m *toy) dlock.Locker { return bury(m) }, true},
	{"below a Forward", func(m *toy) dlock.Locker { return dlock.Forward{Locker: hiding{m}} }, true},
	{"a method that answers ErrUnsupported", func(m *toy) dlock.Locker { return &refusing{dlock.Forward{Locker: m}} }, true},
}

// outcomes plays all cases, and returns the violations by the name of the case.
func outcomes(t *testing.T, h Harness) map[string]error {
	found := make(map[string]error)
	for _, c := range cases {
		err := play(t, h, c)
		var skip skipError
		if err != nil && !errors.As(err, &skip) {
			found[c.name] = err
		}
	}
	return found
}

func itself(m *toy) dlock.Locker { return m }

func TestCorrectStorePasses(t *testing.T) {
	for _, c := range []struct{ ttl, grace time.Duration }{
		{}, {10 * time.Millisecond, 0}, {10 * time.Millisecond, time.Millisecond}, {time.Second, 3 * time.Second}, {3 * time.Second, time.Millisecond},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			h := toyHarness("", itself)
			h.TTL, h.Grace = c.ttl, c.grace
			Run(t, h)
		})
	}
}

func TestStoreWithoutExtrasPasses(t *testing.T) {
	Run(t, toyHarness("no fences", func(m *toy) dlock.Locker { return plain{m} }))
}

// TestFlawsAreCaught runs the suite on one broken store after the other.
func TestFlawsAreCaught(t *testing.T) {
	for _, b := range flaws {
		t.Run(b.flaw, func(t *testing.T) {
			t.Parallel()
			found := outcomes(t, toyHarness(b.flaw, itself))
			for _, name := range b.caught {
				assert.Contains(t, found, name, "the case does not catch the flaw")
			}
			for name, err := range found {
				if !slices.Contains(b.caught, name) && !slices.Contains(b.also, name) {
					t.Errorf("%s fails, which has nothing to do with the flaw: %v", name, err)
				}
			}
		})
	}
}

// TestEveryCaseCatches makes sure that no case is there in vain.
func TestEveryCaseCatches(t *testing.T) {
	catches := map[string]bool{
		"DecoratorHidesNothing": true, // TestDecorators
		"UnreachableStore":      true, // TestUnreachableStoreCatches
	}
	for _, b := range flaws {
		for _, name := range b.caught {
			catches[name] = true
		}
	}
	var known names
	for _, c := range cases {
		known = append(known, c.name)
		assert.True(t, catches[c.name], "no broken store shows that %s catches anything", c.name)
		assert.NotEmpty(t, c.clause, c.name)
	}
	for _, b := range flaws {
		assert.Subset(t, known, slices.Concat(b.caught, b.also), "the flaw %q names a case that does not exist", b.flaw)
	}
}

func TestDecorators(t *testing.T) {
	for _, d := range decorators {
		t.Run(d.name, func(t *testing.T) {
			err := play(t, toyHarness("", d.around), caseNamed(t, "DecoratorHidesNothing"))
			var skip skipError
			if d.caught {
				assert.ErrorContains(t, err, "embed dlock.Forward")
			} else if !errors.As(err, &skip) {
				assert.NoError(t, err)
			}
		})
	}
}
