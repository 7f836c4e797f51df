package museum

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
)

var voting = []Exhibit{
	{Name: "voteTakesAgain", Cases: names{"VoteIsTryAcquire"}, BeyondModel: true, votes: onMemory[voteTakesAgain]},
	{Name: "causeOfItsVote Vote", Cases: names{"VoteIsTryAcquire"}, BeyondModel: true, votes: voteCausing("Vote")},
	{Name: "causeOfItsVote Confirm", Cases: names{"VoteIsTryAcquire"}, BeyondModel: true, votes: voteCausing("Confirm")},
	{Name: "causeOfItsVote Pass", Cases: names{"VoteIsTryAcquire"}, BeyondModel: true, votes: voteCausing("Pass")},
	{Name: "causeOfItsVote AcquireVote", Cases: names{"VoteIsTryAcquire"}, BeyondModel: true, votes: voteCausing("AcquireVote")},
	{Name: "causeOfItsVote wait", Cases: names{"VoteIsTryAcquire"}, BeyondModel: true, votes: voteCausing("wait")},
	{Name: "alwaysFresh", Cases: names{"FreshVotes"}, BeyondModel: true, votes: onMemory[alwaysFresh]},
	{Name: "noFloor", Cases: names{"FloorsGiveEqualFences"}, Also: names{"FloorIsClamped"}, BeyondModel: true, votes: onMemory[noFloor]},
	{Name: "anyFloor", Cases: names{"FloorIsClamped"}, BeyondModel: true, votes: onMemory[anyFloor]},
	{Name: "ageAtFirstSight", Cases: names{"AgeGrows"}, BeyondModel: true, votes: func(m *memory.Locker) dlock.Locker { return &ageAtFirstSight{Locker: m} }},
	{Name: "uptime", Cases: names{"AgeAfterDataLoss"}, BeyondModel: true, votes: func(m *memory.Locker) dlock.Locker { return &uptime{m, time.Now()} }},
	{Name: "namesTheConnection", Cases: names{"SameStore"}, BeyondModel: true, votes: func(m *memory.Locker) dlock.Locker { return &namesTheConnection{m, rand.Text()} }},
	{Name: "confirmOnlyLooks", Cases: names{"ConfirmRenews"}, BeyondModel: true, votes: onMemory[confirmOnlyLooks]},
	{Name: "raisesNothing", Cases: names{"ConfirmRaisesFences"}, BeyondModel: true, votes: onMemory[raisesNothing]},
	{Name: "raisesAlways", Cases: names{"ConfirmRaisesNothingElse"}, BeyondModel: true, votes: onMemory[raisesAlways]},
	{Name: "passesOnlyWhatIsHeld", Cases: names{"PassIsRelease"}, BeyondModel: true, votes: onMemory[passesOnlyWhatIsHeld]},
	{Name: "passesToTheFirst", Cases: names{"PassToOne"}, Also: names{"PassedTokenQueuesAgain"}, BeyondModel: true, votes: onMemory[passesToTheFirst]},
	{Name: "passesWithoutFloor", Cases: names{"PassCarriesFloor"}, BeyondModel: true, votes: onMemory[passesWithoutFloor]},
	{Name: "placesByArrival", Cases: names{"PlacesOrderWaiters", "PlaceMoves"}, Also: names{"PlaceIsBehindAll"}, BeyondModel: true, votes: onMemory[placesByArrival]},
	{Name: "tiesByArrival", Cases: names{"PlacesOrderWaiters"}, BeyondModel: true, votes: func(m *memory.Locker) dlock.Locker { return &tiesByArrival{Locker: m} }},
	{Name: "placeIsTheClock", Cases: names{"PlaceIsBehindAll"}, BeyondModel: true, votes: onMemory[placeIsTheClock]},
	{Name: "keepsThePlace", Cases: names{"PlaceMoves"}, BeyondModel: true, votes: func(m *memory.Locker) dlock.Locker { return &keepsThePlace{Locker: m} }},
	{Name: "staleGrant", Cases: names{"PassedTokenQueuesAgain"}, BeyondModel: true, votes: func(m *memory.Locker) dlock.Locker { return &staleGrant{Locker: m} }},
}

// A vote by the token that holds already is SET with the new TTL.
// Seen: made for its case.
// Harm: a repeated vote ends before the deadline that its first answer gave.
// Right: extend to the longer of both.
type voteTakesAgain struct{ *memory.Locker }

func (l *voteTakesAgain) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	if ctx.Err() != nil {
		return quorum.Ballot{}, ctx.Err()
	}
	again, _ := l.Pass(ctx, key, token, "", 0)
	b, err := l.Locker.Vote(ctx, key, token, ttl, floor)
	b.Fresh = b.Fresh && !again
	return b, err
}

// A method returns the cause of its ctx's end, not the ctx's error: before its call, or if that
// ends its wait.
// Seen: made for its case.
// Harm: a node counts as failed, since a caller has gone.
// Right: the error of the ctx.
type causeOfItsVote struct {
	*memory.Locker
	method string
}

