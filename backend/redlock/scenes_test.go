package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/breaker"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
)

const long = 10 * time.Second // a TTL that does not end

func upTo10ms() time.Duration { return time.Duration(rand.N(10)) * time.Millisecond }

func TestAttempts(t *testing.T) {
	lost := errors.New("lost")
	scenes(t, map[string]func(*bench){
		// Even if a later request of the call found the node away.
		"a vote without an answer may have been given": func(b *bench) {
			b.open([]dlock.Locker{lossy(b.stores[0])})
			_, err := b.tries("x", long)
			require.Error(b, err)
			require.False(b, errors.As(err, new(*dlock.NoEffectError)), "%v", err)
		},
		// The key is held at one node, another is down, and the last one votes for this attempt.
		"nodes of a hopeless split are not asked again and again": func(b *bench) {
			calls := new(atomic.Int64)
			b.stores[0].Steal("key", time.Hour)
			b.each(delay(time.Millisecond))
			b.stores[1].Fail(errDial)
			b.open(b.all(counted(calls, "Vote")))
			_, err := b.tries("x", long)
			require.Error(b, err)
			require.Less(b, calls.Load(), int64(300))
		},
		// Requests of one token wait there for their turns. Close waits for the first.
		"close with a hung node": func(b *bench) {
			b.stores[2].Delay(time.Hour)
			b.open(b.nodes(), redlock.WithNodeLimit(time.Second))
			for range 5 {
				_, _ = b.tries("x", long)
				_, _ = b.Release(b.Context(), "key", "x")
			}
			begun := time.Now()
			b.Close()
			require.Less(b, time.Since(begun), 2*time.Second)
		},
		// Votes for a millisecond would end before a majority has given them, and agreed on a fence.
		"short TTLs": func(b *bench) {
			b.stores = newStores(5)
			for i := range b.stores {
				b.stores[i].SetClock(time.Duration(i) * 2 * time.Second)
			}
			b.open(b.remotes(upTo10ms))
			for range 50 {
				b.takes("x", time.Millisecond)
				b.waits("y", time.Millisecond)
				time.Sleep(time.Second)
			}
		},
		// If not all nodes say who holds the key, the attempt looks again. A second vote might be given, and its answer lost.
		"a held key is voted for once": func(b *bench) {
			votes := new(atomic.Int64)
			b.stores[2].Fail(errDial)
			b.open(b.all(counted(votes, "Vote")))
			b.takes("x", long)
			time.Sleep(time.Second)
			votes.Store(0)
			b.finds("y", "x", long)
			time.Sleep(time.Second)
			require.LessOrEqual(b, votes.Load(), int64(2+3), "one at each node, and three at the one that is away")
		},
		// Nodes are cut off when they have answered one vote.
		"an answer that a majority gave stands if the network fails then": func(b *bench) {
			cut := new(atomic.Bool)
			brief := func(node int) dlock.Locker {
				return tapped{b.stores[node], func(r *request) error {
					if r.method == "Inspect" {
						cut.Store(true)
					}
					if cut.Load() && (r.method == "Vote" || r.method == "Inspect") {
						return errors.New("cut")
					}
					return r.make(r.ctx)
				}}
			}
			b.open([]dlock.Locker{brief(0), brief(1), b.stores[2]})
			b.takes("x", long)
			b.stores[2].Fail(errDial)
			b.finds("y", "x", long)
		},
		// The others say that the key is held.
		"a vote whose answer is lost is given back": func(b *bench) {
			b.by("x", long, 1, 2)
			b.open([]dlock.Locker{lossy(b.stores[0]), b.stores[1], b.stores[2]})
			b.finds("y", "x", long)
			time.Sleep(time.Second)
			require.False(b, b.hold(0).Held)
		},
		// A node hangs when it is given its vote back. The others can still make a majority.
		"a vote that cannot be given back": func(b *bench) {
			b.open([]dlock.Locker{b.stores[0], on(b.stores[1], "Pass", hangs), b.stores[2]})
			for i, other := range map[int]string{0: "x", 2: "z"} {
				b.by(other, long, i)
				time.AfterFunc(time.Second, func() { b.stores[i].Release(context.Background(), "key", other) })
			}
			begun := time.Now()
			b.takes("y", long)
			require.Less(b, time.Since(begun), 2*time.Second)
		},
		// What is repeated against the late vote does not end another attempt.
		"a token is used again after a vote without an answer, and a release": func(b *bench) {
			b.unanswered()
			b.takes("x", long)
			time.Sleep(5 * time.Second)
			for i := range b.stores {
				require.True(b, b.stores[i].Expire("key"), "node %d has lost the vote", i)
			}
		},
		"a repeated release without an answer may arrive later": func(b *bench) {
			b.unanswered()
			b.stores[1].FailReplies(lost)
			time.Sleep(time.Second)
			b.stores[1].FailReplies(nil)
			b.stores[0].Fail(errDial)
			b.fails("x", long, "by nodes 1 and 2")
		},
		// The fence of the first votes is agreed on when they have ended. The attempt votes again.
		"votes that end before their fence": func(b *bench) {
			var nodes []dlock.Locker
			for i := range b.stores {
				b.stores[i].SetClock(time.Duration(i) * 2 * time.Second)
				nodes = append(nodes, firstOn(b.stores[i], "Confirm", lasts(300*time.Millisecond)))
			}
			b.open(nodes)
			b.takes("x", 200*time.Millisecond)
		},
		// Two nodes name x, one after the other. It never had both.
		"a holder that never was": func(b *bench) {
			b.by("x", time.Hour, 0)
			b.by("z", time.Hour, 2)
			time.AfterFunc(5*time.Millisecond, func() {
				b.stores[0].Expire("key")
				b.by("x", time.Hour, 1)
			})
			b.open(b.tapped(func(node int) tap { return on(nil, "Vote", lasts(time.Duration(node)*10*time.Millisecond)).tap }))
			a, err := b.tries("y", long)
			require.Error(b, err, "%+v", a)
		},
		// All nodes name x, but the leases of two have ended when their answers come.
		"a lease ends during an attempt": func(b *bench) {
			b.by("x", 5*time.Millisecond, 0, 1)
			b.by("x", time.Hour, 2)
			b.open(b.all(func(r *request) error {
				defer time.Sleep(20 * time.Millisecond)
				return r.make(r.ctx)
			}))
			b.takes("y", long)
		},
		// A majority has answered, and has not decided.
		"a node that hangs is not waited for until its limit": func(b *bench) {
			b.by("x", time.Hour, 0)
			for i, d := range []time.Duration{10 * time.Millisecond, 10 * time.Millisecond, time.Hour} {
				b.stores[i].Delay(d)
			}
			b.open(b.nodes(), redlock.WithNodeLimit(time.Minute))
			begun := time.Now()
			a, err := b.tries("y", long)
			require.Error(b, err, "%+v", a)
			require.Less(b, time.Since(begun), 7*time.Second)
			b.stores[2].Delay(0)
		},
		// A grant has the votes of all nodes that are as quick as the others.
		"a node that was slow is waited for again": func(b *bench) {
			var slow atomic.Bool
			b.open(b.tapped(func(node int) tap {
				return func(r *request) error {
					if time.Sleep(time.Millisecond); node == 2 {
						time.Sleep(50 * time.Microsecond)
						if slow.Load() {
							time.Sleep(100 * time.Millisecond)
						}
					}
					return r.make(r.ctx)
				}
			}))
			votes := func() (n int) {
				b.takes("x", time.Second)
				for i := range b.stores {
					if b.hold(i).Held {
						n++
					}
				}
				time.Sleep(2 * time.Second)
				return n
			}
			require.Equal(b, 3, votes())
			slow.Store(true)
			require.Equal(b, 2, votes())
			slow.Store(false)
			votes() // which shows that it is quick again
			require.Equal(b, 3, votes())
		},
		// The answer to the give-back is lost. It may arrive later than another vote.
		"a token is used again after a give-back without an answer": func(b *bench) {
			b.by("y", time.Second, 0, 1)
			var lost atomic.Bool
			lost.Store(true)
			b.open([]dlock.Locker{b.stores[0], b.stores[1], on(b.stores[2], "Pass", func(r *request) error {
				if lost.Load() {
					return errReset
				}
				return r.make(r.ctx)
			})})
			b.finds("x", "y", long)
			time.Sleep(50 * time.Millisecond)
			lost.Store(false) // the release is repeated, and answered
			time.Sleep(5 * time.Second)
			b.stores[0].Fail(errDial)
			b.fails("x", long, "by nodes 1 and 2")
		},
		// A node has voted, and cannot be reached when its vote is to be confirmed. The attempt ends with "held", and its caller owes
		// no release.
		"a vote that could not be confirmed is given back": func(b *bench) {
			var voted, cut atomic.Bool
			b.stores[0].SetClock(time.Minute) // the fence of node 1 must be raised
			b.stores[2].Steal("key", time.Hour)
			holder := b.hold(2).Token
			b.open([]dlock.Locker{b.stores[0], tapped{b.stores[1], func(r *request) error {
				switch {
				case r.method == "Vote" && !voted.Swap(true):
					defer cut.Store(true)
				case cut.Load() && (r.method == "Vote" || r.method == "Confirm"):
					return errDial
				}
				return r.make(r.ctx)
			}}, b.stores[2]})
			time.AfterFunc(200*time.Millisecond, func() {
				b.stores[0].Expire("key")
				b.by(holder, time.Hour, 0)
			})
			b.finds("x", holder, 30*time.Second)
			cut.Store(false)
			time.Sleep(time.Second)
			require.False(b, b.hold(1).Held, "a second after the attempt ended")
		},
		// The same, but the confirmation is on its way when the attempt ends. Node 2 votes for another just before its vote is confirmed.
		"a vote that is being confirmed is given back": func(b *bench) {
			b.stores = newStores(5)
			b.stores[0].SetClock(time.Minute)
			b.stores[3].Steal("key", time.Hour)
			holder := b.hold(3).Token
			b.by(holder, time.Hour, 4)
			b.open([]dlock.Locker{b.stores[0], on(b.stores[1], "Confirm", lasts(300*time.Millisecond)), on(b.stores[2], "Confirm", func(r *request) error {
				r.to.Expire("key")
				_, _ = r.to.TryAcquire(r.ctx, "key", holder, time.Hour)
				return r.make(r.ctx)
			}), b.stores[3], b.stores[4]})
			b.finds("x", holder, 30*time.Second)
			time.Sleep(2 * time.Second)
			for i := range 2 {
				require.False(b, b.hold(i).Held, "node %d, 2 seconds after the attempt ended", i)
			}
		},
		// It arrives later than its release, which is repeated therefore.
		"a late vote is given back": func(b *bench) { b.lateVote(0) },
		// Its answer is lost after the attempt.
		"a late vote that is answered late is given back": func(b *bench) { b.lateVote(200 * time.Millisecond) },
	})
}

