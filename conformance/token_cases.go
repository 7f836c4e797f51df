package conformance

import (
	"fmt"
	"slices"
	"time"
)

// holderAcquiresAgain has a token that holds a key ask for it, in either way, while
// others wait for it.
func holderAcquiresAgain(s *scene) error {
	a, b := s.client(), s.acquirer()
	ttl := max(s.h.ttl(), 4*s.h.gap()<<s.attempt)

	g := s.grant(a, s.key(), s.token("holder"), 2*ttl)
	s.acquiresAgain(a, g, ttl) // nobody waits
	w := s.wait(b, g.key, s.token("waiter"), long)
	s.above(g, s.again(b, g, ttl))
	s.renew(b, g, ttl, true)
	again := s.acquiresAgain(b, g, long)
	s.above(again, s.acquiresAgain(a, g, ttl)) // which does not shorten what is left
	s.lapse(2 * ttl)
	s.waits(w)
	s.held(b, g)
	s.release(a, g, true)
	s.above(again, s.served(w, "the holder released the key, which it had asked for again"))
	s.release(b, w.grant, true)
	s.free(a, g.key)
	return s.result()
}

// acquiresAgain has the holder of a key wait for it.
func (s *scene) acquiresAgain(c *client, g grant, ttl time.Duration) grant {
	start := s.now()
	w := s.waitCtx(s.ctx, c, g.key, g.token, ttl)
	if s.over() {
		return g
	}
	if !s.await(w.done) {
		s.fail("%s.Acquire(%s, %s, %v), by the token that holds the key, has not returned for %v; want it to be acquired at once",
			c.name, brief(g.key), brief(g.token), ttl, s.h.patience())
		return g
	}
	if w.err != nil || !w.answer.Acquired {
		s.fail("%s.Acquire(%s, %s, %v), by the token that holds the key = %s, %v; want it to be acquired",
			c.name, brief(g.key), brief(g.token), ttl, show(w.answer), w.err)
	}
	s.certain(g.key, start.Add(ttl), false)
	again := grant{Attempt: w.answer, key: g.key, token: g.token, start: start}
	s.above(g, again)
	return again
}

// waiterIsNoHolder has a token that only waits do what holders do.
func waiterIsNoHolder(s *scene) error {
	a, b := s.client(), s.acquirer()
	s.atOnce(
		func() { s.strangerWaits(a, b) },
		func() { s.strangerWaitsForTheDead(a, b) },
	)
	return s.result()
}

// strangerWaits: its place and its TTL are those of its wait, whatever else it asks for.
func (s *scene) strangerWaits(a, b *client) {
	ttl := max(s.h.ttl(), 2*s.h.gap()<<s.attempt)
	g := s.grant(a, s.key(), s.token("holder"), long)
	w := s.wait(b, g.key, s.token("waiter"), ttl)
	other := s.wait(b, g.key, s.token("other"), long)
	for _, c := range []*client{a, b} {
		s.renew(c, w.grant, long, false)
		s.batch(c, w.grant, long, false)
		s.refused(c, g, w.token, long)
	}
	s.waits(w)
	s.held(a, g)
	s.release(a, g, true)
	if s.h.Unordered {
		return
	}
	s.served(w, "the holder released the key; the waiter, the first of two, had tried to renew it")
	s.waits(other)
	s.lapse(ttl)
	s.served(other, "the lease of a waiter had expired that had tried to renew it for longer before it was served")
	s.release(b, other.grant, true)
}

// strangerWaitsForTheDead: nor does it keep the lease of the holder alive.
func (s *scene) strangerWaitsForTheDead(a, b *client) {
	ttl := max(s.h.ttl(), 3*s.h.gap()<<s.attempt)
	g := s.grant(a, s.key(), s.token("dead"), ttl)
	w := s.wait(b, g.key, s.token("waiter"), long)
	for _, renew := range []func(){
		func() { s.renew(a, w.grant, long, false) },
		func() { s.batch(b, w.grant, long, false) },
	} {
		if s.mayHaveExpired(g.key) { // and the waiter be served
			return
		}
		renew()
	}
	s.lapse(ttl)
	s.served(w, "the holder's lease had expired, which a waiter had tried to renew")
	s.release(b, w.grant, true)
	s.free(a, g.key)
}

// releaseForgets releases tokens that wait more than once, or hold and wait.
func releaseForgets(s *scene) error {
	a, b := s.client(), s.acquirer()
	for _, times := range []int{1, 2, 3} {
		if !s.h.Unordered { // a wait may begin anew, and be served before the other
			s.forgetsWaits(a, b, times)
		}
		s.forgetsLease(a, b, times)
	}
	s.forgetsFromElsewhere(a, b)
	return s.result()
}

// forgetsFromElsewhere has another client release one of three tokens that wait: the two
// others are served.
func (s *scene) forgetsFromElsewhere(a, b *client) {
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
		s.forgottenElsewhere(a, b, q)
	}
}

// forgottenElsewhere is quick: the wait whose token is released is still under way, and
// may take a place anew.
func (s *scene) forgottenElsewhere(a, b *client, q *queueOfThree) {
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
func (s *scene) forgetsWaits(a, b *client, times int) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	waiting := s.waitTimes(b, g.key, times)
	other := s.wait(b, g.key, s.token("other"), long)
	s.release(b, waiting[0].grant, false)
	s.release(a, g, true)
	s.served(other, "the holder released the key; the token that came before had been released")
	s.endWaits(b, waiting)
	s.release(b, other.grant, true)
	s.free(a, g.key)
}

// forgetsLease releases a token that was served, and waits elsewhere still.
func (s *scene) forgetsLease(a, b *client, times int) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	waiting := s.waitTimes(b, g.key, times)
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
func (s *scene) waitTimes(c *client, key string, times int) []*waiter {
	token := s.token("waiter")
	waiting := make([]*waiter, times)
	for i := range waiting {
		waiting[i] = s.waitCtx(s.ctx, c, key, token, long)
	}
	s.gap()
	return waiting
}

// endWaits cancels waits of a token that was released, whatever has come of them.
func (s *scene) endWaits(c *client, waiting []*waiter) {
	for _, w := range waiting {
		w.cancel()
	}
	for _, w := range waiting {
		if !s.over() && !s.await(w.done) {
			s.ended(w)
		}
		s.wasSent(w)
	}
	s.release(c, waiting[0].grant, false)
}
