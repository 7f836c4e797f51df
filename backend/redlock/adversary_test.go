package redlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

var errDial = &net.OpError{Op: "dial", Err: errors.New("refused")}

// A vote without an answer may have been given, even if a later request of the call found the node
// away.
func TestUnansweredVoteIsOwed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(1)
		n := lossy(s[0])
		l := redlock.New([]dlock.Locker{n})
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		var none *dlock.NoEffectError
		require.Error(t, err)
		require.False(t, errors.As(err, &none), "%v", err)
	})
}

// A wait has got its majority, and the last node has granted its vote but not answered yet. If a
// renewal counts that vote, it stays.
func TestRenewalAndTheEndOfAWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), newStores(3)
		nodes := s.nodes()
		nodes[2] = on(s[2], "AcquireVote", func(r request) error {
			_ = r.make(r.ctx)
			<-r.ctx.Done()
			return r.ctx.Err()
		})
		l := redlock.New(nodes)
		defer l.Close()
		_, err := l.TryAcquire(ctx, "key", "holder", 10*time.Second)
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { l.Release(ctx, "key", "holder") })
		a, err := l.Acquire(ctx, "key", "x", time.Second)
		require.NoError(t, err)
		require.True(t, a.Acquired)
		s[0].Fail(errDial)
		held, _ := l.Renew(ctx, "key", "x", time.Minute/3)
		time.Sleep(5 * time.Second)
		s[0].Fail(nil)
		a, _ = l.TryAcquire(ctx, "key", "y", time.Second)
		require.False(t, held && a.Acquired, "x and y hold the key")
	})
}

// The key is held at one node, another is down, and the last one votes for this attempt. It cannot
// be won, and the nodes are not asked again and again.
func TestHopelessSplitIsAskedAboutSeldom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, calls := newStores(3), new(atomic.Int64)
		s[0].Steal("key", time.Hour)
		for i := range s {
			s[i].Delay(time.Millisecond)
		}
		s[1].Fail(errDial)
		l := redlock.New(s.tapped(counted(calls, "Vote")))
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.Error(t, err)
		require.Less(t, calls.Load(), int64(300))
	})
}

// A node hangs, and requests of one token wait there for their turns. Close waits for the first.
func TestCloseWithAHungNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, s := t.Context(), newStores(3)
		s[2].Delay(time.Hour)
		l := redlock.New(s.nodes(), redlock.WithNodeLimit(time.Second))
		for range 5 {
			l.TryAcquire(ctx, "key", "x", 10*time.Second)
			l.Release(ctx, "key", "x")
		}
		begun := time.Now()
		l.Close()
		require.Less(t, time.Since(begun), 2*time.Second)
	})
}

// The first vote of an attempt ends before the second one comes, since another holds that node. The
// attempt is not granted by a vote that has ended.
func TestVotesOfAGrantAreInDate(t *testing.T) {
	const ttl = 100 * time.Millisecond
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		bubble.Test(t, func(t *testing.T) {
			s := newStores(3)
			for i := range s {
				s[i].Delay(time.Millisecond)
			}
			s[0].SetClock(time.Minute) // its fence is the largest, and needs no second round there
			s[1].Fail(errDial)
			s[2].Steal(key, 3*ttl)
			l := redlock.New(s.nodes())
			defer l.Close()
			a, err := l.TryAcquire(t.Context(), key, "x", ttl)
			require.NoError(t, err)
			require.True(t, a.Acquired)
			require.Positive(t, time.Until(a.Since.Add(ttl)))
		})
	}
}

// A holder makes an attempt again, which is not decided. The votes of its lease stay.
func TestUndecidedAttemptOfAHolderKeepsItsLease(t *testing.T) {
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} { // with any arbiter
		bubble.Test(t, func(t *testing.T) {
			ctx, s := t.Context(), newStores(3)
			for i := range s {
				s[i].Delay(10 * time.Millisecond) // so that it asks them less often
			}
			l := redlock.New(s.nodes())
			defer l.Close()
			_, err := l.TryAcquire(ctx, key, "x", 30*time.Second)
			require.NoError(t, err)
			s[1].Fail(errDial)
			s[2].Steal(key, time.Hour)
			_, err = l.TryAcquire(ctx, key, "x", 30*time.Second)
			require.Error(t, err)
			hold, err := s[0].Inspect(ctx, key)
			require.NoError(t, err)
			require.Equal(t, "x", hold.Token)
		})
	}
}

