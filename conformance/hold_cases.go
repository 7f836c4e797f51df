package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

func exclusion(s *scene) error {
	clients := []*client{s.client(), s.client(), s.client()}
	for range 5 {
		s.raceOnce(clients, s.key())
	}
	s.raceAtExpiry(clients)
	s.raceForLong(clients)
	return s.result()
}

const racers = 12

// race lets many goroutines make one attempt each at about the same time, and
// returns those that succeeded, as "client token".
func (s *scene) race(clients []*client, key string) []string {
	var mu sync.Mutex
	var won []string
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range racers {
		token := s.token(fmt.Sprint("racer", i))
		s.uses(key, token)
		wg.Go(func() {
			<-start
			c := clients[i%len(clients)]
			a, err := c.TryAcquire(s.ctx, key, token, long)
			if err != nil {
				s.fail("%s.TryAcquire(%s, %s, %v) = %w; want it to be acquired or refused", c.name, brief(key), brief(token), long, err)
			}
			if a.Acquired {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, c.name+" "+brief(token))
			}
		})
	}
	close(start)
	wg.Wait()
	return won
}

// raceOnce has many go for a free key.
func (s *scene) raceOnce(clients []*client, key string) {
	if s.over() {
		return
	}
	if won := s.race(clients, key); len(won) != 1 {
		s.fail("%d goroutines of %d clients called TryAcquire(%s) with tokens of their own, for %v; %d acquired it: %s; want 1",
			racers, len(clients), brief(key), long, len(won), strings.Join(won, ", "))
	}
}

// raceAtExpiry has many go for a key whose lease has just expired.
func (s *scene) raceAtExpiry(clients []*client) {
	key := s.key()
	s.grant(clients[0], key, s.token("dead"), s.h.ttl())
	s.lapse(s.h.ttl())
	s.raceOnce(clients, key)
}

// raceForLong has many take and give back one key, again and again, some of
// them waiting for it.
func (s *scene) raceForLong(clients []*client) {
	rounds := s.h.rounds(8)
	key := s.key()
	inside := &insiders{tokens: make(map[string]bool)}
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			c := clients[i%len(clients)]
			for n := range rounds {
				token := s.token(fmt.Sprint("racer", i, "-", n))
				if s.take(c, key, token, i%2 == 0) {
					s.insideAlone(inside, key, token)
					s.release(c, grant{key: key, token: token}, true)
				}
			}
		})
	}
	wg.Wait()
}

// take takes key if it is free, or, where the store has a queue and wait is
// set, when it is.
func (s *scene) take(c *client, key, token string, wait bool) bool {
	if s.over() {
		return false
	}
	s.uses(key, token)
	if wait {
		a, err := c.Acquire(s.ctx, key, token, long)
		if supported(err) {
			s.noError(err, "Acquire", key)
			return a.Acquired
		}
	}
	a, err := c.TryAcquire(s.ctx, key, token, long)
	s.noError(err, "TryAcquire", key)
	if !a.Acquired {
		time.Sleep(time.Millisecond)
	}
	return a.Acquired
}

func (s *scene) noError(err error, call, key string) {
	if err != nil {
		s.fail("%s(%s) = %w; want no error", call, brief(key), err)
	}
}

// Insiders are the tokens that hold a key.
type insiders struct {
	mu     sync.Mutex
	tokens map[string]bool
}

func (s *scene) insideAlone(in *insiders, key, token string) {
	in.mu.Lock()
	in.tokens[token] = true
	if len(in.tokens) > 1 {
		s.fail("%s hold %s at once, all with leases of %v; want one of them to be refused, or to wait",
			strings.Join(slices.Sorted(maps.Keys(in.tokens)), ", "), brief(key), long)
	}
	in.mu.Unlock()
	time.Sleep(time.Millisecond)
	in.mu.Lock()
	delete(in.tokens, token)
	in.mu.Unlock()
}

func heldIsUntouched(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()

	g := s.grant(a, s.key(), s.token("holder"), long)
	for _, ask := range []time.Duration{time.Millisecond, ttl, 2 * long} {
		s.checkRefusal(s.refused(b, g, s.token("stranger"), ask), g, long)
	}
	s.lapse(ttl) // a lease cut to the TTL of a stranger's attempt would end
	s.held(b, g)
	s.release(a, g, true)

	g = s.grant(a, s.key(), s.token("holder"), 3*ttl)
	for range 4 { // a lease that strangers' attempts prolong would not end
		s.sleep(ttl / 2)
		s.refused(b, g, s.token("stranger"), long)
	}
	s.lapse(ttl)
	s.free(b, g.key)
	return s.result()
}

