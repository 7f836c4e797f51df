package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The histories below are written by hand: a call of one key at from, in
// milliseconds, that returned at to. Leases last for 100 ms, and may expire as
// much as 50 ms late.
const (
	checkTTL  = 100 * time.Millisecond
	checkLate = 50 * time.Millisecond
)

func alwaysLate(time.Duration) time.Duration { return checkLate }

var errNoReply = errors.New("no reply")

func called(from, to int, a action, token string) *op {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	return &op{action: a, key: "k", token: token, ttl: checkTTL, call: 10 * from, back: 10*to + 5, called: ms(from), returned: ms(to)}
}

func got(from, to int, a action, token string, fence int64) *op {
	o := called(from, to, a, token)
	o.outcome, o.fence, o.since = granted, fence, o.called
	return o
}

// dated is o with the instant, in milliseconds, from which the store counts it.
func dated(o *op, since int) *op {
	o.since = time.Duration(since) * time.Millisecond
	return o
}

func gets(from, to int, token string, fence int64) *op { return got(from, to, doTry, token, fence) }

func isRefused(from, to int, token, holder string) *op {
	o := called(from, to, doTry, token)
	o.outcome, o.holder = refused, holder
	return o
}

func held(o *op, yes bool) *op {
	o.outcome = wasFree
	if yes {
		o.outcome = wasHeld
	}
	return o
}

func renewed(from, to int, token string, yes bool) *op {
	return held(called(from, to, doRenew, token), yes)
}

func gone(from, to int, token string, yes bool) *op {
	return held(called(from, to, doRelease, token), yes)
}

func looked(from, to int, holder string) *op {
	o := held(called(from, to, doInspect, ""), holder != "")
	o.holder = holder
	return o
}

func wiped(from, to int) *op {
	o := called(from, to, doWipe, "")
	o.outcome = finished
	return o
}

// noReply is a call whose outcome is not known.
func noReply(from, to int, a action, token string) *op {
	o := called(from, to, a, token)
	o.err = errNoReply
	return o
}

// open is a call that has not returned.
func open(from int, a action, token string) *op {
	o := called(from, from, a, token)
	o.back, o.returned = never, 0
	return o
}

func ordered(ops []*op) []*op {
	slices.SortStableFunc(ops, func(a, b *op) int { return cmp.Compare(a.call, b.call) })
	return ops
}

type scripted struct {
	name string
	ops  []*op
	core int // how many ops the offence has: those in conflict, and the grants of their tokens
}

