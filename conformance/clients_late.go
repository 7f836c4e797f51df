package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func lateDuplicate(s *scene) error {
	a, b := s.clients2()
	lateAfterRelease(s, a, b)
	lateAfterTakeover(s, a, b)
	lateAndShorter(s, a, b)
	lateTry(s, a, b)
	return s.result()
}

// lateAfterRelease: what arrives after the release revives nothing.
func lateAfterRelease(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.renew(a, g, long, true)
	s.release(a, g, true)
	s.renew(a, g, long, false)
	s.batch(a, g, long, false)
	s.release(a, g, false)
	s.free(b, g.key)

	g = s.grant(a, s.key(), s.token("holder"), long)
	s.release(b, g, true)
	s.renew(a, g, long, false)
	s.free(b, g.key)
	s.eachWay(a, b, renewAtRelease)
}

// renewAtRelease: a renewal that is on its way when the lease is released does not
// undo that.
func renewAtRelease(s *scene, a, holder *client) {
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

// lateAfterTakeover: nor does it touch whoever holds the key by then.
func lateAfterTakeover(s *scene, a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), long)
	s.release(a, g, true)
	next := s.grant(b, g.key, s.token("next"), long)
	s.refused(a, next, g.token, ttl)
	s.renew(a, g, ttl, false)
	s.batch(a, g, ttl, false)
	s.release(a, g, false)
	s.lapse(ttl)
	s.held(a, next)
	s.release(b, next, true)
}

// lateAndShorter: a late call with a TTL below what was granted since shortens nothing.
func lateAndShorter(s *scene, a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), 2*ttl)
	s.renew(a, g, long, true)
	s.renew(a, g, ttl, true)
	s.batch(a, g, ttl, true)
	s.again(a, g, ttl)
	s.lapse(2 * ttl)
	s.held(b, g)
	s.release(a, g, true)
}

// lateTry: an attempt that arrives after the release of what it acquired is granted,
// since it looks like a new one. It lasts no longer than its TTL, and a release ends it.
func lateTry(s *scene, a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), ttl)
	s.renew(a, g, long, true)
	s.release(a, g, true)
	s.grant(a, g.key, g.token, ttl)
	s.lapse(ttl)
	s.free(b, g.key)

	s.grant(a, g.key, g.token, long)
	s.release(a, g, true)
	s.free(b, g.key)
}

func lateDuplicateOverNetwork(s *scene) error {
	parts := []func(*network, faultproxy.Ending){
		lateRelease,
		lateTryShorter,
		lateTryTaken,
		lateTryFree,
		lateAcquire,
		lateClient,
	}
	for _, r := range []renewal{
		{"Renew", renewLate},
		{"RenewBatch", renewBatchLate},
	} {
		parts = append(parts, r.afterRelease, r.afterTakeover, r.shorter)
	}
	s.overClearNetworks(inBothWays(parts)...)
	return s.result()
}

// holdBack keeps a call about g back. Its caller has given up when holdBack returns.
func holdBack(n *network, g grant, e faultproxy.Ending, name string, call func(context.Context) error) *faults {
	f := n.Hold(about(g), e)
	_ = n.spoil(f, name, call) // nobody knows what became of it
	return f
}

// settle releases g after a call about it was held back. A client that asks several addresses may
// have asked some of them again, so that the call took effect.
func (n *network) settle(g grant, want bool) {
	if len(n.proxies) == 1 {
		n.release(n.direct, g, want)
		return
	}
	_, err := n.direct.Release(n.ctx, g.key, g.token)
	n.noError(err, "Release", g.key)
}

// deliver delivers what was kept back. That the store closes the connection without a
// reply is its right: the client is gone.
func deliver(n *network, f *faults) {
	if n.over() {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.h.patience())
	defer cancel()
	if err := f.Deliver(ctx); ctx.Err() != nil {
		n.fail("the store has neither answered a request that was delivered late, nor closed its connection, within %v: %w", n.h.patience(), err)
	}
}

func lateRelease(n *network, e faultproxy.Ending) {
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	f := holdBack(n, g, e, "Release", func(ctx context.Context) error {
		_, err := n.via.Release(ctx, g.key, g.token)
		return err
	})
	n.settle(g, true)
	next := n.grant(n.direct, g.key, n.token("next"), long)
	deliver(n, f)
	n.held(n.direct, next)
	n.release(n.direct, next, true)
}

// A renewal is one of the ways to renew a lease.
type renewal struct {
	name string
	call func(n *network, ctx context.Context, r dlock.Renewal) error
}

func renewLate(n *network, ctx context.Context, r dlock.Renewal) error {
	_, err := n.via.Renew(ctx, r.Key, r.Token, r.TTL)
	return err
}

func renewBatchLate(n *network, ctx context.Context, r dlock.Renewal) error {
	results, err := n.via.RenewBatch(ctx, []dlock.Renewal{r})
	if err == nil && len(results) == 1 {
		err = results[0].Err
	}
	return err
}

// hold is nil if the store does not renew so.
func (r renewal) hold(n *network, w wish, e faultproxy.Ending) *faults {
	if r.name == "RenewBatch" && !n.offers(n.via.inner.Locker, renewBatch) {
		return nil
	}
	return holdBack(n, grant{token: w.renewal.Token}, e, r.name, func(ctx context.Context) error {
		return r.call(n, ctx, w.renewal)
	})
}

