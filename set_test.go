package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

const (
	rtt     = 4700 * time.Microsecond
	maxSet  = 2048
	inWaves = 32                     // calls of a set at once
	whole   = 200 * time.Millisecond // for which a set that waits holds nothing
)

// names returns n keys in byte order.
func names(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("k%04d", i))
	}
	return keys
}

// abcd are the keys of most sets here, in an order that is not theirs.
var abcd = []string{"d", "b", "a", "c"}

func take(t *testing.T, c *dlock.Client, keys ...string) *dlock.Leases {
	t.Helper()
	leases, err := c.AcquireAll(t.Context(), keys...)
	require.NoError(t, err)
	return leases
}

// requireHolders demands that "set" holds some keys, "other" some, and nobody the rest of abcd.
func requireHolders(t *testing.T, store *memory.Locker, bySet, byOther string) {
	t.Helper()
	for _, key := range abcd {
		token := holder(t, store, key).Token
		require.Equal(t, strings.Contains(byOther, key), token == "other", "another holds %q", key)
		require.Equal(t, strings.Contains(bySet, key), token != "" && token != "other", "the set holds %q", key)
	}
}

// free releases what another holds.
func free(t *testing.T, store *memory.Locker, key string) {
	t.Helper()
	held, err := store.Release(t.Context(), key, "other")
	require.NoError(t, err)
	require.True(t, held)
}

func TestSetOfFreeKeys(t *testing.T) {
	for n, w := range map[int]struct {
		trips   float64
		scripts int // that acquire
	}{1: {1, 1}, 8: {1.1, 1}, 100: {1.1, 1}, maxSet: {3, maxSet}} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onRedis(t, sim.Fate{}, func(t *testing.T, server *sim.Server, dial func(...dlock.Option) (*dlock.Client, func())) {
				c, _ := dial()
				before, begun := server.Cost().Scripts, time.Now()
				leases := take(t, c, names(n)...)
				most := time.Duration(w.trips * float64(rtt))
				require.LessOrEqual(t, time.Since(begun), most)
				require.Equal(t, n, c.Stats().Leases)
				for _, l := range leases.All() {
					require.Positive(t, l.Fence())
				}
				begun = time.Now()
				require.NoError(t, leases.Release())
				require.LessOrEqual(t, time.Since(begun), most)
				require.Equal(t, w.scripts+n, server.Cost().Scripts-before)
			})
		})
	}
}

