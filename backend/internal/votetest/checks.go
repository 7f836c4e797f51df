package votetest

import (
	"context"
	"math"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/quorum"
)

// endedVotes makes calls whose ctx has ended on a key that token holds, and has waits for it end.
func endedVotes(s *scene, key, token string) {
	ended, cancel := context.WithCancelCause(s.ctx)
	cancel(errCause)
	_, err := s.a.Vote(ended, s.key(), token, long, 0)
	s.heeds(ended, "Vote", err)
	_, err = s.a.Confirm(ended, []quorum.Confirmation{confirmation(key, token, long, 0)})
	s.heeds(ended, "Confirm", err)
	_, err = s.a.Pass(ended, key, token, "", 0)
	s.heeds(ended, "Pass", err)
	_, err = s.a.AcquireVote(ended, key, "late", long, 0, 1)
	s.heeds(ended, "AcquireVote", err)
	cancelled, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	late, stop := context.WithTimeoutCause(s.ctx, short, errCause)
	defer stop()
	for _, ctx := range []context.Context{cancelled, late} {
		w := s.waitWith(ctx, key, "waiter", 1, func(ctx context.Context) (quorum.Ballot, error) {
			return s.a.AcquireVote(ctx, key, "waiter", long, 0, 1)
		})
		if ctx == cancelled {
			require.False(s, w.over.Load(), "a wait has returned before its ctx had ended: %+v, %v", w.ballot, w.err)
			cancel(errCause)
		}
		s.until("a wait ends with its ctx", w.over.Load)
		require.Error(s, ctx.Err(), "a wait has returned before its ctx had ended")
		s.heeds(ctx, "a wait", w.err)
		require.False(s, w.ballot.Acquired, "a wait whose ctx has ended: %+v", w.ballot)
		require.Contains(s, []string{"", token}, w.ballot.Holder, "Holder beside an error")
		s.pass(key, "waiter", "", 0, false)
	}
	s.held(key, token)
}

// rounding is how imprecise an Age may be, besides being in whole seconds.
const rounding = 10 * time.Millisecond

