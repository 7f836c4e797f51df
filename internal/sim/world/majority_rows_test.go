package world

import (
	"slices"
	"time"

	"github.com/dlock-go/dlock/internal/mutants"
)

const (
	redlockGo = "backend/redlock/redlock.go"
	votingGo  = "backend/redlock/voting.go"
	attemptGo = "backend/redlock/attempt.go"
	queuedGo  = "backend/redlock/wait.go"
	renewGo   = "backend/redlock/renew.go"
)

// aside makes a call to a node that nothing waits for.
const aside = `func (v *voting) aside(i int, call func(context.Context, *node)) {
	v.l.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), v.l.limit)
		defer cancel()
		call(ctx, v.l.nodes[i])
	})
}

`

// shapes are of plans in which rules show soon that seldom do in others.
var shapes = map[int]func(*plan){
	8: shortVotes,
	14: func(p *plan) { // leases are adopted when they have ended
		p.late = false
		for i := range p.jobs {
			j := &p.jobs[i]
			j.Detaches, j.Late, j.Set, j.MinHold = i%2 == 0, i%2 == 0, false, 0
		}
	},
	18: shortVotes,
}

// shortVotes are votes that are confirmed often, and end while a call has no answer yet.
func shortVotes(p *plan) { p.ttl, p.lost = 1500*time.Millisecond, 0.3 }

