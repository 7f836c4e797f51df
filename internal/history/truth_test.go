package history

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A truth is a lock that takes operations at the instants at which they take effect, and answers them.
type truth struct {
	rng    *rand.Rand
	holder string
	fence  int64
	until  int // ms
}

// apply has o take effect at now.
func (l *truth) apply(o *Operation, now int) {
	if now >= l.until {
		l.holder = ""
	}
	extend := func() {
		lasts := int(o.TTL/time.Millisecond) + l.rng.IntN(int(checkLate/time.Millisecond))
		l.until = max(l.until, now+lasts)
	}
	switch {
	case o.Method == Wipe:
		o.Outcome, l.holder = Happened, ""
	case o.Method.takes() && l.holder != "" && l.holder != o.Token:
		o.Outcome, o.Holder = Refused, l.holder
	case o.Method.takes():
		if l.holder == "" {
			l.until = 0
		}
		l.holder, l.fence = o.Token, l.fence+testModel.FenceStep
		o.Outcome, o.Fence, o.Since = Granted, l.fence, o.Called
		extend()
	case o.Method == Inspect:
		held(o, l.holder != "").Holder = l.holder
	default:
		held(o, l.holder == o.Token)
		if l.holder == o.Token && o.Method == Release {
			l.holder = ""
		} else if l.holder == o.Token {
			extend()
		}
	}
}

// simulate has clients make random calls, one after the other each. Some get no reply, and theirs may take effect late.
func simulate(seed uint64, clients, rounds, ttl int, unknowns bool) []*Operation {
	rng := rand.New(rand.NewPCG(seed, 0))
	type effect struct {
		o  *Operation
		at int
	}
	var effects []effect
	var operations []*Operation
	for c := range clients {
		now := rng.IntN(20)
		for i := range rounds {
			token := fmt.Sprint("t", c, "-", rng.IntN(i/4+1))
			o := called(now, now+rng.IntN(15), [...]Method{TryAcquire, TryAcquire, TryAcquire, Renew, Release, Release, Inspect, Wipe}[rng.IntN(8-i%2)], token)
			o.TTL = time.Duration(ttl) * time.Millisecond
			o.Begin, o.End = 1000*o.Begin+rng.IntN(1000), 1000*o.End+rng.IntN(1000)
			at := now
			if to := int(o.Returned / time.Millisecond); to > now {
				at += rng.IntN(to - now + 1)
			}
			if unknowns && rng.IntN(8) == 0 {
				o.Err = errNoReply
				at += rng.IntN(60)
			}
			effects, operations = append(effects, effect{o, at}), append(operations, o)
			now = int(o.Returned/time.Millisecond) + 1 + rng.IntN(10)
		}
	}
	slices.SortStableFunc(effects, func(a, b effect) int { return cmp.Compare(a.at, b.at) })
	l := &truth{rng: rng}
	for _, e := range effects {
		l.apply(e.o, e.at)
		if e.o.Err != nil {
			e.o.Outcome, e.o.Fence, e.o.Holder = Unknown, 0, ""
			if e.o.Method == Wipe {
				e.o.Outcome = Happened // its end is always known
				e.o.Returned = max(e.o.Returned, time.Duration(e.at)*time.Millisecond)
				e.o.End = max(e.o.End, 10_000*e.at+9999)
			}
		}
	}
	return ordered(operations)
}

// What a lock has really answered is never a violation, however its calls overlap, expire and get lost.
func TestTruthIsAccepted(t *testing.T) {
	for seed := range uint64(300) {
		operations := simulate(seed, 4, 25, 60, true)
		v, err := testModel.checkAnswers(operations)
		require.NoError(t, err)
		require.Nil(t, v, "seed %d: %v", seed, v)
	}
}

// spoil changes the answer of one op.
func spoil(rng *rand.Rand, operations []*Operation) *Operation {
	o := operations[rng.IntN(len(operations))]
	switch o.Outcome {
	case Granted:
		o.Fence -= int64(8 * (1 + rng.IntN(3)))
	case Refused:
		o.Outcome, o.Fence, o.Since = Granted, 1<<20, o.Called
	case Held:
		o.Outcome, o.Holder = NotHeld, ""
	case NotHeld:
		o.Outcome = Held
	}
	return o
}

