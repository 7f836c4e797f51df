package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
)

var majoritiesCases = []testCase{
	{name: "MoreThanHalf", check: moreThanHalf, once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes grants nothing to half of them, or less.")},
	{name: "MinorityFails", check: minorityFails, once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes goes on, and no more slowly, while a minority of them fail, lose replies or hang.")},
	{name: "DistinctNodes", check: onNodes(3, distinctNodes), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes does not count two votes of the same store.")},
	{name: "OldestVoteDates", check: onNodes(3, oldestVoteDates), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes dates a lease so that none of the votes that it needs ends before its deadline.")},
	{name: "HolderKeepsItsVotes", check: onNodes(3, holderKeepsItsVotes), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes keeps the votes of a lease when its holder repeats the attempt and that fails.")},
	{name: "WipesReleaseNothing", check: onNodes(3, wipesReleaseNothing), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes keeps a lease's votes when its holder repeats the attempt, even if a node has lost its data and names another holder.")},
	{name: "YoungNodesDoNotVote", check: onNodes(3, youngNodesDoNotVote), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes does not count the vote of a node that has lost its data until the longest TTL has passed.")},
	{name: "YoungNodesAreNotHeard", check: onNodes(3, youngNodesAreNotHeard), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes waits for a majority of the others while one has just lost its data.")},
	{name: "YoungNodesDoNotRenew", check: onNodes(3, youngNodesDoNotRenew), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes does not count a renewal by a node that has lost its data until the longest TTL has passed.")},
	{name: "HealIsNoRenewal", check: onNodes(3, healIsNoRenewal), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes renews a lease only if a majority still has it, and never revives it.")},
	{name: "FenceOfAMajority", check: onNodes(3, fenceOfAMajority), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes gives the next grant a larger fence, even by other nodes whose clocks are behind.")},
	{name: "RenewalNeedsMajority", check: onNodes(3, renewalNeedsMajority), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes returns an error from a renewal that less than a majority has answered.")},
	{name: "ReleaseNeedsMajority", check: onNodes(3, releaseNeedsMajority), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes returns an error from a release that less than a majority has answered.")},
	{name: "RefusalNeedsMajority", check: onNodes(3, refusalNeedsMajority), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes returns an error from an attempt if no majority names the same holder.")},
	{name: "StraysAreReleased", check: onNodes(3, straysAreReleased), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes gives back the votes of a refused attempt.")},
	{name: "ReleaseIsOwed", check: onNodes(3, releaseIsOwed), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes repeats a release that a minority has not answered.")},
	{name: "OwedReleaseEndsNoLease", check: onNodes(3, owedReleaseEndsNoLease), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes grants nothing by a vote that a repeated release of the same token may end.")},
	{name: "LateVotesDoNotCount", check: onNodes(3, lateVotesDoNotCount), once: true, needs: needsMajority,
		clause: withSource("A backend that asks several nodes does not count a vote that arrives after its token was released.")},
}

func needsMajority(h Harness) string {
	if h.Majority == nil || !h.Bubble {
		return "Harness.Majority or Harness.Bubble is not set: there are no nodes to make faulty"
	}
	return ""
}

// A majority is a stage with nodes that decide by majority, and two clients that ask them.
type majority struct {
	*scene
	nodes []*memory.Locker
	a, b  dlock.Locker
	key   string
}

// voteTTL is that of the leases, in virtual time.
const voteTTL = 10 * time.Second

var errNode = errors.New("conformance: the node fails")

func (s *scene) majority(n int) *majority {
	m := &majority{scene: s, key: s.key()}
	var nodes []dlock.Locker
	for range n {
		node := memory.New()
		m.grown(node)
		m.nodes, nodes = append(m.nodes, node), append(nodes, node)
	}
	m.a, m.b = m.ask(nodes...), m.ask(nodes...)
	return m
}

// ask returns one more client of the nodes.
func (m *majority) ask(nodes ...dlock.Locker) dlock.Locker {
	return m.clientOf(m.h.Majority(m.t, nodes), "Harness.Majority")
}

// grown makes a node so old that it counts.
func (m *majority) grown(n *memory.Locker) { n.SetAge(2*m.h.maxTTL() + time.Minute) }

// onNodes checks with so many nodes, and heals them in the end.
func onNodes(n int, check func(*majority)) func(*scene) error {
	return func(s *scene) error {
		m := s.majority(n)
		check(m)
		m.fail()
		return s.result()
	}
}

// fail makes these nodes fail, and heals the others.
func (m *majority) fail(failing ...int) {
	for i, n := range m.nodes {
		n.Fail(nil)
		n.FailReplies(nil)
		n.Delay(0)
		if slices.Contains(failing, i) {
			n.Fail(errNode)
		}
	}
}

// takes has a acquire the key, and returns its deadline.
func (m *majority) takes() (a dlock.Attempt, deadline time.Time) {
	if m.over() {
		return a, deadline
	}
	start := time.Now()
	a, err := m.a.TryAcquire(m.ctx, m.key, "a", voteTTL)
	if err != nil || !a.Acquired {
		m.scene.fail("TryAcquire = %s, %w; want it to be acquired", show(a), orNone(err))
	}
	if a.Since.IsZero() {
		a.Since = start
	}
	time.Sleep(time.Millisecond) // the votes that were not needed arrive
	return a, a.Since.Add(voteTTL)
}

// takesNot makes an attempt that must not be granted.
func (m *majority) takesNot(l dlock.Locker, token, why string) (dlock.Attempt, error) {
	if m.over() {
		return dlock.Attempt{}, nil
	}
	a, err := l.TryAcquire(m.ctx, m.key, token, voteTTL)
	if err == nil && a.Acquired {
		m.scene.fail("TryAcquire(%s, %s) was acquired, though %s", brief(m.key), brief(token), why)
	}
	return a, err
}

// excluded has b try to take the key until the deadline of a.
func (m *majority) excluded(deadline time.Time) {
	for i := 0; !m.over() && time.Now().Before(deadline); i++ {
		token := fmt.Sprint("b", i)
		if a, err := m.b.TryAcquire(m.ctx, m.key, token, voteTTL); err == nil && a.Acquired && time.Now().Before(deadline) {
			m.scene.fail("%s was acquired %v before the deadline of another holder", token, time.Until(deadline))
		} else if err != nil {
			_, _ = m.b.Release(m.ctx, m.key, token) // the caller owes it
		}
		time.Sleep(max(200*time.Microsecond, time.Until(deadline)/4))
	}
}

// knows returns who holds the key on node i.
func (m *majority) knows(i int) string {
	h, err := m.nodes[i].Inspect(m.ctx, m.key)
	m.noError(err, "Inspect", m.key)
	return h.Token
}

func moreThanHalf(s *scene) error {
	for _, n := range []int{3, 4, 5, 6} {
		_ = onNodes(n, func(m *majority) {
			var failing []int
			for i := n / 2; i < n; i++ {
				failing = append(failing, i)
			}
			m.fail(failing...)
			if _, err := m.takesNot(m.a, "a", fmt.Sprintf("%d of %d nodes fail", len(failing), n)); err == nil {
				m.scene.fail("TryAcquire has no error, though %d of %d nodes fail; want one", len(failing), n)
			}
		})(s)
	}
	return s.result()
}

func minorityFails(s *scene) error {
	for fault, strike := range map[string]func(*memory.Locker){
		"fail":         func(n *memory.Locker) { n.Fail(errNode) },
		"lose replies": func(n *memory.Locker) { n.FailReplies(errNode) },
		"hang":         func(n *memory.Locker) { n.Delay(time.Hour) },
	} {
		_ = onNodes(5, func(m *majority) {
			strike(m.nodes[1])
			strike(m.nodes[3])
			start := time.Now()
			m.takes()
			m.renews()
			m.releases()
			if took := time.Since(start); took > 10*time.Millisecond {
				m.scene.fail("three calls took %v while 2 of 5 nodes %s and the others answered at once", took, fault)
			}
		})(s)
	}
	return s.result()
}

func distinctNodes(m *majority) {
	again := struct{ *memory.Locker }{m.nodes[1]}
	l := m.ask(m.nodes[0], m.nodes[1], again)
	m.fail(0)
	m.takesNot(l, "a", "one of the three nodes fails, and the others are the same store")
}

func oldestVoteDates(m *majority) {
	m.fail(2)
	m.nodes[1].Delay(2 * time.Millisecond) // so little that the fences are equal
	_, deadline := m.takes()
	m.fail()
	m.excluded(deadline)
}

func holderKeepsItsVotes(m *majority) {
	_, deadline := m.takes()
	for _, n := range m.nodes[1:] {
		n.FailReplies(errNode)
	}
	m.takesNot(m.a, "a", "two of three nodes have not answered")
	m.fail()
	m.excluded(deadline)
}

func wipesReleaseNothing(m *majority) {
	m.fail(2)
	_, deadline := m.takes()
	m.fail()
	m.nodes[1].Wipe()
	for _, n := range m.nodes[1:] {
		_, err := n.Vote(m.ctx, m.key, "other", voteTTL/2, 0)
		m.noError(err, "Vote", m.key)
	}
	ctx, cancel := context.WithTimeout(m.ctx, voteTTL/4) // while the other has these votes
	defer cancel()
	_, _ = m.a.TryAcquire(ctx, m.key, "a", voteTTL)
	m.excluded(deadline)
}

func youngNodesAreNotHeard(m *majority) {
	m.nodes[1].Wipe()
	m.nodes[2].Delay(10 * time.Millisecond)
	m.takes()
	m.nodes[1].Wipe()
	if a, err := m.takesNot(m.b, "b", "another holds it"); err != nil {
		m.scene.fail("TryAcquire = %s, %w, when two of three nodes named the same holder; want no error", show(a), err)
	}
	m.renews()
	m.releases()
}

func youngNodesDoNotVote(m *majority) {
	m.fail(2)
	_, deadline := m.takes()
	m.fail()
	m.nodes[1].Wipe()
	m.excluded(deadline)
	time.Sleep(2 * voteTTL) // what b may have got by then ends
	m.fail(2)
	m.grown(m.nodes[1])
	m.takes()
}

func youngNodesDoNotRenew(m *majority) {
	m.takes()
	m.nodes[1].Wipe()
	for range 8 { // the node may be given the vote again
		time.Sleep(voteTTL / 4)
		m.renews()
	}
	m.fail(2)
	if held, err := m.a.Renew(m.ctx, m.key, "a", voteTTL); held && err == nil {
		m.scene.fail("Renew = true by two of three nodes, though one of them lost its data %v ago; want an error", 2*voteTTL)
	}
}

func (m *majority) renews() {
	if m.over() {
		return
	}
	if held, err := m.a.Renew(m.ctx, m.key, "a", voteTTL); !held || err != nil {
		m.scene.fail("Renew = %v, %w; want true, as a majority of the nodes has the lease", held, orNone(err))
	}
}

func healIsNoRenewal(m *majority) {
	m.takes()
	for _, n := range m.nodes[1:] {
		n.Expire(m.key)
	}
	for range 3 {
		if held, err := m.a.Renew(m.ctx, m.key, "a", voteTTL); held || err != nil {
			m.scene.fail("Renew = %v, %w, though two of three nodes no longer have the lease; want false", held, orNone(err))
		}
		time.Sleep(voteTTL / 4)
	}
}

func fenceOfAMajority(m *majority) {
	m.nodes[0].SetClock(time.Hour)
	m.fail(2)
	first, _ := m.takes()
	m.fenced(grant{Attempt: first})
	m.releases()
	m.fail(0)
	time.Sleep(2 * voteTTL) // what was owed to nodes is no more
	m.a = m.b               // to which the token is new
	next, _ := m.takes()
	m.above(grant{Attempt: first, token: "a"}, grant{Attempt: next, key: m.key, token: "a"})
}

func (m *majority) releases() {
	if m.over() {
		return
	}
	if held, err := m.a.Release(m.ctx, m.key, "a"); !held || err != nil {
		m.scene.fail("Release = %v, %w; want true, as a majority of the nodes has the lease", held, orNone(err))
	}
}

func renewalNeedsMajority(m *majority) {
	m.takes()
	m.fail(1, 2)
	if held, err := m.a.Renew(m.ctx, m.key, "a", voteTTL); held || err == nil {
		m.scene.fail("Renew = %v, %w, though two of three nodes fail; want an error", held, orNone(err))
	}
	m.fail()
	m.renews()
}

func releaseNeedsMajority(m *majority) {
	m.takes()
	m.fail(1, 2)
	if held, err := m.a.Release(m.ctx, m.key, "a"); held || err == nil {
		m.scene.fail("Release = %v, %w, though two of three nodes fail; want an error", held, orNone(err))
	}
}

func refusalNeedsMajority(m *majority) {
	for i, n := range m.nodes {
		_, err := n.Vote(m.ctx, m.key, fmt.Sprint("split", i), voteTTL, 0)
		m.noError(err, "Vote", m.key)
	}
	if a, err := m.takesNot(m.a, "a", "others have all votes"); err == nil {
		m.scene.fail("TryAcquire = %s, though each node names another holder; want an error", show(a))
	}
}

func straysAreReleased(m *majority) {
	for _, n := range m.nodes[1:] {
		_, err := n.Vote(m.ctx, m.key, "other", voteTTL, 0)
		m.noError(err, "Vote", m.key)
	}
	if _, err := m.takesNot(m.a, "a", "another has two of three votes"); err != nil {
		m.scene.fail("TryAcquire, when two of three nodes named the same holder: %w; want no error", err)
	}
	time.Sleep(voteTTL / 2)
	if token := m.knows(0); token == "a" {
		m.scene.fail("a node is still held by a token whose attempt was refused %v ago", voteTTL/2)
	}
}

func releaseIsOwed(m *majority) {
	m.takes()
	m.fail(2)
	m.releases()
	time.Sleep(3 * time.Second)
	m.fail()
	time.Sleep(voteTTL / 2)
	if token := m.knows(2); token != "" {
		m.scene.fail("a node that failed for 3s is still held %v later by a token that was released", voteTTL/2)
	}
}

func owedReleaseEndsNoLease(m *majority) {
	m.takes()
	m.fail(1)
	m.releases()
	time.Sleep(time.Millisecond) // node 1 fails
	m.fail(2)
	m.takesAgain()
}

func lateVotesDoNotCount(m *majority) {
	const late = time.Second / 2
	m.nodes[1].SetClock(time.Hour) // so its fence is the largest, and need not be raised
	m.a = m.ask(m.nodes[0], tardy{m.nodes[1], late}, m.nodes[2])
	m.fail(2)
	ctx, cancel := context.WithTimeout(m.ctx, late/5)
	defer cancel()
	_, _ = m.a.TryAcquire(ctx, m.key, "a", voteTTL) // which gives up before a majority has answered
	m.fail()
	_, err := m.a.Release(m.ctx, m.key, "a")
	m.noError(err, "Release", m.key)
	m.fail(2)
	m.nodes[1].Delay(time.Hour)
	m.takesAgain()
}

// takesAgain has a repeat its attempt until it is acquired, or a TTL has passed.
func (m *majority) takesAgain() {
	for end := time.Now().Add(voteTTL); !m.over() && time.Now().Before(end); {
		start := time.Now()
		a, err := m.a.TryAcquire(m.ctx, m.key, "a", voteTTL)
		if err == nil && a.Acquired {
			m.fail()
			m.excluded(start.Add(voteTTL))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A tardy node executes votes at once, and answers later.
type tardy struct {
	*memory.Locker
	by time.Duration
}

func (l tardy) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	defer time.Sleep(l.by)
	return l.Locker.Vote(ctx, key, token, ttl, floor)
}
