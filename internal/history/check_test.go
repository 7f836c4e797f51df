package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The histories below are written by hand: a call of one key at from, in milliseconds, that returned at to. Leases last for
// 100 ms, and may expire as much as 50 ms late.
const (
	checkTTL  = 100 * time.Millisecond
	checkLate = 50 * time.Millisecond
)

var testModel = Model{FenceStep: 8, Late: func(time.Duration) time.Duration { return checkLate }}

var errNoReply = errors.New("no reply")

func called(from, to int, m Method, token string) *Operation {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	return &Operation{Method: m, Key: "k", Token: token, TTL: checkTTL, Begin: 10 * from, End: 10*to + 5, Called: ms(from), Returned: ms(to)}
}

func got(from, to int, m Method, token string, fence int64) *Operation {
	o := called(from, to, m, token)
	o.Outcome, o.Fence, o.Since = Granted, fence, o.Called
	return o
}

// dated is o with the instant, in milliseconds, from which the store counts it.
func dated(o *Operation, since int) *Operation {
	o.Since = time.Duration(since) * time.Millisecond
	return o
}

func gets(from, to int, token string, fence int64) *Operation {
	return got(from, to, TryAcquire, token, fence)
}

func isRefused(from, to int, token, holder string) *Operation {
	o := called(from, to, TryAcquire, token)
	o.Outcome, o.Holder = Refused, holder
	return o
}

func held(o *Operation, yes bool) *Operation {
	o.Outcome = NotHeld
	if yes {
		o.Outcome = Held
	}
	return o
}

func renewed(from, to int, token string, yes bool) *Operation {
	return held(called(from, to, Renew, token), yes)
}

func gone(from, to int, token string, yes bool) *Operation {
	return held(called(from, to, Release, token), yes)
}

func looked(from, to int, holder string) *Operation {
	o := held(called(from, to, Inspect, ""), holder != "")
	o.Holder = holder
	return o
}

func wiped(from, to int) *Operation {
	o := called(from, to, Wipe, "")
	o.Outcome = Happened
	return o
}

// noReply is a call whose outcome is not known.
func noReply(from, to int, m Method, token string) *Operation {
	o := called(from, to, m, token)
	o.Err = errNoReply
	return o
}

// open is a call that has not returned.
func open(from int, m Method, token string) *Operation {
	o := called(from, from, m, token)
	o.End, o.Returned = Never, 0
	return o
}

func ordered(operations []*Operation) []*Operation {
	slices.SortStableFunc(operations, func(a, b *Operation) int { return cmp.Compare(a.Begin, b.Begin) })
	return operations
}

type scripted struct {
	name       string
	operations []*Operation
	core       int // how many operations the violation has: those in conflict, and the grants of their tokens
}

