package conformance

import (
	"context"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func lateDuplicateOverNetwork(s *scene) error {
	parts := []func(*network, faultproxy.Ending){
		(*network).lateRelease,
		(*network).lateTryShorter,
		(*network).lateTryTaken,
		(*network).lateTryFree,
		(*network).lateAcquire,
		(*network).lateClient,
	}
	for _, r := range []renewal{
		{"Renew", (*network).renewLate},
		{"RenewBatch", (*network).renewBatchLate},
	} {
		parts = append(parts, r.afterRelease, r.afterTakeover, r.shorter)
	}
	s.overClearNetworks(inBothWays(parts)...)
	return s.result()
}

// hold keeps a call about g back. Its caller has given up when hold returns.
func (n *network) hold(g grant, e faultproxy.Ending, name string, call func(context.Context) error) *faultproxy.Fault {
	f := n.Hold(about(g), e)
	_ = n.spoil(f, name, call) // nobody knows what became of it
	return f
}

// deliver delivers what was kept back. That the store closes the connection without a
// reply is its right: the client is gone.
func (n *network) deliver(f *faultproxy.Fault) {
	if n.over() {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.h.patience())
	defer cancel()
	if err := f.Deliver(ctx); ctx.Err() != nil {
		n.fail("the store has neither answered a request that was delivered late, nor closed its connection, within %v: %w", n.h.patience(), err)
	}
}

func (n *network) lateRelease(e faultproxy.Ending) {
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	f := n.hold(g, e, "Release", func(ctx context.Context) error {
		_, err := n.via.Release(ctx, g.key, g.token)
		return err
	})
	n.release(n.direct, g, true)
	next := n.grant(n.direct, g.key, n.token("next"), long)
	n.deliver(f)
	n.held(n.direct, next)
	n.release(n.direct, next, true)
}

// A renewal is one of the ways to renew a lease.
type renewal struct {
	name string
	call func(n *network, ctx context.Context, r dlock.Renewal) error
}

func (n *network) renewLate(ctx context.Context, r dlock.Renewal) error {
	_, err := n.via.Renew(ctx, r.Key, r.Token, r.TTL)
	return err
}

func (n *network) renewBatchLate(ctx context.Context, r dlock.Renewal) error {
	_, err := n.via.RenewBatch(ctx, []dlock.Renewal{r})
	return err
}

// hold is nil if the store does not renew so.
func (r renewal) hold(n *network, w wish, e faultproxy.Ending) *faultproxy.Fault {
	if r.name == "RenewBatch" && !n.offers(n.via.inner.Locker, renewBatch) {
		return nil
	}
	return n.hold(grant{token: w.renewal.Token}, e, r.name, func(ctx context.Context) error {
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
	n.deliver(f)
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
	n.deliver(f)
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
	n.deliver(f)
	n.lapse(n.h.ttl())
	n.held(n.direct, g)
	n.release(n.direct, g, true)
}

// holdTry keeps an attempt back.
func (n *network) holdTry(g grant, e faultproxy.Ending) *faultproxy.Fault {
	return n.hold(g, e, "TryAcquire", func(ctx context.Context) error {
		_, err := n.via.TryAcquire(ctx, g.key, g.token, n.h.ttl())
		return err
	})
}

// lateTryShorter: an attempt does not shorten what its token holds by then.
func (n *network) lateTryShorter(e faultproxy.Ending) {
	g := n.another("holder")
	f := n.holdTry(g, e)
	g = n.grant(n.direct, g.key, g.token, long)
	n.deliver(f)
	n.lapse(n.h.ttl())
	n.held(n.direct, g)
	n.release(n.direct, g, true)
}

// lateTryTaken: nor does it take, prolong or shorten what another holds.
func (n *network) lateTryTaken(e faultproxy.Ending) {
	g := n.another("late")
	f := n.holdTry(g, e)
	n.release(n.direct, g, false)
	next := n.grant(n.direct, g.key, n.token("next"), long)
	n.deliver(f)
	n.renew(n.direct, g, long, false)
	n.lapse(n.h.ttl())
	n.held(n.direct, next)
	n.release(n.direct, next, true)
	n.free(n.direct, g.key)
}

// lateTryFree: it takes a key that is free by then, since nothing tells it from a new
// one, but for no longer than its TTL.
func (n *network) lateTryFree(e faultproxy.Ending) {
	g := n.another("late")
	f := n.holdTry(g, e)
	n.release(n.direct, g, false)
	n.deliver(f)
	n.lapse(n.h.ttl())
	n.free(n.direct, g.key)
}

// lateAcquire: a wait that is delivered when it has been given up leaves nothing for
// longer than a TTL, whether it is served or not.
func (n *network) lateAcquire(e faultproxy.Ending) {
	if !n.offers(n.via.inner.Locker, acquire) {
		return
	}
	holder := n.grant(n.direct, n.key(), n.token("holder"), long)
	g := holder.as(n.token("late"))
	n.uses(g.key, g.token)
	f := n.hold(g, e, "Acquire", func(ctx context.Context) error {
		_, err := n.via.Acquire(ctx, g.key, g.token, n.h.ttl())
		return err
	})
	n.release(n.direct, g, false)
	n.deliverSoon(f)
	n.held(n.direct, holder)
	n.release(n.direct, holder, true)
	n.lapse(n.h.ttl())
	n.free(n.direct, g.key)
}

// deliverSoon delivers a request that the store need not answer before it can.
func (n *network) deliverSoon(f *faultproxy.Fault) {
	if n.over() {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.h.gap()<<n.attempt)
	defer cancel()
	_ = f.Deliver(ctx) // the store may be waiting
}

// lateClient: a Client gives back what is acquired after it has given up, though the
// store has told it by then that its token holds nothing.
func (n *network) lateClient(e faultproxy.Ending) {
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
	n.tells(err, "Client.TryAcquire")
	n.Cut()
	released := n.Watch(faultproxy.Contains(key)) // one before may have been cut off
	if !n.soon(released.Answered()) {
		n.fail("a Client has not released %s within %v after an attempt without an answer", brief(key), n.h.patience())
	}
	n.deliver(f)
	n.soonFree(n.direct, key)
}
