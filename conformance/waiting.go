package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

var waitingCases = []testCase{
	{name: "HolderAcquiresAgain", check: holderAcquiresAgain,
		clause: withSource("A backend grants Acquire to the holder at once, as it grants TryAcquire, even while others wait.")},
	{name: "WaiterIsNoHolder", check: waiterIsNoHolder,
		clause: withSource("A backend answers a token that only waits as it answers any stranger. The token keeps its place and its TTL.")},
	{name: "CancelledWait", check: cancelledWait,
		clause: withSource("A backend returns from Acquire soon after its ctx ends. A Release then leaves neither a place in the queue nor a lease.")},
	{name: "OneReleaseSettles", check: oneReleaseSettles,
		clause: withSource("A backend may return a NoEffectError and the holder from a cancelled wait. After one answered Release, neither place nor lease comes back.")},
	{name: "WaitEndsOnRelease", check: waitEndsOnRelease,
		clause: withSource("A backend serves a waiter when the holder releases the key.")},
	{name: "WaitEndsOnExpiry", check: waitEndsOnExpiry,
		clause: withSource("A backend serves a waiter at most 250 ms, plus the declared grace, after the holder's lease ends, unless the machine pauses.")},
	{name: "WaitEndsOnRemoval", check: waitEndsOnRemoval, once: true, alone: true, needs: needsWipe,
		clause: withSource("A backend serves a waiter within one check-in period if the key vanishes without a release or an expiry.")},
	{name: "FirstComeFirstServed", check: firstComeFirstServed, needs: needsOrder,
		clause: withSource("A backend that queues in order serves waiters in the order in which they came to the store.")},
	{name: "LongQueue", check: longQueue, once: true,
		clause: withSource("A backend forgets nobody in a queue of hundreds, and keeps its order if it has one, however many waited before and whoever leaves: at head, middle or tail.")},
	{name: "DeadWaiterIsSkipped", check: deadWaiterIsSkipped,
		clause: withSource("A backend is held up for at most a few seconds by a dead waiter.")},
	{name: "DeadHostManyWaiters", check: deadHostManyWaiters,
		clause: withSource("A backend is held up for at most a few seconds by a hundred waiters of one stopped process.")},
	{name: "DeadWaiterOverNetwork", check: deadWaiterOverNetwork, faults: true, needs: needsNetwork,
		clause: withSource("A backend is held up for at most a few seconds by waiters whose process was killed or whose host fell silent.")},
	{name: "NoStarvation", check: noStarvation,
		clause: withSource("A backend serves every waiter, with and without a subscription, while others keep coming.")},
}

// holderAcquiresAgain has a token that holds a key acquire it again, in either way, while
// others wait for it.
func holderAcquiresAgain(s *scene) error {
	a, b := s.client(), s.acquirer()
	ttl := max(s.h.ttl(), 4*s.h.gap()<<s.attempt)

	g := s.grant(a, s.key(), s.token("holder"), 2*ttl)
	acquiresAgain(s, a, g, ttl) // nobody waits
	w := s.wait(b, g.key, s.token("waiter"), long)
	s.above(g, s.again(b, g, ttl))
	s.renew(b, g, ttl, true)
	again := acquiresAgain(s, b, g, long)
	s.above(again, acquiresAgain(s, a, g, ttl)) // which does not shorten what is left
	s.lapse(2 * ttl)
	s.waits(w)
	s.held(b, g)
	s.release(a, g, true)
	s.above(again, s.served(w, "the holder released the key, which it had asked for again"))
	s.release(b, w.grant, true)
	s.free(a, g.key)
	return s.result()
}

// acquiresAgain has the holder of a key wait for it.
func acquiresAgain(s *scene, c *client, g grant, ttl time.Duration) grant {
	start := s.now()
	w := s.waitCtx(s.ctx, c, g.key, g.token, ttl)
	if s.over() {
		return g
	}
	if !s.await(w.done) {
		s.fail("%s.Acquire(%s, %s, %v), by the token that holds the key, has not returned for %v; want it to be acquired at once",
			c.name, brief(g.key), brief(g.token), ttl, s.h.patience())
		return g
	}
	if w.err != nil || !w.answer.Acquired {
		s.fail("%s.Acquire(%s, %s, %v), by the token that holds the key = %s, %w; want it to be acquired",
			c.name, brief(g.key), brief(g.token), ttl, show(w.answer), orNone(w.err))
	}
	s.certain(g.key, start.Add(ttl), false)
	again := grant{Attempt: w.answer, key: g.key, token: g.token, start: start}
	s.above(g, again)
	return again
}

