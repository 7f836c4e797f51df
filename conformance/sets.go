package conformance

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
)

var setsCases = []testCase{
	is("SetAllOrNone", setAllOrNone, "A SetAcquirer takes all keys of a set, or none if another token holds one of them. Then nothing changes, and each answer, in the order of the set, says that its key is Free, or who holds it. The set that it was given is unchanged.").with(acquireSet),
	is("SetAtOneInstant", setAtOneInstant, "A SetAcquirer takes all keys of a set at one instant. Of sets that share keys and come at once to free keys, one acquires them. Nobody ever finds a key held for a set that is refused.").with(acquireSet),
	is("SetGrantsAsTryAcquire", setGrantsAsTryAcquire, "A SetAcquirer grants each key as TryAcquire does, with a fence above that of each earlier grant of the key, and a lease with a TTL of its own, which is released and ends alone. A token that holds its key already is granted it again, and its lease is never shortened.").with(acquireSet),
	is("SetOvertakesNobody", setOvertakesNobody, "A SetAcquirer takes no key for which another token waits in the queue, and no other key of the set either.").with(acquireSet),
	is("SetRefusesNonsense", setRefusesNonsense, "A SetAcquirer fails with dlock.ErrInvalid, and takes no key, if the set is empty, or has a key twice, an empty key or token, or a TTL of 0.").with(acquireSet),
}

// setOf returns n elements with keys and tokens that nobody else uses. The keys are in no order, and have the same hash tag, for a
// store that takes sets only then.
func (s *scene) setOf(n int) []grant {
	set, tag := make([]grant, n), rand.Text()[:12]
	for i := range set {
		set[i] = grant{key: fmt.Sprint(anyKey, "{", tag, "}", (i+1)%n), token: s.token(fmt.Sprint("member", i))}
		s.uses(set[i].key, set[i].token)
	}
	return set
}

// acquisitions asks for the keys of set. If the TTLs are fewer, the last is that of all others.
func acquisitions(set []grant, ttls ...time.Duration) []dlock.Acquisition {
	asked := make([]dlock.Acquisition, len(set))
	for i, g := range set {
		asked[i] = dlock.Acquisition{Key: g.key, Token: g.token, TTL: ttls[min(i, len(ttls)-1)]}
	}
	return asked
}

// trySet makes an attempt at a set, and reports whether it was acquired. It was not if the store does not take it as a set this time.
func (s *scene) trySet(c *client, set []grant, ttls ...time.Duration) (answers []grant, acquired bool) {
	answers = slices.Clone(set)
	s.goOn()
	asked, start := acquisitions(set, ttls...), time.Now()
	call := c.text("TryAcquireSet", asked)
	got, err := c.TryAcquireSet(s.ctx, asked)
	if !supported(err) {
		return answers, false
	}
	if err != nil || len(got) != len(set) {
		s.fail("%s = %d attempts, %w; want %d, and no error", call, len(got), orNone(err), len(set))
	}
	if !slices.Equal(asked, acquisitions(set, ttls...)) {
		s.fail("%s changed the set that it was given, to %s", call, show(asked))
	}
	taken, free := 0, 0
	for i, a := range got {
		answers[i].Attempt, answers[i].start = a, start
		if a.Acquired {
			taken++
		}
		if a.Free {
			free++
		}
	}
	if all, none := taken == len(set) && free == 0, taken == 0 && free < len(set); !all && !none {
		s.fail("%s: %s; want all keys to be acquired, or none, since one is not Free", call, show(got))
	}
	return answers, taken == len(set)
}

// grantSet makes an attempt at a set that must succeed. An element that is Acquired holds its key already.
func (s *scene) grantSet(c *client, set []grant, ttls ...time.Duration) []grant {
	granted, ok := s.trySet(c, set, ttls...)
	for i, a := range acquisitions(set, ttls...) {
		if !ok && !s.mayHaveExpired(a.Key) {
			s.fail("%s: %s; want all keys to be acquired", c.text("TryAcquireSet", acquisitions(set, ttls...)), show(granted[i].Attempt))
		}
		s.certain(a.Key, granted[i].start.Add(a.TTL), !set[i].Acquired)
	}
	return granted
}

