package conformance

import (
	"slices"
	"time"

	"github.com/dlock-go/dlock"
)

var batchesCases = []testCase{
	is("BatchKeepsOrder", batchKeepsOrder, "A BatchRenewer returns one result for each renewal, in the order of the batch, also for duplicates, strangers and ended leases. For an empty batch it returns none.").with(renewBatch),
	is("BatchRenewsAsRenew", batchRenewsAsRenew, "A BatchRenewer does for each element exactly what Renew does, independently of the others.").with(renewBatch),
	is("BatchOfAnySize", batchOfAnySize, "A BatchRenewer renews batches of any size, to the last element.").with(renewBatch),
	is("BatchIsTheCallers", batchIsTheCallers, "A BatchRenewer never changes batches that it was given or results that it has returned, whatever is called later or meanwhile.").with(renewBatch),
	is("BatchesCross", batchesCross, "A BatchRenewer renews concurrent batches that share leases in different orders. None fails, and none waits long for another.").with(renewBatch),
}

func batchKeepsOrder(s *scene, a, c *client) {
	s.renewAll(c, nil)
	held := s.grant(a, s.key(), s.token("holder"), long)
	other := s.grant(a, s.key(), s.token("other"), long)
	dead := s.grant(a, s.key(), s.token("dead"), s.h.ttl())
	s.lapse(s.h.ttl())
	never := grant{key: s.key(), token: s.token("nobody")}
	s.renewAll(c, []wish{
		held.wish(long, true), held.as(other.token).wish(long, false), dead.wish(long, false),
		other.wish(long, true), never.wish(long, false), held.wish(long, true), held.wish(long, true),
	})
	s.renewAll(c, amongStrangers(s.takeMany(40, long, a)))
	amongNonsense(s, c, held, other)
}

// amongNonsense has elements in a batch that no lease can be meant by. A store may refuse
// them, or all of the batch, but must not mix up the others.
func amongNonsense(s *scene, c *client, held, other grant) {
	wishes := []wish{held.as("").wish(long, false), held.wish(long, true), held.as("stranger").wish(0, false), other.wish(long, true)}
	results, err := c.RenewBatch(s.ctx, batchOf(wishes))
	if err != nil {
		return
	}
	if len(results) != len(wishes) {
		s.fail("%s = %d results; want %d", c.text("RenewBatch", batchOf(wishes)), len(results), len(wishes))
	}
	results[0], results[2] = dlock.RenewResult{}, dlock.RenewResult{}
	s.checkResults(c, wishes, results)
}

// amongStrangers renews leases in a batch, but some by tokens that do not hold them. The last is none of these.
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

// batchRenewsAsRenew has several elements of one batch renew the same lease, with others
// between them: the longest counts, wherever it stands, and what strangers ask for does not.
func batchRenewsAsRenew(s *scene, a, c *client) {
	ttl := s.h.ttl()
	dead := s.grant(a, s.key(), s.token("dead"), ttl)
	s.lapse(ttl)
	type ttls = []time.Duration
	leases := []struct {
		granted       time.Duration
		own, stranger ttls // what is asked for in the name of the holder, and of another
		lasts         bool
		grant
	}{
		{granted: 2 * ttl, own: ttls{long}, lasts: true},
		{granted: long, own: ttls{ttl}, lasts: true},
		{granted: long, stranger: ttls{ttl}, lasts: true},
		{granted: 2 * ttl, stranger: ttls{long}},
		{granted: 2 * ttl, own: ttls{ttl, long, ttl}, stranger: ttls{ttl, ttl, ttl}, lasts: true},
		{granted: 2 * ttl, own: ttls{long, ttl, ttl}, stranger: ttls{ttl, ttl, ttl}, lasts: true},
		{granted: 2 * ttl, own: ttls{ttl, ttl, long}, stranger: ttls{ttl, ttl, ttl}, lasts: true},
		{granted: 2 * ttl, own: ttls{ttl}, stranger: ttls{long, long}},
	}
	for i, l := range leases {
		leases[i].grant = s.grant(a, s.key(), s.token("holder"), l.granted)
	}
	wishes := []wish{dead.wish(long, false)}
	for n := range 3 {
		for _, l := range leases {
			if n < len(l.stranger) {
				wishes = append(wishes, l.as("stranger").wish(l.stranger[n], false))
			}
			if n < len(l.own) {
				wishes = append(wishes, l.wish(l.own[n], true))
			}
		}
	}
	s.renewAll(c, wishes)
	s.free(a, dead.key) // not revived
	s.lapse(2 * ttl)
	for _, l := range leases {
		s.release(a, l.grant, l.lasts)
		s.free(c, l.key)
	}
}

