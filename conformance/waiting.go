package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

var waitingCases = []testCase{
	is("HolderAcquiresAgain", holderAcquiresAgain, "A backend grants Acquire to the holder at once, as it grants TryAcquire, even while others wait.").with(acquire),
	is("WaiterIsNoHolder", waiterIsNoHolder, "A backend answers a token that only waits as it answers any stranger. The token keeps its place and its TTL.").with(acquire),
	is("CancelledWait", cancelledWait, "A backend returns from Acquire soon after its ctx ends. A Release then leaves neither a place in the queue nor a lease.").with(acquire),
	is("OneReleaseSettles", oneReleaseSettles, "A backend may return a NoEffectError and the holder from a cancelled wait. After one answered Release, neither place nor lease comes back.").with(acquire),
	is("WaitEndsOnRelease", waitEndsOnRelease, "A backend serves a waiter when the holder releases the key.").with(acquire),
	is("WaitEndsOnExpiry", waitEndsOnExpiry, "A backend serves a waiter at most 250 ms, plus the declared grace, after the holder's lease ends, unless the machine pauses.").with(acquire),
	is("WaitEndsOnRemoval", waitEndsOnRemoval, "A backend serves a waiter within one check-in period if the key vanishes without a release or an expiry.").with(acquire).single().needing(needsWipe),
	is("FirstComeFirstServed", firstComeFirstServed, "A backend that queues in order serves waiters in the order in which they came to the store.").with(acquire).needing(needsOrder),
	is("LongQueue", longQueue, "A backend forgets nobody in a queue of hundreds, and keeps its order if it has one, however many waited before and whoever leaves: at head, middle or tail.").with(acquire),
	is("DeadWaiterIsSkipped", deadWaiterIsSkipped, "A backend is held up for at most a few seconds by a dead waiter.").with(acquire),
	is("DeadHostManyWaiters", deadHostManyWaiters, "A backend is held up for at most a few seconds by a hundred waiters of one stopped process.").with(acquire),
	is("DeadWaiterOverNetwork", deadWaiterOverNetwork, "A backend is held up for at most a few seconds by waiters whose process was killed or whose host fell silent.").with(acquire).faulty().needing(needsNetwork),
	is("NoStarvation", noStarvation, "A backend serves every waiter, with and without a subscription, while others keep coming."),
}

// holderAcquiresAgain has a token that holds a key acquire it again, in either way, while others wait for it.
func holderAcquiresAgain(s *scene, a, b *client) {
	ttl := max(s.h.ttl(), 4*s.h.gap()<<s.attempt)
	g := s.grant(a, s.key(), s.token("holder"), 2*ttl)
	acquiresAgain(s, a, g, ttl) // nobody waits
	w := s.wait(b, g.key, s.token("waiter"), long)
	s.above(g, s.again(b, g, ttl))
	s.renew(b, g, ttl, true)
	again := acquiresAgain(s, b, g, long)
	s.above(again, acquiresAgain(s, a, g, ttl))
	s.certain(g.key, again.start.Add(long), false) // the last does not shorten what is left
	s.lapse(2 * ttl)
	s.waits(w)
	s.held(b, g)
	s.release(a, g, true)
	s.above(again, s.served(w, "the holder released the key, which it had asked for again"))
	s.release(b, w.grant, true)
	s.free(a, g.key)
}

// acquiresAgain has the holder of a key wait for it.
func acquiresAgain(s *scene, c *client, g grant, ttl time.Duration) grant {
	again := s.served(s.waitCtx(s.ctx, c, g.key, g.token, ttl), "it was called by the token that holds the key")
	s.certain(g.key, again.start.Add(ttl), false)
	s.above(g, again)
	return again
}

