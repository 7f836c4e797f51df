package redlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	memorybackend "github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/bubble"
)

// open returns a Locker of so many nodes, which is closed in the end, and their stores.
func open(t *testing.T, n int, opts ...Option) (*Locker, []*memorybackend.Locker) {
	nodes, stores := make([]dlock.Locker, n), make([]*memorybackend.Locker, n)
	for i := range stores {
		stores[i] = memorybackend.New()
		nodes[i] = stores[i]
	}
	l := New(nodes, opts...)
	t.Cleanup(func() { l.Close() })
	return l, stores
}

func TestNumbers(t *testing.T) {
	l, _ := open(t, 3, WithNodeLimit(time.Second))
	type rests = []time.Duration
	for got, want := range map[time.Duration]time.Duration{
		voteTTL(60*time.Millisecond + 1): 61 * time.Millisecond,
		voteTTL(62 * time.Millisecond):   62 * time.Millisecond,
		voteTTL(time.Millisecond):        50 * time.Millisecond,
		voteTTL(maxDefault + 1):          maxDefault + 1,

		l.patience(3 * time.Second):      300 * time.Millisecond, // a tenth
		l.patience(time.Millisecond) - 1: 50*time.Millisecond - 1,
		l.patience(time.Hour):            time.Second,

		l.rest(rests{3, 9}, 1):     9, // the one that is missing may hold it for longer
		l.rest(rests{3, 9, 7}, 0):  7,
		l.rest(rests{-1, 5}, 1):    -1, // for ever
		l.rest(rests{-1, 5, 6}, 0): 6,
		l.rest(nil, 3):             0,
	} {
		require.Equal(t, want, got)
	}
	require.Zero(t, l.rest(rests{0, 0, 0}, 0), "unknown, and not for ever")
}

// The floor of fences is ahead of the fastest of the nodes' clocks by more than a request takes.
func TestFloor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, _ := open(t, 3)
		l.nodes[1].ahead.Store(7e6)
		l.trip.Store(int64(time.Millisecond))
		require.Equal(t, time.Now().Add(9*time.Millisecond).UnixMicro()+7e6, l.floor())
	})
}

// A vote does not count from the moment it is given back, not only when that is answered.
func TestAVoteThatIsGivenBackDoesNotCount(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, stores := open(t, 3, WithoutGuard())
		v := l.newVoting(t.Context(), "key", "token", time.Second)
		for i := range 2 {
			v.vote(i, l.floor())
			v.note(<-v.answers)
		}
		require.Equal(t, 2, v.counted())
		stores[1].Delay(time.Millisecond)
		v.pass(1, "", l.floor())
		require.Equal(t, 1, v.counted(), "while one is given back")
		v.note(<-v.answers)
		require.Equal(t, 1, v.counted(), "after one was given back")
		v.end(isKept)
	})
}

// A confirmation that came too late dates no vote. Its node has answered all the same: the attempt goes on.
func TestLapsedVotesAreNoFailure(t *testing.T) {
	l, _ := open(t, 3, WithoutGuard())
	v := l.newVoting(t.Context(), "key", "token", time.Second)
	for i := range v.seats {
		v.seats[i] = seat{granted: true, since: time.Now().Add(-time.Minute)}
		v.flying++
		v.note(reply{request: request{sent: time.Now()}, node: i, kind: confirmed, ballot: quorum.Ballot{Attempt: dlock.Attempt{Acquired: true}}})
	}
	require.Zero(t, v.counted(), "a confirmation dates a vote only while that is in date")
	require.NoError(t, v.lack())
	v.end(isKept)
}

func TestWaitOfErrors(t *testing.T) {
	const soon, late, later = time.Second, time.Minute, time.Hour
	down := errors.New("down")
	l, _ := open(t, 3)
	for _, c := range []struct {
		nodes [3]error
		want  time.Duration
	}{
		{[3]error{nil, &youngError{late}, errSplit}, 0},
		{[3]error{errSplit, &youngError{late}, errSplit}, 0},
		{[3]error{nil, &youngError{late}, errRepeated}, 0},
		{[3]error{nil, &youngError{late}, errPending}, late},
		{[3]error{nil, &youngError{late}, down}, late},
		{[3]error{nil, &youngError{late}, &youngError{soon}}, soon},
		{[3]error{&youngError{later}, &youngError{late}, &youngError{soon}}, late},
		{[3]error{down, &youngError{late}, down}, 0},
	} {
		var e *MajorityError
		require.ErrorAs(t, l.failure(c.nodes[:], false), &e)
		require.Equal(t, c.want, e.Wait, "%v", e)
	}
}

