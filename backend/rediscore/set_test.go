package rediscore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// setOf is a set of keys, each with a token that begins with "S".
func setOf(keys ...string) (set []dlock.Acquisition) {
	for _, key := range keys {
		set = append(set, dlock.Acquisition{Key: key, Token: "S" + key, TTL: ttl})
	}
	return set
}

// A set takes all locks, with fences as for one after the other, or changes nothing.
func TestSet(t *testing.T) {
	got, free, held := dlock.Attempt{Acquired: true}, dlock.Attempt{Free: true}, dlock.Attempt{Holder: "H", Remaining: ttl}
	for name, c := range map[string]struct {
		before func(k, l, m *bench)
		want   []dlock.Attempt // or nil for ErrUnsupported
	}{
		"free":                  {func(k, l, m *bench) {}, []dlock.Attempt{got, got, got}},
		"counter ahead":         {func(k, l, m *bench) { k.do("SET", k.keys.counter, k.now()+second) }, []dlock.Attempt{got, got, got}},
		"one held":              {func(k, l, m *bench) { m.hold("H") }, []dlock.Attempt{free, free, held}},
		"two held":              {func(k, l, m *bench) { k.hold("H"); m.hold("H") }, []dlock.Attempt{held, free, held}},
		"one held, no right":    {func(k, l, m *bench) { m.hold("H"); k.forbid("HMGET") }, []dlock.Attempt{free, free, held}},
		"its own":               {func(k, l, m *bench) { k.hold("Sk"); l.hold("Sl"); time.Sleep(time.Second) }, []dlock.Attempt{got, got, got}},
		"its own, longer":       {func(k, l, m *bench) { l.hold("Sl"); l.do("PEXPIRE", "l", 2*ttl.Milliseconds()) }, []dlock.Attempt{got, got, got}},
		"its own, never ends":   {func(k, l, m *bench) { l.do("SET", "l", "Sl") }, []dlock.Attempt{got, got, got}},
		"its own, one held":     {func(k, l, m *bench) { l.hold("Sl"); m.hold("H") }, []dlock.Attempt{free, free, held}},
		"its own, with waiters": {func(k, l, m *bench) { l.hold("Sl"); l.wait("A", "") }, []dlock.Attempt{got, got, got}},
		"free, with a waiter":   {func(k, l, m *bench) { l.hold("H"); l.wait("A", ""); l.expire() }, nil},
		"free, with the dead":   {func(k, l, m *bench) { l.crowd(2, "dead", "pnobody") }, nil},
		"no lock":               {func(k, l, m *bench) { l.do("HSET", "l", "f", "v") }, nil},
		"no queue":              {func(k, l, m *bench) { l.do("HSET", l.keys.queue, "f", "v"); l.do("PEXPIRE", l.keys.queue, 1000) }, nil},
		"no counter":            {func(k, l, m *bench) { l.do("HSET", l.keys.counter, "f", "v"); l.do("PEXPIRE", l.keys.counter, 1000) }, nil},
		"counter too large":     {func(k, l, m *bench) { k.do("SET", k.keys.counter, int64(1<<53-16), "PX", dayInMS) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			atBench(t, "", "k", func(k *bench) {
				l, m := k.of("l"), k.of("m")
				c.before(k, l, m)
				before := contents(k)
				attempts, err := k.locker.TryAcquireSet(k.Context(), setOf("k", "l", "m"))
				if c.want == nil {
					require.ErrorIs(k, err, errors.ErrUnsupported)
					require.True(k, dlock.NoEffect(err))
				} else {
					require.NoError(k, err)
				}
				if c.want == nil || !c.want[0].Acquired {
					require.Equal(k, before, contents(k))
				}
				for i, want := range c.want {
					if want.Acquired {
						want.Fence = k.fence() - 16 + 8*int64(i)
					}
					require.Equal(k, want, attempts[i])
				}
			})
		})
	}
}

// contents are those of all keys, but for the counter of fences.
func contents(b *bench) map[string][]any {
	all := make(map[string][]any)
	for _, key := range b.server.Keys() {
		for _, read := range [][]string{{"PTTL", key}, {"GET", key}, {"HGETALL", key}, {"ZRANGE", key, "0", "-1", "WITHSCORES"}} {
			if reply, err := b.server.Do(read...); err == nil && key != b.keys.counter {
				all[key] = append(all[key], reply)
			}
		}
	}
	return all
}

// Whatever waits for a free lock of a set, attempts for each key serve it, and the set is taken at last.
func TestSetAndWaiters(t *testing.T) {
	inScene(t, func(s *scene, a *actor) {
		set := func() []dlock.Attempt {
			attempts, err := a.TryAcquireSet(s.Context(), setOf("j", "k"))
			if errors.Is(err, errors.ErrUnsupported) {
				_, err = a.TryAcquire(s.Context(), "k", "Sk", ttl)
				require.NoError(s, err)
				attempts, err = a.TryAcquireSet(s.Context(), setOf("j", "k"))
			}
			require.NoError(s, err)
			return attempts
		}
		w := a.acquire("A")
		handed := time.Now()
		s.expire() // nobody notices, but the set
		require.Equal(s, []dlock.Attempt{{Free: true}, {Holder: "A", Remaining: ttl, HeldSince: time.UnixMicro(handed.UnixMicro())}}, set())
		w.granted()
		s.crowd(12_000, "dead", "pnobody")
		s.expire()
		require.True(s, set()[1].Acquired)
	})
}

