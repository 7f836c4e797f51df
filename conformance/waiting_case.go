package conformance

import (
	"fmt"
	"time"
)

// waitingIsCounted compares what Inspect says of the queue of a key with those who wait.
func waitingIsCounted(s *scene) error {
	c := s.inspector()
	a, b := s.clients2()
	key := s.key()
	s.counts(c, key, 0, "nobody has ever used it")
	g := s.grant(a, key, s.token("holder"), long)
	s.counts(c, key, 0, "it is held, and nobody waits")
	s.refused(b, g, s.token("stranger"), long)
	s.counts(c, key, 0, "an attempt was refused, which does not wait")
	if !s.over() && s.abilities(a).wait {
		s.countsTheQueue(a, b, c, g)
		s.countsNoneOfTheDead(a, b, c)
	} else {
		s.release(a, g, true)
	}
	return s.result()
}

// countsTheQueue has five wait for what g holds, of whom one is cancelled and another
// released, and hands the key to the others.
func (s *scene) countsTheQueue(a, b, c *client, g grant) {
	var waiting []*waiter
	for i := range 5 {
		by := a
		if i%2 == 1 {
			by = b
		}
		waiting = append(waiting, s.waitCtx(s.ctx, by, g.key, s.token(fmt.Sprint("waiter", i)), long))
		s.soonCounts(c, g.key, i+1, fmt.Sprintf("%d wait", i+1))
	}
	s.renew(a, g, long, true)
	s.again(a, g, long)
	s.counts(c, g.key, 5, "5 wait, and their holder has renewed its lease, and acquired again")
	s.forget(waiting[1])
	s.counts(c, g.key, 4, "of 5 waiters one was cancelled, and its token released")
	s.release(a, waiting[2].grant, false)
	s.counts(c, g.key, 3, "of 5 waiters two have left, the second by a release alone")
	s.endWaits(b, waiting[2:3])

	staying := []*waiter{waiting[0], waiting[3], waiting[4]}
	left := len(staying)
	s.release(a, g, true)
	s.eachServed(staying, "the holder released the key", func(w *waiter) {
		left--
		s.counts(c, g.key, left, fmt.Sprintf("of 5 waiters two have left, %d were served, and the last of them holds the key", 3-left))
		s.release(b, w.grant, true)
	})
	s.counts(c, g.key, 0, "all who waited have left or were served, and the key is free")
}

// countsNoneOfTheDead has three waiters die, one of them behind who is served in the end.
// The dead may be counted for as long as nobody could tell, but not for ever.
func (s *scene) countsNoneOfTheDead(a, b, c *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	var dead []*waiter
	for range 2 {
		dead = append(dead, s.waitCtx(s.ctx, b, g.key, s.token("dead"), s.h.ttl()))
	}
	s.gap()
	alive := s.waitCtx(s.ctx, b, g.key, s.token("alive"), long)
	s.soonCounts(c, g.key, 3, "3 wait")
	for _, w := range dead {
		w.cancel()
		s.ended(w) // and nobody releases its token
	}
	s.release(a, g, true)
	s.served(alive, "the holder released the key; two came before who have died")
	s.soonCounts(c, g.key, 0, "two waiters have died, and the third holds the key")
	s.release(b, alive.grant, true)
}

// counts checks that Inspect says that n wait for key.
func (s *scene) counts(c *client, key string, n int, why string) {
	if got, ok := s.waitingFor(c, key); ok && got != n {
		s.fail("Inspect(%s): %d wait; want %d, since %s", brief(key), got, n, why)
	}
}

// soonCounts gives the store the time that waiters need to arrive, or the dead to be found
// dead.
func (s *scene) soonCounts(c *client, key string, n int, why string) {
	for end := time.Now().Add(s.h.patience()); ; s.sleep(5 * time.Millisecond) {
		got, ok := s.waitingFor(c, key)
		switch {
		case !ok || got == n:
			return
		case time.Now().After(end):
			s.fail("Inspect(%s), again and again for %v: %d wait; want %d, since %s", brief(key), s.h.patience(), got, n, why)
			return
		}
	}
}

func (s *scene) waitingFor(c *client, key string) (n int, ok bool) {
	if s.over() {
		return 0, false
	}
	h, err := c.Inspect(s.ctx, key)
	s.noError(err, "Inspect", key)
	return h.Waiting, err == nil
}