// A vote that was given back, and was given to the token again by somebody else, is not this call's.
func TestAVoteThatCameBackIsNotFresh(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, stores := open(t, 3, WithoutGuard())
		v := l.newVoting(t.Context(), "key", "token", time.Second)
		v.vote(0, 0)
		v.note(<-v.answers)
		require.True(t, v.mayReturn(&v.seats[0]), "a fresh vote")
		v.pass(0, "", 0)
		v.note(<-v.answers)
		_, err := stores[0].Vote(t.Context(), "key", "token", time.Second, 0)
		require.NoError(t, err)
		v.vote(0, 0)
		v.note(<-v.answers)
		require.False(t, v.mayReturn(&v.seats[0]), "another's vote")
		v.end(isKept)
	})
}

// A node that is up costs a reading of the clock for each answer: no memory, and no mutex.
func TestANodeThatIsUpCostsNothing(t *testing.T) {
	l, _ := open(t, 1, WithoutGuard(), OnNodeChange(func(NodeState) {}))
	n, ctx := l.nodes[0], context.Background()
	answer := func() {
		n.aged(time.Hour)
		n.note(ctx, time.Now(), 1, nil)
	}
	answer()
	require.True(t, n.health.well.Load())
	n.health.mu.Lock() // so that an answer that took it would hang
	defer n.health.mu.Unlock()
	require.Zero(t, testing.AllocsPerRun(100, answer))
}

// The states that a node has one after the other have Sinces in that order.
func TestSinceTellsTheOrder(t *testing.T) {
	var h health
	h.mu.Lock()
	noted := make(chan NodeState)
	go func() {
		state, _ := h.note(0, false, false, errors.New("down"))
		noted <- state
	}()
	time.Sleep(2 * time.Millisecond) // so that it waits for the mutex
	up := NodeState{Status: NodeUp, Since: time.Now()}
	h.state = up
	h.mu.Unlock()
	down := <-noted
	require.Equal(t, NodeDown, down.Status)
	require.False(t, down.Since.Before(up.Since), "down %v before it was up", up.Since.Sub(down.Since))
}

// A node that answers late, and is young, is young at once.
func TestAYoungNodeThatIsLate(t *testing.T) {
	h := health{counts: time.Now().Add(time.Minute)}
	state, changed := h.note(time.Second/2, true, false, nil)
	require.True(t, changed)
	require.Equal(t, NodeYoung, state.Status)
}

// What is known of a token is forgotten when its calls are over. What is worth remembering is so for a while.
func TestClaimsAreForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(context.Context, *Locker, []*memorybackend.Locker)
		worth bool
	}{
		"a lease": {func(ctx context.Context, l *Locker, _ []*memorybackend.Locker) {
			_, _ = l.TryAcquire(ctx, "key", "x", time.Second)
			_, _ = l.Renew(ctx, "key", "x", time.Second)
			_, _ = l.Release(ctx, "key", "x")
		}, false},
		"a refused attempt": {func(ctx context.Context, l *Locker, s []*memorybackend.Locker) {
			s[0].Steal("key", time.Minute)
			hold, _ := s[0].Inspect(ctx, "key")
			_, _ = s[1].TryAcquire(ctx, "key", hold.Token, time.Minute)
			_, _ = l.TryAcquire(ctx, "key", "x", time.Second)
		}, false},
		"a lease that is made whole": {func(ctx context.Context, l *Locker, s []*memorybackend.Locker) {
			_, _ = l.TryAcquire(ctx, "key", "x", time.Minute)
			s[0].Expire("key")
			for range 3 {
				_, _ = l.Renew(ctx, "key", "x", time.Minute)
				time.Sleep(16 * time.Second)
			}
			_, _ = l.Renew(ctx, "key", "x", time.Minute)
		}, false},
		"a release without an answer": {func(ctx context.Context, l *Locker, s []*memorybackend.Locker) {
			s[0].FailReplies(errors.New("lost"))
			_, _ = l.Release(ctx, "key", "x")
			s[0].FailReplies(nil)
		}, true},
		"a vote of an attempt that was given up": {func(ctx context.Context, l *Locker, s []*memorybackend.Locker) {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			s[1].Delay(time.Second)
			s[2].Delay(time.Second)
			_, _ = l.TryAcquire(ctx, "key", "x", time.Second)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l, s := open(t, 3, WithoutGuard())
				c.do(t.Context(), l, s)
				time.Sleep(memory / 2)
				synctest.Wait()
				if !c.worth {
					require.Empty(t, l.claims.all)
					return
				}
				crowd := func(key string) { // they are swept when there are many
					for i := range 300 {
						l.claims.get(fmt.Sprint(key, i), "y")
					}
				}
				crowd("first")
				require.Contains(t, l.claims.all, id{"key", "x"})
				time.Sleep(memory)
				crowd("second")
				synctest.Wait()
				require.NotContains(t, l.claims.all, id{"key", "x"})
			})
		})
	}
}

