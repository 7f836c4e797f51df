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
	stations  []station
}

type id struct{ key, token string }

// A station is a claim at one node. Whoever sends a request of the token to the node holds the
// turn until that has been answered or has failed.
type station struct {
	turn   turn
	spoilt bool      // a release had no answer, and may arrive later than any vote
	late   bool      // a vote had no answer, and may arrive later than a release
	uses   int       // how many requests for a vote, or to keep one, there were
	lacks  time.Time // since when the node is known not to hold the lease; or zero

	wait atomic.Pointer[waiting] // in the node's queue; or nil
}

// use reports whether the caller, who has the turn, may ask for a vote or ask to keep one.
func (s *station) use() bool {
	if !s.spoilt {
		s.uses++
	}
	return !s.spoilt
}

// A turn is a mutex whose Lock tests can wait for in virtual time.
type turn struct {
	mu    sync.Mutex
	ended sync.Cond
	taken bool
}

func (t *turn) Lock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended.L = &t.mu
	for t.taken {
		t.ended.Wait()
	}
	t.taken = true
}

func (t *turn) TryLock() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := !t.taken
	t.taken = true
	return free
}

func (t *turn) Unlock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	t.ended.Signal()
}

// A waiting is a request that waits. It does not have the turn meanwhile.
type waiting struct {
	end  context.CancelFunc
	over chan struct{}
	kept bool // a renewal may have counted the vote; guarded by the turn
}

// release takes the turn for a release. A wait ends before that.
func (s *station) release() {
	for {
		w := s.wait.Load()
		if w == nil {
			s.turn.Lock()
			if s.wait.Load() == nil {
				return
			}
			s.turn.Unlock()
			continue
		}
		w.end()
		<-w.over
	}
}

// claims are the claims of a Locker that are in use, or remembered.
type claims struct {
	nodes   int
	mu      sync.Mutex
	all     map[id]*claim
	sweepAt int
}

// memory is how long a claim is remembered that has a station worth it. A message that is on
// its way for longer is not expected.
const memory = 30 * time.Second

// get returns the claim of token for key. The caller must put it.
func (c *claims) get(key, token string) *claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := id{key, token}
	found := c.all[of]
	if found == nil {
		found = &claim{id: of, releasing: make(chan struct{}, 1), stations: make([]station, c.nodes)}
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
	} else {
		delete(c.all, done.id)
	}
}

// worthLocked reports whether an unused claim has anything to remember.
func (c *claim) worthLocked() bool {
	for i := range c.stations {
		if s := &c.stations[i]; s.spoilt || s.late || !s.lacks.IsZero() {
			return true
		}
	}
	return false
}
