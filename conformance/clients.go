package conformance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

var clientsCases = []testCase{
	is("EndedContext", endedContext, "A backend sends nothing if ctx has already ended, and returns ctx.Err(), not its cause. If ctx ends a wait, it returns that too, and a holder and remaining time that come with it are true."),
	is("UnsupportedSendsNothing", unsupportedSendsNothing, "A backend sends nothing when it answers errors.ErrUnsupported."),
	is("DecoratorHidesNothing", decoratorHidesNothing, "A backend around another Locker hides none of its optional interfaces, and takes no longer TTLs (embed dlock.Forward)."),
	is("NoLeaks", noLeaks, "A backend leaves no goroutine, connection, timer or key behind once it is closed and its leases have expired.").single(),
	is("NoEffect", noEffect, "A backend claims that a call has no effect (dlock.NoEffect) only if it has none, now or later."),
	is("NoEffectOverNetwork", func(s *scene, _, _ *client) {
		s.overClearNetworks(append(parts(markedCalls, onNetwork), checkInInFlight)...)
	}, "A backend claims that a call has no effect only if none of its requests can still be on its way.").faulty().needing(needsNetwork),
	is("LostReply", lostReply, "A backend lets a caller repeat a token's acquire, renewal or release whose reply was lost, without harm, and a Client ends in a state that it knows."),
	is("LostReplyOverNetwork", func(s *scene, _, _ *client) { s.overClearNetworks(parts(lostReplies, onNetwork)...) }, "A backend lets a caller repeat a call whose reply the network lost, as LostReply says.").faulty().needing(needsNetwork),
	is("LateDuplicate", lateDuplicate, "A backend survives a call that comes after later ones. It shortens nothing, revives nothing, and takes no key for longer than its TTL."),
	is("LateDuplicateOverNetwork", func(s *scene, _, _ *client) { s.overClearNetworks(parts(lateCalls, onNetwork)...) }, "A backend survives a request that the network delivers late, as LateDuplicate says.").faulty().needing(needsNetwork),
	is("UnreachableStore", unreachableStore, "A backend that cannot reach its store returns an error that means neither \"held\" nor \"not held\", within the ctx or the client's own read timeout, whichever it can honour.").faulty().needing(needsNetwork),
	is("BlackHole", blackHole, "A backend whose requests or replies vanish never makes a holder certain of more than the store keeps. The holder learns of the loss at the deadline, and nobody gets the key before.").faulty().needing(needsNetwork),
	is("SlowNetwork", func(s *scene, _, _ *client) { s.overNetworks(endOnTime, endOnTime, servedAfterSlowAnswers) }, "A backend over a slow network keeps each lease until the deadline that its holder believes in. No two holders are certain of a key at once.").faulty().needing(needsNetwork),
	is("Reconnection", reconnection, "A backend works again when the network does, with the same Locker. Calls succeed, waiters are served, and leases that outlast the outage stay.").faulty().needing(needsNetwork),
}

func endedContext(s *scene, a, b *client) {
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
		for _, k := range append(s.kindsOf(a), inspection) {
			checks = append(checks, func() { underEnded(s, ctx, k, a, b) })
		}
	}
	if s.abilities(b).wait {
		checks = append(checks, func() {
			g := s.grant(a, s.key(), s.token("holder"), long)
			endWaitsOf(s, b, g)
			s.release(a, g, true)
		})
	}
	s.atOnce(checks...)
}

// errCause is why a ctx has ended. That is the caller's affair, and not the error of ctx.
var errCause = errors.New("conformance: the cause of the end of a context")

// underEnded makes a call under a ctx that has ended. It has no effect.
func underEnded(s *scene, ctx context.Context, k kind, a, b *client) {
	x := s.prepare(k, b, s.h.ttl())
	_, err := a.hook(ctx, x.request(k.name, long))
	refusedWith(s, ctx, err, k.name)
	x.settle()
	x.lapse(s.h.ttl())
	x.hadNoEffect("after a " + k.name + " under a ctx that had ended")
}

func refusedWith(s *scene, ctx context.Context, err error, call string) {
	if err != nil && !supported(err) {
		return
	}
	if !isEndOf(ctx, err) {
		s.fail("%s under a ctx that had ended returned the error %v; want %v, and not the cause of that", call, err, ctx.Err())
	}
}

// isEndOf reports whether err is the error of ctx, which has ended, and not the cause of its end.
func isEndOf(ctx context.Context, err error) bool {
	return isErr(err, ctx.Err()) && !isErr(err, errCause)
}