// So many releases are repeated at the same time, and no more.
func TestOwedReleasesAreLimited(t *testing.T) {
	l, _ := open(t, 1)
	c := l.claims.get("key", "x")
	defer l.claims.put(c)
	l.owed.Store(maxOwed)
	l.owe(c, 0, 0)
	require.EqualValues(t, maxOwed, l.owed.Load())
	require.Equal(t, 1, c.users)
}

// A node owes nothing once it has answered a release, or each request for a vote with a refusal. A request that was made
// twice has no answer for both.
func TestWhatANodeOwes(t *testing.T) {
	l, _ := open(t, 1)
	c := l.claims.get("key", "x")
	defer l.claims.put(c)
	c.asked = true
	answer := func(e reply) bool {
		l.claims.asks(c, 0)
		l.voted(c, 0, &e)
		return !l.claims.owesNothing(c, 0, true)
	}
	granted := reply{}
	granted.ballot.Acquired = true
	require.False(t, answer(reply{}), "refused")
	require.True(t, answer(granted), "granted")
	require.True(t, answer(reply{}), "refused, but granted before")
	l.released(c, 0, request{err: errPending}, false)
	require.False(t, l.claims.owesNothing(c, 0, true), "a release without an answer")
	l.released(c, 0, request{}, false)
	require.True(t, l.claims.owesNothing(c, 0, true), "released")
	repeated := request{unknown: true}
	repeated.fail(&dlock.UnansweredError{Err: context.Canceled, Late: func(f func(dlock.Attempt, error)) { f(dlock.Attempt{}, nil) }}, time.Second)
	require.True(t, answer(reply{request: repeated}), "repeated")
}

// A request for a vote waits for its turn at a node, while the others decide the call. The release of the token comes first, and
// the vote is not asked for after it.
func TestNoVoteIsAskedForAfterTheRelease(t *testing.T) {
	l, stores := open(t, 1)
	v := l.newVoting(t.Context(), "key", "x", time.Second)
	held, err := l.Release(t.Context(), "key", "x")
	require.True(t, !held && err == nil, "%v", err)
	v.vote(0, 0)
	require.ErrorIs(t, (<-v.answers).err, dlock.ErrReleased)
	v.end(isKept)
	hold, err := stores[0].Inspect(t.Context(), "key")
	require.NoError(t, err)
	require.False(t, hold.Held)
}

// spyListener notes what a wait reports.
type spyListener struct{ heard []string }

func (s *spyListener) Answered()                     { s.heard = append(s.heard, "answered") }
func (s *spyListener) Failed(_ time.Time, err error) { s.heard = append(s.heard, err.Error()) }
func (s *spyListener) NoInbox(err error)             { s.heard = append(s.heard, err.Error()) }
func (s *spyListener) take() (h []string)            { h, s.heard = s.heard, nil; return h }

// A wait has an answer when a majority has one, and has failed when no majority can have one.
func TestWhatAWaitHears(t *testing.T) {
	l, _ := open(t, 3)
	spy := new(spyListener)
	h := &heard{Listener: spy, of: l, nodes: make([]word, 3)}
	seats := []seatHeard{{h, 0}, {h, 1}, {h, 2}}
	seats[0].Answered()
	seats[1].Failed(time.Now(), errors.New("away"))
	require.Empty(t, spy.take(), "one of three")
	seats[2].Failed(time.Now(), errors.New("away, too"))
	require.Equal(t, []string{"1 of 3 nodes counted, 2 are needed: node 1: away; node 2: away, too"}, spy.take())
	seats[1].Answered()
	require.Equal(t, []string{"answered"}, spy.take())
	seats[2].NoInbox(errors.New("no right"))
	require.Equal(t, []string{"no right"}, spy.take())
}