func TestSets(t *testing.T) {
	inCases{
		"set is refused": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			l := acquire(t, c, "held")
			closed := dlock.New(s)
			require.NoError(t, closed.Close())
			s.forget()
			for name, r := range map[string]struct {
				c    *dlock.Client
				ctx  context.Context
				keys []string
				want error
			}{
				"no key":          {c, t.Context(), nil, dlock.ErrInvalid},
				"too many":        {c, t.Context(), names(maxSet + 1), dlock.ErrInvalid},
				"a key twice":     {c, t.Context(), []string{"a", "b", "a"}, dlock.ErrInvalid},
				"an empty key":    {c, t.Context(), []string{"a", ""}, dlock.ErrInvalid},
				"a long key":      {c, t.Context(), []string{"a", strings.Repeat("k", 1025)}, dlock.ErrInvalid},
				"a wrong option":  {c.With(dlock.WithTTL(0)), t.Context(), abcd, dlock.ErrInvalid},
				"nested":          {c, l.Context(t.Context()), []string{"a", "held"}, dlock.ErrNested},
				"nested, no wait": {c.With(dlock.WithMaxWait(0)), l.Context(t.Context()), []string{"a", "held"}, dlock.ErrNested},
				"ctx has ended":   {c, ended(t), abcd, context.Canceled},
				"closed":          {closed, t.Context(), abcd, dlock.ErrClosed},
				"no Locker":       {dlock.New(nil), t.Context(), abcd, dlock.ErrInvalid},
			} {
				leases, err := r.c.AcquireAll(r.ctx, r.keys...)
				require.Nil(t, leases, name)
				require.ErrorIs(t, err, r.want, name)
				require.ErrorContains(t, err, "dlock: acquire ", name)
				require.ErrorIs(t, r.c.DoAll(r.ctx, r.keys, func(context.Context, *dlock.Leases) error {
					t.Error(name, ": called")
					return nil
				}), r.want, name)
			}
			require.ErrorIs(t, c.DoAll(t.Context(), abcd, nil), dlock.ErrInvalid)
			require.Empty(t, s.made(), "nothing is sent")
			require.Equal(t, 1, c.Stats().Leases)
		},
		"nor is it asked for all keys in one call after 2 s": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			holdKey(t, store, "b", time.Hour)
			s.onCall(func(c *call) { c.take(100 * time.Millisecond) })
			require.ErrorIs(t, errOf(dlock.New(inSets{s}, dlock.WithMaxWait(5*time.Second)).AcquireAll(t.Context(), "a", "b")), dlock.ErrHeld)
			require.InDelta(t, 19, len(s.made("set")), 1)
		},
		"a Locker that takes sets but not these is asked for each key, and for no more at once than if it took none": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			s.onCall(func(c *call) {
				if c.op == "set" {
					c.err = errors.ErrUnsupported
				}
				c.take(time.Millisecond)
			})
			begun := time.Now()
			leases := take(t, dlock.New(struct {
				dlock.Locker
				dlock.SetAcquirer
			}{s, inSets{s}}), names(3*inWaves)...)
			require.Equal(t, 4*time.Millisecond, time.Since(begun))
			for _, l := range leases.All() {
				require.WithinDuration(t, l.Deadline(), begun.Add(30*time.Second), time.Second/2)
			}
			require.NoError(t, leases.Release())
		},
		// ctx ends when the store has said that one key is held, and before it has answered for another. The store's
		// client ignores ctx.
		"set that is cancelled before it waits": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			holdKey(t, store, "b", time.Hour)
			s.onCall(func(c *call) {
				c.delay = map[string]time.Duration{"b": time.Millisecond, "c": 2 * time.Second}[c.key]
			})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			requireErr(t, errOf(c.AcquireAll(ctx, abcd...)), context.Canceled, dlock.ErrHeld)
			requireHolders(t, store, "", "b")
		},
		// A set keeps its keys for the MinHold, which counts from each grant. What it gives back, and what it had
		// when it failed, is free at once.
		"set with MinHold": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			const minHold = time.Minute
			c := dlock.New(s, dlock.WithMinHold(minHold))
			holdKey(t, store, "b", 10*time.Second)
			go func() {
				time.Sleep(time.Second)
				requireHolders(t, store, "a", "b")
			}()
			begun := time.Now()
			require.NoError(t, take(t, c, abcd...).Release())
			require.Equal(t, 10*time.Second, time.Since(begun))
			time.Sleep(time.Until(begun.Add(minHold - time.Second)))
			requireHolders(t, store, "abcd", "")
			time.Sleep(2 * time.Second)
			requireHolders(t, store, "bcd", "")
			time.Sleep(10 * time.Second)
			requireHolders(t, store, "", "")
			holdKey(t, store, "c", time.Hour)
			require.ErrorIs(t, errOf(c.With(dlock.WithMaxWait(time.Second)).AcquireAll(t.Context(), abcd...)), dlock.ErrHeld)
			requireHolders(t, store, "", "c")
			free(t, store, "c")
			s.onCall(func(c *call) {
				if c.op == "release" || c.op == "try" && c.key == "d" {
					c.reply = errStore
				}
			})
			require.ErrorIs(t, errOf(c.AcquireAll(t.Context(), abcd...)), dlock.ErrUnavailable)
			synctest.Wait()
			requireHolders(t, store, "", "")
		},
		// An attempt that fails ends the call with its error. No more attempts are made, and what it may have left is owed.
		"set with an attempt that fails": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			keys, c := names(maxSet), dlock.New(struct{ dlock.Locker }{s}) // which does not combine calls
			holdKey(t, store, keys[0], time.Hour)
			s.onCall(func(c *call) {
				if c.op == "try" && c.key == keys[7] {
					c.reply = errStore
				}
				c.take(rtt)
			})
			begun := time.Now()
			_, err := c.AcquireAll(t.Context(), keys...)
			requireErr(t, err, dlock.ErrUnavailable, errStore)
			require.ErrorContains(t, err, keys[7])
			require.LessOrEqual(t, len(s.made("try")), 2*inWaves)
			require.LessOrEqual(t, time.Since(begun), 4*rtt)
			requireAllFree(t, store, slices.Concat(keys[1:7], keys[8:]))
			time.Sleep(2 * rtt)
			requireFree(t, store, keys[7])
		},
		// However many keys a set has, its release takes no longer than that of one, and a call that fails does not
		// wait for a store that does not answer.
		"release of a set that is not answered": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			keys, c := names(maxSet), dlock.New(s)
			leases := take(t, c, keys...)
			s.on("release", func(c *call) { c.hang() })
			begun := time.Now()
			errs := leases.Release().(interface{ Unwrap() []error }).Unwrap()
			require.Len(t, errs, maxSet)
			require.ErrorIs(t, errs[maxSet-1], dlock.ErrUnavailable)
			require.Equal(t, 5*time.Second, time.Since(begun))
			require.Equal(t, dlock.Stats{ReleasesOwed: maxSet}, c.Stats())
			s.onCall(nil)
			time.Sleep(2 * time.Second)
			requireAllFree(t, store, keys)
			require.NoError(t, leases.Release(), "again")
			holdKey(t, store, keys[maxSet-1], time.Hour)
			s.on("release", func(c *call) { c.hang() })
			begun = time.Now()
			require.ErrorIs(t, errOf(c.With(dlock.WithMaxWait(0)).AcquireAll(t.Context(), keys...)), dlock.ErrHeld)
			require.LessOrEqual(t, time.Since(begun), 2*time.Second)
			s.onCall(nil)
			time.Sleep(2 * time.Second)
			requireAllFree(t, store, keys[:maxSet-1])
		},
		"the context of a set carries its leases, and costs no more than that of one lease": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			asked, keys := 0, names(maxSet)
			outer := acquire(t, c, "outer")
			leases := take(t, c, keys...)
			other := take(t, dlock.New(memory.New()), "k0000", "x")
			ctx := other.Context(leases.Context(outer.Context(countingValues{t.Context(), &asked})))
			asked = 0
			ctx.Value("key")
			require.Equal(t, 1, asked)
			for _, key := range keys[1:] {
				l, ok := dlock.LeaseFromContext(ctx, key)
				require.True(t, ok)
				require.Same(t, leases.Lease(key), l)
			}
			require.Zero(t, testing.AllocsPerRun(100, func() { dlock.LeaseFromContext(ctx, keys[maxSet/2]) }))
			for key, want := range map[string]*dlock.Lease{"outer": outer, "x": other.Lease("x"), "k0000": other.Lease("k0000"), "y": nil} {
				l, _ := dlock.LeaseFromContext(ctx, key)
				require.Same(t, want, l, "the innermost")
			}
			require.ErrorIs(t, errOf(c.Acquire(ctx, "k0000")), dlock.ErrNested, "of that store")
			require.ErrorIs(t, errOf(c.AcquireAll(ctx, "y", "k0001")), dlock.ErrNested)
			require.Contains(t, fmt.Sprint(ctx), "WithLeases(2048)")
			for _, shown := range []string{fmt.Sprint(ctx), fmt.Sprintf("%v %+v %#v", leases, leases, leases)} {
				require.NotContains(t, shown, leases.Lease("k0000").Token()[8:20])
			}
			require.NoError(t, other.Release())
			require.NoError(t, leases.Release())
			_, ok := dlock.LeaseFromContext(ctx, "k0000")
			require.False(t, ok)
			require.NoError(t, outer.Release())
		},
		"each key has its own events: an attempt, and a wait if the set waits for it": func(t *testing.T, store *memory.Locker, s *spy, _ *dlock.Client) {
			c, seen := watched(s)
			holdKey(t, store, "c", 500*time.Millisecond)
			s.onCall(func(c *call) {
				if c.op == "release" { // d is given back before it is tried again
					c.take(900 * time.Millisecond)
				} else {
					c.take(rtt)
				}
			})
			require.NoError(t, take(t, c, abcd...).Release())
			events := make(map[string][]string) // by key
			note := func(key, format string, args ...any) { events[key] = append(events[key], fmt.Sprintf(format, args...)) }
			for _, event := range seen.events {
				switch i := event.(type) {
				case dlock.AcquireStartInfo:
					note(i.Key, "%s", i.Op)
				case dlock.WaitStartInfo:
					note(i.Key, "wait%s", i.Inside)
				case dlock.AcquireDoneInfo:
					note(i.Key, "%v, %v, %d", i.Err == nil, i.Waited > 0, i.Attempts)
				case dlock.LeaseDoneInfo:
					note(i.Key, "%s", i.End)
				case dlock.ReleaseDoneInfo:
					note(i.Key, "%v", i.Err)
				}
			}
			granted := []string{"try", "true, false, 1", "released", "<nil>"}
			require.Equal(t, map[string][]string{
				"a": granted,
				"b": granted,
				"c": {"try", "false, false, 1", "acquire", "wait", "true, true, 1", "released", "<nil>"},
				"d": slices.Concat(granted, granted),
			}, events)
			require.Zero(t, c.Stats())
		},
		// A Locker that ends its goroutine, as a mock may, in the only attempt that a set makes after a wait: that is an error, and
		// nothing is held.
		"exit in a set": func(t *testing.T, store *memory.Locker, s *spy, c *dlock.Client) {
			holdKey(t, store, "b", 50*time.Millisecond)
			s.onCall(func(c *call) {
				if c.op == "try" && c.key == "a" && len(s.made("acquire")) > 0 {
					runtime.Goexit()
				}
			})
			var err error
			require.NotPanics(t, func() { _, err = c.AcquireAll(t.Context(), "a", "b") })
			require.ErrorContains(t, err, "panicked")
			time.Sleep(time.Minute)
			requireHolders(t, store, "", "")
		},
		"each attempt of a set with WithOutage is repeated": func(t *testing.T, _ *memory.Locker, n *spy, _ *dlock.Client) {
			c := dlock.New(n, dlock.WithOutage(10*time.Second))
			begun := time.Now()
			go n.fail(refuse, 5*time.Second)
			synctest.Wait()
			require.NoError(t, take(t, c, abcd...).Release())
			require.Less(t, time.Since(begun), 6*time.Second)
			require.Greater(t, time.Since(begun), 5*time.Second)
		},
	}.run(t)
}

