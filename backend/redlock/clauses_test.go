package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
)

// A clause is a promise of a lock that asks several nodes, and what checks it.
type clause struct {
	name, text string
	check      func(*bench)
}

var clauses = []clause{
	{"MoreThanHalf", "A backend that asks several nodes grants nothing to half of them, or less.", func(b *bench) {
		for _, n := range []int{3, 4, 5, 6} {
			m := b.of(n)
			for _, store := range m.stores[n/2:] {
				store.Fail(errReset)
			}
			_, err := m.takesNot(m.a, "a", fmt.Sprintf("only %d of %d nodes vote", n/2, n))
			require.Error(m, err, "TryAcquire, while only %d of %d nodes vote", n/2, n)
		}
	}},
	{"MinorityFails", "A backend that asks several nodes goes on, and no more slowly, while a minority of them fail, lose replies or hang.", func(b *bench) {
		for fault, strike := range map[string]func(*memory.Locker){
			"fail":         fail(errReset),
			"lose replies": func(n *memory.Locker) { n.FailReplies(errReset) },
			"hang":         delay(time.Hour),
		} {
			m := b.of(5)
			strike(m.stores[1])
			strike(m.stores[3])
			begun := time.Now()
			m.takes()
			m.renews("while 2 of 5 nodes " + fault)
			m.releases()
			require.Less(m, time.Since(begun), 10*time.Millisecond, "for three calls, while 2 of 5 nodes %s and the others answer at once", fault)
		}
	}},
	{"DistinctNodes", "A backend that asks several nodes does not count two votes of the same store.", func(b *bench) {
		m := b.of(3)
		again := struct{ *memory.Locker }{m.stores[1]}
		l := m.ask(m.stores[0], m.stores[1], again)
		m.fail(0)
		m.takesNot(l, "a", "one of the three nodes fails, and the others are the same store")
	}},
	{"OldestVoteDates", "A backend that asks several nodes dates a lease so that none of the votes that it needs ends before its deadline.", func(b *bench) {
		m := b.of(3)
		m.fail(2)
		m.stores[1].Delay(2 * time.Millisecond) // so little that the fences are equal
		_, deadline := m.takes()
		m.fail()
		m.excluded(deadline)
	}},
	{"HolderKeepsItsVotes", "A backend that asks several nodes keeps the votes of a lease when its holder repeats the attempt and that fails.", func(b *bench) {
		m := b.of(3)
		_, deadline := m.takes()
		for _, n := range m.stores[1:] {
			n.FailReplies(errReset)
		}
		m.takesNot(m.a, "a", "two of three nodes have not answered")
		m.fail()
		m.excluded(deadline)
	}},
	{"WipesReleaseNothing", "A backend that asks several nodes keeps a lease's votes when its holder repeats the attempt, even if a node has lost its data and names another holder.", func(b *bench) {
		m := b.of(3)
		m.fail(2)
		_, deadline := m.takes()
		m.fail()
		m.stores[1].Wipe()
		m.by("other", voteTTL/2, 1)
		m.by("other", voteTTL/2, 2)
		m.each(delay(10 * time.Millisecond))                       // so that they are asked less often
		ctx, cancel := context.WithTimeout(m.Context(), voteTTL/4) // while the other has these votes
		defer cancel()
		_, _ = m.a.TryAcquire(ctx, key, "a", voteTTL)
		m.excluded(deadline)
	}},
	{"YoungNodesDoNotVote", "A backend that asks several nodes does not count the vote of a node that has lost its data until the longest TTL has passed.", func(b *bench) {
		m := b.of(3)
		m.fail(2)
		_, deadline := m.takes()
		m.fail()
		m.stores[1].Wipe()
		m.excluded(deadline)
		time.Sleep(2 * voteTTL) // what b may have got by then ends
		m.fail(2)
		m.stores[1].SetAge(2 * longest)
		m.takes()
	}},
	{"YoungNodesAreNotHeard", "A backend that asks several nodes waits for a majority of the others while one has just lost its data.", func(b *bench) {
		m := b.of(3)
		m.stores[1].Wipe()
		m.stores[2].Delay(10 * time.Millisecond)
		m.takes()
		m.stores[1].Wipe()
		_, err := m.takesNot(m.b, "b", "another holds it")
		require.NoError(m, err, "TryAcquire, when two of three nodes named the same holder")
		m.renews("while a node is young")
		m.releases()
	}},
	{"YoungNodesDoNotRenew", "A backend that asks several nodes does not count a renewal by a node that has lost its data until the longest TTL has passed.", func(b *bench) {
		m := b.of(3)
		m.takes()
		m.stores[1].Wipe()
		for range 8 { // the node may be given the vote again
			time.Sleep(voteTTL / 4)
			m.renews("while a node is young")
		}
		m.fail(2)
		held, err := m.a.Renew(m.Context(), key, "a", voteTTL)
		require.False(m, held && err == nil, "Renew by two of three nodes, one of which lost its data %v ago", 2*voteTTL)
	}},
	{"HealIsNoRenewal", "A backend that asks several nodes renews a lease only if a majority still has it, and never revives it.", func(b *bench) {
		m := b.of(3)
		m.takes()
		for _, n := range m.stores[1:] {
			n.Expire(key)
		}
		for range 3 {
			held, err := m.a.Renew(m.Context(), key, "a", voteTTL)
			require.NoError(m, err, "Renew")
			require.False(m, held, "Renew, though two of three nodes no longer have the lease")
			time.Sleep(voteTTL / 4)
		}
	}},
	{"FenceOfAMajority", "A backend that asks several nodes gives the next grant a larger fence, even by other nodes whose clocks are behind.", func(b *bench) {
		m := b.of(3)
		m.stores[0].SetClock(time.Hour)
		m.fail(2)
		first, _ := m.takes()
		m.releases()
		m.fail(0)
		time.Sleep(2 * voteTTL) // what was owed to nodes is no more
		m.a = m.b               // to which the token is new
		next, _ := m.takes()
		require.GreaterOrEqual(m, next, first+8, "the fence of a later grant")
	}},
	{"RenewalNeedsMajority", "A backend that asks several nodes returns an error from a renewal that less than a majority has answered.", func(b *bench) {
		m := b.of(3)
		m.takes()
		m.fail(1, 2)
		_, err := m.a.Renew(m.Context(), key, "a", voteTTL)
		require.Error(m, err, "Renew, while two of three nodes fail")
		m.fail()
		m.renews("when the nodes are well again")
	}},
	{"ReleaseNeedsMajority", "A backend that asks several nodes returns an error from a release that less than a majority has answered.", func(b *bench) {
		m := b.of(3)
		m.takes()
		m.fail(1, 2)
		_, err := m.a.Release(m.Context(), key, "a")
		require.Error(m, err, "Release, while two of three nodes fail")
	}},
	{"RefusalNeedsMajority", "A backend that asks several nodes returns an error from an attempt if no majority names the same holder.", func(b *bench) {
		m := b.of(3)
		for i := range m.stores {
			m.by(fmt.Sprint("split", i), voteTTL, i)
		}
		m.each(delay(10 * time.Millisecond)) // so that they are asked less often
		a, err := m.takesNot(m.a, "a", "others have all votes")
		require.Error(m, err, "TryAcquire, though each node names another holder: %+v", a)
	}},
	{"StraysAreReleased", "A backend that asks several nodes gives back the votes of a refused attempt.", func(b *bench) {
		m := b.of(3)
		m.by("other", voteTTL, 1)
		m.by("other", voteTTL, 2)
		_, err := m.takesNot(m.a, "a", "another has two of three votes")
		require.NoError(m, err, "TryAcquire, when two of three nodes named the same holder")
		time.Sleep(voteTTL / 2)
		require.Empty(m, m.hold(0).Token, "holder of a node, %v after the attempt was refused", voteTTL/2)
	}},
	{"ReleaseIsOwed", "A backend that asks several nodes repeats a release that a minority has not answered.", func(b *bench) {
		m := b.of(3)
		m.takes()
		m.fail(2)
		m.releases()
		time.Sleep(3 * time.Second)
		m.fail()
		time.Sleep(voteTTL / 2)
		require.Empty(m, m.hold(2).Token, "holder of a node that has failed for 3s, %v later", voteTTL/2)
	}},
	{"OwedReleaseEndsNoLease", "A backend that asks several nodes grants nothing by a vote that a repeated release of the same token may end.", func(b *bench) {
		for _, err := range []error{errReset, errDial} { // also if the node refused to hear
			m := b.of(3)
			m.err = err
			m.takes()
			m.fail(1)
			m.releases()
			time.Sleep(time.Millisecond) // node 1 fails
			m.fail(2)
			m.takesAgain()
		}
	}},
	{"LateVotesDoNotCount", "A backend that asks several nodes does not count a vote that arrives after its token was released.", func(b *bench) {
		const late = time.Second / 2
		m := b.of(3)
		m.stores[1].SetClock(time.Hour) // so its fence is the largest, and need not be raised
		m.a = m.ask(m.stores[0], on(m.stores[1], "Vote", func(r *request) error {
			defer time.Sleep(late)
			return r.make(r.ctx)
		}), m.stores[2])
		m.fail(2)
		ctx, cancel := context.WithTimeout(m.Context(), late/5)
		defer cancel()
		_, _ = m.a.TryAcquire(ctx, key, "a", voteTTL) // which gives up before a majority has answered
		m.fail()
		_, err := m.a.Release(m.Context(), key, "a")
		require.NoError(m, err, "Release")
		m.fail(2)
		m.stores[1].Delay(time.Hour)
		m.takesAgain()
	}},
}