// afterRelease: a renewal revives nothing.
func (r renewal) afterRelease(n *network, e faultproxy.Ending) {
	g := n.grant(n.direct, n.key(), n.token("holder"), long)
	f := r.hold(n, g.wish(long, true), e)
	if f == nil {
		return
	}
	n.release(n.direct, g, true)
	deliver(n, f)
	n.free(n.direct, g.key)
}

// afterTakeover: nor does it prolong what another holds by then.
func (r renewal) afterTakeover(n *network, e faultproxy.Ending) {
	g := n.grant(n.direct, n.key(), n.token("holder"), long)
	f := r.hold(n, g.wish(long, true), e)
	if f == nil {
		return
	}
	n.release(n.direct, g, true)
	next := n.grant(n.direct, g.key, n.token("next"), n.h.ttl())
	deliver(n, f)
	n.renew(n.direct, g, long, false)
	n.renew(n.direct, next, n.h.ttl(), true)
	n.lapse(n.h.ttl())
	n.free(n.direct, g.key)
}

// shorter: nor does it shorten what a later one has extended.
func (r renewal) shorter(n *network, e faultproxy.Ending) {
	g := n.grant(n.direct, n.key(), n.token("holder"), long)
	f := r.hold(n, g.wish(n.h.ttl(), true), e)
	if f == nil {
		return
	}
	n.renew(n.direct, g, long, true)
	deliver(n, f)
	n.lapse(n.h.ttl())
	n.held(n.direct, g)
	n.release(n.direct, g, true)
}

// holdTry keeps an attempt back.
func holdTry(n *network, g grant, e faultproxy.Ending) *faults {
	return holdBack(n, g, e, "TryAcquire", func(ctx context.Context) error {
		_, err := n.via.TryAcquire(ctx, g.key, g.token, n.h.ttl())
		return err
	})
}

// lateTryShorter: an attempt does not shorten what its token holds by then.
func lateTryShorter(n *network, e faultproxy.Ending) {
	g := n.another("holder")
	f := holdTry(n, g, e)
	g = n.grant(n.direct, g.key, g.token, long)
	deliver(n, f)
	n.lapse(n.h.ttl())
	n.held(n.direct, g)
	n.release(n.direct, g, true)
}

// lateTryTaken: nor does it take, prolong or shorten what another holds.
func lateTryTaken(n *network, e faultproxy.Ending) {
	g := n.another("late")
	f := holdTry(n, g, e)
	n.settle(g, false)
	next := n.grant(n.direct, g.key, n.token("next"), long)
	deliver(n, f)
	n.renew(n.direct, g, long, false)
	n.lapse(n.h.ttl())
	n.held(n.direct, next)
	n.release(n.direct, next, true)
	n.free(n.direct, g.key)
}

// lateTryFree: it takes a key that is free by then, since it looks like a new one, but for
// no longer than its TTL.
func lateTryFree(n *network, e faultproxy.Ending) {
	g := n.another("late")
	f := holdTry(n, g, e)
	n.settle(g, false)
	deliver(n, f)
	n.lapse(n.h.ttl())
	n.free(n.direct, g.key)
}

// lateAcquire: a wait that is delivered when it has been given up leaves nothing for
// longer than a TTL, whether it is served or not.
func lateAcquire(n *network, e faultproxy.Ending) {
	if !n.offers(n.via.inner.Locker, acquire) {
		return
	}
	holder := n.grant(n.direct, n.key(), n.token("holder"), long)
	g := holder.as(n.token("late"))
	n.uses(g.key, g.token)
	f := holdBack(n, g, e, "Acquire", func(ctx context.Context) error {
		_, err := n.via.Acquire(ctx, g.key, g.token, n.h.ttl())
		return err
	})
	n.settle(g, false)
	deliverSoon(n, f)
	n.held(n.direct, holder)
	n.release(n.direct, holder, true)
	n.lapse(n.h.ttl())
	n.free(n.direct, g.key)
}

// deliverSoon delivers a request that the store need not answer before it can.
func deliverSoon(n *network, f *faults) {
	if n.over() {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.h.gap()<<n.attempt)
	defer cancel()
	_ = f.Deliver(ctx) // the store may be waiting
}

// lateClient: a Client gives back what is acquired after it has given up, though the
// store has answered by then that its token holds nothing.
func lateClient(n *network, e faultproxy.Ending) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	key := n.key()
	f := n.Hold(faultproxy.Contains(key), e)
	err := n.spoil(f, "Client.TryAcquire", func(ctx context.Context) error {
		lease, err := c.TryAcquire(ctx, key)
		if err == nil {
			n.noError(lease.Release(), "Lease.Release", key)
		}
		return err
	})
	n.unansweredBy(err, "Client.TryAcquire")
	n.Cut()
	released := n.Watch(faultproxy.Contains(key)) // one before may have been cut off
	if !n.soon(released.Answered()) {
		n.fail("a Client has not released %s within %v after an attempt without an answer", brief(key), n.h.patience())
	}
	deliver(n, f)
	soonFree(n.scene, n.direct, key)
}