// A set waits for its keys in byte order. At first it holds nothing meanwhile, and then what comes before the key it
// waits for.
func TestSetWaitsInOrder(t *testing.T) {
	waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		holdKey(t, store, "b", time.Hour)
		holdKey(t, store, "d", time.Hour)
		c := dlock.New(l)
		var leases *dlock.Leases
		done := make(chan struct{})
		go func() {
			leases = take(t, c, abcd...)
			close(done)
		}()
		time.Sleep(whole / 2)
		requireHolders(t, store, "", "bd")
		time.Sleep(time.Second)
		requireHolders(t, store, "a", "bd")
		require.Equal(t, dlock.Stats{Leases: 1, Waiters: 1}, c.Stats())
		free(t, store, "b")
		time.Sleep(time.Second)
		requireHolders(t, store, "abc", "d")
		free(t, store, "d")
		<-done
		requireHolders(t, store, "abcd", "")
		for i, l := range leases.All() {
			require.Equal(t, "abcd"[i:i+1], l.Key())
			require.Same(t, l, leases.Lease(l.Key()))
			requireHeld(t, store, l.Key(), l.Token())
		}
		require.Nil(t, leases.Lease("e"))
		require.NoError(t, leases.Err())
		earliest := slices.MinFunc(leases.All(), func(l, m *dlock.Lease) int { return l.Deadline().Compare(m.Deadline()) })
		require.Equal(t, earliest.Deadline(), leases.Deadline())
		require.NoError(t, leases.Release())
		requireAllFree(t, store, abcd)
		require.NoError(t, leases.Release(), "again")
		for _, call := range s.made("acquire") {
			require.Contains(t, "bd", call.key, "waits only for what was held")
		}
	})
}

// While attempts are fast, a set tries all keys again when it has waited for one, and holds nothing while it waits; if more
// than two are held, it takes them in order at once.
func TestSetTakesAllKeysAtOnce(t *testing.T) {
	for held, holds := range map[string]string{"b": "", "bd": "", "bcd": "a"} {
		waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
			for _, key := range held {
				holdKey(t, store, string(key), 90*time.Millisecond)
			}
			s.onCall(func(c *call) { c.take(time.Millisecond) })
			time.AfterFunc(whole/4, func() { requireHolders(t, store, holds, held) })
			leases := take(t, dlock.New(l), abcd...)
			require.NoError(t, leases.Err())
			requireHolders(t, store, "abcd", "")
			require.NoError(t, leases.Release())
			requireAllFree(t, store, abcd)
		})
	}
}

