package conformance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

var takingCases = []testCase{
	{name: "Exclusion", check: exclusion,
		clause: withSource("A backend lets at most one token hold a key at a time, however many goroutines and clients try.")},
	{name: "HeldIsUntouched", check: heldIsUntouched,
		clause: withSource("A backend refuses a key that another token holds, and changes neither holder, TTL nor fence.")},
	{name: "HolderIsTold", check: holderIsTold,
		clause: withSource("A backend that reports the holder reports its exact token, byte by byte, and the time that remains now, not the TTL that was granted.")},
	{name: "SameTokenAgain", check: sameTokenAgain,
		clause: withSource("A backend grants an attempt by the holder, with a new fence. It extends the lease to at least ttl from now, and never shortens it.")},
	{name: "LeaseOutlivesContext", check: leaseOutlivesContext,
		clause: withSource("A backend keeps a lease when the ctx ends of the call that granted or extended it, or of an earlier wait of its token.")},
}

func exclusion(s *scene) error {
	clients := []*client{s.client(), s.client(), s.client()}
	for range 5 {
		raceOnce(s, clients, s.key())
	}
	raceAtExpiry(s, clients)
	raceForLong(s, clients)
	return s.result()
}

const racers = 12

// race lets many goroutines make one attempt each at about the same time, and
// returns those that succeeded, as "client token".
func race(s *scene, clients []*client, key string) []string {
	var mu sync.Mutex
	var won []string
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range racers {
		token := s.token(fmt.Sprint("racer", i))
		s.uses(key, token)
		wg.Go(func() {
			<-start
			c := clients[i%len(clients)]
			a, err := c.TryAcquire(s.ctx, key, token, long)
			if err != nil {
				s.fail("%s.TryAcquire(%s, %s, %v) = %w; want it to be acquired or refused", c.name, brief(key), brief(token), long, err)
			}
			if a.Acquired {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, c.name+" "+brief(token))
			}
		})
	}
	close(start)
	wg.Wait()
	return won
}

// raceOnce has many go for a free key.
func raceOnce(s *scene, clients []*client, key string) {
	if s.over() {
		return
	}
	if won := race(s, clients, key); len(won) != 1 {
		s.fail("%d goroutines of %d clients called TryAcquire(%s) with tokens of their own, for %v; %d acquired it: %s; want 1",
			racers, len(clients), brief(key), long, len(won), strings.Join(won, ", "))
	}
}

// raceAtExpiry has many go for a key whose lease has just expired.
func raceAtExpiry(s *scene, clients []*client) {
	key := s.key()
	s.grant(clients[0], key, s.token("dead"), s.h.ttl())
	s.lapse(s.h.ttl())
	raceOnce(s, clients, key)
}

// raceForLong has many take and give back one key, again and again, some of
// them waiting for it.
func raceForLong(s *scene, clients []*client) {
	rounds := s.h.rounds(8)
	key := s.key()
	inside := &insiders{tokens: make(map[string]bool)}
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			c := clients[i%len(clients)]
			for n := range rounds {
				token := s.token(fmt.Sprint("racer", i, "-", n))
				if take(s, c, key, token, i%2 == 0) {
					insideAlone(s, inside, key, token)
					s.release(c, grant{key: key, token: token}, true)
				}
			}
		})
	}
	wg.Wait()
}

// take takes key if it is free, or, where the store has a queue and wait is
// set, when it is.
func take(s *scene, c *client, key, token string, wait bool) bool {
	if s.over() {
		return false
	}
	s.uses(key, token)
	if wait {
		a, err := c.Acquire(s.ctx, key, token, long)
		if supported(err) {
			s.noError(err, "Acquire", key)
			return a.Acquired
		}
	}
	a, err := c.TryAcquire(s.ctx, key, token, long)
	s.noError(err, "TryAcquire", key)
	if !a.Acquired {
		time.Sleep(time.Millisecond)
	}
	return a.Acquired
}

// Insiders are the tokens that hold a key.
type insiders struct {
	mu     sync.Mutex
	tokens map[string]bool
}

func insideAlone(s *scene, in *insiders, key, token string) {
	in.mu.Lock()
	in.tokens[token] = true
	if len(in.tokens) > 1 {
		s.fail("%s hold %s at once, all with leases of %v; want one of them to be refused, or to wait",
			strings.Join(slices.Sorted(maps.Keys(in.tokens)), ", "), brief(key), long)
	}
	in.mu.Unlock()
	time.Sleep(time.Millisecond)
	in.mu.Lock()
	delete(in.tokens, token)
	in.mu.Unlock()
}

