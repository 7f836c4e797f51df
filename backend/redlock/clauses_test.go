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

const voteTTL = 10 * time.Second

// A clause is a promise of a lock that asks several nodes, and what checks it with two Lockers, of which one asks for token "a".
type clause struct {
	name, text string
	check      func(*bench)
}

var clauses = []clause{
	{"MoreThanHalf", "A backend that asks several nodes grants nothing to half of them, or less.", func(b *bench) {
		for _, n := range []int{3, 4, 5, 6} {
			b.of(n)
			b.stores[n/2:].each(fail(errReset))
			_, err := b.fails("a", voteTTL, fmt.Sprintf("only %d of %d nodes vote", n/2, n))
			require.Error(b, err, "TryAcquire, while only %d of %d nodes vote", n/2, n)
		}
	}},
	{"MinorityFails", "A backend that asks several nodes goes on, and no more slowly, while a minority of them fail, lose replies or hang.", func(b *bench) {
		for fault, strike := range map[string]func(*memory.Locker){
			"fail":         fail(errReset),
			"lose replies": func(n *memory.Locker) { n.FailReplies(errReset) },
			"hang":         delay(time.Hour),
		} {
			b.of(5)
			strike(b.stores[1])
			strike(b.stores[3])
			begun := time.Now()
			b.takesWhole()
			b.renews("a", voteTTL)
			b.releases("a")
			require.Less(b, time.Since(begun), 10*time.Millisecond, "for three calls, while 2 of 5 nodes %s and the others answer at once", fault)
		}
	}},
	{"DistinctNodes", "A backend that asks several nodes does not count two votes of the same store.", func(b *bench) {
		b.of(3)
		again := struct{ *memory.Locker }{b.stores[1]}
		b.open([]dlock.Locker{b.stores[0], b.stores[1], again}, redlock.WithLongestTTL(longest))
		b.failing(errReset, 0)
		b.fails("a", voteTTL, "one of the three nodes fails, and the others are the same store")
	}},
	{"OldestVoteDates", "A backend that asks several nodes dates a lease so that none of the votes that it needs ends before its deadline.", func(b *bench) {
		other := b.of(3)
		b.failing(errReset, 2)
		b.stores[1].Delay(2 * time.Millisecond) // so little that the fences are equal
		a := b.takesWhole()
		b.failing(nil)
		b.excludes(other, a.Since)
	}},
	{"HolderKeepsItsVotes", "A backend that asks several nodes keeps the votes of a lease when its holder repeats the attempt and that fails.", func(b *bench) {
		other := b.of(3)
		a := b.takesWhole()
		b.stores[1:].each(func(n *memory.Locker) { n.FailReplies(errReset) })
		b.fails("a", voteTTL, "two of three nodes have not answered")
		b.failing(nil)
		b.excludes(other, a.Since)
	}},
	{"WipesReleaseNothing", "A backend that asks several nodes keeps a lease's votes when its holder repeats the attempt, even if a node has lost its data and names another holder.", func(b *bench) {
		other := b.of(3)
		b.failing(errReset, 2)
		a := b.takesWhole()
		b.failing(nil)
		b.stores[1].Wipe()
		b.by("other", voteTTL/2, 1, 2)
		b.each(delay(10 * time.Millisecond))                       // so that they are asked less often
		ctx, cancel := context.WithTimeout(b.Context(), voteTTL/4) // while the other has these votes
		defer cancel()
		_, _ = b.TryAcquire(ctx, "key", "a", voteTTL)
		b.excludes(other, a.Since)
	}},
	{"YoungNodesDoNotVote", "A backend that asks several nodes does not count the vote of a node that has lost its data until the longest TTL has passed.", func(b *bench) {
		other := b.of(3)
		b.failing(errReset, 2)
		a := b.takesWhole()
		b.failing(nil)
		b.stores[1].Wipe()
		b.excludes(other, a.Since)
		time.Sleep(2 * voteTTL) // what the other may have got by then ends
		b.failing(errReset, 2)
		b.stores[1].SetAge(2 * longest)
		b.takesWhole()
	}},
	{"YoungNodesAreNotHeard", "A backend that asks several nodes waits for a majority of the others while one has just lost its data.", func(b *bench) {
		other := b.of(3)
		b.stores[1].Wipe()
		b.stores[2].Delay(10 * time.Millisecond)
		b.takesWhole()
		b.stores[1].Wipe()
		a, err := other.TryAcquire(b.Context(), "key", "b", voteTTL)
		require.NoError(b, err, "TryAcquire, when two of three nodes named the same holder")
		require.False(b, a.Acquired, "another holds it")
		b.renews("a", voteTTL)
		b.releases("a")
	}},
	{"YoungNodesDoNotRenew", "A backend that asks several nodes does not count a renewal by a node that has lost its data until the longest TTL has passed.", func(b *bench) {
		b.of(3)
		b.takesWhole()
		b.stores[1].Wipe()
		for range 8 { // the node may be given the vote again
			time.Sleep(voteTTL / 4)
			b.renews("a", voteTTL)
		}
		b.failing(errReset, 2)
		held, err := b.Renew(b.Context(), "key", "a", voteTTL)
		require.False(b, held && err == nil, "Renew by two of three nodes, one of which lost its data %v ago", 2*voteTTL)
	}},
	{"HealIsNoRenewal", "A backend that asks several nodes renews a lease only if a majority still has it, and never revives it.", func(b *bench) {
		b.of(3)
		b.takesWhole()
		b.stores[1:].each(func(n *memory.Locker) { n.Expire("key") })
		for range 3 {
			held, err := b.Renew(b.Context(), "key", "a", voteTTL)
			require.NoError(b, err, "Renew")
			require.False(b, held, "Renew, though two of three nodes no longer have the lease")
			time.Sleep(voteTTL / 4)
		}
	}},
	{"FenceOfAMajority", "A backend that asks several nodes gives the next grant a larger fence, even by other nodes whose clocks are behind.", func(b *bench) {
		other := b.of(3)
		b.stores[0].SetClock(time.Hour)
		b.failing(errReset, 2)
		first := b.takesWhole()
		b.releases("a")
		b.failing(errReset, 0)
		time.Sleep(2 * voteTTL) // what was owed to nodes is no more
		b.Locker = other        // to which the token is new
		require.GreaterOrEqual(b, b.takesWhole().Fence, first.Fence+8, "the fence of a later grant")
	}},
	{"RenewalNeedsMajority", "A backend that asks several nodes returns an error from a renewal that less than a majority has answered.", func(b *bench) {
		b.of(3)
		b.takesWhole()
		b.failing(errReset, 1, 2)
		_, err := b.Renew(b.Context(), "key", "a", voteTTL)
		require.Error(b, err, "Renew, while two of three nodes fail")
		b.failing(nil)
		b.renews("a", voteTTL)
	}},
	{"ReleaseNeedsMajority", "A backend that asks several nodes returns an error from a release that less than a majority has answered.", func(b *bench) {
		b.of(3)
		b.takesWhole()
		b.failing(errReset, 1, 2)
		_, err := b.Release(b.Context(), "key", "a")
		require.Error(b, err, "Release, while two of three nodes fail")
	}},
	{"RefusalNeedsMajority", "A backend that asks several nodes returns an error from an attempt if no majority names the same holder.", func(b *bench) {
		b.of(3)
		for i := range b.stores {
			b.by(fmt.Sprint("split", i), voteTTL, i)
		}
		b.each(delay(10 * time.Millisecond)) // so that they are asked less often
		a, err := b.fails("a", voteTTL, "others have all votes")
		require.Error(b, err, "TryAcquire, though each node names another holder: %+v", a)
	}},
	{"StraysAreReleased", "A backend that asks several nodes gives back the votes of a refused attempt.", func(b *bench) {
		b.of(3)
		b.by("other", voteTTL, 1, 2)
		_, err := b.fails("a", voteTTL, "another has two of three votes")
		require.NoError(b, err, "TryAcquire, when two of three nodes named the same holder")
		time.Sleep(voteTTL / 2)
		require.Empty(b, b.hold(0).Token, "holder of a node, %v after the attempt was refused", voteTTL/2)
	}},
	{"ReleaseIsOwed", "A backend that asks several nodes repeats a release that a minority has not answered.", func(b *bench) {
		b.of(3)
		b.takesWhole()
		b.failing(errReset, 2)
		b.releases("a")
		time.Sleep(3 * time.Second)
		b.failing(nil)
		time.Sleep(voteTTL / 2)
		require.Empty(b, b.hold(2).Token, "holder of a node that has failed for 3s, %v later", voteTTL/2)
	}},
	{"OwedReleaseEndsNoLease", "A backend that asks several nodes grants nothing by a vote that a repeated release of the same token may end.", func(b *bench) {
		for _, err := range []error{errReset, errDial} { // also if the node refused to hear
			other := b.of(3)
			b.takesWhole()
			b.failing(err, 1)
			b.releases("a")
			time.Sleep(30 * time.Millisecond) // node 1 fails each time that it is asked
			b.failing(err, 2)
			b.takesAgain(other)
		}
	}},
	{"LateVotesDoNotCount", "A backend that asks several nodes does not count a vote that arrives after its token was released.", func(b *bench) {
		const late = time.Second / 2
		other := b.of(3)
		b.stores[1].SetClock(time.Hour) // so its fence is the largest, and need not be raised
		b.open([]dlock.Locker{b.stores[0], on(b.stores[1], "Vote", func(r *request) error {
			defer time.Sleep(late)
			return r.make(r.ctx)
		}), b.stores[2]}, redlock.WithLongestTTL(longest))
		b.failing(errReset, 2)
		ctx, cancel := context.WithTimeout(b.Context(), late/5)
		defer cancel()
		_, _ = b.TryAcquire(ctx, "key", "a", voteTTL) // which gives up before a majority has answered
		b.failing(nil)
		_, err := b.Release(b.Context(), "key", "a")
		require.NoError(b, err, "Release")
		b.failing(errReset, 2)
		b.stores[1].Delay(time.Hour)
		b.takesAgain(other)
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

// of gives the bench n nodes and a Locker, and returns another one. In the end the nodes are well again.
func (b *bench) of(n int) (other *redlock.Locker) {
	b.stores = newStores(n)
	b.open(b.nodes(), redlock.WithLongestTTL(longest))
	other = b.Locker
	b.open(b.nodes(), redlock.WithLongestTTL(longest))
	all := b.stores
	b.Cleanup(func() { all.failing(nil) })
	return other
}

// failing makes these nodes fail, and heals the others.
func (s stores) failing(err error, nodes ...int) {
	for i, n := range s {
		n.Fail(nil)
		n.FailReplies(nil)
		if n.Delay(0); slices.Contains(nodes, i) {
			n.Fail(err)
		}
	}
}

// takesWhole has "a" acquire the key, also at the nodes that are not needed.
func (b *bench) takesWhole() dlock.Attempt {
	b.Helper()
	a := b.takes("a", voteTTL)
	time.Sleep(time.Millisecond)
	return a
}

// excludes has another Locker try to take the key until the deadline of a lease that has begun.
func (b *bench) excludes(other *redlock.Locker, begun time.Time) {
	b.Helper()
	for i, deadline := 0, begun.Add(voteTTL); time.Now().Before(deadline); i++ {
		token := fmt.Sprint("b", i)
		a, err := other.TryAcquire(b.Context(), "key", token, voteTTL)
		require.False(b, err == nil && a.Acquired && time.Now().Before(deadline),
			"%s was acquired %v before the deadline of another holder", token, time.Until(deadline))
		if err != nil {
			_, _ = other.Release(b.Context(), "key", token) // the caller owes it
		}
		time.Sleep(max(200*time.Microsecond, time.Until(deadline)/4))
	}
}

// takesAgain has "a" repeat its attempt until it is acquired, or a TTL has passed.
func (b *bench) takesAgain(other *redlock.Locker) {
	b.Helper()
	for end := time.Now().Add(voteTTL); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		begun := time.Now()
		if a, err := b.tries("a", voteTTL); err == nil && a.Acquired {
			b.failing(nil)
			b.excludes(other, begun)
			return
		}
	}
}
