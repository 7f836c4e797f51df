package conformance

import (
	"time"

	"github.com/dlock-go/dlock"
)

// A wish is an element of a batch and what is to become of it.
type wish struct {
	renewal dlock.Renewal
	held    bool
}

// renewAll renews a batch and compares the results.
func (s *scene) renewAll(c *client, wishes []wish) {
	if s.over() {
		return
	}
	batch := make([]dlock.Renewal, len(wishes))
	for i, w := range wishes {
		batch[i] = w.renewal
	}
	start := s.now()
	results, err := c.RenewBatch(s.ctx, batch)
	if err != nil || len(results) != len(wishes) {
		s.fail("RenewBatch of %d renewals returned %d results and the error %v; want one result for each, and no error", len(wishes), len(results), err)
		return
	}
	for i, w := range wishes {
		if got := results[i]; (got.Err != nil || got.Held != w.held) && !(w.held && s.mayHaveExpired(w.renewal.Key)) {
			s.fail("RenewBatch of %d renewals: result %d, of %s by %s, is %+v; want held = %v",
				len(wishes), i, brief(w.renewal.Key), brief(w.renewal.Token), got, w.held)
		}
		if w.held {
			s.certain(w.renewal.Key, start.Add(w.renewal.TTL), false)
		}
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
	return s.result()
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
	return s.result()
}

func inspectTells(s *scene) error {
	a, c := s.client(), s.inspector()
	ttl := s.h.ttl()
	key := s.key()
	s.seesNobody(c, key, "it was never held")
	for _, lasting := range []time.Duration{long, 2 * ttl} {
		g := s.grant(a, key, s.token("holder"), lasting)
		s.sees(c, g, lasting)
		s.release(a, g, true)
		s.seesNobody(c, key, "its holder released it")
	}
	s.grant(a, key, s.token("dead"), ttl)
	s.lapse(ttl)
	s.seesNobody(c, key, "its holder's lease had expired")
	return s.result()
}

func (s *scene) seesNobody(c *client, key, why string) {
	if s.over() {
		return
	}
	h, err := c.Inspect(s.ctx, key)
	if err != nil || h.Held || h.Token != "" {
		s.fail("Inspect(%s) = %+v, %v, though %s; want it not to be held", brief(key), h, err, why)
	}
}

// sees inspects a key that g holds with a lease of ttl.
func (s *scene) sees(c *client, g grant, ttl time.Duration) {
	if s.over() {
		return
	}
	const slack = 10 * time.Millisecond // for rounding
	h, err := c.Inspect(s.ctx, g.key)
	least := ttl - s.now().Sub(g.start) - slack
	switch {
	case err != nil:
		s.fail("Inspect(%s) = %w; want its holder", brief(g.key), err)
	case !h.Held && s.mayHaveExpired(g.key):
	case !h.Held || h.Token != "" && h.Token != g.token:
		s.fail("Inspect(%s) = %+v; want it to be held by %s, or by an unknown token", brief(g.key), h, brief(g.token))
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