// majorityRows take the rules of docs/redlock.md out: 201 is the first.
func majorityRows() []row {
	rule := func(number int, text string, edits ...mutants.Edit) row {
		r := systems(200+number, text, majority, 600, edits...)
		r.shape = func(p *plan) {
			if p.brief = true; shapes[number] != nil {
				shapes[number](p)
			}
		}
		return r
	}
	return []row{
		rule(1, "Q nodes decide", edit(redlockGo, "\tl.claims.nodes = len(nodes)\n", "\tl.claims.nodes, l.quorum = len(nodes), when(201, len(nodes)/2, l.quorum)\n")),
		rule(2, "nodes are different stores", edit("backend/redlock/node.go", "if s := store(i); s != \"\" && s == store(j) {", "if s := store(i); s != \"\" && s == store(j) && !without(202) {")),
		rule(3, "a lease is dated by the oldest of the Q latest votes",
			edit(votingGo, "return b.Compare(a) })\n", "return b.Compare(a) })\n\tdates[v.l.quorum-1] = dates[when(203, 0, v.l.quorum-1)]\n")),
		rule(4, "a TTL is shortened by the drift of clocks",
			edit(votingGo, "return s.granted && time.Since(s.since) < v.ttl-v.ttl/100", "return s.granted && (time.Since(s.since) < v.ttl-v.ttl/100 || time.Since(s.since) < v.ttl && without(204))"),
			edit("lease.go", "{ return ttl/100 + 2*time.Millisecond }", "{ return when(204, 0, ttl/100+2*time.Millisecond) }")),
		rule(5, "after a give-back, a node is asked for no vote of the token until it has answered",
			mutants.Edit{File: votingGo, Old: "// ask makes a request", New: aside + "// ask makes a request"},
			edit(votingGo, "\t\tcase kind == enqueued:\n\t\t\te.sent = time.Now()\n", `		case kind == passed && without(205):
			e.sent = time.Now()
			v.aside(i, func(ctx context.Context, _ *node) { _, _ = call(ctx) })
		case kind == enqueued:
			e.sent = time.Now()
`)),
		rule(6, "the answer to a vote that was asked for before a give-back does not count",
			edit(attemptGo, "\t\tif s := &v.seats[i]; !s.flying && v.mayReturn(s) {\n", `		if v.seats[i].flying && !v.seats[i].granted && without(206) {
			v.aside(i, func(ctx context.Context, n *node) { _, _ = n.pass(ctx, v.claim.key, v.claim.token, "", floor) })
		}
		if s := &v.seats[i]; !s.flying && v.mayReturn(s) {
`),
			edit(queuedGo, "\t\tif !w.mayReturn(s) {\n", `		if s.flying && (!s.granted && without(206) || w.mayReturn(s) && without(208)) {
			w.aside(i, func(ctx context.Context, n *node) { _, _ = n.pass(ctx, w.claim.key, w.claim.token, token, w.l.floor()) })
			continue
		}
		if !w.mayReturn(s) {
`)),
		rule(7, "a release without an answer spoils the token on that node",
			edit("backend/redlock/claim.go", "\tif !s.spoilt {\n\t\ts.uses++\n\t}\n\treturn !s.spoilt\n", "\tif !s.spoilt || without(207) {\n\t\ts.uses++\n\t}\n\treturn !s.spoilt || without(207)\n"),
			edit("backend/redlock/release.go", "over := s.uses != uses ||", "over := s.uses != uses && !without(207) ||")),
		rule(8, "the answer to a confirmation that was sent before a give-back does not count"),
		schedules(209, "a vote does not count from the moment its release is sent", overlap, base(0).on(majority).every(100*time.Millisecond).after(aVoteIsOnItsWayBack...),
			edit(votingGo, "\tv.seats[i].granted, v.seats[i].fresh = false, false\n", "\tif !without(209) {\n\t\tv.seats[i].granted, v.seats[i].fresh = false, false\n\t}\n"),
			edit(votingGo, "\tcase passed:\n\t\ts.answered = false\n", "\tcase passed:\n\t\tif s.answered = false; without(209) {\n\t\t\ts.granted, s.fresh = false, false\n\t\t}\n")),
		rule(10, "a holder that repeats its attempt, and fails, gives back only votes that this attempt has cast",
			edit(attemptGo, "(s.fresh || !v.mayHold()) }", "(s.fresh || !v.mayHold() || without(210)) }")),
		rule(11, "a young node does not say that a token has no lease",
			edit(votingGo, "s.young, s.answered = time.Now().Add(wait), false\n", "s.young, s.answered = time.Now().Add(wait), false\n\t\ts.lacked = s.lacked || e.kind != confirmed && (e.fresh() || !b.Acquired) && without(211)\n\t\ts.answered = without(223)\n")),
		rule(12, "the vote of a young node does not count",
			edit(votingGo, "if wait := v.l.young(b.Age); wait > 0 {", "if wait := v.l.young(b.Age); wait > 0 && !(e.kind != confirmed && without(212) || e.kind == confirmed && without(213)) {")),
		rule(13, "nor does its answer to a confirmation or a renewal",
			edit(renewGo, "if wait := r.l.young(b.Age); wait > 0 {", "if wait := r.l.young(b.Age); wait > 0 && !without(213) {")),
		rule(14, "a node that lacks a lease is asked for its vote only after Q have renewed it",
			edit(renewGo, "\t\t\tb := &ballots[k]\n", `			b := &ballots[k]
			if without(214) && b.Err == nil && !b.Acquired {
				ctx, cancel := context.WithTimeout(ctx, limit)
				again, err := r.l.nodes[node].vote(ctx, batch[k].Key, batch[k].Token, batch[k].TTL, r.l.floor())
				cancel()
				b.Acquired = again.Acquired && err == nil
			}
`)),
		schedules(215, "a confirmation dates a vote only while that vote is in date", order, base(0, cut, cut).on(majority).again().every(350*time.Millisecond).after(aVoteIsCastAgain...),
			edit(votingGo, "\t\tif !b.Acquired || !v.inDate(s) {\n", `		if without(217) {
			s.fence = max(s.fence, b.Fence)
		}
		if without(215) && b.Acquired {
			s.granted, s.since = true, e.sent
		}
		if !b.Acquired || !v.inDate(s) {
`)),
		rule(16, "the fence counts when Q counters have reached it",
			edit(votingGo, "\t\tif a, ok := v.dated(fence, func(s *seat) bool { return v.counts(s) && s.fence >= fence }); ok {\n", `		if without(219) {
			if v.fixed == 0 {
				v.fixed = fence
			}
			fence = v.fixed
		}
		raised := v.number(func(s *seat) bool { return s.fence >= fence }) >= v.l.quorum
		if a, ok := v.dated(fence, func(s *seat) bool {
			return v.counts(s) && (s.fence >= fence || without(216) || raised && without(217))
		}); ok {
`)),
		schedules(217, "a counter is raised only where the token holds the key", order, base(0, cut).on(majority).apart().after(votesAreRaised...),
			edit(votingGo, "v.counts(s) && s.fence < fence && !s.flying && s.err == nil {", "(v.counts(s) || s.answered && without(217)) && s.fence < fence && !s.flying && s.err == nil {"),
			edit(lua+"confirm.lua", "if call('GET', KEYS[1]) == ARGV[1] and fence >", "if fence >")),
		rule(18, "the Q votes are in date when they decide",
			edit(votingGo, "return s.young.IsZero() && v.inDate(s) }", "return s.young.IsZero() && (v.inDate(s) || s.granted && without(218)) }"),
			edit(votingGo, "\t\tif s := &v.seats[i]; counts(s) {\n", `		if s := &v.seats[i]; counts(s) && !v.inDate(s) && without(218) {
			dates = append(dates, time.Now())
		} else if counts(s) {
`),
			edit(queuedGo, "if s.granted && !w.inDate(s) {", "if s.granted && !w.inDate(s) && !without(218) {")),
		rule(19, "the fence is chosen again when an answer has a larger one",
			edit(votingGo, "type voting struct {\n", "type voting struct {\n\tfixed int64\n")),
		systems(220, "redlock: a waiter that is cut off keeps its votes", majority, 30,
			edit(queuedGo, "\t\t\t\tw.giveTo(\"\", false)\n", "\t\t\t\tif !without(220) {\n\t\t\t\t\tw.giveTo(\"\", false)\n\t\t\t\t}\n")),
	}
}