// What a renewal and a release of token x may count and do. x holds the key at all three nodes
// before.
func TestRulesOfRenewalAndRelease(t *testing.T) {
	const ttl = 20 * time.Second
	reset := errors.New("connection reset")
	type test struct {
		*testing.T
		stores
		l *redlock.Locker
	}
	renew := func(t test) (bool, error) { return t.l.Renew(t.Context(), "key", "x", ttl) }
	heldAt := func(t test, node int) bool {
		synctest.Wait()
		hold, err := t.stores[node].Inspect(t.Context(), "key")
		require.NoError(t, err)
		return hold.Held
	}
	for name, do := range map[string]func(test){
		"a node does not count after a release without an answer": func(t test) {
			t.stores[2].Fail(reset)
			t.l.Release(t.Context(), "key", "x")
			t.stores[2].Fail(nil)
			t.l.TryAcquire(t.Context(), "key", "x", ttl)
			t.stores[1].Fail(errDial)
			_, err := renew(t)
			require.Error(t, err)
		},
		"the no of a node that has forgotten its leases counts": func(t test) {
			t.stores[1].Wipe()
			t.stores[2].Wipe()
			held, err := renew(t)
			require.True(t, !held && err == nil, "%v, %v", held, err)
		},
		"a node that lacks the lease gets it again after a quarter of the TTL": func(t test) {
			for range 2 {
				t.stores[2].Expire("key")
				held, err := renew(t)
				require.True(t, held, err)
				require.False(t, heldAt(t, 2))
				time.Sleep(ttl / 4)
				renew(t)
				require.True(t, heldAt(t, 2))
				renew(t)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				l := redlock.New(s.nodes())
				defer l.Close()
				_, err := l.TryAcquire(t.Context(), "key", "x", ttl)
				require.NoError(t, err)
				do(test{t, s, l})
			})
		})
	}
}

// Two nodes release the key, lose the answer, and say no when they are asked again.
func TestReleaseWithLostAnswersIsNotANo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New([]dlock.Locker{firstOn(s[0], "Pass", loses), firstOn(s[1], "Pass", loses), s[2]})
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "key", "x", time.Second)
		require.NoError(t, err)
		held, err := l.Release(t.Context(), "key", "x")
		require.True(t, held || err != nil)
	})
}

// A vote that had no answer arrives after the release that did. The release is repeated.
func TestLateVoteIsReleased(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		late := &tardy{Locker: s[2]}
		l := redlock.New([]dlock.Locker{s[0], s[1], late}, redlock.WithNodeLimit(50*time.Millisecond))
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "key", "x", 20*time.Second)
		require.NoError(t, err)
		time.Sleep(time.Second)
		held, err := l.Release(t.Context(), "key", "x")
		require.True(t, held, err)
		time.Sleep(5 * time.Second)
		require.True(t, late.voted.Load())
		require.False(t, s[2].Expire("key"), "x holds the key at node 2")
		require.Less(t, late.passes.Load(), int64(20))
	})
}

// A tardy node answers no vote, and gives the first one after 2 s.
type tardy struct {
	*memory.Locker
	asked, voted atomic.Bool
	passes       atomic.Int64
}

func (n *tardy) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	n.passes.Add(1)
	return n.Locker.Pass(ctx, key, token, to, floor)
}

func (n *tardy) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	if !n.asked.Swap(true) {
		time.AfterFunc(2*time.Second, func() {
			n.Locker.Vote(context.Background(), key, token, ttl, floor)
			n.voted.Store(true)
		})
	}
	<-ctx.Done()
	return quorum.Ballot{}, ctx.Err()
}

