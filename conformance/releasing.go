package conformance

import "time"

var releasingCases = []testCase{
	is("ReleaseFrees", releaseFrees, "A backend frees a key at once when its holder releases it."),
	is("ReleaseByStranger", releaseByStranger, "A backend answers false, and changes nothing, when a token releases a key that it does not hold."),
	is("ReleaseTwice", releaseTwice, "A backend answers false, and changes nothing, when a token releases again, even if another holds the key by then."),
	is("ReleaseAfterExpiry", releaseAfterExpiry, "A backend answers false, and changes nothing, when a lease is released that has ended, even if another token holds the key by then."),
	is("ReleaseCrossesTakeover", releaseCrossesTakeover, "A backend ends only the token's own lease, even if another client takes the key between two releases that arrive together."),
	is("ReleaseForgets", releaseForgets, "A backend that releases a token, for whichever client, ends its lease and all its places in the queue.").with(acquire),
}

func releaseFrees(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.release(a, g, true)
	g = s.grant(b, g.key, s.token("next"), long)
	s.release(a, g, true) // by any client that knows the token
	s.free(b, g.key)
}

func releaseByStranger(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.release(b, g.as(s.token("stranger")), false)
	s.release(a, g.as(s.token("stranger")), false)
	s.held(b, g)
	s.release(a, g, true)
	g = grant{key: s.key(), token: s.token("stranger")}
	s.release(a, g, false) // of a key that nobody holds
	s.free(b, g.key)
}

func releaseTwice(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.release(a, g, true)
	s.release(a, g, false)
	releasedInVain(s, a, b, g)
	releasedInVain(s, a, a, g)
}

// releasedInVain has another take the key of g, which is over, and g released then.
func releasedInVain(s *scene, holder, next *client, g grant) {
	n := s.grant(next, g.key, s.token("next"), long)
	s.release(holder, g, false)
	s.held(holder, n)
	s.release(next, n, true)
}

func releaseAfterExpiry(s *scene, a, b *client) {
	for _, taken := range []bool{false, true} {
		g := s.grant(a, s.key(), s.token("dead"), s.h.ttl())
		s.lapse(s.h.ttl())
		if taken {
			releasedInVain(s, a, b, g)
		}
		s.release(a, g, false)
		s.free(b, g.key)
	}
	s.eachWay(a, b, releaseAtExpiry)
}

// releaseCrossesTakeover sends several releases of one token together, and a renewal, while another client takes the key.
func releaseCrossesTakeover(s *scene, a, b *client) {
	s.crossTakeovers(func(next, holder *client, spread time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), long)
		release, renew := s.staleRelease(holder, g), s.staleRenewals(holder, g)
		s.release(next, s.takeDuring(next, g.key, long, spread, release, release, release, renew), true)
	})
}

// releaseAtExpiry: a release that is on its way when the lease ends does not end that of the next holder.
func releaseAtExpiry(s *scene, next, holder *client) {
	s.atMoments(func(early time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), s.h.ttl())
		_, n := s.overtake(next, g, early, func() (bool, error) {
			return false, errOf(holder.Release(s.ctx, g.key, g.token))
		})
		s.held(next, n)
	})
}

func releaseForgets(s *scene, a, b *client) {
	for _, times := range []int{1, 2, 3} {
		if !s.h.Unordered { // a wait may begin again, and be served before the others
			forgetsWaits(s, a, b, b, times)
			forgetsWaits(s, a, b, a, times)
		}
		forgetsLease(s, a, b, times)
	}
}

// forgetsWaits releases a token that waits several times, between two others: what it waits for goes to them. If another
// client releases it, its waits are still under way, and may take a place again, which is behind the others.
func forgetsWaits(s *scene, a, b, by *client, times int) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	others := []*waiter{s.wait(b, g.key, s.token("before"), long)}
	waiting := waitTimes(s, b, g.key, times)
	others = append(others, s.wait(b, g.key, s.token("behind"), long))
	s.release(by, waiting[0].grant, false)
	for _, w := range others {
		s.release(a, g, true)
		g = s.servedInTheEnd(w, "the holder released the key; a token between this and another waiter had been released")
	}
	s.endWaits(b, waiting)
	s.release(b, g, true)
	s.free(a, g.key)
}

func forgetsLease(s *scene, a, b *client, times int) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	waiting := waitTimes(s, b, g.key, times)
	s.release(a, g, true)
	i := s.first(waiting)
	if i < 0 {
		s.fail("a holder released %s, for which %s waited %d times, and %v later none of the waits has been served",
			brief(g.key), brief(waiting[0].token), times, s.h.patience())
		return
	}
	s.release(b, s.isServed(waiting[i]), true)
	next := s.grant(a, g.key, s.token("next"), long)
	s.endWaits(b, waiting)
	s.held(b, next)
	s.release(a, next, true)
	s.free(b, g.key)
}

func waitTimes(s *scene, c *client, key string, times int) []*waiter {
	token := s.token("waiter")
	waiting := make([]*waiter, times)
	for i := range waiting {
		waiting[i] = s.waitCtx(s.ctx, c, key, token, long)
	}
	s.gap()
	return waiting
}