var wrongHistories = []scripted{
	{"two hold at once", []*op{gets(0, 1, "a", 8), gets(50, 51, "b", 16)}, 2},
	{"two hold at once, among many", []*op{gets(0, 1, "a", 8), isRefused(2, 3, "b", "a"), gone(4, 5, "x", false), gets(6, 7, "b", 16),
		isRefused(8, 9, "c", "b"), looked(10, 11, "b"), renewed(12, 13, "b", true), gets(14, 15, "d", 24), gone(16, 17, "d", true)}, 2},
	{"a fence falls", []*op{gets(0, 1, "a", 16), gone(2, 3, "a", true), gets(4, 5, "b", 8)}, 2},
	{"a fence repeats", []*op{gets(0, 1, "a", 8), gone(2, 3, "a", true), gets(4, 5, "b", 8)}, 2},
	{"fences without room", []*op{gets(0, 1, "a", 8), gone(2, 3, "a", true), gets(4, 5, "b", 15)}, 2},
	{"a fence vanishes", []*op{gets(0, 1, "a", 8), gone(2, 3, "a", true), gets(4, 5, "b", 0)}, 2},
	{"the same token keeps its fence", []*op{gets(0, 1, "a", 8), gets(2, 3, "a", 8)}, 2},
	{"a fence falls after data loss", []*op{gets(0, 1, "a", 16), wiped(2, 3), gets(4, 5, "b", 8)}, 2},
	{"renewal says not held", []*op{gets(0, 1, "a", 8), renewed(50, 51, "a", false)}, 2},
	{"release says not held", []*op{gets(0, 1, "a", 8), gone(50, 51, "a", false)}, 2},
	{"inspect says not held", []*op{gets(0, 1, "a", 8), looked(50, 51, "")}, 2},
	{"renewal is forgotten", []*op{gets(0, 1, "a", 8), renewed(80, 81, "a", true), gets(120, 121, "b", 16)}, 3},
	{"held after release", []*op{gets(0, 1, "a", 8), gone(2, 3, "a", true), isRefused(4, 5, "b", "a")}, 3},
	{"held by an unknown token after release", []*op{gets(0, 1, "a", 8), gone(2, 3, "a", true), isRefused(4, 5, "b", "")}, 3},
	{"held by one who never was granted", []*op{isRefused(4, 5, "b", "x")}, 1},
	{"held by nobody", []*op{isRefused(4, 5, "b", "")}, 1},
	{"held by another", []*op{gets(0, 1, "a", 8), looked(2, 3, "b")}, 1},
	{"held long after expiry", []*op{gets(0, 1, "a", 8), isRefused(152, 153, "b", "a")}, 2},
	{"held after a wipe", []*op{gets(0, 1, "a", 8), wiped(2, 3), isRefused(4, 5, "b", "a")}, 3},
	{"its own token is refused", []*op{gets(0, 1, "a", 8), isRefused(4, 5, "a", "a")}, 2},
	{"renewal by one who never was granted", []*op{renewed(0, 1, "a", true)}, 1},
	{"renewal after release", []*op{gets(0, 1, "a", 8), gone(2, 3, "a", true), renewed(4, 5, "a", true)}, 3},
	{"renewal revives", []*op{gets(0, 1, "a", 8), gets(110, 111, "b", 16), gone(112, 113, "b", true), renewed(114, 115, "a", true)}, 4},
	{"renewal of a lease that is taken over", []*op{gets(0, 1, "a", 8), gets(110, 111, "b", 16), renewed(112, 113, "a", true)}, 3},
	{"renewal long after expiry", []*op{gets(0, 1, "a", 8), renewed(160, 161, "a", true)}, 2},
	{"released twice", []*op{gets(0, 1, "a", 8), gone(2, 3, "a", true), gone(4, 5, "a", true)}, 3},
	{"released by a stranger", []*op{gets(0, 1, "a", 8), gone(2, 3, "b", true)}, 1},
	{"a release without reply comes too late to explain it", []*op{gets(0, 1, "a", 8), gets(50, 51, "b", 16), noReply(52, 53, doRelease, "a")}, 2},
	{"a grant that is expired for one and alive for another", []*op{gets(0, 1, "a", 8), renewed(120, 121, "a", false), isRefused(122, 123, "b", "a")}, 3},
	{"granted just before a lease may end", []*op{gets(0, 10, "a", 8), gets(94, 95, "b", 16)}, 2},
	{"a grant counts from what the store says", []*op{dated(got(0, 80, doWait, "a", 8), 70), gets(164, 165, "b", 16)}, 2},
	{"a waiter is granted while another holds", []*op{gets(0, 1, "a", 8), got(2, 20, doWait, "b", 16)}, 2},
	{"grants in the order of fences, but not of time", []*op{got(0, 30, doWait, "a", 24), gets(31, 32, "a", 16)}, 2},
}