// A Locker that takes sets is asked for all keys in one call, again and again while one is held. Nothing is held meanwhile.
// After 200 calls the keys are taken in order. Each key has one acquisition, and one of these waits.
func TestSetInOneCall(t *testing.T) {
	for held, lasts := range map[string]time.Duration{"": 0, "b": 90 * time.Millisecond, "bcd": 300 * time.Millisecond, "c": time.Hour} {
		in(t, func(t *testing.T, store *memory.Locker, s *spy) {
			for _, key := range held {
				holdKey(t, store, string(key), lasts)
			}
			c, seen := watched(inSets{s})
			s.onCall(func(c *call) {
				c.take(time.Millisecond / 2)
				for _, key := range abcd {
					if c.op == "set" {
						require.Contains(t, []string{"", "other"}, holder(t, store, key).Token, "holder of %q meanwhile", key)
					}
				}
			})
			ctx := within(t, 3*time.Second)
			time.AfterFunc(min(lasts, whole)/2, func() { require.Equal(t, lasts > 0, c.Stats().Waiters == 1) })
			begun := time.Now()
			leases, err := c.AcquireAll(ctx, abcd...)
			if lasts == time.Hour {
				require.ErrorIs(t, err, dlock.ErrHeld)
				require.Len(t, s.made("set"), 200)
				require.Len(t, s.made("acquire"), 1)
				return
			}
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(begun), lasts+20*time.Millisecond)
			require.Equal(t, len(s.made("set")), len(s.made()), "no other calls")
			require.Len(t, of[dlock.WaitStartInfo](seen), min(len(held), 1))
			done := make(map[string][]dlock.AcquireDoneInfo)
			for _, i := range of[dlock.AcquireDoneInfo](seen) {
				done[i.Key] = append(done[i.Key], i)
			}
			tokens, fences := make(map[string]bool), make(map[int64]bool)
			for _, l := range leases.All() {
				tokens[l.Token()], fences[l.Fence()] = true, true
				require.Len(t, done[l.Key()], 1)
				require.NoError(t, done[l.Key()][0].Err)
				require.Equal(t, strings.Contains(held, l.Key()), done[l.Key()][0].Contended)
			}
			require.True(t, len(tokens) == 4 && len(fences) == 4)
			require.NoError(t, leases.Release())
			for _, call := range s.made("set") {
				tokens[call.token] = true
			}
			require.Len(t, tokens, 3+len(s.made("set")), "each attempt has its token")
			require.NoError(t, acquire(t, c, "d").Release())
			require.Empty(t, s.made("acquire"), "nobody waited for d alone")
			s.forget()
			require.NoError(t, take(t, c, "d").Release())
			require.Equal(t, []string{"try", "release"}, s.ops(), "one key")
		})
	}
}

// What a call for a set may have left is owed, for each key. No key is left, and no key that was free is released.
func TestSetInOneCallThatFails(t *testing.T) {
	held := func(c *call) {
		c.set = func(set []dlock.Acquisition) []dlock.Attempt {
			return []dlock.Attempt{{Free: true}, {Holder: "x"}, {Free: true}, {Holder: "y"}}
		}
	}
	after := func(refusals int, then func(*call)) func(*call) {
		return func(c *call) {
			if held(c); refusals == 0 {
				c.set = nil
				then(c)
			}
			refusals--
		}
	}
	for name, f := range map[string]struct {
		set      func(c *call)
		opts     []dlock.Option
		want     error
		text     string
		releases int
		took     time.Duration
	}{
		"lost answer": {func(c *call) { c.reply = errStore }, nil, errStore, `acquire "a"`, 4, 0},
		"no effect":   {func(c *call) { c.err = &dlock.NoEffectError{Err: errStore} }, nil, errStore, "the store refused", 0, 0},
		"no answer":   {func(c *call) { c.hang() }, []dlock.Option{dlock.WithMaxWait(0)}, dlock.ErrUnavailable, "no answer within 1s", 4, time.Second},
		"not in one":  {func(c *call) { c.err = errors.ErrUnsupported }, nil, nil, "", 4, 0},
		"nobody holds it": {func(c *call) {
			c.set = func([]dlock.Acquisition) []dlock.Attempt { return slices.Repeat([]dlock.Attempt{{Free: true}}, 4) }
		}, nil, nil, "", 4, 0},
		"three of four":      {func(c *call) { c.set = func([]dlock.Acquisition) []dlock.Attempt { return make([]dlock.Attempt, 3) } }, nil, nil, "3 attempts for a set of 4", 4, 0},
		"held, no wait":      {held, []dlock.Option{dlock.WithMaxWait(0)}, dlock.ErrHeld, `acquire "b": held`, 0, 0},
		"held, a wait":       {held, []dlock.Option{dlock.WithMaxWait(time.Second / 4)}, dlock.ErrHeld, `acquire "b": waited for 250ms: held`, 0, time.Second / 4},
		"held, then broken":  {after(3, func(c *call) { c.reply = errStore }), nil, nil, "", 8, -1},
		"held, then silent":  {after(3, func(c *call) { c.hang() }), []dlock.Option{dlock.WithMaxWait(time.Second / 4)}, dlock.ErrHeld, `waited for 250ms: held`, 4, time.Second / 4},
		"held, then no word": {after(3, func(c *call) { c.hang() }), nil, nil, "", 8, -1},
		"held, then apart":   {after(3, says(errors.ErrUnsupported)), nil, nil, "", 4, -1},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			s.on("set", func(c *call) { f.set(c) })
			begun := time.Now()
			leases, err := dlock.New(inSets{s}, f.opts...).AcquireAll(t.Context(), abcd...)
			if took := time.Since(begun); f.took >= 0 {
				require.Equal(t, f.took, took)
			}
			switch {
			case f.want == nil && f.text == "":
				require.NoError(t, err)
				requireHolders(t, store, "abcd", "")
				require.NoError(t, leases.Release())
			default:
				require.ErrorContains(t, err, f.text)
				if f.want != nil {
					require.ErrorIs(t, err, f.want)
				}
			}
			time.Sleep(time.Minute)
			requireHolders(t, store, "", "")
			released := make(map[string]bool)
			for _, call := range s.made("release") {
				released[call.token] = true
			}
			require.Len(t, released, f.releases)
		})
	}
}