// unanswered makes an attempt without an answer of any node, and a release that all have answered.
func (b *bench) unanswered() {
	b.open(b.nodes())
	b.each(func(n *memory.Locker) { n.FailReplies(errors.New("lost")) })
	_, err := b.tries("x", long)
	require.Error(b, err)
	b.each(func(n *memory.Locker) { n.FailReplies(nil) })
	b.releases("x")
	synctest.Wait() // the last node has answered
}

// lateVote makes an attempt of which a node executes the vote late, and fails after a while.
func (b *bench) lateVote(answer time.Duration) {
	b.by("y", time.Hour, 0, 1)
	b.open([]dlock.Locker{b.stores[0], b.stores[1], on(b.stores[2], "Vote", func(r *request) error {
		time.AfterFunc(100*time.Millisecond, func() { _, _ = b.stores[2].Vote(context.Background(), "key", r.token, 30*time.Second, 0) })
		time.Sleep(answer)
		return errReset
	})})
	b.finds("x", "y", 30*time.Second)
	time.Sleep(3 * time.Second)
	require.False(b, b.hold(2).Held, "3s after the attempt")
}

func TestAttemptsWithAnyArbiter(t *testing.T) {
	const ttl = 100 * time.Millisecond
	withAnyArbiter(t, map[string]func(*bench){
		// The first vote ends before the second one comes, since another holds that node.
		"no attempt is granted by a vote that has ended": func(b *bench) {
			b.each(delay(time.Millisecond))
			b.stores[0].SetClock(time.Minute) // its fence is the largest, and needs no second round there
			b.stores[1].Fail(errDial)
			b.stores[2].Steal(b.key, 3*ttl)
			b.open(b.nodes())
			require.Positive(b, time.Until(b.takes("x", ttl).Since.Add(ttl)))
		},
		"an undecided attempt of a holder keeps its lease": func(b *bench) {
			b.each(delay(10 * time.Millisecond)) // so that it asks them less often
			b.open(b.nodes())
			b.takes("x", 30*time.Second)
			b.stores[1].Fail(errDial)
			b.stores[2].Steal(b.key, time.Hour)
			_, err := b.tries("x", 30*time.Second)
			require.Error(b, err)
			require.Equal(b, "x", b.hold(0).Token)
		},
		// Another token has two votes, one of them by the young node.
		"a young node names no holder": func(b *bench) {
			b.stores[1].Wipe()
			b.by("y", time.Hour, 1, 2)
			b.each(delay(10 * time.Millisecond)) // so that it asks them less often
			b.open(b.nodes())
			a, err := b.tries("x", long)
			require.Error(b, err, "%+v", a)
		},
	})
}

