package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

func unreachableStore(s *scene) error {
	var parts []part
	for how, become := range map[string]func(*network, grant){
		"is silent":           func(n *network, _ grant) { n.Block(faultproxy.Both) },
		"does not hear":       func(n *network, _ grant) { n.Block(faultproxy.ToStore) },
		"is not heard":        func(n *network, _ grant) { n.Block(faultproxy.ToClient) },
		"refuses connections": func(n *network, _ grant) { n.Refuse() },
		breaksOff:             breakOff,
	} {
		parts = append(parts, func(n *network) { unreachable(n, how, become) })
	}
	s.overNetworks(parts...)
	return s.result()
}

const breaksOff = "breaks off each reply"

// breakOff cuts the connection in the middle of every reply that concerns the key of g,
// however many times a client sends it.
func breakOff(n *network, g grant) {
	for range 200 {
		n.CutReply(faultproxy.Contains(g.key))
	}
}

// unreachable has a store become unreachable while a lease is held, and then makes all
// calls.
func unreachable(n *network, how string, become func(*network, grant)) {
	if how == breaksOff && !n.clear {
		return
	}
	g := n.grant(n.via, n.key(), n.token("holder"), long)
	become(n, g)
	switch {
	case !n.minor:
		unanswered(n.scene, n.via, g, "a store that "+how, how == breaksOff)
	case !n.returns(func() { undisturbed(n, g) }):
		n.fail("calls did not return within %v, though only %d of %d addresses of a store that %s were struck", n.h.patience(), len(n.struck), len(n.proxies), how)
	}
}

// undisturbed makes every call of a store that has lost a minority of its addresses. Each succeeds.
func undisturbed(n *network, g grant) {
	g = n.again(n.via, g, long)
	can := n.abilities(n.via)
	if can.inspect {
		n.sees(n.via, g, long)
	}
	n.renew(n.via, g, long, true)
	if can.batch {
		n.renewAll(n.via, []wish{g.wish(long, true)})
	}
	n.held(n.via, g)
	if can.wait {
		w := n.wait(n.via, g.key, n.token("waiter"), long)
		n.waits(w)
		n.release(n.via, g, true)
		g = n.served(w, "the holder released the key")
	}
	n.release(n.via, g, true)
}

// unanswered makes every call of a store that cannot answer, all at the same time. Each
// must end with an error, which does not say that the call has no effect if it was sent.
func unanswered(s *scene, c *client, g grant, store string, sent bool) {
	waiter := g.as(s.token("waiter"))
	s.uses(g.key, waiter.token)
	var calls sync.WaitGroup
	for _, k := range append(kinds, inspection) {
		by := g
		if k.role == ofStranger {
			by = waiter
		}
		if k.name == "Acquire" && k.role == ofNobody { // the other is enough
			continue
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
	var err error
	switch {
	case !s.returns(func() { err = call(ctx) }):
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
		n.keepsOn(lease, time.Now().Add(ttl))
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

// keepsOn checks that a lease is renewed until its deadline is later than then, and releases it.
func (n *network) keepsOn(lease *dlock.Lease, then time.Time) {
	for ; !n.over() && !lease.Deadline().After(then); time.Sleep(5 * time.Millisecond) {
		if err := lease.Err(); err != nil {
			n.fail("a lease was lost while %d of %d addresses swallowed everything: %w", len(n.struck), len(n.proxies), err)
		}
	}
	n.noError(lease.Release(), "Lease.Release", lease.Key())
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
	shared := &overlaps{s: s, key: s.key()}
	defer soonFree(s, s.client(), shared.key)
	s.overNetworks(endOnTime, endOnTime, servedAfterSlowAnswers,
		shared.work, shared.work, shared.work)
	shared.check()
	return s.result()
}

// slowDown makes the network slow: the latency matters beside the TTL, and is small enough
// to have leases in spite of it.
func slowDown(n *network) {
	pace := n.h.coreTTL() / 10
	n.Slow(faultproxy.Both, faultproxy.Pace{Latency: pace, Jitter: pace, BytesPerSecond: 100_000})
}

// endOnTime has leases expire. The store keeps each until its deadline.
func endOnTime(n *network) {
	c := n.core(dlock.WithTTL(n.h.coreTTL()), dlock.WithRenewal(false))
	defer c.Close()
	slowDown(n)
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
	slowDown(n)
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
	if err := kept.Release(); isErr(err, dlock.ErrLost) && time.Now().After(kept.Deadline()) {
		n.stop(errInconclusive) // the machine was too slow to renew it
	} else if isErr(err, dlock.ErrLost) {
		n.fail("Lease.Release after an outage returned %w", err)
	}
	soonFree(n.scene, n.direct, kept.Key())
}

// outlastTTL is the TTL of a lease that outlasts an outage.
func (h Harness) outlastTTL() time.Duration { return 20 * h.coreTTL() }
