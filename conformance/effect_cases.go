package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// saysNoEffect reports whether an error says that its call did not and will not take
// effect.
func saysNoEffect(err error) bool {
	return !supported(err) || errors.Is(err, dlock.ErrInvalid) || chain(err, func(err error) bool {
		return isMark(err) || isDial(err)
	})
}

// isMark reports whether err itself is a mark.
func isMark(err error) bool {
	_, ok := err.(*dlock.NoEffectError)
	return ok
}

// isDial reports whether err itself is that of a connection that could not be made.
func isDial(err error) bool {
	op, ok := err.(*net.OpError)
	return ok && op.Op == "dial"
}

// chain reports whether is holds for err or what it wraps, but for no part of a join:
// each part may be of another store.
func chain(err error, is func(error) bool) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if is(err) {
			return true
		}
	}
	return false
}

// tellsHolder reports whether the Attempt beside an error says that the store had
// answered "held".
func tellsHolder(a dlock.Attempt) bool { return a.Holder != "" || a.Remaining != 0 }

// noEffect ends the ctx of each call at many moments, from before it is sent until after
// it is answered, and believes what the error says.
func noEffect(s *scene) error {
	a, b := s.clients2()
	var calls []*interrupted
	eachWay(a, b, func(c, other *client) {
		able, rtt := s.abilities(c), s.roundTrip(c)
		for i := range s.h.moments() {
			after := rtt * time.Duration(4*i) / time.Duration(3*s.h.moments())
			calls = append(calls, &interrupted{scene: s, c: c, other: other, able: able, after: after})
		}
	})
	var all sync.WaitGroup
	for _, x := range calls {
		all.Go(x.makeAll)
	}
	all.Wait()
	s.gap()
	s.lapse(s.h.ttl()) // of what was renewed
	for _, x := range calls {
		for _, check := range x.checks {
			check()
		}
	}
	return s.result()
}

// moments is how many moments of a call are tried.
func (h Harness) moments() int {
	if h.Advance != nil {
		return 4 // they are slow
	}
	return h.rounds(8)
}

// roundTrip is how long a call of c takes that is not its first.
func (s *scene) roundTrip(c *client) time.Duration {
	g := s.grant(c, s.key(), s.token("holder"), long)
	start := time.Now()
	s.release(c, g, true)
	return time.Since(start)
}

// Interrupted calls are those of c whose ctx ends in their course. Where the error of one
// says that it has no effect, there is a check of that for later.
type interrupted struct {
	*scene
	c, other *client
	able     abilities
	after    time.Duration
	checks   []func()
}

func (x *interrupted) makeAll() {
	x.try()
	x.release()
	x.renew("Renew")
	if x.able.batch {
		x.renew("RenewBatch")
	}
	if x.able.wait {
		x.waitFree()
		x.waitHeld()
	}
}

func (x *interrupted) later(check func()) { x.checks = append(x.checks, check) }

// saysNoEffect makes a call, and reports whether its error says that it has no effect.
func (x *interrupted) saysNoEffect(call func(context.Context) error) bool {
	if x.over() {
		return false
	}
	ctx, cancel := context.WithTimeout(x.ctx, x.after)
	defer cancel()
	err := call(ctx)
	return err != nil && supported(err) && saysNoEffect(err)
}

func (x *interrupted) try() {
	key, token := x.key(), x.token("interrupted")
	x.uses(key, token)
	if x.saysNoEffect(func(ctx context.Context) error {
		_, err := x.c.TryAcquire(ctx, key, token, long)
		return err
	}) {
		x.later(func() { x.stillFree(x.other, key, "TryAcquire") })
	}
}

func (x *interrupted) release() {
	g := x.grant(x.other, x.key(), x.token("holder"), long)
	if x.saysNoEffect(func(ctx context.Context) error {
		_, err := x.c.Release(ctx, g.key, g.token)
		return err
	}) {
		x.later(func() { x.stillHeld(x.other, g) })
	}
}

func (x *interrupted) renew(call string) {
	g := x.grant(x.other, x.key(), x.token("holder"), x.h.ttl())
	if x.saysNoEffect(func(ctx context.Context) error { return x.c.renewBy(ctx, call, g) }) {
		x.later(func() { x.stillFree(x.other, g.key, call) })
	}
}

func (x *interrupted) waitFree() {
	key := x.key()
	if x.leavesNothing(key) {
		x.later(func() { x.stillFree(x.other, key, "Acquire") })
	}
}

// waitHeld has the holder release its key as soon as the wait for it was interrupted.
func (x *interrupted) waitHeld() {
	g := x.grant(x.other, x.key(), x.token("holder"), long)
	nothing := x.leavesNothing(g.key)
	x.scene.release(x.other, g, true)
	if nothing {
		x.later(func() { x.stillFree(x.other, g.key, "Acquire") })
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
func (s *scene) stillFree(c *client, key, call string) {
	s.freeAfter(c, key, fmt.Sprintf("after an interrupted %s whose error says that it has no effect; %s", call, unlessRefused))
}

// freeAfter checks that a key can be taken by another, and gives it back.
func (s *scene) freeAfter(c *client, key, why string) {
	if s.over() {
		return
	}
	g := grant{key: key, token: s.token("next")}
	s.uses(g.key, g.token)
	a, err := c.TryAcquire(s.ctx, g.key, g.token, long)
	switch {
	case err != nil:
		s.noError(err, "TryAcquire", key)
	case !a.Acquired:
		s.fail("%s.TryAcquire(%s, %s, %v): %s, %s", c.name, brief(key), brief(g.token), long, show(a), why)
	default:
		s.release(c, g, true)
	}
}

// stillHeld checks that g holds its key after a release that is said to have had no effect.
func (s *scene) stillHeld(c *client, g grant) {
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

// oneReleaseSettles cancels waits that were told who holds the key: soon after that, a
// while later, and about when the lease of the holder ends and they ask.
func oneReleaseSettles(s *scene) error {
	s.acquirer()
	a, b := s.clients2()
	var waits []*settlement
	eachWay(a, b, func(c, other *client) {
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
	w.settled = waiter.err != nil && saysNoEffect(waiter.err) && tellsHolder(waiter.answer)
}
