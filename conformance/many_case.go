package conformance

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// many is more than what stores keep, or look at, at a time: 100, 128, 256, 1,000. Those
// whose clock is moved by hand are imitations, and slow.
func (h Harness) many() int {
	if h.Advance != nil {
		return 129
	}
	return 1001
}

// manyLeases has a thousand other keys come and go while a few leases last, which were made
// in every way, and are older than the TTL that their keys were first held for. The fences
// of a key that rested meanwhile rise all the same.
func manyLeases(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	leases := s.lastingFor(a, b, can, short, long)
	early := s.grant(a, s.key(), s.token("early"), short)
	s.lapse(short)
	s.comeAndGo(a, b)
	s.manyEnd(a, b, short)
	others := s.takeMany(s.h.many(), long, a, b)
	s.stillLast(a, b, leases, can)
	s.releaseMany(others, a, b)
	s.above(early, s.grant(b, early.key, s.token("late"), s.h.ttl()))
	return s.result()
}

// comeAndGo has keys taken for the shortest time that there is, and others released.
func (s *scene) comeAndGo(a, b *client) {
	const some = 200
	s.takeMany(some, time.Millisecond, a, b)
	s.releaseMany(s.takeMany(some, long, a, b), a, b)
	s.lapse(time.Millisecond)
}

// manyEnd has a thousand leases end together. Each has ended for whoever asks first, the
// one that was granted first and the one that was granted last.
func (s *scene) manyEnd(a, b *client, ttl time.Duration) {
	for _, last := range []bool{false, true} {
		ended := s.takeMany(s.h.many(), ttl, a, b)
		s.lapse(ttl)
		if last {
			slices.Reverse(ended)
		}
		s.renew(a, ended[0], ttl, false)
		s.free(b, ended[1].key)
		s.release(b, ended[2], false)
		for _, g := range ended {
			s.usesNoMore(g)
		}
	}
}

// takeMany takes n keys, several at the same time.
func (s *scene) takeMany(n int, ttl time.Duration, clients ...*client) []grant {
	leases := make([]grant, n)
	eachOf(n, func(i int) {
		leases[i] = s.grant(clients[i%len(clients)], s.key(), s.token(fmt.Sprint("holder", i)), ttl)
	})
	return leases
}

// releaseMany releases leases by other clients than those that took them.
func (s *scene) releaseMany(leases []grant, clients ...*client) {
	eachOf(len(leases), func(i int) {
		s.release(clients[(i+1)%len(clients)], leases[i], true)
		s.usesNoMore(leases[i])
	})
}

// eachOf calls f with 0 to n-1, several at the same time.
func eachOf(n int, f func(i int)) {
	var wg sync.WaitGroup
	for first := range racers {
		wg.Go(func() {
			for i := first; i < n; i += racers {
				f(i)
			}
		})
	}
	wg.Wait()
}
