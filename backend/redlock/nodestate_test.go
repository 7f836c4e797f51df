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
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
)

// watch opens a Locker of three nodes, a, b and c, whose trouble is that of c. It returns the statuses that were reported of a
// node so far, in order.
func (b *bench) watch() (of func(node string) []redlock.NodeStatus) {
	var mu sync.Mutex
	var all []redlock.NodeState
	b.open(b.nodes(), redlock.WithNames("a", "b", "c"), redlock.OnNodeChange(func(s redlock.NodeState) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, s)
	}))
	return func(node string) (statuses []redlock.NodeStatus) {
		mu.Lock()
		defer mu.Unlock()
		slices.SortStableFunc(all, func(a, b redlock.NodeState) int { return a.Since.Compare(b.Since) })
		for _, s := range all {
			if s.Node == node {
				statuses = append(statuses, s.Status)
			}
		}
		return statuses
	}
}

// are checks the status of some nodes.
func (b *bench) are(status redlock.NodeStatus, nodes ...int) {
	b.Helper()
	synctest.Wait()
	for _, i := range nodes {
		n := b.Nodes()[i]
		require.Equal(b, status, n.Status, "node %s: %v", n.Node, n.Err)
	}
}

const (
	unknown, up = redlock.NodeUnknown, redlock.NodeUp
	slow, young = redlock.NodeSlow, redlock.NodeYoung
	down        = redlock.NodeDown
)

// One of three nodes is in trouble, and then well again. Every call succeeds, and the trouble is seen.
func TestANodeInTroubleIsSeen(t *testing.T) {
	const guard = 30*time.Second + 300*time.Millisecond + time.Second
	type test struct {
		begin, end func(*memory.Locker)
		while      redlock.NodeStatus
		says       string
		changes    []redlock.NodeStatus
	}
	cases(t, map[string]test{
		"dead":     {fail(errDial), fail(nil), down, errDial.Error(), []redlock.NodeStatus{up, down, up}},
		"hung":     {delay(time.Hour), delay(0), down, "no answer within 5s", []redlock.NodeStatus{up, down, up}},
		"slow":     {delay(200 * time.Millisecond), delay(0), slow, "answered after 200ms", []redlock.NodeStatus{up, slow, up}},
		"refusing": {fail(none(errors.New("NOAUTH"))), fail(nil), down, "NOAUTH", []redlock.NodeStatus{up, down, up}},
		"young": {(*memory.Locker).Wipe, func(*memory.Locker) { time.Sleep(guard) }, young, "has forgotten its leases, and counts in",
			[]redlock.NodeStatus{up, young, up}},
		"restarting": {fail(errDial), func(n *memory.Locker) { n.Wipe(); n.Fail(nil) }, down, errDial.Error(),
			[]redlock.NodeStatus{up, down, young, up}},
	}, func(b *bench, test test) {
		seen := b.watch()
		locks := b.client()
		sale := func() {
			lease, err := locks.Acquire(b.Context(), "key")
			require.NoError(b, err)
			time.Sleep(100 * time.Millisecond)
			require.NoError(b, lease.Release())
		}
		b.are(unknown, 0, 1, 2)
		sale()
		b.are(up, 0, 1, 2)
		test.begin(b.stores[2])
		for range 70 {
			sale()
		}
		b.are(up, 0, 1)
		b.are(test.while, 2)
		require.ErrorContains(b, b.Nodes()[2].Err, test.says)
		test.end(b.stores[2])
		for range 400 {
			sale()
		}
		b.are(up, 0, 1, 2)
		require.NoError(b, b.Nodes()[2].Err)
		had := seen("c")
		if slices.Equal(had, []redlock.NodeStatus{up, down, up, young, up}) {
			had = slices.Delete(had, 2, 3) // its first answer was to a release, and has no age
		}
		require.Equal(b, test.changes, had)
		require.Equal(b, []redlock.NodeStatus{up}, seen("a"))
	})
}

