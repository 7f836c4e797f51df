package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

var votesCases = []testCase{
	{name: "VoteIsTryAcquire", check: voteIsTryAcquire,
		clause: withSource("A Voter grants and refuses as TryAcquire does, never shortens a lease, and heeds ctx as EndedContext says.")},
	{name: "FreshVotes", check: freshVotes,
		clause: withSource("A Voter calls a grant Fresh exactly if token did not hold key before.")},
	{name: "FloorsGiveEqualFences", check: floorsGiveEqualFences, alone: true,
		clause: withSource("A Voter makes the floor the fence if it is at most a second after the store's clock and at least 8 above the last fence.")},
	{name: "FloorIsClamped", check: floorIsClamped, alone: true,
		clause: withSource("A Voter gives no fence before the store's clock or more than a second after it, whatever the floor, unless it must exceed an earlier one.")},
	{name: "AgeGrows", check: ageGrows,
		clause: withSource("A Voter measures Age on the store's clock: it grows by the time between two votes.")},
	{name: "AgeAfterDataLoss", check: ageAfterDataLoss, alone: true, needs: needsWipe,
		clause: withSource("A Voter whose store has lost everything has an Age of at most the time since then.")},
	{name: "SameStore", check: sameStore,
		clause: withSource("A Voter names the same Store in all ballots on a key, for all clients and answers.")},
	{name: "ConfirmRenews", check: confirmRenews,
		clause: withSource("A Voter renews in Confirm as RenewBatch does. Its ballots are in the order of the batch, with only Acquired, Age, Store and Clock set.")},
	{name: "ConfirmRaisesFences", check: confirmRaisesFences, alone: true,
		clause: withSource("A Voter gives later grants fences above the Fence that the holder was confirmed with.")},
	{name: "ConfirmRaisesNothingElse", check: confirmRaisesNothingElse, alone: true,
		clause: withSource("A Voter raises no fence for a Confirmation whose Token does not hold its Key, or whose Fence is lower than the last.")},
	{name: "PassIsRelease", check: passIsRelease,
		clause: withSource("A Voter releases in Pass as Release does: token's lease or place ends, and the first in the queue gets the key if to does not wait.")},
	{name: "PassToOne", check: passToOne,
		clause: withSource("A Voter grants a key that is passed to a waiter to that one before all others.")},
	{name: "PassCarriesFloor", check: passCarriesFloor, alone: true,
		clause: withSource("A Voter gives a waiter that gets the key by Pass the floor as its fence, as in Vote.")},
	{name: "PlacesOrderWaiters", check: placesOrderWaiters,
		clause: withSource("A Voter that is a VoteAcquirer serves waiters in the order of their places, whenever they came, or of their tokens if places are equal.")},
	{name: "PlaceIsBehindAll", check: placeIsBehindAll,
		clause: withSource("A Voter that is a VoteAcquirer gives those it refuses a Place behind all who wait, and not before Clock.")},
	{name: "PlaceMoves", check: placeMoves,
		clause: withSource("A Voter that is a VoteAcquirer moves a token that waits again to the new place.")},
	{name: "PassedTokenQueuesAgain", check: passedTokenQueuesAgain,
		clause: withSource("A Voter that is a VoteAcquirer lets a token that passed its vote on wait again with the same place, as often as it likes.")},
}

// A voter is a client of a store that is a quorum.Voter.
type voter struct {
	*client
	node  quorum.Voter
	queue quorum.VoteAcquirer // nil if the store is none
}

func (v voter) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	call := v.trace.begin(key, token, "%s.Vote(%s, %s, %v, %d)", v.name, brief(key), brief(token), ttl, floor)
	b, err := v.node.Vote(ctx, key, token, ttl, floor)
	call.end(showBallot(b), fenceOf(b.Attempt), err)
	return b, err
}

