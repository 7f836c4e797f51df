package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

// What LostReply, LateDuplicate and NoEffect do in this process, and over a network. A call that a Client makes is in the
// table by one that every store has.
var (
	lostReplies = []faultyCall{
		{lostOnce, "TryAcquire Renew Release", everywhere},
		{lostOfBatch, "RenewBatch", everywhere},
		{lostOfSet, "TryAcquireSet", everywhere},
		{lostAttempt, "TryAcquire", everywhere},
		{lostGrant, "TryAcquire", inProcess | cut},
		{lostWithTime, "TryAcquire Renew Release", cut},
	}
	// The token holds more when the call arrives, or nothing, or a key that another has.
	lateCalls = []faultyCall{
		{lateAfterMore, "TryAcquire TryAcquireSet Renew RenewBatch", everywhere},
		{lateAfterRelease, "TryAcquire TryAcquireSet Renew RenewBatch Release", everywhere},
		{lateAfterRelease, "Acquire", onNetwork}, // in this process, one that was given up does not arrive
		{lateAfterTakeover, "TryAcquire TryAcquireSet Renew RenewBatch Release", everywhere},
	}
	// What the errors say of calls whose replies are lost, or that arrive late, is believed.
	markedCalls = []faultyCall{
		{losesReply, "TryAcquire TryAcquireSet Renew RenewBatch Release", onNetwork},
		{arrivesLate, "TryAcquire TryAcquireSet Acquire Renew RenewBatch Release", onNetwork},
		{arrivesLast, "Acquire", onNetwork},
	}
)

func lostReply(s *scene, a, b *client) {
	givenUpOwesNoMore(s, a, b)
	givenUpIsRepeated(s, a, b)
	s.overLossy(lostReplies)
}

func lateDuplicate(s *scene, a, b *client) {
	s.overLossy(lateCalls)
	s.eachWay(a, b, renewAtRelease)
}

