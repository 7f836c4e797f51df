package redlock

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/chance"
)

// splitPatience is how long an attempt tries to win a split vote.
const splitPatience = 5 * time.Second

// settled is after how many rounds a split vote is not expected to be settled soon any more: a node
// that would decide it is down. From then on the pauses grow.
const settled = 16

// longestLead is for how many rounds the leader of a split vote keeps its votes. If others wait in the
// queues of the nodes that it lacks, it gets none there.
const longestLead = 4

// TryAcquire implements [dlock.Locker], in one round trip to a majority of the nodes; in two, if
// their fences differ or if the key is held and not all nodes say so; and in some more, if several
// clients take a free key at the same time.
func (l *Locker) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := l.beginFor(ctx, key, token, ttl); err != nil {
		return dlock.Attempt{}, err
	}
	defer l.work.Done()
	v := l.newVoting(ctx, key, token, ttl)
	a, err := v.try()
	switch {
	case err != nil:
		err = v.promise(err)
		v.end(isKept) // the caller owes a release
	case a.Acquired:
		v.end(isKept)
	default:
		v.withdraw()
	}
	return a, err
}

func (v *voting) try() (dlock.Attempt, error) {
	begun := time.Now()
	named := false // a majority named a holder in the last round
	led := 0       // for how many rounds the attempt has led a split vote
	var last *dlock.Attempt
	for round := 1; ; round++ {
		floor := v.l.floor()
		for i := range v.seats {
			if s := &v.seats[i]; !s.flying && !v.inDate(s) && (s.err == nil || dlock.NoEffect(s.err)) {
				*s = seat{fresh: s.fresh, lacked: s.lacked}
				v.vote(i, floor)
			}
		}
		if err := v.collect(); err != nil {
			return dlock.Attempt{}, err
		}
		if a, ok := v.equalVotes(); ok {
			return a, nil
		}
		if v.counted() >= v.l.quorum {
			if a, err := v.elect(); a.Acquired || err != nil {
				return a, err
			}
			if time.Since(begun) < splitPatience {
				continue
			}
		}
		held, all := v.held()
		if held != nil && (all || named) {
			return *held, nil
		}
		if err := v.lack(); err != nil {
			if last != nil && !v.unsure {
				return *last, nil // that was so when a majority could be asked last
			}
			return dlock.Attempt{}, err
		}
		trip := time.Duration(v.l.trip.Load())
		pause := time.Duration(0)
		if named = held != nil; named {
			last = held
			if held := v.watch(0, held); held != nil {
				return *held, nil
			}
		} else {
			pause = (trip/2 + chance.N(trip/2+1)) << min(max(0, round-settled), 7)
			if led++; v.leader() != v.claim.token || led > longestLead {
				led = 0
				if err := v.yield(); err != nil {
					return dlock.Attempt{}, err
				}
				if held := v.watch(pause, nil); held != nil {
					return *held, nil
				}
				pause += chance.N(trip*time.Duration(min(round, 8)) + 1)
			}
		}
		if time.Since(begun) > splitPatience {
			return v.plurality(), v.failure(errSplit)
		}
		if pause > 0 && !sleep(v.ctx, pause) {
			return dlock.Attempt{}, v.ctx.Err()
		}
	}
}

// held returns the answer "held" if a majority names one holder, whose leases have not ended since,
// and whether all nodes do.
func (v *voting) held() (held *dlock.Attempt, all bool) {
	for i := range v.seats {
		if a, n := v.heldBy(&v.seats[i]); n >= v.l.quorum {
			return a, n == len(v.seats)
		}
	}
	return nil, false
}

// heldBy returns the answer that the holder at a node holds the key, and how many nodes say so.
func (v *voting) heldBy(named *seat) (*dlock.Attempt, int) {
	if named.granted || !named.answered || !time.Now().Before(named.until) {
		return nil, 0
	}
	var rests []time.Duration
	var since time.Time
	missing := 0
	for i := range v.seats {
		switch s := &v.seats[i]; {
		case !s.answered:
			missing++
		case !s.granted && s.holder == named.holder && time.Now().Before(s.until):
			rests, since = append(rests, s.remaining), later(since, s.heldSince)
		}
	}
	return &dlock.Attempt{Holder: named.holder, Remaining: v.l.rest(rests, missing), HeldSince: since}, len(rests)
}