// waiterIsNoHolder has tokens that only wait do what holders do. They do not keep the lease of the
// holder alive. Their places and TTLs are those of their waits, whatever else they call.
func waiterIsNoHolder(s *scene, a, b *client) {
	ttl := max(s.h.ttl(), 3*s.h.gap()<<s.attempt)
	g := s.grant(a, s.key(), s.token("dead"), ttl)
	w := s.wait(b, g.key, s.token("waiter"), long)
	_ = a.renewBy(s.ctx, "Renew", w.grant) // on a slow machine, the waiter may have been served
	_ = b.renewBy(s.ctx, "RenewBatch", w.grant)
	s.lapse(ttl)
	s.served(w, "the holder's lease had expired, which a waiter had tried to renew")
	s.release(b, w.grant, true)
	s.free(a, g.key)
	g = s.grant(a, s.key(), s.token("holder"), long)
	w = s.wait(b, g.key, s.token("waiter"), ttl)
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

func cancelledWait(s *scene, a, b *client) {
	for _, deadline := range []time.Duration{long, s.h.gap() / 2} {
		g := s.grant(a, s.key(), s.token("holder"), long)
		ctx, cancel := context.WithTimeout(s.ctx, deadline)
		defer cancel()
		w := s.waitCtx(ctx, b, g.key, s.token("waiter"), long)
		s.gap()
		s.forget(w)
		s.held(b, g)
		s.release(a, g, true)
		for range 3 { // nothing comes back later
			s.free(a, g.key)
			s.gap()
		}
	}
	s.eachWay(a, b, func(s *scene, a, b *client) {
		s.atMoments(func(late time.Duration) {
			for _, behind := range []bool{false, true} {
				cancelWhileServed(s, a, b, behind, func(cancel, release func()) { cancel(); time.Sleep(late); release() })
				cancelWhileServed(s, a, b, behind, func(cancel, release func()) { release(); time.Sleep(late); cancel() })
				cancelWhileServed(s, a, b, behind, func(cancel, release func()) { release(); cancel() })
			}
		})
	})
}

// cancelWhileServed has a wait cancelled at about the moment in which it is granted its key. Either
// may win; if another waits behind it, that is served next.
func cancelWhileServed(s *scene, a, b *client, behind bool, race func(cancel, release func())) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	w := s.wait(b, g.key, s.token("waiter"), long)
	var next *waiter
	if behind {
		next = s.wait(a, g.key, s.token("next"), long)
	}
	var released sync.WaitGroup
	race(w.cancel, func() { released.Go(func() { s.release(a, g, true) }) })
	s.returns(w)
	if w.err == nil {
		s.isServed(w)
	}
	_, err := b.Release(s.ctx, w.key, w.token)
	s.noError(err, "Release", w.key)
	released.Wait()
	if behind {
		s.served(next, "the holder released the key, and the wait of the one who came before was cancelled")
		s.release(a, next.grant, true)
	}
	s.free(a, g.key)
}

// oneReleaseSettles cancels waits that know who holds the key: soon after they were
// answered, some time later, and about when the holder's lease ends and they check in.
func oneReleaseSettles(s *scene, a, b *client) {
	var waits []func()
	var settled atomic.Int64
	s.eachWay(a, b, func(s *scene, c, other *client) {
		rtt := s.roundTrip(c)
		cancelled := func(ttl, after time.Duration) {
			waits = append(waits, func() { settles(s, c, other, ttl, after, &settled) })
		}
		for i := range s.h.moments() {
			cancelled(long, rtt+rtt*time.Duration(i)/2)
			cancelled(s.h.ttl(), s.h.ttl()-rtt+rtt*time.Duration(i)/4)
		}
		cancelled(long, s.h.gap())
	})
	s.atOnce(waits...)
	if settled.Load() == 0 {
		s.skip("no error of a wait that was cancelled says, beside the holder, that no request of it is on its way")
	}
}

// settles has a wait of c cancelled, and its token and the holder's released as soon as it has ended,
// once each. If the error of the wait says that this is enough, the key stays free.
func settles(s *scene, c, other *client, ttl, after time.Duration, settled *atomic.Int64) {
	g := s.grant(other, s.key(), s.token("holder"), ttl)
	w := s.waitCtx(s.ctx, c, g.key, s.token("waiter"), long)
	defer time.AfterFunc(after, w.cancel).Stop()
	s.returns(w)
	for _, token := range []string{w.token, g.token} {
		_, err := other.Release(s.ctx, g.key, token)
		s.noError(err, "Release", g.key)
	}
	if !dlock.NoEffect(w.err) || !tellsHolder(w.answer) {
		return
	}
	settled.Add(1)
	for range 3 { // nothing comes back later
		s.gap()
		s.freeAfter(other, g.key, "after a wait with an error which says that no request of it is on its way (a dlock.NoEffectError beside the holder), one answered Release of its token, and one of the holder's; want neither a place nor a lease to come back")
	}
}

