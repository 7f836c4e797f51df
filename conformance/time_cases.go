package conformance

import (
	"sync"
	"time"
)

func expiry(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()

	g := s.grant(a, s.key(), s.token("holder"), ttl)
	s.lapse(ttl)
	s.free(b, g.key)

	g = s.grant(a, s.key(), s.token("holder"), ttl)
	s.renew(a, g, ttl+ttl/2, true)
	s.lapse(ttl + ttl/2)
	s.free(b, g.key)
	s.givenUpExpires(a, b)
	return s.result()
}

func notBefore(s *scene) error {
	a, b := s.clients2()
	for _, ttl := range []time.Duration{s.h.ttl(), unevenTTL(s.h.ttl())} {
		a, b = b, a // as the clock of either may be behind
		g := s.grant(a, s.key(), s.token("holder"), ttl)
		for _, part := range []float64{0.45, 0.6, 0.9} {
			s.sleep(g.start.Add(time.Duration(part * float64(ttl))).Sub(s.now()))
			s.heldSoFar(b, g, ttl)
		}
	}
	s.notBeforeAnew(a, b)
	return s.result()
}

// notBeforeAnew has a key taken again, for longer, after a lease that would have ended
// soon: nothing is left of that.
func (s *scene) notBeforeAnew(a, b *client) {
	ttl := s.h.ttl()
	again := s.token("again")
	var leases []grant
	for _, end := range []func(grant){
		func(g grant) { s.release(a, g, true) },
		func(g grant) { s.release(b, g, true) },
		func(g grant) { s.renew(b, g, ttl, true); s.release(b, g, true) },
		func(g grant) { s.again(b, g, ttl); s.release(b, g, true) },
		func(grant) { s.lapse(ttl) },
	} {
		for _, next := range []string{again, s.token("next")} {
			g := s.grant(a, s.key(), again, ttl)
			end(g)
			leases = append(leases, s.grant(a, g.key, next, long))
		}
	}
	s.lapse(ttl)
	for _, g := range leases {
		s.held(b, g)
		s.release(a, g, true)
	}
}

// unevenTTL is a TTL that a store would cut by much if it counted in seconds.
func unevenTTL(ttl time.Duration) time.Duration {
	return ttl.Truncate(time.Second) + 1987*time.Millisecond
}

// heldSoFar checks that the key has not been freed too early, unless it is not
// too early any more.
func (s *scene) heldSoFar(c *client, g grant, ttl time.Duration) {
	if s.over() {
		return
	}
	token := s.token("stranger")
	s.uses(g.key, token)
	a, err := c.TryAcquire(s.ctx, g.key, token, ttl)
	age := s.now().Sub(g.start)
	switch {
	case err != nil:
		s.fail("TryAcquire(%s) = %w; want it to be refused without an error", brief(g.key), err)
	case a.Acquired && age < ttl:
		s.fail("TryAcquire(%s) was acquired at most %v after the call that granted the key to another for %v",
			brief(g.key), age, ttl)
	case a.Acquired:
		s.stop(errInconclusive)
	}
}

func renewExtends(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), 2*ttl)
	s.renew(b, g, long, true)
	s.lapse(2 * ttl)
	s.held(b, g)
	s.renew(a, g, long, true)
	s.release(a, g, true)
	s.free(b, g.key)

	g = s.grant(a, s.key(), s.token("holder"), 4*ttl)
	s.sleep(3 * ttl)
	g.start = s.now()
	s.renew(b, g, 2*ttl, true)
	s.lapse(2 * ttl) // not for as long as it was granted
	s.free(a, g.key)
	s.renewsOften(a, b)
	s.renewsSoonAgain(a, b)
	return s.result()
}

// renewsSoonAgain renews a lease twice within an eighth of the TTL: what the first has
// found is out of date when the second is made.
func (s *scene) renewsSoonAgain(a, b *client) {
	ttl := 4 * s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), ttl)
	s.renew(a, g, ttl, true)
	s.sleep(ttl / 8)
	s.renew(a, g, ttl, true)
	s.sleep(ttl - ttl/16)
	s.held(b, g)
	s.release(a, g, true)
}

