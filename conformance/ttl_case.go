package conformance

import (
	"sync"
	"time"
)

// longTTLs are too long for 32 bits, of microseconds or of milliseconds, signed or not:
// what is left of them there is negative, or a millisecond at most. The last is the
// longest that a store has to keep.
var longTTLs = []time.Duration{
	1<<31*time.Microsecond + 352*time.Microsecond,
	1<<32*time.Microsecond + 704*time.Microsecond,
	1 << 31 * time.Millisecond,
	(1<<32 + 1) * time.Millisecond,
	365 * 24 * time.Hour,
}

func anyTTL(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	s.atOnce(
		func() { s.longTTLs(a, b, can) },
		func() { s.oddTTLs(a, b, can) },
		func() { s.shortTTLs(a, b) },
		func() {
			if can.wait {
				s.shortWaits(a, b)
			}
		},
	)
	if s.h.Bubble {
		s.lastsForDays(a, b, can)
	}
	return s.result()
}

// lastsForDays looks at leases of days shortly before they end, where that takes no time.
func (s *scene) lastsForDays(a, b *client, can abilities) {
	const ttl = 73 * time.Hour
	leases := s.lastingFor(a, b, can, 2*s.h.ttl(), ttl)
	s.sleep(leases[0].start.Add(ttl - time.Second).Sub(s.now()))
	for _, l := range leases {
		s.lasts(b, l)
		s.release(a, l.grant, true)
	}
}

// atOnce calls all functions at the same time, or, where the store's clock is moved by
// hand, one after the other.
func (s *scene) atOnce(fs ...func()) {
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(f)
		if s.h.Advance != nil {
			wg.Wait()
		}
	}
	wg.Wait()
}

// Abilities are the optional methods that a Locker has.
type abilities struct{ wait, batch, inspect bool }

func (s *scene) abilities(c *client) abilities {
	if s.over() {
		return abilities{}
	}
	l := c.inner.Locker
	return abilities{s.offers(l, acquire), s.offers(l, renewBatch), s.offers(l, inspect)}
}

// A longLease was given a TTL by one call or another.
type longLease struct {
	grant
	by  string
	ttl time.Duration
}

// longTTLs asks for a long lease in every way, and then looks at all of them.
func (s *scene) longTTLs(a, b *client, can abilities) {
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	var leases []longLease
	for _, ttl := range longTTLs {
		leases = append(leases, s.lastingFor(a, b, can, short, ttl)...)
	}
	s.lapse(short)
	s.stillLast(a, b, leases, can)
}

// stillLast looks at all of leases, and ends them.
func (s *scene) stillLast(a, b *client, leases []longLease, can abilities) {
	for _, l := range leases {
		s.lasts(b, l)
		if can.inspect {
			s.sees(b, l.grant, l.ttl)
		}
		s.release(a, l.grant, true)
		s.free(b, l.key)
	}
}

// lastingFor has each call make a lease, or extend a short one.
func (s *scene) lastingFor(a, b *client, can abilities, short, ttl time.Duration) []longLease {
	leases := []longLease{{s.grant(a, s.key(), s.token("holder"), ttl), "TryAcquire", ttl}}
	extended := func(by string, extend func(grant)) {
		g := s.grant(a, s.key(), s.token("holder"), short)
		g.start = s.now()
		extend(g)
		leases = append(leases, longLease{g, by, ttl})
	}
	extended("TryAcquire, by the holder,", func(g grant) { s.again(b, g, ttl) })
	extended("Renew", func(g grant) { s.renew(b, g, ttl, true) })
	if can.batch {
		extended("RenewBatch", func(g grant) { s.renewAll(b, []wish{g.wish(ttl, true)}) })
	}
	if can.wait {
		leases = append(leases, s.handedOver(a, b, short, ttl))
	}
	return leases
}

// handedOver has a key handed to a waiter, by a holder that has asked for less.
func (s *scene) handedOver(a, b *client, former, ttl time.Duration) longLease {
	g := s.grant(a, s.key(), s.token("holder"), former)
	w := s.wait(b, g.key, s.token("waiter"), ttl)
	start := s.now()
	s.release(a, g, true)
	next := s.served(w, "the holder released the key")
	next.start = start
	return longLease{next, "Acquire", ttl}
}

// lasts checks that a long lease is still there.
func (s *scene) lasts(c *client, l longLease) {
	if s.over() {
		return
	}
	token := s.token("stranger")
	s.uses(l.key, token)
	a, err := c.TryAcquire(s.ctx, l.key, token, s.h.ttl())
	s.noError(err, "TryAcquire", l.key)
	if a.Acquired {
		s.fail("%s.TryAcquire(%s, %s) was acquired %v after %s had given the key to %s for %v",
			c.name, brief(l.key), brief(token), s.now().Sub(l.start), l.by, brief(l.token), l.ttl)
	}
	s.checkRefusal(a, l.grant, l.ttl)
}

// oddTTLs asks, in every way, for TTLs that are multiples of no unit of time, nor of a tick
// of a clock, but of a millisecond, and looks when they end. They are just below a multiple,
// which is what is lost if they are cut, and just above one, as they may be rounded.
func (s *scene) oddTTLs(a, b *client, can abilities) {
	const unit = 100 * time.Millisecond
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	var polls []func()
	for _, odd := range []time.Duration{2*unit - time.Millisecond, 2*unit + 4*time.Millisecond} {
		for _, l := range s.lastingFor(a, b, can, short, short.Truncate(unit)+odd) {
			polls = append(polls, func() { s.endsInTime(a, l) })
		}
	}
	s.atOnce(polls...)
}

// endsInTime has others try to take a key from shortly before the end of its lease on.
func (s *scene) endsInTime(c *client, l longLease) {
	const before = 12 * time.Millisecond
	end := l.start.Add(l.ttl)
	s.sleep(end.Add(-before).Sub(s.now()))
	for !s.over() && s.now().Before(end) {
		next := s.takeFenced(c, l.key, "next")
		if now := s.now(); next.Acquired && now.Before(end) {
			s.fail("%s.TryAcquire(%s, %s) was acquired at most %v after %s had given the key to %s for %v",
				c.name, brief(l.key), brief(next.token), now.Sub(l.start), l.by, brief(l.token), l.ttl)
		}
	}
}

// shortTTLs asks for a millisecond in every way.
func (s *scene) shortTTLs(a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), time.Millisecond)
	s.freeSoon(b, g.key, "it was given away for 1ms")

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
func (s *scene) shortWaits(a, b *client) {
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
	s.freeSoon(a, g.key, "the last of three waiters has released it")
}

func (s *scene) freeSoon(c *client, key, since string) {
	g := s.takeSoon(c, key)
	if !g.Acquired {
		s.fail("%s.TryAcquire(%s) has been refused for %v since %s; want it to be acquired", c.name, brief(key), s.h.patience(), since)
	}
	s.release(c, g, true)
}
