package conformance

import (
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
)

var timeCases = []testCase{
	{name: "Expiry", check: expiry,
		clause: withSource("A backend frees a key when its TTL has passed, at most the declared grace later.")},
	{name: "NotBefore", check: notBefore,
		clause: withSource("A backend never frees a key before its TTL has passed. It does not cut the TTL to seconds, and a client's clock that lags does no harm.")},
	{name: "AnyTTL", check: anyTTL, idles: true,
		clause: withSource("A backend keeps a lease for the TTL asked for, from 1 ms to a year or the declared maximum, in every call: a first attempt, one by the holder, a renewal, alone or in a batch, and a wait.")},
	{name: "ExpiresForAll", check: expiresForAll,
		clause: withSource("A backend ends a lease for all calls at once. Until its TTL has passed, each finds it. When another token could take the key, none does: it is not renewed, shown, or released as held.")},
	{name: "SinceIsConservative", check: sinceIsConservative, needs: needsClock,
		clause: withSource("A backend never frees a key before Since+ttl, even if the waiter was stopped before it read its grant. After a wait, Since is the time of the grant, not of the call.")},
}

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
	givenUpExpires(s, a, b)
	return s.result()
}

func notBefore(s *scene) error {
	a, b := s.clients2()
	for _, ttl := range []time.Duration{s.h.ttl(), unevenTTL(s.h.ttl())} {
		a, b = b, a // as the clock of either may be behind
		g := s.grant(a, s.key(), s.token("holder"), ttl)
		for _, part := range []float64{0.45, 0.6, 0.9} {
			s.sleep(g.start.Add(time.Duration(part * float64(ttl))).Sub(s.now()))
			heldSoFar(s, b, g, ttl)
		}
	}
	notBeforeAgain(s, a, b)
	return s.result()
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

// unevenTTL is a TTL that a store would cut by much if it counted in seconds.
func unevenTTL(ttl time.Duration) time.Duration {
	return ttl.Truncate(time.Second) + 1987*time.Millisecond
}

// heldSoFar checks that the key has not been freed too early, unless it is not
// too early any more.
func heldSoFar(s *scene, c *client, g grant, ttl time.Duration) {
	if s.over() {
		return
	}
	token := s.token("stranger")
	s.uses(g.key, token)
	a, err := c.TryAcquire(s.ctx, g.key, token, ttl)
	age := s.now().Sub(g.start)
	switch {
	case err != nil:
		s.fail("%s.TryAcquire(%s, %s) = %w; want it to be refused without an error", c.name, brief(g.key), brief(token), err)
	case a.Acquired && age < ttl:
		s.fail("%s.TryAcquire(%s, %s) was acquired at most %v after the call that granted the key to %s for %v, %v too early or more%s",
			c.name, brief(g.key), brief(token), age, brief(g.token), ttl, ttl-age, hint(ttl-age))
	case a.Acquired:
		s.stop(errInconclusive)
	}
}

// hint names the likely cause of a lease that ended so much too early, if that is little.
func hint(early time.Duration) string {
	if early <= 0 || early >= time.Millisecond {
		return ""
	}
	return " (is the clock cut to whole milliseconds?)"
}

// longTTLs are too long for 32 bits, of microseconds or of milliseconds, signed or not:
// they are negative there, or a millisecond at most. The longest that a store has to keep is
// added to them.
var longTTLs = []time.Duration{
	1<<31*time.Microsecond + 352*time.Microsecond,
	1<<32*time.Microsecond + 704*time.Microsecond,
	1 << 31 * time.Millisecond,
	(1<<32 + 1) * time.Millisecond,
}

func anyTTL(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	s.atOnce(
		func() { lastLong(s, a, b, can) },
		func() { oddTTLs(s, a, b, can) },
		func() { shortTTLs(s, a, b) },
		func() {
			if can.wait {
				shortWaits(s, a, b)
			}
		},
	)
	if s.h.Bubble {
		lastsForDays(s, a, b, can)
	}
	return s.result()
}

// lastsForDays looks at leases of days shortly before they end, where that takes no time.
func lastsForDays(s *scene, a, b *client, can abilities) {
	ttl := min(73*time.Hour, a.inner.LongestTTL())
	leases := s.lastingFor(a, b, can, 2*s.h.ttl(), ttl)
	s.sleep(leases[0].start.Add(ttl - time.Second).Sub(s.now()))
	for _, l := range leases {
		s.lasts(b, l)
		s.release(a, l.grant, true)
	}
}

// lastLong asks for a long lease in every way, and then looks at all of them.
func lastLong(s *scene, a, b *client, can abilities) {
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	var leases []longLease
	for _, ttl := range append(slices.Clone(longTTLs), a.inner.LongestTTL()) {
		if ttl > a.inner.LongestTTL() {
			continue
		}
		leases = append(leases, s.lastingFor(a, b, can, short, ttl)...)
	}
	s.lapse(short)
	s.stillLast(a, b, leases, can)
}

// oddTTLs asks, in every way, for TTLs that are multiples of no unit of time, nor of a tick
// of a clock, but of a millisecond, and looks when they end. They are just below a multiple,
// which is what is lost if they are cut, and just above one, as they may be rounded.
func oddTTLs(s *scene, a, b *client, can abilities) {
	const unit = 100 * time.Millisecond
	time.Sleep(700 * time.Microsecond) // in a bubble, the time is a whole millisecond otherwise
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	var polls []func()
	for _, odd := range []time.Duration{2*unit - time.Millisecond, 2*unit + 4*time.Millisecond} {
		for _, l := range s.lastingFor(a, b, can, short, short.Truncate(unit)+odd) {
			polls = append(polls, func() { endsInTime(s, a, l) })
		}
	}
	s.atOnce(polls...)
}

// endsInTime has others try to take a key from shortly before the end of its lease on.
func endsInTime(s *scene, c *client, l longLease) {
	const before = 12300 * time.Microsecond // attempts are a millisecond apart in a bubble
	end := l.start.Add(l.ttl)
	s.sleep(end.Add(-before).Sub(s.now()))
	for !s.over() && s.now().Before(end) {
		next := s.takeFenced(c, l.key, "next")
		if now := s.now(); next.Acquired && now.Before(end) {
			s.fail("%s.TryAcquire(%s, %s) was acquired at most %v after %s had given the key to %s for %v, %v too early or more%s",
				c.name, brief(l.key), brief(next.token), now.Sub(l.start), l.by, brief(l.token), l.ttl, end.Sub(now), hint(end.Sub(now)))
		}
	}
}

// shortTTLs asks for a millisecond in every way.
func shortTTLs(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), time.Millisecond)
	freeSoon(s, b, g.key, "it was given away for 1ms")

	g = s.grant(a, s.key(), s.token("holder"), long)
	s.again(b, g, time.Millisecond)
	s.renew(b, g, time.Millisecond, true)
	s.batch(b, g, time.Millisecond, true)
	s.refused(b, g, s.token("stranger"), time.Millisecond)
	s.lapse(s.h.ttl())
	s.held(b, g)
	s.release(a, g, true)
}