// A node counts 1 % and 1 s after the longest TTL, and not before.
func TestGuardIsLongerThanTheLongestTTL(t *testing.T) {
	const longest, guard = 10 * time.Second, 11100 * time.Millisecond
	for age, counts := range map[time.Duration]bool{guard - time.Millisecond: false, guard: true} {
		onBench(t, func(b *bench) {
			b.each(func(n *memory.Locker) { n.SetAge(age) })
			b.open(b.nodes(), redlock.WithLongestTTL(longest))
			_, err := b.tries("x", longest)
			if counts {
				require.NoError(b, err)
				return
			}
			var missing *redlock.MajorityError
			require.ErrorAs(b, err, &missing)
			require.Equal(b, time.Millisecond, missing.Wait)
		})
	}
}

func TestWaits(t *testing.T) {
	scenes(t, map[string]func(*bench){
		// A wait has got its majority, and the last node has granted its vote but not answered yet. If a renewal counts that
		// vote, it stays.
		"a renewal and the end of a wait": func(b *bench) {
			b.open([]dlock.Locker{b.stores[0], b.stores[1], on(b.stores[2], "AcquireVote", func(r *request) error {
				_ = r.make(r.ctx)
				<-r.ctx.Done()
				return r.ctx.Err()
			})})
			b.takes("holder", long)
			time.AfterFunc(time.Second, func() { b.Release(b.Context(), "key", "holder") })
			b.waits("x", time.Second)
			b.stores[0].Fail(errDial)
			held, _ := b.Renew(b.Context(), "key", "x", time.Minute/3)
			time.Sleep(5 * time.Second)
			b.stores[0].Fail(nil)
			a, _ := b.tries("y", time.Second)
			require.False(b, held && a.Acquired, "x and y hold the key")
		},
		// The wait has a majority of two servers. Its place in the queue under the other name is given back, and its vote with it.
		"a node of two names has answered under one of them before": func(b *bench) {
			away := false
			other := tapped{b.stores[0], func(r *request) error {
				if away && r.method != "Pass" {
					return hangs(r)
				}
				return r.make(r.ctx)
			}}
			b.open([]dlock.Locker{b.stores[0], b.stores[1], other})
			_, err := b.fails("x", long, "two nodes are one")
			require.ErrorIs(b, err, dlock.ErrInvalid)
			away = true
			_, err = b.Acquire(b.Context(), b.key, "y", long)
			require.ErrorIs(b, err, dlock.ErrInvalid)
		},
		"a node joins its error with nothing": func(b *bench) {
			b.stores[0].Steal("key", time.Hour)
			b.open([]dlock.Locker{on(b.stores[0], "AcquireVote", func(r *request) error { return errors.Join(r.make(r.ctx)) })}, redlock.WithoutGuard())
			_, _ = b.waitsFor(time.Second, "x", time.Second)
		},
		"a waiter stands in a queue of which nothing is heard": func(b *bench) {
			b.open(b.nodes())
			b.takes("x", long)
			ctx, cancel := context.WithCancel(b.Context())
			go b.stores[0].Acquire(ctx, "key", "y", long)
			go b.stores[2].Acquire(ctx, "key", "y", long)
			synctest.Wait()
			b.stores[2].Fail(errDial)
			b.counts(1)
			cancel()
			synctest.Wait()
		},
		"a waiter that has a vote does not stand in the queue of that node": func(b *bench) {
			b.open(b.nodes())
			b.by("y", long, 2)
			b.takes("x", long)
			ctx, cancel := context.WithCancel(b.Context())
			go b.stores[0].Acquire(ctx, "key", "y", long)
			synctest.Wait()
			b.counts(1)
			cancel()
			synctest.Wait()
		},
		"a wait fails at once where a majority lets a token vote, but not wait": func(b *bench) {
			b.by("x", time.Hour, 0, 1, 2)
			b.open([]dlock.Locker{b.stores[0], on(b.stores[1], "AcquireVote", refuses(errRights)), on(b.stores[2], "AcquireVote", refuses(errRights))})
			ctx, cancel := context.WithTimeout(b.Context(), time.Second)
			defer cancel()
			_, err := b.Acquire(ctx, "key", "y", long)
			require.ErrorIs(b, err, dlock.ErrInvalid)
			require.NoError(b, ctx.Err())
		},
		// It has asked all nodes, and got no vote.
		"a wait in vain names the holder, and had no effect": func(b *bench) {
			b.by("x", time.Hour, 0, 1, 2)
			b.open(b.nodes())
			a, err := b.waitsFor(time.Second, "y", long)
			require.True(b, dlock.NoEffect(err), "NoEffect(%v)", err)
			require.Equal(b, "x", a.Holder)
		},
		// Also if its next requests are not sent yet.
		"a release ends a wait at once": func(b *bench) {
			b.by("x", time.Hour, 0, 1, 2)
			var away atomic.Bool
			b.open(b.tapped(func(node int) tap {
				return on(nil, "AcquireVote", func(r *request) error {
					if away.Load() {
						return errDial
					}
					return r.make(r.ctx)
				}).tap
			}))
			away.Store(true)
			ended := make(chan error, 1)
			go func() {
				_, err := b.Acquire(b.Context(), "key", "y", long)
				ended <- err
			}()
			time.Sleep(2500 * time.Millisecond) // it tries about once a second
			_, err := b.Release(b.Context(), "key", "y")
			require.NoError(b, err)
			away.Store(false)
			select {
			case err := <-ended:
				require.ErrorIs(b, err, dlock.ErrReleased)
			case <-time.After(2 * time.Second):
				b.Error("the wait goes on after the release")
				_, _ = b.Release(b.Context(), "key", "y")
				<-ended
			}
		},
	})
}