func TestNodeStates(t *testing.T) {
	scenes(t, map[string]func(*bench){
		// Whether it is asked then or not.
		"a young node counts from a known time on": func(b *bench) {
			b.watch()
			b.stores[1].Wipe()
			_, err := b.Inspect(b.Context(), "key") // which has no age
			require.NoError(b, err)
			b.are(up, 1)
			b.takes("x", time.Second)
			b.are(young, 1)
			time.Sleep(10 * time.Second)
			require.ErrorContains(b, b.Nodes()[1].Err, "counts in 21.")
			_, err = b.Release(b.Context(), "key", "x") // whose answer has no age
			require.NoError(b, err)
			b.are(young, 1)
			time.Sleep(22 * time.Second)
			require.Equal(b, up, b.Nodes()[1].Status)
			require.NoError(b, b.Nodes()[1].Err)
		},
		"what a node says of its age counts, also if it is better than before, and in a renewal": func(b *bench) {
			b.watch()
			b.stores[1].Wipe()
			for _, want := range []redlock.NodeStatus{young, up} {
				_, err := b.Renew(b.Context(), "key", "x", time.Second)
				require.NoError(b, err)
				b.are(want, 1)
				b.stores[1].SetAge(2 * longest)
				time.Sleep(2 * time.Second)
			}
		},
		// Two nodes hang, so no majority is quicker.
		"a node that alone answers is not slow": func(b *bench) {
			for i, d := range []time.Duration{300 * time.Millisecond, time.Hour, time.Hour} {
				b.stores[i].Delay(d)
			}
			b.watch()
			for range 10 {
				ctx, cancel := context.WithTimeout(b.Context(), 400*time.Millisecond)
				_, err := b.Inspect(ctx, "key")
				require.Error(b, err)
				cancel()
			}
			require.Equal(b, up, b.Nodes()[0].Status)
			b.each(delay(0))
		},
		"a young node that is soon old enough is up from that time on": func(b *bench) {
			const guard = 30*time.Second + 300*time.Millisecond + time.Second
			b.watch()
			b.stores[1].SetAge(guard - 500*time.Millisecond)
			counts := time.Now().Add(500 * time.Millisecond)
			for range 3 {
				b.takes("x", time.Second)
				synctest.Wait()
				time.Sleep(300 * time.Millisecond)
			}
			require.Equal(b, redlock.NodeState{Node: "b", Status: up, Since: counts}, b.Nodes()[1])
		},
		// The nodes say so to a token that waits.
		"a release by another process is no trouble": func(b *bench) {
			b.open(b.nodes())
			elsewhere := b.Locker
			b.watch()
			b.takes("holder", long)
			ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
			defer cancel()
			var waits sync.WaitGroup
			waits.Go(func() { b.Acquire(ctx, "key", "waiter", long) })
			synctest.Wait()
			_, err := elsewhere.Release(b.Context(), "key", "waiter")
			require.NoError(b, err)
			b.are(up, 0, 1, 2)
			waits.Wait()
		},
		// It fails every tenth request: it is reported with each fall, and a second later.
		"a flapping node is reported twice a second at most": func(b *bench) {
			const seconds = 4
			seen := b.watch()
			for i := range seconds * 100 {
				b.stores[2].Fail(nil)
				if i%10 == 9 {
					b.stores[2].Fail(errDial)
				}
				_, err := b.TryAcquire(b.Context(), fmt.Sprint(i), "x", time.Second)
				require.NoError(b, err)
				time.Sleep(10 * time.Millisecond)
			}
			require.InDelta(b, 2*seconds, len(seen("c")), 2)
		},
		"callers who cancel soon say nothing of the nodes": func(b *bench) {
			b.each(delay(time.Hour))
			b.watch()
			b.impatient(30, 20*time.Millisecond, 100*time.Millisecond) // less than the limit of a request, since one may not be cancelled
			b.are(unknown, 0, 1, 2)
		},
		// Before the limit of a request.
		"impatient callers see that all nodes hang": func(b *bench) {
			b.each(delay(time.Hour))
			b.watch()
			b.impatient(5, 300*time.Millisecond, 0)
			b.are(down, 0, 1, 2)
			for _, n := range b.Nodes() {
				require.EqualError(b, n.Err, "no answer within 300ms")
			}
		},
	})
}

