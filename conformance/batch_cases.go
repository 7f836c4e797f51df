package conformance

import (
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/dlock-go/dlock"
)

// batchSizes are about what stores take at a time, and several times that.
var batchSizes = []int{1, 2, 100, 101, 257, 1001}

// edges are elements with which pieces of a large batch may begin or end.
var edges = []int{0, 1, 49, 50, 63, 64, 99, 100, 101, 127, 128, 199, 200, 255, 256, 499, 500, 511, 512, 999, 1000}

func batchOfAnySize(s *scene) error {
	a, c := s.client(), s.batchRenewer()
	leases := s.takeMany(s.h.many(), long, a, c)
	for _, n := range batchSizes {
		s.renewAll(c, amongStrangers(leases[:min(n, len(leases))]))
	}
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	var wishes []wish
	for i, g := range leases {
		if slices.Contains(edges, i) {
			s.release(a, g, true)
			leases[i] = s.grant(a, s.key(), g.token, short)
		}
		wishes = append(wishes, leases[i].wish(long, true))
	}
	s.renewAll(c, wishes)
	s.lapse(short)
	for _, i := range edges {
		if i < len(leases) {
			s.held(c, leases[i])
		}
	}
	s.releaseMany(leases, a, c)
	return s.result()
}

// amongStrangers renews leases in a batch, but some by tokens that do not hold them. The
// last is none of these.
func amongStrangers(leases []grant) (wishes []wish) {
	for i, g := range leases {
		if (len(leases)-i)%7 == 0 {
			wishes = append(wishes, g.as("stranger").wish(long, false))
		} else {
			wishes = append(wishes, g.wish(long, true))
		}
	}
	return wishes
}

// batchIsTheCallers keeps results while other batches are renewed, and writes over what it
// has given and got.
func batchIsTheCallers(s *scene) error {
	a, c, d := s.client(), s.batchRenewer(), s.client()
	held, other := s.grant(a, s.key(), s.token("held"), long), s.grant(a, s.key(), s.token("other"), long)
	yes, no := held.wish(long, true), other.as("stranger").wish(long, false)
	wishes := []wish{yes, no, yes, yes, no}
	opposite := []wish{no, yes, no, no, yes}

	batch, results := s.renewAll(c, wishes)
	for _, by := range []*client{c, d} {
		for n := range len(opposite) + 1 {
			s.renewAll(by, opposite[:n])
			s.renewAll(by, slices.Concat(opposite, opposite[:n]))
		}
	}
	s.checkResults(c, wishes, results)
	clear(batch)
	for i := range results {
		results[i] = dlock.RenewResult{Held: i%2 == 0, Err: errReplyLost}
	}
	s.renewAll(c, opposite)
	s.batchesTogether(c, yes, no)
	s.release(a, held, true)
	s.release(a, other, true)
	return s.result()
}

// batchesTogether renews different batches at the same time, with one client.
func (s *scene) batchesTogether(c *client, yes, no wish) {
	rounds := s.h.rounds(10)
	eachOf(racers, func(i int) {
		for n := range rounds {
			var wishes []wish
			for bit := range 4 {
				wishes = append(wishes, []wish{yes, no}[(i+n)>>bit&1])
			}
			_, results := s.renewAll(c, wishes)
			runtime.Gosched()
			s.checkResults(c, wishes, results)
		}
	})
}

// batchesCross renews the same leases in different orders at the same time.
func batchesCross(s *scene) error {
	a, c, d := s.client(), s.batchRenewer(), s.client()
	rounds := s.h.rounds(10)
	leases := s.takeMany(12, long, a)
	forwards := amongStrangers(leases)
	backwards := slices.Clone(forwards)
	slices.Reverse(backwards)
	orders := [][]wish{forwards, backwards, slices.Concat(forwards[6:], forwards[:6]), slices.Concat(backwards, forwards)}

	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 2 * len(orders) {
		wg.Go(func() {
			for range rounds {
				s.renewAll([]*client{c, d}[i%2], orders[i/2])
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	if !s.await(done) {
		s.fail("%d goroutines of 2 clients renew batches of the same %d leases, in different orders; after %v not all of these calls have returned; want batches that do not wait for each other:\n%s",
			2*len(orders), len(leases), s.h.patience(), strings.Join(s.trace.hanging(), "\n"))
	}
	s.releaseMany(leases, a)
	s.batchesApart(a, c)
	return s.result()
}

// batchesApart renews batches at the same time that have nothing in common: all of all of
// them is renewed, however busy the store.
func (s *scene) batchesApart(a, c *client) {
	const batches, size = 4, 100
	short := max(2*s.h.ttl(), 5*s.h.gap()<<s.attempt)
	leases := s.takeMany(batches*size, short, a, c)
	var renewing sync.WaitGroup
	for i := range batches {
		renewing.Go(func() {
			var wishes []wish
			for _, g := range leases[i*size : (i+1)*size] {
				wishes = append(wishes, g.wish(long, true))
			}
			s.renewAll([]*client{a, c}[i%2], wishes)
		})
	}
	renewing.Wait()
	s.lapse(short)
	for _, g := range leases {
		s.held(c, g)
	}
	s.releaseMany(leases, a, c)
}