func (v voter) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	call := v.trace.begin(key, token, "%s.AcquireVote(%s, %s, %v, %d, %d)", v.name, brief(key), brief(token), ttl, floor, place)
	b, err := v.queue.AcquireVote(ctx, key, token, ttl, floor, place)
	call.end(showBallot(b), fenceOf(b.Attempt), err)
	return b, err
}

func (v voter) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	call := v.trace.begin("", "", "%s.Confirm(%v)", v.name, batch)
	ballots, err := v.node.Confirm(ctx, batch)
	call.end(ballots, "", err)
	return ballots, err
}

func (v voter) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	call := v.trace.begin(key, token, "%s.Pass(%s, %s, %s, %d)", v.name, brief(key), brief(token), brief(to), floor)
	held, err := v.node.Pass(ctx, key, token, to, floor)
	call.end(held, "", err)
	return held, err
}

// voter returns one more client, and skips the case if it is no Voter.
func (s *scene) voter() voter {
	c := s.client()
	v := voter{client: c}
	var ok bool
	if v.node, ok = c.inner.Locker.(quorum.Voter); !ok {
		s.skip("the Locker is no Voter")
		return v
	}
	v.queue, _ = v.node.(quorum.VoteAcquirer)
	key, token := s.key(), s.token("probe")
	s.uses(key, token)
	if _, err := v.Vote(s.ctx, key, token, long, 0); !supported(err) {
		s.skip("Vote answers errors.ErrUnsupported")
	}
	if v.queue != nil && !s.over() {
		if _, err := v.AcquireVote(s.ctx, key, token, long, 0, 1); !supported(err) {
			v.queue = nil
		}
	}
	return v
}

// voteAcquirer is voter, and skips the case if it is no VoteAcquirer.
func (s *scene) voteAcquirer() voter {
	v := s.voter()
	if !s.over() && v.queue == nil {
		s.skip("the Locker is no VoteAcquirer")
	}
	return v
}

// A votes is Vote, or an AcquireVote that need not wait.
type votes func(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error)

// ways returns the ways in which v gets a vote without a wait.
func (v voter) ways() []votes {
	if v.queue == nil {
		return []votes{v.Vote}
	}
	return []votes{v.Vote, func(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
		return v.AcquireVote(ctx, key, token, ttl, floor, 1)
	}}
}

// elect makes a vote that must be granted.
func (s *scene) elect(vote votes, g grant, ttl time.Duration, floor int64) quorum.Ballot {
	start := s.now()
	if s.over() {
		return quorum.Ballot{}
	}
	s.uses(g.key, g.token)
	b, err := vote(s.ctx, g.key, g.token, ttl, floor)
	switch now := time.Now(); {
	case err != nil || !b.Acquired:
		s.fail("a vote for %s, %s, %v: %s, %w; want it to be granted", brief(g.key), brief(g.token), ttl, showBallot(b), orNone(err))
	case b.Since.After(now):
		s.fail("a vote for %s, %s has a Since that is %v after its answer", brief(g.key), brief(g.token), b.Since.Sub(now))
	}
	s.certain(g.key, start.Add(ttl), b.Fresh)
	return b
}

// refuses makes a vote of a stranger that must be refused.
func (s *scene) refuses(v voter, g grant) quorum.Ballot {
	if s.over() {
		return quorum.Ballot{}
	}
	b, err := v.Vote(s.ctx, g.key, s.token("stranger"), long, 0)
	switch {
	case err != nil:
		s.fail("a vote for %s, which another holds: %w; want it to be refused without an error", brief(g.key), err)
	case b.Acquired && !s.mayHaveExpired(g.key), b.Holder != "" && b.Holder != g.token, b.Place < b.Clock:
		s.fail("a vote for %s, which %s holds: %s; want it to be refused, with a place that is not before the clock", brief(g.key), brief(g.token), showBallot(b))
	}
	return b
}