// endWaitsOf has waits for what g holds end with their ctx: by a cancellation, and by a deadline.
func endWaitsOf(s *scene, by *client, g grant) {
	caused, cancel := context.WithCancelCause(s.ctx)
	late, stop := context.WithTimeoutCause(s.ctx, s.h.gap(), errCause)
	defer stop()
	contexts := []context.Context{caused, late}
	var waiting []*waiter
	for _, ctx := range contexts {
		waiting = append(waiting, s.waitCtx(ctx, by, g.key, s.token("waiter"), long))
	}
	s.gap()
	cancel(errCause)
	for i, w := range waiting {
		s.ended(w)
		refusedWith(s, contexts[i], w.err, "a wait")
		besideTheEnd(s, w, g)
		s.release(by, w.grant, false)
	}
}

// besideTheEnd checks what a wait for what g holds has returned beside the error of its ctx.
func besideTheEnd(s *scene, w *waiter, g grant) {
	now, a := time.Now(), w.answer
	least, most := long-now.Sub(g.start)-rounding, long+s.h.grace()
	call := fmt.Sprintf("%s.%v", w.by.name, w.request("Acquire", w.ttl))
	switch {
	case w.early:
		s.fail("%s returned %q before its ctx had ended", call, w.err)
	case a.Acquired:
		s.fail("%s returned an Attempt that is Acquired beside %q; want one or the other", call, w.err)
	case a.Holder != "" && a.Holder != g.token:
		s.fail("%s returned Holder %s beside %q; want %s, who holds the key, or nothing", call, brief(a.Holder), w.err, brief(g.token))
	case a.Remaining != 0 && (a.Remaining < least || a.Remaining > most):
		s.fail("%s returned Remaining %v beside %q; want between %v and %v, or 0 for unknown", call, a.Remaining, w.err, least, most)
	case a.Since.After(now):
		s.fail("%s returned a Since beside %q that is %v after its return; want when the store last answered", call, w.err, a.Since.Sub(now))
	}
}

// unsupportedSendsNothing calls the optional methods that are not there, though
// the interfaces are, and looks for their effects.
func unsupportedSendsNothing(s *scene, a, b *client) {
	n := 0
	for _, o := range optionalMethods {
		if !o.implemented(a.inner.Locker) || supported(s.probe(o, a, s.key(), s.token("probe"))) {
			continue
		}
		n++
		for _, r := range []role{ofNobody, ofHolder, ofStranger} {
			x := s.prepare(kind{o.name, r}, b, s.h.ttl())
			if err := s.probe(o, a, x.key, x.token); supported(err) {
				s.fail("%s answers errors.ErrUnsupported once and %v later", o, err)
			}
			x.settle()
			x.lapse(s.h.ttl())
			x.hadNoEffect("after a call that answered errors.ErrUnsupported: " + o.String())
		}
	}
	if n == 0 {
		s.skip("no method of the Locker answers errors.ErrUnsupported")
	}
}

// decoratorHidesNothing finds the Lockers that a decorator holds in exported and unexported fields.
// Of a Locker below an unexported field only the type can be seen: which interfaces that has, but
// neither whether a method answers errors.ErrUnsupported, nor the longest TTL. One that a decorator
// keeps as another type, or in a slice, a map or a function, is not found.
func decoratorHidesNothing(s *scene, c, _ *client) {
	if n := hidesNothing(s, reflect.ValueOf(c.inner.Locker), 0); n == 0 {
		s.skip("the Locker is not built around another: no field of it holds a dlock.Locker")
	}
}

// hidesNothing compares what the Locker l offers with what the Lockers in its fields do, and those
// with what is in theirs, and returns how many there are in l.
func hidesNothing(s *scene, l reflect.Value, depth int) int {
	const deepest = 8 // in case that they refer to each other
	if depth > deepest {
		return 0
	}
	inner := lockersIn(l)
	for path, in := range inner {
		if names := hides(s, l, in); names != nil {
			s.fail("%v hides %s of the %v in its field %s; embed dlock.Forward, which passes every method on",
				l.Type(), strings.Join(names, ", "), in.Type(), path)
		}
		hidesNothing(s, in, depth+1)
	}
	return len(inner)
}

