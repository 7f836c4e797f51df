package conformance

import (
	"strings"
	"time"
)

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

// holderIsTold asks, in every way, who holds a key.
func holderIsTold(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	for _, token := range oddTokens() {
		g := s.grant(a, s.key(), token, long)
		s.told(b, g, long, can)
		s.release(b, g, true)
	}
	s.restIsTold(a, b, can)
	return s.result()
}

// told compares all that a store tells of a lease with what it is.
func (s *scene) told(c *client, g grant, ttl time.Duration, can abilities) {
	s.checkRefusal(s.refused(c, g, s.token("stranger"), long), g, ttl)
	if can.inspect {
		s.sees(c, g, ttl)
	}
}

// restIsTold lets time pass, so that less is left of leases than they were made for.
func (s *scene) restIsTold(a, b *client, can abilities) {
	leases := s.lastingFor(a, b, can, max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt), long)
	passed := s.h.ttl() + s.h.grace()
	s.sleep(passed)
	for _, l := range leases {
		l.start = l.start.Add(passed)
		s.told(b, l.grant, long-passed, can)
		s.release(a, l.grant, true)
	}
}
