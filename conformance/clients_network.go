package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func unreachableStore(s *scene) error {
	var parts []part
	for how, become := range map[string]func(*network){
		"is silent":           func(n *network) { n.Block(faultproxy.Both) },
		"does not hear":       func(n *network) { n.Block(faultproxy.ToStore) },
		"is not heard":        func(n *network) { n.Block(faultproxy.ToClient) },
		"refuses connections": func(n *network) { n.Refuse() },
		breaksOff:             breakOff,
	} {
		parts = append(parts, func(n *network) { unreachable(n, how, become) })
	}
	s.overNetworks(parts...)
	return s.result()
}

const breaksOff = "breaks off each reply"

// breakOff cuts the connection in the middle of every reply that concerns a key, however many times
// a client sends it.
func breakOff(n *network) {
	n.strike(func(p *faultproxy.Proxy) {
		for range 200 {
			p.CutReply(faultproxy.Contains(anyKey))
		}
	})
}

// unreachable has a store become unreachable while a lease is held, and then makes all
// calls.
func unreachable(n *network, how string, become func(*network)) {
	if how == breaksOff && !n.clear {
		return
	}
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	become(n)
	if n.minor {
		callsUnder(n.scene, n.ctx, n.via, n.via) // a vote of n.direct may still be on its way
	} else {
		unanswered(n.scene, n.via, g, "a store that "+how, how == breaksOff)
	}
}

// unanswered makes every call of a store that cannot answer, all at the same time. Each
// must end with an error, which does not say that the call has no effect if it was sent.
func unanswered(s *scene, c *client, g grant, store string, sent bool) {
	waiter := g.as(s.token("waiter"))
	s.uses(g.key, waiter.token)
	var calls sync.WaitGroup
	for _, k := range append(kinds, inspection) {
		by := g
		if k.name == "Acquire" {
			by = waiter
		}
		calls.Go(func() {
			endsWithError(s, fmt.Sprintf("%s.%s(%s), of %s,", c.name, k.name, brief(g.key), store), sent, func(ctx context.Context) error {
				_, err := c.call(ctx, k.name, by, long)
				return err
			})
		})
	}
	calls.Wait()
}

// endsWithError makes a call with a second of time, or more if the case was inconclusive, and
// wants an error within that or the client's own time-out.
func endsWithError(s *scene, name string, sent bool, call func(context.Context) error) {
	if s.over() {
		return
	}
	limit := min(time.Second<<s.attempt, s.h.patience()/2)
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = call(ctx)
	}()
	switch {
	case !s.await(done):
		s.fail("%s did not return within %v, though its ctx ended after %v; want an error soon after that, or after the client's time-out", name, s.h.patience(), limit)
	case err == nil:
		s.fail("%s returned no error; want one, because nobody can know the outcome", name)
	case errors.Is(err, dlock.ErrHeld):
		s.fail("%s returned %q, which says that the store answered; want any other error", name, err)
	case errors.Is(err, dlock.ErrClosed):
		s.fail("%s returned %q, which says that no later call can succeed; want any other error", name, err)
	case supported(err) && dlock.NoEffect(err) && sent && ctx.Err() != nil && s.attempt < tries-1:
		s.stop(errInconclusive) // ctx may have ended before the call could be sent
	case supported(err) && dlock.NoEffect(err) && (sent || errors.Is(err, dlock.ErrInvalid)):
		s.fail("%s returned %q, which says that the call has no effect, of which nobody can be sure; want any other error", name, err)
	}
}

func blackHole(s *scene) error {
	var parts []part
	for _, d := range []faultproxy.Direction{faultproxy.ToStore, faultproxy.ToClient, faultproxy.Both} {
		parts = append(parts, func(n *network) { swallow(n, d) })
	}
	s.overNetworks(parts...)
	return s.result()
}

// swallow lets a lease end in a black hole. Its holder must know of that before another
// has the key, and what arrives late must not touch the other's lease.
func swallow(n *network, d faultproxy.Direction) {
	ttl := n.h.coreTTL()
	if n.minor {
		ttl = n.h.keptTTL()
	}
	c := n.core(dlock.WithTTL(ttl))
	defer c.Close()
	lease := n.leaseSlowly(c, n.key())
	if lease == nil {
		return
	}
	work := lease.Context(n.ctx)
	n.Block(d)
	if n.minor {
		n.stays(lease, time.Now().Add(ttl))
		return
	}
	next := succeed(n, lease)
	if n.over() {
		return
	}
	if !n.soon(lease.Done()) || !n.soon(work.Done()) {
		n.fail("a lease that has ended in a black hole is not announced %v later", n.h.patience())
	}
	if err := lease.Release(); !isErr(err, dlock.ErrLost) || !isErr(context.Cause(work), dlock.ErrLost) {
		n.fail("a lease has ended in a black hole: Release returned %v, and the cause of its context is %v; want ErrLost", err, context.Cause(work))
	}
	n.noError(n.Heal(), "Heal", next.key)
	n.recovers()
	n.held(n.direct, next)
	n.release(n.direct, next, true)
}

