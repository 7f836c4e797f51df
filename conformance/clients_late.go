package conformance

import (
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/faultproxy"
)

func lateDuplicate(s *scene) error {
	s.overLossy(lateCalls()...)
	a, b := s.clients2()
	s.eachWay(a, b, renewAtRelease)
	return s.result()
}

func lateDuplicateOverNetwork(s *scene) error {
	waits := eachKind(lateAfterRelease, "Acquire") // in this process, one that was given up does not arrive
	s.overClearNetworks(inWays(append(lateCalls(), waits...), faultproxy.Cut, faultproxy.Stall)...)
	return s.result()
}

// lateCalls are calls that arrive when their token holds more, nothing, or a key that another has.
func lateCalls() []faulty {
	return slices.Concat(
		eachKind(lateAfterMore, "TryAcquire", "TryAcquireSet", "Renew", "RenewBatch"),
		eachKind(lateAfterRelease, "TryAcquire", "TryAcquireSet", "Renew", "RenewBatch", "Release"),
		eachKind(lateAfterTakeover, "TryAcquire", "TryAcquireSet", "Renew", "RenewBatch", "Release"),
	)
}

// lateAfterMore: a late call with a TTL below what was granted since shortens nothing.
func lateAfterMore(n *network, k kind, e faultproxy.Ending) {
	x := n.prepare(k, n.via, long)
	deliver := n.holdBack(x, n.h.ttl(), e)
	g := n.grant(n.direct, x.key, x.token, long)
	deliver()
	n.lapse(n.h.ttl())
	n.held(n.direct, g)
	n.release(n.direct, g, true)
}

// lateAfterRelease: what arrives after the release revives nothing. An attempt is granted, since it
// looks like a new one, but for no longer than its TTL. So may be a wait, if it is served.
func lateAfterRelease(n *network, k kind, e faultproxy.Ending) {
	ttl := long
	if k.role != ofHolder {
		ttl = n.h.ttl()
	}
	x := n.prepare(k, n.via, long)
	deliver := n.holdBack(x, ttl, e)
	n.giveBack(x)
	deliver()
	if k.role == ofStranger {
		n.held(n.direct, x.holder)
		x.settle()
	}
	if k.role != ofHolder {
		n.lapse(ttl)
	}
	n.free(n.direct, x.key)
	if n.lossy != nil && k.role == ofHolder { // what a client believes, it says when it is asked again
		n.renew(n.via, x.grant, long, false)
		n.batch(n.via, x.grant, long, false)
		n.release(n.via, x.grant, false)
	}
}

// lateAfterTakeover: nor does it take, prolong, shorten or end what another holds by then. In this
// process, RenewByStranger and BatchRenewsAsRenew look whether it is prolonged.
func lateAfterTakeover(n *network, k kind, e faultproxy.Ending) {
	late, next := n.h.ttl(), long
	if k.prolongs() && n.lossy == nil {
		late, next = next, late
	}
	x := n.prepare(k, n.via, long)
	deliver := n.holdBack(x, late, e)
	n.giveBack(x)
	g := n.takeOver(x, next)
	deliver()
	n.held(n.direct, g)
	n.renew(n.direct, x.grant, long, false)
	n.renew(n.direct, g, next, true)
	n.lapse(n.h.ttl())
	if next == long {
		n.held(n.direct, g)
		n.release(n.direct, g, true)
	}
	n.free(n.direct, x.key)
}

// takeOver has another token take the key of a call that was given back. An attempt may have come to one
// of several addresses after that: then the key is free when its TTL has passed.
func (n *network) takeOver(x *trial, ttl time.Duration) grant {
	if len(n.proxies) <= 1 || x.role == ofHolder {
		return n.grant(n.direct, x.key, n.token("next"), ttl)
	}
	g := n.takeSoon(n.direct, x.key)
	if !g.Acquired {
		n.fail("TryAcquire(%s) has been refused for %v since an attempt of %s was given back; want it to be acquired", brief(x.key), n.h.patience(), brief(x.token))
	}
	n.certain(g.key, g.start.Add(long), true)
	return g
}

// giveBack releases what a call is about that was held back. A client that asks several addresses
// may have asked some of them again, so that the call took effect.
func (n *network) giveBack(x *trial) {
	if len(n.proxies) <= 1 {
		n.release(n.direct, x.grant, x.role == ofHolder)
		return
	}
	_, err := n.direct.Release(n.ctx, x.key, x.token)
	n.noError(err, "Release", x.key)
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