var wrongHistories = []scripted{
	{"two hold at once", []*Operation{gets(0, 1, "a", 8), gets(50, 51, "b", 16)}, 2},
	{"two hold at once, among many", []*Operation{gets(0, 1, "a", 8), isRefused(2, 3, "b", "a"), gone(4, 5, "x", false), gets(6, 7, "b", 16),
		isRefused(8, 9, "c", "b"), looked(10, 11, "b"), renewed(12, 13, "b", true), gets(14, 15, "d", 24), gone(16, 17, "d", true)}, 2},
	{"a fence falls", []*Operation{gets(0, 1, "a", 16), gone(2, 3, "a", true), gets(4, 5, "b", 8)}, 2},
	{"a fence repeats", []*Operation{gets(0, 1, "a", 8), gone(2, 3, "a", true), gets(4, 5, "b", 8)}, 2},
	{"fences without room", []*Operation{gets(0, 1, "a", 8), gone(2, 3, "a", true), gets(4, 5, "b", 15)}, 2},
	{"a fence vanishes", []*Operation{gets(0, 1, "a", 8), gone(2, 3, "a", true), gets(4, 5, "b", 0)}, 2},
	{"the same token keeps its fence", []*Operation{gets(0, 1, "a", 8), gets(2, 3, "a", 8)}, 2},
	{"a fence falls after data loss", []*Operation{gets(0, 1, "a", 16), wiped(2, 3), gets(4, 5, "b", 8)}, 2},
	{"renewal says not held", []*Operation{gets(0, 1, "a", 8), renewed(50, 51, "a", false)}, 2},
	{"release says not held", []*Operation{gets(0, 1, "a", 8), gone(50, 51, "a", false)}, 2},
	{"inspect says not held", []*Operation{gets(0, 1, "a", 8), looked(50, 51, "")}, 2},
	{"renewal is forgotten", []*Operation{gets(0, 1, "a", 8), renewed(80, 81, "a", true), gets(120, 121, "b", 16)}, 3},
	{"held after release", []*Operation{gets(0, 1, "a", 8), gone(2, 3, "a", true), isRefused(4, 5, "b", "a")}, 3},
	{"held by an unknown token after release", []*Operation{gets(0, 1, "a", 8), gone(2, 3, "a", true), isRefused(4, 5, "b", "")}, 3},
	{"held by one who never was granted", []*Operation{isRefused(4, 5, "b", "x")}, 1},
	{"held by nobody", []*Operation{isRefused(4, 5, "b", "")}, 1},
	{"held by another", []*Operation{gets(0, 1, "a", 8), looked(2, 3, "b")}, 1},
	{"held long after expiry", []*Operation{gets(0, 1, "a", 8), isRefused(152, 153, "b", "a")}, 2},
	{"held after a wipe", []*Operation{gets(0, 1, "a", 8), wiped(2, 3), isRefused(4, 5, "b", "a")}, 3},
	{"its own token is refused", []*Operation{gets(0, 1, "a", 8), isRefused(4, 5, "a", "a")}, 2},
	{"renewal by one who never was granted", []*Operation{renewed(0, 1, "a", true)}, 1},
	{"what comes later is not to blame", []*Operation{renewed(0, 4, "x", true), gets(1, 2, "a", 8), gets(3, 9, "b", 16), gone(5, 6, "a", true)}, 1},
	{"renewal after release", []*Operation{gets(0, 1, "a", 8), gone(2, 3, "a", true), renewed(4, 5, "a", true)}, 3},
	{"renewal revives", []*Operation{gets(0, 1, "a", 8), gets(110, 111, "b", 16), gone(112, 113, "b", true), renewed(114, 115, "a", true)}, 4},
	{"renewal of a lease that is taken over", []*Operation{gets(0, 1, "a", 8), gets(110, 111, "b", 16), renewed(112, 113, "a", true)}, 3},
	{"renewal long after expiry", []*Operation{gets(0, 1, "a", 8), renewed(160, 161, "a", true)}, 2},
	{"released twice", []*Operation{gets(0, 1, "a", 8), gone(2, 3, "a", true), gone(4, 5, "a", true)}, 3},
	{"released by a stranger", []*Operation{gets(0, 1, "a", 8), gone(2, 3, "b", true)}, 1},
	{"a release without reply comes too late to explain it", []*Operation{gets(0, 1, "a", 8), gets(50, 51, "b", 16), noReply(52, 53, Release, "a")}, 2},
	{"a release without reply of another explains nothing", []*Operation{gets(0, 1, "a", 8), noReply(2, 3, Release, "b"), gets(50, 51, "b", 16)}, 2},
	{"an attempt without reply does not take what is held", []*Operation{gets(0, 1, "a", 8), noReply(2, 3, TryAcquire, "b"), isRefused(5, 6, "c", "b")}, 2},
	{"a grant that is expired for one and alive for another", []*Operation{gets(0, 1, "a", 8), renewed(120, 121, "a", false), isRefused(122, 123, "b", "a")}, 3},
	{"granted just before a lease may end", []*Operation{gets(0, 10, "a", 8), gets(94, 95, "b", 16)}, 2},
	{"a grant counts from what the store says", []*Operation{dated(got(0, 80, Acquire, "a", 8), 70), gets(164, 165, "b", 16)}, 2},
	{"a waiter is granted while another holds", []*Operation{gets(0, 1, "a", 8), got(2, 20, Acquire, "b", 16)}, 2},
	{"grants in the order of fences, but not of time", []*Operation{got(0, 30, Acquire, "a", 24), gets(31, 32, "a", 16)}, 2},
}

