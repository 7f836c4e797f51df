package conformance

import (
	"cmp"
	"testing"
)

// A testCase checks one clause. Its check returns what is wrong: the call, its
// answer, and what the contract wants.
type testCase struct {
	name   string
	clause string
	check  func(*scene) error
	alone  bool // runs while no other case does
	once   bool // takes long, and would tell nothing new of a Forward
	idles  bool // lets idleTimes pass
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
	if h.Dial == nil || h.Addr == "" {
		return "Harness.Dial or Harness.Addr is not set: there is no network to make faulty"
	}
	return ""
}

func needsNetwork(h Harness) string { return cmp.Or(needsVia(h), needsClock(h)) }

// cases is the contract.
var cases = []testCase{
	{name: "Exclusion", check: exclusion,
		clause: "lets at most one token hold a key, among any number of goroutines and clients"},
	{name: "HeldIsUntouched", check: heldIsUntouched,
		clause: "answers an attempt on a held key without changing holder, TTL or fence"},
	{name: "KeysAreIndependent", check: keysAreIndependent,
		clause: "keeps any two different keys apart: unicode, spaces, braces, newlines, NUL, 1 kB long, one a prefix of the other or a pattern that matches it, both of the same hash"},
	{name: "KeyAndTokenApart", check: keyAndTokenApart,
		clause: "keeps keys and tokens apart from each other, wherever the one ends and the other begins: key a:b and token c are not key a and token b:c"},
	{name: "TokenHoldsManyKeys", check: tokenHoldsManyKeys,
		clause: "keeps the leases of one token on several keys apart: each is renewed, released, and ends by itself"},
	{name: "ManyLeases", check: manyLeases, once: true,
		clause: "keeps each lease to its end, as that was last extended, among a thousand others that come and go"},
	{name: "HolderIsTold", check: holderIsTold,
		clause: "tells the holder, where it does, as the bytes that its token is, and what is left of its lease now, not what it was granted"},
	{name: "SameTokenAgain", check: sameTokenAgain,
		clause: "grants an attempt by the token that holds already, with a new fence; the rest of its lease becomes the longer of the two, never shorter"},
	{name: "Expiry", check: expiry,
		clause: "frees a key no later than its TTL plus the store's declared grace"},
	{name: "NotBefore", check: notBefore,
		clause: "never frees it earlier: no truncation to seconds, no lagging client clock"},
	{name: "AnyTTL", check: anyTTL, idles: true,
		clause: "keeps a lease for as long as it was asked for, from a millisecond to a year, by whatever call: an attempt, one by the holder, a renewal, one in a batch, a wait"},
	{name: "ExpiresForAll", check: expiresForAll,
		clause: "ends a lease for every call at the same time: once another could take the key, it is neither renewed, nor released with the answer true, nor shown"},
	{name: "RenewExtends", check: renewExtends,
		clause: "makes the rest of the lease the longer of what it is and the new TTL (so that a late duplicate does no harm)"},
	{name: "RenewNeverShortens", check: renewNeverShortens,
		clause: "makes the rest of the lease the longer of what it is and the new TTL (so that a late duplicate does no harm)"},
	{name: "RenewByStranger", check: renewByStranger,
		clause: "reports false and changes nothing; a dead lease is never revived"},
	{name: "RenewAfterExpiry", check: renewAfterExpiry,
		clause: "reports false and changes nothing; a dead lease is never revived"},
	{name: "ReleaseFrees", check: releaseFrees,
		clause: "frees the key at once"},
	{name: "ReleaseByStranger", check: releaseByStranger,
		clause: "reports false and changes nothing, also when another has taken the key over"},
	{name: "ReleaseTwice", check: releaseTwice,
		clause: "reports false and changes nothing, also when another has taken the key over"},
	{name: "ReleaseAfterExpiry", check: releaseAfterExpiry,
		clause: "reports false and changes nothing, also when another has taken the key over"},
	{name: "TokensCompareWhole", check: tokensCompareWhole,
		clause: "tells `user-1` from `user-10`, and binary tokens apart"},
	{name: "FenceRises", check: fenceRises,
		clause: "numbers each grant of a key above every earlier one: after release, expiry, handover, by another client, under contention of many; and leaves at least 8 numbers for each grant"},
	{name: "FenceSurvivesIdleness", check: fenceSurvivesIdleness, once: true, idles: true, needs: needsIdleness,
		clause: "…also when nobody has used the key for hours, or for days"},
	{name: "FenceSurvivesDataLoss", check: fenceSurvivesDataLoss, alone: true, needs: needsWipe,
		clause: "…also after the store lost everything (where it says it can)"},
	{name: "SinceIsConservative", check: sinceIsConservative, needs: needsClock,
		clause: "never frees a key before Since+ttl, also when the waiter was stopped before it read its grant"},
	{name: "EndedContext", check: endedContext,
		clause: "sends nothing when the ctx has ended already, and returns its error"},
	{name: "HolderAcquiresAgain", check: holderAcquiresAgain,
		clause: "grants a wait by the token that holds already at once, as an attempt by it, also while others wait"},
	{name: "WaiterIsNoHolder", check: waiterIsNoHolder,
		clause: "answers a token that only waits as any stranger, and leaves it its place and its TTL"},
	{name: "ReleaseForgets", check: releaseForgets,
		clause: "forgets a token altogether when it is released, by whichever client: its lease, and its place in the queue, however often it waits"},
	{name: "LeaseOutlivesContext", check: leaseOutlivesContext,
		clause: "keeps a lease though the ctx of the call ends that granted it, or made it longer, or of an earlier wait of its token"},
	{name: "CancelledWait", check: cancelledWait,
		clause: "returns soon after the ctx ends; a Release of the token then leaves neither a place in the queue nor a lease"},
	{name: "WaitEndsOnRelease", check: waitEndsOnRelease,
		clause: "serves a waiter when the holder releases, when it dies, and (within one ask period) when the key vanished by other means"},
	{name: "WaitEndsOnExpiry", check: waitEndsOnExpiry,
		clause: "serves a waiter when the holder releases, when it dies, and (within one ask period) when the key vanished by other means"},
	{name: "WaitEndsOnRemoval", check: waitEndsOnRemoval, once: true, alone: true, needs: needsWipe,
		clause: "serves a waiter when the holder releases, when it dies, and (within one ask period) when the key vanished by other means"},
	{name: "FirstComeFirstServed", check: firstComeFirstServed, needs: needsOrder,
		clause: "serves in the order in which the store took the waiters in (where it queues)"},
	{name: "LongQueue", check: longQueue, once: true,
		clause: "forgets nobody in a queue of hundreds, however many waited before and whoever leaves it, at its head, in its middle or at its tail (and keeps its order, where it queues)"},
	{name: "DeadWaiterIsSkipped", check: deadWaiterIsSkipped,
		clause: "is not held up by one waiter that died, nor by a hundred of one stopped process, for longer than seconds"},
	{name: "DeadHostManyWaiters", check: deadHostManyWaiters,
		clause: "is not held up by one waiter that died, nor by a hundred of one stopped process, for longer than seconds"},
	{name: "DeadWaiterOverNetwork", check: deadWaiterOverNetwork, needs: needsNetwork,
		clause: "is not held up by one waiter that died, nor by a hundred of one stopped process, for longer than seconds"},
	{name: "NoStarvation", check: noStarvation,
		clause: "serves every kind of waiter, with and without a subscription, while others keep coming"},
	{name: "UnreachableStore", check: unreachableStore, needs: needsVia,
		clause: "returns an error that is neither \"held\" nor \"not held\", within the ctx or the client's own read timeout, whichever it can honour"},
	{name: "LostReply", check: lostReply,
		clause: "after a reply is lost: a repeated acquire, renew or release of the same token does no harm, and the core ends in a state it knows"},
	{name: "LateDuplicate", check: lateDuplicate,
		clause: "survives any request that is delivered after later ones: nothing is shortened, revived or taken for longer than a TTL"},
	{name: "LostReplyOverNetwork", check: lostReplyOverNetwork, needs: needsNetwork,
		clause: "after a reply is lost: a repeated acquire, renew or release of the same token does no harm, and the core ends in a state it knows"},
	{name: "LateDuplicateOverNetwork", check: lateDuplicateOverNetwork, needs: needsNetwork,
		clause: "survives any request that is delivered after later ones: nothing is shortened, revived or taken for longer than a TTL"},
	{name: "BlackHole", check: blackHole, needs: needsNetwork,
		clause: "that vanishes in a black hole while a lease is held never makes its holder certain of more than the store keeps: the loss is announced on the deadline, and the key goes to nobody else before"},
	{name: "SlowNetwork", check: slowNetwork, needs: needsNetwork,
		clause: "that is far away keeps each lease until the deadline that its holder believes in, and certain holds never overlap"},
	{name: "Reconnection", check: reconnection, needs: needsNetwork,
		clause: "works again by itself when the network does, with the same Locker: calls succeed, waiters are served, and leases that outlast the outage stay"},
	{name: "NoLeaks", check: noLeaks, once: true, alone: true,
		clause: "leaves no goroutine, connection, timer or key behind once closed and expired"},
	{name: "History", check: history, needs: needsClock,
		clause: "produces, under load, pauses and faults, a history in which certain holds never overlap and fences follow real time"},
	{name: "HistoryAcrossDataLoss", check: historyAcrossDataLoss, once: true, alone: true, needs: needsClockAndWipe,
		clause: "…also while the store loses everything now and then (where fences survive this): what was certain before is over, and fences rise all the same"},
	{name: "GuardedCounter", check: guardedCounter, once: true, needs: needsClock,
		clause: "lets at most one token hold a key, among any number of goroutines and clients: a counter that nothing but the lock protects loses no update"},
	{name: "GuardedRegister", check: guardedRegister, once: true, needs: needsClock,
		clause: "numbers each grant of a key above every earlier one: a register that refuses smaller fences than it has seen accepts no stale write, and refuses no fresh one"},
	{name: "AgreesWithModel", whole: agreesWithModel,
		clause: "answers any sequence of calls as a plain model of a lock does: all the clauses together"},

	{name: "BatchKeepsOrder", check: batchKeepsOrder,
		clause: "that is a BatchRenewer returns one result for each renewal, in the order of the batch, with duplicates, strangers and expired leases among them, and none for an empty batch"},
	{name: "BatchRenewsAsRenew", check: batchRenewsAsRenew,
		clause: "that is a BatchRenewer does for each element what Renew does, independently of the others: extends, never shortens, never revives, leaves strangers alone"},
	{name: "BatchOfAnySize", check: batchOfAnySize, once: true,
		clause: "that is a BatchRenewer renews batches of any size, to the last element"},
	{name: "BatchIsTheCallers", check: batchIsTheCallers,
		clause: "that is a BatchRenewer leaves a batch as it was given, and its results as they were returned, whatever is called later or at the same time"},
	{name: "BatchesCross", check: batchesCross,
		clause: "that is a BatchRenewer renews batches that have leases in common, in different orders and at the same time, without an error, and without one waiting for the other for long"},
	{name: "InspectTells", check: inspectTells,
		clause: "that is an Inspector tells who holds a key and for how long still, and that nobody does once it was released or has expired, also while it passes from one to the other"},
	{name: "InspectChangesNothing", check: inspectChangesNothing,
		clause: "that is an Inspector changes nothing by inspecting: neither holder nor TTL, nor a key that is free"},
	{name: "UnsupportedSendsNothing", check: unsupportedSendsNothing,
		clause: "sends nothing where a method answers errors.ErrUnsupported"},
	{name: "DecoratorHidesNothing", check: decoratorHidesNothing,
		clause: "that is built around another Locker hides none of its optional interfaces (embed dlock.Forward)"},
}
