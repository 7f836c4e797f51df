package museum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A majority is right, but for its flaws: a lock that holds a key while a majority of its nodes
// say so. Every call asks all nodes at once, and returns when enough have answered.
type majority struct {
	nodes   []quorum.Voter
	quorum  int
	longest time.Duration // TTL
	flaws

	mu    sync.Mutex
	owed  map[vote]bool         // released, but not yet answered: no vote counts meanwhile
	asked map[vote]chan opinion // for countsLateVotes
}

type flaws struct {
	byTheYoungest, givesUpWhole, ballotsOfYoung, refusalsOfYoung, answersOfYoung, renewalsOfYoung, countsHeals, maximumAlone, oneRenews, oneReleases,
	keepsStrays, forgetsNodes, asksAgainAtOnce, countsLateVotes, anyStores, oneRefuses, waitsForAll bool
}

type vote struct {
	node       int
	key, token string
}

// An opinion is what one node answered.
type opinion struct {
	vote
	quorum.Ballot
}

// nodeLimit is how long a call waits for a node.
const nodeLimit = time.Second

var (
	errUndecided = errors.New("museum: no majority has answered")
	errSameStore = fmt.Errorf("%w nodes: two are the same store", dlock.ErrInvalid)
)

type inquiry func(context.Context, quorum.Voter) (quorum.Ballot, error)

// ask puts a question to all nodes.
func (m *majority) ask(ctx context.Context, key, token string, ask inquiry) <-chan opinion {
	answers := make(chan opinion, len(m.nodes))
	m.askFor(answers, ctx, key, token, ask)
	return answers
}

// askFor is ask. It does not stop when ctx ends: what is on its way arrives.
func (m *majority) askFor(answers chan<- opinion, ctx context.Context, key, token string, ask inquiry) {
	for i, n := range m.nodes {
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), nodeLimit)
			defer cancel()
			o := opinion{vote: vote{i, key, token}}
			if o.Ballot, o.Err = ask(ctx, n); o.Err != nil {
				o.Ballot = quorum.Ballot{Err: o.Err}
			}
			answers <- o
		}()
	}
}

// ballotBox returns where the votes for a token are collected.
func (m *majority) ballotBox(key, token string) chan opinion {
	box := make(chan opinion, len(m.nodes))
	if !m.countsLateVotes {
		return box
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := vote{key: key, token: token}
	if m.asked[v] == nil {
		m.asked[v] = make(chan opinion, 100*len(m.nodes))
	}
	return m.asked[v]
}

// A count counts answers until a majority is certain.
type count struct {
	yes, no []opinion
	asked   int
	young   int // of these
	err     error
}

// tally reads answers until there are enough of one kind, or there are no more.
func (m *majority) tally(ctx context.Context, answers <-chan opinion, enoughNo int, young bool) (c count) {
	for c.asked < len(m.nodes) {
		select {
		case o := <-answers:
			c.asked++
			switch {
			case o.Err != nil:
				c.err = errors.Join(c.err, o.Err)
			case o.Age < m.longest+m.longest/100+time.Second && !young && (o.Acquired || !m.refusalsOfYoung):
				c.young++
				c.err = errors.Join(c.err, fmt.Errorf("node %d has forgotten what it knew %v ago", o.node, o.Age))
			case o.Acquired:
				c.yes = append(c.yes, o)
			default:
				c.no = append(c.no, o)
			}
		case <-ctx.Done():
			c.err = ctx.Err()
			return c
		}
		if !m.waitsForAll && (len(c.yes) >= m.quorum || len(c.no) >= enoughNo) || m.answersOfYoung && c.young > 0 && c.asked >= m.quorum {
			break
		}
	}
	return c
}

func (c count) undecided() error { return fmt.Errorf("%w: %w", errUndecided, errors.Join(c.err)) }

func (m *majority) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := ctx.Err(); err != nil {
		return dlock.Attempt{}, err
	}
	if m.owes(key, token) && !m.asksAgainAtOnce {
		return dlock.Attempt{}, errUndecided
	}
	start := time.Now()
	floor := start.Add(5 * time.Millisecond).UnixMicro()
	answers := m.ballotBox(key, token)
	m.askFor(answers, ctx, key, token, func(ctx context.Context, n quorum.Voter) (quorum.Ballot, error) {
		b, err := n.Vote(ctx, key, token, ttl, floor)
		if b.Since.IsZero() {
			b.Since = start
		}
		return b, err
	})
	c := m.tally(ctx, answers, len(m.nodes)+1, m.ballotsOfYoung)
	switch {
	case m.sameStores(c):
		return dlock.Attempt{}, errSameStore
	case len(c.yes) >= m.quorum:
		return m.granted(ctx, c, ttl)
	}
	for holder, times := range c.holders() {
		if times >= m.quorum || m.oneRefuses {
			m.giveBack(c, answers, ttl)
			return dlock.Attempt{Holder: holder}, nil
		}
	}
	if m.givesUpWhole {
		m.releaseAll(key, token, ttl)
	}
	return dlock.Attempt{}, c.undecided()
}

