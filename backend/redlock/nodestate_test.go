package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// changes are what OnNodeChange has reported.
type changes struct {
	mu  sync.Mutex
	all []redlock.NodeState
}

func (c *changes) add(s redlock.NodeState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, s)
}

// of returns the statuses of a node, in order.
func (c *changes) of(node string) (all []redlock.NodeStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortStableFunc(c.all, func(a, b redlock.NodeState) int { return a.Since.Compare(b.Since) })
	for _, s := range c.all {
		if s.Node == node {
			all = append(all, s.Status)
		}
	}
	return all
}

// watched makes a Locker of three nodes, a, b and c, whose trouble is that of c.
func watched(s stores, c *changes) *redlock.Locker {
	return redlock.New(s.nodes(), redlock.WithNames("a", "b", "c"), redlock.OnNodeChange(c.add))
}

const (
	unknown, up = redlock.NodeUnknown, redlock.NodeUp
	slow, young = redlock.NodeSlow, redlock.NodeYoung
	down        = redlock.NodeDown
)

// One of three nodes is in trouble, and then well again. Every call succeeds, and the trouble is seen.
func TestANodeInTroubleIsSeen(t *testing.T) {
	const guard = 30*time.Second + 300*time.Millisecond + time.Second
	for name, test := range map[string]struct {
		begin, end func(s stores)
		lasts      time.Duration
		while      redlock.NodeStatus
		says       string
		changes    []redlock.NodeStatus
	}{
		"dead": {
			begin:   func(s stores) { s[2].Fail(errDial) },
			end:     func(s stores) { s[2].Fail(nil) },
			while:   down,
			says:    errDial.Error(),
			changes: []redlock.NodeStatus{up, down, up},
		},
		"hung": {
			begin:   func(s stores) { s[2].Delay(time.Hour) },
			end:     func(s stores) { s[2].Delay(0) },
			while:   down,
			says:    "no answer within 5s",
			changes: []redlock.NodeStatus{up, down, up},
		},
		"slow": {
			begin:   func(s stores) { s[2].Delay(200 * time.Millisecond) },
			end:     func(s stores) { s[2].Delay(0) },
			while:   slow,
			says:    "answered after 200ms",
			changes: []redlock.NodeStatus{up, slow, up},
		},
		"refusing": {
			begin:   func(s stores) { s[2].Fail(none(errors.New("NOAUTH"))) },
			end:     func(s stores) { s[2].Fail(nil) },
			while:   down,
			says:    "NOAUTH",
			changes: []redlock.NodeStatus{up, down, up},
		},
		"young": {
			begin:   func(s stores) { s[2].Wipe() },
			end:     func(stores) { time.Sleep(guard) },
			while:   young,
			says:    "has forgotten its leases, and counts in",
			changes: []redlock.NodeStatus{up, young, up},
		},
		"restarting": {
			begin:   func(s stores) { s[2].Fail(errDial) },
			end:     func(s stores) { s[2].Wipe(); s[2].Fail(nil) },
			while:   down,
			says:    errDial.Error(),
			changes: []redlock.NodeStatus{up, down, young, up},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, seen := newStores(3), new(changes)
				l := watched(s, seen)
				defer l.Close()
				locks := dlock.New(l)
				defer locks.Close()
				sale := func() {
					lease, err := locks.Acquire(t.Context(), "key")
					require.NoError(t, err)
					time.Sleep(100 * time.Millisecond)
					require.NoError(t, lease.Release())
				}
				statusOfC := func() redlock.NodeStatus {
					for _, n := range l.Nodes()[:2] {
						require.Equal(t, up, n.Status, "node %s: %v", n.Node, n.Err)
					}
					return l.Nodes()[2].Status
				}
				for _, n := range l.Nodes() {
					require.Equal(t, unknown, n.Status)
				}
				sale()
				require.Equal(t, up, statusOfC())
				test.begin(s)
				for range 70 {
					sale()
				}
				require.Equal(t, test.while, statusOfC(), "while %s", name)
				require.ErrorContains(t, l.Nodes()[2].Err, test.says)
				test.end(s)
				for range 400 {
					sale()
				}
				require.Equal(t, up, statusOfC(), "after it was %s", name)
				require.NoError(t, l.Nodes()[2].Err)
				synctest.Wait()
				had := seen.of("c")
				if slices.Equal(had, []redlock.NodeStatus{up, down, up, young, up}) {
					had = slices.Delete(had, 2, 3) // its first answer was to a release, and has no age
				}
				require.Equal(t, test.changes, had)
				require.Equal(t, []redlock.NodeStatus{up}, seen.of("a"))
			})
		})
	}
}

