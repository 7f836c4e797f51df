package redlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
)

// another is one more Locker of the stores, to which messages take as long as pause says.
func (b *bench) another(pause func() time.Duration) *redlock.Locker {
	l := redlock.New(b.remotes(pause), redlock.WithoutGuard())
	b.Cleanup(func() { l.Close() })
	return l
}

// between draws durations from one to the other.
func between(least, most time.Duration) func() time.Duration {
	return func() time.Duration { return least + rand.N(most-least) }
}

func TestSplits(t *testing.T) {
	scenes(t, map[string]func(*bench){
		// No other vote comes that would make them look.
		"two waiters get a vote each with their first requests, and the third node is down": func(b *bench) {
			b.stores[1].Fail(errDial)
			b.open([]dlock.Locker{farFrom(b.stores[0], "x"), b.stores[1], farFrom(b.stores[2], "y")}, redlock.WithoutGuard())
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			var waiters sync.WaitGroup
			for _, token := range []string{"x", "y"} {
				waiters.Go(func() {
					if a, err := b.Acquire(ctx, "key", token, 3*time.Second); assert.True(b, a.Acquired && err == nil, "Acquire of %s: %+v, %v", token, a, err) {
						held, err := b.Release(ctx, "key", token)
						assert.True(b, held && err == nil, "Release of %s: %v, %v", token, held, err)
					}
				})
			}
			waiters.Wait()
		},
		// A survey takes as long as it must. Without what the others hold, each would think that it leads.
		"a round trip takes far longer than any before": func(b *bench) {
			const contenders, oneWay, lasting, ttl = 6, 20 * time.Millisecond, 30 * time.Second, 200 * time.Millisecond
			ctx, stop := context.WithTimeout(b.Context(), lasting)
			defer stop()
			var grants atomic.Int64
			var all sync.WaitGroup
			for range contenders {
				l := b.another(between(oneWay, 2*oneWay))
				all.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						token := fmt.Sprintf("%p %d", l, i)
						if a, err := l.Acquire(ctx, "key", token, ttl); err == nil && a.Acquired {
							grants.Add(1)
						}
						_, _ = l.Release(context.WithoutCancel(ctx), "key", token)
					}
				})
			}
			all.Wait()
			require.GreaterOrEqual(b, grants.Load(), int64(lasting/(4*3*oneWay)), "grants in %v", lasting)
		},
		// Each node that comes back is a vote for the holder again, before the next one goes. The holder waits for the vote then: a release
		// ends that, too.
		"one node after the other loses its data, while a lease is kept and others wait for it": func(b *bench) {
			const ttl, between = 3 * time.Second, 20 * time.Second
			b.stores = newStores(5)
			b.open(b.nodes(), redlock.WithoutGuard())
			b.takes("holder", ttl)
			ctx, stop := context.WithCancel(b.Context())
			var waiters sync.WaitGroup
			var granted atomic.Int64
			for i := range 3 {
				other := redlock.New(b.nodes(), redlock.WithoutGuard())
				defer other.Close()
				waiters.Go(func() {
					if a, err := other.Acquire(ctx, "key", fmt.Sprint("waiter ", i), time.Hour); a.Acquired && err == nil {
						granted.Add(1)
					}
				})
			}
			renew := func(d time.Duration) {
				for range d / (ttl / 3) {
					time.Sleep(ttl / 3)
					b.renews("holder", ttl)
				}
			}
			for i := range b.stores {
				b.stores[i].Wipe()
				renew(between)
				require.Equal(b, "holder", b.hold(i).Token, "at node %d, %v after it was wiped", i, between)
			}
			b.stores[0].Wipe()
			renew(ttl)
			require.NotEqual(b, "holder", b.hold(0).Token)
			b.releases("holder")
			time.Sleep(100 * time.Millisecond)
			require.EqualValues(b, 1, granted.Load())
			time.Sleep(2 * ttl)
			for i := range b.stores {
				require.Regexp(b, "^waiter", b.hold(i).Token, "at node %d", i)
			}
			stop()
			waiters.Wait()
		},
		// With those of the others it would have a majority that it cannot know of, and that looks to all others like a holder.
		"a waiter loses its connections to three of five nodes, one of which it has the vote of": func(b *bench) {
			const own = 1
			b.stores = newStores(5)
			whole, cut := context.WithCancel(b.Context())
			cable := func(r *request) error { // what waits there ends when it is cut
				ctx, cancel := context.WithCancel(r.ctx)
				defer cancel()
				defer context.AfterFunc(whole, cancel)()
				if whole.Err() == nil {
					if err := r.make(ctx); whole.Err() == nil {
						return err
					}
				}
				r.ballot, r.ballots = quorum.Ballot{}, nil
				return errDial
			}
			b.by("holder", time.Hour, 0, 2, 3, 4)
			var waiters sync.WaitGroup
			defer waiters.Wait()
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			b.open(slices.Concat(b.all(cable)[:3], b.nodes()[3:]), redlock.WithoutGuard())
			lonely := b.Locker
			waiters.Go(func() { _, _ = lonely.Acquire(ctx, "key", "cut off", time.Hour) })
			time.Sleep(100 * time.Millisecond)
			require.Equal(b, "cut off", b.hold(own).Token)
			b.open(b.nodes(), redlock.WithoutGuard())
			served := make(chan error, 1)
			waiters.Go(func() {
				_, err := b.Acquire(ctx, "key", "alive", time.Hour)
				served <- err
			})
			time.Sleep(100 * time.Millisecond)
			cut()
			time.Sleep(100 * time.Millisecond)
			b.releases("holder")
			select {
			case err := <-served:
				require.NoError(b, err)
			case <-time.After(5 * time.Second):
				b.Error("the key is not passed on")
			}
		},
	})
}