// counts checks how many wait for the key.
func (b *bench) counts(n int) {
	b.Helper()
	hold, err := b.Inspect(b.Context(), "key")
	require.NoError(b, err)
	require.Equal(b, n, hold.Waiting)
}

// What renewals and releases of token x may count and do. It holds the key at all three nodes before.
func TestRenewalsAndReleases(t *testing.T) {
	const ttl = 20 * time.Second
	for name, scene := range map[string]func(*bench){
		"a node does not count after a release without an answer": func(b *bench) {
			b.stores[2].Fail(errReset)
			_, _ = b.Release(b.Context(), "key", "x")
			b.stores[2].Fail(nil)
			_, _ = b.tries("x", ttl)
			b.stores[1].Fail(errDial)
			_, err := b.Renew(b.Context(), "key", "x", ttl)
			require.Error(b, err)
		},
		"the no of a node that has forgotten its leases counts": func(b *bench) {
			b.stores[1].Wipe()
			b.stores[2].Wipe()
			held, err := b.Renew(b.Context(), "key", "x", ttl)
			require.True(b, !held && err == nil, "%v, %v", held, err)
		},
		"a node that lacks the lease gets it again after a quarter of the TTL": func(b *bench) {
			for range 2 {
				b.stores[2].Expire("key")
				b.renews("x", ttl)
				synctest.Wait()
				require.False(b, b.hold(2).Held)
				time.Sleep(ttl / 4)
				b.renews("x", ttl)
				synctest.Wait()
				require.True(b, b.hold(2).Held)
				b.renews("x", ttl)
			}
		},
		// A renewal has been decided, but a node has not answered. Meanwhile the lease is lost, and the next renewal says so.
		"a lost lease is not made whole": func(b *bench) {
			b.losesVotes(ttl, nil)
			time.Sleep(2 * time.Second)
			require.False(b, b.hold(4).Held)
		},
		// The same, but the next renewal is not decided yet when the node answers.
		"a lease that may be lost is not made whole": func(b *bench) {
			b.losesVotes(ttl, lasts(2*time.Second))
			require.False(b, b.hold(4).Held)
		},
		// It has voted for another.
		"a lease cannot be made whole at a node without a queue": func(b *bench) {
			_, err := b.stores[2].Release(b.Context(), "key", "x")
			require.NoError(b, err)
			b.by("y", time.Hour, 2)
			b.open(b.forwarded())
			for range 4 {
				b.renews("x", ttl)
				time.Sleep(ttl / 3)
			}
			require.Equal(b, "y", b.hold(2).Token)
		},
		// Two nodes release the key, lose the answer, and say no when they are asked again.
		"a release with lost answers is no no": func(b *bench) {
			b.open([]dlock.Locker{firstOn(b.stores[0], "Pass", loses), firstOn(b.stores[1], "Pass", loses), b.stores[2]})
			held, err := b.Release(b.Context(), "key", "x")
			require.True(b, held || err != nil)
		},
		// Of two that were sent to the nodes at once, each might get the "yes" of some nodes only.
		"releases of a token are sent in turn": func(b *bench) {
			b.stores = append(b.stores, newStores(2)...)
			passes, ended := new(atomic.Int64), new(atomic.Int64)
			b.by("x", ttl, 3, 4)
			for i := range 3 {
				b.stores[i].Delay(time.Second)
			}
			b.open(b.all(counted(passes, "Pass")))
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					held, err := b.Release(b.Context(), "key", "x")
					require.NoError(b, err)
					if held {
						ended.Add(1)
					}
				})
			}
			time.Sleep(500 * time.Millisecond)
			require.EqualValues(b, 5, passes.Load(), "requests before the first release is decided")
			both.Wait()
			require.EqualValues(b, 1, ended.Load(), "releases that ended the lease")
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.open(b.nodes())
				b.takes("x", ttl)
				synctest.Wait()
				scene(b)
			})
		})
	}
	scenes(t, map[string]func(*bench){
		// The caller gives up, but the requests of the release arrive, and are answered.
		"a token is used again after a release that was cancelled": func(b *bench) {
			b.open(b.remotes(upTo10ms))
			for range 20 {
				ctx, cancel := context.WithTimeout(b.Context(), 5*time.Millisecond)
				_, _ = b.Release(ctx, "key", "x")
				cancel()
				b.takes("x", time.Second)
				time.Sleep(5 * time.Second)
			}
		},
		// It answers no vote, and gives the first one after 2 s: later than the release.
		"a late vote is released": func(b *bench) {
			var voted atomic.Bool
			var asked, passes atomic.Int64
			b.open([]dlock.Locker{b.stores[0], b.stores[1], tapped{b.stores[2], func(r *request) error {
				switch {
				case r.method == "Pass":
					passes.Add(1)
				case r.method == "Vote":
					if late := *r; asked.Add(1) == 1 {
						time.AfterFunc(2*time.Second, func() { voted.Store(late.make(context.Background()) == nil) })
					}
					return hangs(r)
				}
				return r.make(r.ctx)
			}}}, redlock.WithNodeLimit(50*time.Millisecond))
			b.takes("x", ttl)
			time.Sleep(time.Second)
			b.releases("x")
			time.Sleep(5 * time.Second)
			require.True(b, voted.Load())
			require.False(b, b.stores[2].Expire("key"), "x holds the key at node 2")
			require.Less(b, passes.Load(), int64(20))
		},
		// It could not reach any node. That is so also where a vote had no answer.
		"a release without effect has none later": func(b *bench) {
			b.open([]dlock.Locker{b.stores[0], b.stores[1], firstOn(b.stores[2], "Vote", loses)})
			b.takes("x", 30*time.Second)
			time.Sleep(time.Second)
			b.each(fail(errDial))
			_, err := b.Release(b.Context(), "key", "x")
			require.Error(b, err)
			b.each(fail(nil))
			time.Sleep(5 * time.Second)
			for i := range b.stores {
				require.True(b, !dlock.NoEffect(err) || b.hold(i).Token == "x", "node %d lost its vote 5s after NoEffect(%v)", i, err)
			}
		},
		"renewals without results": func(b *bench) {
			mute := func(*request) error { return nil }
			b.open([]dlock.Locker{on(b.stores[0], "Confirm", mute), on(b.stores[1], "Confirm", mute), b.stores[2]})
			_, err := b.Renew(b.Context(), "key", "x", time.Second)
			require.ErrorContains(b, err, "0 results for 1 renewals")
		},
	})
}