func voteCausing(method string) func(*memory.Locker) dlock.Locker {
	return func(m *memory.Locker) dlock.Locker { return &causeOfItsVote{m, method} }
}

func (l *causeOfItsVote) of(ctx context.Context, method string, err error) error {
	if method == l.method && err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (l *causeOfItsVote) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	b, err := l.Locker.Vote(ctx, key, token, ttl, floor)
	return b, l.of(ctx, "Vote", err)
}

func (l *causeOfItsVote) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	b, err := l.Locker.Confirm(ctx, batch)
	return b, l.of(ctx, "Confirm", err)
}

func (l *causeOfItsVote) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	held, err := l.Locker.Pass(ctx, key, token, to, floor)
	return held, l.of(ctx, "Pass", err)
}

func (l *causeOfItsVote) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	method := "wait"
	if ctx.Err() != nil {
		method = "AcquireVote"
	}
	b, err := l.Locker.AcquireVote(ctx, key, token, ttl, floor, place)
	return b, l.of(ctx, method, err)
}

// Every grant is called fresh.
// Seen: made for its case.
// Harm: an attempt that fails elsewhere releases the vote of the lease that its token holds.
// Right: compare with who held before.
type alwaysFresh struct{ *memory.Locker }

func (l *alwaysFresh) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	b, err := l.Locker.Vote(ctx, key, token, ttl, floor)
	b.Fresh = b.Acquired
	return b, err
}

// The floor is ignored.
// Seen: made for its case.
// Harm: each node has another fence, so every acquisition takes a second round trip.
// Right: the floor, within a second of the clock.
type noFloor struct{ *memory.Locker }

func (l *noFloor) Vote(ctx context.Context, key, token string, ttl time.Duration, _ int64) (quorum.Ballot, error) {
	return l.Locker.Vote(ctx, key, token, ttl, 0)
}

// The floor is believed, however large it is.
// Seen: made for its case.
// Harm: one client with a wrong clock drives the fences far ahead. After a loss of data they
// begin at the clock, and the resource refuses every holder.
// Right: at most a second after the store's clock.
type anyFloor struct{ *memory.Locker }

func (l *anyFloor) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	b, err := l.Locker.Vote(ctx, key, token, ttl, floor)
	if err != nil || !b.Acquired || floor <= b.Clock+time.Second.Microseconds() {
		return b, err
	}
	c := quorum.Confirmation{Renewal: dlock.Renewal{Key: key, Token: token, TTL: ttl}, Fence: min(floor, 1<<60)}
	_, err = l.Confirm(ctx, []quorum.Confirmation{c})
	b.Fence = c.Fence
	return b, err
}

// The age of the store is read when the client connects.
// Seen: made for its case.
// Harm: a node that was young once never votes for this client.
// Right: read it with each vote.
type ageAtFirstSight struct {
	*memory.Locker
	once sync.Once
	age  time.Duration
}

func (l *ageAtFirstSight) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	b, err := l.Locker.Vote(ctx, key, token, ttl, floor)
	l.once.Do(func() { l.age = b.Age })
	b.Age = min(b.Age, l.age)
	return b, err
}

// The age of the store is the uptime of its process.
// Seen: made for its case.
// Harm: a store that was emptied votes for a second holder while the first believes in its lease.
// Right: since it was started, emptied or promoted.
type uptime struct {
	*memory.Locker
	start time.Time
}

func (l *uptime) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	b, err := l.Locker.Vote(ctx, key, token, ttl, floor)
	b.Age = time.Since(l.start)
	return b, err
}

// The name of the store is that of the connection.
// Seen: made for its case.
// Harm: two addresses of one server count as two nodes, which is no majority.
// Right: a name that the store keeps.
type namesTheConnection struct {
	*memory.Locker
	name string
}

func (l *namesTheConnection) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	b, err := l.Locker.Vote(ctx, key, token, ttl, floor)
	b.Store = l.name
	return b, err
}

// A confirmation says who holds, and raises fences, but extends no lease.
// Seen: made for its case.
// Harm: the lease ends before its holder thinks that it does.
// Right: renew in the same step.
type confirmOnlyLooks struct{ *memory.Locker }

func (l *confirmOnlyLooks) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	return l.Locker.Confirm(ctx, each(batch, func(c *quorum.Confirmation) { c.TTL = time.Millisecond }))
}

// each returns batch with f applied to each element.
func each(batch []quorum.Confirmation, f func(*quorum.Confirmation)) []quorum.Confirmation {
	changed := append([]quorum.Confirmation(nil), batch...)
	for i := range changed {
		f(&changed[i])
	}
	return changed
}

// A confirmation renews, and leaves the fence counter as it is.
// Seen: made for its case.
// Harm: the next holder may have a lower fence, and the resource refuses it.
// Right: raise the counter where the token holds the key.
type raisesNothing struct{ *memory.Locker }