// The call for a set ends with ctx, and with the Client. So does the pause after one.
func TestSetInOneCallThatIsCut(t *testing.T) {
	for name, want := range map[string][]any{"ctx": {context.Canceled, dlock.ErrHeld}, "Close": {dlock.ErrClosed}} {
		for _, inCall := range []bool{false, true} {
			run(t, fmt.Sprint(name, inCall), func(t *testing.T, store *memory.Locker, s *spy) {
				holdKey(t, store, "b", time.Hour)
				c := dlock.New(inSets{s})
				ctx, end := context.WithCancel(t.Context())
				defer end()
				if name == "Close" {
					end = func() { c.Close() }
				}
				begun := time.Now()
				time.AfterFunc(time.Second, func() { end() })
				s.onCall(func(c *call) { c.hangIf(inCall && c.op == "set" && time.Since(begun) > time.Second/2) })
				_, err := c.AcquireAll(ctx, abcd...)
				require.Equal(t, time.Second, time.Since(begun))
				requireErr(t, err, want...)
				time.Sleep(time.Minute)
				requireHolders(t, store, "", "b")
			})
		}
	}
	in(t, func(t *testing.T, store *memory.Locker, s *spy) { // before one key has come to the call
		var c *dlock.Client
		c = dlock.New(inSets{s}, dlock.WithObserver(&dlock.Observer{AcquireStart: func(ctx context.Context, i dlock.AcquireStartInfo) context.Context {
			if i.Key == "c" {
				time.Sleep(time.Minute)
				c.Close()
			}
			return ctx
		}}))
		require.ErrorIs(t, errOf(c.AcquireAll(t.Context(), abcd...)), dlock.ErrClosed)
		require.Empty(t, s.made())
	})
}

// MaxWait and ctx limit the whole call.
func TestSetWaitsNoLonger(t *testing.T) {
	const limit = 2 * time.Second
	for name, w := range map[string]struct {
		wait, ctx, took time.Duration
		held            map[string]time.Duration
		late            time.Duration // with which the answer comes to a wait for b
		key             string        // of the error; empty if there is none
	}{
		"no wait":               {0, time.Hour, 0, map[string]time.Duration{"b": time.Hour, "d": time.Hour}, 0, "b"},
		"no need to wait":       {0, time.Hour, 0, nil, 0, ""},
		"one wait":              {limit, time.Hour, limit, map[string]time.Duration{"b": time.Hour}, 0, "b"},
		"several waits":         {limit, time.Hour, limit, map[string]time.Duration{"b": 1500 * time.Millisecond, "d": time.Hour}, 0, "d"},
		"in time":               {limit, time.Hour, 1500 * time.Millisecond, map[string]time.Duration{"b": 1500 * time.Millisecond}, 0, ""},
		"ctx":                   {time.Hour, limit, limit, map[string]time.Duration{"b": 1500 * time.Millisecond, "d": time.Hour}, 0, "d"},
		"a late grant":          {limit, time.Hour, 3 * time.Second, map[string]time.Duration{"b": time.Second}, limit, ""},
		"a late grant, in vain": {limit, time.Hour, 3 * time.Second, map[string]time.Duration{"b": time.Second, "d": time.Hour}, limit, "d"},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			others := ""
			for key, d := range w.held {
				if holdKey(t, store, key, d); d == time.Hour {
					others += key
				}
			}
			s.onCall(func(c *call) { c.delayIf(c.op == "acquire" && c.key == "b" && len(s.made("acquire")) == 2, w.late) })
			ctx := within(t, w.ctx)
			begun, c := time.Now(), dlock.New(s, dlock.WithMaxWait(w.wait))
			leases, err := c.AcquireAll(ctx, abcd...)
			require.Equal(t, w.took, time.Since(begun))
			if w.key == "" {
				require.NoError(t, err)
				require.NoError(t, leases.Release())
				return
			}
			held := as[*dlock.HeldError](t, err)
			require.Equal(t, w.key, held.Key)
			require.Equal(t, w.ctx == limit, errors.Is(err, context.DeadlineExceeded))
			requireHolders(t, store, "", others)
			if w.wait == 0 {
				tried := make(map[string]bool)
				for _, call := range s.made("try") {
					require.False(t, tried[call.key], "%q is tried twice", call.key)
					tried[call.key] = true
				}
				require.Empty(t, s.made("acquire"))
			}
		})
	}
}

// The store falls silent while a set waits for at most 2 s, or answers slowly before. The call ends a second later, and
// says how long it has waited.
func TestSetWhoseStoreFallsSilent(t *testing.T) {
	const limit, freed = 2 * time.Second, 1900 * time.Millisecond
	for name, slow := range map[string]time.Duration{"at once": 0, "after a slow answer": 950 * time.Millisecond} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			holdKey(t, store, "k0001", freed)
			begun, c := time.Now(), dlock.New(s, dlock.WithMaxWait(limit))
			s.onCall(func(c *call) {
				switch at := time.Since(begun); {
				case at < freed:
				case at < freed+slow:
					c.take(slow)
				default:
					c.hang()
				}
			})
			_, err := c.AcquireAll(t.Context(), names(8)...)
			require.InDelta(t, limit+time.Second, time.Since(begun), float64(100*time.Millisecond))
			requireErr(t, err, dlock.ErrUnavailable, "waited for 2s: store unavailable", noContext)
			s.onCall(nil)
			time.Sleep(2 * time.Second)
			requireAllFree(t, store, names(8))
		})
	}
}

