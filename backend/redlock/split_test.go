package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// Two waiters get a vote each with their first requests, and the third node is down. No other
// vote comes that would make them look.
func TestFirstVotesOfWaitersAreSplit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		down := memory.New()
		down.Fail(errors.New("down"))
		l := redlock.New([]dlock.Locker{farFrom(memory.New(), "x"), down, farFrom(memory.New(), "y")}, redlock.WithoutGuard())
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var waiters sync.WaitGroup
		for _, token := range []string{"x", "y"} {
			waiters.Go(func() {
				a, err := l.Acquire(ctx, "key", token, 3*time.Second)
				if err != nil || !a.Acquired {
					t.Errorf("Acquire of %s: %+v, %v", token, a, err)
					return
				}
				held, err := l.Release(ctx, "key", token)
				if !held || err != nil {
					t.Errorf("Release of %s: %v, %v", token, held, err)
				}
			})
		}
		waiters.Wait()
	})
}

// Messages of very different speed split the votes, again and again. When they take the same time
// again, so does the line: it hands the key over as if nothing had been. A waiter that gave up
// votes must be back in those queues before the next release, which would be split, too.
func TestALineSettlesAfterSplits(t *testing.T) {
	for _, down := range []int{0, 2} {
		t.Run(fmt.Sprint(down, " of 5 down"), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const contenders, calm = 8, 2 * time.Second
				stores := newStores(5)
				for i := range down {
					stores[1+2*i].Fail(errDial)
				}
				ctx, stop := context.WithCancel(t.Context())
				var rough atomic.Bool
				rough.Store(true)
				var grants atomic.Int64
				var all sync.WaitGroup
				for range contenders {
					var nodes []dlock.Locker
					for i := range stores {
						nodes = append(nodes, remote(stores[i], func() time.Duration {
							if rough.Load() {
								return rand.N(30 * time.Millisecond)
							}
							return time.Millisecond + rand.N(200*time.Microsecond)
						}))
					}
					l := redlock.New(nodes, redlock.WithoutGuard())
					defer l.Close()
					all.Go(func() {
						c := dlock.New(l)
						defer c.Close()
						for ctx.Err() == nil {
							lease, err := c.Acquire(ctx, "key")
							if err != nil {
								continue
							}
							grants.Add(1)
							time.Sleep(time.Millisecond)
							lease.Release()
						}
					})
				}
				time.Sleep(3 * time.Second)
				rough.Store(false)
				time.Sleep(time.Second)
				before := grants.Load()
				time.Sleep(calm)
				rate := float64(grants.Load()-before) / calm.Seconds()
				t.Logf("%.0f handovers a second; %d while messages differed", rate, before)
				const ideal = 1000. / 4 // a hold, a release on its way, a grant on its way
				if rate < ideal/2 {
					t.Errorf("%.0f handovers a second, want at least %.0f", rate, ideal/2)
				}
				stop()
				all.Wait()
			})
		})
	}
}

// Clients for which a round trip takes far longer than any before settle a split, too: a survey
// takes as long as it must. Without what the others hold, each would think that it leads.
func TestASplitSettlesFarAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const contenders, oneWay, lasting, ttl = 6, 20 * time.Millisecond, 30 * time.Second, 200 * time.Millisecond
		stores := newStores(3)
		ctx, stop := context.WithTimeout(t.Context(), lasting)
		defer stop()
		var grants atomic.Int64
		var all sync.WaitGroup
		for range contenders {
			var nodes []dlock.Locker
			for i := range stores {
				nodes = append(nodes, remote(stores[i], func() time.Duration { return oneWay + rand.N(oneWay) }))
			}
			l := redlock.New(nodes, redlock.WithoutGuard())
			all.Go(func() {
				defer l.Close()
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
		if want := int64(lasting / (4 * 3 * oneWay)); grants.Load() < want {
			t.Errorf("%d grants in %v, want at least %d", grants.Load(), lasting, want)
		}
	})
}

// Waiters have the votes of five nodes. Their messages take so long that a vote is nearly always being
// confirmed, or that all leaders are passed over before they have a majority.
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
			bubble.Test(t, func(t *testing.T) {
				stores := newStores(5)
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				var all sync.WaitGroup
				for token, votes := range c.votes {
					var nodes []dlock.Locker
					for i := range stores {
						nodes = append(nodes, remote(stores[i], func() time.Duration { return c.oneWay + rand.N(c.oneWay) }))
					}
					for _, i := range votes {
						_, err := stores[i].Vote(ctx, "key", token, c.ttl, 0)
						require.NoError(t, err)
					}
					all.Go(func() {
						l := redlock.New(nodes, redlock.WithoutGuard())
						defer l.Close()
						_, err := l.Acquire(ctx, "key", token, c.ttl)
						assert.NoError(t, err, "%s, with messages of %v", token, c.oneWay)
						_, err = l.Release(context.WithoutCancel(ctx), "key", token)
						assert.NoError(t, err, token)
					})
				}
				all.Wait()
			})
		}
	}
}

