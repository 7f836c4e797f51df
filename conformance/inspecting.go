package conformance

import (
	"fmt"
	"sync"
	"time"
)

var inspectingCases = []testCase{
	is("InspectTells", inspectTells, "An Inspector reports the holder and the remaining time, and nobody after a release or an expiry. It is right even while the key changes hands.").with(inspect),
	is("InspectChangesNothing", inspectChangesNothing, "An Inspector changes nothing: not the holder, the TTL, or a free key.").with(inspect),
	is("HeldSinceTheGrant", heldSinceTheGrant, "An Inspector and a refusal that say since when the holder has had the key mean the grant, and not the begin of its wait."),
	is("WaitingIsCounted", waitingIsCounted, "An Inspector counts the waiters in its queue: not the holder, nor those who were served, or left and were released, nor, eventually, the dead. Without a queue it reports 0.").with(inspect),
}

func inspectTells(s *scene, a, c *client) {
	ttl := s.h.ttl()
	key := s.key()
	s.seesNobody(c, key, "it was never held")
	for _, lasting := range []time.Duration{long, 2 * ttl} {
		g := s.grant(a, key, s.token("holder"), lasting)
		s.sees(c, g, lasting)
		seesLongest(s, a, c, g, lasting)
		s.release(a, g, true)
		s.seesNobody(c, key, "its holder released it")
	}
	s.grant(a, key, s.token("dead"), ttl)
	s.lapse(ttl)
	s.seesNobody(c, key, "its holder's lease had expired")
	seesWhilePassing(s, a, c)
}

func heldSinceTheGrant(s *scene, a, b *client) {
	wait := 2 * s.h.ttl()
	short, _ := s.sinceAfterWait(0)
	if long, told := s.sinceAfterWait(wait); told && short-long > wait/2 {
		if s.attempt < tries-1 && !s.h.Bubble {
			s.stop(errInconclusive)
		}
		s.fail("the holder waited %v longer, and HeldSince is %v earlier; want the time of the grant", wait, short-long)
	}
}

// sinceAfterWait has a waiter served after a while, and returns how much later than that the grant was by the store's clock, if
// the store says so.
func (s *scene) sinceAfterWait(while time.Duration) (late time.Duration, told bool) {
	a, b := s.clients2()
	if !s.abilities(b).wait {
		s.skip("there is no queue")
	}
	first := s.grant(a, s.key(), s.token("holder"), long)
	w := s.wait(b, first.key, s.token("waiter"), long)
	time.Sleep(while)
	s.release(a, first, true)
	g := s.served(w, "the holder released the key")
	granted := time.Now()
	since := s.refused(a, g, s.token("stranger"), s.h.ttl()).HeldSince
	s.release(b, g, true)
	return since.Sub(granted), !since.IsZero()
}

// seesLongest: the time that remains is that of the longest TTL, not of the latest.
func seesLongest(s *scene, a, c *client, g grant, ttl time.Duration) {
	s.renew(a, g, time.Millisecond, true)
	s.sees(c, g, ttl)
	s.again(a, g, time.Millisecond)
	s.sees(c, g, ttl)
	s.refused(a, g, s.token("stranger"), 3*long)
	s.sees(c, g, ttl)
	g.start = time.Now()
	s.renew(a, g, 2*long, true)
	s.sees(c, g, 2*long)
	s.renew(a, g, long, true)
	s.sees(c, g, 2*long)
}

// seesWhilePassing inspects keys all the time while they pass from one to the other, each with a TTL of its own.
func seesWhilePassing(s *scene, a, c *client) {
	waits, spread := s.abilities(c).wait, 4*s.roundTrip(c)
	for range s.h.rounds(20) {
		former := s.grant(a, s.key(), s.token("holder"), 2*long)
		release := func() { s.release(a, former, true) }
		asked := time.Now()
		var w *waiter
		if waits {
			w = s.wait(c, former.key, s.token("waiter"), long)
		}
		passed := make(chan struct{})
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() { seesEither(s, c, former, asked, passed, waits) })
		}
		var last grant
		if waits {
			release()
			last = s.served(w, "the holder released the key")
		} else {
			last = s.takeDuring(a, former.key, long, spread, release)
		}
		close(passed)
		readers.Wait()
		s.release(c, last, true)
	}
}

// seesEither inspects the key of former until another is shown, which asked for it after some time: token and time belong
// together, and one that waits is not shown before it holds the key.
func seesEither(s *scene, c *client, former grant, asked time.Time, passed <-chan struct{}, waits bool) {
	for ; ; s.sleep(100 * time.Microsecond) { // in a bubble, nothing passes otherwise
		over := isClosed(passed)
		h, err := c.Inspect(s.ctx, former.key)
		s.noError(err, "Inspect", former.key)
		switch h.Token {
		case "": // nobody, or unknown
			if over {
				return
			}
		case former.token:
			s.remains("Inspect", h.Remaining, former, 2*long)
			if over {
				s.fail("%s = %s, though its holder had released it before", c.text("Inspect", former.key), show(h))
			}
		default:
			next := grant{key: former.key, token: h.Token, start: asked}
			s.remains("Inspect", h.Remaining, next, long)
			if waits {
				s.renew(c, next, time.Millisecond, true)
			}
			return
		}
	}
}