func (s *scene) pass(v voter, g grant, to string, floor int64, want bool) {
	if s.over() {
		return
	}
	held, err := v.Pass(s.ctx, g.key, g.token, to, floor)
	if err != nil || held != want && !(want && s.mayHaveExpired(g.key)) {
		s.fail("%s.Pass(%s, %s, %s): held = %v, %w; want %v", v.name, brief(g.key), brief(g.token), brief(to), held, orNone(err), want)
	}
}

// confirm confirms a batch whose elements must have these answers.
func (s *scene) confirm(v voter, batch []quorum.Confirmation, want ...bool) []quorum.Ballot {
	if s.over() {
		return nil
	}
	start := s.now()
	ballots, err := v.Confirm(s.ctx, batch)
	if err != nil || len(ballots) != len(batch) {
		s.fail("%s.Confirm: %d ballots, %w; want %d", v.name, len(ballots), orNone(err), len(batch))
		return nil
	}
	for i, b := range ballots {
		bare := quorum.Ballot{Age: b.Age, Store: b.Store, Clock: b.Clock}
		bare.Acquired = want[i]
		if b != bare && !(want[i] && s.mayHaveExpired(batch[i].Key)) {
			s.fail("%s.Confirm: ballot %d, of %s, is %+v; want %+v", v.name, i, showRenewal(batch[i].Renewal), b, bare)
		}
		if want[i] {
			s.certain(batch[i].Key, start.Add(batch[i].TTL), false)
		}
	}
	return ballots
}

func (g grant) confirmation(ttl time.Duration, fence int64) quorum.Confirmation {
	return quorum.Confirmation{Renewal: dlock.Renewal{Key: g.key, Token: g.token, TTL: ttl}, Fence: fence}
}

// newGrant is a grant of a new key to a new token, which is still to be made.
func (s *scene) newGrant(name string) grant { return grant{key: s.key(), token: s.token(name)} }

const (
	second = int64(time.Second / time.Microsecond)
	ahead  = 3 * second / 10 // how far floors are after the clock; a store that is slower is tried again
)

// settled returns a ballot of a time when the fences of a free key are not ahead of the store's
// clock.
func (s *scene) settled(v voter, key string) quorum.Ballot {
	for {
		g := grant{key: key, token: s.token("settles")}
		b := s.elect(v.Vote, g, long, 0)
		s.release(v.client, g, true)
		if b.Fence <= b.Clock {
			return b
		}
		s.sleep(time.Duration(b.Fence-b.Clock)*time.Microsecond + time.Millisecond)
	}
}

func showBallot(b quorum.Ballot) string {
	return fmt.Sprintf("%s, fresh = %v, age %v, clock %d, place %d", show(b.Attempt), b.Fresh, b.Age, b.Clock, b.Place)
}

func voteIsTryAcquire(s *scene) error {
	v := s.voter()
	for _, vote := range v.ways() {
		g := s.newGrant("holder")
		b := s.elect(vote, g, long, 0)
		s.held(v.client, g)
		s.refuses(v, g)
		s.elect(vote, g, s.h.ttl(), 0)
		s.lapse(s.h.ttl())
		s.held(v.client, g)
		s.endedVotes(v, g)
		s.release(v.client, g, true)
		next := s.newGrant("next").as(s.token("dies"))
		next.key = g.key
		short := s.elect(vote, next, s.h.ttl(), 0)
		s.above(grant{Attempt: b.Attempt, token: g.token}, grant{Attempt: short.Attempt, key: next.key, token: next.token})
		s.lapse(s.h.ttl())
		s.elect(vote, g, long, 0)
	}
	return s.result()
}