// waiterIsNoHolder has a token that only waits do what holders do.
func waiterIsNoHolder(s *scene) error {
	a, b := s.client(), s.acquirer()
	s.atOnce(
		func() { strangerWaits(s, a, b) },
		func() { strangerWaitsForTheDead(s, a, b) },
	)
	return s.result()
}

// strangerWaits: its place and its TTL are those of its wait, whatever else it calls.
func strangerWaits(s *scene, a, b *client) {
	ttl := max(s.h.ttl(), 2*s.h.gap()<<s.attempt)
	g := s.grant(a, s.key(), s.token("holder"), long)
	w := s.wait(b, g.key, s.token("waiter"), ttl)
	other := s.wait(b, g.key, s.token("other"), long)
	for _, c := range []*client{a, b} {
		s.renew(c, w.grant, long, false)
		s.batch(c, w.grant, long, false)
		s.refused(c, g, w.token, long)
	}
	s.waits(w)
	s.held(a, g)
	s.release(a, g, true)
	if s.h.Unordered {
		return
	}
	s.served(w, "the holder released the key; the waiter, the first of two, had tried to renew it")
	s.waits(other)
	s.lapse(ttl)
	s.served(other, "the lease of a waiter had expired that had tried to renew it for longer before it was served")
	s.release(b, other.grant, true)
}

// strangerWaitsForTheDead: nor does it keep the lease of the holder alive.
func strangerWaitsForTheDead(s *scene, a, b *client) {
	ttl := max(s.h.ttl(), 3*s.h.gap()<<s.attempt)
	g := s.grant(a, s.key(), s.token("dead"), ttl)
	w := s.wait(b, g.key, s.token("waiter"), long)
	for c, call := range map[*client]endCall{a: renewEnds, b: renewBatchEnds} {
		if lastsBy(s, c, w.grant, call) && !s.mayHaveExpired(g.key) { // and the waiter been served
			s.fail("%s.%s(%s, %s), which only waits: held = true; want false", c.name, call.name, brief(w.key), brief(w.token))
		}
	}
	s.lapse(ttl)
	s.served(w, "the holder's lease had expired, which a waiter had tried to renew")
	s.release(b, w.grant, true)
	s.free(a, g.key)
}

func cancelledWait(s *scene) error {
	a, b := s.client(), s.acquirer()

	g := s.grant(a, s.key(), s.token("holder"), long)
	w := s.wait(b, g.key, s.token("waiter"), long)
	s.waits(w)
	s.forget(w)
	s.held(b, g)
	s.release(a, g, true)
	s.free(b, g.key)

	g = s.grant(a, s.key(), s.token("holder"), long)
	ctx, cancel := context.WithTimeout(s.ctx, s.h.gap())
	defer cancel()
	w = s.waitCtx(ctx, b, g.key, s.token("waiter"), long)
	s.ended(w)
	s.release(b, w.grant, false)
	s.held(b, g)
	s.release(a, g, true)
	for range 3 { // nothing comes back later
		s.gap()
		s.free(a, g.key)
	}

	for i := range 20 {
		behind := i%2 == 1
		cancelWhileServed(s, a, b, behind, func(w *waiter, release func()) { w.cancel(); release() })
		cancelWhileServed(s, a, b, behind, func(w *waiter, release func()) { go w.cancel(); release() })
		cancelWhileServed(s, a, b, behind, func(w *waiter, release func()) { release(); w.cancel() })
	}
	s.eachWay(a, b, cancelFirstOfTwo)
	return s.result()
}