// refusedSet makes an attempt at a set of which another holds the key of held, with a lease of this TTL.
func (s *scene) refusedSet(c *client, set []grant, ask time.Duration, held grant, ttl time.Duration) {
	answers, acquired := s.trySet(c, set, ask)
	call := c.text("TryAcquireSet", acquisitions(set, ask))
	if acquired && !s.mayHaveExpired(held.key) {
		s.fail("%s was acquired; but %s must still hold %s", call, brief(held.token), brief(held.key))
	}
	for i, g := range answers {
		if theirs := g.key == held.key; g.Free == theirs && !s.mayHaveExpired(held.key) {
			s.fail("%s: answer %d: %s; want that %s", call, i, show(g.Attempt),
				map[bool]string{true: "another holds the key", false: "the key is Free"}[theirs])
		} else if theirs {
			s.checkRefusal(g.Attempt, held, ttl)
		}
	}
}

// setAllOrNone has sets refused because of a key at each place of them: of the others, one is free, and one is held by the set's own
// token. What a refusal would prolong does not end in time, and what it would shorten ends too early.
func setAllOrNone(s *scene, a, c *client) {
	ttl := s.h.ttl()
	var sets [][]grant
	var held, own []grant
	for at := range 3 {
		set := s.setOf(3)
		held = append(held, s.grant(a, set[at].key, s.token("holder"), 3*ttl))
		own = append(own, s.grant(a, set[(at+1)%3].key, set[(at+1)%3].token, 3*ttl))
		sets = append(sets, set)
	}
	for n := range 4 {
		s.sleep(ttl / 2)
		for at, set := range sets {
			s.refusedSet(c, set, []time.Duration{long, time.Millisecond}[n%2], held[at], 3*ttl)
			s.free(a, set[(at+2)%3].key)
			s.held(a, own[at])
		}
	}
	s.lapse(ttl)
	for at, set := range sets {
		s.renew(c, own[at], long, false)
		for _, g := range s.grantSet(c, set, long) {
			s.held(a, g)
			s.release(a, g, true)
		}
	}
}

// setAtOneInstant has pairs of three keys come at once, and then sets come that are refused, while another takes and gives back the
// key that comes first.
func setAtOneInstant(s *scene, a, c *client) {
	clients := []*client{a, c}
	for range s.h.rounds(10) {
		keys := s.setOf(3)
		var mu sync.Mutex
		var won []string
		eachOf(racers, func(i int) {
			one, other := keys[i%3], keys[(i+1+i/3%2)%3]
			pair := []grant{one.as(s.token(fmt.Sprint("racer", i))), other.as(s.token(fmt.Sprint("racer", i)))}
			for _, g := range pair {
				s.uses(g.key, g.token)
			}
			if _, acquired := s.trySet(clients[i/6], pair, long); acquired {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, brief(pair[0].token))
			}
		})
		if len(won) != 1 {
			s.fail("%d goroutines called TryAcquireSet, each for two of %s, %s and %s; %d acquired them: %s; want 1",
				racers, brief(keys[0].key), brief(keys[1].key), brief(keys[2].key), len(won), strings.Join(won, ", "))
		}
	}
	set := s.setOf(3)
	s.grant(clients[0], set[2].key, s.token("holder"), long)
	eachOf(racers, func(i int) {
		for range s.h.rounds(20) {
			if i == 0 {
				s.free(clients[0], set[0].key)
			} else if _, acquired := s.trySet(clients[i%2], set, long); acquired {
				s.fail("%s was acquired, though another holds %s", clients[i%2].text("TryAcquireSet", acquisitions(set, long)), brief(set[2].key))
			}
		}
	})
}

