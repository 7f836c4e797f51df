package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

func endedContext(s *scene) error {
	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	late, cancel := context.WithDeadline(s.ctx, time.Now().Add(-time.Second))
	defer cancel()
	caused, cause := context.WithCancelCause(s.ctx)
	cause(errCause)
	lateCaused, cancel := context.WithDeadlineCause(s.ctx, time.Now().Add(-time.Second), errCause)
	defer cancel()
	var checks []func()
	for _, ctx := range []context.Context{ended, late, caused, lateCaused} {
		a, b := s.clients2()
		checks = append(checks, func() {
			s.endedAttempts(ctx, a, b)
			s.endedOnHolder(ctx, a, b)
		})
	}
	s.atOnce(checks...)
	return s.result()
}

// errCause is why a ctx has ended. That is the caller's affair, and not the error of ctx.
var errCause = errors.New("conformance: the cause of the end of a context")

// endedAttempts tries to take a free key under a ctx that has ended.
func (s *scene) endedAttempts(ctx context.Context, a, b *client) {
	key, token := s.key(), s.token("late")
	s.uses(key, token)
	_, err := a.TryAcquire(ctx, key, token, long)
	s.refusedWith(ctx, err, "TryAcquire")
	s.free(b, key)
	_, err = a.Acquire(ctx, key, token, long)
	s.refusedWith(ctx, err, "Acquire")
	s.free(b, key)
}

// endedOnHolder calls everything that can change or read a lease under a ctx
// that has ended.
func (s *scene) endedOnHolder(ctx context.Context, a, b *client) {
	ttl := s.h.ttl()
	g := s.grant(a, s.key(), s.token("holder"), long)
	_, err := a.Release(ctx, g.key, g.token)
	s.refusedWith(ctx, err, "Release")
	_, err = a.Inspect(ctx, g.key)
	s.refusedWith(ctx, err, "Inspect")
	s.held(b, g)
	s.release(a, g, true)

	for _, call := range []string{"Renew", "RenewBatch"} {
		g = s.grant(a, s.key(), s.token("holder"), ttl)
		s.refusedWith(ctx, a.renewBy(ctx, call, g), call)
		s.lapse(ttl)
		s.free(b, g.key)
	}
}

// refusedWith checks what a call under an ended ctx returned.
func (s *scene) refusedWith(ctx context.Context, err error, call string) {
	if err != nil && !supported(err) {
		return
	}
	if !isErr(err, ctx.Err()) {
		s.fail("%s under a ctx that had ended returned the error %v; want %v", call, err, ctx.Err())
	}
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
		s.cancelWhileServed(a, b, behind, func(w *waiter, release func()) { w.cancel(); release() })
		s.cancelWhileServed(a, b, behind, func(w *waiter, release func()) { go w.cancel(); release() })
		s.cancelWhileServed(a, b, behind, func(w *waiter, release func()) { release(); w.cancel() })
	}
	eachWay(a, b, s.cancelFirstOfTwo)
	return s.result()
}

// cancelWhileServed has a wait cancelled at the moment in which it is granted its
// key. Either may win; if another waits behind it, that is served next.
func (s *scene) cancelWhileServed(a, b *client, behind bool, race func(w *waiter, release func())) {
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
	s.allServed(a, b)
	s.servedOnManyKeys(a, b)
	s.servedBeforeFarDeadline(a, b)
	eachWay(a, b, s.servedWhileComing)
	return s.result()
}

