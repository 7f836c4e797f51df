package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

var keysCases = []testCase{
	is("KeysAreIndependent", keysAreIndependent, "A backend keeps any two keys apart: of 1 kB, with Unicode, spaces, braces, newlines or NUL, a prefix or a pattern of the other, or of the same hash."),
	is("KeyAndTokenApart", keyAndTokenApart, "A backend keeps key and token apart: key a:b with token c is not key a with token b:c."),
	is("TokenHoldsManyKeys", tokenHoldsManyKeys, "A backend renews, releases and ends each of a token's leases on several keys separately."),
	is("ManyLeases", manyLeases, "A backend keeps each lease to its end, as last extended, among a thousand others that come and go."),
	is("TokensCompareWhole", tokensCompareWhole, "A backend compares tokens whole, byte by byte: `user-1` is not `user-10`, and tokens may be binary."),
}

// alike are tokens, and ends of keys. Encodings change them, patterns match them, or a store
// might take them for the one beside them.
var alike = []string{
	"user-1", "user-10", "user-2", ".*", "[a]", "a", "A", "ab", "a ", " a ", "a  b", "a\n", "a\r\n", "a 1", "a\x00", "a\x00a", "a\x00b", "\x00",
	" ", "  ", "\t", "\n", "\r\n", "\u2028", "\u200b", "\ufeff", "\x1b", "\x7f", "é", "e\u0301", "ß", "ss", "ſ", "K", "\u212a", "日本", "🔒",
	"\xff", "\xfe", "\ufffd", "a\xffb", "\xc3", "\xc0\x80", "\xed\xa0\x80", "*", "?", "_", "%", "%00", "%25", "%41", "\\x41", "\\u0041", "\\", "\\n",
	"/", "//", "/.", ":", "::", "a:b", "a,b", "a;b", "a|b", "a+b", "a=", ";", "--", "$1", "#", ".", "|", "'", "\"", "\"a\"", "`", "&amp;", "<a&b>",
	"[]", "{}", "{a}", "{a}b", "{b}a", "}{", "}", "{", "false", "0", "00", "0x10", "10", "1e1", "1e3", "01", "1", "1.0", "-1", "true",
	"null", "NULL", "nil", "(nil)", "OK",
}

func keysAreIndependent(s *scene, a, b *client) {
	can := s.abilities(b)
	var leases []longLease
	for i, key := range differentKeys(s.key()) {
		g := s.try(a, grant{key: key, token: s.token(fmt.Sprintf("holder of %d %s", i, brief(key)))}, long)
		if !g.Acquired {
			s.fail("TryAcquire(%s): %s, though nobody holds this key, but others like it; want it to be acquired", brief(key), show(g.Attempt))
		}
		leases = append(leases, longLease{g, "TryAcquire", long})
	}
	renewedApart(s, b, leases, can)
	s.stillLast(a, b, leases, can) // each ends its own lease, and no other
}

// renewedApart renews each lease in its own name, and in that of the next key's holder.
func renewedApart(s *scene, c *client, leases []longLease, can abilities) {
	var wishes []wish
	for i, l := range leases {
		other := l.as(leases[(i+1)%len(leases)].token)
		s.renew(c, other, long, false)
		s.renew(c, l.grant, long, true)
		wishes = append(wishes, other.wish(long, false), l.wish(long, true))
	}
	if can.batch {
		s.renewAll(c, wishes)
	}
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
	for _, end := range slices.Concat(alike, []string{"/../" + base}) {
		keys = append(keys, base+end)
	}
	for _, length := range []int{64, 128, 255, 256, 512, 1023} {
		stem := base + strings.Repeat("x", length-len(base))
		keys = append(keys, stem+"1", stem+"2", "1"+stem, "2"+stem)
	}
	for _, c := range collisions {
		keys = append(keys, c.one+base, c.other+base)
	}
	return append(keys, " "+base, strings.ToUpper(base), "{"+base+"}", "{"+base+"}a", "a{"+base+"}", base[:len(base)-1])
}

// seams are what stores put between a key and a token, or a token and a key, where they make one name of both.
var seams = []string{"", ":", "::", "/", "|", "-", "_", ".", ",", ";", "#", "@", "=", "&", "+", " ", "\t", "\n", "\x00", "\x1f", "\xff", "\"", "\\", "{", "}"}

// twins returns pairs of a key and a token that are the same if they are joined.
func twins(s *scene) (pairs [][2]grant) {
	for _, seam := range seams {
		key, token := s.key(), s.token("token")
		pairs = append(pairs, [2]grant{{key: key + seam + "a", token: token}, {key: key, token: "a" + seam + token}})
		key, token = s.key(), s.token("token")
		pairs = append(pairs, [2]grant{{key: "a" + seam + key, token: token}, {key: key, token: token + seam + "a"}})
	}
	return pairs
}

func keyAndTokenApart(s *scene, a, b *client) {
	can := s.abilities(b)
	for _, pair := range twins(s) {
		leasesApart(s, a, b, can, pair[0], pair[1])
	}
	if can.wait {
		waitsApart(s, a, b)
	}
}