// cancelWhileServed has a wait cancelled at the moment in which it is granted its
// key. Either may win; if another waits behind it, that is served next.
func cancelWhileServed(s *scene, a, b *client, behind bool, race func(w *waiter, release func())) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	w := s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long)
	time.Sleep(s.h.gap() / 10)
	var next *waiter
	if behind {
		next = s.waitCtx(s.ctx, b, g.key, s.token("next"), long)
		time.Sleep(s.h.gap() / 10)
	}
	race(w, func() { s.release(a, g, true) })
	if s.over() {
		return
	}
	if !s.await(w.done) {
		s.ended(w)
		return
	}
	if w.err == nil {
		s.release(b, w.grant, true)
	} else if _, err := b.Release(s.ctx, w.key, w.token); err != nil {
		s.noError(err, "Release", w.key)
	}
	if behind {
		s.served(next, "the holder released the key, and so did a waiter that came before, whose ctx ended at about the same time")
		s.release(b, next.grant, true)
	}
	s.free(a, g.key)
}

// cancelFirstOfTwo has the first of two waits cancelled a little before and a little
// after it is served. Either may win; the second is served in any case.
func cancelFirstOfTwo(s *scene, a, b *client) {
	s.atMoments(func(late time.Duration) {
		cancelFirst(s, a, b, func(cancel, release func()) { cancel(); time.Sleep(late); release() })
	})
	s.atMoments(func(late time.Duration) {
		cancelFirst(s, a, b, func(cancel, release func()) { release(); time.Sleep(late); cancel() })
	})
}

func cancelFirst(s *scene, a, b *client, race func(cancel, release func())) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	first := s.wait(b, g.key, s.token("first"), long)
	second := s.wait(a, g.key, s.token("second"), long)
	race(first.cancel, func() { go s.release(a, g, true) })
	if s.over() || !s.await(first.done) {
		s.ended(first)
		return
	}
	_, err := b.Release(s.ctx, first.key, first.token)
	s.noError(err, "Release", first.key)
	s.served(second, "the holder released the key, and the wait of the one who came before was cancelled")
}

// oneReleaseSettles cancels waits that know who holds the key: soon after they were
// answered, some time later, and about when the holder's lease ends and they check in.
func oneReleaseSettles(s *scene) error {
	s.acquirer()
	a, b := s.clients2()
	var waits []*settlement
	s.eachWay(a, b, func(s *scene, c, other *client) {
		rtt := s.roundTrip(c)
		wait := func(ttl, after time.Duration) {
			waits = append(waits, &settlement{c: c, other: other, ttl: ttl, after: after})
		}
		for i := range s.h.moments() {
			wait(long, rtt+rtt*time.Duration(i)/2)
			if s.h.Advance == nil {
				wait(s.h.ttl(), s.h.ttl()-rtt+rtt*time.Duration(i)/4)
			}
		}
		wait(long, s.h.gap())
	})
	var parts []func()
	for _, w := range waits {
		parts = append(parts, func() { w.settle(s) })
	}
	s.atOnce(parts...)
	waits = slices.DeleteFunc(waits, func(w *settlement) bool { return !w.settled })
	if len(waits) == 0 && !s.over() {
		s.skip("no error of a wait that was cancelled says, beside the holder, that no request of it is on its way")
	}
	for range 3 { // nothing comes back later
		s.gap()
		for _, w := range waits {
			s.freeAfter(w.other, w.key, "after a wait with an error which says that no request of it is on its way (a dlock.NoEffectError beside the holder), one answered Release of its token, and one of the holder's; want neither a place nor a lease to come back")
		}
	}
	return s.result()
}

// A settlement is a wait of c that is cancelled, and a release by other.
type settlement struct {
	c, other *client
	ttl      time.Duration // of the holder
	after    time.Duration // the wait is cancelled

	key     string
	settled bool // the error of the wait says that one release is enough
}

// settle releases token and holder as soon as the wait has ended, once each.
func (w *settlement) settle(s *scene) {
	g := s.grant(w.other, s.key(), s.token("holder"), w.ttl)
	w.key = g.key
	waiter := s.waitCtx(s.ctx, w.c, g.key, s.token("waiter"), long)
	defer time.AfterFunc(w.after, waiter.cancel).Stop()
	if s.over() {
		return
	}
	if !s.await(waiter.done) {
		s.ended(waiter)
		return
	}
	for _, token := range []string{waiter.token, g.token} {
		_, err := w.other.Release(s.ctx, g.key, token)
		s.noError(err, "Release", g.key)
	}
	w.settled = dlock.NoEffect(waiter.err) && tellsHolder(waiter.answer)
}

