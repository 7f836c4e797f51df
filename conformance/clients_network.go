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

func unreachableStore(s *scene, a, b *client) {
	s.overNetworks(
		unreachable("is silent", func(n *network) { n.Block(faultproxy.Both) }),
		unreachable("does not hear", func(n *network) { n.Block(faultproxy.ToStore) }),
		unreachable("is not heard", func(n *network) { n.Block(faultproxy.ToClient) }),
		unreachable("refuses connections", (*network).Refuse),
		unreachable(breaksOff, func(n *network) {
			for range 200 { // however many times a client sends a request
				n.CutReply(faultproxy.Contains(anyKey))
			}
		}),
	)
}

const breaksOff = "breaks off each reply"

// unreachable has a store become unreachable while a lease is held, and then makes every call at the same time.
// Each must end with an error, which does not say that the call has no effect if it was sent.
func unreachable(how string, become func(*network)) part {
	return func(n *network) {
		sent := how == breaksOff
		if sent && !n.clear {
			return
		}
		g := n.grant(n.via, n.key(), n.token("holder"), long)
		become(n)
		waiter := g.as(n.token("waiter"))
		n.uses(g.key, waiter.token)
		var calls sync.WaitGroup
		for _, k := range append(kinds, inspection) {
			by := g
			if k.name == "Acquire" {
				by = waiter
			}
			calls.Go(func() {
				endsWithError(n, fmt.Sprintf("%s.%s(%s), of a store that %s,", n.via.name, k.name, brief(g.key), how), sent, func(ctx context.Context) error {
					return errOf(n.via.call(ctx, k.name, by, long))
				})
			})
		}
		calls.Wait()
	}
}

// endsWithError makes a call with a second of time, or more if the case was inconclusive, and
// wants an error within that or the client's own time-out.
func endsWithError(n *network, name string, sent bool, call func(context.Context) error) {
	n.goOn()
	limit := min(time.Second<<n.attempt, n.h.patience()/2)
	ctx, cancel := context.WithTimeout(n.ctx, limit)
	defer cancel()
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = call(ctx)
	}()
	switch {
	case !n.await(done):
		n.fail("%s did not return within %v, though its ctx ended after %v; want an error soon after that, or after the client's time-out", name, n.h.patience(), limit)
	case err == nil:
		n.fail("%s returned no error; want one, because nobody can know the outcome", name)
	case errors.Is(err, dlock.ErrHeld):
		n.fail("%s returned %q, which says that the store answered; want any other error", name, err)
	case errors.Is(err, dlock.ErrClosed):
		n.fail("%s returned %q, which says that no later call can succeed; want any other error", name, err)
	case supported(err) && dlock.NoEffect(err) && sent && ctx.Err() != nil && n.attempt < tries-1:
		n.stop(errInconclusive) // ctx may have ended before the call could be sent
	case supported(err) && dlock.NoEffect(err) && (sent || errors.Is(err, dlock.ErrInvalid)):
		n.fail("%s returned %q, which says that the call has no effect, of which nobody can be sure; want any other error", name, err)
	}
}

func blackHole(s *scene, a, b *client) {
	var parts []part
	for _, d := range []faultproxy.Direction{faultproxy.ToStore, faultproxy.ToClient, faultproxy.Both} {
		parts = append(parts, func(n *network) { swallow(n, d) })
	}
	s.overNetworks(parts...)
}

// swallow lets a lease end in a black hole. Its holder must know of that before another
// has the key, and what arrives late must not touch the other's lease.
func swallow(n *network, d faultproxy.Direction) {
	c := n.core(dlock.WithTTL(n.h.coreTTL()))
	defer c.Close()
	lease := n.leaseSlowly(c, n.key())
	if lease == nil {
		return
	}
	work := lease.Context(n.ctx)
	n.Block(d)
	next := succeed(n, lease)
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

// succeed takes the key of a lease as soon as the store gives it away, and checks that the lease has ended by then.
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

// endOnTime has leases expire over a network whose latency matters beside the TTL, and is small enough to have leases in
// spite of it. The store keeps each until its deadline, so that nobody else is certain of the key before.
func endOnTime(n *network) {
	c := n.core(dlock.WithTTL(n.h.coreTTL()), dlock.WithRenewal(false))
	defer c.Close()
	pace := n.h.coreTTL() / 10
	n.Slow(faultproxy.Both, faultproxy.Pace{Latency: pace, Jitter: pace})
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
	if !n.offers(n.via, acquire) {
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

func reconnection(s *scene, a, b *client) {
	s.overClearNetworks(
		func(n *network) { outage(n, n.Cut) },
		func(n *network) { outage(n, n.Refuse) },
		func(n *network) { outage(n, func() { n.Block(faultproxy.Both) }) },
	)
}

// outage has the network fail while a lease is held, another is kept alive and a third is waited for.
func outage(n *network, begin func()) {
	ttl := 20 * n.h.coreTTL() // outlasts it
	c := n.core(dlock.WithTTL(ttl))
	defer c.Close()
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	kept := n.leaseSlowly(c, n.key())
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	// The store has answered that the key is held, and the Client has sent one more call, when the outage begins.
	first, second := n.Watch(faultproxy.Contains(held.key)), n.Watch(faultproxy.Contains(held.key))
	w := startWait(n, c, held.key)
	if !(n.soon(first.Struck()) && n.soon(second.Struck())) {
		n.fail("Client.Acquire(%s) has not asked the store for a key that is held, and then once more, within %v", brief(held.key), n.h.patience())
	}
	begin()
	n.release(n.direct, held, true)
	time.Sleep(ttl * 2 / 5) // a renewal is due by then
	n.noError(n.Heal(), "Heal", g.key)
	deadline := kept.Deadline()
	n.recovers()
	succeeds(n, w)
	n.stays(kept, deadline)
	n.held(n.direct, g)
	n.release(n.direct, g, true)
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

func succeeds(n *network, ended <-chan error) {
	n.goOn()
	if err := <-ended; err != nil {
		n.fail("Client.Acquire of a key that has become free, over a network that was faulty, and the Release after it, returned %w; want a lease", err)
	}
}

// stays checks that a lease that its Client renews is held until its deadline is later than then, and releases it. A loss
// before its own deadline is the store's fault. Another is not: the machine was too slow to renew the lease.
func (n *network) stays(lease *dlock.Lease, then time.Time) {
	for lease.Err() == nil && !lease.Deadline().After(then) {
		time.Sleep(5 * time.Millisecond)
	}
	early := time.Now().Before(lease.Deadline())
	switch err := lease.Release(); {
	case !isErr(err, dlock.ErrLost): // a release that was not answered is owed
	case early:
		n.fail("the lease on %s was lost, though nobody else had acquired it: %w", brief(lease.Key()), err)
	default:
		n.stop(errInconclusive)
	}
	soonFree(n.scene, n.direct, lease.Key())
}