func TestClauses(t *testing.T) {
	for _, c := range clauses {
		t.Run(c.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("clause: %s", c.text)
				}
			})
			onBench(t, c.check)
		})
	}
}

// A majority has nodes that decide by majority, and two clients that ask them for a key.
type majority struct {
	*bench
	err  error // of nodes that fail
	a, b *redlock.Locker
}

const (
	key     = "key"
	voteTTL = 10 * time.Second
)

// of returns a majority of n nodes. In the end they are well again.
func (b *bench) of(n int) *majority {
	m := &majority{bench: &bench{T: b.T, stores: newStores(n)}, err: errReset}
	m.a, m.b = m.ask(m.nodes()...), m.ask(m.nodes()...)
	b.Cleanup(func() { m.fail() })
	return m
}

// ask returns one more client.
func (m *majority) ask(nodes ...dlock.Locker) *redlock.Locker {
	m.open(nodes, redlock.WithLongestTTL(longest))
	return m.Locker
}

// fail makes these nodes fail, and heals the others.
func (m *majority) fail(failing ...int) {
	for i, n := range m.stores {
		n.Fail(nil)
		n.FailReplies(nil)
		n.Delay(0)
		if slices.Contains(failing, i) {
			n.Fail(m.err)
		}
	}
}

// takes has a acquire the key, and returns its fence and its deadline.
func (m *majority) takes() (fence int64, deadline time.Time) {
	a, err := m.a.TryAcquire(m.Context(), key, "a", voteTTL)
	require.NoError(m, err, "TryAcquire")
	require.True(m, a.Acquired, "TryAcquire: %+v", a)
	time.Sleep(time.Millisecond) // the votes that were not needed arrive
	return a.Fence, a.Since.Add(voteTTL)
}

