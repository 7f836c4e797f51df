package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

var takingCases = []testCase{
	is("Exclusion", exclusion, "A backend lets at most one token hold a key at a time, however many goroutines and clients try."),
	is("HeldIsUntouched", heldIsUntouched, "A backend refuses a key that another token holds, and changes neither holder, TTL nor fence."),
	is("HolderIsTold", holderIsTold, "A backend that reports the holder reports its exact token, byte by byte, and the time that remains now, not the TTL that was granted."),
	is("SameTokenAgain", sameTokenAgain, "A backend grants an attempt by the holder, with a new fence. It extends the lease to at least ttl from now, and never shortens it."),
	is("LeaseOutlivesContext", leaseOutlivesContext, "A backend keeps a lease when the ctx ends of the call that granted or extended it, or of an earlier wait of its token."),
	is("EmptyKey", emptyKey, "A backend fails with dlock.ErrInvalid, and grants nothing, if the key of an attempt or a wait is empty."),
}

func exclusion(s *scene, a, b *client) {
	clients := []*client{a, b, s.client()}
	for range 5 {
		raceFor(s, clients, s.key())
	}
	dead := s.grant(clients[0], s.key(), s.token("dead"), s.h.ttl())
	s.lapse(s.h.ttl())
	raceFor(s, clients, dead.key)
	takeTurns(s, true, clients...)
}

const racers = 12

// raceFor lets many goroutines make one attempt each at about the same time, for a key that is free.
func raceFor(s *scene, clients []*client, key string) {
	var mu sync.Mutex
	var won []string
	eachOf(racers, func(i int) {
		c := clients[i%len(clients)]
		if g := s.try(c, grant{key: key, token: s.token(fmt.Sprint("racer", i))}, long); g.Acquired {
			mu.Lock()
			defer mu.Unlock()
			won = append(won, c.name+" "+brief(g.token))
		}
	})
	if len(won) != 1 {
		s.fail("%d goroutines of %d clients called TryAcquire(%s) with tokens of their own, for %v; %d acquired it: %s; want 1",
			racers, len(clients), brief(key), long, len(won), strings.Join(won, ", "))
	}
}

// takeTurns has many take and give back one key, again and again. If wait is set, and the store has a queue, half of them
// wait for it. It returns the grants in the order in which the key was held.
func takeTurns(s *scene, wait bool, clients ...*client) (grants []grant) {
	key, rounds := s.key(), s.h.rounds(8)
	wait = wait && s.offers(clients[0], acquire)
	var mu sync.Mutex
	inside := make(map[string]bool)
	eachOf(racers, func(i int) {
		c := clients[i%len(clients)]
		for n := range rounds {
			name := fmt.Sprint("racer", i, "-", n)
			var g grant
			if wait && i/len(clients)%2 == 1 {
				g = s.served(s.waitCtx(s.ctx, c, key, s.token(name), long), "others began to take and release the key in turn")
			} else {
				g = s.takeFenced(c, key, name)
			}
			if !g.Acquired {
				continue
			}
			mu.Lock()
			grants = append(grants, g)
			inside[g.token] = true
			holders := slices.Sorted(maps.Keys(inside))
			mu.Unlock()
			if len(holders) > 1 {
				s.fail("%s hold %s at once, all with leases of %v; want one of them to be refused, or to wait",
					strings.Join(holders, ", "), brief(key), long)
			}
			time.Sleep(time.Millisecond)
			mu.Lock()
			delete(inside, g.token)
			mu.Unlock()
			s.release(c, g, true)
		}
	})
	return grants
}

func heldIsUntouched(s *scene, a, b *client) {
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
}

// holderIsTold compares all ways to learn who holds a key, and for how long: less than was granted when time has passed.
func holderIsTold(s *scene, a, b *client) {
	can := s.abilities(b)
	var leases []longLease
	for _, token := range slices.Concat(alike, []string{allBytes(), strings.Repeat("t", 4096)}) {
		leases = append(leases, longLease{s.grant(a, s.key(), token, long), "TryAcquire", long})
	}
	s.stillLast(a, b, leases, can)
	leases = s.lastingFor(a, b, can, s.short(), long)
	passed := s.h.ttl() + s.h.grace()
	s.sleep(passed)
	for i := range leases {
		leases[i].start, leases[i].ttl = leases[i].start.Add(passed), long-passed
	}
	s.stillLast(a, b, leases, can)
}

func allBytes() string {
	var all strings.Builder
	for b := range 256 {
		all.WriteByte(byte(b))
	}
	return all.String()
}