// shortWaits has a key handed to waiters that want it for a millisecond.
func shortWaits(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	var waiting []*waiter
	for range 2 {
		waiting = append(waiting, s.wait(b, g.key, s.token("short"), time.Millisecond))
	}
	last := s.wait(b, g.key, s.token("last"), long)
	s.release(a, g, true)
	s.eachServed(append(waiting, last), "the holder released the key, for which two waited that wanted it for 1ms each, and one that wanted it for long",
		func(w *waiter) {
			if w == last {
				s.release(b, w.grant, true)
			}
		})
	freeSoon(s, a, g.key, "the last of three waiters has released it")
}

func freeSoon(s *scene, c *client, key, since string) {
	g := s.takeSoon(c, key)
	if !g.Acquired {
		s.fail("%s.TryAcquire(%s) has been refused for %v since %s; want it to be acquired", c.name, brief(key), s.h.patience(), since)
	}
	s.release(c, g, true)
}

// givenUpExpires: an attempt that was given up on its way may have worked, but what
// it has acquired expires like any other lease.
func givenUpExpires(s *scene, a, b *client) {
	ttl := s.h.ttl()
	s.atMoments(func(d time.Duration) {
		g := s.giveUp(b, s.key(), ttl, d)
		for range tries {
			s.lapse(ttl)
			if s.over() || s.takeFenced(a, g.key, "next").Acquired {
				return
			}
		}
		s.fail("TryAcquire(%s, %s, %v) was given up after %v, and the key has not become free in %d times its TTL",
			brief(g.key), brief(g.token), ttl, d, tries)
	})
}