// A node may join its error with nothing.
func TestWaitCutWithAJoinedError(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memory.New()
		s.Steal("key", time.Hour)
		l := redlock.New([]dlock.Locker{joining{s}}, redlock.WithoutGuard())
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Acquire(ctx, "key", "x", time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

type joining struct{ *memory.Locker }

func (n joining) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	b, err := n.Locker.AcquireVote(ctx, key, token, ttl, floor, place)
	return b, errors.Join(err)
}

// A node counts 1 % and 1 s after the longest TTL, and not before.
func TestGuardIsLongerThanTheLongestTTL(t *testing.T) {
	const longest, guard = 10 * time.Second, 11100 * time.Millisecond
	for age, counts := range map[time.Duration]bool{guard - time.Millisecond: false, guard: true} {
		bubble.Test(t, func(t *testing.T) {
			s := newStores(3)
			for i := range s {
				s[i].SetAge(age)
			}
			l := redlock.New(s.nodes(), redlock.WithLongestTTL(longest))
			defer l.Close()
			_, err := l.TryAcquire(t.Context(), "key", "x", longest)
			if counts {
				require.NoError(t, err)
				return
			}
			var missing *redlock.MajorityError
			require.ErrorAs(t, err, &missing)
			require.Equal(t, time.Millisecond, missing.Wait)
		})
	}
}

// remotes are nodes to which messages take up to 10 ms, each way.
func remotes(s stores) (nodes []dlock.Locker) {
	for i := range s {
		nodes = append(nodes, remote(s[i], func() time.Duration { return time.Duration(rand.N(10)) * time.Millisecond }))
	}
	return nodes
}

// Of two that were sent to the nodes at once, each might get the "yes" of some nodes only.
func TestReleasesOfATokenAreSentInTurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, passes := newStores(5), new(atomic.Int64)
		l := redlock.New(s.nodes())
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		nodes := s.tapped(counted(passes, "Pass"))
		for i := range 3 {
			s[i].Delay(time.Second)
		}
		slow := redlock.New(nodes)
		defer slow.Close()
		var ended atomic.Int64
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				held, err := slow.Release(t.Context(), "key", "x")
				require.NoError(t, err)
				if held {
					ended.Add(1)
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		require.EqualValues(t, 5, passes.Load(), "requests before the first release is decided")
		both.Wait()
		require.EqualValues(t, 1, ended.Load(), "releases that ended the lease")
	})
}

// Votes for a millisecond would end before a majority has given them, and agreed on a fence.
func TestShortTTLs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(5)
		for i := range s {
			s[i].SetClock(time.Duration(i) * 2 * time.Second)
		}
		l := redlock.New(remotes(s))
		defer l.Close()
		for range 50 {
			a, err := l.TryAcquire(t.Context(), "key", "x", time.Millisecond)
			require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
			a, err = l.Acquire(t.Context(), "key", "y", time.Millisecond)
			require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
			time.Sleep(time.Second)
		}
	})
}

// The caller gives up, but the requests of the release arrive, and are answered.
func TestTokenAfterACancelledRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := redlock.New(remotes(newStores(3)))
		defer l.Close()
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			_, err := l.Release(ctx, "key", "x")
			cancel()
			a, again := l.TryAcquire(t.Context(), "key", "x", time.Second)
			require.True(t, a.Acquired && again == nil, "after %v: %+v, %v", err, a, again)
			time.Sleep(5 * time.Second)
		}
	})
}

// If not all nodes say who holds the key, the attempt looks again. A second vote might be given, and
// its answer lost.
func TestHeldKeyIsVotedForOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s[2].Fail(errDial)
		votes := new(atomic.Int64)
		l := redlock.New(s.tapped(counted(votes, "Vote")))
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		time.Sleep(time.Second)
		votes.Store(0)
		a, err = l.TryAcquire(t.Context(), "key", "y", 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, "x", a.Holder)
		time.Sleep(time.Second)
		require.LessOrEqual(t, votes.Load(), int64(2+3), "one at each node, and three at the one that is away")
	})
}

