package world

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/mutants"
)

// Tests that check clauses: of a majority, and of a Voter.
const (
	majorityClauses = "backend/redlock TestClauses"
	voterClauses    = "backend/memory TestVotes"
)

// clauses makes rows that the checks of clauses must find.
func clauses(tests string) func(number int, name, text string, edits ...mutants.Edit) row {
	return func(number int, name, text string, edits ...mutants.Edit) row {
		return row{number: number, text: text, clause: tests + "/" + name, edits: edits}
	}
}

// find runs the check of a clause with the fault planted in its program.
func (r row) find(t *testing.T, dir string, programs map[string]string) {
	folder, check, _ := strings.Cut(r.clause, " ")
	check, name, _ := strings.Cut(check, "/")
	if programs[folder] == "" {
		program, err := mutants.Build(t.Context(), dir, folder, planted(rows()), "-vet=off")
		require.NoError(t, err)
		programs[folder] = program
	}
	tests := mutants.Tests{In: folder, Run: "^" + check + "$/^" + name + "$", Says: "clause: ", Args: []string{fmt.Sprint("without=", r.number)}}
	out, err := tests.Fail(t.Context(), programs[folder])
	require.NoError(t, err, out)
}

// Each clause has a row: its check finds something.
func TestClausesHaveRows(t *testing.T) {
	for tests, file := range map[string]string{majorityClauses: "backend/redlock/clauses_test.go", voterClauses: "backend/internal/votetest/checks.go"} {
		text, err := os.ReadFile(filepath.Join(mutants.Root(), file))
		require.NoError(t, err)
		all := regexp.MustCompile(`(?m)^\t\{"(\w+)", "A `).FindAllStringSubmatch(string(text), -1)
		require.Greater(t, len(all), 10)
		for _, c := range all {
			require.True(t, slices.ContainsFunc(rows(), func(r row) bool { return r.clause == tests+"/"+c[1] }), "%s has no row", c[1])
		}
	}
}

const (
	nodeGo       = "backend/redlock/node.go"
	memoryGo     = "backend/memory/memory.go"
	memoryVoteGo = "backend/memory/vote.go"
	memoryWipeGo = "backend/memory/fault.go"
)

