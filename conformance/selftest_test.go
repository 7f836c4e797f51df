package conformance

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/museum"
	"github.com/stretchr/testify/assert"
)

// A broken store has one flaw. It must be caught by some cases, may be by
// others, which need what it breaks, and passes all the rest.
type broken struct {
	flaw   string
	caught []string
	also   []string

	sporadic bool // any case may catch it
}

type names = []string

// Cases that cannot do their work where something elementary is broken.
var (
	waiting = names{"SinceIsConservative", "CancelledWait", "OneReleaseSettles", "NoEffect", "WaitEndsOnRelease", "WaitEndsOnExpiry", "WaitEndsOnRemoval",
		"FirstComeFirstServed", "DeadWaiterIsSkipped", "DeadHostManyWaiters", "NoStarvation", "LostReply", "NoLeaks", "History", "Exclusion", "FenceRises"}
	expiring = names{"SameTokenAgain", "RenewExtends", "Exclusion", "HeldIsUntouched", "RenewByStranger", "RenewAfterExpiry", "ReleaseAfterExpiry", "FenceRises",
		"EndedContext", "WaitEndsOnExpiry", "LateDuplicate", "NoLeaks", "BatchKeepsOrder", "BatchRenewsAsRenew", "InspectTells", "InspectChangesNothing"}
	random  = names{"History", "HistoryAcrossDataLoss", "GuardedCounter", "GuardedRegister"}
	lasting = names{"HeldIsUntouched", "RenewExtends", "SinceIsConservative", "WaitEndsOnExpiry", "LateDuplicate", "NoLeaks", "History",
		"BatchRenewsAsRenew", "InspectTells"}
)