// An outage that begins while a set waits does not end the call.
func TestSetWaitsThroughAnOutage(t *testing.T) {
	waiting.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		holdKey(t, store, "b", time.Hour)
		time.AfterFunc(whole/2, func() { s.onCall(says(errStore)) })
		time.AfterFunc(10*time.Second, func() { s.onCall(nil) })
		time.AfterFunc(20*time.Second, func() { free(t, store, "b") })
		begun := time.Now()
		require.NoError(t, take(t, dlock.New(l), abcd...).Release())
		require.InDelta(t, 20*time.Second, time.Since(begun), float64(time.Second))
	})
}

// A lease that is lost ends the wait for the others at once, and nothing is held then, whatever the MinHold.
func TestSetThatIsLostWhileItWaits(t *testing.T) {
	const ttl, minHold = 30 * time.Second, 20 * time.Second
	for name, l := range map[string]struct {
		opts   []dlock.Option
		happen func(store *memory.Locker)
		reason dlock.LossReason
		after  time.Duration
	}{
		"removed":    {nil, func(store *memory.Locker) { store.Expire("a") }, dlock.LossRemoved, 10 * time.Second},
		"MaxHold":    {[]dlock.Option{dlock.WithMaxHold(minHold)}, nil, dlock.LossMaxHold, 10*time.Second + ttl - 302*time.Millisecond},
		"no renewal": {[]dlock.Option{dlock.WithRenewal(false)}, nil, dlock.LossExpired, ttl - 302*time.Millisecond},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			holdKey(t, store, "c", time.Hour)
			c := dlock.New(s, append(l.opts, dlock.WithTTL(ttl), dlock.WithMinHold(minHold))...)
			begun := time.Now()
			if l.happen != nil {
				time.AfterFunc(time.Second, func() { l.happen(store) })
			}
			leases, err := c.AcquireAll(t.Context(), abcd...)
			require.Nil(t, leases)
			lost := as[*dlock.LostError](t, err)
			require.Contains(t, "ab", lost.Key)
			require.Equal(t, l.reason, lost.Reason)
			requireErr(t, err, noContext)
			require.Equal(t, whole+l.after, time.Since(begun))
			synctest.Wait()
			requireHolders(t, store, "", "c")
			time.Sleep(time.Minute)
			require.Zero(t, c.Stats().ReleasesOwed)
		})
	}
}

// The first lease that ends ends the set and its contexts. The others stay held.
func TestSetEnds(t *testing.T) {
	for name, e := range map[string]struct {
		end    func(t *testing.T, store *memory.Locker, c *dlock.Client, leases *dlock.Leases)
		want   error
		result error // of Release
		left   string
	}{
		"lost": {func(t *testing.T, store *memory.Locker, _ *dlock.Client, _ *dlock.Leases) {
			store.Expire("b")
			time.Sleep(11 * time.Second)
		}, dlock.ErrLost, dlock.ErrLost, "acd"},
		"detached": {func(t *testing.T, _ *memory.Locker, _ *dlock.Client, leases *dlock.Leases) {
			detach(t, leases.Lease("b"))
		}, dlock.ErrReleased, nil, "abcd"},
		"one released": {func(t *testing.T, _ *memory.Locker, _ *dlock.Client, leases *dlock.Leases) {
			require.NoError(t, leases.Lease("b").Release())
		}, dlock.ErrReleased, nil, "acd"},
		"released": {func(t *testing.T, _ *memory.Locker, _ *dlock.Client, leases *dlock.Leases) {
			require.NoError(t, leases.Release())
		}, dlock.ErrReleased, nil, ""},
		"shutdown": {func(t *testing.T, _ *memory.Locker, c *dlock.Client, _ *dlock.Leases) {
			require.ErrorIs(t, c.Shutdown(ended(t)), context.Canceled)
		}, dlock.ErrClosed, nil, "abcd"},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			c := dlock.New(s)
			leases := take(t, c, abcd...)
			parent, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("the parent's")
			cancelled, ctx, done := leases.Context(parent), leases.Context(t.Context()), leases.Done()
			cancel(cause)
			require.Equal(t, cause, context.Cause(cancelled))
			require.NoError(t, ctx.Err())
			e.end(t, store, c, leases)
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			<-done
			<-leases.Done()
			require.ErrorIs(t, leases.Err(), e.want)
			require.Equal(t, leases.Err(), context.Cause(ctx))
			require.Equal(t, leases.Err(), context.Cause(leases.Context(t.Context())))
			require.False(t, leases.Deadline().After(time.Now()))
			requireHolders(t, store, e.left, "")
			require.ErrorIs(t, leases.Release(), e.result)
			require.ErrorIs(t, leases.Err(), e.want)
			time.Sleep(time.Minute)
			requireHolders(t, store, "", "")
		})
	}
}

// One lease that is kept after its end keeps no other of its set in memory.
func TestEndedLeaseKeepsNoSet(t *testing.T) {
	c := dlock.New(memory.New())
	defer c.Close()
	one, set := func() (*dlock.Lease, weak.Pointer[dlock.Leases]) {
		leases := take(t, c, abcd...)
		leases.Context(t.Context())
		require.NoError(t, leases.Release())
		return leases.Lease("b"), weak.Make(leases)
	}()
	require.Eventually(t, func() bool { runtime.GC(); return set.Value() == nil }, 10*time.Second, time.Millisecond)
	require.ErrorIs(t, one.Err(), dlock.ErrReleased)
}

