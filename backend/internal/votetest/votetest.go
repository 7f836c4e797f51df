// Package votetest checks the stores that vote: each clause of a Voter that package
// [github.com/dlock-go/dlock/backend/quorum] lists. They add to the contract of a Locker, which
// package conformance checks.
package votetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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
					s := &scene{T: t, Store: store, prefix: fmt.Sprint(c.name, " ", try), try: try, a: store.New(), b: store.New()}
					if !s.play(c.check) {
						return
					}
				}
				t.Fatalf("the machine was too slow to tell, %d times", tries)
			})
		})
	}
}

const (
	tries   = 5                      // of a clause, while the machine is too slow to tell
	patient = 30 * time.Second       // for what must happen soon
	short   = 200 * time.Millisecond // a TTL that ends within the check
	lapse   = 2 * short              // after which it has ended
	long    = 10 * time.Minute       // a TTL that does not
)

// A clause is a promise of a Voter, and what checks it.
type clause struct {
	name, text string
	check      func(*scene)
}

// A scene is the stage of one clause: two clients of a store, and keys. Its methods call the store, and
// fail unless the answer is right.
type scene struct {
	*testing.T
	Store
	a, b   Client
	ctx    context.Context // ends with the check
	prefix string          // of keys
	keys   int
	try    int  // how often the machine was too slow before
	slow   bool // the machine was too slow to tell right from wrong
	waits  sync.WaitGroup
}

// play makes a check, and reports whether the machine was too slow to tell right from wrong.
func (s *scene) play(check func(*scene)) (slow bool) {
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(context.Background())
	defer s.waits.Wait()
	defer cancel()
	check(s)
	return s.slow
}

// key returns one that was not used before.
func (s *scene) key() string {
	s.keys++
	return fmt.Sprint(s.prefix, " ", s.keys)
}

// A way is Vote, or an AcquireVote that need not wait.
type way func(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error)

func (s *scene) ways() []way {
	return []way{s.a.Vote, func(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
		return s.a.AcquireVote(ctx, key, token, ttl, floor, 1)
	}}
}

// elect makes a vote that must be granted.
func (s *scene) elect(vote way, key, token string, ttl time.Duration, floor int64) quorum.Ballot {
	b, err := vote(s.ctx, key, token, ttl, floor)
	require.NoError(s, err, "a vote for %s", token)
	require.True(s, b.Acquired, "a vote for %s: %+v; want it to be granted", token, b)
	require.False(s, b.Since.After(time.Now()), "a vote for %s has a Since that is after its answer: %+v", token, b)
	return b
}

// heldKey returns a key that "holder" holds.
func (s *scene) heldKey() string {
	key := s.key()
	s.grant(key, "holder")
	return key
}

// grant votes for token, for long.
func (s *scene) grant(key, token string) quorum.Ballot { return s.elect(s.a.Vote, key, token, long, 0) }

// refuse makes a vote of a stranger by c that must be refused, since token holds key.
func (s *scene) refuse(c Client, key, token string) quorum.Ballot {
	b, err := c.Vote(s.ctx, key, "stranger", long, 0)
	require.NoError(s, err, "a vote for a key that another holds")
	require.False(s, b.Acquired, "a vote for a key that %s holds: %+v", token, b)
	require.Equal(s, token, b.Holder, "Holder of a vote that is refused")
	require.GreaterOrEqual(s, b.Place, b.Clock, "Place of a vote that is refused")
	return b
}

// held checks that token holds key.
func (s *scene) held(key, token string) {
	s.refuse(s.b, key, token)
	a, err := s.b.TryAcquire(s.ctx, key, "stranger", long)
	require.NoError(s, err, "TryAcquire")
	require.False(s, a.Acquired, "TryAcquire of a key that %s holds: %+v", token, a)
}

// pass passes key on, and must answer want.
func (s *scene) pass(key, token, to string, floor int64, want bool) {
	held, err := s.a.Pass(s.ctx, key, token, to, floor)
	require.NoError(s, err, "Pass of %s to %q", token, to)
	require.Equal(s, want, held, "Pass of %s to %q", token, to)
}

// confirm confirms a batch whose elements must have these answers, and nothing else in their ballots.
func (s *scene) confirm(batch []quorum.Confirmation, want ...bool) {
	ballots, err := s.a.Confirm(s.ctx, batch)
	s.confirmed(batch, ballots, err, want...)
}