var flaws = []broken{
	{flaw: "check, then act", caught: names{"Exclusion", "History", "GuardedCounter"}, also: slices.Concat(names{"NoStarvation", "FenceRises"}, random)},

	{flaw: "a refused attempt prolongs", caught: names{"HeldIsUntouched"}, also: slices.Concat(names{"InspectTells"}, names{"WaitEndsOnExpiry"}, random)},
	{flaw: "a refused attempt shortens", caught: names{"HeldIsUntouched"}, also: slices.Concat(names{"InspectTells", "SameTokenAgain"}, names{"WaitEndsOnExpiry", "LateDuplicate"}, random)},
	{flaw: "a refused attempt replaces the holder", caught: names{"HeldIsUntouched", "Exclusion"},
		also: slices.Concat(names{"InspectTells", "NotBefore"}, waiting, names{"SameTokenAgain", "RenewExtends", "RenewNeverShortens", "RenewByStranger", "RenewAfterExpiry", "ReleaseByStranger",
			"ReleaseTwice", "ReleaseAfterExpiry", "TokensCompareWhole", "EndedContext", "LateDuplicate", "BatchRenewsAsRenew", "InspectChangesNothing"}, random)},
	{flaw: "a refused attempt names the wrong holder", caught: names{"HeldIsUntouched"}, also: random},
	{flaw: "the rest of a lease is wrong", caught: names{"HeldIsUntouched"}},

	{flaw: "keys are folded", caught: names{"KeysAreIndependent"}},
	{flaw: "keys are trimmed", caught: names{"KeysAreIndependent"}},
	{flaw: "keys end at NUL", caught: names{"KeysAreIndependent"}},
	{flaw: "keys have 255 bytes", caught: names{"KeysAreIndependent"}},
	{flaw: "keys are made valid UTF-8", caught: names{"KeysAreIndependent"}},
	{flaw: "keys are hash tags", caught: names{"KeysAreIndependent"}},

	{flaw: "the same token is refused", caught: names{"SameTokenAgain", "LostReply", "History"}, also: slices.Concat(names{"InspectTells", "NotBefore"}, names{"LateDuplicate"}, random)},
	{flaw: "the same token keeps its fence", caught: names{"SameTokenAgain"}, also: slices.Concat(names{"InspectTells"}, names{"LateDuplicate"}, random)},
	{flaw: "the same token does not extend", caught: names{"SameTokenAgain"}, also: random},
	{flaw: "the same token shortens", caught: names{"SameTokenAgain", "LateDuplicate"}, also: names{"InspectTells"}},

	{flaw: "leases never end", caught: names{"Expiry", "WaitEndsOnExpiry"}, also: slices.Concat(names{"NotBefore"}, expiring, random)},
	{flaw: "twice the TTL", caught: names{"Expiry"}, also: slices.Concat(names{"NotBefore"}, expiring, random)},
	{flaw: "TTL in seconds, rounded up", caught: names{"Expiry"}, also: slices.Concat(names{"NotBefore"}, expiring, random)},
	{flaw: "TTL in seconds", caught: names{"NotBefore"}, also: slices.Concat(lasting, names{"Expiry"}, random)},
	{flaw: "half the TTL", caught: names{"NotBefore"}, also: slices.Concat(lasting, random)},

	{flaw: "renewal does not extend", caught: names{"RenewExtends"}, also: slices.Concat(names{"InspectTells"}, names{"RenewAfterExpiry", "WaitEndsOnExpiry", "LateDuplicate", "History", "BatchRenewsAsRenew"}, random)},
	{flaw: "renewal shortens", caught: names{"RenewNeverShortens", "LateDuplicate"}, also: names{"InspectTells", "BatchRenewsAsRenew"}},
	{flaw: "renewal does not compare", caught: names{"RenewByStranger", "TokensCompareWhole", "LateDuplicate"},
		also: slices.Concat(names{"RenewAfterExpiry", "BatchKeepsOrder", "BatchRenewsAsRenew"}, random)},
	{flaw: "renewal revives", caught: names{"RenewAfterExpiry", "LateDuplicate"}, also: slices.Concat(names{"RenewByStranger", "BatchKeepsOrder", "BatchRenewsAsRenew"}, random)},
	{flaw: "renewal creates", caught: names{"RenewByStranger", "RenewAfterExpiry"}, also: slices.Concat(names{"LateDuplicate", "BatchRenewsAsRenew"}, random)},

	{flaw: "release only marks", caught: names{"ReleaseFrees"},
		also: slices.Concat(names{"NotBefore"}, waiting, names{"SameTokenAgain", "RenewExtends", "RenewByStranger", "RenewAfterExpiry", "ReleaseTwice", "FenceSurvivesDataLoss", "EndedContext", "LateDuplicate", "InspectTells", "InspectChangesNothing"}, random)},
	{flaw: "release does not compare", caught: names{"ReleaseByStranger", "ReleaseTwice", "ReleaseAfterExpiry", "TokensCompareWhole", "LateDuplicate"},
		also: slices.Concat(names{"WaitEndsOnExpiry"}, names{"CancelledWait", "NoStarvation", "LostReply", "NoLeaks", "History"}, random)},
	{flaw: "release of what was is true", caught: names{"ReleaseTwice", "ReleaseAfterExpiry"}, also: slices.Concat(names{"LostReply", "LateDuplicate"}, random)},

	{flaw: "tokens compare as prefixes", caught: names{"TokensCompareWhole"}},
	{flaw: "tokens end at NUL", caught: names{"TokensCompareWhole"}},
	{flaw: "tokens are folded", caught: names{"TokensCompareWhole"}},

	{flaw: "a fence twice", caught: names{"FenceRises"}, also: slices.Concat(names{"SameTokenAgain", "FenceSurvivesDataLoss", "History"}, random)},
	{flaw: "fences without room", caught: names{"FenceRises"}, also: slices.Concat(names{"SameTokenAgain", "FenceSurvivesDataLoss", "History"}, random)},
	{flaw: "fences in disorder", caught: names{"FenceRises", "History", "GuardedRegister"}, also: random},
	{flaw: "fences restart on release", caught: names{"FenceRises", "History", "GuardedRegister"}, also: random},
	{flaw: "the fence of a handover is lost", caught: names{"FenceRises", "History", "GuardedRegister"}, also: random},
	{flaw: "fences are lost with the data", caught: names{"FenceSurvivesDataLoss"}, also: random},

	{flaw: "Since is dated at discovery", caught: names{"SinceIsConservative", "History"}, also: random},

	{flaw: "TryAcquire under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "Renew under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "Release under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "Acquire under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "RenewBatch under an ended ctx", caught: names{"EndedContext"}},
	{flaw: "Inspect under an ended ctx", caught: names{"EndedContext"}},

	{flaw: "a wait that ignores its ctx", caught: names{"CancelledWait", "NoLeaks"}, also: names{"OneReleaseSettles", "NoEffect", "WaitEndsOnExpiry", "DeadWaiterIsSkipped", "DeadHostManyWaiters", "History"}},
	{flaw: "a grant is lost on cancel", caught: names{"CancelledWait"}},
	{flaw: "release forgets the queue", caught: names{"CancelledWait", "NoLeaks"}, also: names{"WaitEndsOnExpiry", "DeadWaiterIsSkipped", "DeadHostManyWaiters"}},
	{flaw: "a queue that is not cleaned", caught: names{"CancelledWait", "DeadWaiterIsSkipped"}, also: slices.Concat(names{"WaitEndsOnExpiry"}, names{"DeadHostManyWaiters", "NoLeaks", "History"}, random)},
	{flaw: "release wakes nobody", caught: names{"WaitEndsOnRelease"},
		also: slices.Concat(names{"WaitEndsOnExpiry", "NoLeaks"}, names{"Exclusion", "CancelledWait", "SinceIsConservative", "FirstComeFirstServed", "DeadWaiterIsSkipped", "DeadHostManyWaiters", "NoStarvation", "LostReply", "History"}, random)},
	{flaw: "expiry wakes nobody", caught: names{"WaitEndsOnExpiry"}, also: random},
	{flaw: "removal wakes nobody", caught: names{"WaitEndsOnRemoval"}, also: random},
	{flaw: "last come, first served", caught: names{"FirstComeFirstServed", "NoStarvation"}, also: names{"DeadWaiterIsSkipped"}},
	{flaw: "a dead waiter is served", caught: names{"DeadWaiterIsSkipped", "DeadHostManyWaiters"}, also: names{"WaitEndsOnExpiry"}},
	{flaw: "a dead waiter costs a second", caught: names{"DeadHostManyWaiters"}},
	{flaw: "a wait leaves a goroutine", caught: names{"NoLeaks"}, also: slices.Concat(names{"InspectTells"}, waiting, random)},

	{flaw: "an empty batch is an error", caught: names{"BatchKeepsOrder"}},
	{flaw: "a batch stops at a stranger", caught: names{"BatchKeepsOrder"}, also: names{"BatchRenewsAsRenew"}},
	{flaw: "a batch is answered backwards", caught: names{"BatchKeepsOrder"}, also: names{"BatchRenewsAsRenew"}},
	{flaw: "a batch merges its keys", caught: names{"BatchKeepsOrder"}, also: names{"BatchRenewsAsRenew"}},
	{flaw: "a batch shortens", caught: names{"BatchRenewsAsRenew", "LateDuplicate"}},
	{flaw: "a batch does not extend", caught: names{"BatchRenewsAsRenew"}, also: names{"History"}},
	{flaw: "a batch does not compare", caught: names{"BatchRenewsAsRenew"}},
	{flaw: "a batch revives", caught: names{"BatchRenewsAsRenew", "LateDuplicate"}},

	{flaw: "inspecting does not look at the time", caught: names{"InspectTells"}, also: random},
	{flaw: "inspecting reveals the last holder", caught: names{"InspectTells"}, also: random},
	{flaw: "inspecting tells the TTL in seconds", caught: names{"InspectTells"}},
	{flaw: "inspecting prolongs", caught: names{"InspectChangesNothing"}, also: random},
	{flaw: "inspecting cuts", caught: names{"InspectChangesNothing"}, also: slices.Concat(names{"InspectTells"}, random)},
	{flaw: "inspecting takes", caught: names{"InspectChangesNothing"}, also: slices.Concat(names{"InspectTells"}, random)},

	// Flaws that show now and then, or only under load: any case may meet them.
	{flaw: "a held key is granted now and then", caught: names{"History", "GuardedCounter"}, sporadic: true},
	{flaw: "a free key seems held now and then", caught: names{"History"}, sporadic: true},
	{flaw: "two waiters are served now and then", caught: names{"History", "GuardedCounter"}, sporadic: true},
	{flaw: "fences are drawn on arrival", caught: names{"History", "GuardedRegister"}, sporadic: true},
	{flaw: "renewal says not held now and then", caught: names{"History"}, sporadic: true},
	{flaw: "release says not held now and then", caught: names{"History"}, sporadic: true},
	{flaw: "a release is lost now and then", caught: names{"History"}, sporadic: true},
	{flaw: "inspecting sees nobody now and then", caught: names{"History"}, sporadic: true},
	{flaw: "fences are lost with the data at the third time", caught: names{"HistoryAcrossDataLoss"}, sporadic: true},

	{flaw: "Acquire is unsupported, but acquires", caught: names{"UnsupportedSendsNothing"}},
}