// impatient makes attempts that are cancelled.
func (b *bench) impatient(n int, patience, pause time.Duration) {
	for i := range n {
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		_, err := b.TryAcquire(ctx, fmt.Sprint(i), "x", time.Second)
		require.ErrorIs(b, err, context.DeadlineExceeded)
		cancel()
		time.Sleep(pause)
	}
}

// All nodes are equally far away, and are asked once by an attempt and then only by renewals. A node is slow only if a majority
// is quicker.
func TestNodesFarAwayAreNotSlow(t *testing.T) {
	for _, trip := range []time.Duration{90 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond} {
		onBench(t, func(b *bench) {
			b.each(delay(trip))
			seen := b.watch()
			lease, err := b.client().Acquire(b.Context(), "leader")
			require.NoError(b, err)
			time.Sleep(time.Minute)
			for _, name := range []string{"a", "b", "c"} {
				require.Equal(b, []redlock.NodeStatus{up}, seen(name), "node %s, %v away", name, trip)
			}
			b.stores[2].Delay(5 * trip)
			time.Sleep(time.Minute)
			require.Equal(b, []redlock.NodeStatus{up, slow}, seen("c"), "%v away", trip)
			require.NoError(b, lease.Release())
		})
	}
}

// Stores refuse a key without a message to their servers. A user's key is no trouble of the nodes. A right that is missing is,
// and so is a store that has refused every call.
func TestAnInvalidKeyIsNoTroubleOfANode(t *testing.T) {
	argument := none(fmt.Errorf("%w key: contains a mark", dlock.ErrInvalid))
	right := none(fmt.Errorf("%w: no right to vote: %w", dlock.ErrInvalid, errors.New("NOPERM")))
	type test struct {
		err   error
		first bool
		want  redlock.NodeStatus
	}
	cases(t, map[string]test{
		"an argument":                    {argument, false, up},
		"a right":                        {right, false, down},
		"an argument, in the first call": {argument, true, down},
	}, func(b *bench, c test) {
		b.watch()
		if !c.first {
			_, err := b.TryAcquire(b.Context(), "good", "x", time.Second)
			require.NoError(b, err)
			synctest.Wait()
		}
		b.each(fail(c.err))
		_, err := b.TryAcquire(b.Context(), "bad", "x", time.Second)
		require.ErrorIs(b, err, dlock.ErrInvalid)
		b.are(c.want, 0, 1, 2)
	})
}

// A node is down if it renews no lease of a batch, and not if it renews some.
func TestRenewalsShowANode(t *testing.T) {
	for some, want := range map[bool]redlock.NodeStatus{true: up, false: down} {
		onBench(t, func(b *bench) {
			b.open([]dlock.Locker{b.stores[0], b.stores[1], on(b.stores[2], "Confirm", func(r *request) error {
				r.ballots = make([]quorum.Ballot, len(r.batch))
				for i := range r.ballots {
					if r.ballots[i].Age = time.Hour; i == 0 || !some {
						r.ballots[i].Err = errReset
					}
				}
				return nil
			})})
			_, err := b.RenewBatch(b.Context(), []dlock.Renewal{{Key: "1", Token: "x", TTL: time.Second}, {Key: "2", Token: "x", TTL: time.Second}})
			require.NoError(b, err)
			b.are(want, 2)
		})
	}
}

// An addressed node knows where its store is.
type addressed struct {
	dlock.Locker
	addr string
}

func (n addressed) Addr() string { return n.addr }

