package conformance

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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
// returns how many succeeded.
func (s *scene) race(clients []*client, key string) int {
	var won atomic.Int32
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range racers {
		token := s.token(fmt.Sprint("racer", i))
		s.uses(key, token)
		wg.Go(func() {
			<-start
			a, err := clients[i%len(clients)].TryAcquire(s.ctx, key, token, long)
			if err != nil {
				s.fail("TryAcquire(%s, %s, %v) = %w; want it to be acquired or refused", brief(key), brief(token), long, err)
			}
			if a.Acquired {
				won.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	return int(won.Load())
}

// raceOnce has many go for a free key.
func (s *scene) raceOnce(clients []*client, key string) {
	if s.over() {
		return
	}
	if n := s.race(clients, key); n != 1 {
		s.fail("%d goroutines called TryAcquire(%s) with tokens of their own; %d acquired it, want 1", racers, brief(key), n)
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
	const rounds = 8
	key := s.key()
	var inside atomic.Int32
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			c := clients[i%len(clients)]
			for n := range rounds {
				token := s.token(fmt.Sprint("racer", i, "-", n))
				if s.take(c, key, token, i%2 == 0) {
					s.insideAlone(&inside, key)
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
		s.fail("%s(%s) = %w", call, brief(key), err)
	}
}

func (s *scene) insideAlone(inside *atomic.Int32, key string) {
	if n := inside.Add(1); n != 1 {
		s.fail("%d tokens hold %s at once, all with leases of %v", n, brief(key), long)
	}
	time.Sleep(time.Millisecond)
	inside.Add(-1)
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
	granted := s.now()
	for range 4 { // a lease that strangers' attempts prolong would not end
		s.sleep(ttl / 2)
		s.refused(b, g, s.token("stranger"), long)
	}
	s.sleep(granted.Add(3*ttl + s.h.grace()).Sub(s.now()))
	s.free(b, g.key)
	return s.result()
}

// checkRefusal compares what a refused attempt tells, as far as it tells, with
// what it can be.
func (s *scene) checkRefusal(a dlock.Attempt, g grant, ttl time.Duration) {
	if s.over() {
		return
	}
	if a.Holder != "" && a.Holder != g.token {
		s.fail("TryAcquire(%s) was refused with Holder %s; want %s, who holds the key, or nothing", brief(g.key), brief(a.Holder), brief(g.token))
	}
	if a.Remaining > ttl+s.h.grace() || a.Remaining < 0 {
		s.fail("TryAcquire(%s) was refused with Remaining %v; want at most the %v that the holder asked for, or 0 for unknown", brief(g.key), a.Remaining, ttl)
	}
}

func keysAreIndependent(s *scene) error {
	a, b := s.clients2()
	keys := differentKeys(s.key())
	grants := make([]grant, len(keys))
	for i, key := range keys {
		grants[i] = s.grantApart(a, key, fmt.Sprintf("holder of %d %s", i, brief(key)))
	}
	for _, g := range grants { // each ends its own lease, and no other
		s.release(b, g, true)
	}
	return s.result()
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
		keys = append(keys, stem+"1", stem+"2")
	}
	return append(keys,
		" "+base, strings.ToUpper(base), "{"+base+"}", "{"+base+"}a", "a{"+base+"}", base[:len(base)-1])
}

func sameTokenAgain(s *scene) error {
	a, b := s.clients2()
	ttl := s.h.ttl()

	g := s.grant(a, s.key(), s.token("holder"), long)
	again := s.again(b, g, ttl)
	s.above(g, again)
	s.lapse(ttl)
	s.held(b, g) // not shortened
	s.release(a, g, true)

	g = s.grant(a, s.key(), s.token("holder"), ttl)
	s.above(g, s.again(a, g, long))
	s.lapse(ttl)
	s.held(b, g) // extended
	s.release(b, g, true)
	s.free(a, g.key)
	return s.result()
}

func tokensCompareWhole(s *scene) error {
	c := s.client()
	kb := strings.Repeat("t", 600)
	for _, pair := range [][2]string{
		{"user-1", "user-10"}, {"user-1", "user-2"}, {"t", "T"}, {"t", "t "}, {"t", " t"}, {"t", "t\n"},
		{"t", "t\x00"}, {"t\x00a", "t\x00b"}, {"\xff", "\xfe"}, {"\xff", "\ufffd"}, {"é", "e\u0301"},
		{"1", "01"}, {"1", "1.0"}, {"10", "1e1"}, {"0", "false"}, {"*", "t"}, {"%", "t"}, {kb + "1", kb + "2"}, {kb, kb + "1"},
	} {
		s.toldApart(c, pair[0], pair[1])
		s.toldApart(c, pair[1], pair[0])
	}
	return s.result()
}

func (s *scene) toldApart(c *client, holder, other string) {
	g := s.grant(c, s.key(), holder, long)
	s.refused(c, g, other, long)
	s.renew(c, g.as(other), long, false)
	s.release(c, g.as(other), false)
	s.release(c, g, true)
}