// How histories of majorities begin.
var (
	aVoteIsCastAgain = slices.Concat(
		[]string{
			"B begins", "0: request: vote B1", "0: reply: vote B1", "1: request: vote B1", "1: reply: vote B1", "2: request: vote B1", "2: reply: vote B1",
			"A begins", "0: request: vote A1", "0: reply: vote A1", "1: request: vote A1", "1: reply: vote A1", "2: request: vote A1", "2: reply: vote A1",
			"fails: 0: request: vote A2", "B releases", "0: request: pass B1", "0: request: vote A2", "0: reply: vote A2", // the first may still arrive
			"1: request: pass B1", "2: request: pass B1",
		},
		slices.Repeat([]string{"time passes"}, 6),
		[]string{
			"fails and is lost: 1: request: vote A2", "0: reply: pass B1", "1: reply: pass B1", "2: reply: pass B1", "1: request: vote A2", "1: reply: vote A2",
			"time passes", "time passes", "time passes",
			"B begins", "0: request: vote B2", "0: reply: vote B2", "2: request: vote B2", "2: reply: vote B2", "1: request: vote B2", "1: reply: vote B2",
			"B releases", "0: request: pass B2", "0: request: vote A2", "0: request: confirm A2", "0: reply: confirm A2",
		},
	)
	aVoteIsOnItsWayBack = []string{ // A gives its vote to B, and gets another
		"A begins", "1: request: vote A1", "2: request: vote A1", "1: reply: vote A1", "B begins", "0: request: vote B1", "0: reply: vote B1",
		"0: request: vote A1", "0: reply: vote A1", "time passes",
		"1: request: pass A1", "1: request: vote B1", "1: reply: vote B1", "time passes", "0: request: confirm B1", "0: reply: confirm B1", "2: reply: vote A1",
	}
	votesAreRaised = []string{ // A raises the counter where B has got a vote
		"B begins", "2: request: vote B1", "2: reply: vote B1",
		"A begins", "2: request: vote A1", "2: reply: vote A1", "0: request: vote A1", "0: reply: vote A1", "1: request: vote A1", "1: reply: vote A1",
		"2: request: confirm A1", "2: reply: confirm A1", "fails and is lost: 0: request: confirm A1", "A releases",
		"0: request: pass A1", "0: reply: pass A1", "1: request: pass A1", "1: reply: pass A1", "0: request: vote B1", "0: reply: vote B1", "time passes",
		"2: request: confirm B1", "2: reply: confirm B1",
	}
)
