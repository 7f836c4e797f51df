package conformance

import (
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

// A wish is an element of a batch and what is to become of it.
type wish struct {
	renewal dlock.Renewal
	held    bool
}

// renewAll renews a batch and compares the results. It returns what it gave and got.
func (s *scene) renewAll(c *client, wishes []wish) ([]dlock.Renewal, []dlock.RenewResult) {
	if s.over() {
		return nil, nil
	}
	batch := batchOf(wishes)
	start := s.now()
	results, err := c.RenewBatch(s.ctx, batch)
	if err != nil || len(results) != len(wishes) {
		s.fail("%s.RenewBatch(%s) = %d results, %v; want %d results, and no error", c.name, showBatch(batchOf(wishes)), len(results), err, len(wishes))
		return nil, nil
	}
	if !slices.Equal(batch, batchOf(wishes)) {
		s.fail("%s.RenewBatch(%s) changed the batch that it was given, to %s", c.name, showBatch(batchOf(wishes)), showBatch(batch))
	}
	s.checkResults(c, wishes, results)
	for _, w := range wishes {
		if w.held {
			s.certain(w.renewal.Key, start.Add(w.renewal.TTL), false)
		}
	}
	return batch, results
}

func batchOf(wishes []wish) []dlock.Renewal {
	batch := make([]dlock.Renewal, len(wishes))
	for i, w := range wishes {
		batch[i] = w.renewal
	}
	return batch
}

// checkResults compares the results of a batch, when they are returned or later.
func (s *scene) checkResults(c *client, wishes []wish, results []dlock.RenewResult) {
	for i, got := range results {
		s.checkResult(c, wishes, i, got)
	}
}

func (s *scene) checkResult(c *client, wishes []wish, i int, got dlock.RenewResult) {
	if w := wishes[i]; (got.Err != nil || got.Held != w.held) && !(w.held && s.mayHaveExpired(w.renewal.Key)) {
		s.fail("%s.RenewBatch(%s): result %d, of the renewal of %s, is {held = %v, error %v}; want {held = %v, error <nil>}",
			c.name, showBatch(batchOf(wishes)), i, showRenewal(w.renewal), got.Held, got.Err, w.held)
	}
}

func (g grant) wish(ttl time.Duration, held bool) wish {
	return wish{dlock.Renewal{Key: g.key, Token: g.token, TTL: ttl}, held}
}

func batchKeepsOrder(s *scene) error {
	a, c := s.client(), s.batchRenewer()
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

	var many []wish
	for i := range 40 {
		g := s.grant(a, s.key(), s.token("holder"), long)
		if i%3 == 1 {
			g.token = s.token("stranger")
		}
		many = append(many, g.wish(long, i%3 != 1))
	}
	s.renewAll(c, many)
	s.batchWithNonsense(c, held, other)
	return s.result()
}

// batchWithNonsense has elements in a batch that no lease can be meant by. A store may
// refuse them, or all of the batch, but must not mix up the others.
func (s *scene) batchWithNonsense(c *client, held, other grant) {
	stranger := held.as(s.token("stranger"))
	wishes := []wish{
		held.as("").wish(long, false), held.wish(long, true), stranger.wish(0, false), stranger.wish(long, false),
		{dlock.Renewal{Token: held.token, TTL: long}, false}, other.wish(long, true), stranger.wish(-long, false),
	}
	if s.over() {
		return
	}
	results, err := c.RenewBatch(s.ctx, batchOf(wishes))
	if err != nil {
		return
	}
	if len(results) != len(wishes) {
		s.fail("%s.RenewBatch(%s) = %d results; want %d", c.name, showBatch(batchOf(wishes)), len(results), len(wishes))
		return
	}
	for _, i := range []int{1, 3, 5} {
		s.checkResult(c, wishes, i, results[i])
	}
}

func batchRenewsAsRenew(s *scene) error {
	a, c := s.client(), s.batchRenewer()
	ttl := s.h.ttl()
	dead := s.grant(a, s.key(), s.token("dead"), ttl)
	s.lapse(ttl)
	longer := s.grant(a, s.key(), s.token("longer"), long)
	other := s.grant(a, s.key(), s.token("other"), long)
	short := s.grant(a, s.key(), s.token("short"), 2*ttl)
	extended := s.grant(a, s.key(), s.token("extended"), 2*ttl)
	s.renewAll(c, []wish{
		dead.wish(long, false), extended.wish(long, true), longer.wish(ttl, true),
		other.as("stranger").wish(ttl, false), short.as("stranger").wish(long, false),
	})
	s.free(a, dead.key) // not revived
	s.lapse(2 * ttl)
	for _, g := range []grant{extended, longer, other} {
		s.held(c, g)
		s.release(a, g, true)
	}
	s.free(a, short.key) // not extended by a stranger
	s.renewsTwice(a, c)
	return s.result()
}

// renewsTwice has several elements of one batch renew the same lease, with others between
// them: the longest counts, wherever it stands, and what strangers ask for does not.
func (s *scene) renewsTwice(a, c *client) {
	ttl := s.h.ttl()
	orders := [][]time.Duration{{ttl, long, ttl}, {long, ttl, ttl}, {ttl, ttl, long}}
	leases := make([]grant, len(orders))
	for i := range leases {
		leases[i] = s.grant(a, s.key(), s.token("holder"), 2*ttl)
	}
	var wishes []wish
	for n := range orders {
		for i, g := range leases {
			wishes = append(wishes, g.wish(orders[i][n], true), g.as("stranger").wish(ttl, false))
		}
	}
	short := s.grant(a, s.key(), s.token("holder"), 2*ttl)
	wishes = append(wishes, short.as("stranger").wish(long, false), short.wish(ttl, true), short.as("stranger").wish(long, false))
	s.renewAll(c, wishes)
	s.lapse(2 * ttl)
	for _, g := range leases {
		s.held(a, g)
		s.release(a, g, true)
	}
	s.free(a, short.key)
}

func inspectTells(s *scene) error {
	a, c := s.client(), s.inspector()
	ttl := s.h.ttl()
	key := s.key()
	s.seesNobody(c, key, "it was never held")
	for _, lasting := range []time.Duration{long, 2 * ttl} {
		g := s.grant(a, key, s.token("holder"), lasting)
		s.sees(c, g, lasting)
		s.seesRest(a, c, g, lasting)
		s.release(a, g, true)
		s.seesNobody(c, key, "its holder released it")
	}
	s.grant(a, key, s.token("dead"), ttl)
	s.lapse(ttl)
	s.seesNobody(c, key, "its holder's lease had expired")
	s.readsBesideWriters(c)
	if s.abilities(a).wait {
		s.showsHolders(a, c)
	}
	return s.result()
}

// showsHolders has a key handed over again and again: a waiter is not shown before it holds
// the key.
func (s *scene) showsHolders(a, c *client) {
	for range s.h.rounds(20) {
		g := s.grant(a, s.key(), s.token("holder"), long)
		w := s.wait(c, g.key, s.token("waiter"), long)
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() { s.holdsWhenShown(c, w) })
		}
		s.release(a, g, true)
		s.served(w, "the holder released the key")
		readers.Wait()
		s.release(c, w.grant, true)
	}
}

