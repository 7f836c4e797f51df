package conformance

import (
	"context"
	"sync"
	"time"
)

// What one call of a store checks and what another changes at the same time show
// only if they cross. Where a store takes several steps for one operation, it is
// between them that a lease ends, or another client comes.

// atMoments calls f with times that a call may take on its way to a store that is
// near, or far, at once: each f has keys of its own.
func (s *scene) atMoments(f func(d time.Duration)) {
	var wg sync.WaitGroup
	for d := 25 * time.Microsecond; d < s.h.gap(); d += d / 2 {
		wg.Go(func() { f(d) })
	}
	wg.Wait()
}

// eachWay calls f with both orders of two clients, since one may be nearer to the
// store.
func eachWay(a, b *client, f func(a, b *client)) {
	f(a, b)
	f(b, a)
}

// giveUp makes an attempt that is cancelled after d, so that its outcome may be
// unknown.
func (s *scene) giveUp(c *client, key string, ttl, d time.Duration) grant {
	g := grant{key: key, token: s.token("given-up")}
	s.uses(g.key, g.token)
	ctx, cancel := context.WithTimeout(s.ctx, d)
	defer cancel()
	g.Attempt, _ = c.TryAcquire(ctx, g.key, g.token, ttl) // whatever the outcome
	return g
}

// givenUpExpires: an attempt that was given up on its way may have worked, but what
// it has acquired expires like any other lease.
func (s *scene) givenUpExpires(a, b *client) {
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

// givenUpOwesNoMore: the release that is owed for an attempt that was given up ends
// what that has acquired, and nothing else.
func (s *scene) givenUpOwesNoMore(a, b *client) {
	s.atMoments(func(d time.Duration) {
		lost := s.giveUp(b, s.key(), long, d)
		next := s.takeFenced(b, lost.key, "next")
		_, err := b.Release(s.ctx, lost.key, lost.token)
		s.noError(err, "Release", lost.key)
		if next.Acquired {
			s.certain(next.key, next.start.Add(long), true)
			s.held(a, next)
		}
	})
}

// givenUpIsNoLoss: a renewal that was given up on its way may have worked; in any case
// the next one does.
func (s *scene) givenUpIsNoLoss(c *client) {
	s.atMoments(func(d time.Duration) {
		g := s.grant(c, s.key(), s.token("holder"), long)
		s.renew(c, g, long, true)
		ctx, cancel := context.WithTimeout(s.ctx, d)
		defer cancel()
		_, _ = c.Renew(ctx, g.key, g.token, long) // whatever the outcome
		s.renew(c, g, long, true)
		s.release(c, g, true)
	})
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
	for called := false; !n.Acquired && !s.over() && !(called && kept); {
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

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// releaseAtExpiry: a release that is on its way when the lease ends does not end
// that of the next holder.
func (s *scene) releaseAtExpiry(next, holder *client) {
	s.whereTimePasses(func(early time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), s.h.ttl())
		_, n := s.overtake(next, g, early, func() (bool, error) {
			_, err := holder.Release(s.ctx, g.key, g.token)
			return false, err
		})
		s.held(next, n)
	})
}

// renewAtExpiry: of a renewal that is on its way when the lease ends, and an attempt
// to take the key, one succeeds.
func (s *scene) renewAtExpiry(next, holder *client) {
	s.whereTimePasses(func(early time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), s.h.ttl())
		kept, n := s.overtake(next, g, early, func() (bool, error) {
			return holder.Renew(s.ctx, g.key, g.token, long)
		})
		if kept && n.Acquired {
			s.fail("%s.Renew(%s, %s, %v) reported true at the end of a lease, and %s.TryAcquire(%s, %s) was acquired; want one of the two",
				holder.name, brief(g.key), brief(g.token), long, next.name, brief(n.key), brief(n.token))
		}
	})
}

// whereTimePasses is atMoments for what needs the store's clock to run.
func (s *scene) whereTimePasses(f func(time.Duration)) {
	if s.h.Advance == nil {
		s.atMoments(f)
	}
}

// renewAtRelease: a renewal that is on its way when the lease is released does not
// undo that.
func (s *scene) renewAtRelease(a, holder *client) {
	s.atMoments(func(late time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), long)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := holder.Renew(s.ctx, g.key, g.token, long)
			s.noError(err, "Renew", g.key)
		})
		time.Sleep(late)
		s.release(a, g, true)
		wg.Wait()
		s.free(a, g.key)
	})
}

// fenceAtExpiry: a lease that was over before the call that made it has returned
// came before that of the next holder, and so does its fence.
func (s *scene) fenceAtExpiry(next, slow *client) {
	var wg sync.WaitGroup
	for ttl := time.Millisecond; ttl <= 8*time.Millisecond; ttl += time.Millisecond {
		wg.Go(func() {
			first := grant{key: s.key(), token: s.token("slow")}
			s.uses(first.key, first.token)
			done := make(chan error, 1)
			go func() {
				var err error
				first.Attempt, err = slow.TryAcquire(s.ctx, first.key, first.token, ttl)
				done <- err
			}()
			time.Sleep(s.h.gap() / 2)
			second := s.takeSoon(next, first.key)
			s.noError(<-done, "TryAcquire", first.key)
			if first.Acquired && second.Acquired {
				s.above(first, second)
			}
		})
	}
	wg.Wait()
}

// takeSoon takes a key that becomes free soon.
func (s *scene) takeSoon(c *client, key string) (g grant) {
	for end := s.now().Add(s.h.patience()); !g.Acquired && !s.over() && s.now().Before(end); s.sleep(time.Millisecond) {
		g = s.takeFenced(c, key, "next")
	}
	return g
}

// servedWhileComing: a release that a waiter meets on its way to the queue serves
// it.
func (s *scene) servedWhileComing(a, b *client) {
	s.atMoments(func(late time.Duration) {
		g := s.grant(a, s.key(), s.token("holder"), long)
		w := s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long)
		time.Sleep(late)
		s.release(a, g, true)
		s.served(w, "the holder released the key, while the waiter was coming")
	})
}

// cancelFirstOfTwo has the first of two waits cancelled a little before and a little
// after it is served. Either may win; the second is served in any case.
func (s *scene) cancelFirstOfTwo(a, b *client) {
	s.atMoments(func(late time.Duration) {
		s.cancelFirst(a, b, func(cancel, release func()) { cancel(); time.Sleep(late); release() })
	})
	s.atMoments(func(late time.Duration) {
		s.cancelFirst(a, b, func(cancel, release func()) { release(); time.Sleep(late); cancel() })
	})
}

func (s *scene) cancelFirst(a, b *client, race func(cancel, release func())) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	first := s.wait(b, g.key, s.token("first"), long)
	second := s.wait(a, g.key, s.token("second"), long)
	race(first.cancel, func() { go s.release(a, g, true) })
	if s.over() || !s.await(first.done) {
		s.ended(first)
		return
	}
	_, err := b.Release(s.ctx, first.key, first.token)
	s.noError(err, "Release", first.key)
	s.served(second, "the holder released the key, and the wait of the one who came before was cancelled")
}
