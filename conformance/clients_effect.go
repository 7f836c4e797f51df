package conformance

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

// noEffect ends the ctx of each call at many moments, from before it is sent until after
// it is answered, and believes what the error says.
func noEffect(s *scene) error {
	a, b := s.clients2()
	var calls []*interrupted
	var ways []*interruptions
	s.eachWay(a, b, func(s *scene, c, other *client) {
		w := &interruptions{scene: s, c: c, other: other, able: s.abilities(c), rtt: s.roundTrip(c), unknown: make(map[string]bool)}
		ways = append(ways, w)
		for i := range s.h.moments() {
			calls = append(calls, w.after(w.rtt*time.Duration(4*i)/time.Duration(3*s.h.moments())))
		}
	})
	var all sync.WaitGroup
	for _, x := range calls {
		all.Go(x.makeAll)
	}
	all.Wait()
	for _, w := range ways {
		calls = append(calls, w.untilUnknown()...)
	}
	s.gap()
	s.lapse(s.h.ttl()) // of what was renewed
	for _, x := range calls {
		for _, check := range x.checks {
			check()
		}
	}
	return s.result()
}

// tellsHolder reports whether the Attempt beside an error says that the store had
// answered "held".
func tellsHolder(a dlock.Attempt) bool { return a.Holder != "" || a.Remaining != 0 }

// moments is how many moments of a call are tried.
func (h Harness) moments() int {
	if h.Advance != nil {
		return 4 // they are slow
	}
	return h.rounds(8)
}

// Interruptions are all calls of c whose ctx ends in their course.
type interruptions struct {
	*scene
	c, other *client
	able     abilities
	rtt      time.Duration

	mu      sync.Mutex
	unknown map[string]bool // kinds of calls of which one was interrupted with an error that leaves its effect open
}

// Interrupted calls are those whose ctx ends after some time. Where the error of one says that
// it has no effect, there is a check of that for later.
type interrupted struct {
	*interruptions
	after  time.Duration
	prompt bool // the ctx ends in time, though the machine is idle
	kind   string
	took   time.Duration // by the latest call
	failed bool          // the latest call
	checks []func()
}

func (w *interruptions) after(d time.Duration) *interrupted {
	return &interrupted{interruptions: w, after: d}
}

// A kindOfCall is one that is interrupted.
type kindOfCall struct {
	name string
	make func(*interrupted)
}

func (w *interruptions) kinds() []kindOfCall {
	kinds := []kindOfCall{{"TryAcquire", (*interrupted).try}, {"Release", (*interrupted).release},
		{"Renew", func(x *interrupted) { x.renew("Renew") }}}
	if w.able.batch {
		kinds = append(kinds, kindOfCall{"RenewBatch", func(x *interrupted) { x.renew("RenewBatch") }})
	}
	if w.able.wait {
		kinds = append(kinds, kindOfCall{"Acquire, of a free key", (*interrupted).waitFree}, kindOfCall{"Acquire", (*interrupted).waitHeld})
	}
	return kinds
}

func (x *interrupted) makeAll() {
	for _, k := range x.kinds() {
		x.make(k)
	}
}

func (x *interrupted) make(k kindOfCall) {
	x.kind, x.failed = k.name, false
	k.make(x)
}

// untilUnknown interrupts calls of each kind again, until the effect of one is open: it was on
// its way then. Where a store is near, none may have been. If all errors say that their call has
// no effect, one of them is wrong by then. In a bubble, moments are exact.
func (w *interruptions) untilUnknown() (calls []*interrupted) {
	const rounds = 60
	for _, k := range w.kinds() {
		took, end := w.rtt, time.Now().Add(50*time.Millisecond)
		for n := 1; n < rounds && !w.h.Bubble && !w.over() && !w.isUnknown(k) && time.Now().Before(end); n++ {
			part := math.Mod(float64(n)*math.Phi, 1)
			x := w.after(time.Duration(part * float64(took)))
			x.prompt = true
			x.make(k)
			if x.failed {
				took += took / 8
			} else {
				took = (took + x.took) / 2
			}
			calls = append(calls, x)
		}
	}
	return calls
}

func (w *interruptions) isUnknown(k kindOfCall) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unknown[k.name]
}

func (x *interrupted) later(check func()) { x.checks = append(x.checks, check) }

// saysNoEffect makes a call, and reports whether its error says that it has no effect.
func (x *interrupted) saysNoEffect(call func(context.Context) error) bool {
	if x.over() {
		return false
	}
	ctx, cancel := context.WithTimeout(x.ctx, x.after)
	defer cancel()
	if x.prompt {
		stop := keepAwake(ctx)
		defer stop()
	}
	start, late := time.Now(), ctx.Err() != nil // then nothing may have been sent
	err := call(ctx)
	x.took, x.failed = time.Since(start), err != nil
	if x.failed && !late && !dlock.NoEffect(err) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.unknown[x.kind] = true
	}
	return supported(err) && dlock.NoEffect(err)
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

