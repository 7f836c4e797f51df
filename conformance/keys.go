package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

var keysCases = []testCase{
	{name: "KeysAreIndependent", check: keysAreIndependent,
		clause: withSource("A backend keeps any two keys apart: of 1 kB, with Unicode, spaces, braces, newlines or NUL, a prefix or a pattern of the other, or of the same hash.")},
	{name: "KeyAndTokenApart", check: keyAndTokenApart,
		clause: withSource("A backend keeps key and token apart: key a:b with token c is not key a with token b:c.")},
	{name: "TokenHoldsManyKeys", check: tokenHoldsManyKeys,
		clause: withSource("A backend renews, releases and ends each of a token's leases on several keys separately.")},
	{name: "ManyLeases", check: manyLeases, once: true,
		clause: withSource("A backend keeps each lease to its end, as last extended, among a thousand others that come and go.")},
	{name: "TokensCompareWhole", check: tokensCompareWhole,
		clause: withSource("A backend compares tokens whole, byte by byte: `user-1` is not `user-10`, and tokens may be binary.")},
}

func keysAreIndependent(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	keys := differentKeys(s.key())
	grants := make([]grant, len(keys))
	for i, key := range keys {
		grants[i] = grantApart(s, a, key, fmt.Sprintf("holder of %d %s", i, brief(key)))
	}
	renewedApart(s, b, grants, can)
	for _, g := range grants { // each ends its own lease, and no other
		if can.inspect {
			s.sees(b, g, long)
		}
		s.release(b, g, true)
		if can.inspect {
			s.seesNobody(b, g.key, "its holder released it, though those of keys like it have not")
		}
	}
	return s.result()
}

// renewedApart renews each lease in its own name, and in that of the next key's holder.
func renewedApart(s *scene, c *client, grants []grant, can abilities) {
	var wishes []wish
	for i, g := range grants {
		other := g.as(grants[(i+1)%len(grants)].token)
		s.renew(c, other, long, false)
		s.renew(c, g, long, true)
		wishes = append(wishes, other.wish(long, false), g.wish(long, true))
	}
	if can.batch {
		s.renewAll(c, wishes)
	}
}

// grantApart is grant, with an error that says that keys are confused.
func grantApart(s *scene, c *client, key, token string) grant {
	g := grant{key: key, token: token, start: s.now()}
	if s.over() {
		return g
	}
	s.uses(key, token)
	a, err := c.TryAcquire(s.ctx, key, token, long)
	if err != nil || !a.Acquired {
		s.fail("TryAcquire(%s) = %s, %w, though nobody holds this key, but others like it; want it to be acquired", brief(key), show(a), orNone(err))
	}
	s.certain(key, g.start.Add(long), true)
	return g
}

// collisions are pairs that common hashes of 32 bits confuse, whatever follows both.
var collisions = []struct{ hash, one, other string }{
	{"CRC-32", "plumless", "buckeroo"},
	{"CRC-32C", "sygetqxf", "vbesjyxs"},
	{"Adler-32", "bab", "aca"},
	{"FNV-1", "ssmwiuzk", "jhxvskor"},
	{"FNV-1a", "costarring", "liquid"},
	{"FNV-1, 64 bits", "ullgbrzm", "izvpckii"}, // of which the lower half is taken
	{"FNV-1a, 64 bits", "uezvlqdo", "esbwjmnt"},
	{"Java", "Aa", "BB"},
	{"djb2", "Ez", "FY"},
	{"djb2, xor", "mzsgwdei", "bgjlrcjd"},
	{"sdbm", "hbzijfis", "oqikosza"},
	{"Jenkins, bytewise", "hflskudj", "wkvlhubr"},
	{"MurmurHash3", "uapgqeyx", "agldaqcu"},
}

// differentKeys returns keys that a store might take for the same.
func differentKeys(base string) []string {
	keys := []string{base}
	for _, end := range []string{
		"a", "A", "ab", " ", "  ", "\t", "\n", "\r\n", "\x00", "\x00a", "\x00b", "0", "00",
		"é", "e\u0301", "ß", "ss", "ſ", "K", "\u212a", "\u200b", "日本", "🔒", "\xff", "\xfe", "\ufffd",
		"*", "?", "[a]", "%", "%00", "%25", "_", "/", "//", "/.", "/../" + base, ":", "::", "\\", "\\n", "'", "\"", "`", ";", "--", "$1", "#", ".", "|",
		"{}", "{a}", "{a}b", "{b}a", "}{", "}", "{",
	} {
		keys = append(keys, base+end)
	}
	for _, length := range []int{64, 128, 255, 256, 512, 1023} {
		stem := base + strings.Repeat("x", length-len(base))
		keys = append(keys, stem+"1", stem+"2", "1"+stem, "2"+stem)
	}
	for _, c := range collisions {
		keys = append(keys, c.one+base, c.other+base)
	}
	return append(keys,
		" "+base, strings.ToUpper(base), "{"+base+"}", "{"+base+"}a", "a{"+base+"}", base[:len(base)-1])
}