var rightHistories = []scripted{
	{"nothing", nil, 0},
	{"one after the other", []*op{gets(0, 1, "a", 8), isRefused(2, 3, "b", "a"), renewed(4, 5, "a", true), looked(5, 6, "a"), gone(6, 7, "a", true),
		looked(8, 9, ""), gets(10, 11, "b", 16), gone(12, 13, "b", true), gone(14, 15, "b", false)}, 0},
	{"without fences", []*op{gets(0, 1, "a", 0), gone(2, 3, "a", true), gets(4, 5, "b", 0)}, 0},
	{"a handover returns before the release", []*op{gets(0, 1, "a", 8), got(2, 11, doWait, "b", 16), gone(10, 20, "a", true)}, 0},
	{"the first instant at which a lease may end", []*op{gets(0, 10, "a", 8), gets(96, 97, "b", 16)}, 0},
	{"a grant may have been made long before it was told", []*op{got(0, 80, doWait, "a", 8), gets(98, 99, "b", 16)}, 0},
	{"the last instant at which a lease may end", []*op{gets(0, 10, "a", 8), isRefused(150, 151, "b", "a"), looked(155, 156, "a")}, 0},
	{"expired for all at once", []*op{gets(0, 10, "a", 8), isRefused(120, 130, "b", "a"), renewed(120, 130, "a", false), gets(121, 131, "c", 16)}, 0},
	{"a grant whose reply was lost", []*op{noReply(0, 1, doTry, "a"), isRefused(5, 6, "b", "a"), gone(7, 8, "a", true), gets(9, 10, "b", 16)}, 0},
	{"a grant without reply that comes late", []*op{noReply(0, 1, doTry, "a"), gets(10, 11, "b", 8), gone(12, 13, "b", true), isRefused(20, 21, "c", "a"), gets(130, 131, "c", 24)}, 0},
	{"a grant without reply, and a store that does not tell holders", []*op{noReply(0, 1, doTry, "a"), isRefused(5, 6, "b", ""), looked(7, 8, "")}, 0},
	{"an attempt that does not return", []*op{open(0, doTry, "a"), isRefused(5, 6, "b", "a")}, 0},
	{"a release without reply that comes late", []*op{gets(0, 1, "a", 8), noReply(5, 6, doRelease, "a"), isRefused(10, 11, "b", "a"), gets(12, 13, "b", 16), gone(14, 15, "a", false)}, 0},
	{"a release without reply that never comes", []*op{gets(0, 1, "a", 8), noReply(5, 6, doRelease, "a"), isRefused(99, 100, "b", "a")}, 0},
	{"a renewal without reply", []*op{gets(0, 1, "a", 8), noReply(50, 51, doRenew, "a"), isRefused(180, 181, "b", "a")}, 0},
	{"a renewal without reply that never came", []*op{gets(0, 1, "a", 8), noReply(50, 51, doRenew, "a"), gets(101, 102, "b", 16)}, 0},
	{"data loss", []*op{gets(0, 1, "a", 8), wiped(2, 5), gets(4, 6, "b", 16), renewed(7, 8, "a", false)}, 0},
	{"a grant just before data loss", []*op{gets(0, 10, "a", 8), wiped(2, 5), gets(11, 12, "b", 16)}, 0},
	{"a waiter is granted, expires unseen, and is granted again", []*op{got(0, 300, doWait, "a", 24), isRefused(5, 6, "b", "a"), gets(110, 111, "c", 16), gone(112, 113, "c", true)}, 0},
	{"a wait without reply is granted twice", []*op{noReply(0, 10, doWait, "a"), isRefused(5, 6, "b", "a"), gets(110, 111, "c", 16), gone(112, 113, "c", true), isRefused(114, 115, "d", "a")}, 0},
	{"the same token again", []*op{gets(0, 1, "a", 8), gets(50, 51, "a", 16), isRefused(120, 121, "b", "a"), gets(148, 149, "b", 24)}, 0},
	{"many calls at the same instant", []*op{gets(0, 9, "a", 16), gets(0, 9, "b", 8), gone(0, 9, "b", true), isRefused(0, 9, "c", "b"), isRefused(0, 9, "d", "a"), looked(0, 9, ""), gone(0, 9, "a", true)}, 0},
}

func TestRightHistories(t *testing.T) {
	for _, h := range rightHistories {
		o, err := impossible("k", ordered(h.ops), alwaysLate)
		assert.NoError(t, err, h.name)
		assert.Nil(t, o, "%s: %v", h.name, o)
	}
}