var clauses = []clause{
	{"VoteIsTryAcquire", "A Voter grants and refuses as TryAcquire does, never shortens a lease, and heeds ctx as EndedContext says.", func(s *scene) {
		for _, vote := range s.ways() {
			key := s.key()
			first := s.elect(vote, key, "holder", long, 0)
			s.held(key, "holder")
			s.elect(vote, key, "holder", short, 0)
			time.Sleep(lapse)
			s.held(key, "holder")
			endedVotes(s, key, "holder")
			s.pass(key, "holder", "", 0, true)
			next := s.elect(vote, key, "dies", short, 0)
			s.above(first.Fence, next.Fence)
			time.Sleep(lapse)
			s.elect(vote, key, "holder", long, 0)
		}
	}},
	{"FreshVotes", "A Voter calls a grant Fresh exactly if token did not hold key before.", func(s *scene) {
		for _, vote := range s.ways() {
			key := s.key()
			fresh := func(want bool, ttl time.Duration, when string) {
				require.Equal(s, want, s.elect(vote, key, "holder", ttl, 0).Fresh, "Fresh of a vote for a key %s", when)
			}
			fresh(true, short, "that is free")
			time.Sleep(lapse)
			fresh(true, long, "whose lease has expired")
			fresh(false, long, "that token holds")
			s.pass(key, "holder", "", 0, true)
			fresh(true, long, "that was released")
			s.pass(key, "holder", "", 0, true)
			a, err := s.a.TryAcquire(s.ctx, key, "holder", long)
			require.NoError(s, err, "TryAcquire")
			require.True(s, a.Acquired, "TryAcquire: %+v", a)
			fresh(false, long, "that TryAcquire has granted to token")
		}
	}},
	{"FloorsGiveEqualFences", "A Voter makes the floor the fence if it is at most a second after the store's clock and at least 8 above the last fence.", func(s *scene) {
		for _, vote := range s.ways() {
			key := s.key()
			floor := s.settled(key) + ahead
			for range 2 {
				b := s.elect(vote, key, "holder", long, floor)
				s.hasFloor(b.Fence, floor, b.Clock)
				floor += 100
			}
		}
	}},
	{"FloorIsClamped", "A Voter gives no fence before the store's clock or more than a second after it, whatever the floor, unless it must exceed an earlier one.", func(s *scene) {
		key, hour := s.key(), time.Hour.Microseconds()
		clock := s.settled(key)
		fence := clock
		for _, c := range []struct{ floor, ahead int64 }{
			{math.MinInt64, 0}, {-1, 0}, {0, 0}, {1, 0}, {clock - hour, 0}, {clock + hour, second}, {math.MaxInt64, second},
		} {
			for _, vote := range s.ways() {
				b := s.elect(vote, key, "holder", long, c.floor)
				require.GreaterOrEqual(s, b.Fence, clock+c.ahead, "the fence of a grant with the floor %d", c.floor)
				require.LessOrEqual(s, b.Fence, max(fence+numbers, b.Clock+c.ahead), "the fence of a grant with the floor %d", c.floor)
				clock, fence = b.Clock, b.Fence
			}
		}
	}},
	{"AgeGrows", "A Voter measures Age on the store's clock: it grows by the time between two votes.", func(s *scene) {
		const pause = 1500 * time.Millisecond // so that whole seconds will do
		key := s.key()
		first := s.grant(key, "holder")
		time.Sleep(pause)
		then := s.grant(key, "holder")
		passed := time.Duration(then.Clock-first.Clock) * time.Microsecond
		require.GreaterOrEqual(s, first.Age, time.Duration(0), "Age")
		require.LessOrEqual(s, then.Age-first.Age, passed+rounding, "what Age has grown by in %v", passed)
		require.GreaterOrEqual(s, then.Age-first.Age, passed-time.Second-rounding, "what Age has grown by in %v", passed)
	}},
	{"AgeAfterDataLoss", "A Voter whose store has lost everything has an Age of at most the time since then.", func(s *scene) {
		key := s.heldKey()
		time.Sleep(time.Second)
		before := s.grant(key, "holder")
		s.Wipe()
		after := s.grant(key, "holder")
		lost := time.Duration(after.Clock-before.Clock) * time.Microsecond
		require.LessOrEqual(s, after.Age, lost+rounding, "Age, though the store lost everything %v ago, or later", lost)
	}},
	{"SameStore", "A Voter names the same Store in all ballots on a key, for all clients and answers.", func(s *scene) {
		key := s.key()
		store := s.grant(key, "holder").Store
		require.NotEmpty(s, store, "Store")
		for _, c := range []Client{s.a, s.b} {
			require.Equal(s, store, s.elect(c.Vote, key, "holder", long, 0).Store, "Store of a vote that is granted")
			require.Equal(s, store, s.refuse(c, key, "holder").Store, "Store of a vote that is refused")
			ballots, err := c.Confirm(s.ctx, []quorum.Confirmation{confirmation(key, "holder", long, 0)})
			require.NoError(s, err, "Confirm")
			require.Equal(s, store, ballots[0].Store, "Store of a confirmation")
		}
	}},
	{"ConfirmRenews", "A Voter renews in Confirm as RenewBatch does. Its ballots are in the order of the batch, with only Acquired, Age, Store and Clock set.", func(s *scene) {
		const ttl = 10 * short // while the leases are confirmed
		s.confirm(nil)
		dead, extended, twice, kept := s.key(), s.key(), s.key(), s.key()
		s.elect(s.a.Vote, dead, "holder", short, 0)
		time.Sleep(lapse)
		begun := time.Now()
		for _, key := range []string{extended, twice, kept} {
			s.elect(s.a.Vote, key, "holder", ttl, 0)
		}
		batch := []quorum.Confirmation{
			confirmation(extended, "stranger", long, 0), confirmation(extended, "holder", long, 0), confirmation(dead, "holder", long, 0),
			confirmation(twice, "holder", long, 0), confirmation(twice, "holder", time.Millisecond, 0), confirmation(kept, "holder", time.Millisecond, 0),
		}
		ballots, err := s.a.Confirm(s.ctx, batch)
		if time.Since(begun) >= ttl {
			s.slow = true
			return
		}
		s.confirmed(batch, ballots, err, false, true, false, true, true, true)
		s.elect(s.b.Vote, dead, "next", long, 0)
		if s.held(kept, "holder"); time.Since(begun) >= ttl {
			s.slow = true
			return
		}
		time.Sleep(ttl)
		s.held(extended, "holder")
		s.held(twice, "holder")
	}},
	{"ConfirmRaisesFences", "A Voter gives later grants fences above the Fence that the holder was confirmed with.", func(s *scene) {
		key := s.key()
		fence := s.settled(key) + ahead
		s.grant(key, "holder")
		s.confirm([]quorum.Confirmation{
			confirmation(key, "holder", long, fence), confirmation(key, "holder", long, 0), confirmation(key, "holder", long, fence-ahead),
		}, true, true, true)
		for _, vote := range append(s.ways(), s.a.Vote) {
			s.above(fence, s.elect(vote, key, "holder", long, 0).Fence)
			s.pass(key, "holder", "", 0, true)
		}
	}},
	{"ConfirmRaisesNothingElse", "A Voter raises no fence for a Confirmation whose Token does not hold its Key, or whose Fence is lower than the last.", func(s *scene) {
		key, other := s.key(), s.key()
		fence := s.settled(key) + ahead
		s.grant(key, "holder")
		s.confirm([]quorum.Confirmation{
			confirmation(key, "stranger", long, fence), confirmation(other, "holder", long, fence),
			confirmation(key, "holder", long, 0), confirmation(key, "holder", long, math.MinInt64), confirmation(key, "holder", long, 1),
		}, false, false, true, true, true)
		for _, key := range []string{key, other} {
			b := s.grant(key, "holder")
			require.False(s, b.Fence >= fence && b.Clock < fence, "a grant has the fence %d, though nobody who held the key was confirmed with %d", b.Fence, fence)
		}
	}},
	{"PassIsRelease", "A Voter releases in Pass as Release does: token's lease or place ends, and the first in the queue gets the key if to does not wait.", func(s *scene) {
		key := s.heldKey()
		s.pass(key, "stranger", "", 0, false)
		s.held(key, "holder")
		s.pass(key, "holder", "", 0, true)
		s.pass(key, "holder", "", 0, false)
		for _, to := range []string{"", "elsewhere"} {
			s.grant(key, "holder")
			released, next := s.wait(key, "released "+to, 1), s.wait(key, "next "+to, 2)
			s.pass(key, released.token, "", 0, false)
			s.pass(key, "holder", to, 0, true)
			s.served(next, released)
			released.cancel()
			s.until("a wait ends with its ctx", released.over.Load)
			s.pass(key, released.token, "", 0, false)
			s.pass(key, next.token, "", 0, true)
		}
		s.grant(key, "holder")
	}},
	{"PassToOne", "A Voter grants a key that is passed to a waiter to that one before all others.", func(s *scene) {
		key := s.heldKey()
		first, second, third := s.wait(key, "first", 1), s.wait(key, "second", 2), s.wait(key, "third", 3)
		s.pass(key, "holder", "second", 0, true)
		s.served(second, first, third)
		s.pass(key, "second", "third", 0, true)
		s.served(third, first)
		s.pass(key, "third", "", 0, true)
		s.served(first)
	}},
	// It gives waiters time: one that has only just come may not be reached yet, and fetches its
	// grant itself, without the floor.
	{"PassCarriesFloor", "A Voter gives a waiter that gets the key by Pass the floor as its fence, as in Vote.", func(s *scene) {
		key := s.key()
		s.settled(key)
		s.grant(key, "holder")
		first := s.wait(key, "first", 1)
		time.Sleep(short << s.try)
		floor := s.refuse(s.a, key, "holder").Clock + ahead
		s.pass(key, "holder", "first", floor, true)
		fence := s.served(first)
		if fence < floor && s.try < tries-2 {
			s.slow = true
			return
		}
		s.hasFloor(fence, floor, s.refuse(s.a, key, "first").Clock)
		next := s.wait(key, "next", 1)
		s.pass(key, "first", "", math.MaxInt64, true)
		got := s.served(next)
		most := max(fence+numbers, s.refuse(s.a, key, "next").Clock+second)
		require.LessOrEqual(s, got, most, "the fence of a waiter that was granted the key by Pass")
	}},
	{"PlacesOrderWaiters", "A Voter that is a VoteAcquirer serves waiters in the order of their places, whenever they came, or of their tokens if places are equal.", func(s *scene) {
		const gap = 1000
		key := s.heldKey()
		waiting := make([]*waiter, 6)
		for i, w := range []struct {
			turn  int
			place int64
			token string
		}{{3, 3 * gap, "b"}, {5, 1 << 53, "at the end"}, {2, 3 * gap, "a"}, {1, 2 * gap, "z"}, {4, 1<<53 - gap, "c"}, {0, 1, "x"}} {
			waiting[w.turn] = s.waitAt([]Client{s.a, s.b}[w.turn/2%2], key, w.token, w.place, i+1)
		}
		s.servedInTurn(key, "holder", waiting...)
	}},
	{"PlaceIsBehindAll", "A Voter that is a VoteAcquirer gives those it refuses a Place behind all who wait, and not before Clock.", func(s *scene) {
		key := s.heldKey()
		far := s.refuse(s.a, key, "holder").Clock + time.Hour.Microseconds()
		first := s.waitAt(s.a, key, "b", far, 1)
		place := s.refuse(s.a, key, "holder").Place
		require.Greater(s, place, far, "Place of a vote that is refused, though another waits")
		s.servedInTurn(key, "holder", first, s.waitAt(s.a, key, "a", place, 2))
	}},
	// It has a token move from the end of the queue to its beginning, and back. The Place of others
	// shows when it has moved.
	{"PlaceMoves", "A Voter that is a VoteAcquirer moves a token that waits again to the new place.", func(s *scene) {
		const gap = 1000
		for _, toTheEnd := range []bool{false, true} {
			key := s.heldKey()
			first := s.refuse(s.a, key, "holder").Clock + time.Hour.Microseconds()
			last := first + 3*gap
			from, to := last, first
			if toTheEnd {
				from, to = first, last
			}
			before := s.waitAt(s.a, key, "moves", from, 1)
			before.cancel()
			s.until("a wait ends with its ctx", before.over.Load)
			x, y := s.waitAt(s.a, key, "x", first+gap, 1), s.waitAt(s.a, key, "y", first+2*gap, 2)
			moves := s.waitAt(s.a, key, "moves", to, 3)
			s.until("a token that waits again has moved", func() bool {
				return (s.refuse(s.a, key, "holder").Place > last) == toTheEnd
			})
			order := []*waiter{moves, x, y}
			if toTheEnd {
				order = []*waiter{x, y, moves}
			}
			s.servedInTurn(key, "holder", order...)
		}
	}},
	{"PassedTokenQueuesAgain", "A Voter that is a VoteAcquirer lets a token that passed its vote on wait again with the same place, as often as it likes.", func(s *scene) {
		key := s.key()
		holder, place, fence := "one", int64(1), s.grant(key, "one").Fence
		w := s.waitAt(s.a, key, "other", 2, 1)
		for range 6 {
			require.False(s, w.over.Load(), "the wait of %s, while %s held the key", w.token, holder)
			s.pass(key, holder, w.token, 0, true)
			next := s.served(w)
			s.above(fence, next)
			fence = next
			holder, w, place = w.token, s.waitAt(s.a, key, holder, place, 1), 3-place
		}
		require.False(s, w.over.Load(), "the wait of %s, while %s held the key", w.token, holder)
		s.held(key, holder)
	}},
}