// expiresForAll makes calls until a lease ends, all of which must find it. It also gives two keys
// away for the same time, lets another take the one as soon as that is possible, and then has a
// call made for the other, which has to be over as well.
func expiresForAll(s *scene) error {
	a, b := s.clients2()
	lastsForAll(s, a, b)
	s.eachWay(a, b, endsEarlier)
	if s.h.Bubble {
		s.eachWay(a, b, endsTogether)
	}
	return s.result()
}

// An endCall is a call that tells whether a lease still lasts.
type endCall struct {
	name  string
	lasts func(*scene, *client, grant) (bool, error)
}

var endCalls = []endCall{
	renewEnds,
	{"Release", func(s *scene, c *client, g grant) (bool, error) { return c.Release(s.ctx, g.key, g.token) }},
	renewBatchEnds,
	{"Inspect", func(s *scene, c *client, g grant) (bool, error) {
		h, err := c.Inspect(s.ctx, g.key)
		if h.Held && h.Remaining < 0 {
			s.fail("Inspect(%s): %v remain, which stands for ever; want between 0 and %v", brief(g.key), h.Remaining, s.h.ttl())
		}
		return h.Held, supportedError(err)
	}},
}

var (
	renewEnds = endCall{"Renew", func(s *scene, c *client, g grant) (bool, error) {
		return c.Renew(s.ctx, g.key, g.token, long)
	}}
	renewBatchEnds = endCall{"RenewBatch", func(s *scene, c *client, g grant) (bool, error) {
		results, err := c.RenewBatch(s.ctx, []dlock.Renewal{{Key: g.key, Token: g.token, TTL: long}})
		return supported(err) && len(results) == 1 && results[0].Held, supportedError(err)
	}}
)

// supportedError is err, unless that says that the method is not there.
func supportedError(err error) error {
	if !supported(err) {
		return nil
	}
	return err
}

// lastsForAll makes each call shortly before a lease ends. What is answered before that must
// find the lease.
func lastsForAll(s *scene, a, b *client) {
	can := s.abilities(a)
	offered := map[string]bool{"Renew": true, "Release": true, "RenewBatch": can.batch, "Inspect": can.inspect}
	times := []time.Duration{4500 * time.Microsecond, 2 * time.Millisecond}
	if s.h.Advance != nil {
		times = times[:1] // it is slow
	}
	var polls []func()
	for _, early := range times {
		for _, c := range []*client{a, b} {
			for _, call := range endCalls {
				if offered[call.name] {
					polls = append(polls, func() { lastsUntil(s, c, call, early) })
				}
			}
		}
	}
	s.atOnce(polls...)
}

// lastsUntil makes a call so early before the end of a lease, and again if the grant and the call
// were too slow: whether the store was asked before the end is known only if it has answered by
// then, and whether it was asked so late only if the time is counted from when it had granted.
func lastsUntil(s *scene, c *client, call endCall, early time.Duration) {
	ttl := s.h.ttl()
	for range 8 {
		g := s.grant(c, s.key(), s.token("asked"), ttl)
		end, at := g.start.Add(ttl), s.now().Add(ttl-early)
		if !at.Before(end) {
			continue
		}
		s.sleep(at.Sub(s.now()))
		lasts := lastsBy(s, c, g, call)
		left := end.Sub(s.now())
		if s.over() || left > 0 && lasts {
			return
		}
		if left > 0 {
			s.fail("%s.%s(%s) said that %s does not hold the key, %v or more before the end of its lease of %v%s; want every call to find it until then",
				c.name, call.name, brief(g.key), brief(g.token), left, ttl, hint(left))
		}
	}
}

