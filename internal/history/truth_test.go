package history

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

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
