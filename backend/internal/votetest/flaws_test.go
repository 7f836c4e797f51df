package votetest

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A flaw is what is wrong with a Voter, the harm that this does, and the clauses that are broken. Each was
// made for the first of its clauses.
type flaw struct {
	name, wrong, harm string
	breaks            []string
	hook              hook // in place of request.send
}

var flaws = []flaw{
	{name: "none", hook: request.send},
	{name: "voteTakesAgain", wrong: "A vote by the token that holds already is SET with the new TTL.",
		harm:   "A repeated vote ends before the deadline that its first answer gave.",
		breaks: names{"VoteIsTryAcquire"}, hook: on("Vote", func(r request) (answer, error) {
			if r.ctx.Err() != nil {
				return r.send()
			}
			again, _ := r.store.Pass(r.ctx, r.key, r.token, "", 0)
			a, err := r.send()
			a.Fresh = a.Fresh && !again
			return a, err
		})},
	causeOf("Vote"), causeOf("Confirm"), causeOf("Pass"), causeOf("AcquireVote"), causeOf("wait"),
	{name: "alwaysFresh", wrong: "Every grant is called fresh.",
		harm:   "An attempt that fails elsewhere releases the vote of the lease that its token holds.",
		breaks: names{"FreshVotes"}, hook: after("Vote", func(_ request, a *answer) { a.Fresh = a.Acquired })},
	{name: "noFloor", wrong: "The floor is ignored.",
		harm:   "Each node has another fence, so every acquisition takes a second round trip.",
		breaks: names{"FloorsGiveEqualFences", "FloorIsClamped"}, hook: before("Vote", func(r *request) { r.floor = 0 })},
	{name: "anyFloor", wrong: "The floor is believed, however large it is.",
		harm: "One client with a wrong clock drives the fences far ahead. After a loss of data they begin at the clock, " +
			"and the resource refuses every holder.",
		breaks: names{"FloorIsClamped"}, hook: on("Vote", func(r request) (answer, error) {
			a, err := r.send()
			if err != nil || !a.Acquired || r.floor <= a.Clock+second {
				return a, err
			}
			a.Fence = min(r.floor, 1<<60)
			_, err = r.store.Confirm(r.ctx, []quorum.Confirmation{confirmation(r.key, r.token, r.ttl, a.Fence)})
			return a, err
		})},
	{name: "ageAtFirstSight", wrong: "The age of the store is read when the client connects.",
		harm:   "A node that was young once never votes for this client.",
		breaks: names{"AgeGrows"},
		hook:   after("Vote", func(r request, a *answer) { a.Age = min(a.Age, r.remembers("age", a.Age).(time.Duration)) })},
	{name: "uptime", wrong: "The age of the store is the uptime of its process.",
		harm:   "A store that was emptied votes for a second holder while the first believes in its lease.",
		breaks: names{"AgeAfterDataLoss"},
		hook:   after("Vote", func(r request, a *answer) { a.Age = time.Since(r.remembers("start", time.Now()).(time.Time)) })},
	{name: "namesTheConnection", wrong: "The name of the store is that of the connection.",
		harm:   "Two addresses of one server count as two nodes, which is no majority.",
		breaks: names{"SameStore"},
		hook:   after("Vote", func(r request, a *answer) { a.Store = r.remembers("name", rand.Text()).(string) })},
	{name: "confirmOnlyLooks", wrong: "A confirmation says who holds, and raises fences, but extends no lease.",
		harm:   "The lease ends before its holder thinks that it does.",
		breaks: names{"ConfirmRenews"}, hook: eachConfirmed(func(c *quorum.Confirmation) { c.TTL = time.Millisecond })},
	{name: "raisesNothing", wrong: "A confirmation renews, and leaves the fence counter as it is.",
		harm:   "The next holder may have a lower fence, and the resource refuses it.",
		breaks: names{"ConfirmRaisesFences"}, hook: eachConfirmed(func(c *quorum.Confirmation) { c.Fence = 0 })},
	{name: "raisesAlways", wrong: "A confirmation raises the fence counter whether or not the token holds the key.",
		harm: "A late confirmation of a dead lease drives the fences of others ahead of the clock, and a fence counts as " +
			"confirmed on nodes that the holder has lost.",
		breaks: names{"ConfirmRaisesNothingElse"}, hook: on("Confirm", func(r request) (answer, error) {
			raise := rand.Text()
			if _, err := r.store.TryAcquire(r.ctx, raise, raise, time.Second); err != nil {
				return answer{}, err
			}
			defer r.store.Release(r.ctx, raise, raise)
			for _, c := range r.batch {
				_, err := r.store.Confirm(r.ctx, []quorum.Confirmation{confirmation(raise, raise, time.Second, c.Fence)})
				if err != nil {
					return answer{}, err
				}
			}
			return r.send()
		})},
	{name: "passesOnlyWhatIsHeld", wrong: "A token that only waits has nothing to pass on.",
		harm:   "The key is granted to one who has given up.",
		breaks: names{"PassIsRelease"}, hook: on("Pass", func(r request) (answer, error) {
			if h, err := r.store.Inspect(r.ctx, r.key); err != nil || h.Token != r.token {
				return answer{}, err
			}
			return r.send()
		})},
	{name: "passesToTheFirst", wrong: "The key that is passed to one waiter goes to the first.",
		harm:   "The votes of a majority that was split stay split.",
		breaks: names{"PassToOne"}, hook: before("Pass", func(r *request) { r.to = "" })},
	{name: "passesWithoutFloor", wrong: "The floor is only for votes without a wait.",
		harm:   "A waiter has another fence from each node, so every handover takes a second round trip.",
		breaks: names{"PassCarriesFloor"}, hook: before("Pass", func(r *request) { r.floor = 0 })},
	{name: "placesByArrival", wrong: "The queue is in the order of arrival.",
		harm:   "The queues of several nodes differ, and a release gives each waiter some of the votes.",
		breaks: names{"PlacesOrderWaiters", "PlaceIsBehindAll", "PlaceMoves"},
		hook: on("AcquireVote", func(r request) (a answer, err error) {
			a.Ballot, err = r.store.Vote(r.ctx, r.key, r.token, r.ttl, r.floor)
			if err == nil && !a.Acquired {
				a.Attempt, err = r.store.Acquire(r.ctx, r.key, r.token, r.ttl)
			}
			return a, err
		})},
	{name: "tiesByArrival", wrong: "Of two waiters with the same place, the first that came is served first.",
		harm:   "Two clients that begin in the same microsecond have another order on each node.",
		breaks: names{"PlacesOrderWaiters"}, hook: before("AcquireVote", func(r *request) {
			r.place = min(r.place+r.remembers("arrivals", new(atomic.Int64)).(*atomic.Int64).Add(1), 1<<53)
		})},
	{name: "placeIsTheClock", wrong: "The place of a newcomer is the store's clock.",
		harm:   "Where clocks differ, a newcomer stands before those who wait.",
		breaks: names{"PlaceIsBehindAll", "PlaceMoves"},
		hook:   after("Vote", func(_ request, a *answer) { a.Place = min(a.Place, a.Clock) })},
	{name: "keepsThePlace", wrong: "A token that is in the queue stays where it is (ZADD NX).",
		harm:   "It has another place in the queues of other nodes, and a release splits the votes.",
		breaks: names{"PlaceMoves"}, hook: on("AcquireVote", func(r request) (answer, error) {
			r.place = r.remembers(r.key+r.token, r.place).(int64)
			a, err := r.send()
			if err == nil {
				r.memo.Delete(r.key + r.token)
			}
			return a, err
		})},
	{name: "staleGrant", wrong: "The message of a grant stays in the waiter's inbox until its next wait.",
		harm:   "A token that passed its vote on and waits again believes that it has the vote.",
		breaks: names{"PassedTokenQueuesAgain"}, hook: on("AcquireVote", func(r request) (answer, error) {
			if a, ok := r.memo.LoadAndDelete(r.key + r.token); ok && r.ctx.Err() == nil {
				return a.(answer), nil
			}
			if b, err := r.store.Vote(r.ctx, r.key, r.token, r.ttl, r.floor); err != nil || b.Acquired {
				return answer{Ballot: b}, err
			}
			a, err := r.send()
			if err == nil {
				r.memo.Store(r.key+r.token, a)
			}
			return a, err
		})},
}

