package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func blackHole(s *scene) error {
	var parts []part
	for _, d := range []faultproxy.Direction{faultproxy.ToStore, faultproxy.ToClient, faultproxy.Both} {
		parts = append(parts, func(n *network) { n.swallow(d) })
	}
	s.overNetworks(parts...)
	return s.result()
}

// swallow lets a lease end in a black hole. Its holder must know of that before another
// has the key, and what arrives late must not touch the other's lease.
func (n *network) swallow(d faultproxy.Direction) {
	c := n.core(dlock.WithTTL(n.h.coreTTL()))
	defer c.Close()
	lease := n.leaseSlowly(c, n.key())
	if lease == nil {
		return
	}
	work := lease.Context(n.ctx)
	n.Block(d)
	next := n.succeed(lease)
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
func (n *network) succeed(lease *dlock.Lease) grant {
	for end := time.Now().Add(n.h.patience()); !n.over() && time.Now().Before(end); {
		g := n.takeFenced(n.direct, lease.Key(), "next")
		now := time.Now()
		if !g.Acquired {
			continue
		}
		if deadline := lease.Deadline(); now.Before(deadline) && lease.Err() == nil {
			n.fail("the store granted %s to another %v before the deadline of a lease whose holder is certain of it", brief(g.key), deadline.Sub(now))
		}
		n.certain(g.key, g.start.Add(long), true)
		return g
	}
	if !n.over() {
		n.fail("%s is still held %v after its holder was cut off, with a TTL of %v", brief(lease.Key()), n.h.patience(), n.h.coreTTL())
	}
	return grant{}
}

func slowNetwork(s *scene) error {
	shared := &overlaps{s: s, key: s.key()}
	defer s.soonFree(s.client(), shared.key)
	s.overNetworks((*network).endOnTime, (*network).endOnTime, (*network).servedAfterSlowAnswers,
		shared.work, shared.work, shared.work)
	shared.check()
	return s.result()
}

// slow is what the latency of a slow network adds up to in one direction, on average.
// It is to be seen beside the TTL, and small enough to have leases in spite of it.
func (n *network) slow() {
	pace := n.h.coreTTL() / 10
	n.Slow(faultproxy.Both, faultproxy.Pace{Latency: pace, Jitter: pace, BytesPerSecond: 100_000})
}

// endOnTime has leases expire. The store keeps each until its deadline.
func (n *network) endOnTime() {
	c := n.core(dlock.WithTTL(n.h.coreTTL()), dlock.WithRenewal(false))
	defer c.Close()
	n.slow()
	for range n.h.rounds(4) {
		if lease := n.leaseSlowly(c, n.key()); lease != nil {
			n.release(n.direct, n.succeed(lease), true)
		}
	}
}

// servedAfterSlowAnswers: the network is slow while a waiter is told that it waits, and fast
// again when it is served. What it was told is old then.
func (n *network) servedAfterSlowAnswers() {
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

// overlaps are the times in which those who share a key were certain of it.
type overlaps struct {
	s   *scene
	key string

	mu    sync.Mutex
	holds []certainty
}

type certainty struct{ start, end time.Time }

// work holds the key again and again over a slow network: released in time, kept alive
// and released, or left to expire.
func (o *overlaps) work(n *network) {
	kept := n.core(dlock.WithTTL(n.h.coreTTL()))
	defer kept.Close()
	left := kept.With(dlock.WithRenewal(false))
	n.slow()
	for i := range n.h.rounds(6) {
		c := kept
		if i%2 == 1 {
			c = left
		}
		if lease := n.leaseSlowly(c, o.key); lease != nil {
			o.hold(n, lease, i%3 == 2)
		}
	}
}

// hold holds a lease, for longer than its TTL if long, and notes while it was certain.
func (o *overlaps) hold(n *network, lease *dlock.Lease, long bool) {
	start := time.Now()
	if long {
		n.awaitFor(lease.Done(), n.h.coreTTL()*3/2)
	}
	end := time.Now()
	if deadline := lease.Deadline(); deadline.Before(end) {
		end = deadline
	}
	_ = lease.Release() // it may be lost, or not be answered in time
	if start.Before(end) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.holds = append(o.holds, certainty{start, end})
	}
}

func (o *overlaps) check() {
	slices.SortFunc(o.holds, func(a, b certainty) int { return a.start.Compare(b.start) })
	for i := 1; i < len(o.holds); i++ {
		if by := o.holds[i-1].end.Sub(o.holds[i].start); by > 0 {
			o.s.fail("over a slow network, two holders were certain of %s at the same time, for %v", brief(o.key), by)
		}
	}
}

func reconnection(s *scene) error {
	s.overClearNetworks(
		func(n *network) { n.outage("was cut", n.Cut) },
		func(n *network) { n.outage("refused connections", n.Refuse) },
		func(n *network) { n.outage("was silent", func() { n.Block(faultproxy.Both) }) },
	)
	return s.result()
}

// outage has the network fail while a lease is held, another is kept alive and a third
// is waited for.
func (n *network) outage(what string, begin func()) {
	c := n.core(dlock.WithTTL(n.h.outlastTTL()))
	defer c.Close()
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	kept := n.leaseSlowly(c, n.key())
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	w := n.waitAgain(c, held.key)
	if n.over() {
		return
	}
	begin()
	n.release(n.direct, held, true)
	time.Sleep(n.h.outlastTTL() * 2 / 5) // a renewal is due by then
	n.noError(n.Heal(), "Heal", g.key)
	deadline := kept.Deadline()
	n.recovers()
	if !n.soon(w.done) && !n.over() {
		n.fail("a waiter is not served %v after a network that %s has healed, though the key became free meanwhile", n.h.patience(), what)
	}
	n.isOver(w)
	n.stays(kept, deadline)
	n.held(n.direct, g)
	n.release(n.direct, g, true)
	if err := kept.Release(); errors.Is(err, dlock.ErrLost) && !n.over() {
		n.fail("Lease.Release after an outage returned %w", err)
	}
	n.soonFree(n.direct, kept.Key())
}

// outlastTTL is the TTL of a lease that outlasts an outage.
func (h Harness) outlastTTL() time.Duration { return 20 * h.coreTTL() }
