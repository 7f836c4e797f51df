package rediscore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/sim"
)

// requireSameSlot fails unless Slot and the server agree on the slot of the lock, and the lock's
// companions are in that slot.
func requireSameSlot(t testing.TB, server redis.Conn, prefix, key string) {
	keys, slot := rediscore.KeysOf(prefix, key, true), rediscore.Slot(prefix+key)
	all := append(keys[:], rediscore.Companion(prefix, slot, "dlock1:inbox:x"))
	for _, name := range all {
		require.NoError(t, server.Send("CLUSTER", "KEYSLOT", name))
	}
	slots := must(redis.Ints(server.Do("")))(t)
	for i := range all {
		require.Equal(t, slots[i], slot, "slot of %q, for lock %q", all[i], prefix+key)
		require.Equal(t, slots[i], rediscore.Slot(all[i]), "Slot(%q), for lock %q", all[i], prefix+key)
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 6, "names for %q", prefix+key)
}

// FuzzSlot compares the slots of locks and their companions with those of a real server. Run it with -fuzzminimizetime=10x:
// coverage varies with the network, so without a limit most of the time goes into minimizing inputs.
func FuzzSlot(f *testing.F) {
	for _, n := range names {
		f.Add(n.prefix, n.key)
	}
	for _, s := range []string{"{", "}", "{}", "}{", "{{", "}}", "{{a}}", "{}{a}", "a{b", "a}b", "{\x00}", "{ }", "{é}", "\xff\xfe"} {
		f.Add(s, s)
		f.Add("", s)
		f.Add(s, "a")
	}
	c := dial(f, redistest.Start(f, "--cluster-enabled", "yes"))
	f.Fuzz(func(t *testing.T, prefix, key string) { requireSameSlot(t, c, prefix, key) })
}

// While a slot is moved, a lock and its companions are on two masters for a while. Nobody is granted the
// lock then, but its lease is renewed and released as ever.
func TestSlotIsMoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster := sim.NewCluster(2, 0)
		l := lockerOn(t, sim.Dial(cluster.Nodes[0], nil))
		try := func(token string) (dlock.Attempt, error) { return l.TryAcquire(t.Context(), "k", token, time.Minute) }
		first := must(try("A"))(t)
		to := cluster.Nodes[0]
		if to == cluster.MasterOf("k") {
			to = cluster.Nodes[1]
		}
		move := cluster.Migrate("k", to)
		move.MoveKeys("k")

		require.Equal(t, dlock.Attempt{Holder: "A", Remaining: time.Minute}, must(try("B"))(t))
		_, refused := try("A")
		_, err := l.TryAcquireSet(t.Context(), setOf("k", "{k}l"))
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.True(t, must(l.Renew(t.Context(), "k", "A", time.Hour))(t))
		require.Equal(t, dlock.Hold{Held: true, Token: "A", Remaining: time.Hour}, must(l.Inspect(t.Context(), "k"))(t))
		require.False(t, must(l.Release(t.Context(), "k", "B"))(t))
		for _, held := range []bool{true, false} {
			require.Equal(t, held, must(l.Release(t.Context(), "k", "A"))(t))
		}
		_, refusedToo := try("B")
		for _, err := range []error{refused, refusedToo} {
			require.ErrorContains(t, err, "TRYAGAIN")
			require.True(t, dlock.NoEffect(err))
		}
		require.Zero(t, must(l.Inspect(t.Context(), "k"))(t))

		move.Finish()
		attempt := must(try("B"))(t)
		require.True(t, attempt.Acquired)
		require.Equal(t, first.Fence+8, attempt.Fence)
	})
}

// The client of a cluster may follow redirections in vain while the nodes disagree. The Client repeats
// its first attempt then. What a client of one server is told so is a refusal.
func TestNodesDisagree(t *testing.T) {
	for name, answer := range map[string]sim.Error{"moved": "MOVED 1 node1:6379", "asked": "ASK 1 node1:6379"} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				acquire := func(node *sim.Server) (time.Duration, error) {
					agreed := time.Now().Add(3 * time.Second)
					client := dlock.New(lockerOn(t, sim.Dial(node, func(trip sim.Trip) (f sim.Fate) {
						if time.Now().Before(agreed) {
							f.Results = []rediscore.Result{{Err: answer}}
						}
						return f
					})))
					defer client.Close()
					start := time.Now()
					_, err := client.Acquire(t.Context(), "k")
					return time.Since(start), err
				}
				took, err := acquire(sim.NewCluster(2, 0).Nodes[0])
				require.NoError(t, err)
				require.InDelta(t, 3, took.Seconds(), 1.5)
				took, err = acquire(sim.NewServer())
				require.ErrorContains(t, err, "the store refused: "+string(answer))
				require.Zero(t, took)
			})
		})
	}
}