// A message takes longer than half of the time after which a leader is passed over on a quick network. The
// leader has the time to get its votes all the same: a split is settled in about six round trips. One of the
// votes is that of a client that has died.
func TestALeaderFarAwayIsNotPassedOver(t *testing.T) {
	for range 60 {
		bubble.Test(t, func(t *testing.T) {
			const oneWay, ttl, enough = 300 * time.Millisecond, time.Minute, 8 * 2 * 300 * time.Millisecond
			stores := newStores(5)
			_, err := stores[0].Vote(t.Context(), "key", "dead", ttl, 0)
			require.NoError(t, err)
			ctx, stop := context.WithTimeout(t.Context(), ttl)
			defer stop()
			granted := make(chan time.Duration, 4)
			for i := range cap(granted) {
				token := fmt.Sprint("alive ", i)
				_, err := stores[1+i].Vote(t.Context(), "key", token, ttl, 0)
				require.NoError(t, err)
				var nodes []dlock.Locker
				for n := range stores {
					nodes = append(nodes, remote(stores[n], func() time.Duration { return oneWay*3/4 + rand.N(oneWay/2) }))
				}
				l := redlock.New(nodes, redlock.WithoutGuard())
				defer l.Close()
				begun := time.Now()
				go func() {
					if _, err := l.Acquire(ctx, "key", token, ttl); err == nil {
						granted <- time.Since(begun)
					}
				}()
			}
			select {
			case took := <-granted:
				assert.Less(t, took, enough)
			case <-ctx.Done():
				t.Error("the split is not settled")
			}
			stop()
		})
	}
}

// One node after the other loses its data, while a lease is kept and others wait for it. Each node that
// comes back is a vote for the holder again, before the next one goes. The holder waits for the vote then:
// a release ends that, too.
func TestRollingRestartBesideWaiters(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const ttl, between = 3 * time.Second, 20 * time.Second
		s := newStores(5)
		l := redlock.New(s.nodes(), redlock.WithoutGuard())
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "holder", ttl)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		ctx, stop := context.WithCancel(t.Context())
		var waiters sync.WaitGroup
		var granted atomic.Int64
		for i := range 3 {
			other := redlock.New(s.nodes(), redlock.WithoutGuard())
			defer other.Close()
			waiters.Go(func() {
				if a, err := other.Acquire(ctx, "key", fmt.Sprint("waiter ", i), time.Hour); a.Acquired && err == nil {
					granted.Add(1)
				}
			})
		}
		renew := func(i int, d time.Duration) {
			for range d / (ttl / 3) {
				time.Sleep(ttl / 3)
				held, err := l.Renew(t.Context(), "key", "holder", ttl)
				require.True(t, held && err == nil, "when node %d was wiped: %v, %v", i, held, err)
			}
		}
		holder := func(i int) string {
			h, err := s[i].Inspect(t.Context(), "key")
			require.NoError(t, err)
			return h.Token
		}
		for i := range s {
			s[i].Wipe()
			renew(i, between)
			require.Equal(t, "holder", holder(i), "at node %d, %v after it was wiped", i, between)
		}
		s[0].Wipe()
		renew(0, ttl)
		require.NotEqual(t, "holder", holder(0))
		held, err := l.Release(t.Context(), "key", "holder")
		require.True(t, held && err == nil, "%v, %v", held, err)
		time.Sleep(100 * time.Millisecond)
		require.EqualValues(t, 1, granted.Load())
		time.Sleep(2 * ttl)
		for i := range s {
			require.Regexp(t, "^waiter", holder(i), "at node %d", i)
		}
		stop()
		waiters.Wait()
	})
}

