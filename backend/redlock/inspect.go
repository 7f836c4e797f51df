package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
)

// Inspect implements [dlock.Inspector] in one round trip to a majority of the nodes, if a majority
// are Inspectors. The holder is the token that a majority of the nodes names. Waiting is the
// largest number that a majority reaches if the nodes without an answer do.
func (l *Locker) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	if err := l.beginFor(ctx, key, "-", time.Millisecond); err != nil {
		return dlock.Hold{}, err
	}
	defer l.work.Done()
	var hold dlock.Hold
	decided := false
	answers := l.inspectAll(ctx, key, nil, longGrace, func(answers []answer[dlock.Hold]) bool {
		hold, decided = l.majorityOf(answers)
		return decided
	})
	switch {
	case decided:
		return hold, nil
	case ctx.Err() != nil:
		return dlock.Hold{}, ctx.Err()
	}
	return dlock.Hold{}, l.failure(errorsOf(answers, nil), false)
}

// inspect returns a function that asks all nodes who holds the key, but for those that were young when
// they voted.
func (v *voting) inspect() func() []answer[dlock.Hold] {
	young := make([]bool, len(v.seats))
	for i := range v.seats {
		young[i] = time.Now().Before(v.seats[i].young)
	}
	return func() []answer[dlock.Hold] {
		return v.l.inspectAll(v.ctx, v.claim.key, young, shortGrace, v.l.enough)
	}
}

// inspectAll asks all nodes who holds a key, but for those that are young: see poll.
func (l *Locker) inspectAll(ctx context.Context, key string, young []bool, grace time.Duration, done func([]answer[dlock.Hold]) bool) []answer[dlock.Hold] {
	return poll(ctx, l, l.limit, grace, func(ctx context.Context, i int, decided func() bool) (hold dlock.Hold, r request) {
		switch {
		case l.nodes[i].inspector == nil:
			return hold, request{err: errors.ErrUnsupported}
		case young != nil && young[i]:
			return hold, request{err: &youngError{}}
		}
		r = l.try(ctx, i, l.limit, decided, func(ctx context.Context) (err error) {
			hold, err = l.nodes[i].inspect(ctx, key)
			return err
		})
		return hold, r
	}, done, nil)
}

// enough reports whether a majority has answered.
func (l *Locker) enough(answers []answer[dlock.Hold]) bool {
	return count(answers, (*answer[dlock.Hold]).ok) >= l.quorum
}

// majorityOf returns what a majority of the nodes says of a key, and whether there is one.
func (l *Locker) majorityOf(answers []answer[dlock.Hold]) (hold dlock.Hold, decided bool) {
	rests := make(map[string][]time.Duration)
	since := make(map[string]time.Time)
	missing, most := 0, 0
	for i := range answers {
		switch a := &answers[i]; {
		case !a.ok():
			missing++
		case a.value.Held:
			rests[a.value.Token] = append(rests[a.value.Token], a.value.Remaining)
			since[a.value.Token] = later(since[a.value.Token], a.value.Since)
			most = max(most, len(rests[a.value.Token]))
		}
	}
	if len(answers)-missing < l.quorum {
		return hold, false
	}
	for token, r := range rests {
		if len(r) >= l.quorum {
			hold.Held, hold.Token, hold.Remaining, hold.Since = true, token, l.rest(r, missing), since[token]
		}
	}
	var waiting []int
	for i := range answers {
		if a := &answers[i]; a.ok() {
			n := a.value.Waiting
			if hold.Held && a.value.Held && a.value.Token != hold.Token {
				n++ // it has this vote, and waits for others
			}
			waiting = append(waiting, n)
		}
	}
	hold.Waiting = nthLargest(waiting, max(1, l.quorum-missing))
	return hold, hold.Held || most+missing < l.quorum
}