// endsEarlier gives the keys that calls ask for away before those that are waited for.
func endsEarlier(s *scene, a, b *client) {
	ttl := s.h.ttl()
	var asked, taken []grant
	for range endCalls {
		asked = append(asked, s.grant(a, s.key(), s.token("asked"), ttl))
	}
	if !s.h.Bubble {
		time.Sleep(2 * time.Millisecond) // more than what stores round
	}
	for range endCalls {
		taken = append(taken, s.grant(a, s.key(), s.token("taken"), ttl))
	}
	s.sleep(taken[0].start.Add(ttl).Sub(s.now()))
	for i, call := range endCalls {
		if s.takeSoon(a, taken[i].key).Acquired {
			hasEnded(s, b, asked[i], call)
		}
	}
}

// endsTogether gives both away at the same time, and makes both calls at the same time,
// which can be done where time does not pass by itself.
func endsTogether(s *scene, c, _ *client) {
	ttl := s.h.ttl()
	for _, call := range endCalls {
		var asked, taken, next grant
		together(
			func() { asked = s.grant(c, s.key(), s.token("asked"), ttl) },
			func() { taken = s.grant(c, s.key(), s.token("taken"), ttl) },
		)
		s.sleep(taken.start.Add(ttl).Sub(s.now()))
		synctest.Wait() // a store may have a timer for each
		lasts := false
		together(
			func() { next = s.takeFenced(c, taken.key, "next") },
			func() { lasts = lastsBy(s, c, asked, call) },
		)
		if next.Acquired && lasts {
			outlives(s, c, asked, call)
		}
	}
}

func together(f, g func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	wg.Go(g)
	wg.Wait()
}

// lastsBy makes a call that tells whether the lease of g still lasts.
func lastsBy(s *scene, c *client, g grant, call endCall) bool {
	if s.over() {
		return false
	}
	lasts, err := call.lasts(s, c, g)
	s.noError(err, call.name, g.key)
	return lasts
}

// hasEnded checks that a call finds the lease of g ended.
func hasEnded(s *scene, c *client, g grant, call endCall) {
	if lastsBy(s, c, g, call) {
		outlives(s, c, g, call)
	}
}

func outlives(s *scene, c *client, g grant, call endCall) {
	if call.name == "Inspect" && s.h.Grace != 0 {
		return // what is not swept yet may still be shown
	}
	s.fail("%s.%s(%s) says that %s holds the key, though another could take a key that was granted for the same %v, no earlier; want the lease to be over for every call",
		c.name, call.name, brief(g.key), brief(g.token), s.h.ttl())
}

func sinceIsConservative(s *scene) error {
	a, b := s.clients2()
	c := s.acquirer()
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
		tellsMonotonicTime(s, next)
		tellsTheGrant(s, next, released, ttl)
		s.notFreedBefore(b, next, ttl)
	}
	return s.result()
}

// tellsTheGrant: after a long wait, Since is not when the wait began. It may be before the grant
// by what is unknown.
func tellsTheGrant(s *scene, g grant, released time.Time, ttl time.Duration) {
	since := g.Since
	if since.IsZero() {
		since = g.start
	}
	switch before := released.Sub(since); {
	case s.over() || before < ttl/2:
	case s.attempt < tries-1 && !s.h.Bubble:
		s.stop(errInconclusive)
	default:
		s.fail("Since of a grant is %v before its former holder released the key, with a TTL of %v; want the time of the grant", before, ttl)
	}
}

// tellsMonotonicTime: Since is an instant that no change of the wall clock moves. In a
// bubble there is no such clock.
func tellsMonotonicTime(s *scene, g grant) {
	if now := time.Now(); s.over() || g.Since.IsZero() || now == now.Round(0) {
		return
	}
	if g.Since == g.Since.Round(0) {
		s.fail("Since is %v, which has no monotonic reading; want an instant from time.Now", g.Since)
	}
}