// leasesApart has one hold that looks like another if key and token are joined, and then both.
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

// waitsApart has one client wait for both of each pair. The second is released before, when
// it does not wait yet, but looks like the first, which does.
func waitsApart(s *scene, a, b *client) {
	pairs := twins(s)
	for _, like := range likeTokens() {
		key, own := s.key(), s.token("") // since no token may wait for two keys
		if !s.h.Unordered {              // else the second may be served first
			pairs = append(pairs, [2]grant{{key: key, token: own + like[0]}, {key: key, token: own + like[1]}})
		}
	}
	var holders []grant
	holds := func(key string) { holders = append(holders, s.grant(a, key, s.token("holder"), long)) }
	var first, second []*waiter
	for _, pair := range pairs {
		holds(pair[0].key)
		first = append(first, s.waitCtx(s.ctx, b, pair[0].key, pair[0].token, long))
	}
	s.gap()
	for _, pair := range pairs {
		s.release(b, pair[1], false)
		if pair[1].key != pair[0].key {
			holds(pair[1].key)
		}
		second = append(second, s.waitCtx(s.ctx, b, pair[1].key, pair[1].token, long))
	}
	s.gap()
	for i, w := range first {
		s.waits(w)
		s.release(a, holders[i], true)
	}
	for i, w := range first {
		s.servedInTheEnd(w, "the holder released the key")
		s.waits(second[i])
		s.release(b, w.grant, true)
	}
	for _, g := range holders[len(first):] {
		s.release(a, g, true)
	}
	for _, w := range second {
		s.release(b, s.served(w, "the key was released"), true)
	}
}

// tokenHoldsManyKeys has one token hold several keys, which it got from attempts or waits.
func tokenHoldsManyKeys(s *scene, a, b *client) {
	token := s.token("holder")
	endApart(s, a, b, func(ttl time.Duration) grant { return s.grant(a, s.key(), token, ttl) })
	if s.abilities(b).wait {
		endApart(s, a, b, func(ttl time.Duration) grant {
			return s.served(s.waitCtx(s.ctx, b, s.key(), token, ttl), "it was called, though nobody held the key")
		})
	}
}

func endApart(s *scene, a, b *client, take func(ttl time.Duration) grant) {
	short := s.short()
	dead, renewed, again, kept, released := take(short), take(short), take(short), take(long), take(long)
	s.renew(b, renewed, long, true)
	s.again(b, again, long)
	s.release(b, released, true)
	s.lapse(short)
	s.free(b, released.key)
	s.free(b, dead.key)
	s.renew(b, dead, long, false)
	s.release(b, dead, false)
	for _, lasting := range [][]grant{{renewed, again, kept}, {again, kept}, {kept}} {
		for _, g := range lasting {
			s.held(b, g)
		}
		s.release(a, lasting[0], true)
	}
}

// many is more than what stores keep, or look at, at a time: 100, 128, 256, 1,000.
const many = 1001

// manyLeases has a thousand other keys come and go while a few leases last, which were made in every way, and are older than
// the TTL that their keys were first held for. The fences of a key that nobody used in the meantime rise all the same.
func manyLeases(s *scene, a, b *client) {
	can := s.abilities(b)
	short := s.short()
	leases := s.lastingFor(a, b, can, short, long)
	early := s.grant(a, s.key(), s.token("early"), short)
	s.lapse(short)
	s.takeMany(200, time.Millisecond, a, b)
	s.releaseMany(s.takeMany(200, long, a, b), a, b)
	manyEnd(s, a, b, short)
	others := s.takeMany(many, long, a, b)
	s.stillLast(a, b, leases, can)
	s.releaseMany(others, a, b)
	s.above(early, s.grant(b, early.key, s.token("late"), s.h.ttl()))
}

// manyEnd has a thousand leases end together. Each has ended for whoever asks first, the
// one that was granted first and the one that was granted last.
func manyEnd(s *scene, a, b *client, ttl time.Duration) {
	for _, last := range []bool{false, true} {
		ended := s.takeMany(many, ttl, a, b)
		s.lapse(ttl)
		if last {
			slices.Reverse(ended)
		}
		s.renew(a, ended[0], ttl, false)
		s.free(b, ended[1].key)
		s.release(b, ended[2], false)
	}
}

func likeTokens() (pairs [][2]string) {
	kb := strings.Repeat("t", 600)
	tokens := slices.Concat(alike, []string{kb, kb + "1", kb + "2", "1" + kb, "2" + kb})
	for i := range tokens[1:] {
		pairs = append(pairs, [2]string{tokens[i], tokens[i+1]})
	}
	return pairs
}

func tokensCompareWhole(s *scene, c, _ *client) {
	for _, like := range likeTokens() {
		tokensApart(s, c, like[0], like[1])
		tokensApart(s, c, like[1], like[0])
	}
}

func tokensApart(s *scene, c *client, holder, other string) {
	g := s.grant(c, s.key(), holder, long)
	s.refused(c, g, other, long)
	s.renew(c, g.as(other), long, false)
	s.release(c, g.as(other), false)
	s.release(c, g, true)
}