// takesNot makes an attempt that must not be granted.
func (m *majority) takesNot(l *redlock.Locker, token, why string) (dlock.Attempt, error) {
	a, err := l.TryAcquire(m.Context(), key, token, voteTTL)
	require.False(m, a.Acquired && err == nil, "TryAcquire by %s was acquired, though %s", token, why)
	return a, err
}

// excluded has b try to take the key until the deadline of a.
func (m *majority) excluded(deadline time.Time) {
	for i := 0; time.Now().Before(deadline); i++ {
		token := fmt.Sprint("b", i)
		a, err := m.b.TryAcquire(m.Context(), key, token, voteTTL)
		require.False(m, err == nil && a.Acquired && time.Now().Before(deadline),
			"%s was acquired %v before the deadline of another holder", token, time.Until(deadline))
		if err != nil {
			_, _ = m.b.Release(m.Context(), key, token) // the caller owes it
		}
		time.Sleep(max(200*time.Microsecond, time.Until(deadline)/4))
	}
}

func (m *majority) renews(when string) {
	held, err := m.a.Renew(m.Context(), key, "a", voteTTL)
	require.NoError(m, err, "Renew %s", when)
	require.True(m, held, "Renew %s: a majority of the nodes has the lease", when)
}

func (m *majority) releases() {
	held, err := m.a.Release(m.Context(), key, "a")
	require.NoError(m, err, "Release")
	require.True(m, held, "Release: a majority of the nodes has the lease")
}

// takesAgain has a repeat its attempt until it is acquired, or a TTL has passed.
func (m *majority) takesAgain() {
	for end := time.Now().Add(voteTTL); time.Now().Before(end); {
		begun := time.Now()
		a, err := m.a.TryAcquire(m.Context(), key, "a", voteTTL)
		if err == nil && a.Acquired {
			m.fail()
			m.excluded(begun.Add(voteTTL))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