// clauseRows break each clause. Those with numbers up to 219 are rules, whose edits are made there.
func clauseRows() []row {
	of, voter := clauses(majorityClauses), clauses(voterClauses)
	return []row{
		of(201, "MoreThanHalf", "half of the nodes are enough"),
		of(202, "DistinctNodes", "two addresses of one store are two nodes"),
		of(203, "OldestVoteDates", "a lease is dated by the vote that made it a majority"),
		of(207, "OwedReleaseEndsNoLease", "a token asks for votes again while its release is repeated"),
		of(211, "WipesReleaseNothing", "a node that has lost its data shows that a token has no lease"),
		of(212, "YoungNodesDoNotVote", "a node that has lost its data votes at once"),
		of(213, "YoungNodesDoNotRenew", "a node that has lost its data counts in renewals"),
		of(214, "HealIsNoRenewal", "a renewal sets the key where it is gone, as redsync and RedLock.net can"),
		of(216, "FenceOfAMajority", "the fence is the largest that a node of the majority gave"),
		of(221, "MinorityFails", "an answer is awaited from each node, as redsync and RedLock.net do by default",
			edit(votingGo, "\t\t\tif !won {\n", "\t\t\tif !won && !without(221) {\n"),
			edit(votingGo, "if of(i) && !n.slow.Load() {", "if of(i) && (!n.slow.Load() || without(221)) {")),
		of(222, "HolderKeepsItsVotes", "an attempt that fails releases the token on all nodes, as a well-known recipe does",
			edit(attemptGo, "\t\terr = v.promise(err)\n\t\tv.end(isKept) // the", "\t\tif without(222) {\n\t\t\t_, _ = l.Release(context.WithoutCancel(ctx), key, token)\n\t\t}\n\t\terr = v.promise(err)\n\t\tv.end(isKept) // the")),
		of(223, "YoungNodesAreNotHeard", "the answer of a node that has lost its data makes the majority that has answered"),
		of(224, "RenewalNeedsMajority", "a lease is renewed, or released, if one node says so",
			edit("backend/redlock/release.go", "\treturn yes >= l.quorum, yes", "\tif yes > 0 && without(224) {\n\t\treturn true, true\n\t}\n\treturn yes >= l.quorum, yes")),
		of(224, "ReleaseNeedsMajority", "a lease is released if one node has released it"),
		of(225, "RefusalNeedsMajority", "a key is held if one node says so",
			edit(attemptGo, "n >= v.l.quorum {\n\t\t\treturn a, n ==", "n >= v.l.quorum || n > 0 && without(225) {\n\t\t\treturn a, without(225) || n ==")),
		of(226, "StraysAreReleased", "an attempt that was refused keeps the votes that it got",
			edit(attemptGo, "if s.flying || !unconfirmed", "if s.flying || without(226) || !unconfirmed")),
		of(227, "ReleaseIsOwed", "a release that one node has not answered is not repeated there, as in a well-known recipe",
			edit("backend/redlock/release.go", "if ok && (late[i]", "if ok && !without(227) && (late[i]")),
		of(228, "LateVotesDoNotCount", "a vote counts whenever its answer comes",
			edit(nodeGo, "type node struct {\n", "type node struct {\n\tstash sync.Map\n"),
			edit(nodeGo, "\t\"slices\"\n", "\t\"slices\"\n\t\"sync\"\n"),
			edit(nodeGo, "\t\tb, err = n.voter.Vote(ctx, key, token, ttl, floor)\n", `		if late, ok := n.stash.LoadAndDelete(key + token); ok {
			return late.(quorum.Ballot), nil
		}
		if b, err = n.voter.Vote(ctx, key, token, ttl, floor); b.Acquired && ctx.Err() != nil && without(228) {
			n.stash.Store(key+token, b)
		}
`)),

		voter(301, "VoteIsTryAcquire", "a vote by the token that holds already sets the new TTL",
			edit(memoryGo, "\tl.extendLocked(now.Add(ttl))\n\tl.watchLocked(now)\n", "\tif l.extendLocked(now.Add(ttl)); without(301) {\n\t\tl.until = now.Add(ttl)\n\t}\n\tl.watchLocked(now)\n")),
		voter(302, "VoteIsTryAcquire", "a call returns the cause of its ctx's end",
			edit(memoryWipeGo, "return nil, mark(err)", "return nil, mark(when(302, context.Cause(ctx), err))")),
		voter(303, "VoteIsTryAcquire", "a wait returns the cause of its ctx's end",
			edit(memoryGo, "now), mark(w.ctx.Err())\n", "now), mark(when(303, context.Cause(w.ctx), w.ctx.Err()))\n")),
		voter(304, "FreshVotes", "every grant is called fresh",
			edit(memoryGo, "if b.Fresh = l.token != token; b.Fresh {", "if b.Fresh = l.token != token || without(304); b.Fresh {")),
		voter(305, "FloorsGiveEqualFences", "the floor is ignored",
			edit(memoryGo, "min(floor, b.Clock+time.Second.Microseconds()))", "min(when(305, 0, floor), b.Clock+when(306, 1<<60, time.Second.Microseconds())))")),
		voter(306, "FloorIsClamped", "the floor is believed, however large it is"),
		voter(307, "AgeGrows", "the age of the store is that of the first look",
			edit(memoryVoteGo, "Age: max(0, now.Sub(m.since)), Store: m.store,", "Age: when(307, 0, max(0, now.Sub(m.since))), Store: when(309, chance.Text(), m.store),")),
		voter(308, "AgeAfterDataLoss", "the age of the store is the uptime of its process",
			edit(memoryWipeGo, "\tm.since = now\n\tfor key", "\tm.since = when(308, m.since, now)\n\tfor key")),
		voter(309, "SameStore", "the name of the store is another each time"),
		voter(310, "ConfirmRenews", "a confirmation extends no lease",
			edit(memoryVoteGo, "\t\tballots[i] = m.ballotLocked(time.Now())\n", `
		c.TTL, c.Fence, m.fence = when(310, time.Millisecond, c.TTL), when(311, 0, c.Fence), max(m.fence, when(312, c.Fence, 0))
		ballots[i] = m.ballotLocked(time.Now())
`)),
		voter(311, "ConfirmRaisesFences", "a confirmation leaves the fence counter as it is"),
		voter(312, "ConfirmRaisesNothingElse", "a confirmation raises the fence counter whether or not the token holds the key"),
		voter(313, "PassIsRelease", "a token that only waits has nothing to pass on",
			edit(memoryVoteGo, "\tif l == nil {\n\t\treturn false, reply", "\tif l == nil || l.token != token && without(313) {\n\t\treturn false, reply")),
		voter(314, "PassToOne", "the key that is passed to one waiter goes to the first",
			edit(memoryVoteGo, "== to }); i > 0 {", "== to }); i > 0 && !without(314) {")),
		voter(315, "PassCarriesFloor", "the floor is only for votes without a wait",
			edit(memoryVoteGo, "\tm.freeLocked(key, l, floor, now)\n", "\tm.freeLocked(key, l, when(315, 0, floor), now)\n")),
		voter(316, "PlacesOrderWaiters", "of two waiters with the same place, the first that came is served first",
			edit(memoryVoteGo, "\t\treturn cmp.Or(cmp.Compare(a.place, b.place), ", "\t\tif without(316) {\n\t\t\treturn cmp.Compare(a.place, b.place)\n\t\t}\n\t\treturn cmp.Or(cmp.Compare(a.place, b.place), ")),
		voter(317, "PlaceIsBehindAll", "the place of a newcomer is the store's clock",
			edit(memoryVoteGo, "\tif len(l.queue) > 0 {\n\t\tb.Place", "\tif len(l.queue) > 0 && !without(317) {\n\t\tb.Place")),
		voter(318, "PlaceMoves", "a token that was in the queue keeps its place",
			mutants.Edit{File: "backend/memory/without_memory.go", New: "package memory\n\nimport \"sync\"\n\nvar places, grants sync.Map\n"},
			edit(memoryVoteGo, "\treturn m.acquire(ctx, key, token, ttl, floor, place)\n", `	first, _ := places.LoadOrStore(key+token, place)
	place = when(318, first.(int64), place)
	if b, ok := grants.LoadAndDelete(key + token); ok {
		return b.(quorum.Ballot), nil
	}
	b, err := m.acquire(ctx, key, token, ttl, floor, place)
	if err == nil && without(319) {
		grants.Store(key+token, b)
	}
	return b, err
`)),
		voter(319, "PassedTokenQueuesAgain", "the message of a grant stays in the waiter's inbox until its next wait"),
	}
}