// setGrantsAsTryAcquire takes keys in every way at once, which are for a longer or a shorter time than each was held before, and then
// looks how their leases end.
func setGrantsAsTryAcquire(s *scene, a, c *client) {
	short := s.short()
	set := s.setOf(5)
	set[4].token = set[3].token // one token may hold several keys
	earlier := make([]grant, len(set))
	for i, g := range set {
		earlier[i] = s.grant(a, g.key, g.token, []time.Duration{long, short, long, long, long}[i])
		if set[i] = earlier[i]; i >= 2 {
			s.release(a, g, true)
			set[i].Acquired = false
		}
	}
	granted := s.grantSet(c, set, short, long, short, long)
	again := s.grantSet(c, granted, time.Millisecond)
	for i := range set {
		s.above(earlier[i], granted[i])
		s.above(granted[i], again[i])
	}
	kept, extended, dead, lasting, released := again[0], again[1], again[2], again[3], again[4]
	s.held(a, dead)
	s.release(a, released, true)
	s.free(a, released.key)
	s.lapse(short)
	s.free(a, dead.key)
	s.release(a, dead, false)
	for _, g := range []grant{kept, extended, lasting} {
		s.held(a, g)
		s.renew(a, g, long, true)
		s.release(a, g, true)
		s.free(a, g.key)
	}
}

// setOvertakesNobody has waiters served one after the other, since each holder releases the key or its lease ends, while sets with
// this key come all the time. The first that is acquired comes after all of them.
func setOvertakesNobody(s *scene, a, c *client) {
	s.requires(a, acquire)
	for _, ttl := range []time.Duration{long, 2 * s.short()} {
		set := s.setOf(2)
		g := s.grant(a, set[1].key, s.token("holder"), ttl)
		line := []*waiter{s.wait(c, g.key, s.token("waiter0"), long), s.wait(a, g.key, s.token("waiter1"), long)}
		var waiting atomic.Int64
		waiting.Store(int64(len(line)))
		acquired := make(chan struct{})
		go func() {
			defer close(acquired)
			for ok := false; !ok; s.sleep(time.Millisecond) {
				if _, ok = s.trySet(c, set, long); ok && waiting.Load() > 0 {
					s.fail("%s was acquired, though %d tokens wait for %s", c.text("TryAcquireSet", acquisitions(set, long)), waiting.Load(), brief(g.key))
				}
			}
		}()
		s.gap()
		if ttl == long {
			s.release(a, g, true)
		}
		s.eachServed(line, "the lease of each holder ended; sets with the key were tried all the time", func(w *waiter) {
			s.free(a, set[0].key)
			waiting.Add(-1)
			s.release(a, w.grant, true)
		})
		if !s.await(acquired) {
			s.fail("a set with %s is refused %v after the last who waited for it released it; want it to be acquired", brief(g.key), s.h.patience())
		}
	}
}

func setRefusesNonsense(s *scene, a, c *client) {
	set := s.setOf(2)
	for what, spoil := range map[string]func([]dlock.Acquisition) []dlock.Acquisition{
		"is empty":           func(set []dlock.Acquisition) []dlock.Acquisition { return nil },
		"has a key twice":    func(set []dlock.Acquisition) []dlock.Acquisition { return append(set, set[0]) },
		"has a key of two":   func(set []dlock.Acquisition) []dlock.Acquisition { set[1].Key = set[0].Key; return set },
		"has an empty key":   func(set []dlock.Acquisition) []dlock.Acquisition { set[1].Key = ""; return set },
		"has an empty token": func(set []dlock.Acquisition) []dlock.Acquisition { set[1].Token = ""; return set },
		"has a TTL of 0":     func(set []dlock.Acquisition) []dlock.Acquisition { set[1].TTL = 0; return set },
	} {
		got, err := c.TryAcquireSet(s.ctx, spoil(acquisitions(set, long)))
		if !errors.Is(err, dlock.ErrInvalid) || !dlock.NoEffect(err) {
			s.fail("TryAcquireSet of a set that %s = %s, %w; want an error that matches dlock.ErrInvalid, without effect", what, show(got), orNone(err))
		}
		for _, g := range set {
			s.freeAfter(a, g.key, "after an attempt at a set that "+what)
		}
	}
}