// A single is the client of a single server, which may be a node of a cluster.
type single struct {
	*sim.Conn
	trips int
	waits int // calls that wait for replicas
}

// dialSingle returns a client of a server that refuses keys of several slots, in other words than its own unless they are
// empty.
func dialSingle(server *sim.Server, refusal sim.Error) *single {
	s := new(single)
	s.Conn = sim.Dial(server, func(t sim.Trip) (f sim.Fate) {
		s.trips++
		if refusal == "" {
			return f
		}
		f.Request.Delay = time.Millisecond // so that calls meet
		f.Results = t.Execute(context.Background(), nil)
		for i, call := range t.Calls {
			if keys := call.Keys(); len(keys) > 1 && rediscore.Slot(keys[0]) != rediscore.Slot(keys[1]) {
				f.Results[i].Err = refusal // in place of the server's
			}
		}
		return f
	})
	return s
}

func (*single) Cluster() bool { return false }

func (s *single) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait rediscore.Replication) {
	s.waits++
	s.Conn.EvalReplicated(ctx, calls, results, wait)
}

// Whatever client a Locker has, it uses the same counter as others on the server: that of the slot if the server refuses
// scripts with keys of several slots, in known words or in others.
func TestCounterOfACluster(t *testing.T) {
	const proxied = "ERR every key of a script goes to one shard"
	for name, c := range map[string]struct {
		prefix, key string
		refusal     sim.Error // in place of the cluster's
		opts        []rediscore.Option
		most        int // trips of the first call
	}{
		"plain":                    {"", "k", "", nil, 2},
		"in the counter's slot":    {"", "{06S}", "", nil, 2},
		"a prefix with a tag":      {"{app}:", "k", "", nil, 2},
		"the tag of the counter":   {"{06S}:", "k", "", nil, 2},
		"unknown words":            {"", "k", proxied, nil, 5},
		"known words":              {"", "k", "ERR eval/evalsha command keys must be in same slot", nil, 2},
		"without a queue":          {"", "k", "", []rediscore.Option{rediscore.WithQueue(false)}, 2},
		"on replicas":              {"", "k", "", []rediscore.Option{rediscore.WithReplicas(1, time.Second)}, 2},
		"by an option":             {"", "k", "", []rediscore.Option{rediscore.WithCounterBySlot(true)}, 1},
		"by an option, proxied":    {"", "k", proxied, []rediscore.Option{rediscore.WithCounterBySlot(true)}, 1},
		"on replicas, known words": {"", "k", "ERR keys in the same slot only", []rediscore.Option{rediscore.WithReplicas(1, time.Second)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				server := sim.NewCluster(1, 1).Nodes[0]
				plain := dialSingle(server, c.refusal)
				a := lockerOn(t, plain, append(c.opts, rediscore.WithPrefix(c.prefix))...)
				b := lockerOn(t, sim.Dial(server, nil), rediscore.WithPrefix(c.prefix))
				last := int64(0)
				for i, l := range []*rediscore.Locker{a, b, a, b} {
					attempt := must(l.TryAcquire(t.Context(), c.key, "t", time.Minute))(t)
					require.Greater(t, attempt.Fence, last)
					last = attempt.Fence
					require.True(t, must(l.Release(t.Context(), c.key, "t"))(t))
					if i == 0 {
						require.Equal(t, c.most, plain.trips-1, "trips of the first call")
						require.Equal(t, name[:2] == "on", plain.waits == c.most, "each trip waits for replicas")
					}
				}
				require.Equal(t, []string{rediscore.KeysOf(c.prefix, c.key, true)[1]}, server.Keys())
			})
		})
	}
}