func waitEndsOnRelease(s *scene, a, b *client) {
	w := s.waitCtx(s.ctx, b, s.key(), s.token("first"), long)
	s.served(w, "it was called, though nobody held the key")
	s.release(b, w.grant, true)
	for by, far := range map[*client]time.Duration{ // too many milliseconds for 32 bits, or nanoseconds for 64
		a: (1<<31 + 1000) * time.Millisecond, b: (1<<32 + 1000) * time.Millisecond, s.client(): math.MaxInt64,
	} {
		ctx, cancel := context.WithTimeout(s.ctx, far)
		g := s.grant(by, w.key, s.token("holder"), long)
		next := s.waitCtx(ctx, b, g.key, s.token("waiter"), long)
		s.gap()
		s.waits(next)
		s.release(by, g, true)
		s.held(a, s.served(next, fmt.Sprintf("the holder released the key; the ctx of the wait ends %v later", far)))
		s.release(a, next.grant, true)
		cancel()
	}
	g := s.grant(a, s.key(), s.token("holder"), long)
	serveLine(s, a, g, joinLine(s, []*client{b}, g.key, 4, 1))
	servedOnManyKeys(s, a, b)
	s.eachWay(a, b, servedWhileComing)
}

// servedWhileComing: a release that a waiter meets on its way to the queue serves it.
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
	leases := s.takeMany(100, long, a)
	var waiting []*waiter
	for _, g := range leases {
		waiting = append(waiting, s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long))
	}
	s.gap()
	for i, w := range slices.Backward(waiting) {
		s.release(a, leases[i], true)
		s.served(w, "the holder released the key; the same client waits for many others")
		s.release(b, w.grant, true)
	}
}

func waitEndsOnExpiry(s *scene, a, b *client) {
	servedSoonAfterExpiry(s, a, b)
	ttl := max(s.h.ttl(), s.h.gap()<<s.attempt)
	g := s.grant(a, s.key(), s.token("dead"), 2*ttl)
	w := s.waitCtx(s.ctx, b, g.key, s.token("waiter"), ttl)
	s.lapse(2 * ttl)
	s.served(w, "the holder's lease had expired")
	next := s.waitCtx(s.ctx, b, g.key, s.token("next"), long)
	s.lapse(ttl) // the first waiter was served, and died
	s.served(next, "the lease of a waiter that had been served had expired")
	s.release(b, next.grant, true)
	waitersLeave(s, a, b)
}

// servedSoonAfterExpiry has several leases expire at times spread over a second, and takes the median of how late their
// waiters are served. A busy machine may be late with any call: so others make one at the same times.
func servedSoonAfterExpiry(s *scene, a, b *client) {
	const soon, several = 250 * time.Millisecond, 9
	late, others := make([]time.Duration, several), make([]time.Duration, several)
	busy := s.grant(a, s.key(), s.token("holder"), long)
	var all sync.WaitGroup
	for i := range several {
		ttl := (s.h.ttl() + time.Duration(i)*time.Second/several).Truncate(time.Millisecond)
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

// waitersLeave has some of three waiters leave, after the holder has renewed its lease and the time at which that was to end
// has passed. When the holder dies, the others are served: whoever has left did not take away what was to wake them.
func waitersLeave(s *scene, a, b *client) {
	ttl := max(s.h.ttl(), 2*s.h.gap()<<s.attempt)
	leavers := [][]int{{}, {0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}}
	holders := s.takeMany(2*len(leavers), 4*ttl, a)
	lines, staying := make([][]*waiter, len(holders)), make([][]*waiter, len(holders))
	for range 3 {
		for i, g := range holders {
			lines[i] = append(lines[i], s.waitCtx(s.ctx, b, g.key, s.token("waiter"), long))
		}
		s.gap()
	}
	for _, g := range holders {
		s.renew(a, g, 6*ttl, true)
	}
	s.sleep(4 * ttl)
	for i, line := range lines {
		for n, w := range line {
			s.waits(w)
			switch {
			case !slices.Contains(leavers[i/2], n):
				staying[i] = append(staying[i], w)
			case i%2 == 0:
				s.forget(w)
			default:
				w.cancel()
				s.ended(w)
			}
		}
		s.mayHaveExpired(holders[i].key) // and who has left been served
	}
	for i, line := range staying {
		why := fmt.Sprintf("the lease of the holder, which was renewed once, had expired; numbers %v (from 0) of 3 waiters had left", leavers[i/2])
		s.eachServed(line, why, func(w *waiter) { s.release(b, w.grant, true) })
	}
}

func waitEndsOnRemoval(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	w := s.wait(b, g.key, s.token("waiter"), long)
	s.waits(w)
	s.wipe()
	s.served(w, "the store lost the key")
	s.release(b, w.grant, true)
	s.free(a, g.key)
}
