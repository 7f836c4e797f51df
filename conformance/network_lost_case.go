package conformance

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func lostReplyOverNetwork(s *scene) error {
	s.overClearNetworks(append(inBothWays([]func(*network, faultproxy.Ending){
		(*network).loseAcquired,
		(*network).loseRenewed,
		(*network).loseBatch,
		(*network).loseReleased,
		(*network).loseClientsAcquired,
		(*network).loseClientsRenewed,
	}),
		(*network).loseWithTime,
		(*network).loseClientsReleased,
		(*network).loseClientsRelease,
		(*network).loseClientsPoll,
		(*network).loseClientsGrant,
		(*network).loseKept,
	)...)
	return s.result()
}

// lose has the reply to a call about g be lost.
func (n *network) lose(g grant, e faultproxy.Ending, name string, call func(context.Context) error) error {
	err := n.spoil(n.DropReply(about(g), e), name, call)
	n.anew()
	return err
}

// answered checks that a call whose reply was lost returned an error, or (because the
// client asked again) that yes, but not that the token does not hold the key: it does,
// or did when the call was made.
func (n *network) answered(name string, g grant, yes bool, err error) {
	if err == nil && !yes {
		n.fail("%s(%s, %s), whose reply was lost, answered that the token does not hold the key; want an error, or the answer that was lost",
			name, brief(g.key), brief(g.token))
	}
}

func (n *network) loseAcquired(e faultproxy.Ending) {
	g := n.another("holder")
	acquired := false
	err := n.lose(g, e, "TryAcquire", func(ctx context.Context) error {
		a, err := n.via.TryAcquire(ctx, g.key, g.token, long)
		acquired = a.Acquired
		return err
	})
	n.answered("TryAcquire", g, acquired, err)
	n.again(n.via, g, long)
	n.held(n.direct, g)
	n.release(n.via, g, true)
	n.free(n.direct, g.key)
}

// loseWithTime: an attempt that has time left when its reply is lost may be answered all
// the same, but not with anything that the store has not said.
func (n *network) loseWithTime() {
	before := n.grant(n.direct, n.key(), n.token("before"), long)
	n.release(n.direct, before, true)
	g := grant{key: before.key, token: n.token("holder")}
	n.uses(g.key, g.token)
	if n.over() {
		return
	}
	f := n.DropReply(about(g), faultproxy.Cut)
	ctx, cancel := context.WithTimeout(n.ctx, 5*time.Second)
	defer cancel()
	a, err := n.via.TryAcquire(ctx, g.key, g.token, long)
	g.Attempt = a
	n.Lift(f)
	n.answered("TryAcquire", g, a.Acquired, err)
	n.anew()
	again := n.again(n.via, g, long)
	if err == nil {
		n.above(before, g)
		n.above(g, again)
	}
	n.release(n.via, g, true)
	n.free(n.direct, g.key)
}

func (n *network) loseRenewed(e faultproxy.Ending) {
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	held := false
	err := n.lose(g, e, "Renew", func(ctx context.Context) (err error) {
		held, err = n.via.Renew(ctx, g.key, g.token, long)
		return err
	})
	n.answered("Renew", g, held, err)
	n.renew(n.via, g, long, true)
	n.held(n.direct, g)
	n.release(n.via, g, true)
	n.free(n.direct, g.key)
}

// loseBatch loses the reply for one of several renewals. None may be said to be lost.
func (n *network) loseBatch(e faultproxy.Ending) {
	if !n.offers(n.via.inner.Locker, renewBatch) {
		return
	}
	var grants []grant
	var batch []dlock.Renewal
	for range 3 {
		g := n.grant(n.via, n.key(), n.token("holder"), long)
		grants = append(grants, g)
		batch = append(batch, g.wish(long, true).renewal)
	}
	var results []dlock.RenewResult
	err := n.lose(grants[1], e, "RenewBatch", func(ctx context.Context) (err error) {
		results, err = n.via.RenewBatch(ctx, batch)
		return err
	})
	if n.over() {
		return
	}
	if err == nil && len(results) != len(batch) {
		n.fail("RenewBatch of %d renewals, one reply of which was lost, returned %d results; want one for each, or an error", len(batch), len(results))
		return
	}
	var wishes []wish
	for i, g := range grants {
		if err == nil {
			n.answered("RenewBatch", g, results[i].Held, results[i].Err)
		}
		wishes = append(wishes, g.wish(long, true))
	}
	n.renewAll(n.via, wishes)
	for _, g := range grants {
		n.held(n.direct, g)
		n.release(n.via, g, true)
	}
}

// loseReleased: whatever the repeated release says, the key is free after it, and
// nobody is harmed by one more.
func (n *network) loseReleased(e faultproxy.Ending) {
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	held := false
	err := n.lose(g, e, "Release", func(ctx context.Context) (err error) {
		held, err = n.via.Release(ctx, g.key, g.token)
		return err
	})
	n.answered("Release", g, held, err)
	if n.over() {
		return
	}
	_, err = n.via.Release(n.ctx, g.key, g.token)
	n.noError(err, "Release", g.key)
	next := n.grant(n.direct, g.key, n.token("next"), long)
	n.release(n.via, g, false)
	n.held(n.direct, next)
	n.release(n.direct, next, true)
}

// loseClientsAcquired: a Client that does not hear of its grant gives it back.
func (n *network) loseClientsAcquired(e faultproxy.Ending) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	key := n.key()
	err := n.spoil(n.DropReply(faultproxy.Contains(key), e), "Client.TryAcquire", func(ctx context.Context) error {
		lease, err := c.TryAcquire(ctx, key)
		if err == nil {
			n.noError(lease.Release(), "Lease.Release", key)
		}
		return err
	})
	n.tells(err, "Client.TryAcquire")
	n.anew()
	n.soonFree(n.direct, key)
}