// A young node counts from a known time on, whether it is asked then or not.
func TestAYoungNodeGrowsUpUnasked(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := watched(s, new(changes))
		defer l.Close()
		s[1].Wipe()
		_, err := l.Inspect(t.Context(), "key") // which has no age
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, up, l.Nodes()[1].Status)
		_, err = l.TryAcquire(t.Context(), "key", "x", time.Second)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, young, l.Nodes()[1].Status)
		time.Sleep(10 * time.Second)
		require.ErrorContains(t, l.Nodes()[1].Err, "counts in 21.")
		_, err = l.Release(t.Context(), "key", "x")
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, young, l.Nodes()[1].Status, "after a release, whose answer has no age")
		time.Sleep(22 * time.Second)
		require.Equal(t, up, l.Nodes()[1].Status)
		require.NoError(t, l.Nodes()[1].Err)
	})
}

// What a node says of its age counts, also if it is better than before, and in a renewal.
func TestANodeTellsItsAge(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := watched(s, new(changes))
		defer l.Close()
		s[1].Wipe()
		for _, want := range []redlock.NodeStatus{young, up} {
			_, err := l.Renew(t.Context(), "key", "x", time.Second)
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, want, l.Nodes()[1].Status)
			s[1].SetAge(2 * longest)
			time.Sleep(2 * time.Second)
		}
	})
}

// Two nodes hang. The one that answers late is not called slow, as no majority is quicker.
func TestANodeThatAloneAnswersIsNotSlow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		for i, d := range []time.Duration{300 * time.Millisecond, time.Hour, time.Hour} {
			s[i].Delay(d)
		}
		l := watched(s, new(changes))
		defer l.Close()
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			_, err := l.Inspect(ctx, "key")
			require.Error(t, err)
			cancel()
		}
		require.Equal(t, up, l.Nodes()[0].Status)
		for i := range s {
			s[i].Delay(0)
		}
	})
}

// All nodes are equally far away, and are asked once by an attempt and then only by renewals. A node is
// slow only if a majority is quicker.
func TestNodesFarAwayAreNotSlow(t *testing.T) {
	for _, trip := range []time.Duration{90 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, seen := newStores(3), new(changes)
				for i := range s {
					s[i].Delay(trip)
				}
				l := watched(s, seen)
				defer l.Close()
				locks := dlock.New(l)
				defer locks.Close()
				lease, err := locks.Acquire(t.Context(), "leader")
				require.NoError(t, err)
				time.Sleep(time.Minute)
				for _, name := range []string{"a", "b", "c"} {
					require.Equal(t, []redlock.NodeStatus{up}, seen.of(name), "node %s", name)
				}
				s[2].Delay(5 * trip)
				time.Sleep(time.Minute)
				require.Equal(t, []redlock.NodeStatus{up, slow}, seen.of("c"))
				require.NoError(t, lease.Release())
			})
		})
	}
}

// A young node that is soon old enough is up from that time on.
func TestANodeThatIsYoungBrieflyIsUpSinceThen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const guard = 30*time.Second + 300*time.Millisecond + time.Second
		s := newStores(3)
		l := watched(s, new(changes))
		defer l.Close()
		s[1].SetAge(guard - 500*time.Millisecond)
		counts := time.Now().Add(500 * time.Millisecond)
		for range 3 {
			_, err := l.TryAcquire(t.Context(), "key", "x", time.Second)
			require.NoError(t, err)
			synctest.Wait()
			time.Sleep(300 * time.Millisecond)
		}
		require.Equal(t, redlock.NodeState{Node: "b", Status: up, Since: counts}, l.Nodes()[1])
	})
}

// A token that waits is released by another process. The nodes say so, and that is no trouble.
func TestAReleaseElsewhereIsNoTroubleOfANode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l, elsewhere := watched(s, new(changes)), redlock.New(s.nodes())
		defer l.Close()
		defer elsewhere.Close()
		_, err := l.TryAcquire(t.Context(), "key", "holder", 10*time.Second)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var waits sync.WaitGroup
		waits.Go(func() { l.Acquire(ctx, "key", "waiter", 10*time.Second) })
		synctest.Wait()
		_, err = elsewhere.Release(t.Context(), "key", "waiter")
		require.NoError(t, err)
		synctest.Wait()
		for _, n := range l.Nodes() {
			require.Equal(t, up, n.Status, "node %s: %v", n.Node, n.Err)
		}
		waits.Wait()
	})
}