// granted dates a lease by the oldest vote, and gives it a fence that a majority knows.
func (m *majority) granted(ctx context.Context, c count, ttl time.Duration) (dlock.Attempt, error) {
	a := c.yes[0].Attempt
	for _, o := range c.yes {
		if o.Since.Before(a.Since) != m.byTheYoungest {
			a.Since = o.Since
		}
		a.Fence = max(a.Fence, o.Fence)
	}
	reached := make(map[int]bool) // which nodes' counters have
	for _, o := range c.yes {
		if o.Fence == a.Fence {
			reached[o.node] = true
		}
	}
	if len(reached) >= m.quorum || m.maximumAlone {
		return a, nil
	}
	raised := m.tally(ctx, m.confirm(ctx, c.yes[0].key, c.yes[0].token, ttl, a.Fence), len(m.nodes)+1, m.ballotsOfYoung)
	for _, o := range raised.yes {
		reached[o.node] = true
	}
	if len(reached) < m.quorum {
		return dlock.Attempt{}, raised.undecided()
	}
	return a, nil
}

func (m *majority) confirm(ctx context.Context, key, token string, ttl time.Duration, fence int64) <-chan opinion {
	batch := []quorum.Confirmation{{Renewal: dlock.Renewal{Key: key, Token: token, TTL: ttl}, Fence: fence}}
	return m.ask(ctx, key, token, func(ctx context.Context, n quorum.Voter) (quorum.Ballot, error) {
		ballots, err := n.Confirm(ctx, batch)
		if err != nil {
			return quorum.Ballot{}, err
		}
		return ballots[0], ballots[0].Err
	})
}

func (m *majority) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c := m.tally(ctx, m.confirm(ctx, key, token, ttl, 0), len(m.nodes)-m.quorum+1, m.renewalsOfYoung)
	held := len(c.yes) >= m.quorum || m.oneRenews && len(c.yes) > 0
	if held || m.countsHeals {
		heal := m.ask(ctx, key, token, func(ctx context.Context, n quorum.Voter) (quorum.Ballot, error) {
			return n.Vote(ctx, key, token, ttl, 0)
		})
		if m.countsHeals {
			c = m.tally(ctx, heal, len(m.nodes), true)
			held = len(c.yes) >= m.quorum
		}
	}
	if held || len(c.no) > len(m.nodes)-m.quorum {
		return held, nil
	}
	return false, c.undecided()
}

func (m *majority) Release(ctx context.Context, key, token string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	const young = true // a vote that is gone is gone
	c := m.tally(ctx, m.releaseAll(key, token, m.longest), len(m.nodes)-m.quorum+1, young)
	switch {
	case len(c.yes) >= m.quorum, m.oneReleases && len(c.yes) > 0:
		return true, nil
	case len(c.no) > len(m.nodes)-m.quorum:
		return false, nil
	}
	return false, c.undecided()
}

// releaseAll releases token everywhere, and goes on where there is no answer.
func (m *majority) releaseAll(key, token string, ttl time.Duration) <-chan opinion {
	answers := make(chan opinion, len(m.nodes))
	for i := range m.nodes {
		go func() { answers <- m.release(vote{i, key, token}, ttl) }()
	}
	return answers
}

// release releases a vote, and returns the first answer.
func (m *majority) release(v vote, ttl time.Duration) opinion {
	try := func() (o opinion) {
		ctx, cancel := context.WithTimeout(context.Background(), nodeLimit)
		defer cancel()
		o.vote = v
		o.Acquired, o.Err = m.nodes[v.node].Pass(ctx, v.key, v.token, "", time.Now().UnixMicro())
		return o
	}
	o := try()
	if o.Err == nil || m.forgetsNodes {
		return o
	}
	m.owe(v, true)
	go func() {
		defer m.owe(v, false)
		for end := time.Now().Add(min(ttl, time.Minute)); time.Now().Before(end); {
			time.Sleep(nodeLimit / 4)
			if try().Err == nil {
				return
			}
		}
	}()
	return o
}

func (m *majority) owe(v vote, owe bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owed[v] = true; !owe {
		delete(m.owed, v)
	}
}

func (m *majority) owes(key, token string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.nodes {
		if m.owed[vote{i, key, token}] {
			return true
		}
	}
	return false
}

// giveBack releases the votes of an attempt that was refused: those that it has, and those that
// are on their way. As a majority named another, the token holds nothing.
func (m *majority) giveBack(c count, answers <-chan opinion, ttl time.Duration) {
	if !m.keepsStrays && len(c.yes) < len(m.nodes) {
		m.releaseAll(c.no[0].key, c.no[0].token, ttl)
	}
}

// holders counts how many nodes name each holder.
func (c count) holders() map[string]int {
	times := make(map[string]int)
	for _, o := range c.no {
		times[o.Holder]++
	}
	return times
}

func (m *majority) sameStores(c count) bool {
	seen := make(map[string]bool)
	for _, o := range append(c.yes, c.no...) {
		if seen[o.Store] && o.Store != "" && !m.anyStores {
			return true
		}
		seen[o.Store] = true
	}
	return false
}