// hides returns which optional methods of inner l does not offer. It may take only shorter TTLs than inner.
func hides(s *scene, l, inner reflect.Value) (names []string) {
	limiter := optionalMethod{reflect.TypeFor[dlock.TTLLimiter](), "LongestTTL"}
	seen := l.CanInterface() && inner.CanInterface() // else only their types are
	for _, o := range append(passedOn, limiter) {
		hidden := inner.Type().Implements(o.iface) && !l.Type().Implements(o.iface)
		switch {
		case seen && o == limiter:
			hidden = longestTTL(l) > longestTTL(inner)
		case seen:
			hidden = s.hasMethod(inner.Interface().(dlock.Locker), o) && !s.hasMethod(l.Interface().(dlock.Locker), o)
		}
		if hidden {
			names = append(names, o.String())
		}
	}
	return names
}

func longestTTL(l reflect.Value) time.Duration {
	return dlock.Forward{Locker: l.Interface().(dlock.Locker)}.LongestTTL()
}

// lockersIn returns the Lockers in the fields of the struct that v is or points to, embedded ones
// too, by the path of the field.
func lockersIn(v reflect.Value) map[string]reflect.Value {
	found := make(map[string]reflect.Value)
	path := v.Type().String()
	if v.Kind() == reflect.Struct && v.CanInterface() { // a copy has an address, which fields may need
		addressable := reflect.New(v.Type())
		addressable.Elem().Set(v)
		v = addressable
	}
	addLockers(found, reflect.Indirect(v), path)
	return found
}

func addLockers(found map[string]reflect.Value, v reflect.Value, path string) {
	if v.Kind() != reflect.Struct {
		return
	}
	locker := reflect.TypeFor[dlock.Locker]()
	for i := range v.NumField() {
		field, path := v.Field(i), path+"."+v.Type().Field(i).Name
		if field.Type().Implements(locker) && field.Kind() == reflect.Interface {
			field = field.Elem() // not valid if it is nil
		}
		switch {
		case !field.IsValid() || field.Kind() == reflect.Pointer && field.IsNil():
		case field.Type() == reflect.TypeFor[dlock.Forward]() && !field.CanInterface():
			addLockers(found, field, path) // by its type, it would have every method
		case field.Type().Implements(locker):
			found[path] = field
		case field.CanAddr() && reflect.PointerTo(field.Type()).Implements(locker):
			found[path] = field.Addr()
		default:
			addLockers(found, field, path)
		}
	}
}

// noLeaks uses the store in every way, and looks for keys that are left. In a bubble the goroutines that are left behind are
// found when it ends. Elsewhere the store is used again and again, with new clients each time, and the number of goroutines
// must not rise with the rounds.
func noLeaks(s *scene, a, b *client) {
	keepsNothing(s)
	ctx, end := goingOn()
	if s.h.Bubble { // where it never ends
		callsUnder(s, ctx, a, b)
		useEverything(s)
		return
	}
	defer end()
	goroutinesEnd(s, 1, 5, "of calls under a ctx that has not ended", func(int) { callsUnder(s, ctx, a, b) })
	goroutinesEnd(s, 2, 6, "with new clients, all closed", func(i int) {
		use := useClients
		if i == 0 {
			use = useEverything
		}
		var err error
		s.t.Run("round", func(t *testing.T) { err = newScene(t, s.h, 0).run(use) })
		if err != nil {
			s.stop(err)
		}
	})
}

// goingOn returns a ctx that does not end with the case, as that of a program that runs
// for months: what stays until it ends is a leak.
func goingOn() (ctx context.Context, end context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// goroutinesEnd uses the store in many rounds, and waits until there are about as many goroutines
// as after the first: one more for each round is a leak.
func goroutinesEnd(s *scene, warmUp, rounds int, rounded string, round func(i int)) {
	before := 0
	for i := range warmUp + rounds {
		if i == warmUp {
			s.gap() // what ends, ends
			before = runtime.NumGoroutine()
		}
		round(i)
	}
	for end := time.Now().Add(s.h.patience()); runtime.NumGoroutine() >= before+rounds; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			var stacks strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1) // to a Builder, which does not fail
			s.fail("%d goroutines, and %d after %d rounds %s:\n%s", before, runtime.NumGoroutine(), rounds, rounded, &stacks)
			return
		}
	}
}