func (l *raisesNothing) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	return l.Locker.Confirm(ctx, each(batch, func(c *quorum.Confirmation) { c.Fence = 0 }))
}

// A confirmation raises the fence counter whether or not the token holds the key.
// Seen: made for its case.
// Harm: a late confirmation of a dead lease drives the fences of others ahead of the clock, and a
// fence counts as confirmed on nodes that the holder has lost.
// Right: raise it only where the token holds the key.
type raisesAlways struct{ *memory.Locker }

func (l *raisesAlways) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	raise := rand.Text()
	if _, err := l.Vote(ctx, raise, raise, time.Second, 0); err != nil {
		return nil, err
	}
	defer l.Release(ctx, raise, raise)
	raised := each(batch, func(c *quorum.Confirmation) { c.Key, c.Token, c.TTL = raise, raise, time.Second })
	if _, err := l.Locker.Confirm(ctx, raised); err != nil {
		return nil, err
	}
	return l.Locker.Confirm(ctx, batch)
}

// A token that only waits has nothing to pass on.
// Seen: made for its case.
// Harm: the key is granted to one who has given up.
// Right: end the wait as well.
type passesOnlyWhatIsHeld struct{ *memory.Locker }

func (l *passesOnlyWhatIsHeld) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	if h, err := l.Inspect(ctx, key); err != nil || h.Token != token {
		return false, err
	}
	return l.Locker.Pass(ctx, key, token, to, floor)
}

// The key that is passed to one waiter goes to the first.
// Seen: made for its case.
// Harm: the votes of a majority that was split stay split.
// Right: grant it to the one that is named, if that waits.
type passesToTheFirst struct{ *memory.Locker }

func (l *passesToTheFirst) Pass(ctx context.Context, key, token, _ string, floor int64) (bool, error) {
	return l.Locker.Pass(ctx, key, token, "", floor)
}

// The floor is only for votes without a wait.
// Seen: made for its case.
// Harm: a waiter has another fence from each node, so every handover takes a second round trip.
// Right: the floor of the call that hands over.
type passesWithoutFloor struct{ *memory.Locker }

func (l *passesWithoutFloor) Pass(ctx context.Context, key, token, to string, _ int64) (bool, error) {
	return l.Locker.Pass(ctx, key, token, to, 0)
}

// The queue is in the order of arrival.
// Seen: made for its case.
// Harm: the queues of several nodes differ, and a release gives each waiter some of the votes.
// Right: order the queue by the places.
type placesByArrival struct{ *memory.Locker }

func (l *placesByArrival) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, _ int64) (quorum.Ballot, error) {
	b, err := l.Vote(ctx, key, token, ttl, floor)
	if err != nil || b.Acquired {
		return b, err
	}
	b.Attempt, err = l.Acquire(ctx, key, token, ttl)
	return b, err
}

// Of two waiters with the same place, the first that came is served first.
// Seen: made for its case.
// Harm: two clients that begin in the same microsecond have another order on each node.
// Right: order them by their tokens.
type tiesByArrival struct {
	*memory.Locker
	mu sync.Mutex
	n  int64
}

func (l *tiesByArrival) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	l.mu.Lock()
	l.n++
	place = min(place+l.n, 1<<53)
	l.mu.Unlock()
	return l.Locker.AcquireVote(ctx, key, token, ttl, floor, place)
}

// The place of a newcomer is the store's clock.
// Seen: made for its case.
// Harm: where clocks differ, a newcomer stands before those who wait.
// Right: behind the last in the queue, if that is later.
type placeIsTheClock struct{ *memory.Locker }

func (l *placeIsTheClock) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	b, err := l.Locker.Vote(ctx, key, token, ttl, floor)
	b.Place = min(b.Place, b.Clock)
	return b, err
}

// A token that is in the queue stays where it is (ZADD NX).
// Seen: made for its case.
// Harm: it has another place in the queues of other nodes, and a release splits the votes.
// Right: move it.
type keepsThePlace struct {
	*memory.Locker
	places sync.Map // by the token
}

func (l *keepsThePlace) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	first, _ := l.places.LoadOrStore(token, place)
	b, err := l.Locker.AcquireVote(ctx, key, token, ttl, floor, first.(int64))
	if err == nil {
		l.places.Delete(token)
	}
	return b, err
}

// The message of a grant stays in the waiter's inbox until its next wait.
// Seen: made for its case.
// Harm: a token that passed its vote on and waits again believes that it has the vote.
// Right: a grant is that of one wait.
type staleGrant struct {
	*memory.Locker
	inbox sync.Map // token → quorum.Ballot
}

func (l *staleGrant) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	if b, ok := l.inbox.LoadAndDelete(token); ok && ctx.Err() == nil {
		return b.(quorum.Ballot), nil
	}
	if b, err := l.Vote(ctx, key, token, ttl, floor); err != nil || b.Acquired {
		return b, err
	}
	b, err := l.Locker.AcquireVote(ctx, key, token, ttl, floor, place)
	if err == nil {
		l.inbox.Store(token, b)
	}
	return b, err
}