// A single server that becomes a cluster: fences rise with the clock.
func TestServerBecomesACluster(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		conn := dialSingle(sim.NewServer(), "")
		l := lockerOn(t, conn)
		before := must(l.TryAcquire(t.Context(), "k", "t", time.Minute))(t)
		time.Sleep(time.Millisecond)
		conn.Follow(sim.NewCluster(1, 0).Nodes[0])
		after := must(l.TryAcquire(t.Context(), "k", "u", time.Minute))(t)
		require.True(t, after.Acquired)
		require.Greater(t, after.Fence, before.Fence)
	})
}

// Calls that are refused at once, in words that are not known, all learn of the slots.
func TestSlotsAreLearntTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := lockerOn(t, dialSingle(sim.NewCluster(1, 0).Nodes[0], "ERR one shard only"))
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				attempt, err := l.TryAcquire(t.Context(), strconv.Itoa(i), "t", time.Minute)
				assert.NoError(t, err)
				assert.True(t, attempt.Acquired)
			})
		}
		all.Wait()
	})
}

// A proxy that replies for its server, which is away for a moment, makes no cluster of it.
func TestOutageIsNoCluster(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server, failing := sim.NewServer(), 2
		l := lockerOn(t, sim.Dial(server, func(sim.Trip) (f sim.Fate) {
			if failing--; failing >= 0 {
				f.Results = []rediscore.Result{{Err: sim.Error("ERR upstream failure")}}
			}
			return f
		}))
		_, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.ErrorContains(t, err, "upstream failure")
		must(l.TryAcquire(t.Context(), "k", "t", time.Minute))(t)
		keys := rediscore.KeysOf("", "k", false)
		require.ElementsMatch(t, keys[:2], server.Keys())
	})
}

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
				contents := func() (all []store) { // but for the counter of fences
					for _, b := range []*bench{k, l, m} {
						s, _ := storeOf(k.server, []string{b.keys.lock, "", b.keys.queue, b.keys.waiters})
						all = append(all, s)
					}
					return all
				}
				before := contents()
				attempts, err := k.locker.TryAcquireSet(k.Context(), setOf("k", "l", "m"))
				if c.want == nil {
					require.ErrorIs(k, err, errors.ErrUnsupported)
					require.True(k, dlock.NoEffect(err))
				} else {
					require.NoError(k, err)
				}
				if c.want == nil || !c.want[0].Acquired {
					require.Equal(k, before, contents())
				}
				for i, want := range c.want {
					if want.Acquired {
						want.Fence = k.store().Fence - 16 + 8*int64(i)
					}
					require.Equal(k, want, attempts[i])
				}
			})
		})
	}
}

// Whatever waits for a free lock of a set, attempts for each key serve it, and the set is taken at last.
func TestSetAndWaiters(t *testing.T) {
	inScene(t, func(s *scene, a *actor) {
		set := func() []dlock.Attempt {
			attempts, err := a.TryAcquireSet(s.Context(), setOf("j", "k"))
			if errors.Is(err, errors.ErrUnsupported) {
				must(a.TryAcquire(s.Context(), "k", "Sk", ttl))(s)
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
		s.crowd(5_100, "dead", "pnobody")
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
				if call.Script == rediscore.Scripts["acquire-set"] {
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
		refused := sim.Error(adaptertest.RefuseText(rediscore.Scripts["acquire-set"].Source))
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
		refusal sim.Error // in place of the cluster's
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
					server, most := sim.NewCluster(1, 1).Nodes[0], c.most
					conn := dialSingle(server, c.refusal)
					l := lockerOn(b.T, conn, append(c.opts, rediscore.WithPrefix("p:"))...)
					for range 2 {
						attempts, err := l.TryAcquireSet(b.Context(), setOf(tag+"a", tag+"b"))
						if tag == "" {
							require.ErrorIs(b, err, errors.ErrUnsupported)
							require.Equal(b, most-1, conn.trips)
							require.Empty(b, server.Keys())
							continue
						}
						require.NoError(b, err)
						require.Equal(b, attempts[0].Fence+8, attempts[1].Fence)
						require.Equal(b, most, conn.trips)
						require.ElementsMatch(b, []string{"p:{t}a", "p:{t}b", rediscore.KeysOf("p:", "{t}", true)[1]}, server.Keys())
						most++
					}
					require.Equal(b, name == "on replicas", conn.waits > 0)
				})
			})
		}
	}
}