// loseClientsRenewed: a Client that does not hear of its renewal still holds its lease.
func (n *network) loseClientsRenewed(e faultproxy.Ending) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	lease := n.lease(c)
	if lease == nil {
		return
	}
	err := n.spoil(n.DropReply(faultproxy.Contains(lease.Token()), e), "Lease.Renew", lease.Renew)
	n.tells(err, "Lease.Renew")
	n.anew()
	if n.over() {
		return
	}
	n.noError(lease.Renew(n.ctx), "Lease.Renew", lease.Key())
	n.noError(lease.Release(), "Lease.Release", lease.Key())
	n.soonFree(n.direct, lease.Key())
}

// loseClientsReleased: when a Client hears "not held" after a release without an answer,
// it knows that the release has worked.
func (n *network) loseClientsReleased() {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	lease := n.lease(c)
	if lease == nil {
		return
	}
	release := func(context.Context) error { return lease.Release() }
	err := n.spoil(n.DropReply(faultproxy.Contains(lease.Token()), faultproxy.Cut), "Lease.Release", release)
	n.tells(err, "Lease.Release")
	n.anew()
	for end := time.Now().Add(n.h.patience()); err != nil && !n.over() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		err = lease.Release()
		n.tells(err, "Lease.Release after one")
	}
	n.noError(err, "Lease.Release again and again", lease.Key())
	n.soonFree(n.direct, lease.Key())
}

// loseClientsRelease: a release that has not reached the store is owed.
func (n *network) loseClientsRelease() {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	lease := n.lease(c)
	if lease == nil {
		return
	}
	f := n.DropRequest(faultproxy.Contains(lease.Token()), faultproxy.Cut)
	err := n.spoil(f, "Lease.Release", func(context.Context) error { return lease.Release() })
	n.tells(err, "Lease.Release")
	n.soonFree(n.direct, lease.Key())
}

// loseClientsPoll: a waiter that does not hear of the grant of an attempt goes on
// waiting, and what it was granted does not stand in its way.
func (n *network) loseClientsPoll() {
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	w := n.waitAgain(c, held.key)
	f := n.DropReply(faultproxy.Contains(held.key), faultproxy.Cut)
	n.release(n.direct, held, true)
	n.isOver(w)
	n.Lift(f) // a store with a queue need not be asked any more
	n.soonFree(n.direct, held.key)
}

// loseClientsGrant: nor if it is the answer to the call in which the waiter waits.
func (n *network) loseClientsGrant() {
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	first := n.Watch(faultproxy.Contains(held.key))
	n.DropReply(faultproxy.Contains(held.key), faultproxy.Cut)
	w := n.wait(c, held.key)
	if !n.soon(first.Answered()) {
		n.fail("the store has not answered Client.Acquire(%s) within %v", brief(held.key), n.h.patience())
	}
	n.release(n.direct, held, true)
	n.isOver(w)
	n.soonFree(n.direct, held.key)
}

// A wait is an Acquire of a Client, followed by a Release.
type wait struct {
	done chan struct{}
	err  error
}

func (n *network) wait(c *dlock.Client, key string) *wait {
	w := &wait{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		ctx, cancel := context.WithTimeout(n.ctx, 2*n.h.patience())
		defer cancel()
		var lease *dlock.Lease
		if lease, w.err = c.Acquire(ctx, key); w.err != nil {
			return
		}
		if err := lease.Release(); isErr(err, dlock.ErrLost) { // else it is owed
			w.err = err
		}
	}()
	return w
}

// waitAgain is wait, and returns when the store has told c that the key is held, and c
// has asked once more.
func (n *network) waitAgain(c *dlock.Client, key string) *wait {
	first, second := n.Watch(faultproxy.Contains(key)), n.Watch(faultproxy.Contains(key))
	w := n.wait(c, key)
	if !n.over() && !(n.soon(first.Struck()) && n.soon(second.Struck())) {
		n.fail("Client.Acquire(%s) has not asked the store for a key that is held, and then once more, within %v", brief(key), n.h.patience())
	}
	return w
}

// isOver checks that a wait succeeds.
func (n *network) isOver(w *wait) {
	if n.over() {
		return
	}
	<-w.done
	if w.err != nil {
		n.fail("Client.Acquire of a key that has become free, over a network that was faulty, and the Release after it, returned %w; want a lease", w.err)
	}
}

// loseKept: leases that a Client keeps alive outlast the loss of a reply.
func (n *network) loseKept() {
	c := n.core(dlock.WithTTL(n.h.keptTTL()))
	defer c.Close()
	var leases []*dlock.Lease
	for range 3 {
		if lease := n.leaseSlowly(c, n.key()); lease != nil {
			leases = append(leases, lease)
		}
	}
	if n.over() {
		return
	}
	f := n.DropReply(faultproxy.Contains(leases[1].Token()), faultproxy.Cut)
	if !n.soon(f.Struck()) {
		n.fail("a Client has not renewed its lease, with a TTL of %v, within %v", n.h.keptTTL(), n.h.patience())
		return
	}
	for _, lease := range leases {
		n.stays(lease, time.Now().Add(n.h.keptTTL()*4/5)) // that of a renewal after this one
	}
	for _, lease := range leases {
		if !n.over() {
			n.tells(lease.Release(), "Lease.Release")
			n.soonFree(n.direct, lease.Key())
		}
	}
}

// keptTTL is a TTL of leases that are kept alive over a network that fails for a
// moment.
func (h Harness) keptTTL() time.Duration { return 10 * h.coreTTL() }
