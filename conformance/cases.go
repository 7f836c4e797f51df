package conformance

// A testCase checks one clause. Its check returns what is wrong: the call, its
// answer, and what the contract wants.
type testCase struct {
	name   string
	clause string
	check  func(*scene) error
	alone  bool // runs while no other case does
	needs  need
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
	if h.Sleep != nil {
		return "Harness.Sleep is set: the store's clock is not the process's"
	}
	return ""
}

func needsVia(h Harness) string {
	if h.Via == nil || h.Addr == "" {
		return "Harness.Via or Harness.Addr is not set: there is no network to make faulty"
	}
	return ""
}

// cases is the contract.
var cases = []testCase{
	{name: "Exclusion", check: exclusion,
		clause: "lets at most one token hold a key, among any number of goroutines and clients"},
	{name: "HeldIsUntouched", check: heldIsUntouched,
		clause: "answers an attempt on a held key without changing holder, TTL or fence"},
	{name: "KeysAreIndependent", check: keysAreIndependent,
		clause: "keeps any two different keys apart: unicode, spaces, braces, newlines, NUL, 1 kB long, one a prefix of the other"},
	{name: "SameTokenAgain", check: sameTokenAgain,
		clause: "grants an attempt by the token that holds already, with a new fence; the rest of its lease becomes the longer of the two, never shorter"},
	{name: "Expiry", check: expiry,
		clause: "frees a key no later than its TTL plus the store's declared grace"},
	{name: "NotBefore", check: notBefore,
		clause: "never frees it earlier: no truncation to seconds, no lagging client clock"},
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
	{name: "FenceSurvivesDataLoss", check: fenceSurvivesDataLoss, alone: true, needs: needsWipe,
		clause: "…also after the store lost everything (where it says it can)"},
	{name: "SinceIsConservative", check: sinceIsConservative, needs: needsClock,
		clause: "never frees a key before Since+ttl, also when the waiter was stopped before it read its grant"},
	{name: "EndedContext", check: endedContext,
		clause: "sends nothing when the ctx has ended already, and returns its error"},
	{name: "CancelledWait", check: cancelledWait,
		clause: "returns soon after the ctx ends; a Release of the token then leaves neither a place in the queue nor a lease"},
	{name: "WaitEndsOnRelease", check: waitEndsOnRelease,
		clause: "serves a waiter when the holder releases, when it dies, and (within one ask period) when the key vanished by other means"},
	{name: "WaitEndsOnExpiry", check: waitEndsOnExpiry,
		clause: "serves a waiter when the holder releases, when it dies, and (within one ask period) when the key vanished by other means"},
	{name: "WaitEndsOnRemoval", check: waitEndsOnRemoval, alone: true, needs: needsWipe,
		clause: "serves a waiter when the holder releases, when it dies, and (within one ask period) when the key vanished by other means"},
	{name: "FirstComeFirstServed", check: firstComeFirstServed, needs: needsOrder,
		clause: "serves in the order in which the store took the waiters in (where it queues)"},
	{name: "DeadWaiterIsSkipped", check: deadWaiterIsSkipped,
		clause: "is not held up by one waiter that died, nor by a hundred of one stopped process, for longer than seconds"},
	{name: "DeadHostManyWaiters", check: deadHostManyWaiters,
		clause: "is not held up by one waiter that died, nor by a hundred of one stopped process, for longer than seconds"},
	{name: "NoStarvation", check: noStarvation,
		clause: "serves every kind of waiter, with and without a subscription, while others keep coming"},
	{name: "UnreachableStore", check: unreachableStore, needs: needsVia,
		clause: "returns an error that is neither \"held\" nor \"not held\", within the ctx or the client's own read timeout, whichever it can honour"},
	{name: "LostReply", check: lostReply,
		clause: "after a reply is lost: a repeated acquire, renew or release of the same token does no harm, and the core ends in a state it knows"},
	{name: "LateDuplicate", check: lateDuplicate,
		clause: "survives any request that is delivered after later ones: nothing is shortened, revived or taken for longer than a TTL"},
	{name: "NoLeaks", check: noLeaks, alone: true,
		clause: "leaves no goroutine, connection, timer or key behind once closed and expired"},
	{name: "History", check: history, needs: needsClock,
		clause: "produces, under load, pauses and faults, a history in which certain holds never overlap and fences follow real time"},

	{name: "BatchKeepsOrder", check: batchKeepsOrder,
		clause: "that is a BatchRenewer returns one result for each renewal, in the order of the batch, with duplicates, strangers and expired leases among them, and none for an empty batch"},
	{name: "BatchRenewsAsRenew", check: batchRenewsAsRenew,
		clause: "that is a BatchRenewer does for each element what Renew does, independently of the others: extends, never shortens, never revives, leaves strangers alone"},
	{name: "InspectTells", check: inspectTells,
		clause: "that is an Inspector tells who holds a key and for how long still, and that nobody does once it was released or has expired"},
	{name: "InspectChangesNothing", check: inspectChangesNothing,
		clause: "that is an Inspector changes nothing by inspecting: neither holder nor TTL, nor a key that is free"},
	{name: "UnsupportedSendsNothing", check: unsupportedSendsNothing,
		clause: "sends nothing where a method answers errors.ErrUnsupported"},
	{name: "DecoratorHidesNothing", check: decoratorHidesNothing,
		clause: "that is built around another Locker hides none of its optional interfaces (embed dlock.Forward)"},
}