func TestDoAll(t *testing.T) {
	wrong := errors.New("went wrong")
	for name, d := range map[string]struct {
		fn        func(ctx context.Context, store *memory.Locker, leases *dlock.Leases) error
		want, not []error
	}{
		"nothing": {func(context.Context, *memory.Locker, *dlock.Leases) error { return nil }, nil, nil},
		"error":   {func(context.Context, *memory.Locker, *dlock.Leases) error { return wrong }, []error{wrong}, []error{dlock.ErrLost}},
		"two losses": {func(ctx context.Context, store *memory.Locker, _ *dlock.Leases) error {
			store.Steal("a", time.Second)
			store.Steal("c", time.Second)
			<-ctx.Done()
			return ctx.Err()
		}, []error{dlock.ErrLost}, []error{context.Canceled, errStore}},
		"detached": {func(_ context.Context, _ *memory.Locker, leases *dlock.Leases) error {
			_, err := leases.Lease("b").Detach()
			return err
		}, nil, nil},
	} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			s.onCall(func(c *call) {
				if c.op == "release" && c.key == "d" {
					c.reply = errStore // which is no error of the work
				}
			})
			err := dlock.New(s).DoAll(t.Context(), abcd, func(ctx context.Context, leases *dlock.Leases) error {
				requireHolders(t, store, "abcd", "")
				for _, key := range abcd {
					l, _ := dlock.LeaseFromContext(ctx, key)
					require.Same(t, leases.Lease(key), l)
				}
				return d.fn(ctx, store, leases)
			})
			require.Equal(t, d.want == nil, err == nil, err)
			for _, want := range d.want {
				require.ErrorIs(t, err, want)
			}
			for _, not := range d.not {
				require.NotErrorIs(t, err, not)
			}
			time.Sleep(time.Minute)
			requireHolders(t, store, "", "")
		})
	}
	in(t, func(t *testing.T, store *memory.Locker, s *spy) {
		require.PanicsWithValue(t, "boom", func() {
			dlock.New(s).DoAll(t.Context(), abcd, func(context.Context, *dlock.Leases) error { panic("boom") })
		})
		requireHolders(t, store, "", "")
	})
}

// A Locker that panics does so in the goroutine of the caller, who holds nothing then.
func TestPanicInASet(t *testing.T) {
	ways{
		"c":    func(s *spy) dlock.Locker { return s },
		"abcd": func(s *spy) dlock.Locker { return inSets{s} },
	}.run(t, func(t *testing.T, store *memory.Locker, s *spy, l dlock.Locker) {
		c := dlock.New(l)
		s.onCall(func(c *call) {
			if strings.HasSuffix(t.Name(), "/"+c.key) {
				s.onCall(nil)
				panic("boom")
			}
		})
		require.PanicsWithValue(t, "boom", func() { c.AcquireAll(t.Context(), abcd...) })
		synctest.Wait()
		requireHolders(t, store, "", "")
		require.NoError(t, take(t, c, abcd...).Release())
	})
}

// A wait inside the work of another lease is seen and counted. It may last until MaxWait has passed, and one
// set of both keys does not wait so.
func TestWaitInsideAnotherLease(t *testing.T) {
	const maxWait = 10 * time.Second
	for name, with := range map[string]dlock.Option{"alone": dlock.WithLocalTurns(1), "in a line": dlock.WithLocalTurns(8)} {
		run(t, name, func(t *testing.T, store *memory.Locker, s *spy) {
			seen := new(ledger)
			observed, inside := dlock.WithObserver(seen.observer()), func() map[string]string {
				all := make(map[string]string)
				for _, i := range of[dlock.WaitStartInfo](seen) {
					all[i.Key] = i.Inside
				}
				return all
			}
			c := dlock.New(s, dlock.WithMaxWait(maxWait), with)
			nested := func(c *dlock.Client, outer, inner []string) error {
				return c.DoAll(t.Context(), outer, func(ctx context.Context, _ *dlock.Leases) error {
					time.Sleep(time.Second)
					return c.Do(ctx, inner[0], noWork)
				})
			}
			both := func(c *dlock.Client) {
				errs := make(chan error)
				begun := time.Now()
				go func() { errs <- nested(c, []string{"x"}, []string{"y"}) }()
				go func() { errs <- nested(c, []string{"y"}, []string{"x"}) }()
				require.ErrorIs(t, errors.Join(<-errs, <-errs), dlock.ErrHeld)
				require.Equal(t, maxWait+time.Second, time.Since(begun))
			}
			both(c)
			require.EqualValues(t, 2, c.Stats().NestedWaits)
			both(c.With(observed))
			require.EqualValues(t, 4, c.Stats().NestedWaits)
			require.Equal(t, map[string]string{"x": "y", "y": "x"}, inside())
			seen.forget()
			holdKey(t, store, "x", time.Second)
			require.NoError(t, c.With(observed).DoAll(t.Context(), []string{"y", "x"}, func(ctx context.Context, _ *dlock.Leases) error {
				_, err := dlock.New(s, dlock.WithMaxWait(time.Second), with, observed).Acquire(ctx, "y") // of another Client
				require.ErrorIs(t, err, dlock.ErrHeld)
				return nil
			}))
			require.Equal(t, map[string]string{"x": "", "y": ""}, inside())
			require.EqualValues(t, 4, c.Stats().NestedWaits)
		})
	}
}

// onRedis runs a test in virtual time on a server that is an RTT away. fate is that of one trip in a
// thousand. A Client that dial returns is killed by kill.
func onRedis(t *testing.T, fate sim.Fate, f func(t *testing.T, server *sim.Server, dial func(...dlock.Option) (c *dlock.Client, kill func()))) {
	bubble.Test(t, func(t *testing.T) {
		server, random := sim.NewServer(), rand.New(rand.NewPCG(1, 0))
		var mu sync.Mutex
		f(t, server, func(opts ...dlock.Option) (*dlock.Client, func()) {
			return dial(t, server, func(sim.Trip) sim.Fate {
				mu.Lock()
				defer mu.Unlock()
				f := sim.Fate{}
				if random.IntN(1000) == 0 {
					f = fate
				}
				f.Request.Delay, f.Reply.Delay = rtt/2, rtt/2
				return f
			}, true, opts...)
		})
	})
}