// Messages of very different speed split the votes, again and again. When they take the same time again, so does the line: it
// hands the key over as if nothing had been. A waiter that gave up votes must be back in those queues before the next release,
// which would be split, too.
func TestALineSettlesAfterSplits(t *testing.T) {
	for _, down := range []int{0, 2} {
		onBench(t, func(b *bench) {
			const contenders, calm = 8, 2 * time.Second
			b.stores = newStores(5)
			for i := range down {
				b.stores[1+2*i].Fail(errDial)
			}
			ctx, stop := context.WithCancel(b.Context())
			var rough atomic.Bool
			rough.Store(true)
			var grants atomic.Int64
			var all sync.WaitGroup
			for range contenders {
				l := b.another(func() time.Duration {
					if rough.Load() {
						return rand.N(30 * time.Millisecond)
					}
					return time.Millisecond + rand.N(200*time.Microsecond)
				})
				all.Go(func() {
					c := dlock.New(l)
					defer c.Close()
					for ctx.Err() == nil {
						if lease, err := c.Acquire(ctx, "key"); err == nil {
							grants.Add(1)
							time.Sleep(time.Millisecond)
							lease.Release()
						}
					}
				})
			}
			time.Sleep(3 * time.Second)
			rough.Store(false)
			time.Sleep(time.Second)
			before := grants.Load()
			time.Sleep(calm)
			rate := float64(grants.Load()-before) / calm.Seconds()
			b.Logf("%d of 5 down: %.0f handovers a second; %d while messages differed", down, rate, before)
			const ideal = 1000. / 4 // a hold, a release on its way, a grant on its way
			assert.GreaterOrEqual(b, rate, ideal/2, "handovers a second, with %d of 5 down", down)
			stop()
			all.Wait()
		})
	}
}

// Waiters have the votes of five nodes. Their messages take so long that a vote is nearly always being confirmed, or that all
// leaders are passed over before they have a majority.
func TestSplitsSettleOnASlowNetwork(t *testing.T) {
	for _, c := range []struct {
		oneWay, ttl time.Duration
		votes       map[string][]int
		rounds      int
	}{
		{40 * time.Millisecond, 300 * time.Millisecond, map[string][]int{"a": {0, 4}, "b": {1}, "c": {2, 3}}, 25},
		{200 * time.Millisecond, 1500 * time.Millisecond, map[string][]int{"a": {0}, "b": {1}, "c": {2}, "d": {3}, "e": {4}}, 250},
	} {
		for range c.rounds {
			onBench(t, func(b *bench) {
				b.stores = newStores(5)
				ctx, stop := context.WithTimeout(b.Context(), time.Minute)
				defer stop()
				var all sync.WaitGroup
				for token, votes := range c.votes {
					b.by(token, c.ttl, votes...)
					all.Go(func() {
						l := b.another(between(c.oneWay, 2*c.oneWay))
						_, err := l.Acquire(ctx, "key", token, c.ttl)
						assert.NoError(b, err, "%s, with messages of %v", token, c.oneWay)
						_, err = l.Release(context.WithoutCancel(ctx), "key", token)
						assert.NoError(b, err, token)
					})
				}
				all.Wait()
			})
		}
	}
}

// A message takes longer than half of the time after which a leader is passed over on a quick network. The leader has the time
// to get its votes all the same: a split is settled in about six round trips. One of the votes is that of a client that has
// died.
func TestALeaderFarAwayIsNotPassedOver(t *testing.T) {
	for range 60 {
		onBench(t, func(b *bench) {
			const oneWay, ttl, enough = 300 * time.Millisecond, time.Minute, 8 * 2 * 300 * time.Millisecond
			b.stores = newStores(5)
			b.by("dead", ttl, 0)
			ctx, stop := context.WithTimeout(b.Context(), ttl)
			defer stop()
			granted := make(chan time.Duration, 4)
			for i := range cap(granted) {
				token := fmt.Sprint("alive ", i)
				b.by(token, ttl, 1+i)
				l, begun := b.another(between(oneWay*3/4, oneWay*5/4)), time.Now()
				go func() {
					if _, err := l.Acquire(ctx, "key", token, ttl); err == nil {
						granted <- time.Since(begun)
					}
				}()
			}
			select {
			case took := <-granted:
				assert.Less(b, took, enough)
			case <-ctx.Done():
				b.Error("the split is not settled")
			}
			stop()
		})
	}
}