var rightHistories = []scripted{
	{"nothing", nil, 0},
	{"one after the other", []*Operation{gets(0, 1, "a", 8), isRefused(2, 3, "b", "a"), renewed(4, 5, "a", true), looked(5, 6, "a"), gone(6, 7, "a", true),
		looked(8, 9, ""), gets(10, 11, "b", 16), gone(12, 13, "b", true), gone(14, 15, "b", false)}, 0},
	{"without fences", []*Operation{gets(0, 1, "a", 0), gone(2, 3, "a", true), gets(4, 5, "b", 0)}, 0},
	{"a handover returns before the release", []*Operation{gets(0, 1, "a", 8), got(2, 11, Acquire, "b", 16), gone(10, 20, "a", true)}, 0},
	{"the first instant at which a lease may end", []*Operation{gets(0, 10, "a", 8), gets(96, 97, "b", 16)}, 0},
	{"a grant may have been made long before it was told", []*Operation{got(0, 80, Acquire, "a", 8), gets(98, 99, "b", 16)}, 0},
	{"the last instant at which a lease may end", []*Operation{gets(0, 10, "a", 8), isRefused(150, 151, "b", "a"), looked(155, 156, "a")}, 0},
	{"expired for all at once", []*Operation{gets(0, 10, "a", 8), isRefused(120, 130, "b", "a"), renewed(120, 130, "a", false), gets(121, 131, "c", 16)}, 0},
	{"a grant whose reply was lost", []*Operation{noReply(0, 1, TryAcquire, "a"), isRefused(5, 6, "b", "a"), gone(7, 8, "a", true), gets(9, 10, "b", 16)}, 0},
	{"a grant without reply that comes late", []*Operation{noReply(0, 1, TryAcquire, "a"), gets(10, 11, "b", 8), gone(12, 13, "b", true), isRefused(20, 21, "c", "a"), gets(130, 131, "c", 24)}, 0},
	{"a grant without reply, and a store that does not tell holders", []*Operation{noReply(0, 1, TryAcquire, "a"), isRefused(5, 6, "b", ""), looked(7, 8, "")}, 0},
	{"an attempt that does not return", []*Operation{open(0, TryAcquire, "a"), isRefused(5, 6, "b", "a")}, 0},
	{"a release without reply that comes late", []*Operation{gets(0, 1, "a", 8), noReply(5, 6, Release, "a"), isRefused(10, 11, "b", "a"), gets(12, 13, "b", 16), gone(14, 15, "a", false)}, 0},
	{"a release without reply that never comes", []*Operation{gets(0, 1, "a", 8), noReply(5, 6, Release, "a"), isRefused(99, 100, "b", "a")}, 0},
	{"a renewal without reply", []*Operation{gets(0, 1, "a", 8), noReply(50, 51, Renew, "a"), isRefused(180, 181, "b", "a")}, 0},
	{"a renewal without reply that never came", []*Operation{gets(0, 1, "a", 8), noReply(50, 51, Renew, "a"), gets(101, 102, "b", 16)}, 0},
	{"data loss", []*Operation{gets(0, 1, "a", 8), wiped(2, 5), gets(4, 6, "b", 16), renewed(7, 8, "a", false)}, 0},
	{"a grant just before data loss", []*Operation{gets(0, 10, "a", 8), wiped(2, 5), gets(11, 12, "b", 16)}, 0},
	{"a waiter is granted, expires unseen, and is granted again", []*Operation{got(0, 300, Acquire, "a", 24), isRefused(5, 6, "b", "a"), gets(110, 111, "c", 16), gone(112, 113, "c", true)}, 0},
	{"a wait without reply is granted twice", []*Operation{noReply(0, 10, Acquire, "a"), isRefused(5, 6, "b", "a"), gets(110, 111, "c", 16), gone(112, 113, "c", true), isRefused(114, 115, "d", "a")}, 0},
	{"the same token again", []*Operation{gets(0, 1, "a", 8), gets(50, 51, "a", 16), isRefused(120, 121, "b", "a"), gets(148, 149, "b", 24)}, 0},
	{"many calls at the same instant", []*Operation{gets(0, 9, "a", 16), gets(0, 9, "b", 8), gone(0, 9, "b", true), isRefused(0, 9, "c", "b"), isRefused(0, 9, "d", "a"), looked(0, 9, ""), gone(0, 9, "a", true)}, 0},
}

