// Package quorum defines votes, which package redlock asks of independent stores. It is for authors
// of backends that redlock uses as nodes. Applications do not need it.
//
// # The contract of a Voter
//
// A Voter keeps the [contract of a Locker], which package conformance checks, and these clauses. The
// stores of this module that vote, backend/memory and backend/rediscore, are tested for each of them by
// backend/internal/votetest.
//
//   - VoteIsTryAcquire: A Voter grants and refuses as TryAcquire does, never shortens a lease, and
//     heeds ctx as EndedContext says.
//   - FreshVotes: A Voter calls a grant Fresh exactly if token did not hold key before.
//   - FloorsGiveEqualFences: A Voter makes the floor the fence if it is at most a second after the
//     store's clock and at least 8 above the last fence.
//   - FloorIsClamped: A Voter gives no fence before the store's clock or more than a second after
//     it, whatever the floor, unless it must exceed an earlier one.
//   - AgeGrows: A Voter measures Age on the store's clock: it grows by the time between two votes.
//   - AgeAfterDataLoss: A Voter whose store has lost everything has an Age of at most the time
//     since then.
//   - SameStore: A Voter names the same Store in all ballots on a key, for all clients and answers.
//   - ConfirmRenews: A Voter renews in Confirm as RenewBatch does. Its ballots are in the order of
//     the batch, with only Acquired, Age, Store and Clock set.
//   - ConfirmRaisesFences: A Voter gives later grants fences above the Fence that the holder was
//     confirmed with.
//   - ConfirmRaisesNothingElse: A Voter raises no fence for a Confirmation whose Token does not
//     hold its Key, or whose Fence is lower than the last.
//   - PassIsRelease: A Voter releases in Pass as Release does: token's lease or place ends, and the
//     first in the queue gets the key if to does not wait.
//   - PassToOne: A Voter grants a key that is passed to a waiter to that one before all others.
//   - PassCarriesFloor: A Voter gives a waiter that gets the key by Pass the floor as its fence, as
//     in Vote.
//   - PlacesOrderWaiters: A Voter that is a VoteAcquirer serves waiters in the order of their
//     places, whenever they came, or of their tokens if places are equal.
//   - PlaceIsBehindAll: A Voter that is a VoteAcquirer gives those it refuses a Place behind all
//     who wait, and not before Clock.
//   - PlaceMoves: A Voter that is a VoteAcquirer moves a token that waits again to the new place.
//   - PassedTokenQueuesAgain: A Voter that is a VoteAcquirer lets a token that passed its vote on
//     wait again with the same place, as often as it likes.
//
// [contract of a Locker]: https://github.com/dlock-go/dlock/blob/main/docs/contract.md
package quorum

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
)

// A Voter is a [dlock.Locker] that can be one of several independent stores of which a majority
// decides: see package backend/redlock. Its methods do what those of Locker do, and say more
// about the store, which is called a node there.
//
// A Voter is found by a type assertion. [dlock.Forward] does not pass it on: a decorator that rewrites
// keys or refuses calls would be bypassed. A decorator that wants to be a Voter must implement its
// methods itself.
type Voter interface {
	dlock.Locker

	// Vote is TryAcquire with a floor for the fence. The fence of a grant is the floor, but at
	// least the present time of the store's clock and at most a second more, both in
	// microseconds; it is larger if it must exceed the fence of an earlier grant by 8. So
	// several stores give equal fences if their clocks nearly agree and the floor is a little
	// ahead of them. If token already holds key, the grant has a new fence too.
	Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (Ballot, error)

	// Confirm is RenewBatch. In addition, it raises the store's fence counter to the Fence of
	// each element whose Token holds its Key, so that later grants of Key have larger fences.
	// It raises nothing for the other elements. In the Ballots, Acquired says that Token holds
	// Key; Since, Fence, Fresh, Holder, Remaining and Place are zero.
	Confirm(ctx context.Context, batch []Confirmation) ([]Ballot, error)

	// Pass is Release with a floor, as for Vote, for the fence of the waiter that is granted
	// the key. If the token named by to waits in the store's queue, it is granted the key
	// before all others. An empty to means the first in the queue.
	Pass(ctx context.Context, key, token, to string, floor int64) (held bool, err error)
}

// A VoteAcquirer is a [Voter] whose store queues waiters by a place that they choose. Waiters
// who stand in the queues of several stores, with the same place in each, have the same order
// in all of them.
type VoteAcquirer interface {
	Voter

	// AcquireVote is [dlock.Acquirer.Acquire] with a floor for the fence of a grant without a wait,
	// and with a place in the queue. Waiters are granted the key in the order of their places;
	// if these are equal, in the order of their tokens. A place is positive and at most 1<<53.
	// A token that is still in the queue after an earlier wait moves to the new place.
	AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (Ballot, error)
}

// A Confirmation is one element of a batch for [Voter.Confirm]. A Fence of 0 raises nothing.
type Confirmation struct {
	dlock.Renewal
	Fence int64
}

// A Ballot is the answer of a [Voter].
type Ballot struct {
	dlock.Attempt

	// Fresh says that token did not hold the key before this call.
	Fresh bool

	// Age is for how long, at least, the store has forgotten nothing: since it was started,
	// emptied or promoted, as far as it knows. It is measured on the store's clock.
	Age time.Duration

	// Store identifies the store. Ballots of two Lockers with the same Store come from the
	// same store. It is empty if unknown.
	Store string

	// Clock is the time of the store's clock in microseconds, as in its fences.
	Clock int64

	// If the key was not acquired, Place is behind all who wait for it now, and not before Clock.
	Place int64

	// Err is the error of this element of a batch, or nil.
	Err error
}