// causeOf is the flaw of one method, or of a wait.
func causeOf(method string) flaw {
	return flaw{
		name: "causeOfItsVote " + method, breaks: names{"VoteIsTryAcquire"},
		wrong: "A method returns the cause of its ctx's end, not the ctx's error: before its call, or if that ends its wait.",
		harm:  "A node counts as failed, since a caller has gone.",
		hook: func(r request) (answer, error) {
			called := r.method
			if called == "AcquireVote" && r.ctx.Err() == nil {
				called = "wait"
			}
			a, err := r.send()
			if called == method && err != nil && r.ctx.Err() != nil {
				err = context.Cause(r.ctx)
			}
			return a, err
		},
	}
}

type names = []string

// A voter is a client of a store in memory, with a flaw.
type voter struct {
	*memory.Locker
	hook hook
	memo sync.Map // what the client remembers
}

type hook func(request) (answer, error)

// A request is a call of a method, with the arguments that this has.
type request struct {
	method         string
	store          *memory.Locker
	memo           *sync.Map
	ctx            context.Context
	key, token, to string
	ttl            time.Duration
	floor, place   int64
	batch          []quorum.Confirmation
}

// An answer has the results that a method has.
type answer struct {
	quorum.Ballot
	ballots []quorum.Ballot
	held    bool
}

