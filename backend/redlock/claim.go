package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A claim is what this Locker knows of a token for a key from one call to the next.
type claim struct {
	id
	users     int       // calls and requests that use it; guarded by claims.mu
	until     time.Time // it is remembered until then; guarded by claims.mu
	releases  atomic.Int64
	releasing chan struct{} // taken by a Release until it is decided
	renewing  atomic.Int64  // renewals that are not decided yet
	losses    atomic.Int64  // renewals that have found the lease lost
	nodes     []nodeClaim

	// Guarded by claims.mu:
	open   bool            // the outcome of a call is unknown
	asked  bool            // its caller wants the late answers, and uses the token for nothing but releases from then on
	settle []func(remains) // to be called when all answers have come
}

type id struct{ key, token string }

// ends is how often the lease was released, or found lost.
func (c *claim) ends() int64 { return c.releases.Load() + c.losses.Load() }

// A nodeClaim is a claim at one node. Whoever sends a request of the token to the node holds mu until
// that has been answered or has failed.
type nodeClaim struct {
	mu     mutex
	spoilt bool      // a release had no answer, and may arrive later than any vote
	uses   int       // how many requests for a vote, or to keep one, there were
	lacks  time.Time // since when the node is known not to hold the lease; or zero

	queued atomic.Pointer[queuedRequest] // or nil

	// Guarded by claims.mu:
	late int           // requests for a vote without an answer, which may arrive later than a release
	lost bool          // one of them will never have one
	due  int           // how many of their answers are expected
	came chan struct{} // closed when the last of these has come
	has  remains       // by the answers
}

// A remains is what the calls of a token have left at a node, or at any.
type remains int

const (
	unknown   remains = iota
	nothing           // and nothing can come any more
	something         // a vote, or a place in the queue
)

// useLocked reports whether the caller may ask for a vote or ask to keep one.
func (s *nodeClaim) useLocked() bool {
	if !s.spoilt {
		s.uses++
	}
	return !s.spoilt
}

// A mutex has the capacity of one. Unlike a sync.Mutex, tests can wait for its Lock in virtual time.
type mutex chan struct{}

func (m mutex) Lock()   { m <- struct{}{} }
func (m mutex) Unlock() { <-m }

func (m mutex) TryLock() bool {
	select {
	case m <- struct{}{}:
		return true
	default:
		return false
	}
}

// A queuedRequest is one that waits in the queue of a node. It does not hold nodeClaim.mu meanwhile.
type queuedRequest struct {
	end  context.CancelFunc
	over chan struct{}
	kept bool // a renewal may have counted the vote; guarded by nodeClaim.mu
}

// lockForRelease locks mu for a release. A wait ends before that.
func (s *nodeClaim) lockForRelease() {
	for {
		q := s.queued.Load()
		if q == nil {
			s.mu.Lock()
			if s.queued.Load() == nil {
				return
			}
			s.mu.Unlock()
			continue
		}
		q.end()
		<-q.over
	}
}

// claims are the claims of a Locker that are in use, or remembered.
type claims struct {
	nodes   int
	mu      sync.Mutex
	all     map[id]*claim
	sweepAt int
}

// memory is how long a claim is remembered that has something to remember at a node. A message that is on
// its way for longer is not expected.
const memory = 30 * time.Second

// get returns the claim of token for key. The caller must put it.
func (c *claims) get(key, token string) *claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := id{key, token}
	found := c.all[of]
	if found == nil {
		found = &claim{id: of, releasing: make(chan struct{}, 1), nodes: make([]nodeClaim, c.nodes)}
		for i := range found.nodes {
			found.nodes[i].mu = make(mutex, 1)
		}
		c.addLocked(found)
	}
	found.users++
	return found
}

// addLocked adds a claim. Whenever their number has doubled, it forgets those that are over, which
// takes constant time on average.
func (c *claims) addLocked(new *claim) {
	if c.all == nil {
		c.all = make(map[id]*claim)
	}
	if len(c.all) >= c.sweepAt {
		now := time.Now()
		for of, old := range c.all {
			if old.users == 0 && now.After(old.until) {
				delete(c.all, of)
			}
		}
		c.sweepAt = 2*len(c.all) + 64
	}
	c.all[new.id] = new
}

// hold keeps a claim that the caller has for another user.
func (c *claims) hold(held *claim) *claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	held.users++
	return held
}

func (c *claims) put(done *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done.users--; done.users > 0 {
		return
	}
	if done.worthLocked() {
		done.until = time.Now().Add(memory)
	} else if c.all[done.id] == done {
		delete(c.all, done.id)
	}
}

// asks notes that a node is asked for a vote. When it has returned, voted follows.
func (c *claims) asks(of *claim, node int) { c.change(of, func() { of.nodes[node].late++ }) }

// noteLocked notes an answer to a request for a vote, or that there is none yet.
func (s *nodeClaim) noteLocked(e *reply) {
	if e.uncertain() {
		s.lost = s.lost || e.late == nil
	} else {
		s.late--
	}
	switch {
	case e.granted(), e.kind == enqueued && e.err == nil, e.queued() && !e.uncertain():
		s.has = something
	case e.err == nil && s.has == unknown: // another held the key
		s.has = nothing
	}
}

// change changes what is known of a claim, and tells those who wait for all answers.
func (c *claims) change(of *claim, change func()) {
	c.mu.Lock()
	change()
	left, settled := of.leftLocked()
	var settle []func(remains)
	if settled {
		settle, of.settle = of.settle, nil
	}
	c.mu.Unlock()
	for _, f := range settle {
		f(left)
	}
}

// leftLocked returns what the token has left, if all answers that can come have come.
func (c *claim) leftLocked() (left remains, settled bool) {
	left = nothing
	for i := range c.nodes {
		switch s := &c.nodes[i]; {
		case s.lost:
			left = unknown
		case s.late > 0:
			return unknown, false
		case s.has == something && left == nothing:
			left = something
		}
	}
	return left, true
}

// owesNothing reports whether a node needs no release of a token: it said so itself. A caller who has not asked for the
// late answers may have used the token elsewhere; so another release must have been answered then.
func (c *claims) owesNothing(of *claim, node int, answered bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &of.nodes[node]
	return s.late == 0 && s.has == nothing && (of.asked || answered)
}

// due reports whether a node may get a vote of a token later, and whether it is expected to say so.
func (c *claims) due(of *claim, node int) (late, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &of.nodes[node]
	return s.late > 0, s.late > 0 && s.due > 0
}

// await waits until the answers that are expected of a node have come, or ctx ends. It returns what they say.
func (c *claims) await(ctx context.Context, of *claim, node int) (has remains, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &of.nodes[node]
	if came := s.came; s.due > 0 {
		c.mu.Unlock()
		select {
		case <-came:
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
	}
	return s.has, err
}

// worthLocked reports whether an unused claim has anything to remember.
func (c *claim) worthLocked() bool {
	for i := range c.nodes {
		if s := &c.nodes[i]; s.spoilt || s.late > 0 || c.open && s.has == something || !s.lacks.IsZero() {
			return true
		}
	}
	return false
}
