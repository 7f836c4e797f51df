package redlock_test

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/votetest"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/israce"
)

// A flaw is what is wrong with a majority lock, where it was seen, the harm that it does, and the clauses that
// are broken. If it was not seen, it was made for one of these. The hooks make it of a right lock.
type flaw struct {
	name, wrong, seen, harm string
	breaks                  names

	asks    func(nodes int) int                       // how many nodes are asked
	ballot  func(node int, b *quorum.Ballot)          // what a node answers to Vote
	confirm func(*quorum.Confirmation)                // what a node is asked to confirm
	renewed func(*quorum.Ballot)                      // what it answers to that
	pass    func(held bool, err error) (bool, error)  // what it answers to Pass
	asked   func(context.Context, quorum.Ballot)      // when a node has answered
	tries   func(flawed, call) (dlock.Attempt, error) // TryAcquire
	renews  func(flawed, call) (bool, error)          // Renew
	ends    func(flawed, call) (bool, error)          // Release
	returns func(flawed)                              // before a call returns
	apart   bool                                      // what attempts know is not known to releases
	late    bool                                      // a vote counts whenever it comes
}

type names = []string

const old = 2 * longest // age of a node

// oldIf makes ballots those of an old node.
func oldIf(acquired bool) func(int, *quorum.Ballot) {
	return func(_ int, b *quorum.Ballot) {
		if b.Acquired == acquired {
			b.Age = old
		}
	}
}