// succeed takes the key of a lease as soon as the store gives it away, and checks that
// the lease has ended by then.
func succeed(n *network, lease *dlock.Lease) grant {
	g := n.takeSoon(n.direct, lease.Key())
	switch now, deadline := time.Now(), lease.Deadline(); {
	case !g.Acquired:
		n.fail("%s is still held %v after its holder was cut off, with a TTL of %v", brief(lease.Key()), n.h.patience(), n.h.coreTTL())
	case now.Before(deadline) && lease.Err() == nil:
		n.fail("the store granted %s to another %v before the deadline of a lease whose holder is certain of it", brief(g.key), deadline.Sub(now))
	}
	n.certain(g.key, g.start.Add(long), true)
	return g
}

func slowNetwork(s *scene) error {
	s.overNetworks(endOnTime, endOnTime, servedAfterSlowAnswers)
	return s.result()
}

// endOnTime has leases expire over a network whose latency matters beside the TTL, and is small
// enough to have leases in spite of it. The store keeps each until its deadline, so that nobody
// else is certain of the key before.
func endOnTime(n *network) {
	c := n.core(dlock.WithTTL(n.h.coreTTL()), dlock.WithRenewal(false))
	defer c.Close()
	pace := n.h.coreTTL() / 10
	n.Slow(faultproxy.Both, faultproxy.Pace{Latency: pace, Jitter: pace, BytesPerSecond: 100_000})
	for range n.h.rounds(4) {
		if lease := n.leaseSlowly(c, n.key()); lease != nil {
			n.release(n.direct, succeed(n, lease), true)
		}
	}
}

// servedAfterSlowAnswers: the network is slow when the store answers a waiter that it
// waits, and fast again when the waiter is served. The first answer is old by then.
func servedAfterSlowAnswers(n *network) {
	const lag = 300 * time.Millisecond
	if !n.offers(n.via.inner.Locker, acquire) {
		return
	}
	ttl := max(n.h.ttl(), lag)
	g := n.grant(n.direct, n.key(), n.token("holder"), long)
	n.Slow(faultproxy.ToClient, faultproxy.Pace{Latency: lag})
	w := n.waitCtx(n.ctx, n.via, g.key, n.token("waiter"), ttl)
	time.Sleep(4 * lag)
	n.noError(n.Heal(), "Heal", g.key)
	n.release(n.direct, g, true)
	n.notFreedBefore(n.direct, n.served(w, "the holder released the key"), ttl)
}

func reconnection(s *scene) error {
	s.overClearNetworks(
		func(n *network) { outage(n, n.Cut) },
		func(n *network) { outage(n, n.Refuse) },
		func(n *network) { outage(n, func() { n.Block(faultproxy.Both) }) },
	)
	return s.result()
}

// outage has the network fail while a lease is held, another is kept alive and a third
// is waited for.
func outage(n *network, begin func()) {
	c := n.core(dlock.WithTTL(n.h.outlastTTL()))
	defer c.Close()
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	kept := n.leaseSlowly(c, n.key())
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	w := waitAgain(n, c, held.key)
	if n.over() {
		return
	}
	begin()
	n.release(n.direct, held, true)
	time.Sleep(n.h.outlastTTL() * 2 / 5) // a renewal is due by then
	n.noError(n.Heal(), "Heal", g.key)
	deadline := kept.Deadline()
	n.recovers()
	succeeds(n, w)
	n.stays(kept, deadline)
	n.held(n.direct, g)
	n.release(n.direct, g, true)
}

// outlastTTL is the TTL of a lease that outlasts an outage.
func (h Harness) outlastTTL() time.Duration { return 20 * h.coreTTL() }

// keptTTL is the TTL of a lease that is kept alive over a network that fails in part.
func (h Harness) keptTTL() time.Duration { return 10 * h.coreTTL() }
