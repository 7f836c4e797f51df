package conformance

import (
	"fmt"
	"slices"
	"time"
)

var releasingCases = []testCase{
	{name: "ReleaseFrees", check: releaseFrees,
		clause: withSource("A backend frees a key at once when its holder releases it.")},
	{name: "ReleaseByStranger", check: releaseByStranger,
		clause: withSource("A backend answers false, and changes nothing, when a token releases a key that it does not hold.")},
	{name: "ReleaseTwice", check: releaseTwice,
		clause: withSource("A backend answers false, and changes nothing, when a token releases again, even if another holds the key by then.")},
	{name: "ReleaseAfterExpiry", check: releaseAfterExpiry,
		clause: withSource("A backend answers false, and changes nothing, when a lease is released that has ended, even if another token holds the key by then.")},
	{name: "ReleaseCrossesTakeover", check: releaseCrossesTakeover,
		clause: withSource("A backend ends only the token's own lease, even if another client takes the key between two releases that arrive together.")},
	{name: "ReleaseForgets", check: releaseForgets,
		clause: withSource("A backend that releases a token, for whichever client, ends its lease and all its places in the queue.")},
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

	s.eachWay(a, b, releaseAtExpiry)
	return s.result()
}

// releaseCrossesTakeover sends several releases of one token together, and a renewal,
// while another client takes the key.
func releaseCrossesTakeover(s *scene) error {
	s.crossTakeovers(func(next, holder *client, spread time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), long)
		release, renew := s.staleRelease(holder, g), s.staleRenewals(holder, g)
		s.release(next, s.takeDuring(next, g.key, long, spread, release, release, release, renew), true)
	})
	return s.result()
}

// releaseAtExpiry: a release that is on its way when the lease ends does not end
// that of the next holder.
func releaseAtExpiry(s *scene, next, holder *client) {
	s.whereTimePasses(func(early time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), s.h.ttl())
		_, n := s.overtake(next, g, early, func() (bool, error) {
			_, err := holder.Release(s.ctx, g.key, g.token)
			return false, err
		})
		s.held(next, n)
	})
}

// releaseForgets releases tokens that wait more than once, or hold and wait.
func releaseForgets(s *scene) error {
	a, b := s.client(), s.acquirer()
	for _, times := range []int{1, 2, 3} {
		if !s.h.Unordered { // a wait may begin again, and be served before the other
			forgetsWaits(s, a, b, times)
		}
		forgetsLease(s, a, b, times)
	}
	forgetsFromElsewhere(s, a, b)
	return s.result()
}

// A queueOfThree waits for what one holds.
type queueOfThree struct {
	holder  grant
	waiting []*waiter
	leavers []int // of the three
}

// forgetsFromElsewhere has another client release one of three tokens that wait: the two
// others are served.
func forgetsFromElsewhere(s *scene, a, b *client) {
	var queues []*queueOfThree
	for _, leaver := range []int{0, 1, 2} {
		g := s.grant(a, s.key(), s.token("holder"), long)
		queues = append(queues, &queueOfThree{holder: g, leavers: []int{leaver}})
	}
	for i := range 3 {
		for _, q := range queues {
			q.waiting = append(q.waiting, s.waitCtx(s.ctx, b, q.holder.key, s.token(fmt.Sprint("waiter", i)), long))
		}
		s.gap()
	}
	for _, q := range queues {
		forgottenElsewhere(s, a, b, q)
	}
}

// forgottenElsewhere is quick: the wait whose token is released is still under way, and
// may take a place again.
func forgottenElsewhere(s *scene, a, b *client, q *queueOfThree) {
	leaver := q.waiting[q.leavers[0]]
	others := slices.Delete(slices.Clone(q.waiting), q.leavers[0], q.leavers[0]+1)
	s.release(a, leaver.grant, false)
	g := q.holder
	for len(others) > 0 && !s.over() {
		s.release(a, g, true)
		i := s.first(others)
		switch {
		case i >= 0:
		case !s.h.Bubble && s.attempt < tries-2:
			s.stop(errInconclusive)
			return
		default:
			s.fail("%v after a holder released %s none of %d waiters has been served; want one of them to be, since %s, number %d (from 0) of three, was released by another client before",
				s.h.patience(), brief(g.key), len(others), brief(leaver.token), q.leavers[0])
			return
		}
		g = s.isServed(others[i])
		others = slices.Delete(others, i, i+1)
	}
	s.endWaits(b, []*waiter{leaver})
	s.release(b, g, true)
	s.free(a, g.key)
}

// forgetsWaits releases a token that waits several times: what it waits for goes to
// another.
func forgetsWaits(s *scene, a, b *client, times int) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	waiting := waitTimes(s, b, g.key, times)
	other := s.wait(b, g.key, s.token("other"), long)
	s.release(b, waiting[0].grant, false)
	s.release(a, g, true)
	s.servedInTheEnd(other, "the holder released the key; the token that came before had been released")
	s.endWaits(b, waiting)
	s.release(b, other.grant, true)
	s.free(a, g.key)
}

// forgetsLease releases a token that was served, and waits elsewhere still.
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
	s.isServed(waiting[i])
	s.release(b, waiting[i].grant, true)
	next := s.grant(a, g.key, s.token("next"), long)
	s.endWaits(b, waiting)
	s.held(b, next)
	s.release(a, next, true)
	s.free(b, g.key)
}

// waitTimes has one token wait several times.
func waitTimes(s *scene, c *client, key string, times int) []*waiter {
	token := s.token("waiter")
	waiting := make([]*waiter, times)
	for i := range waiting {
		waiting[i] = s.waitCtx(s.ctx, c, key, token, long)
	}
	s.gap()
	return waiting
}