// A waiter may stand in a queue of which nothing is heard.
func TestWaitingWhileANodeIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New(s.nodes())
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go s[0].Acquire(ctx, "key", "y", 10*time.Second)
		go s[2].Acquire(ctx, "key", "y", 10*time.Second)
		synctest.Wait()
		s[2].Fail(errDial)
		hold, err := l.Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 1, hold.Waiting)
		cancel()
		synctest.Wait()
	})
}

// A node that is cut off when it has answered one vote.
type brief struct {
	*memory.Locker
	cut *atomic.Bool
}

func (n brief) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	if n.cut.Load() {
		return quorum.Ballot{}, errors.New("cut")
	}
	return n.Locker.Vote(ctx, key, token, ttl, floor)
}

func (n brief) Inspect(ctx context.Context, key string) (dlock.Hold, error) {
	n.cut.Store(true)
	return dlock.Hold{}, errors.New("cut")
}

// An answer that a majority gave stands if the network fails then.
func TestHeldBeforeTheNetworkFailed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, cut := newStores(3), new(atomic.Bool)
		l := redlock.New([]dlock.Locker{brief{s[0], cut}, brief{s[1], cut}, s[2]})
		defer l.Close()
		_, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.NoError(t, err)
		s[2].Fail(errDial)
		a, err := l.TryAcquire(t.Context(), "key", "y", 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, "x", a.Holder)
	})
}

// A waiter that has a vote does not stand in the queue of that node.
func TestWaitingWithAVote(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New(s.nodes())
		defer l.Close()
		_, err := s[2].TryAcquire(t.Context(), "key", "y", 10*time.Second)
		require.NoError(t, err)
		a, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		ctx, cancel := context.WithCancel(t.Context())
		go s[0].Acquire(ctx, "key", "y", 10*time.Second)
		synctest.Wait()
		hold, err := l.Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, 1, hold.Waiting)
		cancel()
		synctest.Wait()
	})
}

// A node gives a vote, and its answer is lost. The others say that the key is held.
func TestLostVoteIsGivenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New(s.nodes())
		_, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.NoError(t, err)
		_, err = s[0].Release(t.Context(), "key", "x")
		require.NoError(t, err)
		unsure := redlock.New([]dlock.Locker{lossy(s[0]), s[1], s[2]})
		defer unsure.Close()
		a, err := unsure.TryAcquire(t.Context(), "key", "y", 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, "x", a.Holder)
		time.Sleep(time.Second)
		hold, err := s[0].Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, hold.Held, "by %s", hold.Token)
		require.NoError(t, l.Close())
	})
}

// A node hangs when it is given its vote back. The others can still make a majority.
func TestAVoteThatCannotBeGivenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New([]dlock.Locker{s[0], on(s[1], "Pass", hangs), s[2]})
		for i, other := range map[int]string{0: "x", 2: "z"} {
			_, err := s[i].TryAcquire(t.Context(), "key", other, 10*time.Second)
			require.NoError(t, err)
			time.AfterFunc(time.Second, func() { s[i].Release(context.Background(), "key", other) })
		}
		begun := time.Now()
		a, err := l.TryAcquire(t.Context(), "key", "y", 10*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		require.Less(t, time.Since(begun), 2*time.Second)
		require.NoError(t, l.Close())
	})
}

// A vote had no answer, but the release after it had. The token is good for another attempt, and what
// is repeated against the late vote does not end that one.
func TestTokenAfterAnUnansweredVote(t *testing.T) {
	afterAnUnansweredVote(t, func(t *testing.T, l *redlock.Locker, s stores) {
		a, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		time.Sleep(5 * time.Second)
		for i := range s {
			require.True(t, s[i].Expire("key"), "node %d has lost the vote", i)
		}
	})
}