// Errors and states name the nodes.
func TestNamesOfNodes(t *testing.T) {
	for name, test := range map[string]struct {
		addrs   [3]string
		opts    []redlock.Option
		want    []string
		refused string
	}{
		"addresses":               {addrs: [3]string{"a:1", "b:1", "c:1"}, want: []string{"a:1", "b:1", "c:1"}},
		"a proxy and a secret":    {addrs: [3]string{"a:1", "a:1", ""}, want: []string{"0", "1", "2"}},
		"names and addresses":     {addrs: [3]string{"a:1", "b:1", "c:1"}, opts: []redlock.Option{redlock.WithNames("x", "y", "z")}, want: []string{"x", "y", "z"}},
		"too few names":           {opts: []redlock.Option{redlock.WithNames("x", "y")}, want: []string{"0", "1", "2"}, refused: "WithNames: 2 names for 3 nodes"},
		"a name of two nodes":     {opts: []redlock.Option{redlock.WithNames("x", "y", "x")}, want: []string{"x", "y", "x"}, refused: `WithNames: "x" for node 2: empty, or a name of two`},
		"a node without its name": {opts: []redlock.Option{redlock.WithNames("x", "", "z")}, want: []string{"x", "", "z"}, refused: `WithNames: "" for node 1: empty, or a name of two`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStores(3)
			nodes := s.nodes()
			for i := range nodes {
				if s[i].Fail(errDial); test.addrs[i] != "" {
					nodes[i] = addressed{nodes[i], test.addrs[i]}
				}
			}
			l := redlock.New(nodes, test.opts...)
			defer l.Close()
			for i, n := range l.Nodes() {
				require.Equal(t, test.want[i], n.Node)
			}
			_, err := l.TryAcquire(t.Context(), "key", "x", time.Second)
			if test.refused != "" {
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.ErrorContains(t, err, test.refused)
				return
			}
			var majority *redlock.MajorityError
			require.ErrorAs(t, err, &majority)
			require.Equal(t, test.want, majority.Names)
			for _, name := range test.want {
				require.ErrorContains(t, err, "node "+name+": dial")
			}
		})
	}
	s := newStores(2)
	l := redlock.New([]dlock.Locker{s[0], s[1], s[0]}, redlock.WithNames("x", "y", "z"))
	_, err := l.TryAcquire(t.Context(), "key", "x", time.Second)
	require.ErrorContains(t, err, "node z: the same as node x")
	require.NotPanics(t, func() { _ = (&redlock.MajorityError{Nodes: []error{errDial}}).Error() }, "a MajorityError that a test has made")
}

// One node has just restarted, and another one is far away. The two that count decide, however much sooner the young one
// answers.
func TestAYoungNodeIsNoWorseThanOneThatIsDown(t *testing.T) {
	const keys = 60
	for _, trip := range []time.Duration{10 * time.Millisecond, 30 * time.Millisecond} {
		cases(t, map[string]func(*memory.Locker){
			fmt.Sprint("young ", trip): (*memory.Locker).Wipe, fmt.Sprint("down ", trip): fail(errDial),
		}, func(b *bench, strike func(*memory.Locker)) {
			strike(b.stores[1])
			b.open([]dlock.Locker{b.stores[0], b.stores[1], remote(b.stores[2], func() time.Duration { return trip / 2 })})
			for call, acquire := range acquires {
				failed, example := 0, error(nil)
				for i := range keys {
					if a, err := acquire(b.Locker, b.Context(), fmt.Sprint(call, i), "x", long); !a.Acquired || err != nil {
						failed, example = failed+1, err
					}
				}
				if failed > 0 {
					b.Errorf("%d of %d calls of %s failed: %v", failed, keys, call, example)
				}
			}
		})
	}
}

// Wait is for the guard. It is 0 if a majority is old enough, and did not decide for another reason.
func TestWaitIsOfTheGuard(t *testing.T) {
	const guard = 31300 * time.Millisecond
	type test struct {
		strike func(stores)
		wait   time.Duration
	}
	cases(t, map[string]test{
		"old nodes are split":  {func(s stores) { s[2].Steal("key", time.Hour) }, 0},
		"an old node is down":  {func(s stores) { s[2].Fail(errReset) }, guard},
		"an old node hangs":    {func(s stores) { s[2].Delay(time.Hour) }, guard - 5*time.Second},
		"another one is young": {func(s stores) { s[2].Wipe() }, guard},
	}, func(b *bench, c test) {
		b.stores[1].Wipe()
		c.strike(b.stores)
		b.open(b.nodes())
		_, err := b.tries("x", long)
		var missing *redlock.MajorityError
		require.ErrorAs(b, err, &missing)
		require.InDelta(b, c.wait, missing.Wait, float64(50*time.Millisecond), "%v", err)
	})
}