// allServed checks that each release serves one more of several waiters.
func (s *scene) allServed(a, b *client) {
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

// first returns the index of a waiter that has returned, or -1 if none has
// within the harness's patience.
func (s *scene) first(waiting []*waiter) int {
	returned := make(chan struct{})
	var once sync.Once
	for _, w := range waiting {
		go func() {
			<-w.done
			once.Do(func() { close(returned) })
		}()
	}
	s.await(returned)
	return slices.IndexFunc(waiting, (*waiter).returned)
}

func (w *waiter) returned() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func waitEndsOnExpiry(s *scene) error {
	a, b := s.client(), s.acquirer()
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
	s.waitersLeave(a, b)
	return s.result()
}

// waitersLeave has some of three waiters leave in one way or another, after the holder
// has renewed its lease and the time at which that was to end has passed. When the
// holder dies, the others are served: whoever has left did not take away what was to
// wake them.
func (s *scene) waitersLeave(a, b *client) {
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
		s.othersServed(b, q)
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

func (s *scene) othersServed(c *client, q *queueOfThree) {
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

// eachServed checks that all of waiting are served, in whatever order, and calls next for
// each when it has been: so the key is freed for the others.
func (s *scene) eachServed(waiting []*waiter, why string, next func(*waiter)) {
	waiting = slices.Clone(waiting)
	for len(waiting) > 0 && !s.over() {
		i := s.first(waiting)
		if i < 0 {
			s.fail("none of %d waiters for %s has been served %v after %s", len(waiting), brief(waiting[0].key), s.h.patience(), why)
			return
		}
		s.isServed(waiting[i])
		next(waiting[i])
		waiting = slices.Delete(waiting, i, i+1)
	}
}

// servedOnManyKeys has one client wait for many keys, of which the latest is released first.
func (s *scene) servedOnManyKeys(a, b *client) {
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
func (s *scene) servedBeforeFarDeadline(a, b *client) {
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

func firstComeFirstServed(s *scene) error {
	a := s.client()
	clients := []*client{s.acquirer(), s.client(), a}
	g := s.grant(a, s.key(), s.token("holder"), long)
	var waiting []*waiter
	for i := range 6 {
		waiting = append(waiting, s.wait(clients[i%3], g.key, s.token(fmt.Sprint("waiter", i)), long))
	}
	for n := 0; len(waiting) > 0 && !s.over(); n++ {
		s.release(a, g, true)
		i := s.first(waiting)
		if i != 0 {
			s.outOfOrder(i+n, n)
			return s.result()
		}
		g = s.isServed(waiting[0])
		waiting = waiting[1:]
	}
	s.release(a, g, true)
	return s.result()
}

// outOfOrder is a violation if it happens again and again: the first time it may
// be that the waiters came to the store in another order than they set out.
func (s *scene) outOfOrder(got, want int) {
	if !s.h.Bubble && s.attempt < tries-2 {
		s.stop(errInconclusive)
		return
	}
	if got < want {
		s.fail("%v after the release nobody was served; want waiter%d, who came first", s.h.patience(), want)
		return
	}
	s.fail("waiter%d was served; want waiter%d, who came before", got, want)
}

func deadWaiterIsSkipped(s *scene) error {
	a, b := s.client(), s.acquirer()
	g := s.grant(a, s.key(), s.token("holder"), long)
	dead := s.wait(b, g.key, s.token("dead"), long)
	alive := s.wait(s.client(), g.key, s.token("alive"), long)
	deadToo := s.wait(b, g.key, s.token("dead"), long)
	last := s.wait(b, g.key, s.token("last"), long)
	for _, w := range []*waiter{dead, deadToo} {
		w.cancel()
		s.ended(w)
	}
	s.release(a, g, true)
	s.eachServed([]*waiter{alive, last}, "the holder released the key; a waiter that came before had died",
		func(w *waiter) { s.release(a, w.grant, true) })
	s.othersStay(a, b)
	return s.result()
}

// othersStay: that a waiter has died is no reason to serve those behind it, while the key is
// held, nor to forget others of its client, that wait for the same key or another. In a
// bubble there is time for the session of the dead to end.
func (s *scene) othersStay(a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	h := s.grant(a, s.key(), s.token("holder"), long)
	dead := s.wait(b, g.key, s.token("dead"), long)
	behind := []*waiter{s.wait(a, g.key, s.token("alive"), long), s.wait(b, g.key, s.token("same"), long)}
	other := s.wait(b, h.key, s.token("other"), long)
	dead.cancel()
	s.ended(dead)
	if s.h.Bubble {
		s.sleep(time.Minute)
	}
	for _, w := range append(behind, other) {
		s.waits(w)
	}
	s.held(a, g)
	s.renew(a, g, long, true)
	s.release(a, g, true)
	s.release(a, h, true)
	s.served(other, "the holder released the key; a wait of the same client for another key had ended before")
	s.release(a, other.grant, true)
	s.eachServed(behind, "the holder released the key; a waiter that came before, of the client of one of them, had died",
		func(w *waiter) { s.release(a, w.grant, true) })
}

func deadHostManyWaiters(s *scene) error {
	const (
		many = 100
		ttl  = 5 * time.Second // one of them may be served while it dies
	)
	a, host := s.client(), s.acquirer()
	g := s.grant(a, s.key(), s.token("holder"), long)
	dead := make([]*waiter, many)
	for i := range dead {
		dead[i] = s.waitCtx(s.ctx, host, g.key, s.token("dead"), ttl)
	}
	s.gap()
	alive := s.wait(s.client(), g.key, s.token("alive"), long)
	for _, w := range dead {
		w.cancel()
	}
	for _, w := range dead {
		s.ended(w)
	}
	s.release(a, g, true)
	g = s.served(alive, fmt.Sprintf("the holder released the key; %d waiters of one client that came before had died", many))
	s.release(a, g, true)
	return s.result()
}