func heldIsUntouched(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()

	g := s.grant(a, s.key(), s.token("holder"), long)
	for _, ask := range []time.Duration{time.Millisecond, ttl, 2 * long} {
		s.checkRefusal(s.refused(b, g, s.token("stranger"), ask), g, long)
	}
	s.lapse(ttl) // a lease cut to the TTL of a stranger's attempt would end
	s.held(b, g)
	s.release(a, g, true)

	g = s.grant(a, s.key(), s.token("holder"), 3*ttl)
	for range 4 { // a lease that strangers' attempts prolong would not end
		s.sleep(ttl / 2)
		s.refused(b, g, s.token("stranger"), long)
	}
	s.lapse(ttl)
	s.free(b, g.key)
	return s.result()
}

// oddTokens are changed by many an encoding.
func oddTokens() []string {
	var all strings.Builder
	for b := range 256 {
		all.WriteByte(byte(b))
	}
	return []string{
		"\xff", "a\xffb", "\xc3", "\xed\xa0\x80", "\xc0\x80", "\ufffd", "\ufeff", "e\u0301", "é", "日本", "🔒", "\u2028",
		"\x00", "a\x00b", "a\x00", "\x1b", "\x7f", "\n", "a\r\n", "\t", " ", " a ", "a  b",
		"\"", "\"a\"", "'", "\\", "\\x41", "\\u0041", "%41", "%", "a+b", "&amp;", "<a&b>", "{}", "[]", "$1", "a:b", "a,b", "a;b", "a|b",
		"0", "00", "1e3", "0x10", "-1", "true", "null", "nil", "NULL", "OK", "(nil)", "a=",
		all.String(), strings.Repeat("t", 4096),
	}
}

// holderIsTold compares all ways to learn who holds a key.
func holderIsTold(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	for _, token := range oddTokens() {
		g := s.grant(a, s.key(), token, long)
		checkHolder(s, b, g, long, can)
		s.release(b, g, true)
	}
	checkRemaining(s, a, b, can)
	return s.result()
}

// checkHolder compares all that a store reports of a lease with what it is.
func checkHolder(s *scene, c *client, g grant, ttl time.Duration, can abilities) {
	s.checkRefusal(s.refused(c, g, s.token("stranger"), long), g, ttl)
	if can.inspect {
		s.sees(c, g, ttl)
	}
}

// checkRemaining lets time pass, and checks that less remains of leases than was granted.
func checkRemaining(s *scene, a, b *client, can abilities) {
	leases := s.lastingFor(a, b, can, max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt), long)
	passed := s.h.ttl() + s.h.grace()
	s.sleep(passed)
	for _, l := range leases {
		l.start = l.start.Add(passed)
		checkHolder(s, b, l.grant, long-passed, can)
		s.release(a, l.grant, true)
	}
}

func sameTokenAgain(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()

	g := s.grant(a, s.key(), s.token("holder"), long)
	s.held(b, g) // who was refused just before does not matter
	again := s.again(b, g, ttl)
	s.above(g, again)
	s.lapse(ttl)
	s.held(b, g) // not shortened
	s.release(a, g, true)

	g = s.grant(a, s.key(), s.token("holder"), ttl)
	other := s.grant(a, s.key(), s.token("dead"), ttl)
	s.above(g, s.again(a, g, long))
	s.lapse(ttl)
	s.held(b, g) // extended
	s.free(b, other.key)
	s.release(b, g, true)
	s.free(a, g.key)
	allAtOnce(s, a, b)
	return s.result()
}

// allAtOnce has a holder renew its lease and try again at the same time, as it may when it
// repeats what got no answer: neither is refused because of the other.
func allAtOnce(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	var calls sync.WaitGroup
	for _, c := range []*client{a, b, a, b} {
		calls.Go(func() {
			for range s.h.rounds(20) {
				s.renew(c, g, long, true)
			}
		})
		calls.Go(func() {
			for range s.h.rounds(20) {
				s.again(c, g, long)
				time.Sleep(30 * time.Microsecond) // so that it meets the others at other moments
			}
		})
	}
	calls.Wait()
	s.release(a, g, true)
}