// A holder with three of five votes does not wait for the others, which go round in vain. That costs a waiter no more than a
// request to each node and another one each second.
func TestVotesOfferedInVain(t *testing.T) {
	for _, waiters := range []int{1, 2, 16} {
		onBench(t, func(b *bench) {
			const nodes, lasting = 5, time.Minute
			b.stores = newStores(nodes)
			b.by("holder", time.Hour, 0, 1, 2)
			var requests atomic.Int64
			ctx, stop := context.WithCancel(b.Context())
			var all sync.WaitGroup
			for i := range waiters {
				l := b.another(func() time.Duration {
					requests.Add(1) // twice for each, on its way and back
					return time.Millisecond
				})
				all.Go(func() { _, _ = l.Acquire(ctx, "key", fmt.Sprint("waiter ", i), 30*time.Second) })
			}
			time.Sleep(lasting)
			before := requests.Load()
			time.Sleep(lasting)
			each := float64(requests.Load()-before) / 2 / lasting.Seconds() / float64(waiters)
			require.LessOrEqual(b, each, nodes+1., "requests of one of %d waiters in a second", waiters)
			stop()
			all.Wait()
		})
	}
}

// Node 0 is away when a waiter gives its vote back, and can vote for that token no more. When nodes 0 and 1 are a majority
// again, the waiter makes room for another token. If node 2 is back, too, or if node 0 was not asked to take a vote back, the
// waiter is granted the key at the end of the holder's leases.
func TestWaiterThatCanGetNoMajority(t *testing.T) {
	const whole, part, late = 30 * time.Second, time.Second, 20 * time.Second
	type test struct {
		leases             [2]time.Duration // the holder's
		from, to           time.Duration    // when node 0 is away
		away, back, served bool             // node 2: at first, and after that
	}
	cases(t, map[string]test{
		"node 2 is away":  {[2]time.Duration{part, whole}, part / 2, late, true, false, false},
		"node 2 is young": {[2]time.Duration{part, whole}, part / 2, late, false, false, false},
		"node 2 is back":  {[2]time.Duration{part, whole}, part / 2, late, true, true, true},
		"no vote":         {[2]time.Duration{whole, part}, 3 * part / 2, 9 * part / 5, true, false, true},
	}, func(b *bench, c test) {
		b.open(b.nodes(), redlock.WithLongestTTL(longest))
		for i, ttl := range c.leases {
			b.by("holder", ttl, i)
		}
		if b.stores[2].SetAge(0); c.away {
			b.stores[2].Fail(errDial)
		}
		time.AfterFunc(c.from, func() { b.stores[0].Fail(errDial) })
		time.AfterFunc(c.to, func() {
			if b.stores[0].Fail(nil); c.back {
				b.stores[2].SetAge(2 * longest)
				b.stores[2].Fail(nil)
			}
		})
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		a, err := b.Acquire(ctx, "key", "x", long)
		if c.served {
			b.granted(a, err)
			return
		}
		require.ErrorContains(b, err, "node 0: a release of this token had no answer")
		require.NoError(b, ctx.Err())
		_, _ = b.Release(ctx, "key", "x")
		b.granted(b.Acquire(ctx, "key", "y", long))
	})
}

// As many nodes go away as may stay away, and one more for a while. Clients that have waited all the time are served when that
// is back.
func TestAMajorityReturns(t *testing.T) {
	const ttl, clients = 10 * time.Second, 3
	type fault struct{ strike, heal func(*memory.Locker) }
	for _, nodes := range []int{3, 5} {
		cases(t, map[string]fault{
			fmt.Sprint("fails/", nodes, " nodes"): {fail(errDial), fail(nil)},
			fmt.Sprint("hangs/", nodes, " nodes"): {delay(time.Hour), delay(0)},
			fmt.Sprint("loses answers/", nodes, " nodes"): {func(n *memory.Locker) { n.FailReplies(errReset) },
				func(n *memory.Locker) { n.FailReplies(nil) }},
		}, func(b *bench, f fault) {
			b.stores = newStores(nodes)
			back := (nodes - 1) / 2
			ctx, stop := context.WithCancel(b.Context())
			var all sync.WaitGroup
			var holders atomic.Int64
			for range clients {
				b.open(b.nodes())
				c := b.client(dlock.WithTTL(ttl), dlock.WithOutage(dlock.NoLimit))
				all.Go(func() {
					for ctx.Err() == nil {
						if lease, err := c.Acquire(ctx, "key"); err == nil {
							holders.Add(1)
							<-lease.Context(ctx).Done()
							holders.Add(-1)
							_ = lease.Release()
						}
					}
				})
			}
			for i := range back + 1 {
				time.Sleep(ttl)
				f.strike(b.stores[i])
			}
			time.Sleep(3 * ttl)
			f.heal(b.stores[back])
			time.Sleep(ttl)
			assert.EqualValues(b, 1, holders.Load())
			stop()
			b.each(f.heal)
			all.Wait()
		})
	}
}