// losesVotes has x hold the key at four of five nodes, and loses two of the votes after a renewal that the fourth node has not
// answered. The third node answers the next renewal, which is not granted, as meet says.
func (b *bench) losesVotes(ttl time.Duration, meet tap) {
	b.stores = newStores(5)
	var late, lost atomic.Bool
	nodes := b.nodes()
	nodes[3] = on(b.stores[3], "Confirm", func(r *request) error {
		if late.Load() {
			time.Sleep(time.Second)
		}
		return r.make(r.ctx)
	})
	nodes[2] = on(b.stores[2], "Confirm", func(r *request) error {
		if lost.Load() && meet != nil {
			return meet(r)
		}
		return r.make(r.ctx)
	})
	b.open(nodes)
	b.takes("x", ttl)
	b.stores[4].Expire("key")
	b.renews("x", ttl)
	time.Sleep(ttl / 4)
	late.Store(true)
	b.renews("x", ttl)
	b.stores[1].Expire("key")
	b.stores[2].Expire("key")
	lost.Store(true)
	held, err := b.Renew(b.Context(), "key", "x", ttl)
	require.True(b, !held && err == nil, "%v, %v", held, err)
}

const (
	soon  = 20 * time.Millisecond // after which nodes answer
	never = time.Hour
)

// lateNode executes a vote at once, and answers after a while. If ctx ends before that, the answer comes late, or never.
// A wait has a place in the queue then. It counts its releases, before and after the answer of the first node.
func lateNode(after time.Duration, releases *[2]atomic.Int64, first time.Time) tap {
	ask := func(r *request, after time.Duration, late error) error {
		b, err := r.to.Vote(r.ctx, r.key, r.token, r.ttl, 0)
		timer := time.NewTimer(after)
		defer timer.Stop()
		if err != nil {
			return err
		}
		sent := time.Now()
		select {
		case <-timer.C:
			r.ballot = b
			return nil
		case <-r.ctx.Done():
		}
		if err = r.ctx.Err(); after < never {
			err = fmt.Errorf("decorated: %w", &dlock.UnansweredError{Err: err, Late: func(f func(dlock.Attempt, error)) {
				time.AfterFunc(time.Until(sent.Add(after)), func() { f(b.Attempt, late) })
			}})
		}
		return err
	}
	return func(r *request) error {
		switch r.method {
		case "Vote":
			return ask(r, after, nil)
		case "AcquireVote":
			return ask(r, max(after, 10*soon), none(context.Canceled))
		case "Pass":
			if time.Now().Before(first) {
				releases[0].Add(1)
			} else {
				releases[1].Add(1)
			}
		}
		return r.make(r.ctx)
	}
}

