package conformance

import (
	"sync"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
)

// expiresForAll gives two keys away for the same time, lets another take the one as soon
// as that is possible, and then has a call made for the other, which has to be over as
// well.
func expiresForAll(s *scene) error {
	a, b := s.clients2()
	eachWay(a, b, s.endsEarlier)
	if s.h.Bubble {
		eachWay(a, b, s.endsTogether)
	}
	return s.result()
}

// An endCall is a call that tells whether a lease still lasts.
type endCall struct {
	name  string
	lasts func(*scene, *client, grant) (bool, error)
}

var endCalls = []endCall{
	{"Renew", func(s *scene, c *client, g grant) (bool, error) { return c.Renew(s.ctx, g.key, g.token, long) }},
	{"Release", func(s *scene, c *client, g grant) (bool, error) { return c.Release(s.ctx, g.key, g.token) }},
	{"RenewBatch", func(s *scene, c *client, g grant) (bool, error) {
		results, err := c.RenewBatch(s.ctx, []dlock.Renewal{{Key: g.key, Token: g.token, TTL: long}})
		return supported(err) && len(results) == 1 && results[0].Held, supportedError(err)
	}},
	{"Inspect", func(s *scene, c *client, g grant) (bool, error) {
		h, err := c.Inspect(s.ctx, g.key)
		return h.Held && s.h.Grace == 0, supportedError(err) // what is not swept yet may still be shown
	}},
}

// supportedError is err, unless that says that the method is not there.
func supportedError(err error) error {
	if !supported(err) {
		return nil
	}
	return err
}

// endsEarlier gives the keys that calls ask for away before those that are waited for.
func (s *scene) endsEarlier(a, b *client) {
	ttl := s.h.ttl()
	var asked, taken []grant
	for range endCalls {
		asked = append(asked, s.grant(a, s.key(), s.token("asked"), ttl))
	}
	if !s.h.Bubble {
		time.Sleep(2 * time.Millisecond) // more than what stores round
	}
	for range endCalls {
		taken = append(taken, s.grant(a, s.key(), s.token("taken"), ttl))
	}
	s.sleep(taken[0].start.Add(ttl).Sub(s.now()))
	for i, call := range endCalls {
		if s.takeSoon(a, taken[i].key).Acquired {
			s.isOver(b, asked[i], call)
		}
	}
}

// endsTogether gives both away at the same time, and makes both calls at the same time,
// which can be done where time does not pass by itself.
func (s *scene) endsTogether(c, _ *client) {
	ttl := s.h.ttl()
	for _, call := range endCalls {
		var asked, taken, next grant
		together(
			func() { asked = s.grant(c, s.key(), s.token("asked"), ttl) },
			func() { taken = s.grant(c, s.key(), s.token("taken"), ttl) },
		)
		s.sleep(taken.start.Add(ttl).Sub(s.now()))
		synctest.Wait() // a store may have a timer for each
		lasts := false
		together(
			func() { next = s.takeFenced(c, taken.key, "next") },
			func() { lasts = s.lastsBy(c, asked, call) },
		)
		if next.Acquired && lasts {
			s.outlives(c, asked, call)
		}
	}
}

func together(f, g func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	wg.Go(g)
	wg.Wait()
}

// lastsBy makes a call that tells whether the lease of g still lasts.
func (s *scene) lastsBy(c *client, g grant, call endCall) bool {
	if s.over() {
		return false
	}
	lasts, err := call.lasts(s, c, g)
	s.noError(err, call.name, g.key)
	return lasts
}

// isOver checks that a call finds the lease of g ended.
func (s *scene) isOver(c *client, g grant, call endCall) {
	if s.lastsBy(c, g, call) {
		s.outlives(c, g, call)
	}
}

func (s *scene) outlives(c *client, g grant, call endCall) {
	s.fail("%s.%s(%s) says that %s holds the key, though another could take a key that was granted for the same %v, no earlier; want the lease to be over for every call",
		c.name, call.name, brief(g.key), brief(g.token), s.h.ttl())
}
