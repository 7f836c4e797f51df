package conformance

import (
	"sync"
	"time"
)

var renewingCases = []testCase{
	is("RenewExtends", renewExtends, "A backend extends a renewed lease to ttl from now, unless it ends later anyway."),
	is("RenewNeverShortens", renewNeverShortens, "A backend never shortens a lease when its holder renews it, so a late duplicate does no harm."),
	is("RenewByStranger", renewByStranger, "A backend answers false, and changes nothing, when a token renews a key that it does not hold."),
	is("RenewAfterExpiry", renewAfterExpiry, "A backend answers false, and changes nothing, when a lease is renewed that has ended. It never revives it."),
	is("RenewCrossesTakeover", renewCrossesTakeover, "A backend extends only the token's own lease, even if another client takes the key between two renewals that arrive together."),
}

func renewExtends(s *scene, a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), 10*ttl)
	for range 300 { // however often
		s.renew(b, g, 10*ttl, true)
	}
	s.renew(a, g, long, true)
	s.lapse(10 * ttl)
	s.held(b, g)
	s.renew(a, g, long, true)
	s.release(a, g, true)
	s.free(b, g.key)
	g = s.grant(a, s.key(), s.token("holder"), 4*ttl)
	s.sleep(3 * ttl)
	s.renew(b, g, 2*ttl, true)
	s.lapse(2 * ttl) // not for as long as it was granted
	s.free(a, g.key)
	g = s.grant(a, s.key(), s.token("holder"), 4*ttl)
	s.renew(a, g, 4*ttl, true)
	s.sleep(ttl / 2)
	s.renew(a, g, 4*ttl, true) // so soon that what the first has found is still known
	s.sleep(4*ttl - ttl/4)
	s.held(b, g)
	s.release(a, g, true)
}

func renewNeverShortens(s *scene, a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.renew(a, g, ttl, true)
	s.renew(b, g, time.Millisecond, true)
	s.lapse(ttl)
	s.held(b, g)
	s.release(a, g, true)
}

func renewByStranger(s *scene, a, b *client) {
	ttl := s.h.ttl()
	kept := s.grant(a, s.key(), s.token("holder"), long)
	ends := s.grant(a, s.key(), s.token("holder"), ttl)
	s.renew(b, kept.as(s.token("stranger")), ttl, false)
	s.renew(b, ends.as(s.token("stranger")), long, false)
	s.lapse(ttl)
	s.held(b, kept) // not shortened
	s.release(a, kept, true)
	s.free(b, ends.key) // not extended
	never := grant{key: s.key(), token: s.token("stranger")}
	s.uses(never.key, never.token)
	s.renew(a, never, long, false)
	s.free(b, never.key) // not made
}

func renewAfterExpiry(s *scene, a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("dead"), ttl)
	s.lapse(ttl)
	s.renew(a, g, long, false)
	next := s.grant(b, g.key, s.token("next"), long) // not revived
	s.renew(a, g, ttl, false)
	s.lapse(ttl)
	s.held(a, next) // not shortened
	s.release(b, next, true)
	s.eachWay(a, b, renewAtExpiry)
}

// renewAtExpiry: of a renewal that is on its way when the lease ends, and an attempt to take the key, one succeeds.
func renewAtExpiry(s *scene, next, holder *client) {
	s.atMoments(func(early time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), s.h.ttl())
		kept, n := s.overtake(next, g, early, func() (bool, error) {
			return holder.Renew(s.ctx, g.key, g.token, long)
		})
		if kept && n.Acquired {
			s.fail("%s reported true at the end of a lease, and %s was acquired; want one of the two",
				holder.text("Renew", g.key, g.token, long), next.text("TryAcquire", n.key, n.token, long))
		}
	})
}

// renewCrossesTakeover sends several renewals of one token together, and a release, while
// another client takes the key for a short time.
func renewCrossesTakeover(s *scene, a, b *client) {
	ttl := s.h.ttl()
	var mu sync.Mutex
	var taken []grant
	s.crossTakeovers(func(next, holder *client, spread time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), long)
		renew, release := s.staleRenewals(holder, g), s.staleRelease(holder, g)
		n := s.takeDuring(next, g.key, ttl, spread, renew, renew, renew, release)
		mu.Lock()
		defer mu.Unlock()
		taken = append(taken, n)
	})
	s.lapse(ttl)
	c := s.client()
	for _, n := range taken {
		s.freeAfter(c, n.key, "though the lease of "+brief(n.token)+" has expired, which took the key over while its former holder was renewing")
	}
}