// seams are what stores put between a key and a token, or a token and a key, where they
// make one name of both.
var seams = []string{"", ":", "::", "/", "|", "-", "_", ".", ",", ";", "#", "@", "=", "&", "+", " ", "\t", "\n", "\x00", "\x1f", "\xff", "\"", "\\", "{", "}"}

// twins returns pairs of a key and a token that are the same if they are joined.
func twins(s *scene) (pairs [][2]hold) {
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
	for _, twins := range twins(s) {
		leasesApart(s, a, b, can, twins[0].grant(), twins[1].grant())
	}
	if can.wait {
		waitsApart(s, a, b)
		servedOneByOne(s, a, b)
	}
	return s.result()
}

// leasesApart has one hold that looks like another if key and token are joined, and then
// both.
func leasesApart(s *scene, a, b *client, can abilities, one, other grant) {
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
func waitsApart(s *scene, a, b *client) {
	var holders []grant
	var waiting []*waiter
	var others []grant
	for _, twins := range twins(s) {
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
		servedApart(s, a, b)
	}
	return s.result()
}

// servedApart has one client wait for two keys: each lease that it gets is one of its own.
func servedApart(s *scene, a, b *client) {
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
// of a key that nobody used in the meantime rise all the same.
func manyLeases(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	short := max(2*s.h.ttl(), 3*s.h.gap()<<s.attempt)
	leases := s.lastingFor(a, b, can, short, long)
	early := s.grant(a, s.key(), s.token("early"), short)
	s.lapse(short)
	comeAndGo(s, a, b)
	manyEnd(s, a, b, short)
	others := s.takeMany(s.h.many(), long, a, b)
	s.stillLast(a, b, leases, can)
	s.releaseMany(others, a, b)
	s.above(early, s.grant(b, early.key, s.token("late"), s.h.ttl()))
	return s.result()
}

// comeAndGo has keys taken for the shortest time that there is, and others released.
func comeAndGo(s *scene, a, b *client) {
	const some = 200
	s.takeMany(some, time.Millisecond, a, b)
	s.releaseMany(s.takeMany(some, long, a, b), a, b)
	s.lapse(time.Millisecond)
}

// manyEnd has a thousand leases end together. Each has ended for whoever asks first, the
// one that was granted first and the one that was granted last.
func manyEnd(s *scene, a, b *client, ttl time.Duration) {
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

func tokensCompareWhole(s *scene) error {
	c := s.client()
	for _, pair := range likeTokens() {
		tokensApart(s, c, pair[0], pair[1])
		tokensApart(s, c, pair[1], pair[0])
	}
	return s.result()
}

// likeTokens returns pairs of tokens that a store might take for the same.
func likeTokens() [][2]string {
	kb := strings.Repeat("t", 600)
	return [][2]string{
		{"user-1", "user-10"}, {"user-1", "user-2"}, {"t", "T"}, {"t", "t "}, {"t", " t"}, {"t", "t\n"}, {"t", "t 1"},
		{"t", "t\x00"}, {"t\x00a", "t\x00b"}, {"\xff", "\xfe"}, {"\xff", "\ufffd"}, {"é", "e\u0301"},
		{"1", "01"}, {"1", "1.0"}, {"10", "1e1"}, {"0", "false"}, {"*", "t"}, {"%", "t"}, {"?", "t"}, {"_", "t"}, {"[t]", "t"}, {".*", "t"}, {kb + "1", kb + "2"}, {kb, kb + "1"},
		{"1" + kb, "2" + kb},
	}
}

func tokensApart(s *scene, c *client, holder, other string) {
	g := s.grant(c, s.key(), holder, long)
	s.refused(c, g, other, long)
	s.renew(c, g.as(other), long, false)
	s.release(c, g.as(other), false)
	s.release(c, g, true)
}

// servedOneByOne has tokens that are like each other wait for the same key, through one
// client. The one is served, and then the other.
func servedOneByOne(s *scene, a, b *client) {
	var holders []grant
	var first, second []*waiter
	wait := func(key, token string) *waiter { return s.waitCtx(s.ctx, b, key, token, long) }
	pairs := likeTokens()
	for i, pair := range append(pairs, pairs...) {
		own := s.token("") // since no token may wait for two keys
		if i >= len(pairs) {
			pair[0], pair[1] = pair[1], pair[0]
		}
		g := s.grant(a, s.key(), s.token("holder"), long)
		holders = append(holders, g)
		first = append(first, wait(g.key, own+pair[0]))
		second = append(second, wait(g.key, own+pair[1]))
	}
	s.gap()
	for _, g := range holders {
		s.release(a, g, true)
	}
	served := make([]int, len(holders))
	for i := range holders {
		both := []*waiter{first[i], second[i]}
		if served[i] = max(0, s.first(both)); !s.over() {
			s.isServed(both[served[i]])
		}
	}
	s.gap()
	for i := range holders {
		one, other := first[i], second[i]
		if served[i] == 1 {
			one, other = other, one
		}
		s.waits(other)
		s.release(b, one.grant, true)
		s.served(other, "a token like it, which had been served before, released the key")
		s.release(b, other.grant, true)
	}
}