// What a node has answered is not owed there, whatever the other nodes do. The answer of the first node comes as soon as
// those of the others, or much later, or never. (A first attempt asks it only for a vote, so it has no place in its queue.)
func TestWhatANodeHasAnsweredIsNotOwed(t *testing.T) {
	const later, many = 9999 * time.Millisecond, -1 // at 10s, twice the node limit, a release is made: before or after the answer
	type test struct {
		queued bool
		after  time.Duration // the first node answers
		free   []int         // these nodes vote for the attempts
		want   [3][2]int     // releases of an attempt at the first, the second and the third node: before that answer, and after it
		closed bool          // the Locker is, before it
	}
	cases(t, map[string]test{
		"held":                             {false, soon, nil, [3][2]int{}, false},
		"one votes":                        {false, soon, []int{0}, [3][2]int{{0, 1}}, false},
		"two vote":                         {false, soon, []int{0, 1}, [3][2]int{{0, 1}, {0, 1}}, false},
		"all wait":                         {true, soon, nil, [3][2]int{{0, 1}, {0, 1}, {0, 1}}, false},
		"late":                             {false, later, nil, [3][2]int{{many, 0}}, false},
		"late, and it votes":               {false, later, []int{0}, [3][2]int{{many, 1}}, false},
		"late, and another votes":          {false, later, []int{1}, [3][2]int{{many, 0}, {1, 0}}, false},
		"late, and two vote":               {false, later, []int{0, 1}, [3][2]int{{many, 1}, {1, 0}}, false},
		"late, and all wait":               {true, later, nil, [3][2]int{{many, 0}, {1, 0}, {1, 0}}, false},
		"after the releases, and it votes": {false, time.Minute, []int{0}, [3][2]int{{many, 1}}, false},
		"after the releases, and two vote": {false, time.Minute, []int{0, 1}, [3][2]int{{many, 1}, {1, 0}}, false},
		"after the releases, and all wait": {true, time.Minute, nil, [3][2]int{{many, 0}, {1, 0}, {1, 0}}, false},
		"after Close, and it votes":        {false, time.Minute, []int{0}, [3][2]int{{many, 0}}, true},
		"never":                            {false, never, nil, [3][2]int{{many, 0}}, false},
		"never, and another votes":         {false, never, []int{1}, [3][2]int{{many, 0}, {1, 0}}, false},
	}, func(b *bench, test test) {
		for _, n := range []int{3, 5} {
			const attempts = 20
			b.stores = newStores(n)
			releases, first := make([][2]atomic.Int64, n), time.Now().Add(test.after)
			b.open(b.tapped(func(node int) tap {
				if node == 0 {
					return lateNode(test.after, &releases[0], first)
				}
				return lateNode(soon, &releases[node], first)
			}))
			c := dlock.New(breaker.New(b.Locker), dlock.WithTTL(20*time.Second))
			patience, call := soon/2, c.TryAcquire
			if test.queued {
				patience, call = 15*soon, c.Acquire
			}
			var all sync.WaitGroup
			for k := range attempts {
				key := fmt.Sprint("k", k)
				for i := range b.stores {
					if !slices.Contains(test.free, i) {
						_, _ = b.stores[i].TryAcquire(b.Context(), key, "holder", 24*time.Hour)
					}
				}
				all.Go(func() {
					ctx, cancel := context.WithTimeout(b.Context(), patience)
					defer cancel()
					_, err := call(ctx, key)
					require.ErrorIs(b, err, context.DeadlineExceeded)
				})
			}
			all.Wait()
			time.Sleep(time.Second)
			if test.closed {
				_ = c.Close()
				require.NoError(b, b.Close())
			}
			time.Sleep(never)
			require.Zero(b, c.Stats().ReleasesOwed)
			for i := range releases {
				for k, want := range test.want[min(i, 2)] {
					got := int(releases[i][k].Load())
					require.True(b, got == want*attempts || want == many && got > attempts, "node %d of %d: %d releases, want %d for each attempt", i, n, got, want)
				}
			}
			_ = c.Close()
		}
	})
}