// beyondModel are the flaws that AgreesWithModel need not catch: they show only where several
// things happen at once, or after the loss of all data.
var beyondModel = names{
	"check, then act", "Since is dated at discovery", "fences are lost with the data", "removal wakes nobody",
	"a grant is lost on cancel", "release wakes nobody", "expiry wakes nobody", "last come, first served",
	"a dead waiter is served", "a dead waiter costs a second", "the fence of a handover is lost",
}

// broad are the cases that use so much of a store that nearly any flaw may show. What they
// must catch is in the museum.
var broad = names{"AgreesWithModel", "AnyTTL", "ExpiresForAll", "HolderAcquiresAgain", "WaiterIsNoHolder", "ReleaseForgets", "FenceSurvivesIdleness",
	"LeaseOutlivesContext", "LongQueue", "InspectTells", "WaitingIsCounted", "KeysAreIndependent", "KeyAndTokenApart", "TokenHoldsManyKeys", "ManyLeases", "HolderIsTold", "BatchOfAnySize", "BatchIsTheCallers", "BatchesCross"}

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

// outcomes plays all cases, and returns the violations by the name of the case. Under the
// race detector it plays those alone that must catch the flaw.
func outcomes(t *testing.T, h Harness, caught names) map[string]error {
	found := make(map[string]error)
	for _, c := range cases {
		if raceDetector && !slices.Contains(caught, c.name) && c.name != "AgreesWithModel" {
			continue
		}
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
			found := outcomes(t, toyHarness(b.flaw, itself), b.caught)
			for _, name := range b.caught {
				assert.Contains(t, found, name, "the case does not catch the flaw")
			}
			if b.sporadic {
				return
			}
			if !slices.Contains(beyondModel, b.flaw) {
				assert.Contains(t, found, "AgreesWithModel", "the case does not catch the flaw")
			}
			for _, name := range broad {
				delete(found, name)
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
		"AgreesWithModel":       true, // all flaws that are not beyondModel
	}
	for _, f := range networkFlaws {
		catches[f.caught] = true
	}
	for _, e := range museum.Broken {
		catches[e.Case] = true
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
	for _, flaw := range beyondModel {
		assert.True(t, slices.ContainsFunc(flaws, func(b broken) bool { return b.flaw == flaw }), "there is no flaw %q", flaw)
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