func TestWrongHistories(t *testing.T) {
	for _, h := range wrongHistories {
		t.Run(h.name, func(t *testing.T) {
			o, err := impossible("k", ordered(h.ops), alwaysLate)
			require.NoError(t, err)
			require.NotNil(t, o, "not found")
			assert.Len(t, o.ops, h.core, "not the shortest piece: %v", o)
			assert.Contains(t, o.String(), "is impossible where")
			for _, p := range o.ops {
				assert.Contains(t, o.String(), p.String())
			}
		})
	}
}

// The order of calls and returns counts even where the clock stands still.
func TestOrderWithoutTime(t *testing.T) {
	a, free, b := gets(1, 1, "a", 8), gone(1, 1, "a", true), gets(1, 1, "b", 16)
	for i, o := range []*op{a, free, b} {
		o.call, o.back = 2*i, 2*i+1
	}
	o, _ := impossible("k", []*op{a, free, b}, alwaysLate)
	assert.Nil(t, o)
	b.call, b.back, free.call, free.back = 2, 3, 4, 5
	o, _ = impossible("k", []*op{a, b, free}, alwaysLate)
	assert.NotNil(t, o)
}

func TestTooEntangledIsNotJudged(t *testing.T) {
	var ops []*op
	for i := range 65 {
		ops = append(ops, gets(0, 1, fmt.Sprint(i), 8))
	}
	_, err := impossible("k", ops, alwaysLate)
	assert.ErrorIs(t, err, errMaze)
}

// A truth is a lock that takes ops at the instants at which they take effect, and
// answers them.
type truth struct {
	rng    *rand.Rand
	holder string
	fence  int64
	until  int // ms
}

// apply has o take effect at now.
func (l *truth) apply(o *op, now int) {
	if now >= l.until {
		l.holder = ""
	}
	extend := func() {
		lasts := int(o.ttl/time.Millisecond) + l.rng.IntN(int(checkLate/time.Millisecond))
		l.until = max(l.until, now+lasts)
	}
	switch {
	case o.action == doWipe:
		o.outcome, l.holder = finished, ""
	case o.action.takes() && l.holder != "" && l.holder != o.token:
		o.outcome, o.holder = refused, l.holder
	case o.action.takes():
		if l.holder == "" {
			l.until = 0
		}
		l.holder, l.fence = o.token, l.fence+numbers
		o.outcome, o.fence, o.since = granted, l.fence, o.called
		extend()
	case o.action == doInspect:
		held(o, l.holder != "").holder = l.holder
	default:
		held(o, l.holder == o.token)
		if l.holder == o.token && o.action == doRelease {
			l.holder = ""
		} else if l.holder == o.token {
			extend()
		}
	}
}

// simulate has clients make random calls, one after the other each. Some get no
// reply, and theirs may take effect late.
func simulate(seed uint64, clients, rounds, ttl int, unknowns bool) []*op {
	rng := rand.New(rand.NewPCG(seed, 0))
	type effect struct {
		o  *op
		at int
	}
	var effects []effect
	var ops []*op
	for c := range clients {
		now := rng.IntN(20)
		for i := range rounds {
			token := fmt.Sprint("t", c, "-", rng.IntN(i/4+1))
			o := called(now, now+rng.IntN(15), [...]action{doTry, doTry, doTry, doRenew, doRelease, doRelease, doInspect, doWipe}[rng.IntN(8-i%2)], token)
			o.ttl = time.Duration(ttl) * time.Millisecond
			o.call, o.back = 1000*o.call+rng.IntN(1000), 1000*o.back+5000+rng.IntN(1000)
			at := now
			if to := int(o.returned / time.Millisecond); to > now {
				at += rng.IntN(to - now + 1)
			}
			if unknowns && rng.IntN(8) == 0 {
				o.err = errNoReply
				at += rng.IntN(60)
			}
			effects, ops = append(effects, effect{o, at}), append(ops, o)
			now = int(o.returned/time.Millisecond) + 1 + rng.IntN(10)
		}
	}
	slices.SortStableFunc(effects, func(a, b effect) int { return cmp.Compare(a.at, b.at) })
	l := &truth{rng: rng}
	for _, e := range effects {
		l.apply(e.o, e.at)
		if e.o.err != nil {
			e.o.outcome, e.o.fence, e.o.holder = unknown, 0, ""
			if e.o.action == doWipe {
				e.o.outcome = finished // its end is always known
				e.o.returned = max(e.o.returned, time.Duration(e.at)*time.Millisecond)
				e.o.back = max(e.o.back, 10_000*e.at+9999)
			}
		}
	}
	return ordered(ops)
}

