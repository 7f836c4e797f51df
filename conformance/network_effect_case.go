package conformance

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

// noEffectOverNetwork loses replies and delays requests, and believes what the errors say.
func noEffectOverNetwork(s *scene) error {
	parts := []part{(*network).askOnItsWay}
	for _, e := range endings {
		for _, f := range []failure{loseTheReply, delayTheRequest} {
			for _, call := range []func(*failing){(*failing).try, (*failing).release, (*failing).renew, (*failing).renewBatch} {
				parts = append(parts, func(n *network) { call(&failing{network: n, failure: f, ending: e}) })
			}
		}
		for _, waitOf := range []func(*network, faultproxy.Ending){(*network).lateWaitOfFree, (*network).lateWaitBefore, (*network).lateWaitAfter} {
			parts = append(parts, func(n *network) { waitOf(n, e) })
		}
	}
	s.overClearNetworks(parts...)
	return s.result()
}

// A failure is what befalls a call on the network.
type failure int

const (
	loseTheReply failure = iota
	delayTheRequest
)

// A failing call fails in one way. Each method makes one. If its error says that it has no
// effect, it must have none, also when what was delayed has been delivered.
type failing struct {
	*network
	failure failure
	ending  faultproxy.Ending
}

// saysNoEffect makes a call about g, and lets happen what may happen later.
func (f *failing) saysNoEffect(g grant, name string, call func(context.Context) error) bool {
	var err error
	if f.failure == loseTheReply {
		err = f.lose(g, f.ending, name, call)
	} else {
		late := f.Hold(about(g), f.ending)
		err = f.spoil(late, name, call)
		f.deliver(late)
	}
	return err != nil && saysNoEffect(err) && !f.over()
}

func (f *failing) try() {
	g := f.another("late")
	if f.saysNoEffect(g, "TryAcquire", func(ctx context.Context) error {
		_, err := f.via.TryAcquire(ctx, g.key, g.token, long)
		return err
	}) {
		f.stillFree(f.direct, g.key, "TryAcquire")
	}
}

func (f *failing) release() {
	g := f.grant(f.direct, f.key(), f.token("holder"), long)
	if f.saysNoEffect(g, "Release", func(ctx context.Context) error {
		_, err := f.via.Release(ctx, g.key, g.token)
		return err
	}) {
		f.stillHeld(f.direct, g)
	}
}

func (f *failing) renew() {
	f.renewBy("Renew", func(ctx context.Context, r dlock.Renewal) error { return f.renewLate(ctx, r) })
}

func (f *failing) renewBatch() {
	if f.offers(f.via.inner.Locker, renewBatch) {
		f.renewBy("RenewBatch", func(ctx context.Context, r dlock.Renewal) error { return f.renewBatchLate(ctx, r) })
	}
}

func (f *failing) renewBy(name string, call func(context.Context, dlock.Renewal) error) {
	ttl := 2 * f.h.ttl() // the fault must strike before the lease ends
	g := f.grant(f.direct, f.key(), f.token("holder"), ttl)
	if f.saysNoEffect(g, name, func(ctx context.Context) error { return call(ctx, g.wish(long, true).renewal) }) {
		f.lapse(ttl)
		f.stillFree(f.direct, g.key, name)
	}
}

// lateWait keeps the first request of a wait back, and then releases its token if that is
// owed. It returns nil if nothing is left to be found out.
func (n *network) lateWait(key string, e faultproxy.Ending) *faultproxy.Fault {
	if !n.offers(n.via.inner.Locker, acquire) {
		return nil
	}
	g := grant{key: key, token: n.token("late")}
	n.uses(g.key, g.token)
	var a dlock.Attempt
	late := n.Hold(about(g), e)
	err := n.spoil(late, "Acquire", func(ctx context.Context) (err error) {
		a, err = n.via.Acquire(ctx, g.key, g.token, long)
		return err
	})
	if err == nil || !saysNoEffect(err) || n.over() {
		return nil
	}
	if tellsHolder(a) {
		n.release(n.direct, g, false)
	}
	return late
}

func (n *network) lateWaitOfFree(e faultproxy.Ending) {
	key := n.key()
	if late := n.lateWait(key, e); late != nil {
		n.deliverSoon(late)
		n.stillFree(n.direct, key, "Acquire")
	}
}

// lateWaitBefore has the request arrive before the holder releases its key.
func (n *network) lateWaitBefore(e faultproxy.Ending) {
	holder := n.grant(n.direct, n.key(), n.token("holder"), long)
	if late := n.lateWait(holder.key, e); late != nil {
		n.deliverSoon(late)
		n.release(n.direct, holder, true)
		n.stillFree(n.direct, holder.key, "Acquire")
	}
}

// lateWaitAfter has it arrive after that.
func (n *network) lateWaitAfter(e faultproxy.Ending) {
	holder := n.grant(n.direct, n.key(), n.token("holder"), long)
	if late := n.lateWait(holder.key, e); late != nil {
		n.release(n.direct, holder, true)
		n.deliverSoon(late)
		n.stillFree(n.direct, holder.key, "Acquire")
	}
}

// askOnItsWay cancels a wait, which was told who holds the key, while it asks once more. A
// wait that is not told, or does not ask within some seconds, is not of this kind.
func (n *network) askOnItsWay() {
	if !n.offers(n.via.inner.Locker, acquire) {
		return
	}
	holder := n.grant(n.direct, n.key(), n.token("holder"), long)
	token := n.token("asks")
	first := n.Watch(faultproxy.Contains(token))
	w := n.waitCtx(n.ctx, n.via, holder.key, token, long)
	const period = 3 * time.Second
	told := n.soon(first.Struck()) && n.awaitFor(first.Answered(), n.h.gap())
	ask := n.Hold(faultproxy.Contains(token), faultproxy.Stall)
	asks := told && n.awaitFor(ask.Struck(), period)
	w.cancel()
	n.ended(w)
	if !asks {
		n.Lift(ask)
	}
	n.release(n.direct, w.grant, false)
	n.release(n.direct, holder, true)
	if asks && w.err != nil && saysNoEffect(w.err) {
		n.deliverSoon(ask)
		n.stillFree(n.direct, holder.key, "Acquire")
	}
}
