package conformance

import (
	"context"
	"time"
)

// aftermath is for how long the suite looks out for what a store still does on its own,
// when a call has returned.
func (h Harness) aftermath() time.Duration {
	if h.Bubble {
		return h.patience()
	}
	return time.Second
}

// leaseOutlivesContext ends the ctx of every call that has granted a lease or made it
// longer, and has tokens hold keys that they have waited for in vain before.
func leaseOutlivesContext(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	soon := s.h.aftermath() / 2 << s.attempt
	var leases []grant
	ends := []func(context.Context) (context.Context, context.CancelFunc){
		context.WithCancel,
		func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, soon) },
	}
	for _, end := range ends {
		ctx, cancel := end(s.ctx)
		defer cancel()
		leases = append(leases, s.leasesUnder(ctx, a, b, can)...)
		if _, later := ctx.Deadline(); !later {
			cancel()
		}
	}
	if can.wait {
		leases = append(leases, s.waitedBefore(a, b)...)
	}
	s.sleep(max(s.h.aftermath(), 2*soon))
	for _, g := range leases {
		s.held(a, g)
		s.renew(b, g, long, true)
		s.release(a, g, true)
		s.free(b, g.key)
	}
	return s.result()
}

// leasesUnder has each call make a lease under ctx, or make one long that would have
// ended when the suite looks.
func (s *scene) leasesUnder(ctx context.Context, a, b *client, can abilities) []grant {
	short := max(s.h.ttl(), 2*s.h.gap()<<s.attempt)
	var leases []grant
	made := func(by *client, ttl time.Duration, call func(grant) error) {
		g := grant{key: s.key(), token: s.token("holder"), start: s.now()}
		if ttl > 0 {
			g = s.grant(a, g.key, g.token, ttl)
		}
		if s.over() {
			return
		}
		s.uses(g.key, g.token)
		if err := call(g); err != nil && !s.endedTooSoon(ctx) {
			s.noError(err, "a call by client "+by.name, g.key)
		}
		s.certain(g.key, g.start.Add(long), true)
		leases = append(leases, g)
	}
	attempt := func(g grant) error { _, err := b.TryAcquire(ctx, g.key, g.token, long); return err }
	made(b, 0, attempt)
	made(b, short, attempt)
	made(b, short, func(g grant) error { return b.renewBy(ctx, "Renew", g) })
	if can.batch {
		made(b, short, func(g grant) error { return b.renewBy(ctx, "RenewBatch", g) })
	}
	if can.wait {
		made(b, 0, func(g grant) error { _, err := b.Acquire(ctx, g.key, g.token, long); return err })
		g := s.grant(a, s.key(), s.token("former"), long)
		w := s.waitCtx(ctx, b, g.key, s.token("waiter"), long)
		s.gap()
		s.release(a, g, true)
		if s.await(w.done) && w.err != nil && s.endedTooSoon(ctx) {
			return leases
		}
		leases = append(leases, s.served(w, "the holder released the key"))
		w.cancel()
	}
	return leases
}

// endedTooSoon reports whether a ctx has ended under which calls were to be made first. The
// case has come to no conclusion then: the machine was slow.
func (s *scene) endedTooSoon(ctx context.Context) bool {
	if ctx.Err() == nil {
		return false
	}
	s.stop(errInconclusive)
	return true
}

// waitedBefore has tokens get keys that they have waited for before: that wait was ended
// by its caller, in one way or another, and the token released.
func (s *scene) waitedBefore(a, b *client) (leases []grant) {
	timeout, cancel := context.WithTimeout(s.ctx, s.h.gap())
	defer cancel()
	var holders []grant
	var waiting []*waiter
	for i := range 6 {
		ctx := s.ctx
		if i%3 == 1 {
			ctx = timeout
		}
		g := s.grant(a, s.key(), s.token("former"), long)
		holders = append(holders, g)
		waiting = append(waiting, s.waitCtx(ctx, b, g.key, s.token("waiter"), long))
	}
	s.gap()
	var again []*waiter
	for i, w := range waiting {
		if i%3 == 2 {
			s.release(b, w.grant, false)
		}
		w.cancel()
		s.ended(w)
		s.release(b, w.grant, false)
		if i < 3 {
			s.release(a, holders[i], true)
			leases = append(leases, s.grant(b, w.key, w.token, long))
		} else {
			again = append(again, s.waitCtx(s.ctx, b, w.key, w.token, long))
		}
	}
	s.gap()
	for i, w := range again {
		s.release(a, holders[i+3], true)
		leases = append(leases, s.served(w, "the holder released the key"))
	}
	return leases
}
