package conformance

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// atMoments calls f with times that a call may take on its way to a store that is
// near, or far, at once: each f has keys of its own.
func (s *scene) atMoments(f func(d time.Duration)) {
	var wg sync.WaitGroup
	for d := 25 * time.Microsecond; d < s.h.gap(); d += d / 2 {
		wg.Go(func() { f(d) })
	}
	wg.Wait()
}

// eachWay calls f with both orders of two clients, since one may be nearer to the store.
func (s *scene) eachWay(a, b *client, f func(s *scene, a, b *client)) {
	f(s, a, b)
	f(s, b, a)
}

func (s *scene) atOnce(fs ...func()) {
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(f)
	}
	wg.Wait()
}

// eachOf calls f with 0 to n-1, several at the same time.
func eachOf(n int, f func(i int)) { together(racers, n, f) }

// roundTrip is how long a call of c takes that is not its first.
func (s *scene) roundTrip(c *client) time.Duration {
	g := s.grant(c, s.key(), s.token("holder"), long)
	start := time.Now()
	s.release(c, g, true)
	return time.Since(start)
}

// giveUp makes an attempt that is cancelled after d, so that its outcome may be unknown.
func (s *scene) giveUp(c *client, key string, ttl, d time.Duration) grant {
	g := grant{key: key, token: s.token("given-up")}
	s.uses(g.key, g.token)
	ctx, cancel := context.WithTimeout(s.ctx, d)
	defer cancel()
	g.Attempt, _ = c.TryAcquire(ctx, g.key, g.token, ttl) // whatever the outcome
	return g
}

// overtake has next try to take the key of g, whose lease is about to end, until it
// gets it, or call, which is made early before the end, has kept it.
func (s *scene) overtake(next *client, g grant, early time.Duration, call func() (kept bool, err error)) (kept bool, n grant) {
	end := g.start.Add(s.h.ttl())
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(time.Until(end.Add(-early)))
		var err error
		kept, err = call()
		s.noError(err, "a call that crosses the end of a lease", g.key)
	}()
	time.Sleep(time.Until(end.Add(-time.Millisecond)))
	late := end.Add(s.h.grace() + s.h.patience())
	for called := false; !n.Acquired && !(called && kept); {
		if time.Now().After(late) {
			s.fail("%s has not become free %v after the lease of %s ended", brief(g.key), s.h.patience(), brief(g.token))
		}
		called = isClosed(done)
		n = s.takeFenced(next, g.key, "next")
		time.Sleep(s.h.grace() / 50)
	}
	<-done
	if n.Acquired {
		s.certain(g.key, n.start.Add(long), true)
	}
	return kept, n
}

// takeovers is how many takeovers a case crosses with calls of the former holder. Where a store is near, its GET and its DEL
// are a tenth of a millisecond apart, and one takeover in twenty falls between them.
const takeovers = 200

// crossTakeovers calls f again and again, with either of two clients as the holder, on several keys at the same time. A
// store that is far away is spared most of it. Calls that f makes together are to be spread over a time: none, where that of
// the machine is enough, or a few round trips.
func (s *scene) crossTakeovers(f func(next, holder *client, spread time.Duration)) {
	const together = 4
	a, b := s.clients2()
	trip := max(s.roundTrip(a), s.roundTrip(b))
	end := time.Now().Add(5 * time.Second)
	var all sync.WaitGroup
	for i := range together {
		next, holder := a, b
		if i%2 == 1 {
			next, holder = b, a
		}
		all.Go(func() {
			for n := s.h.rounds(takeovers) / together; n > 0 && time.Now().Before(end); n-- {
				f(next, holder, time.Duration(n%2)*2*trip)
			}
		})
	}
	all.Wait()
}

// takeDuring makes calls of the holder of key, spread over a time, while next tries to take
// the key with several tokens. It returns the grant to next when all calls have returned.
func (s *scene) takeDuring(next *client, key string, ttl, spread time.Duration, calls ...func()) grant {
	var all sync.WaitGroup
	for _, call := range calls {
		all.Go(func() {
			time.Sleep(rand.N(spread + 1))
			call()
		})
	}
	var taken atomic.Bool
	grants := make([]grant, 3)
	for i := range grants {
		all.Go(func() { grants[i] = s.takeUnless(&taken, next, key, ttl) })
	}
	all.Wait()
	for _, g := range grants {
		if g.Acquired {
			return g
		}
	}
	return grants[0]
}

// takeUnless tries to take key until it is taken.
func (s *scene) takeUnless(taken *atomic.Bool, c *client, key string, ttl time.Duration) grant {
	g := grant{key: key, token: s.token("next")}
	s.uses(g.key, g.token)
	var pause growing
	for end := time.Now().Add(s.h.patience()); !taken.Load(); s.sleep(pause.next()) {
		g.start = time.Now()
		var err error
		g.Attempt, err = c.TryAcquire(s.ctx, key, g.token, ttl)
		s.noError(err, "TryAcquire", key)
		if g.Acquired {
			taken.Store(true)
			s.certain(key, g.start.Add(ttl), true)
			return g
		}
		if time.Now().After(end) {
			s.fail("%s has not become free %v after its holder released it", brief(key), s.h.patience())
		}
	}
	return g
}

// A growing pause is short at first, so that calls cross, and long for a store that is never done.
type growing time.Duration

func (g *growing) next() time.Duration {
	defer func() { *g = min(*g+*g/8+1000, growing(20*time.Millisecond)) }()
	return 10*time.Microsecond + time.Duration(*g)
}

// staleRelease returns a release of g, which may be over when it is made.
func (s *scene) staleRelease(c *client, g grant) func() {
	return func() { s.noError(errOf(c.Release(s.ctx, g.key, g.token)), "Release", g.key) }
}

// staleRenewals returns renewals of g, one after the other until it is over.
func (s *scene) staleRenewals(c *client, g grant) func() {
	return func() {
		var pause growing
		for held := true; held; s.sleep(pause.next()) {
			var err error
			held, err = c.Renew(s.ctx, g.key, g.token, long)
			s.noError(err, "Renew", g.key)
		}
	}
}

// takeSoon takes a key that becomes free soon. It asks less often the longer that takes.
func (s *scene) takeSoon(c *client, key string) (g grant) {
	for start := time.Now(); time.Since(start) < s.h.patience(); s.sleep(time.Since(start) / 100) {
		if g = s.takeFenced(c, key, "next"); g.Acquired {
			break
		}
	}
	return g
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// freeAfter checks that a key can be taken by another, and gives it back.
func (s *scene) freeAfter(c *client, key, why string) {
	s.goOn()
	g := grant{key: key, token: s.token("next")}
	s.uses(g.key, g.token)
	a, err := c.TryAcquire(s.ctx, g.key, g.token, long)
	switch {
	case err != nil:
		s.noError(err, "TryAcquire", key)
	case !a.Acquired:
		s.fail("%s.TryAcquire(%s, %s, %v): %s, %s", c.name, brief(key), brief(g.token), long, show(a), why)
	default:
		s.release(c, g, true)
	}
}