// A set that cannot be one call for a reason that is known sends nothing.
func TestSetIsChecked(t *testing.T) {
	inScene(t, func(s *scene, a *actor) {
		for text, set := range map[string][]dlock.Acquisition{
			"set: empty":                      {},
			`set: key "l" is named twice`:     setOf("l", "m", "l"),
			"key: empty (element 1 of a set)": setOf("l", ""),
			"token: empty (element 0":         {{Key: "l", TTL: ttl}},
			"TTL 0s":                          {{Key: "l", Token: "S"}},
		} {
			_, err := a.TryAcquireSet(s.Context(), set)
			require.ErrorIs(s, err, dlock.ErrInvalid)
			require.ErrorContains(s, err, text)
			require.Equal(s, noEffect, verdictOf(err))
		}
		var many []string
		for i := range 257 {
			many = append(many, fmt.Sprint(i))
		}
		for _, keys := range [][]string{many, {"l", "{06S}"}} { // which has the other counter
			_, err := a.TryAcquireSet(s.Context(), setOf(keys...))
			require.ErrorIs(s, err, errors.ErrUnsupported)
		}
		require.Empty(s, a.asked(0))
		for _, keys := range [][]string{many[1:], {"{06S}a", "{06S}b"}} {
			attempts, err := a.TryAcquireSet(s.Context(), setOf(keys...))
			require.NoError(s, err)
			require.True(s, attempts[len(keys)-1].Acquired)
		}
	})
}

// Where a proxy refuses the script, sets are not tried again. Another error says what it says of an attempt.
func TestSetIsRefused(t *testing.T) {
	inScene(t, func(s *scene, a *actor) {
		try := func(answer error) error {
			a.answers(func(call rediscore.Call) (any, error) {
				if call.Script == rediscore.SetScript {
					return nil, answer
				}
				return int64(0), nil
			})
			_, err := a.TryAcquireSet(s.Context(), setOf("l", "m"))
			return err
		}
		for answer, want := range map[error]verdict{
			sim.Error("OOM command not allowed when used memory > 'maxmemory'."):          state,
			sim.Error("NOPERM this user has no permissions to run the 'evalsha' command"): noEffect,
			sim.Error("LOADING Redis is loading the dataset in memory"):                   temporary,
			sim.Error("ERR upstream failure"):                                             unknown,
			errors.New("a command was not allowed"):                                       unknown,
		} {
			err := try(answer)
			require.Equal(s, want, verdictOf(err), "%v", err)
			require.NotErrorIs(s, err, errors.ErrUnsupported)
		}
		a.replies(nil, sim.Error("ERR a command has failed upstream"))
		_, err := a.TryAcquireSet(s.Context(), setOf("l", "m"))
		require.Equal(s, unknown, verdictOf(err), "nothing is answered")
		refused := sim.Error(adaptertest.RefuseText(rediscore.SetScript.Source))
		require.ErrorIs(s, try(refused), errors.ErrUnsupported)
		n := len(a.asked(0))
		require.ErrorIs(s, try(nil), errors.ErrUnsupported)
		require.Empty(s, a.asked(n))
	})
}

// A set in a cluster is one call if its keys have one slot, also if the Locker hears of the slots only then.
func TestSetInACluster(t *testing.T) {
	const proxied = "ERR every key of a script goes to one shard"
	for name, c := range map[string]struct {
		refusal string // in place of the cluster's
		opts    []rediscore.Option
		most    int // trips
	}{
		"plain":         {"", nil, 2},
		"unknown words": {proxied, nil, 5},
		"on replicas":   {"", []rediscore.Option{rediscore.WithReplicas(1, time.Second)}, 2},
		"by an option":  {"", []rediscore.Option{rediscore.WithCounterBySlot(true)}, 1},
	} {
		for _, tag := range []string{"{t}", ""} {
			t.Run(name+tag, func(t *testing.T) {
				atBench(t, "", "k", func(b *bench) {
					server, trips, most := sim.NewCluster(1, 1).Nodes[0], 0, c.most
					conn := &single{Conn: sim.Dial(server, func(t sim.Trip) (f sim.Fate) {
						trips++
						if keys := t.Calls[0].Keys(); c.refusal != "" && rediscore.Slot(keys[0]) != rediscore.Slot(keys[1]) {
							f.Results = []rediscore.Result{{Err: sim.Error(c.refusal)}}
						}
						return f
					})}
					l := lockerOn(b.T, conn, append(c.opts, rediscore.WithPrefix("p:"))...)
					for range 2 {
						attempts, err := l.TryAcquireSet(b.Context(), setOf(tag+"a", tag+"b"))
						if tag == "" {
							require.ErrorIs(b, err, errors.ErrUnsupported)
							require.Equal(b, most-1, trips)
							require.Empty(b, server.Keys())
							continue
						}
						require.NoError(b, err)
						require.Equal(b, attempts[0].Fence+8, attempts[1].Fence)
						require.Equal(b, most, trips)
						require.ElementsMatch(b, []string{"p:{t}a", "p:{t}b", rediscore.KeysOf("p:", "{t}", true)[1]}, server.Keys())
						most++
					}
					require.Equal(b, name == "on replicas", conn.waits > 0)
				})
			})
		}
	}
}