// renewsOften renews a lease hundreds of times, and once more.
func (s *scene) renewsOften(a, b *client) {
	lasting := 10 * s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), lasting)
	for range 300 {
		s.renew(b, g, lasting, true)
	}
	s.renew(a, g, long, true)
	s.lapse(lasting)
	s.held(b, g)
	s.release(a, g, true)
}

func renewNeverShortens(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.renew(a, g, ttl, true)
	s.renew(b, g, time.Millisecond, true)
	s.lapse(ttl)
	s.held(b, g)
	s.release(a, g, true)
	return s.result()
}

func renewByStranger(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()

	g := s.grant(a, s.key(), s.token("holder"), long)
	s.renew(b, g.as(s.token("stranger")), ttl, false)
	s.lapse(ttl)
	s.held(b, g) // not shortened
	s.release(a, g, true)

	g = s.grant(a, s.key(), s.token("holder"), ttl)
	s.renew(b, g.as(s.token("stranger")), long, false)
	s.lapse(ttl)
	s.free(b, g.key) // not extended

	g = grant{key: s.key(), token: s.token("stranger")}
	s.uses(g.key, g.token)
	s.renew(a, g, long, false)
	s.free(b, g.key) // not made
	eachWay(a, b, s.renewsWhilePassing)
	return s.result()
}

// renewsWhilePassing has keys pass from one to another while the former renews: what the
// latter has does not last for longer.
func (s *scene) renewsWhilePassing(a, b *client) {
	ttl := s.h.ttl()
	rounds := 2
	if s.h.Bubble {
		rounds = s.h.rounds(20)
	}
	for range rounds {
		var passed []grant
		for range 20 {
			g := s.grant(a, s.key(), s.token("holder"), long)
			var calls sync.WaitGroup
			for range 4 {
				calls.Go(func() { _, _ = a.Renew(s.ctx, g.key, g.token, long) })
			}
			s.release(b, g, true)
			passed = append(passed, s.grant(b, g.key, s.token("next"), ttl))
			calls.Wait()
		}
		s.lapse(ttl)
		for _, g := range passed {
			s.free(a, g.key)
		}
	}
}

func renewAfterExpiry(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()

	g := s.grant(a, s.key(), s.token("dead"), ttl)
	s.lapse(ttl)
	s.renew(a, g, long, false)
	s.free(b, g.key)

	g = s.grant(a, s.key(), s.token("dead"), ttl)
	s.lapse(ttl)
	next := s.grant(b, g.key, s.token("next"), long)
	s.renew(a, g, ttl, false)
	s.lapse(ttl)
	s.held(a, next)
	s.release(b, next, true)

	g = s.grant(a, s.key(), s.token("holder"), long)
	s.renew(a, g, long, true)
	s.release(b, g, true)
	s.renew(a, g, long, false) // though it has renewed it a moment ago
	s.free(b, g.key)

	eachWay(a, b, s.renewAtExpiry)
	return s.result()
}

func releaseFrees(s *scene) error {
	a, b := s.clients2()
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.release(a, g, true)
	g = s.grant(b, g.key, s.token("next"), long)
	s.release(a, g, true) // by any client that knows the token
	s.free(b, g.key)
	return s.result()
}

func releaseByStranger(s *scene) error {
	a, b := s.clients2()
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.release(b, g.as(s.token("stranger")), false)
	s.release(a, g.as(s.token("stranger")), false)
	s.held(b, g)
	s.release(a, g, true)

	g = grant{key: s.key(), token: s.token("stranger")}
	s.release(a, g, false) // of a key that nobody holds
	s.free(b, g.key)
	return s.result()
}

func releaseTwice(s *scene) error {
	a, b := s.clients2()
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.release(a, g, true)
	s.release(a, g, false)
	for _, by := range []*client{a, b} {
		next := s.grant(by, g.key, s.token("next"), long)
		s.release(a, g, false)
		s.held(a, next)
		s.release(by, next, true)
	}
	return s.result()
}

func releaseAfterExpiry(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("dead"), ttl)
	s.lapse(ttl)
	s.release(a, g, false)
	s.free(b, g.key)

	g = s.grant(a, s.key(), s.token("dead"), ttl)
	s.lapse(ttl)
	next := s.grant(b, g.key, s.token("next"), long)
	s.release(a, g, false)
	s.held(a, next)
	s.release(b, next, true)

	eachWay(a, b, s.releaseAtExpiry)
	return s.result()
}