func sameTokenAgain(s *scene, a, b *client) {
	ttl := s.h.ttl()
	kept := s.grant(a, s.key(), s.token("holder"), long)
	extended := s.grant(a, s.key(), s.token("holder"), ttl)
	other := s.grant(a, s.key(), s.token("dead"), ttl)
	s.held(b, kept) // who was refused just before does not matter
	s.above(kept, s.again(b, kept, ttl))
	s.above(extended, s.again(a, extended, long))
	s.lapse(ttl)
	s.free(b, other.key)
	for _, g := range []grant{kept, extended} {
		s.held(b, g)
		s.release(b, g, true)
		s.free(a, g.key)
	}
	allAtOnce(s, a, b)
}

// allAtOnce has a holder renew its lease and try again at the same time, as it may when it
// repeats what got no answer: neither is refused because of the other.
func allAtOnce(s *scene, a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	eachOf(racers, func(i int) {
		c := []*client{a, b}[i%2]
		for range s.h.rounds(20) {
			if i%4 < 2 {
				s.renew(c, g, long, true)
			} else {
				s.again(c, g, long)
				time.Sleep(30 * time.Microsecond) // so that it meets the others at other moments
			}
		}
	})
	s.release(a, g, true)
}

// leaseOutlivesContext ends the ctx of every call that has granted a lease or made it
// longer. It also has tokens hold keys for which they have waited before, without success.
func leaseOutlivesContext(s *scene, a, b *client) {
	can := s.abilities(b)
	soon := s.h.aftermath() / 2 << s.attempt
	cancelled, cancel := context.WithCancel(s.ctx)
	timely, stop := context.WithTimeout(s.ctx, soon)
	defer stop()
	var leases []longLease
	for _, ctx := range []context.Context{timely, cancelled} {
		s.under(ctx, func() { leases = append(leases, s.lastingFor(a, b, can, s.short(), long)...) })
	}
	cancel()
	var waits []func()
	waited := make([]grant, 2)
	for i := range waited {
		waits = append(waits, func() { waited[i] = waitedBefore(s, a, b, i > 0) })
	}
	if can.wait {
		s.atOnce(waits...)
		for _, g := range waited {
			leases = append(leases, longLease{g, "a call, after a wait that had ended,", long})
		}
	}
	s.sleep(max(s.h.aftermath(), 2*soon))
	for _, l := range leases {
		s.renew(b, l.grant, long, true)
	}
	s.stillLast(a, b, leases, can)
}

// aftermath is how long the suite waits for what a store still does when a call has returned.
func (h Harness) aftermath() time.Duration {
	if h.Bubble {
		return h.patience()
	}
	return time.Second
}

// under makes the calls of f with another ctx. If that ends before they have returned, the
// machine was slow, and the case is inconclusive.
func (s *scene) under(ctx context.Context, f func()) {
	former := s.ctx
	defer func() {
		if s.ctx = former; ctx.Err() != nil {
			s.decide(func(error) error { return errInconclusive })
		}
	}()
	s.ctx = ctx
	f()
}

// waitedBefore has a token get a key for which it has waited before. That wait was cancelled, or ended in time.
func waitedBefore(s *scene, a, b *client, timely bool) grant {
	ctx := s.ctx
	if timely {
		ending, cancel := context.WithTimeout(ctx, s.h.gap())
		defer cancel()
		ctx = ending
	}
	g := s.grant(a, s.key(), s.token("former"), long)
	w := s.waitCtx(ctx, b, g.key, s.token("waiter"), long)
	s.gap()
	w.cancel()
	s.ended(w)
	again := s.wait(b, w.key, w.token, long)
	s.release(a, g, true)
	return s.served(again, "the holder released the key")
}

func emptyKey(s *scene, a, b *client) {
	for _, c := range []*client{a, b} {
		calls := []string{"TryAcquire"}
		if s.offers(c, acquire) {
			calls = append(calls, acquire.name)
		}
		for _, call := range calls {
			s.goOn()
			g := grant{token: s.token("holder")}
			answer, err := c.call(s.ctx, call, g, s.h.ttl())
			if answer.Acquired || !errors.Is(err, dlock.ErrInvalid) || !dlock.NoEffect(err) {
				s.fail("%s = %s, %w; want an error that matches dlock.ErrInvalid, without effect", c.text(call, g.key, g.token, s.h.ttl()), show(answer), orNone(err))
			}
		}
	}
}