// A wait is given up while all nodes are asked for a vote, which they get after the release of the holder, and that of the
// token. When the latter has been answered, no node votes for the token any more, whichever answer came first.
func TestReleaseOvertakesAVote(t *testing.T) {
	for _, answer := range []time.Duration{0, 10 * soon} { // to the release
		for _, after := range []time.Duration{0, 3 * soon, time.Minute} {
			onBench(t, func(b *bench) {
				b.by("holder", time.Hour, 0, 1, 2)
				b.open(b.all(func(r *request) error {
					if r.method == "Pass" {
						defer time.Sleep(answer)
					}
					if r.method != "Vote" || r.token != "x" {
						return r.make(r.ctx)
					}
					vote, executed := *r, make(chan error, 1)
					time.AfterFunc(4*soon, func() { executed <- vote.make(context.Background()) })
					<-r.ctx.Done()
					return &dlock.UnansweredError{Err: r.ctx.Err(), Late: func(f func(dlock.Attempt, error)) {
						go func() {
							err := <-executed
							f(vote.ballot.Attempt, err)
						}()
					}}
				}), redlock.WithoutGuard())
				_, _ = b.waitsFor(soon, "x", time.Hour)
				b.each(func(n *memory.Locker) { n.Expire("key") })
				_, err := b.Release(b.Context(), "key", "x")
				require.NoError(b, err)
				time.Sleep(after)
				a, err := b.tries("y", time.Hour)
				require.True(b, a.Acquired && err == nil, "%v after a release that was answered within %v: %+v, %v", after, answer, a, err)
				b.releases("y")
				time.Sleep(time.Second) // it reaches the last node later
				b.free("after all was released")
			})
		}
	}
}