// A holder with three of five votes does not wait for the others, which go round in vain. That costs a
// waiter no more than a request to each node and another one each second.
func TestVotesOfferedInVain(t *testing.T) {
	for _, waiters := range []int{1, 2, 16} {
		bubble.Test(t, func(t *testing.T) {
			const nodes, lasting = 5, time.Minute
			s := newStores(nodes)
			for i := range nodes/2 + 1 {
				_, err := s[i].Vote(t.Context(), "key", "holder", time.Hour, 0)
				require.NoError(t, err)
			}
			var requests atomic.Int64
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for i := range waiters {
				asked := make([]dlock.Locker, nodes)
				for i := range s {
					asked[i] = remote(s[i], func() time.Duration {
						requests.Add(1) // twice for each, on its way and back
						return time.Millisecond
					})
				}
				l := redlock.New(asked, redlock.WithoutGuard())
				defer l.Close()
				all.Go(func() { _, _ = l.Acquire(ctx, "key", fmt.Sprint("waiter ", i), 30*time.Second) })
			}
			time.Sleep(lasting)
			before := requests.Load()
			time.Sleep(lasting)
			each := float64(requests.Load()-before) / 2 / lasting.Seconds() / float64(waiters)
			require.LessOrEqual(t, each, nodes+1., "requests of one of %d waiters in a second", waiters)
			stop()
			all.Wait()
		})
	}
}

// A waiter loses its connections to three of five nodes, one of which it has the vote of. With those of
// the others it would have a majority that it cannot know of, and that looks to all others like a holder.
func TestWaiterCutOffFromAMajority(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const ttl, own = time.Hour, 1
		s := newStores(5)
		whole, cut := context.WithCancel(t.Context())
		nodes := s.nodes()
		for i := range 3 {
			nodes[i] = cable(s[i], whole)
		}
		for i := range s {
			if i != own {
				_, err := s[i].Vote(t.Context(), "key", "holder", ttl, 0)
				require.NoError(t, err)
			}
		}
		var waiters sync.WaitGroup
		defer waiters.Wait()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		b := redlock.New(nodes, redlock.WithoutGuard())
		defer b.Close()
		waiters.Go(func() { _, _ = b.Acquire(ctx, "key", "cut off", ttl) })
		time.Sleep(100 * time.Millisecond)
		c := redlock.New(s.nodes(), redlock.WithoutGuard())
		defer c.Close()
		served := make(chan error, 1)
		waiters.Go(func() {
			_, err := c.Acquire(ctx, "key", "alive", ttl)
			served <- err
		})
		time.Sleep(100 * time.Millisecond)
		cut()
		time.Sleep(100 * time.Millisecond)
		held, err := c.Release(t.Context(), "key", "holder")
		require.True(t, held && err == nil, "%v, %v", held, err)
		select {
		case err := <-served:
			require.NoError(t, err)
		case <-time.After(5 * time.Second):
			t.Error("the key is not passed on")
		}
	})
}

// Node 0 is away when a waiter gives its vote back, and can vote for that token no more. When nodes 0 and 1
// are a majority again, the waiter makes room for another token. If node 2 is back, too, or if node 0 was not
// asked to take a vote back, the waiter is granted the key at the end of the holder's leases.
func TestWaiterThatCanGetNoMajority(t *testing.T) {
	const whole, part, late = 30 * time.Second, time.Second, 20 * time.Second
	for name, c := range map[string]struct {
		leases             [2]time.Duration // the holder's
		from, to           time.Duration    // when node 0 is away
		away, back, served bool             // node 2: at first, and after that
	}{
		"node 2 is away":  {[2]time.Duration{part, whole}, part / 2, late, true, false, false},
		"node 2 is young": {[2]time.Duration{part, whole}, part / 2, late, false, false, false},
		"node 2 is back":  {[2]time.Duration{part, whole}, part / 2, late, true, true, true},
		"no vote":         {[2]time.Duration{whole, part}, 3 * part / 2, 9 * part / 5, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				l := redlock.New(s.nodes(), redlock.WithLongestTTL(longest))
				defer l.Close()
				for i, ttl := range c.leases {
					_, err := s[i].Vote(t.Context(), "key", "holder", ttl, 0)
					require.NoError(t, err)
				}
				if s[2].SetAge(0); c.away {
					s[2].Fail(errDial)
				}
				time.AfterFunc(c.from, func() { s[0].Fail(errDial) })
				time.AfterFunc(c.to, func() {
					if s[0].Fail(nil); c.back {
						s[2].SetAge(2 * longest)
						s[2].Fail(nil)
					}
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				a, err := l.Acquire(ctx, "key", "x", 10*time.Second)
				if c.served {
					require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
					return
				}
				require.ErrorContains(t, err, "node 0: a release of this token had no answer")
				require.NoError(t, ctx.Err())
				_, _ = l.Release(ctx, "key", "x")
				a, err = l.Acquire(ctx, "key", "y", 10*time.Second)
				require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
			})
		})
	}
}