var flaws = []flaw{
	{name: "none"},
	{name: "halfIsEnough", wrong: "Half of the nodes are enough.",
		harm:   "With an even number of nodes, two holders each have half of them.",
		breaks: names{"MoreThanHalf"}, asks: func(nodes int) int { return nodes - 1 + nodes%2 }},
	{name: "waitsForAll", wrong: "An answer is awaited from each node.",
		seen:   "redsync and RedLock.net, unless they are told not to",
		harm:   "One node that hangs makes every call as slow as the limit.",
		breaks: names{"MinorityFails"}, returns: flawed.awaitsAll},
	{name: "countsAStoreTwice", wrong: "Two addresses of one store are two nodes.",
		harm:   "Two of three votes are those of one server, which may fail or forget.",
		breaks: names{"DistinctNodes"}, ballot: func(node int, b *quorum.Ballot) { b.Store = string(rune('A' + node)) }},
	{name: "datedByTheYoungest", wrong: "The lease is dated by the vote that made it a majority.",
		harm:   "The oldest votes end while the holder is certain, and another gets a majority.",
		breaks: names{"OldestVoteDates"}, tries: func(b flawed, c call) (dlock.Attempt, error) {
			a, err := b.try(c)
			a.Since = time.Now()
			return a, err
		}},
	{name: "givesUpTheWhole", wrong: "An attempt that fails releases the token on all nodes.",
		seen:   "a well-known recipe",
		harm:   "If the token held the key already, its holder loses it and does not know.",
		breaks: names{"HolderKeepsItsVotes", "WipesReleaseNothing"}, tries: func(b flawed, c call) (dlock.Attempt, error) {
			a, err := b.try(c)
			if err != nil {
				_, _ = b.Locker.Release(context.WithoutCancel(c.ctx), c.key, c.token)
			}
			return a, err
		}},
	{name: "refusalsOfTheYoung", wrong: "A node that has lost its data shows that a token has no lease.",
		seen:   "this library's Redlock",
		harm:   "A holder that repeats its attempt takes it for refused, and gives back the last votes of its lease.",
		breaks: names{"WipesReleaseNothing"}, ballot: oldIf(false)},
	{name: "votesOfTheYoung", wrong: "A node that has lost its data votes at once.",
		seen:   "servers without persistence, restarted by their supervisor",
		harm:   "The node votes for two holders.",
		breaks: names{"WipesReleaseNothing", "YoungNodesDoNotVote", "YoungNodesAreNotHeard"}, ballot: oldIf(true)},
	{name: "answersOfTheYoung", wrong: "The answer of a node that has lost its data makes the majority that has answered.",
		seen:   "this library's Redlock",
		harm:   "Calls fail because one node was restarted, though two of three count, and answer a little later.",
		breaks: names{"YoungNodesAreNotHeard"}, tries: func(b flawed, c call) (dlock.Attempt, error) {
			ctx, cancel := context.WithCancel(c.ctx)
			defer cancel()
			c.ctx = context.WithValue(ctx, attempt{}, cancel)
			return b.try(c)
		},
		asked: func(ctx context.Context, b quorum.Ballot) {
			if cancel, ok := ctx.Value(attempt{}).(context.CancelFunc); ok && b.Age < longest {
				time.AfterFunc(time.Millisecond, cancel)
			}
		}},
	{name: "renewalsOfTheYoung", wrong: "A node that has lost its data counts in renewals, as it was given the vote again.",
		harm:   "It may have voted for another before that.",
		breaks: names{"YoungNodesDoNotRenew"}, renewed: func(b *quorum.Ballot) { b.Age = old }},
	{name: "extendOrSet", wrong: "A renewal sets the key where it is gone.",
		seen:   "an option of redsync; RedLock.net",
		harm:   "A lease that has ended is revived, perhaps after that of another.",
		breaks: names{"HealIsNoRenewal"}, renews: func(b flawed, c call) (bool, error) {
			a, err := b.try(c)
			return a.Acquired, err
		}},
	{name: "maximumAlone", wrong: "The fence is the largest that a node of the majority gave.",
		harm:   "The next majority need not have that node, and may give a lower fence.",
		breaks: names{"FenceOfAMajority"}, confirm: func(c *quorum.Confirmation) { c.Fence = 0 }},
	{name: "oneRenews", wrong: "A lease is renewed if one node has renewed it.",
		harm:   "The holder believes in a lease of which a majority knows nothing.",
		breaks: names{"YoungNodesDoNotRenew", "RenewalNeedsMajority"}, renews: func(b flawed, c call) (bool, error) {
			held, err := b.Locker.Renew(c.ctx, c.key, c.token, c.ttl)
			if err != nil && b.oneSays(c, func(h dlock.Hold) bool { return h.Token == c.token }) {
				return true, nil
			}
			return held, err
		}},
	{name: "oneReleases", wrong: "A lease is released if one node has released it.",
		harm:   "The key stays held for a TTL, and nobody releases it.",
		breaks: names{"ReleaseNeedsMajority"}, ends: func(b flawed, c call) (bool, error) {
			held, err := b.Locker.Release(c.ctx, c.key, c.token)
			if err != nil && b.oneSays(c, func(h dlock.Hold) bool { return !h.Held }) {
				return true, nil
			}
			return held, err
		}},
	{name: "oneRefuses", wrong: "A key is held if one node says so.",
		harm:   "After a split vote everyone reports a holder, and there is none.",
		breaks: names{"RefusalNeedsMajority"}, tries: func(b flawed, c call) (dlock.Attempt, error) {
			a, err := b.try(c)
			another := func(h dlock.Hold) bool { a.Holder = h.Token; return h.Held && h.Token != c.token }
			if err != nil && b.oneSays(c, another) {
				return a, nil
			}
			return a, err
		}},
	{name: "keepsItsStrays", wrong: "An attempt that was refused keeps the votes that it got.",
		harm:   "The votes of those who failed block the key until they expire.",
		breaks: names{"StraysAreReleased"}, apart: true,
		pass: func(bool, error) (bool, error) { return true, nil }},
	{name: "owesNothing", wrong: "A release that one node has not answered is not repeated there.",
		seen:   "a well-known recipe",
		harm:   "Votes of the dead add up, until a key is blocked.",
		breaks: names{"ReleaseNeedsMajority", "ReleaseIsOwed"}, pass: func(held bool, _ error) (bool, error) { return held, nil }},
	{name: "asksAgainAtOnce", wrong: "A token asks for votes again while its release is repeated.",
		harm:   "The release arrives after the new vote, and ends it. Its holder believes in it, and another gets the key.",
		breaks: names{"OwedReleaseEndsNoLease"}, apart: true},
	{name: "countsLateVotes", wrong: "A vote counts whenever its answer comes.",
		harm:   "The token was released since, and the node has no vote of it.",
		breaks: names{"LateVotesDoNotCount"}, late: true},
}

// Each broken majority breaks the clauses that it names, and no other.
func TestFlaws(t *testing.T) {
	if israce.Enabled {
		t.Skip("takes long with the race detector, and finds no more")
	}
	shown := make(map[string]bool)
	for _, f := range flaws {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var found []string
			for _, c := range clauses {
				if votetest.Fails(t, func(t *testing.T, o require.TestingT) { c.check(&scene{t, o, f.open}) }) {
					found = append(found, c.name)
				}
			}
			require.Equal(t, f.breaks, found, "%s %s Seen: %q", f.wrong, f.harm, f.seen)
		})
		for _, name := range f.breaks {
			shown[name] = true
		}
	}
	for _, c := range clauses {
		require.True(t, shown[c.name], "no broken majority shows that the check of %s finds anything", c.name)
	}
}