// endedVotes makes calls whose ctx has ended on a key that g holds, and has waits for it end.
func (s *scene) endedVotes(v voter, g grant) {
	if s.over() {
		return
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	cancel(errCause)
	_, err := v.Vote(ctx, s.key(), g.token, long, 0)
	refusedWith(s, ctx, err, "Vote")
	_, err = v.Confirm(ctx, []quorum.Confirmation{g.confirmation(long, 0)})
	refusedWith(s, ctx, err, "Confirm")
	_, err = v.Pass(ctx, g.key, g.token, "", 0)
	refusedWith(s, ctx, err, "Pass")
	if v.queue != nil {
		_, err := v.AcquireVote(ctx, g.key, s.token("late"), long, 0, 1)
		refusedWith(s, ctx, err, "AcquireVote")
		endWaitsOf(s, v.client, g, func(ctx context.Context, token string) *waiter {
			return s.waitBy(ctx, v.client, g.key, token, long, func(ctx context.Context) (dlock.Attempt, error) {
				b, err := v.AcquireVote(ctx, g.key, token, long, 0, 1)
				return b.Attempt, err
			})
		})
	}
	s.held(v.client, g)
}

func freshVotes(s *scene) error {
	v := s.voter()
	for _, vote := range v.ways() {
		g := s.newGrant("holder")
		is := func(want bool, when string) {
			if b := s.elect(vote, g, s.h.ttl(), 0); b.Fresh != want && !(!want && s.mayHaveExpired(g.key)) {
				s.fail("a vote for %s %s: Fresh = %v; want %v", brief(g.key), when, b.Fresh, want)
			}
		}
		is(true, "that is free")
		is(false, "by its holder")
		s.lapse(s.h.ttl())
		is(true, "when the lease had expired")
		s.release(v.client, g, true)
		is(true, "when the lease had been released")
		s.release(v.client, g, true)
		s.grant(v.client, g.key, g.token, long)
		is(false, "by the token that TryAcquire had granted it to")
		s.release(v.client, g, true)
	}
	return s.result()
}

func floorsGiveEqualFences(s *scene) error {
	v := s.voter()
	for _, vote := range v.ways() {
		g := s.newGrant("holder")
		floor := s.settled(v, g.key).Clock + ahead
		s.hasFloor(s.elect(vote, g, long, floor), floor)
		s.hasFloor(s.elect(vote, g, long, floor+100), floor+100)
		s.release(v.client, g, true)
	}
	return s.result()
}

// hasFloor checks the fence of a grant that was made when the store's clock was that of b, or
// before.
func (s *scene) hasFloor(b quorum.Ballot, floor int64) {
	switch {
	case s.over():
	case b.Clock > floor:
		s.stop(errInconclusive)
	case b.Fence != floor:
		s.fail("a grant with the floor %d has the fence %d, when the store's clock was %d; want the floor", floor, b.Fence, b.Clock)
	}
}

func floorIsClamped(s *scene) error {
	v := s.voter()
	g := s.newGrant("holder")
	last := s.settled(v, g.key)
	hour := time.Hour.Microseconds()
	for _, c := range []struct{ floor, ahead int64 }{
		{math.MinInt64, 0}, {-1, 0}, {0, 0}, {1, 0}, {last.Clock - hour, 0}, {last.Clock + hour, second}, {math.MaxInt64, second},
	} {
		for _, vote := range v.ways() {
			b := s.elect(vote, g, long, c.floor)
			if least, most := last.Clock+c.ahead, max(last.Fence+numbers, b.Clock+c.ahead); b.Fence < least || b.Fence > most {
				s.fail("a grant with the floor %d has the fence %d; want it to be between %d and %d", c.floor, b.Fence, least, most)
			}
			last = b
		}
	}
	return s.result()
}

// ageRounding is how imprecise an Age may be, besides being in whole seconds.
const ageRounding = 10 * time.Millisecond

func ageGrows(s *scene) error {
	v := s.voter()
	g := s.newGrant("holder")
	const pause = 1500 * time.Millisecond // so that whole seconds will do
	first := s.elect(v.Vote, g, long, 0)
	s.sleep(pause)
	then := s.elect(v.Vote, g, long, 0)
	passed := time.Duration(then.Clock-first.Clock) * time.Microsecond
	if grown := then.Age - first.Age; first.Age < 0 || grown > passed+ageRounding || grown < passed-time.Second-ageRounding {
		s.fail("Age was %v, and %v when %v had passed on the store's clock", first.Age, then.Age, passed)
	}
	return s.result()
}

func ageAfterDataLoss(s *scene) error {
	v := s.voter()
	g := s.newGrant("holder")
	s.elect(v.Vote, g, long, 0)
	s.sleep(time.Second)
	before := s.elect(v.Vote, g, long, 0)
	s.wipe()
	after := s.elect(v.Vote, g, long, 0)
	if most := time.Duration(after.Clock-before.Clock) * time.Microsecond; after.Age > most+ageRounding {
		s.fail("Age is %v, though the store lost everything %v ago, or later", after.Age, most)
	}
	return s.result()
}

func sameStore(s *scene) error {
	a, b := s.voter(), s.voter()
	g := s.newGrant("holder")
	ballots := []quorum.Ballot{s.elect(a.Vote, g, long, 0), s.elect(b.Vote, g, long, 0), s.refuses(a, g), s.refuses(b, g)}
	for _, v := range []voter{a, b} {
		ballots = append(ballots, s.confirm(v, []quorum.Confirmation{g.confirmation(long, 0)}, true)...)
	}
	for _, b := range ballots {
		switch {
		case s.over():
		case ballots[0].Store == "":
			s.skip("Store is empty: unknown")
		case b.Store != ballots[0].Store:
			s.fail("ballots on %s name the stores %q and %q", brief(g.key), ballots[0].Store, b.Store)
		}
	}
	return s.result()
}

func confirmRenews(s *scene) error {
	v := s.voter()
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	s.confirm(v, nil)
	dead := s.grant(v.client, s.key(), s.token("dead"), time.Millisecond)
	s.lapse(time.Millisecond)
	extended := s.grant(v.client, s.key(), s.token("extended"), short)
	twice := s.grant(v.client, s.key(), s.token("twice"), short)
	kept := s.grant(v.client, s.key(), s.token("kept"), long)
	s.confirm(v, []quorum.Confirmation{
		extended.as(s.token("stranger")).confirmation(long, 0), extended.confirmation(long, 0), dead.confirmation(long, 0),
		twice.confirmation(long, 0), twice.confirmation(time.Millisecond, 0), kept.confirmation(time.Millisecond, 0),
	}, false, true, false, true, true, true)
	s.free(v.client, dead.key)
	s.lapse(short)
	for _, g := range []grant{extended, twice, kept} {
		s.held(v.client, g)
	}
	return s.result()
}

func confirmRaisesFences(s *scene) error {
	v := s.voter()
	g := s.newGrant("holder")
	fence := s.settled(v, g.key).Clock + ahead
	s.elect(v.Vote, g, long, 0)
	s.confirm(v, []quorum.Confirmation{g.confirmation(long, fence), g.confirmation(long, 0), g.confirmation(long, fence-ahead)}, true, true, true)
	for _, way := range append(v.ways(), v.Vote) {
		b := s.elect(way, g, long, 0)
		s.above(grant{Attempt: dlock.Attempt{Fence: fence}, token: g.token}, grant{Attempt: b.Attempt, key: g.key, token: g.token})
		s.release(v.client, g, true)
	}
	return s.result()
}

func confirmRaisesNothingElse(s *scene) error {
	v := s.voter()
	g := s.newGrant("holder")
	other := s.newGrant("other")
	clock := s.settled(v, g.key).Clock
	s.elect(v.Vote, g, long, 0)
	s.confirm(v, []quorum.Confirmation{
		g.as(s.token("stranger")).confirmation(long, clock+ahead), other.confirmation(long, clock+ahead),
		g.confirmation(long, 0), g.confirmation(long, math.MinInt64), g.confirmation(long, 1),
	}, false, false, true, true, true)
	for _, g := range []grant{g, other} {
		if b := s.elect(v.Vote, g, long, 0); b.Fence >= clock+ahead && b.Clock < clock+ahead {
			s.fail("a grant of %s has the fence %d, when the store's clock was %d, after nobody who held it had been confirmed with the fence %d; want a lower one",
				brief(g.key), b.Fence, b.Clock, clock+ahead)
		}
	}
	return s.result()
}

func passIsRelease(s *scene) error {
	v := s.voter()
	g := s.newGrant("holder")
	s.elect(v.Vote, g, long, 0)
	s.pass(v, g.as(s.token("stranger")), "", 0, false)
	s.held(v.client, g)
	s.pass(v, g, "", 0, true)
	s.pass(v, g, "", 0, false)
	s.free(v.client, g.key)
	if !s.abilities(v.client).wait {
		return s.result()
	}
	for _, to := range []string{"", s.token("elsewhere")} {
		s.elect(v.Vote, g, long, 0)
		released := s.wait(v.client, g.key, s.token("released"), long)
		next := s.wait(v.client, g.key, s.token("next"), long)
		s.pass(v, released.grant, "", 0, false)
		s.gap()
		s.pass(v, g, to, 0, true)
		s.servedNext(next, released)
		s.endWaits(v.client, []*waiter{released})
		s.pass(v, next.grant, "", 0, true)
		s.free(v.client, g.key)
	}
	return s.result()
}

// servedNext checks that w is served, and that the others wait still or are no more. The first time
// it may be that the waiters came to the store in another order than they set out.
func (s *scene) servedNext(w *waiter, others ...*waiter) grant {
	if s.over() {
		return w.grant
	}
	s.first(append(slices.Clone(others), w))
	granted := func(o *waiter) bool { return o.returned() && o.err == nil }
	if slices.ContainsFunc(others, granted) && !s.h.Bubble && s.attempt < tries-2 {
		s.stop(errInconclusive)
	}
	for _, o := range others {
		if granted(o) {
			s.fail("%s was granted %s; want it to be granted to %s", brief(o.token), brief(o.key), brief(w.token))
		}
	}
	return s.served(w, "the key was passed on")
}

func passToOne(s *scene) error {
	v := s.voter()
	if !s.over() && !s.abilities(v.client).wait {
		s.skip("the Locker is no Acquirer")
	}
	g := s.newGrant("holder")
	s.elect(v.Vote, g, long, 0)
	var w []*waiter
	for range 3 {
		w = append(w, s.wait(v.client, g.key, s.token("waiter"), long))
	}
	if s.over() {
		return s.result()
	}
	s.pass(v, g, w[1].token, 0, true)
	s.servedNext(w[1], w[0], w[2])
	s.pass(v, w[1].grant, w[2].token, 0, true)
	s.servedNext(w[2], w[0])
	s.pass(v, w[2].grant, "", 0, true)
	s.servedNext(w[0])
	return s.result()
}

func passCarriesFloor(s *scene) error {
	v := s.voter()
	if !s.over() && !s.abilities(v.client).wait {
		s.skip("the Locker is no Acquirer")
	}
	g := s.newGrant("holder")
	s.settled(v, g.key)
	s.elect(v.Vote, g, long, 0)
	w := s.wait(v.client, g.key, s.token("waiter"), long)
	floor := s.refuses(v, g).Clock + ahead
	s.pass(v, g, w.token, floor, true)
	b := quorum.Ballot{Attempt: s.served(w, "the key was passed on").Attempt}
	b.Clock = s.refuses(v, w.grant).Clock
	s.hasFloor(b, floor)

	w2 := s.wait(v.client, g.key, s.token("waiter"), long)
	s.pass(v, w.grant, "", math.MaxInt64, true)
	got := s.served(w2, "the key was passed on")
	if most := s.refuses(v, w2.grant).Clock + second; !s.over() && got.Fence > max(most, b.Fence+numbers) {
		s.fail("a waiter that was granted the key by Pass has the fence %d; want at most %d", got.Fence, most)
	}
	return s.result()
}

// waitAt starts an AcquireVote.
func (s *scene) waitAt(v voter, key, token string, place int64) *waiter {
	return s.waitBy(s.ctx, v.client, key, token, long, func(ctx context.Context) (dlock.Attempt, error) {
		b, err := v.AcquireVote(ctx, key, token, long, 0, place)
		return b.Attempt, err
	})
}

// servedInTurn checks that waiting are served in this order, when g is released, and each after it.
func (s *scene) servedInTurn(v voter, g grant, waiting []*waiter) {
	for i, w := range waiting {
		s.pass(v, g, "", 0, true)
		g = s.servedNext(w, waiting[i+1:]...)
	}
}

func placesOrderWaiters(s *scene) error {
	v, other := s.voteAcquirer(), s.voter()
	g := s.newGrant("holder")
	if s.over() {
		return s.result()
	}
	s.elect(v.Vote, g, long, 0)
	const gapped = 1000
	waiting := make([]*waiter, 6)
	for _, at := range []struct {
		turn  int
		place int64
		name  string
	}{{3, 3 * gapped, "b"}, {5, 1 << 53, "a"}, {2, 3 * gapped, "a"}, {1, 2 * gapped, "z"}, {4, 1<<53 - gapped, "c"}, {0, 1, "x"}} {
		waiting[at.turn] = s.waitAt([]voter{v, other}[at.turn/2%2], g.key, s.token(at.name), at.place)
		s.gap()
	}
	s.servedInTurn(v, g, waiting)
	return s.result()
}

func placeIsBehindAll(s *scene) error {
	v := s.voteAcquirer()
	g := s.newGrant("holder")
	if s.over() {
		return s.result()
	}
	s.elect(v.Vote, g, long, 0)
	far := s.refuses(v, g).Clock + time.Hour.Microseconds()
	waiting := []*waiter{s.waitAt(v, g.key, s.token("b"), far)}
	s.gap()
	place := s.refuses(v, g).Place
	if place <= far {
		s.fail("a vote for %s is refused with the place %d, though another waits at %d", brief(g.key), place, far)
	}
	waiting = append(waiting, s.waitAt(v, g.key, s.token("a"), place))
	s.gap()
	s.servedInTurn(v, g, waiting)
	return s.result()
}

func placeMoves(s *scene) error {
	v := s.voteAcquirer()
	g := s.newGrant("holder")
	if s.over() {
		return s.result()
	}
	s.elect(v.Vote, g, long, 0)
	for _, moves := range []int64{1000, 5000} {
		first := s.waitAt(v, g.key, s.token("moves"), 3000)
		s.gap()
		first.cancel()
		s.ended(first)
		var waiting []*waiter
		for _, place := range []int64{2000, 4000} {
			waiting = append(waiting, s.waitAt(v, g.key, s.token("stays"), place))
			s.gap() // a store that ignores places must not have them in order by chance
		}
		waiting = append(waiting, s.waitAt(v, g.key, first.token, moves))
		s.gap()
		if moves == 1000 {
			waiting = []*waiter{waiting[2], waiting[0], waiting[1]}
		}
		s.servedInTurn(v, g, waiting)
		g = waiting[2].grant
	}
	return s.result()
}

func passedTokenQueuesAgain(s *scene) error {
	v := s.voteAcquirer()
	g := s.newGrant("one")
	if s.over() {
		return s.result()
	}
	g.Attempt = s.elect(v.Vote, g, long, 0).Attempt
	place := int64(1)
	w := s.waitAt(v, g.key, s.token("other"), 2)
	for range 6 {
		s.gap()
		s.waits(w)
		s.pass(v, g, w.token, 0, true)
		next := s.servedNext(w)
		s.above(g, next)
		w = s.waitAt(v, g.key, g.token, place)
		g, place = next, 3-place
	}
	s.gap()
	s.waits(w)
	s.held(v.client, g)
	return s.result()
}
