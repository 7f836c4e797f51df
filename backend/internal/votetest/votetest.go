// Package votetest checks the stores that vote: each clause of a Voter that package
// [github.com/dlock-go/dlock/backend/quorum] lists. They add to the contract of a Locker, which
// package conformance checks.
package votetest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A Store says how to reach a store that nobody else uses while a clause is checked.
type Store struct {
	New  func() Client // one more client, which the test that has opened the store closes
	Wipe func()        // makes the store lose everything
}

// A Client votes, and tells how many wait in its store.
type Client interface {
	quorum.VoteAcquirer
	dlock.Acquirer
	dlock.Inspector
}

// Run checks each clause as a subtest, on a store that open returns. The subtest calls stage with
// what is to be done: [testing/synctest.Test] is the stage of a store that lives in this process.
func Run(t *testing.T, stage func(*testing.T, func(*testing.T)), open func(*testing.T) Store) {
	for _, c := range clauses {
		t.Run(c.name, func(t *testing.T) {
			stage(t, func(t *testing.T) {
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("clause: %s", c.text)
					}
				})
				store := open(t)
				for try := range tries {
					if !c.play(t, store, try) {
						return
					}
				}
				tooSlow(t)
			})
		})
	}
}

// tooSlow skips a clause, or fails it where package conformance is strict.
func tooSlow(t interface {
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}) {
	end := t.Skipf
	if os.Getenv("DLOCK_CONFORMANCE_STRICT") == "1" {
		end = t.Fatalf
	}
	end("the machine was too slow to tell, %d times", tries)
}

const (
	tries   = 5                      // of a clause, while the machine is too slow to tell
	patient = 30 * time.Second       // for what must happen soon
	short   = 200 * time.Millisecond // a TTL that ends within the check
	long    = 10 * time.Minute       // a TTL that does not
)

// A clause is a promise of a Voter, and what checks it.
type clause struct {
	name, text string
	check      func(*scene)
}

var clauses = []clause{
	{"VoteIsTryAcquire", "A Voter grants and refuses as TryAcquire does, never shortens a lease, and heeds ctx as EndedContext says.", voteIsTryAcquire},
	{"FreshVotes", "A Voter calls a grant Fresh exactly if token did not hold key before.", freshVotes},
	{"FloorsGiveEqualFences", "A Voter makes the floor the fence if it is at most a second after the store's clock and at least 8 above the last fence.", floorsGiveEqualFences},
	{"FloorIsClamped", "A Voter gives no fence before the store's clock or more than a second after it, whatever the floor, unless it must exceed an earlier one.", floorIsClamped},
	{"AgeGrows", "A Voter measures Age on the store's clock: it grows by the time between two votes.", ageGrows},
	{"AgeAfterDataLoss", "A Voter whose store has lost everything has an Age of at most the time since then.", ageAfterDataLoss},
	{"SameStore", "A Voter names the same Store in all ballots on a key, for all clients and answers.", sameStore},
	{"ConfirmRenews", "A Voter renews in Confirm as RenewBatch does. Its ballots are in the order of the batch, with only Acquired, Age, Store and Clock set.", confirmRenews},
	{"ConfirmRaisesFences", "A Voter gives later grants fences above the Fence that the holder was confirmed with.", confirmRaisesFences},
	{"ConfirmRaisesNothingElse", "A Voter raises no fence for a Confirmation whose Token does not hold its Key, or whose Fence is lower than the last.", confirmRaisesNothingElse},
	{"PassIsRelease", "A Voter releases in Pass as Release does: token's lease or place ends, and the first in the queue gets the key if to does not wait.", passIsRelease},
	{"PassToOne", "A Voter grants a key that is passed to a waiter to that one before all others.", passToOne},
	{"PassCarriesFloor", "A Voter gives a waiter that gets the key by Pass the floor as its fence, as in Vote.", passCarriesFloor},
	{"PlacesOrderWaiters", "A Voter that is a VoteAcquirer serves waiters in the order of their places, whenever they came, or of their tokens if places are equal.", placesOrderWaiters},
	{"PlaceIsBehindAll", "A Voter that is a VoteAcquirer gives those it refuses a Place behind all who wait, and not before Clock.", placeIsBehindAll},
	{"PlaceMoves", "A Voter that is a VoteAcquirer moves a token that waits again to the new place.", placeMoves},
	{"PassedTokenQueuesAgain", "A Voter that is a VoteAcquirer lets a token that passed its vote on wait again with the same place, as often as it likes.", passedTokenQueuesAgain},
}

// play checks c, and reports whether the machine was too slow to tell right from wrong.
func (c clause) play(t require.TestingT, store Store, try int) (slow bool) {
	s := &scene{TestingT: t, Store: store, prefix: fmt.Sprint(c.name, " ", try), try: try}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(context.Background())
	s.a, s.b = store.New(), store.New()
	defer s.waits.Wait()
	defer cancel()
	c.check(s)
	return s.slow
}