// Check agrees with porcupine, an independent implementation of the same search, about histories in which leases expire, and
// about short ones in which replies are lost too: porcupine keeps each operation of unknown outcome pending to the end.
func TestAgreesWithPorcupine(t *testing.T) {
	for _, c := range []struct {
		histories, rounds int
		unknowns          bool
	}{{200, 25, false}, {100, 6, true}} {
		verdicts := map[bool]int{}
		for seed := range uint64(c.histories) {
			operations := simulate(seed, 4, c.rounds, 60, c.unknowns)
			if seed%4 > 0 {
				spoil(rand.New(rand.NewPCG(seed, 1)), operations)
			}
			v, err := testModel.checkAnswers(operations)
			require.NoError(t, err)
			want := porcupine.CheckOperations(mutexModel.ToModel(), forPorcupine(operations))
			require.Equal(t, want, v == nil, "%v seed %d: porcupine says %v, Check: %v", c, seed, want, v)
			verdicts[want]++
		}
		assert.Greater(t, verdicts[true], c.histories/5, "right histories")
		assert.Greater(t, verdicts[false], c.histories/5, "wrong histories")
	}
}

func forPorcupine(operations []*Operation) []porcupine.Operation {
	var all []porcupine.Operation
	for i, o := range operations {
		end := o.End
		if o.Outcome == Unknown {
			end = Never
		}
		all = append(all, porcupine.Operation{ClientId: i, Input: o, Call: int64(o.Begin), Return: int64(end)})
	}
	return all
}

type mutexState struct {
	holder           string
	fence            int64
	now, least, most time.Duration // it is not earlier; the lease may end from least to most
}

// mutexModel is a fenced mutex with expiry. Each step is an operation, perhaps with the expiry of a lease just before.
var mutexModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{mutexState{}} },
	Step: func(s, input, _ any) (all []any) {
		l, o := s.(mutexState), input.(*Operation)
		then := o.Returned
		if o.Outcome == Unknown {
			then = 1 << 60
		}
		l.now = max(l.now, o.Called)
		if l.now <= then {
			all = l.after(o, then)
		}
		if l.holder != "" && max(l.now, l.least) <= then {
			all = append(all, mutexState{fence: l.fence, now: max(l.now, l.least)}.after(o, then)...)
		}
		return all
	},
}

// after returns the states in which the mutex may be after o, until then.
func (l mutexState) after(o *Operation, then time.Duration) []any {
	free := mutexState{fence: l.fence, now: l.now}
	leased := l
	leased.holder, leased.most = o.Token, max(l.most, then+o.TTL+checkLate)
	if o.Outcome != Unknown {
		leased.least = max(l.least, o.Called+o.TTL-Drift(o.TTL))
	}
	alive := l.holder != "" && l.now <= l.most
	mine := alive && l.holder == o.Token
	next := func(possible bool, s mutexState) []any {
		if !possible {
			return nil
		}
		return []any{s}
	}
	switch {
	case o.Method == Wipe:
		return []any{free}
	case o.Outcome == Unknown && o.Method == Release:
		return append(next(mine, free), l)
	case o.Outcome == Unknown:
		return append(next(mine || o.Method.takes() && l.holder == "", leased), l)
	case o.Outcome == Granted:
		leased.fence = o.Fence
		return next((mine || l.holder == "") && (l.fence == 0 || o.Fence >= l.fence+testModel.FenceStep), leased)
	case o.Outcome == Refused:
		return next(alive && !mine && l.holder == o.Holder, l)
	case o.Method == Inspect:
		return next((o.Outcome == Held) == (l.holder != "") && (o.Holder == "" || o.Holder == l.holder), l)
	case o.Outcome == Held && o.Method == Release:
		return next(mine, free)
	case o.Outcome == Held:
		return next(mine, leased)
	}
	return next(l.holder != o.Token, l)
}
