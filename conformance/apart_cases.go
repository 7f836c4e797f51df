package conformance

import "time"

// seams are what stores put between a key and a token, or a token and a key, where they
// make one name of both.
var seams = []string{"", ":", "::", "/", "|", "-", "_", ".", ",", ";", "#", "@", "=", "&", "+", " ", "\t", "\n", "\x00", "\x1f", "\xff", "\"", "\\", "{", "}"}

// twins returns pairs of a key and a token that are the same if they are joined.
func (s *scene) twins() (pairs [][2]hold) {
	for _, seam := range seams {
		key, token := s.key(), s.token("token")
		pairs = append(pairs, [2]hold{{key + seam + "a", token}, {key, "a" + seam + token}})
		key, token = s.key(), s.token("token")
		pairs = append(pairs, [2]hold{{"a" + seam + key, token}, {key, token + seam + "a"}})
	}
	return pairs
}

func (h hold) grant() grant { return grant{key: h.key, token: h.token} }

func keyAndTokenApart(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	for _, twins := range s.twins() {
		s.leasesApart(a, b, can, twins[0].grant(), twins[1].grant())
	}
	if can.wait {
		s.waitsApart(a, b)
		s.servedOneByOne(a, b)
	}
	return s.result()
}

// leasesApart has one hold that looks like another if key and token are joined, and then
// both.
func (s *scene) leasesApart(a, b *client, can abilities, one, other grant) {
	s.grant(a, one.key, one.token, long)
	s.renew(b, other, long, false)
	if can.batch {
		s.renewAll(b, []wish{other.wish(long, false), one.wish(long, true)})
	}
	s.release(b, other, false)
	s.grant(b, other.key, other.token, long)
	s.release(a, one, true)
	s.renew(a, one, long, false)
	s.held(a, other)
	s.release(b, other, true)
}

// waitsApart releases what does not wait, but looks like what does.
func (s *scene) waitsApart(a, b *client) {
	var holders []grant
	var waiting []*waiter
	var others []grant
	for _, twins := range s.twins() {
		holders = append(holders, s.grant(a, twins[0].key, s.token("holder"), long))
		waiting = append(waiting, s.waitCtx(s.ctx, b, twins[0].key, twins[0].token, long))
		others = append(others, twins[1].grant())
	}
	s.gap()
	for i, w := range waiting {
		s.release(b, others[i], false)
		s.waits(w)
		s.release(a, holders[i], true)
	}
	for _, w := range waiting {
		s.served(w, "the holder released the key")
		s.release(b, w.grant, true)
	}
}

// tokenHoldsManyKeys has one token hold several keys, which end in different ways.
func tokenHoldsManyKeys(s *scene) error {
	a, b := s.clients2()
	token := s.token("holder")
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	take := func(ttl time.Duration) grant { return s.grant(a, s.key(), token, ttl) }

	dead, renewed, again, kept, released := take(short), take(short), take(short), take(long), take(long)
	s.renew(b, renewed, long, true)
	s.again(b, again, long)
	s.release(b, released, true)
	s.lapse(short)
	s.free(b, released.key)
	s.free(b, dead.key)
	s.renew(b, dead, long, false)
	s.release(b, dead, false)
	lasting := []grant{renewed, again, kept}
	for len(lasting) > 0 {
		for _, g := range lasting {
			s.held(b, g)
		}
		s.release(a, lasting[0], true)
		lasting = lasting[1:]
	}
	if s.abilities(b).wait {
		s.servedApart(a, b)
	}
	return s.result()
}

// servedApart has one client wait for two keys: each lease that it gets is one of its own.
func (s *scene) servedApart(a, b *client) {
	ttl := max(2*s.h.ttl(), 4*s.h.gap()<<s.attempt)
	var holders []grant
	var waiting []*waiter
	for range 2 {
		g := s.grant(a, s.key(), s.token("holder"), long)
		holders = append(holders, g)
		waiting = append(waiting, s.wait(b, g.key, s.token("waiter"), ttl))
	}
	for i, w := range waiting {
		s.release(a, holders[i], true)
		s.served(w, "the holder released the key")
	}
	s.renew(b, waiting[0].grant, long, true)
	s.lapse(ttl)
	s.held(a, waiting[0].grant)
	s.free(a, waiting[1].key)
	s.release(a, waiting[0].grant, true)
}