func inspectChangesNothing(s *scene, a, c *client) {
	ttl := s.h.ttl()
	key := s.key()
	inspects(s, c, key)
	s.free(a, key)
	g := s.grant(a, key, s.token("holder"), long)
	inspects(s, c, key)
	s.lapse(ttl)
	s.held(a, g)
	s.release(a, g, true)
	s.grant(a, key, s.token("dead"), 2*ttl)
	s.sleep(ttl)
	inspects(s, c, key)
	s.sleep(ttl/2 + s.h.grace())
	inspects(s, c, key)
	s.lapse(ttl / 2)
	s.free(a, key)
}

func inspects(s *scene, c *client, key string) {
	s.noError(errOf(c.Inspect(s.ctx, key)), "Inspect", key)
}

func waitingIsCounted(s *scene, a, c *client) {
	b := s.client()
	key := s.key()
	seesWaiting(s, c, key, 0, "nobody has ever used it")
	g := s.grant(a, key, s.token("holder"), long)
	seesWaiting(s, c, key, 0, "it is held, and nobody waits")
	s.refused(b, g, s.token("stranger"), long)
	seesWaiting(s, c, key, 0, "an attempt was refused, which does not wait")
	if s.abilities(a).wait {
		countsTheQueue(s, a, b, c, g)
		countsNoneOfTheDead(s, a, b, c)
	}
}

// countsTheQueue has five wait for what g holds, of whom one is cancelled and another
// released, and hands the key to the others.
func countsTheQueue(s *scene, a, b, c *client, g grant) {
	var waiting []*waiter
	for i := range 5 {
		by := []*client{a, b}[i%2]
		waiting = append(waiting, s.waitCtx(s.ctx, by, g.key, s.token(fmt.Sprint("waiter", i)), long))
		soonCounts(s, c, g.key, i+1, fmt.Sprintf("%d wait", i+1))
	}
	s.renew(a, g, long, true)
	s.again(a, g, long)
	seesWaiting(s, c, g.key, 5, "5 wait, and their holder has renewed its lease, and acquired again")
	s.forget(waiting[1])
	seesWaiting(s, c, g.key, 4, "of 5 waiters one was cancelled, and its token released")
	s.release(a, waiting[2].grant, false)
	seesWaiting(s, c, g.key, 3, "of 5 waiters two have left, the second by a release alone")
	s.endWaits(b, waiting[2:3])
	staying := []*waiter{waiting[0], waiting[3], waiting[4]}
	left := len(staying)
	s.release(a, g, true)
	s.eachServed(staying, "the holder released the key", func(w *waiter) {
		left--
		soonCounts(s, c, g.key, left, fmt.Sprintf("of 5 waiters two have left, %d were served, and the last of them holds the key", 3-left))
		s.release(b, w.grant, true)
	})
	seesWaiting(s, c, g.key, 0, "all who waited have left or were served, and the key is free")
}

// countsNoneOfTheDead has two waiters die, before a third that is served in the end. The dead may
// be counted for as long as nobody could tell, but not for ever.
func countsNoneOfTheDead(s *scene, a, b, c *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	dead := []*waiter{s.wait(b, g.key, s.token("dead"), s.h.ttl()), s.wait(b, g.key, s.token("dead"), s.h.ttl())}
	soonCounts(s, c, g.key, 2, "2 wait")
	alive := s.waitCtx(s.ctx, b, g.key, s.token("alive"), long)
	soonCounts(s, c, g.key, 3, "3 wait")
	for _, w := range dead {
		w.cancel()
		s.ended(w) // and nobody releases its token
	}
	s.release(a, g, true)
	s.served(alive, "the holder released the key; two came before who have died")
	soonCounts(s, c, g.key, 0, "two waiters have died, and the third holds the key")
	s.release(b, alive.grant, true)
}

func seesWaiting(s *scene, c *client, key string, n int, why string) {
	countsWithin(s, 0, c, key, n, why)
}

// soonCounts gives the store the time that waiters need to arrive, or the dead to be found dead.
func soonCounts(s *scene, c *client, key string, n int, why string) {
	countsWithin(s, s.h.patience(), c, key, n, why)
}

func countsWithin(s *scene, patience time.Duration, c *client, key string, n int, why string) {
	for end := time.Now().Add(patience); ; s.sleep(5 * time.Millisecond) {
		h, err := c.Inspect(s.ctx, key)
		s.noError(err, "Inspect", key)
		switch {
		case h.Waiting == n:
			return
		case !time.Now().Before(end):
			s.fail("%s, after %v: %d wait; want %d, since %s", c.text("Inspect", key), patience, h.Waiting, n, why)
		}
	}
}