// later returns the later of two times. A holder has had its lease since the latest of the times that the nodes name: one
// that votes for it again, after the loss of its data, names the time at which the token was made.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// rest returns for how long a majority holds a lease that ends at these times at the nodes that
// have answered. The missing ones may hold it longer. A negative time never ends.
func (l *Locker) rest(rests []time.Duration, missing int) time.Duration {
	n := min(max(1, l.quorum-missing), len(rests))
	if n == 0 {
		return 0
	}
	for i, r := range rests {
		if r < 0 {
			rests[i] = math.MaxInt64
		}
	}
	if r := nthLargest(rests, n); r != math.MaxInt64 {
		return r
	}
	return -1
}

// plurality returns the answer "held" by the holder that most nodes name.
func (v *voting) plurality() (most dlock.Attempt) {
	votes := 0
	for i := range v.seats {
		if a, n := v.heldBy(&v.seats[i]); n > votes {
			most, votes = *a, n
		}
	}
	most.Since = time.Now()
	return most
}

// leader returns the token that the arbiter of the key names: the first node that has answered.
func (v *voting) leader() string {
	for i := range v.l.order(v.claim.key) {
		switch s := &v.seats[i]; {
		case !s.answered:
		case s.granted:
			return v.claim.token
		default:
			return s.holder
		}
	}
	return ""
}

// mayReturn reports whether a vote may be given back: it was given to this call, or is of no lease.
func (v *voting) mayReturn(s *seat) bool { return s.granted && (s.fresh || !v.mayHold()) }

// mayHold reports whether the token may have a lease that is older than this call. A young node may
// have forgotten a vote for it.
func (v *voting) mayHold() bool {
	return v.number(func(s *seat) bool { return !s.lacked }) >= v.l.quorum
}

// watch only looks at the nodes, so that the leader gets the votes that are given back. It returns
// nil when it is time to vote again, or the answer "held" if a majority names a holder twice in a
// row. That may be another one by then: the key is handed over as quickly as the nodes can be asked.
// If named is not nil, a majority has just named one.
func (v *voting) watch(pause time.Duration, named *dlock.Attempt) *dlock.Attempt {
	leader, begun := v.leader(), time.Now()
	for ; sleep(v.ctx, pause); pause = max(pause, time.Duration(v.l.trip.Load())) {
		holds := v.inspect()()
		switch hold, ok := v.l.majorityOf(holds); {
		case ok && hold.Held && hold.Token != v.claim.token:
			held := &dlock.Attempt{Holder: hold.Token, Remaining: hold.Remaining, HeldSince: hold.Since}
			if named != nil {
				return held
			}
			named = held
			continue
		case slices.ContainsFunc(holds, func(a answer[dlock.Hold]) bool { return isUnsupported(a.err) }):
			return nil
		case !v.l.enough(holds):
			return named
		}
		named = nil
		for i := range v.l.order(v.claim.key) {
			if !holds[i].ok() {
				continue
			}
			if arbiter := holds[i].value; arbiter.Token != leader || !arbiter.Held || time.Since(begun) > ledFor {
				return nil
			}
			break
		}
	}
	return nil
}

// yield gives the votes back, and waits a moment for the answers.
func (v *voting) yield() error {
	returned, floor := 0, v.l.floor()
	for i := range v.seats {
		if s := &v.seats[i]; !s.flying && v.mayReturn(s) {
			v.pass(i, "", floor)
			returned++
		}
	}
	timer := time.NewTimer(longGrace + 2*time.Duration(v.l.trip.Load()))
	defer timer.Stop()
	for returned > 0 {
		select {
		case e := <-v.answers:
			v.note(e)
			if e.kind == passed {
				returned--
			}
		case <-timer.C:
			return nil
		case <-v.ctx.Done():
			return v.ctx.Err()
		}
	}
	return nil
}

// withdraw ends an attempt that was not granted. Its votes are given back before any later request
// of the token reaches the node, also those of which no answer tells.
func (v *voting) withdraw() {
	v.meet(isReturned)
	for range len(v.answers) { // none comes any more
		v.note(<-v.answers)
	}
	for i := range v.seats {
		s := &v.seats[i]
		unconfirmed := s.fresh && s.err != nil // it is there, but was not confirmed
		if s.flying || !unconfirmed && !v.mayReturn(s) && (!uncertain(s.err) || v.mayHold()) {
			continue
		}
		held, at := v.l.claims.hold(v.claim), &v.claim.nodes[i]
		at.mu.Lock()
		v.l.spawn(func() {
			defer v.l.claims.put(held)
			defer at.mu.Unlock()
			v.l.giveBack(held, i, at)
		})
	}
	v.end(isReturned)
}