func TestRightHistories(t *testing.T) {
	for _, h := range rightHistories {
		v, err := testModel.checkAnswers(ordered(h.operations))
		assert.NoError(t, err, h.name)
		assert.Nil(t, v, "%s: %v", h.name, v)
	}
}

func TestWrongHistories(t *testing.T) {
	for _, h := range wrongHistories {
		t.Run(h.name, func(t *testing.T) {
			v, err := testModel.checkAnswers(ordered(h.operations))
			require.NoError(t, err)
			require.NotNil(t, v, "not found")
			assert.Len(t, v.Operations, h.core, "not the shortest piece: %v", v)
			assert.Contains(t, v.String(), "is impossible where")
			for _, o := range v.Operations {
				assert.Contains(t, v.String(), o.String())
			}
		})
	}
}

// Where contenders may be named, an answer may name one while it tries, and only then.
func TestContenders(t *testing.T) {
	const refusedAt = 9
	loses := isRefused(2, refusedAt, "x", "a")
	for _, named := range []*Operation{isRefused(3, 4, "b", "x"), looked(3, 4, "x"), looked(1, 3, "x"), looked(8, 11, "x")} {
		all := ordered([]*Operation{gets(0, 5, "a", 8), named, loses})
		v, _ := testModel.checkAnswers(all)
		assert.NotNil(t, v, "%v", named)
		lenient := testModel
		lenient.Contenders = true
		v, _ = lenient.checkAnswers(all)
		assert.Nil(t, v, "%v", named)
		early, late := looked(0, 1, "x"), looked(refusedAt+1, refusedAt+2, "x")
		for _, wrong := range []*Operation{early, late} {
			v, _ = lenient.checkAnswers(ordered([]*Operation{gets(0, 5, "a", 8), wrong, loses}))
			assert.NotNil(t, v, "%v", wrong)
		}
	}
}

// The order of calls and returns counts even where the clock stands still.
func TestOrderWithoutTime(t *testing.T) {
	a, free, b := gets(1, 1, "a", 8), gone(1, 1, "a", true), gets(1, 1, "b", 16)
	for i, o := range []*Operation{a, free, b} {
		o.Begin, o.End = 2*i, 2*i+1
	}
	v, _ := testModel.checkAnswers([]*Operation{a, free, b})
	assert.Nil(t, v)
	b.Begin, b.End, free.Begin, free.End = 2, 3, 4, 5
	v, _ = testModel.checkAnswers([]*Operation{a, b, free})
	assert.NotNil(t, v)
}

func TestTooConcurrentIsNotChecked(t *testing.T) {
	var operations []*Operation
	for i := range 65 {
		operations = append(operations, gets(0, 1, fmt.Sprint(i), 8))
	}
	_, err := testModel.checkAnswers(operations)
	assert.ErrorIs(t, err, ErrTooConcurrent)
}