// rounding is by how much a rest may be told too short.
const rounding = 10 * time.Millisecond

// checkRefusal compares what a refused attempt tells, as far as it tells, with
// what it can be.
func (s *scene) checkRefusal(a dlock.Attempt, g grant, ttl time.Duration) {
	if s.over() {
		return
	}
	if a.Holder != "" && a.Holder != g.token {
		s.fail("TryAcquire(%s) was refused with Holder %s; want %s, who holds the key, or nothing", brief(g.key), brief(a.Holder), brief(g.token))
	}
	least := ttl - s.now().Sub(g.start) - rounding
	if a.Remaining != 0 && (a.Remaining > ttl+s.h.grace() || a.Remaining < max(least, 0)) {
		s.fail("TryAcquire(%s) was refused with Remaining %v; want between %v and the %v that the holder asked for, or 0 for unknown",
			brief(g.key), a.Remaining, max(least, 0), ttl)
	}
}

func keysAreIndependent(s *scene) error {
	a, b := s.clients2()
	can := s.abilities(b)
	keys := differentKeys(s.key())
	grants := make([]grant, len(keys))
	for i, key := range keys {
		grants[i] = s.grantApart(a, key, fmt.Sprintf("holder of %d %s", i, brief(key)))
	}
	s.renewedApart(b, grants, can)
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
func (s *scene) renewedApart(c *client, grants []grant, can abilities) {
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

// grantApart is grant, with an error that tells which two keys are confused.
func (s *scene) grantApart(c *client, key, token string) grant {
	g := grant{key: key, token: token, start: s.now()}
	if s.over() {
		return g
	}
	s.uses(key, token)
	a, err := c.TryAcquire(s.ctx, key, token, long)
	if err != nil || !a.Acquired {
		s.fail("TryAcquire(%s) = %s, %v, though nobody holds this key, but others like it; want it to be acquired", brief(key), show(a), err)
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

func sameTokenAgain(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()

	g := s.grant(a, s.key(), s.token("holder"), long)
	s.held(b, g) // who was refused just before does not matter
	again := s.again(b, g, ttl)
	s.above(g, again)
	s.lapse(ttl)
	s.held(b, g) // not shortened
	s.release(a, g, true)

	g = s.grant(a, s.key(), s.token("holder"), ttl)
	other := s.grant(a, s.key(), s.token("dead"), ttl)
	s.above(g, s.again(a, g, long))
	s.lapse(ttl)
	s.held(b, g) // extended
	s.free(b, other.key)
	s.release(b, g, true)
	s.free(a, g.key)
	s.allAtOnce(a, b)
	return s.result()
}

// allAtOnce has a holder renew its lease and try again at the same time, as it may when it
// repeats what got no answer: neither is refused because of the other.
func (s *scene) allAtOnce(a, b *client) {
	g := s.grant(a, s.key(), s.token("holder"), long)
	var calls sync.WaitGroup
	for _, c := range []*client{a, b, a, b} {
		calls.Go(func() {
			for range s.h.rounds(20) {
				s.renew(c, g, long, true)
			}
		})
		calls.Go(func() {
			for range s.h.rounds(20) {
				s.again(c, g, long)
				time.Sleep(30 * time.Microsecond) // so that it meets the others at other moments
			}
		})
	}
	calls.Wait()
	s.release(a, g, true)
}

func tokensCompareWhole(s *scene) error {
	c := s.client()
	for _, pair := range likeTokens() {
		s.toldApart(c, pair[0], pair[1])
		s.toldApart(c, pair[1], pair[0])
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

func (s *scene) toldApart(c *client, holder, other string) {
	g := s.grant(c, s.key(), holder, long)
	s.refused(c, g, other, long)
	s.renew(c, g.as(other), long, false)
	s.release(c, g.as(other), false)
	s.release(c, g, true)
}

// servedOneByOne has tokens that are like each other wait for the same key, through one
// client. The one is served, and then the other.
func (s *scene) servedOneByOne(a, b *client) {
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