func (x *interrupted) try() {
	key, token := x.key(), x.token("interrupted")
	x.uses(key, token)
	if x.saysNoEffect(func(ctx context.Context) error {
		_, err := x.c.TryAcquire(ctx, key, token, long)
		return err
	}) {
		x.later(func() { stillFree(x.scene, x.other, key, "TryAcquire") })
	}
}

func (x *interrupted) release() {
	g := x.grant(x.other, x.key(), x.token("holder"), long)
	if x.saysNoEffect(func(ctx context.Context) error {
		_, err := x.c.Release(ctx, g.key, g.token)
		return err
	}) {
		x.later(func() { stillHeld(x.scene, x.other, g) })
	}
}

func (x *interrupted) renew(call string) {
	g := x.grant(x.other, x.key(), x.token("holder"), x.h.ttl())
	if x.saysNoEffect(func(ctx context.Context) error {
		if call == "Renew" {
			return x.c.renewBy(ctx, call, g)
		}
		results, err := x.c.RenewBatch(ctx, batchOf([]wish{g.wish(long, true)}))
		if err == nil && len(results) == 1 {
			err = results[0].Err
		}
		return err
	}) {
		x.later(func() { stillFree(x.scene, x.other, g.key, call) })
	}
}

func (x *interrupted) waitFree() {
	key := x.key()
	if x.leavesNothing(key) {
		x.later(func() { stillFree(x.scene, x.other, key, "Acquire") })
	}
}

// waitHeld has the holder release its key as soon as the wait for it was interrupted.
func (x *interrupted) waitHeld() {
	g := x.grant(x.other, x.key(), x.token("holder"), long)
	nothing := x.leavesNothing(g.key)
	x.scene.release(x.other, g, true)
	if nothing {
		x.later(func() { stillFree(x.scene, x.other, g.key, "Acquire") })
	}
}

// leavesNothing makes a wait, and reports whether its error says that nothing of it is left:
// it does not tell the holder beside the error.
func (x *interrupted) leavesNothing(key string) bool {
	token := x.token("interrupted")
	x.uses(key, token)
	var a dlock.Attempt
	return x.saysNoEffect(func(ctx context.Context) (err error) {
		a, err = x.c.Acquire(ctx, key, token, long)
		return err
	}) && !tellsHolder(a)
}

const unlessRefused = "a dlock.NoEffectError, or one that means the same, is right only where nothing was sent, where the store has refused the call, or where each request of a wait was answered"

// stillFree checks that a key is free after a call that is said to have had no effect.
func stillFree(s *scene, c *client, key, call string) {
	s.freeAfter(c, key, fmt.Sprintf("after an interrupted %s whose error says that it has no effect; %s", call, unlessRefused))
}

// stillHeld checks that g holds its key after a release that is said to have had no effect.
func stillHeld(s *scene, c *client, g grant) {
	if s.over() {
		return
	}
	held, err := c.Renew(s.ctx, g.key, g.token, long)
	s.noError(err, "Renew", g.key)
	if err == nil && !held {
		s.fail("%s.Renew(%s, %s, %v): held = false, after an interrupted Release whose error says that it has no effect; %s",
			c.name, brief(g.key), brief(g.token), long, unlessRefused)
	}
}

// noEffectOverNetwork loses replies and delays requests, and believes what the errors say.
func noEffectOverNetwork(s *scene) error {
	parts := []part{checkInInFlight}
	for _, e := range endings {
		for _, f := range []failure{loseTheReply, delayTheRequest} {
			for _, call := range []func(*failing){(*failing).try, (*failing).release, (*failing).renew, (*failing).renewBatch} {
				parts = append(parts, func(n *network) {
					if f != loseTheReply || !n.minor { // else it succeeds: see LostReplyOverNetwork
						call(&failing{network: n, failure: f, ending: e})
					}
				})
			}
		}
		for _, waitOf := range []func(*network, faultproxy.Ending){lateWaitOfFree, lateWaitBefore, lateWaitAfter} {
			parts = append(parts, func(n *network) { waitOf(n, e) })
		}
	}
	s.overClearNetworks(parts...)
	return s.result()
}

// A failure is what befalls a call on the network.
type failure int

const (
	loseTheReply failure = iota
	delayTheRequest
)

// A failing call fails in one way. Each method makes one. If its error says that it has no
// effect, it must have none, also when what was delayed has been delivered.
type failing struct {
	*network
	failure failure
	ending  faultproxy.Ending
}

// saysNoEffect makes a call about g, and lets happen what may happen later.
func (f *failing) saysNoEffect(g grant, name string, call func(context.Context) error) bool {
	var err error
	if f.failure == loseTheReply {
		err = lose(f.network, g, f.ending, name, call)
	} else {
		late := f.Hold(about(g), f.ending)
		err = f.spoil(late, name, call)
		deliver(f.network, late)
	}
	return dlock.NoEffect(err) && !f.over()
}

