package conformance

import (
	"fmt"
	"testing/synctest"
	"time"
)

var timeCases = []testCase{
	is("Expiry", expiry, "A backend frees a key when its TTL has passed, at most the declared grace later."),
	is("NotBefore", notBefore, "A backend never frees a key before its TTL has passed. It does not cut the TTL to seconds, and a client's clock that lags does no harm."),
	is("AnyTTL", anyTTL, "A backend keeps a lease for the TTL asked for, from 1 ms to a year or the declared maximum, in every call: a first attempt, one by the holder, a renewal, alone or in a batch, and a wait.").idle(),
	is("ExpiresForAll", expiresForAll, "A backend ends a lease for all calls at once. Until its TTL has passed, each finds it. When another token could take the key, none does: it is not renewed, shown, or released as held."),
	is("SinceIsConservative", sinceIsConservative, "A backend never frees a key before Since+ttl, even if the waiter was stopped before it read its grant. After a wait, Since is the time of the grant, not of the call.").with(acquire),
}

func expiry(s *scene, a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), ttl)
	s.lapse(ttl)
	s.free(b, g.key)
	g = s.grant(a, s.key(), s.token("holder"), ttl)
	s.renew(a, g, ttl+ttl/2, true)
	s.lapse(ttl + ttl/2)
	s.free(b, g.key)
	s.atMoments(func(d time.Duration) {
		g := s.giveUp(b, s.key(), ttl, d) // what it has acquired, if it did, expires likewise
		s.lapse(ttl)
		freeSoon(s, a, g.key, fmt.Sprintf("an attempt for %v, which was given up after %v, should have expired", ttl, d))
	})
}

func freeSoon(s *scene, c *client, key, since string) {
	g := s.takeSoon(c, key)
	if !g.Acquired {
		s.fail("%s.TryAcquire(%s) has been refused for %v since %s; want it to be acquired", c.name, brief(key), s.h.patience(), since)
	}
	s.release(c, g, true)
}

func notBefore(s *scene, a, b *client) {
	uneven := s.h.ttl().Truncate(time.Second) + 1987*time.Millisecond // much is cut off by whole seconds
	for _, ttl := range []time.Duration{s.h.ttl(), uneven} {
		a, b = b, a // as the clock of either may be behind
		g := s.grant(a, s.key(), s.token("holder"), ttl)
		for _, part := range []float64{0.45, 0.6, 0.9} {
			s.sleep(time.Until(g.start.Add(time.Duration(part * float64(ttl)))))
			s.refused(b, g, s.token("stranger"), ttl)
		}
	}
	notBeforeAgain(s, a, b)
}