// If a repetition has no answer, it may arrive later.
func TestRepeatedReleaseWithoutAnAnswer(t *testing.T) {
	afterAnUnansweredVote(t, func(t *testing.T, l *redlock.Locker, s stores) {
		s[1].FailReplies(errors.New("lost"))
		time.Sleep(time.Second)
		s[1].FailReplies(nil)
		s[0].Fail(errDial)
		a, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.False(t, a.Acquired && err == nil, "by nodes 1 and 2")
	})
}

func afterAnUnansweredVote(t *testing.T, check func(*testing.T, *redlock.Locker, stores)) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New(s.nodes())
		defer l.Close()
		for i := range s {
			s[i].FailReplies(errors.New("lost"))
		}
		_, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.Error(t, err)
		for i := range s {
			s[i].FailReplies(nil)
		}
		held, err := l.Release(t.Context(), "key", "x")
		require.True(t, held && err == nil, "Release: %v, %v", held, err)
		synctest.Wait() // the last node has answered
		check(t, l, s)
	})
}

// The fence of the first votes is agreed on when they have ended. The attempt votes again.
func TestVotesThatEndBeforeTheirFence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		var nodes []dlock.Locker
		for i := range s {
			s[i].SetClock(time.Duration(i) * 2 * time.Second)
			nodes = append(nodes, firstOn(s[i], "Confirm", lasts(300*time.Millisecond)))
		}
		l := redlock.New(nodes)
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", 200*time.Millisecond)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
	})
}

// by has these nodes vote for a token, for so long.
func (s stores) by(t *testing.T, token string, ttl time.Duration, nodes ...int) {
	for _, i := range nodes {
		_, err := s[i].Vote(t.Context(), "key", token, ttl, 0)
		require.NoError(t, err)
	}
}

// Two nodes name x, one after the other. It never had both.
func TestAHolderThatNeverWas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s.by(t, "x", time.Hour, 0)
		s.by(t, "z", time.Hour, 2)
		time.AfterFunc(5*time.Millisecond, func() {
			s[0].Expire("key")
			s.by(t, "x", time.Hour, 1)
		})
		l := redlock.New(s.tapped(func(node int) tap {
			return func(r request) error {
				if r.method == "Vote" {
					time.Sleep(time.Duration(node) * 10 * time.Millisecond)
				}
				return r.make(r.ctx)
			}
		}))
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "y", 10*time.Second)
		require.Error(t, err, "%+v", a)
	})
}

// All nodes name x, but the leases of two have ended when their answers come.
func TestALeaseThatEndsDuringAnAttempt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s.by(t, "x", 5*time.Millisecond, 0, 1)
		s.by(t, "x", time.Hour, 2)
		l := redlock.New(s.tapped(func(int) tap {
			return func(r request) error {
				defer time.Sleep(20 * time.Millisecond)
				return r.make(r.ctx)
			}
		}))
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "y", 10*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
	})
}

// A majority has answered, and has not decided. The last node hangs, and is not waited for until its limit.
func TestAHungNodeOfASplit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s.by(t, "x", time.Hour, 0)
		for i, d := range []time.Duration{10 * time.Millisecond, 10 * time.Millisecond, time.Hour} {
			s[i].Delay(d)
		}
		l := redlock.New(s.nodes(), redlock.WithNodeLimit(time.Minute))
		begun := time.Now()
		a, err := l.TryAcquire(t.Context(), "key", "y", 10*time.Second)
		require.Error(t, err, "%+v", a)
		require.Less(t, time.Since(begun), 7*time.Second)
		s[2].Delay(0)
		require.NoError(t, l.Close())
	})
}

// A wait fails at once where a majority does not allow it, though it lets the token vote.
func TestNoRightToWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s.by(t, "x", time.Hour, 0, 1, 2)
		l := redlock.New(s.tapped(func(node int) tap {
			return func(r request) error {
				if r.method == "AcquireVote" && node > 0 {
					return errRights
				}
				return r.make(r.ctx)
			}
		}))
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := l.Acquire(ctx, "key", "y", 10*time.Second)
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.NoError(t, ctx.Err())
	})
}