func (f *failing) try() {
	g := f.another("late")
	if f.saysNoEffect(g, "TryAcquire", func(ctx context.Context) error {
		_, err := f.via.TryAcquire(ctx, g.key, g.token, long)
		return err
	}) {
		stillFree(f.scene, f.direct, g.key, "TryAcquire")
	}
}

func (f *failing) release() {
	g := f.grant(f.direct, f.key(), f.token("holder"), long)
	if f.saysNoEffect(g, "Release", func(ctx context.Context) error {
		_, err := f.via.Release(ctx, g.key, g.token)
		return err
	}) {
		stillHeld(f.scene, f.direct, g)
	}
}

func (f *failing) renew() {
	f.renewBy("Renew", func(ctx context.Context, r dlock.Renewal) error { return renewLate(f.network, ctx, r) })
}

func (f *failing) renewBatch() {
	if f.offers(f.via.inner.Locker, renewBatch) {
		f.renewBy("RenewBatch", func(ctx context.Context, r dlock.Renewal) error { return renewBatchLate(f.network, ctx, r) })
	}
}

func (f *failing) renewBy(name string, call func(context.Context, dlock.Renewal) error) {
	ttl := 2 * f.h.ttl() // the fault must strike before the lease ends
	g := f.grant(f.direct, f.key(), f.token("holder"), ttl)
	if f.saysNoEffect(g, name, func(ctx context.Context) error { return call(ctx, g.wish(long, true).renewal) }) {
		f.lapse(ttl)
		stillFree(f.scene, f.direct, g.key, name)
	}
}

// lateWait keeps the first request of a wait back, and then releases its token if that is
// owed. It returns nil if nothing is left to be found out.
func lateWait(n *network, key string, e faultproxy.Ending) *faults {
	if !n.offers(n.via.inner.Locker, acquire) {
		return nil
	}
	g := grant{key: key, token: n.token("late")}
	n.uses(g.key, g.token)
	var a dlock.Attempt
	late := n.Hold(about(g), e)
	err := n.spoil(late, "Acquire", func(ctx context.Context) (err error) {
		a, err = n.via.Acquire(ctx, g.key, g.token, long)
		return err
	})
	if !dlock.NoEffect(err) || n.over() {
		return nil
	}
	if tellsHolder(a) {
		n.release(n.direct, g, false)
	}
	return late
}

func lateWaitOfFree(n *network, e faultproxy.Ending) {
	key := n.key()
	if late := lateWait(n, key, e); late != nil {
		deliverSoon(n, late)
		stillFree(n.scene, n.direct, key, "Acquire")
	}
}

// lateWaitBefore has the request arrive before the holder releases its key.
func lateWaitBefore(n *network, e faultproxy.Ending) {
	holder := n.grant(n.direct, n.key(), n.token("holder"), long)
	if late := lateWait(n, holder.key, e); late != nil {
		deliverSoon(n, late)
		n.release(n.direct, holder, true)
		stillFree(n.scene, n.direct, holder.key, "Acquire")
	}
}

// lateWaitAfter has it arrive after that.
func lateWaitAfter(n *network, e faultproxy.Ending) {
	holder := n.grant(n.direct, n.key(), n.token("holder"), long)
	if late := lateWait(n, holder.key, e); late != nil {
		n.release(n.direct, holder, true)
		deliverSoon(n, late)
		stillFree(n.scene, n.direct, holder.key, "Acquire")
	}
}

// checkInInFlight cancels a wait while its next check-in is in flight, after the store has
// answered who holds the key. A wait that gets no such answer, or sends no check-in within
// some seconds, is of another kind.
func checkInInFlight(n *network) {
	if !n.offers(n.via.inner.Locker, acquire) {
		return
	}
	holder := n.grant(n.direct, n.key(), n.token("holder"), long)
	token := n.token("waiter")
	first := n.Watch(faultproxy.Contains(token))
	w := n.waitCtx(n.ctx, n.via, holder.key, token, long)
	const period = 3 * time.Second
	answered := n.soon(first.Struck()) && n.awaitFor(first.Answered(), n.h.gap())
	checkIn := n.Hold(faultproxy.Contains(token), faultproxy.Stall)
	checksIn := answered && n.awaitFor(checkIn.Struck(), period)
	w.cancel()
	n.ended(w)
	if !checksIn {
		n.Lift(checkIn)
	}
	n.release(n.direct, w.grant, false)
	n.release(n.direct, holder, true)
	if checksIn && dlock.NoEffect(w.err) {
		deliverSoon(n, checkIn)
		stillFree(n.scene, n.direct, holder.key, "Acquire")
	}
}