func waitEndsOnRelease(s *scene) error {
	a, b := s.client(), s.acquirer()

	w := s.waitCtx(s.ctx, b, s.key(), s.token("first"), long)
	s.served(w, "it was called, though nobody held the key")
	s.release(b, w.grant, true)

	g := w.grant
	for _, by := range []*client{a, b, s.client()} {
		g = s.grant(by, g.key, s.token("holder"), long)
		w := s.wait(b, g.key, s.token("waiter"), long)
		s.waits(w)
		s.release(by, g, true)
		g = s.served(w, "the holder released the key")
		s.held(a, g)
		s.release(a, g, true)
	}
	allServed(s, a, b)
	servedOnManyKeys(s, a, b)
	servedBeforeFarDeadline(s, a, b)
	s.eachWay(a, b, servedWhileComing)
	return s.result()
}

// allServed checks that each release serves one more of several waiters.
func allServed(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	var waiting []*waiter
	for i := range 4 {
		waiting = append(waiting, s.waitCtx(s.ctx, b, g.key, s.token(fmt.Sprint("waiter", i)), long))
	}
	s.gap()
	for len(waiting) > 0 && !s.over() {
		s.release(a, g, true)
		i := s.first(waiting)
		if i < 0 {
			s.fail("a holder released %s, for which %d waited, and %v later none of them was served", brief(g.key), len(waiting), s.h.patience())
			return
		}
		g = s.isServed(waiting[i])
		waiting = slices.Delete(waiting, i, i+1)
	}
	s.release(b, g, true)
	s.free(a, g.key)
}

// servedWhileComing: a release that a waiter meets on its way to the queue serves
// it.
func servedWhileComing(s *scene, a, b *client) {
	s.atMoments(func(late time.Duration) {
		g := s.grant(a, s.key(), s.token("holder"), long)
		w := s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long)
		time.Sleep(late)
		s.release(a, g, true)
		s.served(w, "the holder released the key, while the waiter was coming")
	})
}

// servedOnManyKeys has one client wait for many keys, of which the latest is released first.
func servedOnManyKeys(s *scene, a, b *client) {
	const why = "the holder released the key; the same client waits for many others"
	leases := s.takeMany(100, long, a)
	var waiting []*waiter
	for _, g := range leases {
		waiting = append(waiting, s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long))
	}
	s.gap()
	for i := len(leases) - 1; i >= 0 && !s.over(); i-- {
		s.release(a, leases[i], true)
		s.served(waiting[i], why)
		s.release(b, waiting[i].grant, true)
	}
}

// servedBeforeFarDeadline waits under a ctx that ends when nobody lives any more: too many
// milliseconds ahead for 32 bits, or nanoseconds for 64.
func servedBeforeFarDeadline(s *scene, a, b *client) {
	for _, far := range []time.Duration{(1<<31 + 1000) * time.Millisecond, (1<<32 + 1000) * time.Millisecond, math.MaxInt64} {
		ctx, cancel := context.WithTimeout(s.ctx, far)
		g := s.grant(a, s.key(), s.token("holder"), long)
		w := s.waitCtx(ctx, b, g.key, s.token("waiter"), long)
		s.gap()
		s.waits(w)
		s.release(a, g, true)
		s.served(w, "the holder released the key")
		s.release(b, w.grant, true)
		cancel()
	}
}

func waitEndsOnExpiry(s *scene) error {
	a, b := s.client(), s.acquirer()
	if s.h.Advance == nil {
		servedSoonAfterExpiry(s, a, b)
	}
	ttl := max(s.h.ttl(), s.h.gap()<<s.attempt)

	g := s.grant(a, s.key(), s.token("dead"), 2*ttl)
	w := s.waitCtx(s.ctx, b, g.key, s.token("waiter"), ttl)
	s.lapse(2 * ttl)
	s.served(w, "the holder's lease had expired")
	next := s.waitCtx(s.ctx, b, g.key, s.token("next"), long)
	s.lapse(ttl) // the first waiter was served, and died
	s.served(next, "the lease of a waiter that had been served had expired")
	s.release(b, next.grant, true)

	g = s.grant(a, s.key(), s.token("dead"), 2*ttl)
	w = s.wait(b, g.key, s.token("waiter"), long)
	s.renew(a, g, 5*ttl, true)
	s.sleep(2 * ttl)
	s.waits(w)
	s.lapse(3 * ttl)
	s.served(w, "the holder's lease, renewed once, had expired")
	s.release(b, w.grant, true)
	waitersLeave(s, a, b)
	return s.result()
}