// What a lock has really answered is never called wrong, however its calls
// overlap, expire, and get lost.
func TestJudgeAcceptsTheTruth(t *testing.T) {
	for seed := range uint64(1500) {
		ops := simulate(seed, 4, 25, 60, true)
		o, err := impossible("k", ops, alwaysLate)
		require.NoError(t, err)
		require.Nil(t, o, "seed %d: %v", seed, o)
	}
}

// spoil changes the answer of one op.
func spoil(rng *rand.Rand, ops []*op) *op {
	o := ops[rng.IntN(len(ops))]
	switch o.outcome {
	case granted:
		o.fence -= int64(8 * (1 + rng.IntN(3)))
	case refused:
		o.outcome, o.fence, o.since = granted, 1<<20, o.called
	case wasHeld:
		o.outcome, o.holder = wasFree, ""
	case wasFree:
		o.outcome = wasHeld
	}
	return o
}

// Where leases do not expire and no reply is lost, the judge agrees with
// porcupine, which has nothing to do with it but the same idea.
func TestJudgeAgreesWithPorcupine(t *testing.T) {
	verdicts := map[bool]int{}
	for seed := range uint64(1500) {
		ops := simulate(seed, 4, 12, 1_000_000, false)
		if seed%4 > 0 {
			spoil(rand.New(rand.NewPCG(seed, 1)), ops)
		}
		o, err := impossible("k", ops, alwaysLate)
		require.NoError(t, err)
		want := porcupine.CheckOperations(mutexModel, operations(ops))
		require.Equal(t, want, o == nil, "seed %d: porcupine says %v, the judge: %v", seed, want, o)
		verdicts[want]++
	}
	assert.Greater(t, verdicts[true], 300, "right histories")
	assert.Greater(t, verdicts[false], 300, "wrong histories")
}

func operations(ops []*op) []porcupine.Operation {
	var all []porcupine.Operation
	for _, o := range ops {
		all = append(all, porcupine.Operation{Input: o, Call: int64(o.call), Return: int64(o.back), Output: o})
	}
	return all
}

type mutexState struct {
	holder string
	fence  int64
}

// mutexModel is a fenced mutex without expiry.
var mutexModel = porcupine.Model{
	Init: func() any { return mutexState{} },
	Step: func(s, input, _ any) (bool, any) {
		l, o := s.(mutexState), input.(*op)
		mine := l.holder == o.token
		switch {
		case o.action == doWipe:
			return true, mutexState{"", l.fence}
		case o.outcome == granted:
			return (mine || l.holder == "") && (l.fence == 0 || o.fence >= l.fence+numbers), mutexState{o.token, o.fence}
		case o.outcome == refused:
			return !mine && l.holder != "" && l.holder == o.holder, l
		case o.action == doInspect:
			return (o.outcome == wasHeld) == (l.holder != "") && (o.holder == "" || o.holder == l.holder), l
		case o.outcome == wasHeld && o.action == doRelease:
			return mine, mutexState{"", l.fence}
		}
		return mine == (o.outcome == wasHeld), l
	},
}