// leaseOutlivesContext ends the ctx of every call that has granted a lease or made it
// longer. It also has tokens hold keys for which they have waited before, without success.
func leaseOutlivesContext(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	soon := s.h.aftermath() / 2 << s.attempt
	var leases []grant
	ends := []func(context.Context) (context.Context, context.CancelFunc){
		context.WithCancel,
		func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, soon) },
	}
	for _, end := range ends {
		ctx, cancel := end(s.ctx)
		defer cancel()
		leases = append(leases, leasesUnder(s, ctx, a, b, can)...)
		if _, later := ctx.Deadline(); !later {
			cancel()
		}
	}
	if can.wait {
		leases = append(leases, waitedBefore(s, a, b)...)
	}
	s.sleep(max(s.h.aftermath(), 2*soon))
	for _, g := range leases {
		s.held(a, g)
		s.renew(b, g, long, true)
		s.release(a, g, true)
		s.free(b, g.key)
	}
	return s.result()
}

// aftermath is how long the suite waits for what a store still does when a call has
// returned.
func (h Harness) aftermath() time.Duration {
	if h.Bubble {
		return h.patience()
	}
	return time.Second
}

// leasesUnder has each call make a lease under ctx, or make one long that would have
// ended when the suite looks.
func leasesUnder(s *scene, ctx context.Context, a, b *client, can abilities) []grant {
	short := max(s.h.ttl(), 2*s.h.gap()<<s.attempt)
	var leases []grant
	made := func(by *client, ttl time.Duration, call func(grant) error) {
		g := grant{key: s.key(), token: s.token("holder"), start: s.now()}
		if ttl > 0 {
			g = s.grant(a, g.key, g.token, ttl)
		}
		if s.over() {
			return
		}
		s.uses(g.key, g.token)
		if err := call(g); err != nil && !endedTooSoon(s, ctx) {
			s.noError(err, "a call by client "+by.name, g.key)
		}
		if s.mayHaveExpired(g.key) { // before the call took effect
			return
		}
		s.certain(g.key, g.start.Add(long), true)
		leases = append(leases, g)
	}
	attempt := func(g grant) error { _, err := b.TryAcquire(ctx, g.key, g.token, long); return err }
	made(b, 0, attempt)
	made(b, short, attempt)
	made(b, short, func(g grant) error { return b.renewBy(ctx, "Renew", g) })
	if can.batch {
		made(b, short, func(g grant) error { return b.renewBy(ctx, "RenewBatch", g) })
	}
	if can.wait {
		made(b, 0, func(g grant) error { _, err := b.Acquire(ctx, g.key, g.token, long); return err })
		g := s.grant(a, s.key(), s.token("former"), long)
		w := s.waitCtx(ctx, b, g.key, s.token("waiter"), long)
		s.gap()
		s.release(a, g, true)
		if s.await(w.done) && w.err != nil && endedTooSoon(s, ctx) {
			return leases
		}
		leases = append(leases, s.served(w, "the holder released the key"))
		w.cancel()
	}
	return leases
}

// endedTooSoon reports whether a ctx has ended under which calls were to be made first. The
// case is then inconclusive: the machine was slow.
func endedTooSoon(s *scene, ctx context.Context) bool {
	if ctx.Err() == nil {
		return false
	}
	s.stop(errInconclusive)
	return true
}

// waitedBefore has tokens get keys that they have waited for before: that wait was ended
// by its caller, in one way or another, and the token released.
func waitedBefore(s *scene, a, b *client) (leases []grant) {
	timeout, cancel := context.WithTimeout(s.ctx, s.h.gap())
	defer cancel()
	var holders []grant
	var waiting []*waiter
	for i := range 6 {
		ctx := s.ctx
		if i%3 == 1 {
			ctx = timeout
		}
		g := s.grant(a, s.key(), s.token("former"), long)
		holders = append(holders, g)
		waiting = append(waiting, s.waitCtx(ctx, b, g.key, s.token("waiter"), long))
	}
	s.gap()
	var again []*waiter
	for i, w := range waiting {
		if i%3 == 2 {
			s.release(b, w.grant, false)
		}
		w.cancel()
		s.ended(w)
		s.release(b, w.grant, false)
		if i < 3 {
			s.release(a, holders[i], true)
			leases = append(leases, s.grant(b, w.key, w.token, long))
		} else {
			again = append(again, s.waitCtx(s.ctx, b, w.key, w.token, long))
		}
	}
	s.gap()
	for i, w := range again {
		s.release(a, holders[i+3], true)
		leases = append(leases, s.served(w, "the holder released the key"))
	}
	return leases
}
