package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

var inspectingCases = []testCase{
	{name: "InspectTells", check: inspectTells,
		clause: withSource("An Inspector reports the holder and the remaining time, and nobody after a release or an expiry. It is right even while the key changes hands.")},
	{name: "InspectChangesNothing", check: inspectChangesNothing,
		clause: withSource("An Inspector changes nothing: not the holder, the TTL, or a free key.")},
	{name: "WaitingIsCounted", check: waitingIsCounted,
		clause: withSource("An Inspector counts the waiters in its queue: not the holder, nor those who were served, or left and were released, nor, eventually, the dead. Without a queue it reports 0.")},
}

func inspectTells(s *scene) error {
	a, c := s.client(), s.inspector()
	ttl := s.h.ttl()
	key := s.key()
	s.seesNobody(c, key, "it was never held")
	for _, lasting := range []time.Duration{long, 2 * ttl} {
		g := s.grant(a, key, s.token("holder"), lasting)
		s.sees(c, g, lasting)
		seesRemaining(s, a, c, g, lasting)
		s.release(a, g, true)
		s.seesNobody(c, key, "its holder released it")
	}
	s.grant(a, key, s.token("dead"), ttl)
	s.lapse(ttl)
	s.seesNobody(c, key, "its holder's lease had expired")
	readsBesideWriters(s, c)
	if s.abilities(a).wait {
		showsHolders(s, a, c)
	}
	return s.result()
}

// seesRemaining: the time that remains is that of the longest TTL, not of the latest.
func seesRemaining(s *scene, a, c *client, g grant, ttl time.Duration) {
	s.renew(a, g, time.Millisecond, true)
	s.sees(c, g, ttl)
	s.again(a, g, time.Millisecond)
	s.sees(c, g, ttl)
	s.refused(a, g, s.token("stranger"), 3*long)
	s.sees(c, g, ttl)
	g.start = s.now()
	s.renew(a, g, 2*long, true)
	s.sees(c, g, 2*long)
	s.renew(a, g, long, true)
	s.sees(c, g, 2*long)
}

// showsHolders has a key handed over again and again: a waiter is not shown before it holds
// the key.
func showsHolders(s *scene, a, c *client) {
	for range s.h.rounds(20) {
		g := s.grant(a, s.key(), s.token("holder"), long)
		w := s.wait(c, g.key, s.token("waiter"), long)
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() { holdsWhenShown(s, c, w) })
		}
		s.release(a, g, true)
		s.served(w, "the holder released the key")
		readers.Wait()
		s.release(c, w.grant, true)
	}
}

// holdsWhenShown looks until a waiter is shown as the holder, and has it renew its lease.
func holdsWhenShown(s *scene, c *client, w *waiter) {
	for !s.over() {
		h, err := c.Inspect(s.ctx, w.key)
		s.noError(err, "Inspect", w.key)
		if h.Token == w.token {
			s.renew(c, w.grant, time.Millisecond, true)
			return
		}
		if h.Token == "" && w.returned() {
			return // it is served, and shown no more: the lease may have ended
		}
	}
}