// A crowd is workers that acquire sets of keys. A Client that is killed is followed by another.
type crowd struct {
	lasts time.Duration
	share int // workers of one Client
	dial  func() (c *dlock.Client, kill func())

	mu      sync.Mutex
	clients []*dlock.Client
	kills   []func()
	holder  map[string]int
	sets    [crowdWorkers]int
	waits   []time.Duration
}

const (
	crowdWorkers = 32
	crowdKeys    = 64
	crowdTTL     = 5 * time.Second
)

// run kills a Client at each kill, unless that is 0. It returns how many sets there were in a second, and
// how many the worker had that had the fewest.
func (c *crowd) run(t *testing.T, kill time.Duration) (rate float64, least int) {
	c.holder, c.lasts = make(map[string]int), c.lasts/israce.Slower
	c.clients, c.kills = make([]*dlock.Client, crowdWorkers/c.share), make([]func(), crowdWorkers/c.share)
	for i := range c.clients {
		c.clients[i], c.kills[i] = c.dial()
	}
	end := time.Now().Add(c.lasts)
	var all sync.WaitGroup
	for i := range crowdWorkers {
		all.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				c.work(t, i, n)
			}
		})
	}
	for i := 0; kill > 0 && time.Now().Before(end); i++ {
		time.Sleep(kill)
		c.replace(i % len(c.clients))
	}
	all.Wait()
	time.Sleep(crowdTTL)
	for _, client := range c.clients {
		require.Zero(t, client.Stats().Leases)
	}
	slices.Sort(c.waits)
	n := len(c.waits)
	rate, least = float64(n)/c.lasts.Seconds(), slices.Min(c.sets[:])
	t.Logf("%.1f sets a second, waits of %v, p99 %v; at least %d for each", rate, c.waits[n/2], c.waits[n*99/100], least)
	return rate, least
}

// work acquires a random set. It may fail if its Client is killed, and may lose a lease.
func (c *crowd) work(t *testing.T, worker, n int) {
	c.mu.Lock()
	client := c.clients[worker/c.share]
	c.mu.Unlock()
	var set []string
	for _, k := range rand.New(rand.NewPCG(uint64(worker), uint64(n))).Perm(crowdKeys)[:8] {
		set = append(set, names(crowdKeys)[k])
	}
	begun := time.Now()
	err := client.DoAll(t.Context(), set, func(context.Context, *dlock.Leases) error {
		c.enter(t, worker, set, time.Since(begun))
		time.Sleep(time.Millisecond)
		c.leave(set)
		return nil
	})
	if err != nil && !errors.Is(err, dlock.ErrClosed) && !errors.Is(err, dlock.ErrLost) {
		t.Errorf("worker %d: %v", worker, err)
	}
}

func (c *crowd) enter(t *testing.T, worker int, set []string, waited time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range set {
		if other, held := c.holder[key]; held {
			t.Errorf("workers %d and %d hold %q at once", other, worker, key)
		}
		c.holder[key] = worker
	}
	c.sets[worker]++
	c.waits = append(c.waits, waited)
}

func (c *crowd) leave(set []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range set {
		delete(c.holder, key)
	}
}

func (c *crowd) replace(i int) {
	next, kill := c.dial()
	c.mu.Lock()
	killed := c.kills[i]
	c.clients[i], c.kills[i] = next, kill
	c.mu.Unlock()
	killed()
}

// Workers acquire random sets of 8 of 64 keys. No two have a key at once, each is served, and a TTL after the end nothing is
// held. Where nothing fails, there are more sets in a second than if callers tried all keys every 10 ms, which is 334, or took
// one lock after the other, which is 83.
func TestManySets(t *testing.T) {
	lost := sim.Fate{Reply: sim.Leg{Lost: true}}
	for name, m := range map[string]struct {
		lasts        time.Duration
		fate         sim.Fate
		kill         time.Duration
		turns, share int
		rate         float64
	}{
		"calm":         {2 * time.Second, sim.Fate{}, 0, 1, 1, 335},
		"lost answers": {2 * time.Second, lost, 0, 1, 1, 0},
		"all of it":    {4 * time.Second, lost, time.Second, 8, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onRedis(t, m.fate, func(t *testing.T, server *sim.Server, dial func(...dlock.Option) (*dlock.Client, func())) {
				c := crowd{lasts: m.lasts, share: m.share, dial: func() (*dlock.Client, func()) {
					return dial(dlock.WithTTL(crowdTTL), dlock.WithLocalTurns(m.turns), dlock.WithOutage(time.Hour))
				}}
				rate, least := c.run(t, m.kill)
				require.True(t, least > 0 && rate >= m.rate || israce.Enabled, "with time enough") // which the race detector takes
				for _, key := range names(crowdKeys) {
					holder, err := server.Do("GET", key)
					require.NoError(t, err)
					require.Nil(t, holder, "%q is held", key)
				}
			})
		})
	}
	for name, way := range (ways{"memory": direct, "memory in sets": func(s *spy) dlock.Locker { return inSets{s} }}) {
		run(t, name, func(t *testing.T, store *memory.Locker, _ *spy) {
			c := crowd{lasts: time.Second, share: 1, dial: func() (*dlock.Client, func()) {
				s := &spy{Forward: dlock.Forward{Locker: store}}
				c := dlock.New(way(s), dlock.WithTTL(crowdTTL))
				return c, func() {
					s.onCall(says(errors.New("the process is dead")))
					_ = c.Close()
				}
			}}
			_, least := c.run(t, 250*time.Millisecond)
			require.True(t, least > 0 || israce.Enabled, "somebody is not served")
			requireAllFree(t, store, names(crowdKeys))
		})
	}
}