// send makes the call as it should be.
func (r request) send() (a answer, err error) {
	switch r.method {
	case "Vote":
		a.Ballot, err = r.store.Vote(r.ctx, r.key, r.token, r.ttl, r.floor)
	case "AcquireVote":
		a.Ballot, err = r.store.AcquireVote(r.ctx, r.key, r.token, r.ttl, r.floor, r.place)
	case "Confirm":
		a.ballots, err = r.store.Confirm(r.ctx, r.batch)
	case "Pass":
		a.held, err = r.store.Pass(r.ctx, r.key, r.token, r.to, r.floor)
	}
	return a, err
}

// remembers returns what the client remembers under name, which is v the first time.
func (r request) remembers(name string, v any) any {
	v, _ = r.memo.LoadOrStore(name, v)
	return v
}

// on is the hook that does something else in one method.
func on(method string, do hook) hook {
	return func(r request) (answer, error) {
		if r.method != method {
			return r.send()
		}
		return do(r)
	}
}

// before is the hook that changes a request before it is sent.
func before(method string, change func(*request)) hook {
	return on(method, func(r request) (answer, error) {
		change(&r)
		return r.send()
	})
}

// after is the hook that changes an answer.
func after(method string, change func(request, *answer)) hook {
	return on(method, func(r request) (answer, error) {
		a, err := r.send()
		if err == nil {
			change(r, &a)
		}
		return a, err
	})
}

// eachConfirmed is the hook that changes each element of a batch.
func eachConfirmed(change func(*quorum.Confirmation)) hook {
	return before("Confirm", func(r *request) {
		r.batch = append([]quorum.Confirmation(nil), r.batch...)
		for i := range r.batch {
			change(&r.batch[i])
		}
	})
}

func (v *voter) call(ctx context.Context, method string, r request) (answer, error) {
	r.ctx, r.method, r.store, r.memo = ctx, method, v.Locker, &v.memo
	return v.hook(r)
}

func (v *voter) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	a, err := v.call(ctx, "Vote", request{key: key, token: token, ttl: ttl, floor: floor})
	return a.Ballot, err
}

func (v *voter) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	a, err := v.call(ctx, "AcquireVote", request{key: key, token: token, ttl: ttl, floor: floor, place: place})
	return a.Ballot, err
}

func (v *voter) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	a, err := v.call(ctx, "Confirm", request{batch: batch})
	return a.ballots, err
}

func (v *voter) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	a, err := v.call(ctx, "Pass", request{key: key, token: token, to: to, floor: floor})
	return a.held, err
}