// Stores refuse a key without a message to their servers. A user's key is no trouble of the nodes. A right
// that is missing is, and so is a store that has refused every call.
func TestAnInvalidKeyIsNoTroubleOfANode(t *testing.T) {
	argument := none(fmt.Errorf("%w key: contains a mark", dlock.ErrInvalid))
	right := none(fmt.Errorf("%w: no right to vote: %w", dlock.ErrInvalid, errors.New("NOPERM")))
	for name, c := range map[string]struct {
		err   error
		first bool
		want  redlock.NodeStatus
	}{
		"an argument":                    {argument, false, up},
		"a right":                        {right, false, down},
		"an argument, in the first call": {argument, true, down},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := newStores(3)
				l := watched(s, new(changes))
				defer l.Close()
				if !c.first {
					_, err := l.TryAcquire(t.Context(), "good", "x", time.Second)
					require.NoError(t, err)
					synctest.Wait()
				}
				for i := range s {
					s[i].Fail(c.err)
				}
				_, err := l.TryAcquire(t.Context(), "bad", "x", time.Second)
				require.ErrorIs(t, err, dlock.ErrInvalid)
				synctest.Wait()
				for _, n := range l.Nodes() {
					require.Equal(t, c.want, n.Status, "node %s: %v", n.Node, n.Err)
				}
			})
		})
	}
}

// A node fails every tenth request. It is reported twice a second at most: with each fall, and a second
// later.
func TestAFlappingNodeIsReportedSeldom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const seconds = 4
		s, seen := newStores(3), new(changes)
		l := watched(s, seen)
		defer l.Close()
		for i := range seconds * 100 {
			s[2].Fail(nil)
			if i%10 == 9 {
				s[2].Fail(errDial)
			}
			_, err := l.TryAcquire(t.Context(), fmt.Sprint(i), "x", time.Second)
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
		}
		require.InDelta(t, 2*seconds, len(seen.of("c")), 2)
	})
}

// Callers cancel soon. That says nothing of the nodes.
func TestCancelledCallsAreNoTroubleOfANode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, seen := newStores(3), new(changes)
		for i := range s {
			s[i].Delay(time.Hour)
		}
		l := watched(s, seen)
		defer l.Close()
		for i := range 30 { // for less than the limit of a request, since one may not be cancelled
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, err := l.TryAcquire(ctx, fmt.Sprint(i), "x", time.Second)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
			time.Sleep(100 * time.Millisecond)
		}
		for _, n := range l.Nodes() {
			require.Equal(t, unknown, n.Status, "node %s: %v", n.Node, n.Err)
		}
	})
}

// Callers give up before the limit of a request. All nodes hang, and this is seen.
func TestImpatientCallersSeeADeadNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, seen := newStores(3), new(changes)
		for i := range s {
			s[i].Delay(time.Hour)
		}
		l := watched(s, seen)
		defer l.Close()
		for i := range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			_, err := l.TryAcquire(ctx, fmt.Sprint(i), "x", time.Second)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		synctest.Wait()
		for _, n := range l.Nodes() {
			require.Equal(t, down, n.Status)
			require.EqualError(t, n.Err, "no answer within 300ms")
		}
	})
}

// A broken node answers each renewal of a batch with an error.
type broken struct {
	quorum.Voter
	some bool
}

func (n broken) Confirm(_ context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	ballots := make([]quorum.Ballot, len(batch))
	for i := range ballots {
		if ballots[i].Age = time.Hour; i == 0 || !n.some {
			ballots[i].Err = errReset
		}
	}
	return ballots, nil
}

// A node is down if it renews no lease of a batch, and not if it renews some.
func TestRenewalsShowANode(t *testing.T) {
	for some, want := range map[bool]redlock.NodeStatus{true: up, false: down} {
		bubble.Test(t, func(t *testing.T) {
			s := newStores(3)
			nodes := s.nodes()
			nodes[2] = broken{s[2], some}
			l := redlock.New(nodes)
			defer l.Close()
			_, err := l.RenewBatch(t.Context(), []dlock.Renewal{{Key: "1", Token: "x", TTL: time.Second}, {Key: "2", Token: "x", TTL: time.Second}})
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, want, l.Nodes()[2].Status)
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

type reply string

func (r reply) Error() string { return string(r) }
func (reply) Failed() bool    { return true }

// A majority has failed if enough nodes have replied, and too few of them have answered.
func TestFailedMajority(t *testing.T) {
	failed, silent := reply("ERR upstream failure"), errDial
	for _, c := range []struct {
		nodes []error
		want  bool
	}{
		{[]error{failed, failed, silent}, true},
		{[]error{nil, failed, silent}, true},
		{[]error{failed, silent, silent}, false},
		{[]error{nil, nil, failed}, false},
	} {
		e := &redlock.MajorityError{Quorum: 2, Nodes: c.nodes}
		require.Equal(t, c.want, e.Failed(), "%v", c.nodes)
	}
}