// servedSoonAfterExpiry has several leases expire at times spread over a second, and takes
// the median of how late their waiters are served. A busy machine may be late with any call: so
// others make one at the same times.
func servedSoonAfterExpiry(s *scene, a, b *client) {
	const soon, several = 250 * time.Millisecond, 9
	late, others := make([]time.Duration, several), make([]time.Duration, several)
	busy := s.grant(a, s.key(), s.token("holder"), long)
	var all sync.WaitGroup
	for i := range several {
		ttl := s.h.ttl() + time.Duration(i)*time.Second/several
		ttl = ttl.Truncate(time.Millisecond)
		g := s.grant(a, s.key(), s.token("dead"), ttl)
		end := time.Now().Add(ttl)
		w := s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long)
		all.Go(func() {
			s.served(w, "the holder's lease had expired")
			late[i] = time.Since(end)
		})
		all.Go(func() {
			time.Sleep(time.Until(end))
			s.held(a, busy)
			others[i] = time.Since(end)
		})
	}
	all.Wait()
	slices.Sort(late)
	slices.Sort(others)
	median, most := late[several/2], s.h.grace()+soon
	if !s.h.Bubble {
		most += 2 * others[several/2]
	}
	switch {
	case median <= most:
	case s.attempt < tries-1: // the machine may be slow, but hardly each time
		s.stop(errInconclusive)
	default:
		s.fail("of %d waiters, half were served later than %v after the holder's lease had expired; want at most %v, which is Harness.Grace, %v, and what a busy machine takes",
			several, median.Round(time.Millisecond), most.Round(time.Millisecond), soon)
	}
}

// waitersLeave has some of three waiters leave in one way or another, after the holder
// has renewed its lease and the time at which that was to end has passed. When the
// holder dies, the others are served: whoever has left did not take away what was to
// wake them.
func waitersLeave(s *scene, a, b *client) {
	ttl := max(s.h.ttl(), 2*s.h.gap()<<s.attempt)
	var queues []*queueOfThree
	for _, leavers := range [][]int{{0}, {1}, {2}, {0, 1}, {1, 2}, {2, 0}} {
		for how, leave := range map[string]func(*waiter){
			"was cancelled": func(w *waiter) { w.cancel(); s.ended(w) },
			"was released":  s.forget,
		} {
			g := s.grant(a, s.key(), s.token("dead"), 4*ttl)
			queues = append(queues, &queueOfThree{holder: g, leavers: leavers, how: how, leave: leave})
		}
	}
	for i := range 3 {
		for _, q := range queues {
			q.waiting = append(q.waiting, s.waitCtx(s.ctx, b, q.holder.key, s.token(fmt.Sprint("waiter", i)), long))
		}
		s.gap()
	}
	for _, q := range queues {
		s.renew(a, q.holder, 6*ttl, true)
	}
	s.sleep(4 * ttl)
	for _, q := range queues {
		for _, i := range q.leavers {
			q.leave(q.waiting[i])
		}
		if s.mayHaveExpired(q.holder.key) { // and who has left been served
			return
		}
	}
	for _, q := range queues {
		othersServed(s, b, q)
	}
}

// A queueOfThree waits for a holder that dies.
type queueOfThree struct {
	holder  grant
	waiting []*waiter
	leavers []int // of the three
	how     string
	leave   func(*waiter)
}

func othersServed(s *scene, c *client, q *queueOfThree) {
	var staying []*waiter
	for i, w := range q.waiting {
		if !slices.Contains(q.leavers, i) {
			staying = append(staying, w)
		}
	}
	s.eachServed(staying,
		fmt.Sprintf("the lease of the holder, which was renewed once, had expired; of the 3 waiters that there were, each of numbers %v (from 0) %s", q.leavers, q.how),
		func(w *waiter) { s.release(c, w.grant, true) })
}

func waitEndsOnRemoval(s *scene) error {
	a, b := s.client(), s.acquirer()
	g := s.grant(a, s.key(), s.token("holder"), long)
	w := s.wait(b, g.key, s.token("waiter"), long)
	s.waits(w)
	s.wipe()
	s.served(w, "the store lost the key")
	s.release(b, w.grant, true)
	s.free(a, g.key)
	return s.result()
}
