package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

// readsBesideWriters inspects a key again and again, while it passes from one to the
// other, each of whom asks for a TTL of its own.
func (s *scene) readsBesideWriters(c *client) {
	r := &readers{scene: s, key: s.key(), tenures: make(map[string]*tenure)}
	r.grants.Store(int64(s.h.rounds(400)))
	var writing, reading sync.WaitGroup
	done := make(chan struct{})
	for i := range 4 {
		by := s.client()
		writing.Go(func() {
			for n := 0; !isClosed(done) && !s.over(); n++ {
				r.write(by, time.Duration(i+1)*long, n%2 == 0)
			}
		})
	}
	const most = 20_000 // if those that wait do so until time passes, which does not before this ends
	for _, by := range []*client{c, c, s.client(), s.client()} {
		reading.Go(func() {
			for n := 0; n < most && r.grants.Load() > 0 && !s.over(); n++ {
				r.read(by)
			}
		})
	}
	reading.Wait()
	close(done)
	writing.Wait()
}

// Readers know who may hold a key.
type readers struct {
	*scene
	key    string
	grants atomic.Int64 // that are still to come

	mu      sync.Mutex
	events  int
	tenures map[string]*tenure // by token
	holder  *tenure            // that holds the key for certain
}

// A tenure is a hold of the key.
type tenure struct {
	ttl   time.Duration
	start time.Time // before the call that may acquire the key
	over  int       // the event after which the key was certainly released; 0 if there was none yet
}

// begin notes that a token may hold the key from now on.
func (r *readers) begin(token string, ttl time.Duration) *tenure {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &tenure{ttl: ttl, start: r.now()}
	r.tenures[token] = t
	return t
}

func (r *readers) holds(t *tenure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holder = t
}

func (r *readers) end(t *tenure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events++
	t.over = r.events
}

// write takes the key once, if it is free or, where the store has a queue and wait is
// set, when it is.
func (r *readers) write(c *client, ttl time.Duration, wait bool) {
	if r.over() {
		return
	}
	token := r.token("writer")
	r.uses(r.key, token)
	t := r.begin(token, ttl)
	defer r.end(t)
	var a dlock.Attempt
	var err error
	if wait {
		ctx, cancel := context.WithTimeout(r.ctx, r.h.patience())
		defer cancel()
		a, err = c.Acquire(ctx, r.key, token, ttl)
	}
	if !wait || !supported(err) {
		a, err = c.TryAcquire(r.ctx, r.key, token, ttl)
	}
	r.noError(err, "an attempt", r.key)
	if a.Acquired {
		r.grants.Add(-1)
		r.holds(t)
		_, err = c.Renew(r.ctx, r.key, token, time.Millisecond)
		r.noError(err, "Renew", r.key)
		r.holds(nil)
		_, err = c.Release(r.ctx, r.key, token) // also if the case is decided: others wait
		r.noError(err, "Release", r.key)
	}
}

// read inspects the key once.
func (r *readers) read(c *client) {
	r.mu.Lock()
	event, holder := r.events, r.holder
	r.mu.Unlock()
	h, err := c.Inspect(r.ctx, r.key)
	r.noError(err, "Inspect", r.key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if wrong := r.wrong(h, event, holder); wrong != "" && !r.over() {
		r.fail("%s.Inspect(%s) = %+v, while the key passed from one to the other; %s", c.name, brief(r.key), h, wrong)
	}
}

// wrong says what is wrong with what a call has told that began when the events were so
// many and holder held the key. r.mu is held.
func (r *readers) wrong(h dlock.Hold, event int, holder *tenure) string {
	t := r.tenures[h.Token]
	switch {
	case !h.Held && holder != nil && holder == r.holder:
		return "want it to be held, as it was by the same token all the time"
	case !h.Held || h.Token == "" && h.Remaining == 0:
		return ""
	case h.Token == "" && (h.Remaining < 0 || h.Remaining > 4*long+r.h.grace()):
		return fmt.Sprintf("want a rest that is positive and at most %v", 4*long)
	case h.Token == "":
		return ""
	case t == nil:
		return "want the token of one who has asked for the key"
	case t.over != 0 && t.over <= event:
		return "want a token that holds the key, as this one had released it before the call"
	}
	least := t.ttl - r.now().Sub(t.start) - rounding
	if h.Remaining != 0 && (h.Remaining < least || h.Remaining > t.ttl+r.h.grace()) {
		return fmt.Sprintf("want a rest between %v and the %v that this token asked for", least, t.ttl)
	}
	return ""
}
