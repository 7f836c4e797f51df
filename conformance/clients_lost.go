package conformance

import (
	"cmp"
	"context"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func lostReply(s *scene) error {
	a, b := s.clients2()
	givenUpOwesNoMore(s, a, b)
	givenUpIsRepeated(s, a, b)
	s.overLossy(append(lostReplies(), lostGrant)...)
	return s.result()
}

func lostReplyOverNetwork(s *scene) error {
	hopeful := append(eachKind(lostWithTime, "TryAcquire", "Renew", "Release"), lostGrant)
	s.overClearNetworks(append(inWays(lostReplies(), faultproxy.Cut, faultproxy.Stall), inWays(hopeful, faultproxy.Cut)...)...)
	return s.result()
}

// lostReplies are calls whose reply is lost.
func lostReplies() []faulty {
	return append(eachKind(lostOnce, "TryAcquire", "Renew", "Release"), lostOfBatch, lostOfSet, lostAttempt)
}

// givenUpOwesNoMore: the release that is owed for an attempt that was given up ends
// what that has acquired, and nothing else.
func givenUpOwesNoMore(s *scene, a, b *client) {
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

// givenUpIsRepeated: a call of a holder that was given up on its way may have worked. In any case it
// can be repeated. (An attempt may arrive later still, and take the key again.)
func givenUpIsRepeated(s *scene, a, b *client) {
	for _, k := range s.kindsOf(b) {
		if k.role != ofHolder {
			continue
		}
		s.atMoments(func(d time.Duration) {
			x := s.prepare(k, b, long)
			if k.name == "Renew" { // which may raise a version
				s.renew(b, x.grant, long, true)
			}
			ctx, cancel := context.WithTimeout(s.ctx, d)
			defer cancel()
			_, _ = b.call(ctx, k.name, x.grant, long) // whatever the outcome
			x.repeat(b, a)
		})
	}
}

// repeat makes a call again of which nobody knows what became, and looks for the effect of one.
func (x *trial) repeat(c, other *client) {
	if x.s.over() {
		return
	}
	switch a, err := c.call(x.s.ctx, x.name, x.grant, long); {
	case err != nil:
		x.s.fail("%s.%v, which was repeated, returned %w; want no error", c.name, x.request(x.name, long), err)
	case !a.Acquired && x.name == "TryAcquire":
		x.s.fail("%s.%v, which was repeated, answered %s; want it to be acquired", c.name, x.request(x.name, long), show(a))
	case !a.Acquired && x.name != "Release":
		x.s.fail("%s.%v, which was repeated, answered that the token does not hold the key; want that it does", c.name, x.request(x.name, long))
	}
	if x.name == "Release" {
		next := x.s.grant(other, x.key, x.s.token("next"), long)
		x.s.release(c, x.grant, false)
		x.s.held(other, next)
		x.s.release(other, next, true)
		return
	}
	x.s.held(other, x.grant)
	x.s.release(c, x.grant, true)
	x.s.free(other, x.key)
}

// lostOnce: a call whose reply was lost can be repeated.
func lostOnce(n *network, k kind, e faultproxy.Ending) {
	x := n.prepare(k, n.via, long)
	call, a := x.make(n.via, long)
	err := n.lose(x.token, e, k.name, call)
	answered(n, k.name, x.grant, a.Acquired, err)
	x.repeat(n.via, n.direct)
}

// answered checks that a call whose reply was lost returned an error or, because the
// client sent it again, the answer yes. It must not return that the token does not hold
// the key: it does, or did when the call was made.
func answered(n *network, name string, g grant, yes bool, err error) {
	if err == nil && !yes {
		n.fail("%s(%s, %s), whose reply was lost, answered that the token does not hold the key; want an error, or the answer that was lost",
			name, brief(g.key), brief(g.token))
	}
}

// lostOfBatch loses the reply for one of several renewals. None may be said to be lost.
func lostOfBatch(n *network, e faultproxy.Ending) {
	if !n.offers(n.via.inner.Locker, renewBatch) {
		return
	}
	var wishes []wish
	grants := n.takeMany(3, long, n.via)
	for _, g := range grants {
		wishes = append(wishes, g.wish(long, true))
	}
	var results []dlock.RenewResult
	err := n.lose(grants[1].token, e, "RenewBatch", func(ctx context.Context) (err error) {
		results, err = n.via.RenewBatch(ctx, batchOf(wishes))
		return err
	})
	if err == nil && len(results) != len(wishes) {
		n.fail("RenewBatch of %d renewals, one reply of which was lost, returned %d results; want one for each, or an error", len(wishes), len(results))
		return
	}
	for i, got := range results {
		answered(n, "RenewBatch", grants[i], got.Held, cmp.Or(err, got.Err))
	}
	n.renewAll(n.via, wishes)
	for _, g := range grants {
		n.held(n.direct, g)
		n.release(n.via, g, true)
	}
}

// lostOfSet loses the reply to an attempt at a set. All keys are taken then, or none, and the attempt can be repeated.
func lostOfSet(n *network, e faultproxy.Ending) {
	if !n.offers(n.via.inner.Locker, acquireSet) {
		return
	}
	set := n.setOf(3)
	n.lose(set[1].token, e, "TryAcquireSet", func(ctx context.Context) error {
		answers, err := n.via.TryAcquireSet(ctx, acquisitions(set, long))
		for i, g := range set {
			answered(n, "TryAcquireSet", g, len(answers) == len(set) && answers[i].Acquired, err)
		}
		return err
	})
	free := 0
	for _, g := range set {
		if next := n.try(n.direct, g.as(n.token("next")), long); next.Acquired {
			free++
			n.release(n.direct, next, true)
		}
	}
	if free > 0 && free < len(set) {
		n.fail("TryAcquireSet of %d keys, whose reply was lost, has left %d of them free; want all or none", len(set), free)
	}
	for _, g := range n.grantSet(n.via, set, long) {
		n.held(n.direct, g)
		n.release(n.via, g, true)
	}
}

// lostWithTime: a call that has time left when its reply is lost may be answered all
// the same, but not with anything that the store has not said.
func lostWithTime(n *network, k kind, e faultproxy.Ending) {
	x := n.prepare(k, n.via, long)
	before := x.as(n.token("before"))
	if k.role == ofNobody {
		before = n.grant(n.direct, before.key, before.token, long)
		n.release(n.direct, before, true)
	}
	if n.over() {
		return
	}
	f := n.DropReply(faultproxy.Contains(x.token), e)
	ctx, cancel := context.WithTimeout(n.ctx, 5*time.Second)
	defer cancel()
	a, err := n.via.call(ctx, k.name, x.grant, long)
	n.Lift(f)
	answered(n, k.name, x.grant, a.Acquired, err)
	n.reconnect()
	if x.Attempt = a; k.role == ofNobody && err == nil {
		n.above(before, x.grant)
		n.above(x.grant, n.again(n.via, x.grant, long))
	}
	x.repeat(n.via, n.direct)
}

// lostAttempt: a Client that does not hear of its grant gives it back.
func lostAttempt(n *network, e faultproxy.Ending) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	key := n.key()
	err := n.lose(key, e, "Client.TryAcquire", func(ctx context.Context) error {
		lease, err := c.TryAcquire(ctx, key)
		if err == nil {
			n.noError(lease.Release(), "Lease.Release", key)
		}
		return err
	})
	n.unansweredBy(err, "Client.TryAcquire")
	soonFree(n.scene, n.direct, key)
}

// lostGrant: a waiter that does not hear of its grant goes on waiting, and what it was granted does
// not stand in its way.
func lostGrant(n *network, e faultproxy.Ending) {
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	n.Watch(faultproxy.Contains(held.key)) // the call that is answered at once
	n.dropReply(held.key, e, "Acquire")
	w := startWait(n, c, held.key)
	n.gap()
	n.release(n.direct, held, true)
	succeeds(n, w)
	soonFree(n.scene, n.direct, held.key)
}

// startWait starts an Acquire of a Client, which is followed by a Release.
func startWait(n *network, c *dlock.Client, key string) (ended <-chan error) {
	w := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(n.ctx, 2*n.h.patience())
		defer cancel()
		lease, err := c.Acquire(ctx, key)
		if err == nil {
			if released := lease.Release(); isErr(released, dlock.ErrLost) { // else it is owed
				err = released
			}
		}
		w <- err
	}()
	return w
}

// waitAgain is startWait, and returns when the store has answered c that the key is held,
// and c has sent one more call.
func waitAgain(n *network, c *dlock.Client, key string) (ended <-chan error) {
	first, second := n.Watch(faultproxy.Contains(key)), n.Watch(faultproxy.Contains(key))
	w := startWait(n, c, key)
	if !n.over() && !(n.soon(first.Struck()) && n.soon(second.Struck())) {
		n.fail("Client.Acquire(%s) has not asked the store for a key that is held, and then once more, within %v", brief(key), n.h.patience())
	}
	if len(n.proxies) > 1 {
		n.gap() // nodes may have been asked twice before they have answered
	}
	return w
}

// succeeds checks that a wait succeeds.
func succeeds(n *network, ended <-chan error) {
	if n.over() {
		return
	}
	if err := <-ended; err != nil {
		n.fail("Client.Acquire of a key that has become free, over a network that was faulty, and the Release after it, returned %w; want a lease", err)
	}
}

// soonFree checks that key becomes free well within the TTL of a lease on it.
func soonFree(s *scene, c *client, key string) {
	freeSoon(s, c, key, "a Client gave up what it had acquired")
}