// holdsWhenShown looks until a waiter is shown as the holder, and has it renew its lease.
func (s *scene) holdsWhenShown(c *client, w *waiter) {
	for !s.over() {
		h, err := c.Inspect(s.ctx, w.key)
		s.noError(err, "Inspect", w.key)
		if h.Token == w.token {
			s.renew(c, w.grant, time.Millisecond, true)
			return
		}
		if h.Token == "" && w.returned() {
			return // it is served, and shown no more: the lease may have ended
		}
	}
}

// seesRest: what remains is that of the longest TTL that was asked for, not of the
// latest.
func (s *scene) seesRest(a, c *client, g grant, ttl time.Duration) {
	s.renew(a, g, time.Millisecond, true)
	s.sees(c, g, ttl)
	s.again(a, g, time.Millisecond)
	s.sees(c, g, ttl)
	s.refused(a, g, s.token("stranger"), 3*long)
	s.sees(c, g, ttl)
	g.start = s.now()
	s.renew(a, g, 2*long, true)
	s.sees(c, g, 2*long)
	s.renew(a, g, long, true)
	s.sees(c, g, 2*long)
}

func (s *scene) seesNobody(c *client, key, why string) {
	if s.over() {
		return
	}
	h, err := c.Inspect(s.ctx, key)
	if err != nil || h.Held || h.Token != "" {
		s.fail("Inspect(%s) = %s, %v, though %s; want it not to be held", brief(key), showHold(h), err, why)
	}
}

