package conformance

import (
	"fmt"
	"sync"
	"time"
)

// numbers is how many numbers belong to one grant.
const numbers = 8

// above checks that later has a fence of its own, above that of earlier.
func (s *scene) above(earlier, later grant) {
	if s.over() || earlier.Fence == 0 && later.Fence == 0 {
		return
	}
	if later.Fence < earlier.Fence+numbers {
		s.fail("two grants of %s, one after the other, have the fences %d and %d; want the second to be above the first by at least %d",
			brief(later.key), earlier.Fence, later.Fence, numbers)
	}
}

// fenced skips the case where the store has no fences.
func (s *scene) fenced(g grant) {
	if !s.over() && g.Fence == 0 {
		s.skip("Fence is 0: the store has no fences")
	}
}

func fenceRises(s *scene) error {
	a, b := s.clients2()
	key, ttl := s.key(), s.h.ttl()
	first := s.grant(a, key, s.token("first"), long)
	s.fenced(first)

	s.release(a, first, true)
	second := s.grant(b, key, s.token("second"), ttl)
	s.above(first, second) // after release, by another client

	s.lapse(ttl)
	again := s.grant(a, key, second.token, ttl)
	s.above(second, again) // by the token that has lost it
	s.lapse(ttl)
	third := s.grant(a, key, s.token("third"), long)
	s.above(again, third) // after expiry

	s.above(third, s.handover(a, b, third))
	s.fencesUnderContention(a, b)
	eachWay(a, b, s.fenceAtExpiry)
	return s.result()
}

// handover has g passed to a waiter, where the store can do that.
func (s *scene) handover(a, b *client, g grant) grant {
	w := s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long)
	s.gap()
	s.release(a, g, true)
	if s.over() || !s.await(w.done) || !supported(w.err) {
		return s.grant(b, g.key, s.token("next"), long)
	}
	return s.isServed(w)
}

// fencesUnderContention has many take one key in turn, and looks at the fences
// in the order in which the key was held.
func (s *scene) fencesUnderContention(clients ...*client) {
	rounds := s.h.rounds(6)
	key := s.key()
	var mu sync.Mutex
	var grants []grant
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			for n := range rounds {
				g := s.takeFenced(clients[i%len(clients)], key, fmt.Sprint("racer", i, "-", n))
				if g.Acquired {
					mu.Lock()
					grants = append(grants, g)
					mu.Unlock()
					s.release(clients[0], g, true)
				}
			}
		})
	}
	wg.Wait()
	for i := 1; i < len(grants); i++ {
		s.above(grants[i-1], grants[i])
	}
}

func (s *scene) takeFenced(c *client, key, name string) grant {
	g := grant{key: key, token: s.token(name), start: s.now()}
	if s.over() {
		return g
	}
	s.uses(key, g.token)
	a, err := c.TryAcquire(s.ctx, key, g.token, long)
	s.noError(err, "TryAcquire", key)
	if !a.Acquired {
		time.Sleep(time.Millisecond)
	}
	g.Attempt = a
	return g
}

func fenceSurvivesDataLoss(s *scene) error {
	c := s.client()
	key := s.key()
	var last grant
	for range 300 { // quickly: numbers that run ahead of a clock are still ahead of it later
		last = s.grant(c, key, s.token("early"), long)
		s.fenced(last)
		s.release(c, last, true)
	}
	last = s.grant(c, key, s.token("last"), long)
	s.wipe()
	s.sleep(s.h.ttl()) // as no store is back at once
	after := s.grant(s.client(), key, s.token("after"), long)
	s.above(last, after)
	return s.result()
}

// idleTimes are longer than what companions of a lock, or rows that are used no more,
// are kept for.
var idleTimes = []time.Duration{90 * time.Minute, 25 * time.Hour, 8 * 24 * time.Hour}

func fenceSurvivesIdleness(s *scene) error {
	a, b := s.clients2()
	last := s.grant(a, s.key(), s.token("first"), long)
	s.fenced(last)
	s.release(a, last, true)
	for _, idle := range idleTimes {
		s.idle(idle)
		next := s.grant(b, last.key, s.token(fmt.Sprint("after ", idle)), s.h.ttl())
		s.above(last, next) // whose lease runs out
		last = next
	}
	return s.result()
}

// idle lets so much time pass that it must not be real time.
func (s *scene) idle(d time.Duration) {
	if s.over() {
		return
	}
	end := s.trace.begin("%v pass", d)
	s.sleep(d)
	end("they have passed", nil)
}

func (s *scene) wipe() {
	if !s.over() {
		s.h.Wipe(s.t)
	}
}

// tellsMonotonicTime: Since is an instant that no change of the wall clock moves. In a
// bubble there is no such clock.
func (s *scene) tellsMonotonicTime(g grant) {
	if now := time.Now(); s.over() || g.Since.IsZero() || now == now.Round(0) {
		return
	}
	if g.Since == g.Since.Round(0) {
		s.fail("Since is %v, which has no monotonic reading; want an instant from time.Now", g.Since)
	}
}

func sinceIsConservative(s *scene) error {
	a, b := s.clients2()
	c := s.acquirer()
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), ttl)
	s.notFreedBefore(b, g, ttl)

	for range 3 {
		g := s.grant(a, s.key(), s.token("holder"), long)
		w := s.wait(c, g.key, s.token("waiter"), ttl)
		s.sleep(ttl / 3)
		s.release(a, g, true)
		next := s.served(w, "the holder released the key")
		s.tellsMonotonicTime(next)
		s.notFreedBefore(b, next, ttl)
	}
	return s.result()
}

// notFreedBefore has a stranger try to take the key all the time, until it
// succeeds.
func (s *scene) notFreedBefore(c *client, g grant, ttl time.Duration) {
	since := g.Since
	if since.IsZero() {
		since = g.start
	}
	end := time.Now().Add(ttl + s.h.patience())
	for !s.over() && time.Now().Before(end) {
		token := s.token("stranger")
		s.uses(g.key, token)
		a, err := c.TryAcquire(s.ctx, g.key, token, long)
		s.noError(err, "TryAcquire", g.key)
		if a.Acquired {
			s.freedAt(time.Now(), since.Add(ttl), g)
			return
		}
		time.Sleep(ttl / 40)
	}
}

// freedAt checks that g, which lasts until then, was not given away at now.
func (s *scene) freedAt(now, then time.Time, g grant) {
	if now.Before(then) {
		s.fail("%s was granted to another %v before Since+ttl of its holder %s", brief(g.key), then.Sub(now), brief(g.token))
	}
}