func (s *scene) confirmed(batch []quorum.Confirmation, ballots []quorum.Ballot, err error, want ...bool) {
	require.NoError(s, err, "Confirm")
	require.Len(s, ballots, len(want), "ballots of a batch")
	for i, b := range ballots {
		bare := quorum.Ballot{Age: b.Age, Store: b.Store, Clock: b.Clock}
		bare.Acquired = want[i]
		require.Equal(s, bare, b, "ballot %d, of %+v", i, batch[i])
	}
}

func confirmation(key, token string, ttl time.Duration, fence int64) quorum.Confirmation {
	return quorum.Confirmation{Renewal: dlock.Renewal{Key: key, Token: token, TTL: ttl}, Fence: fence}
}

// above checks the fences of two grants that follow each other.
func (s *scene) above(earlier, later int64) {
	require.GreaterOrEqual(s, later, earlier+numbers, "the fence of a later grant")
}

const (
	numbers = 8 // that a fence is larger than the last
	second  = int64(time.Second / time.Microsecond)
	ahead   = 9 * second / 10 // how far floors are after the clock
)

// settled returns the store's clock when the fences of key are not ahead of it.
func (s *scene) settled(key string) int64 {
	for {
		b := s.grant(key, "settles")
		s.pass(key, "settles", "", 0, true)
		if b.Fence <= b.Clock {
			return b.Clock
		}
		time.Sleep(time.Duration(b.Fence-b.Clock)*time.Microsecond + time.Millisecond)
	}
}

// hasFloor checks the fence of a grant that was made when the store's clock was that, or before.
func (s *scene) hasFloor(fence, floor, clock int64) {
	if clock > floor {
		s.slow = true
		return
	}
	require.Equal(s, floor, fence, "the fence of a grant with a floor, when the store's clock was %d", clock)
}

// A waiter is an AcquireVote or an Acquire in a goroutine.
type waiter struct {
	token  string
	cancel context.CancelFunc
	over   atomic.Bool // it has returned
	ballot quorum.Ballot
	err    error
}

// waitWith starts a wait by call, which ends with ctx, and returns when n wait for key.
func (s *scene) waitWith(ctx context.Context, key, token string, n int, call func(context.Context) (quorum.Ballot, error)) *waiter {
	w := &waiter{token: token}
	ctx, w.cancel = context.WithCancel(ctx)
	s.waits.Go(func() {
		defer w.over.Store(true)
		defer w.cancel()
		w.ballot, w.err = call(ctx)
	})
	s.until(fmt.Sprintf("%d wait", n), func() bool {
		hold, err := s.a.Inspect(s.ctx, key)
		return err == nil && hold.Waiting >= n || w.over.Load()
	})
	return w
}

// wait starts an Acquire.
func (s *scene) wait(key, token string, n int) *waiter {
	return s.waitWith(s.ctx, key, token, n, func(ctx context.Context) (b quorum.Ballot, err error) {
		b.Attempt, err = s.a.Acquire(ctx, key, token, long)
		return b, err
	})
}

// waitAt starts an AcquireVote by c.
func (s *scene) waitAt(c Client, key, token string, place int64, n int) *waiter {
	return s.waitWith(s.ctx, key, token, n, func(ctx context.Context) (quorum.Ballot, error) {
		return c.AcquireVote(ctx, key, token, long, 0, place)
	})
}

// until waits for a condition, which what describes.
func (s *scene) until(what string, condition func() bool) {
	for end := time.Now().Add(patient); !condition(); time.Sleep(time.Millisecond) {
		require.True(s, time.Now().Before(end), "within %v: %s", patient, what)
	}
}

// served checks that w is granted the key, and that the others are not.
func (s *scene) served(w *waiter, others ...*waiter) int64 {
	s.until(w.token+" is served, to whom the key was passed", w.over.Load)
	require.NoError(s, w.err, "the wait of %s", w.token)
	require.True(s, w.ballot.Acquired, "the wait of %s: %+v", w.token, w.ballot)
	for _, o := range others {
		require.False(s, o.over.Load() && o.err == nil, "%s was granted the key; want it to be granted to %s", o.token, w.token)
	}
	return w.ballot.Fence
}

// servedInTurn checks that waiting are served in this order, when token releases key, and each after it.
func (s *scene) servedInTurn(key, token string, waiting ...*waiter) {
	for i, w := range waiting {
		s.pass(key, token, "", 0, true)
		s.served(w, waiting[i+1:]...)
		token = w.token
	}
}

var errCause = errors.New("the cause of an end")

// heeds checks the error of a call whose ctx has ended.
func (s *scene) heeds(ctx context.Context, call string, err error) {
	require.ErrorIs(s, err, ctx.Err(), "%s, whose ctx has ended", call)
	require.NotErrorIs(s, err, errCause, "%s, whose ctx has ended", call)
}