// notBeforeAgain has a key taken again, for longer, after a lease that would have ended
// soon. The end of the first must not end the second.
func notBeforeAgain(s *scene, a, b *client) {
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

// hint names the likely cause of a lease that ended so much too early, if that is little.
func hint(early time.Duration) string {
	if early <= 0 || early >= time.Millisecond {
		return ""
	}
	return " (is the clock cut to whole milliseconds?)"
}

func anyTTL(s *scene, a, b *client) {
	can := s.abilities(b)
	s.atOnce(
		func() { longTTLs(s, a, b, can) },
		func() { oddTTLs(s, a, b, can) },
		func() { shortTTLs(s, a, b, can) },
	)
}

// longTTLs asks in every way for TTLs that are too long for 32 bits, of microseconds or of
// milliseconds, signed or not: they are negative there, or a millisecond at most. It also asks for the
// longest that a store has to keep. Then it looks at all of the leases.
func longTTLs(s *scene, a, b *client, can abilities) {
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	var leases []longLease
	for _, ttl := range []time.Duration{
		1<<31*time.Microsecond + 352*time.Microsecond,
		1<<32*time.Microsecond + 704*time.Microsecond,
		1 << 31 * time.Millisecond,
		(1<<32 + 1) * time.Millisecond,
		a.inner.LongestTTL(),
	} {
		if ttl <= a.inner.LongestTTL() {
			leases = append(leases, s.lastingFor(a, b, can, short, ttl)...)
		}
	}
	s.lapse(short)
	s.stillLast(a, b, leases, can)
}

// oddTTLs asks, in every way, for TTLs that are multiples of no unit of time, nor of a tick of a clock, but of a
// millisecond, and looks when they end. They are just below a multiple, which is what is lost if they are cut, and just
// above one, as they may be rounded. Where days take no time, it asks for some of these as well.
func oddTTLs(s *scene, a, b *client, can abilities) {
	const unit = 100 * time.Millisecond
	time.Sleep(700 * time.Microsecond) // in a bubble, the time is a whole millisecond otherwise
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	odd := []time.Duration{short.Truncate(unit) + 2*unit - time.Millisecond, short.Truncate(unit) + 2*unit + 4*time.Millisecond}
	if s.h.Bubble {
		odd = append(odd, min(73*time.Hour, a.inner.LongestTTL()))
	}
	var polls []func()
	for _, ttl := range odd {
		for _, l := range s.lastingFor(a, b, can, short, ttl) {
			polls = append(polls, func() { endsInTime(s, a, l) })
		}
	}
	s.atOnce(polls...)
}

// endsInTime has others try to take a key from shortly before the end of its lease on.
func endsInTime(s *scene, c *client, l longLease) {
	const before = 12300 * time.Microsecond // attempts are a millisecond apart in a bubble
	end := l.start.Add(l.ttl)
	s.sleep(time.Until(end.Add(-before)))
	for time.Now().Before(end) {
		next := s.takeFenced(c, l.key, "next")
		if now := time.Now(); next.Acquired && now.Before(end) {
			s.fail("%s.TryAcquire(%s, %s) was acquired at most %v after %s had given the key to %s for %v, %v too early or more%s",
				c.name, brief(l.key), brief(next.token), now.Sub(l.start), l.by, brief(l.token), l.ttl, end.Sub(now), hint(end.Sub(now)))
		}
	}
}

// shortTTLs asks for a millisecond: in an attempt, and in waits that are served one after the other.
func shortTTLs(s *scene, a, b *client, can abilities) {
	g := s.grant(a, s.key(), s.token("holder"), time.Millisecond)
	freeSoon(s, b, g.key, "it was given away for 1ms")
	if !can.wait {
		return
	}
	g = s.grant(a, g.key, s.token("holder"), long)
	waiting := make([]*waiter, 3)
	for i := range waiting {
		waiting[i] = s.wait(b, g.key, s.token("short"), time.Millisecond)
	}
	s.release(a, g, true)
	for _, w := range waiting {
		s.served(w, "the holder released the key, for which three waited that wanted it for 1ms each")
	}
	freeSoon(s, a, g.key, "the last of three waiters was given it for 1ms")
}

// expiresForAll makes calls until a lease ends, all of which must find it. It also gives two keys
// away for the same time, lets another take the one as soon as that is possible, and then has a
// call made for the other, which has to be over as well.
func expiresForAll(s *scene, a, b *client) {
	can := s.abilities(a)
	calls := []string{"Renew", "Release"}
	if can.batch {
		calls = append(calls, "RenewBatch")
	}
	if can.inspect {
		calls = append(calls, "Inspect")
	}
	early := []time.Duration{4500 * time.Microsecond, 2 * time.Millisecond}
	s.eachWay(a, b, func(s *scene, a, b *client) {
		var parts []func()
		for _, call := range calls {
			for _, d := range early {
				parts = append(parts, func() { lastsUntil(s, a, call, d) })
			}
		}
		s.atOnce(parts...)
		for _, call := range calls {
			endsForAll(s, a, b, call)
		}
	})
}

// finds makes a call, and reports whether that finds the lease of g.
func finds(s *scene, c *client, call string, g grant) bool {
	s.goOn()
	a, err := c.call(s.ctx, call, g, long)
	s.noError(err, call, g.key)
	if call == "Inspect" && a.Acquired && a.Remaining < 0 {
		s.fail("Inspect(%s): %v remain, which stands for ever; want between 0 and %v", brief(g.key), a.Remaining, s.h.ttl())
	}
	return a.Acquired
}

// lastsUntil makes a call so early before the end of a lease, and again if the grant and the call
// were too slow: whether the store was asked before the end is known only if it has answered by
// then, and whether it was asked so late only if the time is counted from when it had granted.
func lastsUntil(s *scene, c *client, call string, early time.Duration) {
	ttl := s.h.ttl()
	for range 8 {
		g := s.grant(c, s.key(), s.token("asked"), ttl)
		end, at := g.start.Add(ttl), time.Now().Add(ttl-early)
		if !at.Before(end) {
			continue
		}
		s.sleep(time.Until(at))
		lasts := finds(s, c, call, g)
		left := time.Until(end)
		if left > 0 && lasts {
			return
		}
		if left > 0 {
			s.fail("%s.%s(%s) said that %s does not hold the key, %v or more before the end of its lease of %v%s; want every call to find it until then",
				c.name, call, brief(g.key), brief(g.token), left, ttl, hint(left))
		}
	}
}

// endsForAll gives the key that the call asks for away before the one that is waited for. In a bubble,
// both are given away at the same time, and the call is made at the same time as another takes the key.
func endsForAll(s *scene, a, b *client, call string) {
	ttl := s.h.ttl()
	lasts := false
	var asked, taken, next grant
	giveAsked := func() { asked = s.grant(a, s.key(), s.token("asked"), ttl) }
	giveTaken := func() { taken = s.grant(a, s.key(), s.token("taken"), ttl) }
	if s.h.Bubble {
		s.atOnce(giveAsked, giveTaken)
		s.sleep(time.Until(taken.start.Add(ttl)))
		synctest.Wait() // a store may have a timer for each
		s.atOnce(
			func() { next = s.takeFenced(a, taken.key, "next") },
			func() { lasts = finds(s, a, call, asked) },
		)
	} else {
		giveAsked()
		time.Sleep(2 * time.Millisecond) // more than what stores round
		giveTaken()
		s.sleep(time.Until(taken.start.Add(ttl)))
		next = s.takeSoon(a, taken.key)
		lasts = finds(s, b, call, asked)
	}
	if next.Acquired && lasts && (call != "Inspect" || s.h.Grace == 0) { // what is not swept yet may still be shown
		s.fail("%s(%s) says that %s holds the key, though another could take a key that was granted for the same %v, no earlier; want the lease to be over for every call",
			call, brief(asked.key), brief(asked.token), ttl)
	}
}

func sinceIsConservative(s *scene, a, c *client) {
	b := s.client()
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), ttl)
	s.notFreedBefore(b, g, ttl)
	for _, waits := range []time.Duration{ttl / 3, ttl / 3, 2 * ttl} {
		g := s.grant(a, s.key(), s.token("holder"), long)
		w := s.wait(c, g.key, s.token("waiter"), ttl)
		s.sleep(waits)
		released := time.Now()
		s.release(a, g, true)
		next := s.served(w, "the holder released the key")
		tellsTheGrant(s, next, released, ttl)
		s.notFreedBefore(b, next, ttl)
	}
}

// tellsTheGrant: after a long wait, Since is not when the wait began. It may be before the grant
// by what is unknown. No change of the wall clock moves it; in a bubble there is no other clock.
func tellsTheGrant(s *scene, g grant, released time.Time, ttl time.Duration) {
	since := g.Since
	if since.IsZero() {
		since = g.start
	}
	wall := func(t time.Time) bool { return t == t.Round(0) }
	switch before := released.Sub(since); {
	case wall(since) && !wall(released):
		s.fail("Since is %v, which has no monotonic reading; want an instant from time.Now", since)
	case before < ttl/2:
	case s.attempt < tries-1 && !s.h.Bubble:
		s.stop(errInconclusive)
	default:
		s.fail("Since of a grant is %v before its former holder released the key, with a TTL of %v; want the time of the grant", before, ttl)
	}
}