func TestYoungNodes(t *testing.T) {
	const ttl = 20 * time.Second
	scenes(t, map[string]func(*bench){
		// All attempts say so, in whatever order the nodes answer.
		"a key is held while a node restarts": func(b *bench) {
			const attempts = 100
			b.open(b.remotes(func() time.Duration { return 100*time.Microsecond + rand.N(200*time.Microsecond) }))
			b.takes("holder", 30*time.Second)
			b.stores[1].Wipe()
			failed, example := 0, error(nil)
			for i := range attempts {
				if a, err := b.tries(fmt.Sprint("x", i), 30*time.Second); err != nil || a.Holder != "holder" {
					failed, example = failed+1, err
				}
			}
			if failed > 0 {
				b.Errorf("%d of %d attempts did not name the holder: %v", failed, attempts, example)
			}
		},
		"two nodes lose the votes that a wait would need": func(b *bench) {
			b.open(b.nodes())
			b.takes("holder", 30*time.Second)
			time.AfterFunc(time.Second, func() { b.stores[0].Wipe(); b.stores[1].Wipe() })
			_, err := b.waitsFor(11300*time.Millisecond, "x", ttl)
			var missing *redlock.MajorityError
			require.ErrorAs(b, err, &missing)
			require.InDelta(b, 21*time.Second, missing.Wait, float64(50*time.Millisecond), "%v", err)
		},
		"a waiter asks a young node again as soon as it counts": func(b *bench) {
			b.stores[1].SetAge(30300 * time.Millisecond) // counts in 1s
			b.stores[2].Steal("key", time.Hour)
			b.open(b.nodes())
			begun := time.Now()
			b.waits("x", 30*time.Second)
			require.Less(b, time.Since(begun), 3*time.Second)
		},
		// A holder does not know that a node has just lost its data, or has no answer of the other one. Its attempt ends, and what
		// it asked for there is not given back.
		"an attempt without an answer after a node has forgotten": func(b *bench) {
			b.heldAtTwo()
			b.open([]dlock.Locker{lossy(b.stores[0]), on(b.stores[1], "Inspect", func(r *request) error {
				r.to.Wipe()
				if _, err := r.to.Vote(r.ctx, "key", "y", time.Hour, 0); err != nil {
					return err
				}
				return r.make(r.ctx)
			}), b.stores[2]})
			_, _ = b.tries("x", ttl)
			b.keepsNode0()
		},
		"a wait without an answer after a node has forgotten": func(b *bench) {
			b.heldAtTwo()
			b.stores[1].Wipe()
			b.stores[1].Steal("key", time.Hour)
			b.open([]dlock.Locker{tapped{b.stores[0], func(r *request) error { // it keeps the votes of no wait, and is slow to say so
				switch r.method {
				case "Confirm":
					return errReset
				case "AcquireVote":
					defer time.Sleep(time.Second)
					return hangs(r)
				}
				return r.make(r.ctx)
			}}, b.stores[1], b.stores[2]})
			ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
			defer cancel()
			_, _ = b.Acquire(ctx, "key", "x", 3*time.Second)
			b.keepsNode0()
		},
	})
}

// heldAtTwo lets x hold the key at two nodes.
func (b *bench) heldAtTwo() {
	b.by("x", 20*time.Second, 0, 1)
	b.by("y", 20*time.Second, 2)
}

func (b *bench) keepsNode0() {
	b.Helper()
	time.Sleep(2 * time.Second)
	require.Equal(b, "x", b.hold(0).Token, "at the node that has not answered")
}