// givenUpOwesNoMore: the release that is owed for an attempt that was given up ends what that has acquired, and nothing else.
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
	x.s.goOn()
	call := c.name + "." + x.request(x.name, long).String()
	switch a, err := c.call(x.s.ctx, x.name, x.grant, long); {
	case err != nil:
		x.s.fail("%s, which was repeated, returned %w; want no error", call, err)
	case !a.Acquired && x.name == "TryAcquire":
		x.s.fail("%s, which was repeated, answered %s; want it to be acquired", call, show(a))
	case !a.Acquired && x.name != "Release":
		x.s.fail("%s, which was repeated, answered that the token does not hold the key; want that it does", call)
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

// answered checks that a call whose reply was lost returned an error or, because the client sent it again, the answer yes.
// It must not return that the token does not hold the key: it does, or did when the call was made.
func answered(n *network, name string, g grant, yes bool, err error) {
	if err == nil && !yes {
		n.fail("%s(%s, %s), whose reply was lost, answered that the token does not hold the key; want an error, or the answer that was lost",
			name, brief(g.key), brief(g.token))
	}
}

// lostOfBatch loses the reply for one of several renewals. None may be said to be lost.
func lostOfBatch(n *network, _ kind, e faultproxy.Ending) {
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
func lostOfSet(n *network, _ kind, e faultproxy.Ending) {
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
func lostAttempt(n *network, _ kind, e faultproxy.Ending) {
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	key := n.key()
	n.unansweredBy(n.lose(key, e, "Client.TryAcquire", func(ctx context.Context) error {
		lease, err := c.TryAcquire(ctx, key)
		if err == nil {
			n.noError(lease.Release(), "Lease.Release", key)
		}
		return err
	}), "Client.TryAcquire")
	soonFree(n.scene, n.direct, key)
}

// unansweredBy checks that err is not one that only an answer of the store could justify.
func (n *network) unansweredBy(err error, call string) {
	invalid := isErr(err, dlock.ErrInvalid) && dlock.NoEffect(err)
	if isErr(err, dlock.ErrHeld) || isErr(err, dlock.ErrLost) || invalid {
		n.fail("%s, whose reply was lost, returned %q; want that the store did not answer", call, err)
	}
}

// lostGrant: a waiter that does not hear of its grant goes on waiting, and what it was granted does not stand in its way.
func lostGrant(n *network, _ kind, e faultproxy.Ending) {
	held := n.grant(n.direct, n.key(), n.token("holder"), long)
	c := n.core(dlock.WithRenewal(false))
	defer c.Close()
	if n.lossy == nil {
		n.Watch(faultproxy.Contains(held.key)) // the call that is answered at once
	}
	n.dropReply(held.key, e, "Acquire")
	w := startWait(n, c, held.key)
	n.gap()
	n.release(n.direct, held, true)
	succeeds(n, w)
	soonFree(n.scene, n.direct, held.key)
}

// soonFree checks that key becomes free well within the TTL of a lease on it.
func soonFree(s *scene, c *client, key string) {
	freeSoon(s, c, key, "a Client gave up what it had acquired")
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
	n.release(n.direct, x.grant, x.role == ofHolder)
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
	n.release(n.direct, x.grant, x.role == ofHolder)
	g := n.grant(n.direct, x.key, n.token("next"), next)
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

// renewAtRelease: a renewal that is on its way when the lease is released does not undo that.
func renewAtRelease(s *scene, a, holder *client) {
	s.atMoments(func(late time.Duration) {
		g := s.grant(holder, s.key(), s.token("holder"), long)
		var wg sync.WaitGroup
		wg.Go(func() { s.noError(holder.renewBy(s.ctx, "Renew", g), "Renew", g.key) })
		time.Sleep(late)
		s.release(a, g, true)
		wg.Wait()
		s.free(a, g.key)
	})
}

func losesReply(n *network, k kind, e faultproxy.Ending) {
	x := n.prepare(k, n.direct, n.strikeTTL())
	call, _ := x.make(n.via, long)
	if dlock.NoEffect(n.lose(x.token, e, k.name, call)) {
		n.hadNoEffect(x)
	}
}

// arrivesLate has a call arrive after its caller has given up, and arrivesLast a wait after the release that it was to
// wait for.
func arrivesLate(n *network, k kind, e faultproxy.Ending) { delayed(n, k, e, false) }
func arrivesLast(n *network, k kind, e faultproxy.Ending) { delayed(n, k, e, true) }

// delayed keeps the first request of a call back, and delivers it if the error says that the call has no effect.
func delayed(n *network, k kind, e faultproxy.Ending, last bool) {
	x := n.prepare(k, n.direct, n.strikeTTL())
	call, a := x.make(n.via, long)
	f := n.Hold(faultproxy.Contains(x.token), e)
	if !dlock.NoEffect(n.spoil(f, k.name, call)) {
		return
	}
	if tellsHolder(*a) { // a release is owed
		n.release(n.direct, x.grant, false)
	}
	if last {
		x.settle()
	}
	n.deliver(f, k.name)
	if !last {
		x.settle()
	}
	n.hadNoEffect(x)
}

// strikeTTL is the TTL of a lease that a fault must strike before it ends.
func (n *network) strikeTTL() time.Duration { return 2 * n.h.ttl() }

func (n *network) hadNoEffect(x *trial) {
	x.lapse(n.strikeTTL())
	x.hadNoEffect(x.interrupted())
}

// checkInInFlight cancels a wait while its next check-in is in flight, after the store has answered who holds the key. A
// wait that gets no such answer, or sends no check-in within some seconds, is of another kind.
func checkInInFlight(n *network) {
	k := kind{"Acquire", ofStranger}
	if !n.can(n.via, k) {
		return
	}
	x := n.prepare(k, n.direct, long)
	first := n.Watch(faultproxy.Contains(x.token))
	w := n.waitCtx(n.ctx, n.via, x.key, x.token, long)
	const period = 3 * time.Second
	answered := n.soon(first.Struck()) && await(first.Answered(), n.h.gap())
	checkIn := n.Hold(faultproxy.Contains(x.token), faultproxy.Stall)
	checksIn := answered && await(checkIn.Struck(), period)
	w.cancel()
	n.ended(w)
	if !checksIn {
		n.Lift(checkIn)
	}
	n.release(n.direct, w.grant, false)
	x.settle()
	if checksIn && dlock.NoEffect(w.err) {
		n.deliver(checkIn, x.name)
		n.hadNoEffect(x)
	}
}

// noEffect ends the ctx of each call at many moments, from before it is sent until after
// it is answered, and believes what the error says, also later.
func noEffect(s *scene, a, b *client) {
	var ways []*interruptions
	s.eachWay(a, b, func(s *scene, c, other *client) {
		ways = append(ways, &interruptions{scene: s, c: c, other: other, kinds: s.kindsOf(c), rtt: s.roundTrip(c), unknown: make(map[kind]bool)})
	})
	var all sync.WaitGroup
	for _, w := range ways {
		for i := range s.h.moments() {
			all.Go(func() {
				for _, k := range w.kinds {
					w.interrupt(k, w.rtt*time.Duration(4*i)/time.Duration(3*s.h.moments()), false)
				}
			})
		}
	}
	all.Wait()
	for _, w := range ways {
		for _, k := range w.kinds {
			w.untilUnknown(k)
		}
	}
	s.gap()
	s.lapse(s.h.ttl()) // of what was renewed
	for _, w := range ways {
		w.mu.Lock()
		claimed := slices.Clone(w.claimed)
		w.mu.Unlock()
		for _, x := range claimed {
			x.hadNoEffect(x.interrupted())
		}
	}
}

func (x *trial) interrupted() string {
	return fmt.Sprintf("after an interrupted %s whose error says that it has no effect; a dlock.NoEffectError, or one that means the same, is right only where nothing was sent, where the store has refused the call, where each request of a wait was answered, or as the answer that a dlock.UnansweredError promises", x.name)
}

// tellsHolder reports whether the Attempt beside an error says that the store had answered "held".
func tellsHolder(a dlock.Attempt) bool { return a.Holder != "" || a.Remaining != 0 }

func (h Harness) moments() int { return h.rounds(8) }

// Interruptions are calls of c whose ctx ends in their course.
type interruptions struct {
	*scene
	c, other *client
	kinds    []kind // that c offers
	rtt      time.Duration

	mu      sync.Mutex
	claimed []*trial      // calls whose errors say that they have no effect
	unknown map[kind]bool // of which one was interrupted with an error that leaves its effect open
}

// interrupt makes a call whose ctx ends after some time. That is in time, though the machine may be idle, if it is prompt.
func (w *interruptions) interrupt(k kind, after time.Duration, prompt bool) (took time.Duration, err error) {
	x := w.prepare(k, w.other, w.h.ttl())
	ctx, cancel := context.WithTimeout(w.ctx, after)
	defer cancel()
	if prompt {
		stop := keepAwake(ctx)
		defer stop()
	}
	start, late := time.Now(), ctx.Err() != nil // then nothing may have been sent
	a, err := w.c.call(ctx, k.name, x.grant, long)
	took = time.Since(start)
	x.settle()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
	case !dlock.NoEffect(err):
		w.unknown[k] = w.unknown[k] || !late
		w.believeLate(err, x)
	case supported(err) && !tellsHolder(a): // else one release is owed, as OneReleaseSettles says
		w.claimed = append(w.claimed, x)
	}
	return took, err
}

// believeLate claims that a call had no effect once a late answer says so.
func (w *interruptions) believeLate(err error, x *trial) {
	unanswered, ok := errors.AsType[*dlock.UnansweredError](err)
	if !ok {
		return
	}
	unanswered.Late(func(a dlock.Attempt, err error) {
		if err == nil && a.Acquired || err != nil && (!dlock.NoEffect(err) || tellsHolder(a)) {
			return
		}
		go func() { // it does not wait for w
			w.mu.Lock()
			defer w.mu.Unlock()
			w.claimed = append(w.claimed, x)
		}()
	})
}

// untilUnknown interrupts calls again, until the effect of one is open: it was on its way then.
// Where a store is near, none may have been. If all errors say that their call has no effect,
// one of them is wrong by then. In a bubble, moments are exact.
func (w *interruptions) untilUnknown(k kind) {
	const rounds = 60
	took, end := w.rtt, time.Now().Add(50*time.Millisecond)
	for n := 1; n < rounds && !w.h.Bubble && !w.unknown[k] && time.Now().Before(end); n++ {
		part := math.Mod(float64(n)*math.Phi, 1)
		if last, err := w.interrupt(k, time.Duration(part*float64(took)), true); err != nil {
			took += took / 8
		} else {
			took = (took + last) / 2
		}
	}
}

// keepAwake keeps the scheduler busy until ctx ends. It looks at its timers then, while an idle
// one may sleep for a millisecond.
func keepAwake(ctx context.Context) (stop func()) {
	done := make(chan struct{})
	go func() {
		for ctx.Err() == nil && !isClosed(done) {
			runtime.Gosched()
		}
	}()
	return func() { close(done) }
}