// callsUnder makes calls of each kind under ctx. They succeed, and the answer is yes.
func callsUnder(s *scene, ctx context.Context, a, b *client) {
	for _, k := range append(kinds, inspection) {
		x := s.prepare(k, b, long)
		call, answer := x.make(a, long)
		var err, released error
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			err = call(ctx)
			_, released = a.Release(ctx, x.key, x.token)
		}()
		if k.role == ofStranger {
			s.gap()
			x.settle()
		}
		if !s.await(returned) {
			s.fail("%s.%v, and the Release after it, have not returned for %v, though nobody else holds the key", a.name, x.request(k.name, long), s.h.patience())
			return
		}
		if supported(err) {
			s.noError(err, k.name, x.key)
			if !answer.Acquired {
				s.fail("%s.%v answered that the token does not hold the key; want that it does", a.name, x.request(k.name, long))
			}
		}
		s.noError(released, "Release", x.key)
	}
}

// keepsNothing uses many keys, never many at a time, and looks how much is stored. A store may remove things later, but what
// it keeps must not grow with the keys that were ever used.
func keepsNothing(s *scene) {
	if s.h.Count == nil {
		return
	}
	const rounds, keys = 10, 40
	a, b := s.clients2()
	before := s.h.Count(s.t)
	for range rounds {
		for i := range keys {
			useKey(s, a, b, i)
		}
		s.lapse(time.Millisecond)
	}
	const most = rounds * keys / (2 * ways) // half of what one way alone would leave
	stored := 0
	for end := time.Now().Add(s.h.patience()); ; s.sleep(20 * time.Millisecond) {
		if stored = s.h.Count(s.t) - before; stored < most {
			return
		}
		if time.Now().After(end) {
			s.fail("%d keys, %d at a time, were released or have expired, but %d more things are stored than before; want less than %d, and no more if more keys are used",
				rounds*keys, keys, stored, most)
		}
	}
}

// ways is how many ways there are to use a key.
const ways = 4

// useKey uses a key in one way or another. Its lease ends at once, or very soon.
func useKey(s *scene, a, b *client, way int) {
	key := s.key()
	switch way % ways {
	case 0:
		s.grant(a, key, s.token("dead"), time.Millisecond)
	case 1:
		g := s.grant(a, key, s.token("holder"), long)
		s.refused(b, g, s.token("stranger"), long)
		s.renew(b, g.as("stranger"), long, false)
		s.release(b, g.as("stranger"), false)
		s.release(a, g, true)
	case 2:
		g := s.grant(a, key, s.token("holder"), long)
		waitsInVain(s, b, g, s.h.gap()/20)
		s.release(a, g, true)
	case 3:
		if _, err := b.Inspect(s.ctx, key); supported(err) {
			s.noError(err, "Inspect", key)
		}
	}
}

func waitsInVain(s *scene, c *client, g grant, d time.Duration) {
	ctx, cancel := context.WithTimeout(s.ctx, d)
	defer cancel()
	w := g.as(s.token("late"))
	s.uses(w.key, w.token)
	if _, err := c.Acquire(ctx, w.key, w.token, long); err == nil {
		s.fail("%s.Acquire(%s) = <nil> when its ctx had ended; want an error, because another token holds the key", c.name, brief(w.key))
	}
	s.release(c, w, false)
}

// useEverything is useClients, and then looks for what is left when all leases have expired.
func useEverything(s *scene) {
	a, b := s.clients2()
	ttl := s.h.ttl()
	s.grant(a, s.key(), s.token("dead"), ttl)
	s.renew(a, s.grant(a, s.key(), s.token("dead"), ttl), ttl, true)
	useClients(s)
	s.lapse(ttl)
	for _, key := range s.keysUsed() {
		s.free(b, key)
	}
}

// useClients has leases released, expired and renewed, and waits served, cancelled and timed out.
func useClients(s *scene) {
	a, b := s.clients2()
	g := s.grant(a, s.key(), s.token("holder"), long)
	waitsInVain(s, b, g, s.h.gap())
	if w := s.wait(b, g.key, s.token("cancelled"), long); !w.returned() || supported(w.err) {
		s.forget(w)
	}
	s.release(a, g, true)
	s.free(b, g.key)
	useClient(s, b)
}

func useClient(s *scene, c *client) {
	d := dlock.New(c, dlock.WithTTL(s.h.coreTTL()))
	defer d.Close()
	for i := range 2 {
		s.goOn()
		err := d.Do(s.ctx, s.key(), func(context.Context, *dlock.Lease) error {
			time.Sleep(s.h.coreTTL() * time.Duration(i) / 2)
			return nil
		})
		if errors.Is(err, dlock.ErrLost) && !s.h.Bubble {
			s.stop(errInconclusive) // or the store loses leases, for which there are other cases
		}
		s.noError(err, "Client.Do", fmt.Sprint("round ", i))
	}
}