// readsBesideWriters inspects a key again and again, while it passes from one to the
// other, each with a TTL of its own.
func readsBesideWriters(s *scene, c *client) {
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
	const most = 5_000 // if those that wait do so until time passes, which does not before this ends
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

// wrong says what is wrong with what a call reported that began when the events were so
// many and holder held the key. r.mu is held.
func (r *readers) wrong(h dlock.Hold, event int, holder *tenure) string {
	t := r.tenures[h.Token]
	switch {
	case !h.Held && holder != nil && holder == r.holder:
		return "want it to be held, as it was by the same token all the time"
	case !h.Held || h.Token == "" && h.Remaining == 0:
		return ""
	case h.Token == "" && (h.Remaining < 0 || h.Remaining > 4*long+r.h.grace()):
		return fmt.Sprintf("want Remaining to be positive and at most %v", 4*long)
	case h.Token == "":
		return ""
	case t == nil:
		return "want the token of one who has asked for the key"
	case t.over != 0 && t.over <= event:
		return "want a token that holds the key, as this one had released it before the call"
	}
	least := t.ttl - r.now().Sub(t.start) - rounding
	if h.Remaining != 0 && (h.Remaining < least || h.Remaining > t.ttl+r.h.grace()) {
		return fmt.Sprintf("want Remaining between %v and the %v that this token asked for", least, t.ttl)
	}
	return ""
}

func inspectChangesNothing(s *scene) error {
	a, c := s.client(), s.inspector()
	ttl := s.h.ttl()
	key := s.key()
	inspects(s, c, key)
	s.free(a, key)

	g := s.grant(a, key, s.token("holder"), long)
	inspects(s, c, key)
	s.lapse(ttl)
	s.held(a, g)
	s.release(a, g, true)

	s.grant(a, key, s.token("dead"), 2*ttl)
	s.sleep(ttl)
	inspects(s, c, key)
	s.sleep(ttl/2 + s.h.grace())
	inspects(s, c, key)
	s.lapse(ttl / 2)
	s.free(a, key)
	return s.result()
}

func inspects(s *scene, c *client, key string) {
	if s.over() {
		return
	}
	_, err := c.Inspect(s.ctx, key)
	s.noError(err, "Inspect", key)
}

// waitingIsCounted compares what Inspect says of the queue of a key with those who wait.
func waitingIsCounted(s *scene) error {
	c := s.inspector()
	a, b := s.clients2()
	key := s.key()
	seesWaiting(s, c, key, 0, "nobody has ever used it")
	g := s.grant(a, key, s.token("holder"), long)
	seesWaiting(s, c, key, 0, "it is held, and nobody waits")
	s.refused(b, g, s.token("stranger"), long)
	seesWaiting(s, c, key, 0, "an attempt was refused, which does not wait")
	if !s.over() && s.abilities(a).wait {
		countsTheQueue(s, a, b, c, g)
		countsNoneOfTheDead(s, a, b, c)
	} else {
		s.release(a, g, true)
	}
	return s.result()
}

// countsTheQueue has five wait for what g holds, of whom one is cancelled and another
// released, and hands the key to the others.
func countsTheQueue(s *scene, a, b, c *client, g grant) {
	var waiting []*waiter
	for i := range 5 {
		by := a
		if i%2 == 1 {
			by = b
		}
		waiting = append(waiting, s.waitCtx(s.ctx, by, g.key, s.token(fmt.Sprint("waiter", i)), long))
		soonCounts(s, c, g.key, i+1, fmt.Sprintf("%d wait", i+1))
	}
	s.renew(a, g, long, true)
	s.again(a, g, long)
	seesWaiting(s, c, g.key, 5, "5 wait, and their holder has renewed its lease, and acquired again")
	s.forget(waiting[1])
	seesWaiting(s, c, g.key, 4, "of 5 waiters one was cancelled, and its token released")
	s.release(a, waiting[2].grant, false)
	seesWaiting(s, c, g.key, 3, "of 5 waiters two have left, the second by a release alone")
	s.endWaits(b, waiting[2:3])

	staying := []*waiter{waiting[0], waiting[3], waiting[4]}
	left := len(staying)
	s.release(a, g, true)
	s.eachServed(staying, "the holder released the key", func(w *waiter) {
		left--
		soonCounts(s, c, g.key, left, fmt.Sprintf("of 5 waiters two have left, %d were served, and the last of them holds the key", 3-left))
		s.release(b, w.grant, true)
	})
	seesWaiting(s, c, g.key, 0, "all who waited have left or were served, and the key is free")
}

// countsNoneOfTheDead has two waiters die, before a third that is served in the end. The dead may
// be counted for as long as nobody could tell, but not for ever.
func countsNoneOfTheDead(s *scene, a, b, c *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	var dead []*waiter
	for range 2 {
		dead = append(dead, s.waitCtx(s.ctx, b, g.key, s.token("dead"), s.h.ttl()))
	}
	soonCounts(s, c, g.key, 2, "2 wait")
	alive := s.waitCtx(s.ctx, b, g.key, s.token("alive"), long)
	soonCounts(s, c, g.key, 3, "3 wait")
	for _, w := range dead {
		w.cancel()
		s.ended(w) // and nobody releases its token
	}
	s.release(a, g, true)
	s.served(alive, "the holder released the key; two came before who have died")
	soonCounts(s, c, g.key, 0, "two waiters have died, and the third holds the key")
	s.release(b, alive.grant, true)
}

// seesWaiting checks that Inspect says that n wait for key.
func seesWaiting(s *scene, c *client, key string, n int, why string) {
	if got, ok := waitingFor(s, c, key); ok && got != n {
		s.fail("Inspect(%s): %d wait; want %d, since %s", brief(key), got, n, why)
	}
}

// soonCounts gives the store the time that waiters need to arrive, or the dead to be found
// dead.
func soonCounts(s *scene, c *client, key string, n int, why string) {
	for end := time.Now().Add(s.h.patience()); ; s.sleep(5 * time.Millisecond) {
		got, ok := waitingFor(s, c, key)
		switch {
		case !ok || got == n:
			return
		case time.Now().After(end):
			s.fail("Inspect(%s), again and again for %v: %d wait; want %d, since %s", brief(key), s.h.patience(), got, n, why)
			return
		}
	}
}

func waitingFor(s *scene, c *client, key string) (n int, ok bool) {
	if s.over() {
		return 0, false
	}
	h, err := c.Inspect(s.ctx, key)
	s.noError(err, "Inspect", key)
	return h.Waiting, err == nil
}