// A flawed majority is a right one with hooks, of nodes with hooks.
type flawed struct {
	*redlock.Locker
	tried *redlock.Locker // by attempts
	nodes []node
	flaw
}

func (f flaw) open(stores []dlock.Locker) lock {
	b := flawed{flaw: f}
	if f.asks != nil {
		stores = stores[:f.asks(len(stores))]
	}
	var made []dlock.Locker
	for i, s := range stores {
		b.nodes = append(b.nodes, s.(node))
		made = append(made, &flawedNode{node: s.(node), flaw: f, number: i})
	}
	b.tried = redlock.New(made, redlock.WithLongestTTL(longest))
	if b.Locker = b.tried; f.apart {
		b.Locker = redlock.New(stores, redlock.WithLongestTTL(longest))
	}
	return b
}

// A call is one of TryAcquire, Renew or Release.
type call struct {
	ctx        context.Context
	key, token string
	ttl        time.Duration
}

// attempt is the key under which the ctx of an attempt has what ends it.
type attempt struct{}

func (b flawed) try(c call) (dlock.Attempt, error) {
	return b.tried.TryAcquire(c.ctx, c.key, c.token, c.ttl)
}

func (b flawed) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	defer b.answers()
	c := call{ctx, key, token, ttl}
	if b.tries != nil {
		return b.tries(b, c)
	}
	return b.try(c)
}

func (b flawed) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	defer b.answers()
	if b.renews != nil {
		return b.renews(b, call{ctx, key, token, ttl})
	}
	return b.Locker.Renew(ctx, key, token, ttl)
}

func (b flawed) Release(ctx context.Context, key, token string) (bool, error) {
	defer b.answers()
	if b.ends != nil {
		return b.ends(b, call{ctx: ctx, key: key, token: token})
	}
	return b.Locker.Release(ctx, key, token)
}

func (b flawed) answers() {
	if b.returns != nil {
		b.returns(b)
	}
}

// awaitsAll waits for an answer of each node, for a second.
func (b flawed) awaitsAll() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, n := range b.nodes {
		_, _ = n.Inspect(ctx, "any")
	}
}

// oneSays reports whether one of the nodes says so of the key.
func (b flawed) oneSays(c call, so func(dlock.Hold) bool) bool {
	return slices.ContainsFunc(b.nodes, func(n node) bool {
		h, err := n.Inspect(c.ctx, c.key)
		return err == nil && so(h)
	})
}

func (b flawed) Close() error { return cmp.Or(b.tried.Close(), b.Locker.Close()) }

// A node is a store in memory.
type node interface {
	quorum.VoteAcquirer
	dlock.Acquirer
	dlock.Inspector
}

// A flawedNode is a right one, with what a flawed majority makes of its answers.
type flawedNode struct {
	node
	flaw
	number int
	box    sync.Map // ballots that came late, by key and token
}

func (n *flawedNode) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	if late, ok := n.box.LoadAndDelete(key + token); ok {
		return late.(quorum.Ballot), nil
	}
	begun := time.Now()
	b, err := n.node.Vote(ctx, key, token, ttl, floor)
	if err != nil {
		return b, err
	}
	if n.late && time.Since(begun) > 100*time.Millisecond {
		n.box.Store(key+token, b)
	}
	if n.asked != nil {
		n.asked(ctx, b)
	}
	if n.ballot != nil {
		n.ballot(n.number, &b)
	}
	return b, nil
}

func (n *flawedNode) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	batch = append([]quorum.Confirmation(nil), batch...)
	for i := range batch {
		if n.confirm != nil {
			n.confirm(&batch[i])
		}
	}
	ballots, err := n.node.Confirm(ctx, batch)
	for i := range ballots {
		if n.renewed != nil {
			n.renewed(&ballots[i])
		}
	}
	return ballots, err
}

func (n *flawedNode) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	if n.apart && n.pass != nil {
		return n.pass(false, nil)
	}
	held, err := n.node.Pass(ctx, key, token, to, floor)
	if n.pass != nil {
		return n.pass(held, err)
	}
	return held, err
}
