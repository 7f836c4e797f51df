// Package quorum has what a majority of independent stores asks of each: votes. It is for authors of
// backends that package redlock uses as nodes. Applications need nothing of it.
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
// keys or refuses calls would be bypassed. A decorator that wants to be a Voter has its methods
// itself.
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

	// Place is a place behind all who wait for the key now, and not before Clock, if the key
	// was not acquired.
	Place int64

	// Err is the error of this element of a batch, or nil.
	Err error
}