// batchSizes are about what stores take at a time, and several times that.
var batchSizes = []int{1, 2, 100, 101, 257, 1001}

// edges are elements with which pieces of a large batch may begin or end.
var edges = []int{0, 1, 49, 50, 63, 64, 99, 100, 101, 127, 128, 199, 200, 255, 256, 499, 500, 511, 512, 999, 1000}

func batchOfAnySize(s *scene, a, c *client) {
	leases := s.takeMany(many, long, a, c)
	for _, n := range batchSizes {
		s.renewAll(c, amongStrangers(leases[:min(n, len(leases))]))
	}
	short := s.short()
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
}

// batchIsTheCallers keeps results while other batches are renewed, and writes over what it has given and got.
func batchIsTheCallers(s *scene, a, c *client) {
	d := s.client()
	held, other := s.grant(a, s.key(), s.token("held"), long), s.grant(a, s.key(), s.token("other"), long)
	yes, no := held.wish(long, true), other.as("stranger").wish(long, false)
	rounds := s.h.rounds(10)
	eachOf(racers, func(i int) {
		for n := range rounds {
			var wishes, opposite []wish
			for bit := range 4 {
				set := (i + n) >> bit & 1
				wishes, opposite = append(wishes, []wish{yes, no}[set]), append(opposite, []wish{no, yes}[set])
			}
			batch, results := s.renewAll(c, wishes)
			s.renewAll([]*client{c, d}[i%2], slices.Concat(opposite, opposite[:n%4]))
			s.checkResults(c, wishes, results)
			clear(batch)
			for i := range results {
				results[i] = dlock.RenewResult{Held: i%2 == 0, Err: errReplyLost}
			}
		}
	})
	s.release(a, held, true)
	s.release(a, other, true)
}

func batchesCross(s *scene, a, c *client) {
	d := s.client()
	rounds := s.h.rounds(10)
	leases := s.takeMany(12, long, a)
	forwards := amongStrangers(leases)
	backwards := slices.Clone(forwards)
	slices.Reverse(backwards)
	orders := [][]wish{forwards, backwards, slices.Concat(forwards[6:], forwards[:6]), slices.Concat(backwards, forwards)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		eachOf(2*len(orders), func(i int) {
			for range rounds {
				s.renewAll([]*client{c, d}[i%2], orders[i/2])
			}
		})
	}()
	if !s.await(done) {
		s.fail("%d goroutines of 2 clients renew batches of the same %d leases, in different orders; after %v not all of these calls have returned; want batches that do not wait for each other:\n%s",
			2*len(orders), len(leases), s.h.patience(), s.trace.unanswered())
	}
	s.releaseMany(leases, a)
	batchesApart(s, a, c)
}

// batchesApart renews batches at the same time that have nothing in common: all of all of
// them is renewed, however busy the store.
func batchesApart(s *scene, a, c *client) {
	const batches, size = 4, 100
	short := max(2*s.h.ttl(), 5*s.h.gap()<<s.attempt)
	leases := s.takeMany(batches*size, short, a, c)
	eachOf(batches, func(i int) {
		var wishes []wish
		for _, g := range leases[i*size : (i+1)*size] {
			wishes = append(wishes, g.wish(long, true))
		}
		s.renewAll([]*client{a, c}[i%2], wishes)
	})
	s.lapse(short)
	s.releaseMany(leases, a, c)
}
