package museum

import (
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

var majorities = []Exhibit{
	{Name: "halfIsEnough", Cases: names{"MoreThanHalf"}, Also: names{"RenewalNeedsMajority", "ReleaseNeedsMajority"}, BeyondModel: true, flaw: halfIsEnough},
	{Name: "waitsForAll", Cases: names{"MinorityFails"}, BeyondModel: true, flaw: waitsForAll},
	{Name: "countsAStoreTwice", Cases: names{"DistinctNodes"}, BeyondModel: true, flaw: countsAStoreTwice},
	{Name: "datedByTheYoungest", Cases: names{"OldestVoteDates"}, BeyondModel: true, flaw: datedByTheYoungest},
	{Name: "givesUpTheWhole", Cases: names{"HolderKeepsItsVotes"}, Also: names{"WipesReleaseNothing"}, BeyondModel: true, flaw: givesUpTheWhole},
	{Name: "refusalsOfTheYoung", Cases: names{"WipesReleaseNothing"}, BeyondModel: true, flaw: refusalsOfTheYoung},
	{Name: "answersOfTheYoung", Cases: names{"YoungNodesAreNotHeard"}, Also: names{"YoungNodesDoNotRenew"}, BeyondModel: true, flaw: answersOfTheYoung},
	{Name: "votesOfTheYoung", Cases: names{"YoungNodesDoNotVote"}, Also: names{"WipesReleaseNothing"}, BeyondModel: true, flaw: votesOfTheYoung},
	{Name: "renewalsOfTheYoung", Cases: names{"YoungNodesDoNotRenew"}, BeyondModel: true, flaw: renewalsOfTheYoung},
	{Name: "extendOrSet", Cases: names{"HealIsNoRenewal"}, Also: names{"YoungNodesDoNotRenew"}, BeyondModel: true, flaw: extendOrSet},
	{Name: "maximumAlone", Cases: names{"FenceOfAMajority"}, BeyondModel: true, flaw: maximumAlone},
	{Name: "oneRenews", Cases: names{"RenewalNeedsMajority"}, Also: names{"YoungNodesDoNotRenew", "HealIsNoRenewal"}, BeyondModel: true, flaw: oneRenews},
	{Name: "oneReleases", Cases: names{"ReleaseNeedsMajority"}, BeyondModel: true, flaw: oneReleases},
	{Name: "oneRefuses", Cases: names{"RefusalNeedsMajority"}, Also: names{"OldestVoteDates", "WipesReleaseNothing"}, BeyondModel: true, flaw: oneRefuses},
	{Name: "keepsItsStrays", Cases: names{"StraysAreReleased"}, BeyondModel: true, flaw: keepsItsStrays},
	{Name: "owesNothing", Cases: names{"ReleaseIsOwed"}, BeyondModel: true, flaw: owesNothing},
	{Name: "asksAgainAtOnce", Cases: names{"OwedReleaseEndsNoLease"}, BeyondModel: true, flaw: asksAgainAtOnce},
	{Name: "countsLateVotes", Cases: names{"LateVotesDoNotCount"}, Also: names{"YoungNodesDoNotVote"}, BeyondModel: true, flaw: countsLateVotes},
}

// Majority returns the exhibit as a lock on nodes, which are dlock.Voters.
func (e Exhibit) Majority(nodes []dlock.Locker, longest time.Duration) dlock.Locker {
	m := &majority{quorum: len(nodes)/2 + 1, longest: longest, owed: make(map[vote]bool), asked: make(map[vote]chan opinion)}
	for _, n := range nodes {
		m.nodes = append(m.nodes, n.(quorum.Voter))
	}
	e.flaw(m)
	return m
}

// IsMajority reports whether the flaw is in a lock on several stores.
func (e Exhibit) IsMajority() bool { return e.flaw != nil }

// Half of the nodes are enough.
// Seen: made for its case.
// Harm: with an even number of nodes, two holders each have half of them.
// Right: more than half.
func halfIsEnough(m *majority) { m.quorum = (len(m.nodes) + 1) / 2 }

// An answer is awaited from each node.
// Seen: redsync and RedLock.net, unless they are told not to.
// Harm: one node that hangs makes every call as slow as the limit.
// Right: return when a majority has decided.
func waitsForAll(m *majority) { m.waitsForAll = true }

// Two addresses of one store are two nodes.
// Seen: made for its case.
// Harm: two of three votes are those of one server, which may fail or forget.
// Right: compare what the stores call themselves.
func countsAStoreTwice(m *majority) { m.anyStores = true }

// The lease is dated by the vote that made it a majority.
// Seen: made for its case.
// Harm: the oldest votes end while the holder is certain, and another gets a majority.
// Right: by the oldest of the votes that are needed.
func datedByTheYoungest(m *majority) { m.byTheYoungest = true }

// An attempt that fails releases the token on all nodes.
// Seen: a well-known recipe.
// Harm: if the token held the key already, its holder loses it and does not know.
// Right: release only votes that the same attempt has cast.
func givesUpTheWhole(m *majority) { m.givesUpWhole = true }

// A node that has lost its data shows that a token has no lease.
// Seen: this library's Redlock.
// Harm: a holder that repeats its attempt takes it for refused, and gives back the last votes of its lease.
// Right: what the node says does not count until the longest TTL has passed.
func refusalsOfTheYoung(m *majority) { m.refusalsOfYoung = true }

// The answer of a node that has lost its data makes the majority that has answered.
// Seen: this library's Redlock.
// Harm: calls fail because one node was restarted, though two of three count, and answer a little later.
// Right: wait for the others, as if that node were down.
func answersOfTheYoung(m *majority) { m.answersOfYoung = true }

// A node that has lost its data votes at once.
// Seen: servers without persistence, restarted by their supervisor.
// Harm: the node votes for two holders.
// Right: its votes count when the longest TTL has passed.
func votesOfTheYoung(m *majority) { m.ballotsOfYoung = true }

// A node that has lost its data counts in renewals, as it was given the vote again.
// Seen: made for its case.
// Harm: it may have voted for another before that.
// Right: it counts when the longest TTL has passed, as in attempts.
func renewalsOfTheYoung(m *majority) { m.renewalsOfYoung = true }

// A renewal sets the key where it is gone.
// Seen: an option of redsync; RedLock.net.
// Harm: a lease that has ended is revived, perhaps after that of another.
// Right: the nodes that have the lease decide, and the others are healed after that.
func extendOrSet(m *majority) { m.countsHeals = true }

// The fence is the largest that a node of the majority gave.
// Seen: made for its case.
// Harm: the next majority need not have that node, and may give a lower fence.
// Right: raise the counters of a majority to it.
func maximumAlone(m *majority) { m.maximumAlone = true }

// A lease is renewed if one node has renewed it.
// Seen: made for its case.
// Harm: the holder believes in a lease of which a majority knows nothing.
// Right: a majority, or an error.
func oneRenews(m *majority) { m.oneRenews = true }

// A lease is released if one node has released it.
// Seen: made for its case.
// Harm: the key stays held for a TTL, and nobody releases it.
// Right: a majority, or an error.
func oneReleases(m *majority) { m.oneReleases = true }

// A key is held if one node says so.
// Seen: made for its case.
// Harm: after a split vote everyone reports a holder, and there is none.
// Right: a majority that names the same holder, or an error.
func oneRefuses(m *majority) { m.oneRefuses = true }

// An attempt that was refused keeps the votes that it got.
// Seen: made for its case.
// Harm: the votes of those who failed block the key until they expire.
// Right: give them back.
func keepsItsStrays(m *majority) { m.keepsStrays = true }

// A release that one node has not answered is not repeated there.
// Seen: a well-known recipe.
// Harm: votes of the dead add up, until a key is blocked.
// Right: repeat it for as long as the vote can last.
func owesNothing(m *majority) { m.forgetsNodes = true }

// A token asks for votes again while its release is repeated.
// Seen: made for its case.
// Harm: the release arrives after the new vote, and ends it. Its holder believes in it, and another gets the key.
// Right: the node does not count for that token before it has answered the release.
func asksAgainAtOnce(m *majority) { m.asksAgainAtOnce = true }

// A vote counts whenever its answer comes.
// Seen: made for its case.
// Harm: the token was released since, and the node has no vote of it.
// Right: only the answers to the requests of this attempt count.
func countsLateVotes(m *majority) { m.countsLateVotes = true }
