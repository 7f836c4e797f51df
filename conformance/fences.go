package conformance

import (
	"fmt"
	"time"
)

var fencesCases = []testCase{
	is("FenceRises", fenceRises, "A backend gives each grant of a key a fence at least 8 above every earlier one: after a release, an expiry or a handover, by another client, and with many contenders."),
	is("FenceSurvivesIdleness", fenceSurvivesIdleness, "A backend gives a key a larger fence even after hours or days without use.").idle().needing(needsBubble),
	is("FenceSurvivesDataLoss", fenceSurvivesDataLoss, "A backend whose fences survive data loss gives a key a larger fence after the store has lost everything.").single().needing(needsWipe),
}

func fenceRises(s *scene, a, b *client) {
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
	s.above(third, handover(s, a, b, third))
	grants := takeTurns(s, false, a, b)
	for i := 1; i < len(grants); i++ {
		s.above(grants[i-1], grants[i])
	}
	s.eachWay(a, b, fenceAtExpiry)
}

// handover has g passed to a waiter, where the store can do that.
func handover(s *scene, a, b *client, g grant) grant {
	w := s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long)
	s.gap()
	s.release(a, g, true)
	if !s.await(w.done) || !supported(w.err) {
		return s.grant(b, g.key, s.token("next"), long)
	}
	return s.isServed(w)
}

// fenceAtExpiry: a lease that was over before the call that made it has returned
// came before that of the next holder, and so does its fence.
func fenceAtExpiry(s *scene, next, slow *client) {
	eachOf(8, func(i int) {
		key, made := s.key(), make(chan grant, 1)
		ttl := time.Duration(i+1) * time.Millisecond
		go func() {
			defer close(made)
			made <- s.try(slow, grant{key: key, token: s.token("slow")}, ttl)
		}()
		time.Sleep(s.h.gap() / 2)
		second := s.takeSoon(next, key)
		if first := <-made; first.Acquired && second.Acquired {
			s.above(first, second)
		}
	})
}

// idleTimes are longer than what companions of a lock, or rows that are used no more, are kept for.
var idleTimes = []time.Duration{90 * time.Minute, 25 * time.Hour, 8 * 24 * time.Hour}

func fenceSurvivesIdleness(s *scene, a, b *client) {
	last := s.grant(a, s.key(), s.token("first"), long)
	s.fenced(last)
	s.release(a, last, true)
	for _, idle := range idleTimes {
		pause := s.trace.begin("", "", "%v pass", idle)
		s.sleep(idle)
		pause.end(idle, nil)
		next := s.grant(b, last.key, s.token(fmt.Sprint("after ", idle)), s.h.ttl())
		s.above(last, next) // whose lease runs out
		last = next
	}
}

func fenceSurvivesDataLoss(s *scene, c, _ *client) {
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
}