// sees inspects a key that g holds with a lease of ttl.
func (s *scene) sees(c *client, g grant, ttl time.Duration) {
	if s.over() {
		return
	}
	h, err := c.Inspect(s.ctx, g.key)
	least := ttl - s.now().Sub(g.start) - rounding
	switch {
	case err != nil:
		s.fail("Inspect(%s) = %w; want its holder", brief(g.key), err)
	case !h.Held && s.mayHaveExpired(g.key):
	case !h.Held || h.Token != "" && h.Token != g.token:
		s.fail("Inspect(%s) = %s; want it to be held by %s, or by an unknown token", brief(g.key), showHold(h), brief(g.token))
	case h.Remaining != 0 && (h.Remaining > ttl+s.h.grace() || h.Remaining < least):
		s.fail("Inspect(%s): %v remain; want between %v and %v, or 0 for unknown", brief(g.key), h.Remaining, least, ttl)
	}
}

func inspectChangesNothing(s *scene) error {
	a, c := s.client(), s.inspector()
	ttl := s.h.ttl()
	key := s.key()
	s.inspects(c, key)
	s.free(a, key)

	g := s.grant(a, key, s.token("holder"), long)
	s.inspects(c, key)
	s.lapse(ttl)
	s.held(a, g)
	s.release(a, g, true)

	s.grant(a, key, s.token("dead"), 2*ttl)
	s.sleep(ttl)
	s.inspects(c, key)
	s.sleep(ttl/2 + s.h.grace())
	s.inspects(c, key)
	s.lapse(ttl / 2)
	s.free(a, key)
	return s.result()
}

func (s *scene) inspects(c *client, key string) {
	if s.over() {
		return
	}
	_, err := c.Inspect(s.ctx, key)
	s.noError(err, "Inspect", key)
}

// unsupportedSendsNothing calls the optional methods that are not there, though
// the interfaces are, and looks for their effects.
func unsupportedSendsNothing(s *scene) error {
	a, b := s.clients2()
	n := 0
	for _, o := range optionalMethods {
		if o.implemented(a.inner.Locker) && !supported(s.probe(o, a, s.key(), s.token("probe"))) {
			n++
			s.noEffect(a, b, o)
		}
	}
	if n == 0 {
		s.skip("no method of the Locker answers errors.ErrUnsupported")
	}
	return s.result()
}

func (s *scene) noEffect(a, b *client, o optionalMethod) {
	ttl := s.h.ttl()
	key, token := s.key(), s.token("caller")
	s.uses(key, token)
	s.unsupported(o, a, key, token)
	s.free(b, key)

	s.grant(a, key, token, ttl)
	s.unsupported(o, a, key, token) // by the holder
	s.lapse(ttl)
	s.free(b, key)

	g := s.grant(b, key, s.token("holder"), long)
	s.unsupported(o, a, key, token) // by a stranger
	s.release(b, g, true)
	s.free(b, key)
}

func (s *scene) unsupported(o optionalMethod, c *client, key, token string) {
	if s.over() {
		return
	}
	if err := s.probe(o, c, key, token); supported(err) {
		s.fail("%s answers errors.ErrUnsupported once and %v later", o.name, err)
	}
}