// A holder repeats its attempt after one of the two nodes of its lease has lost its data. A waiter has the third one, and now
// that one as well. The attempt gives back no vote of the lease.
func TestRepeatedAttemptAfterAWipe(t *testing.T) {
	const ttl = 20 * time.Second
	for name, repeat := range acquires {
		withAnyArbiter(t, map[string]func(*bench){name: func(b *bench) {
			b.open(b.nodes())
			other := b.Locker
			b.open(b.nodes())
			b.stores[2].Fail(errDial)
			a := b.takes("x", ttl)
			b.stores[2].Fail(nil)
			certain, cancel := context.WithDeadline(b.Context(), a.Since.Add(ttl))
			defer cancel()
			b.each(delay(10 * time.Millisecond)) // so that they are asked less often
			time.AfterFunc(time.Second, b.stores[1].Wipe)
			time.AfterFunc(2*time.Second, func() {
				ctx, cancel := context.WithTimeout(certain, 5*time.Second)
				defer cancel()
				_, _ = repeat(b.Locker, ctx, b.key, "x", ttl)
			})
			a, err := other.Acquire(certain, b.key, "y", ttl)
			require.False(b, a.Acquired && err == nil, "two hold the key")
		}})
	}
}

// Two have a vote each, and one of them that of the young node as well. Both must agree who of them passes its vote on.
func TestAYoungNodeLeadsNobody(t *testing.T) {
	for name, acquire := range acquires {
		withAnyArbiter(t, map[string]func(*bench){name: func(b *bench) {
			b.stores[1].Wipe()
			b.open([]dlock.Locker{farFrom(b.stores[0], "y"), farFrom(b.stores[1], "y"), farFrom(b.stores[2], "x")})
			begun := time.Now()
			var both sync.WaitGroup
			var granted atomic.Int64
			for _, token := range []string{"x", "y"} {
				both.Go(func() {
					a, err := acquire(b.Locker, b.Context(), b.key, token, long)
					require.NoError(b, err)
					if a.Acquired {
						granted.Add(1)
						_, _ = b.Release(b.Context(), b.key, token)
					}
				})
			}
			both.Wait()
			require.Positive(b, granted.Load(), "nobody was granted the key")
			require.Less(b, time.Since(begun), 40*time.Millisecond, "until both were answered")
		}})
	}
}

// All calls succeed although as many nodes are young as can be, and one is slow.
func TestAllCallsWithYoungNodes(t *testing.T) {
	const ttl = 20 * time.Second
	for _, n := range []int{3, 5} {
		for first := range n {
			onBench(t, func(b *bench) {
				b.stores = newStores(n)
				for i := range n / 2 {
					b.stores[(first+i)%n].Wipe()
				}
				nodes := b.nodes()
				slow := (first + n/2) % n
				nodes[slow] = remote(b.stores[slow], func() time.Duration { return 20 * time.Millisecond })
				b.open(nodes)
				for _, acquire := range acquires {
					a := b.granted(acquire(b.Locker, b.Context(), "key", "x", ttl))
					require.Greater(b, b.granted(acquire(b.Locker, b.Context(), "key", "x", ttl)).Fence, a.Fence)
					hold, err := b.Inspect(b.Context(), "key")
					require.NoError(b, err)
					require.Equal(b, "x", hold.Token)
					for range 5 {
						time.Sleep(5 * time.Second)
						b.renews("x", ttl)
					}
					b.finds("y", "x", ttl)
					refused, _ := b.waitsFor(2*time.Second, "y2", ttl)
					require.Equal(b, "x", refused.Holder)
					_, err = b.Release(b.Context(), "key", "y2")
					require.NoError(b, err)
					var next sync.WaitGroup
					next.Go(func() { b.waits("z", ttl) })
					time.Sleep(3 * time.Second)
					b.releases("x")
					begun := time.Now()
					next.Wait()
					require.Less(b, time.Since(begun), time.Second)
					b.releases("z")
					time.Sleep(time.Second)
					for i := range b.stores {
						hold := b.hold(i)
						require.False(b, hold.Held || hold.Waiting > 0, "node %d: %+v", i, hold)
					}
				}
			})
		}
	}
}