// A wait that has asked all nodes, and got no vote, tells the holder, and had no effect when its ctx ends.
func TestAWaitInVainHadNoEffect(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s.by(t, "x", time.Hour, 0, 1, 2)
		l := redlock.New(s.nodes())
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a, err := l.Acquire(ctx, "key", "y", 10*time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, dlock.NoEffect(err), "NoEffect(%v)", err)
		require.Equal(t, "x", a.Holder)
	})
}

// A grant has the votes of all nodes that are as quick as the others, also of one that was slow.
func TestANodeThatWasSlowIsWaitedForAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		var slow atomic.Bool
		l := redlock.New(s.tapped(func(node int) tap {
			return func(r request) error {
				if time.Sleep(time.Millisecond); node == 2 {
					time.Sleep(50 * time.Microsecond)
					if slow.Load() {
						time.Sleep(100 * time.Millisecond)
					}
				}
				return r.make(r.ctx)
			}
		}))
		defer l.Close()
		votes := func() (n int) {
			a, err := l.TryAcquire(t.Context(), "key", "x", time.Second)
			require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
			for i := range s {
				if hold, _ := s[i].Inspect(t.Context(), "key"); hold.Held {
					n++
				}
			}
			time.Sleep(2 * time.Second)
			return n
		}
		require.Equal(t, 3, votes())
		slow.Store(true)
		require.Equal(t, 2, votes())
		slow.Store(false)
		votes() // which shows that it is quick again
		require.Equal(t, 3, votes())
	})
}

// A node without a queue has voted for another. The lease cannot be made whole there.
func TestALeaseThatAPlainNodeLacks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		s := newStores(3)
		s.by(t, "y", time.Hour, 2)
		l := redlock.New(s.forwarded())
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", ttl)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		for range 4 {
			held, err := l.Renew(t.Context(), "key", "x", ttl)
			require.True(t, held && err == nil, "%v, %v", held, err)
			time.Sleep(ttl / 3)
		}
		hold, err := s[2].Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, "y", hold.Token)
	})
}

// A release ends a wait of its token at once, also one whose next requests are not sent yet.
func TestAReleaseEndsAWaitBetweenRequests(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s.by(t, "x", time.Hour, 0, 1, 2)
		var away atomic.Bool
		l := redlock.New(s.tapped(func(int) tap {
			return func(r request) error {
				if r.method == "AcquireVote" && away.Load() {
					return errDial
				}
				return r.make(r.ctx)
			}
		}))
		defer l.Close()
		away.Store(true)
		ended := make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), "key", "y", 10*time.Second)
			ended <- err
		}()
		time.Sleep(2500 * time.Millisecond) // it tries about once a second
		_, err := l.Release(t.Context(), "key", "y")
		require.NoError(t, err)
		away.Store(false)
		select {
		case err := <-ended:
			require.ErrorIs(t, err, dlock.ErrReleased)
		case <-time.After(2 * time.Second):
			t.Error("the wait goes on after the release")
			_, _ = l.Release(t.Context(), "key", "y")
			<-ended
		}
	})
}

// A vote of a refused attempt is given back, which has no answer, and may arrive later than another vote.
func TestTokenAfterAVoteWasGivenBackWithoutAnAnswer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		s.by(t, "y", time.Second, 0, 1)
		var lost atomic.Bool
		lost.Store(true)
		l := redlock.New(s.tapped(func(node int) tap {
			return func(r request) error {
				if node == 2 && r.method == "Pass" && lost.Load() {
					return errReset
				}
				return r.make(r.ctx)
			}
		}))
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.True(t, !a.Acquired && err == nil, "%+v, %v", a, err)
		time.Sleep(50 * time.Millisecond)
		lost.Store(false) // the release is repeated, and answered
		time.Sleep(5 * time.Second)
		s[0].Fail(errDial)
		a, err = l.TryAcquire(t.Context(), "key", "x", 10*time.Second)
		require.False(t, a.Acquired && err == nil, "by nodes 1 and 2")
	})
}
