package rediscore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/sim"
)

// requireSameSlot fails unless Slot and the server agree on the slot of the lock, and the lock's
// companions are in that slot.
func requireSameSlot(t testing.TB, server redis.Conn, prefix, key string) {
	t.Helper()
	keys, slot := rediscore.KeysOf(prefix, key, true), rediscore.Slot(prefix+key)
	all := append(keys[:], rediscore.Companion(prefix, slot, "dlock1:inbox:x"))
	for _, name := range all {
		require.NoError(t, server.Send("CLUSTER", "KEYSLOT", name))
	}
	slots, err := redis.Ints(server.Do(""))
	require.NoError(t, err)
	for i := range all {
		require.Equal(t, slots[i], slot, "slot of %q, for lock %q", all[i], prefix+key)
		require.Equal(t, slots[i], rediscore.Slot(all[i]), "Slot(%q), for lock %q", all[i], prefix+key)
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 6, "names for %q", prefix+key)
}

// FuzzSlot compares the slots of locks and their companions with those of a real server. Run it
// with -fuzzminimizetime=10x: coverage varies with the network, so without a limit most of the time
// goes into minimizing inputs.
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

func TestSlotOfRandomNames(t *testing.T) {
	c := dial(t, redistest.Start(t, "--cluster-enabled", "yes"))
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		requireSameSlot(t, c, randomName(r, 8), "x"+randomName(r, 40))
	}
}

// randomName returns a name with many braces.
func randomName(r *rand.Rand, limit int) string {
	name := make([]byte, r.IntN(limit))
	for i := range name {
		switch r.IntN(5) {
		case 0:
			name[i] = '{'
		case 1:
			name[i] = '}'
		default:
			name[i] = byte(r.IntN(256))
		}
	}
	return string(name)
}

// While a slot is moved, a lock and its companions are on two masters for a while. Nobody is granted the
// lock then, but its lease is renewed and released as ever.
func TestSlotIsMoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster := sim.NewCluster(2, 0)
		conn := sim.Dial(cluster.Nodes[0], nil)
		l := lockerOn(t, conn)
		requireRefused := func(err error) {
			t.Helper()
			require.ErrorContains(t, err, "TRYAGAIN")
			require.True(t, dlock.NoEffect(err))
		}
		first, err := l.TryAcquire(t.Context(), "k", "A", time.Minute)
		require.NoError(t, err)
		to := cluster.Nodes[0]
		if to == cluster.MasterOf("k") {
			to = cluster.Nodes[1]
		}
		move := cluster.Migrate("k", to)
		move.MoveKeys("k")

		attempt, err := l.TryAcquire(t.Context(), "k", "B", time.Minute)
		require.NoError(t, err)
		require.Equal(t, dlock.Attempt{Holder: "A", Remaining: time.Minute}, attempt)
		_, err = l.TryAcquire(t.Context(), "k", "A", time.Minute)
		requireRefused(err)
		_, err = l.TryAcquireSet(t.Context(), setOf("k", "{k}l"))
		require.ErrorIs(t, err, errors.ErrUnsupported)
		held, err := l.Renew(t.Context(), "k", "A", time.Hour)
		require.NoError(t, err)
		require.True(t, held)
		hold, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, dlock.Hold{Held: true, Token: "A", Remaining: time.Hour}, hold)
		for _, token := range []string{"B", "A", "A"} {
			held, err := l.Release(t.Context(), "k", token)
			require.NoError(t, err)
			require.Equal(t, token == "A" && hold.Held, held)
			hold.Held = hold.Held && token != "A"
		}
		_, err = l.TryAcquire(t.Context(), "k", "B", time.Minute)
		requireRefused(err)
		hold, err = l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Zero(t, hold)

		move.Finish()
		attempt, err = l.TryAcquire(t.Context(), "k", "B", time.Minute)
		require.NoError(t, err)
		require.True(t, attempt.Acquired)
		require.Equal(t, first.Fence+8, attempt.Fence)
	})
}

// A call that is redirected to a node that the client does not know has no effect. The client is going to
// know it.
func TestRedirectionToAStranger(t *testing.T) {
	results := make([]rediscore.Result, 1)
	rediscore.EvalByMaster(make([]rediscore.Call, 1), results,
		func(_ rediscore.Call, address string) (string, error) {
			if address != "" {
				return "", errDown
			}
			return "known", nil
		},
		func(string, bool, []int) { results[0].Err = sim.Error("MOVED 1 stranger:6379") })
	var failed *dlock.NoEffectError
	require.ErrorAs(t, results[0].Err, &failed)
	require.True(t, failed.Temporary)
}

// The client of a cluster may follow redirections in vain while the nodes disagree. The Client repeats
// its first attempt then. What a client of one server is told so is a refusal.
func TestNodesDisagree(t *testing.T) {
	for name, answer := range map[string]sim.Error{"moved": "MOVED 1 node1:6379", "asked": "ASK 1 node1:6379"} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				acquire := func(node *sim.Server) (time.Duration, error) {
					agreed := time.Now().Add(3 * time.Second)
					conn := sim.Dial(node, func(trip sim.Trip) (f sim.Fate) {
						if time.Now().Before(agreed) {
							f.Results = []rediscore.Result{{Err: answer}}
						}
						return f
					})
					store := lockerOn(t, conn)
					client := dlock.New(store)
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
	waits int // calls that wait for replicas
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
		refusal     string // in place of the cluster's
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
				server, trips := sim.NewCluster(1, 1).Nodes[0], 0
				plain := &single{Conn: sim.Dial(server, func(t sim.Trip) (f sim.Fate) {
					trips++
					if keys := t.Calls[0].Keys(); c.refusal != "" && len(keys) > 1 && rediscore.Slot(keys[0]) != rediscore.Slot(keys[1]) {
						f.Results = []rediscore.Result{{Err: sim.Error(c.refusal)}}
					}
					return f
				})}
				a := lockerOn(t, plain, append(c.opts, rediscore.WithPrefix(c.prefix))...)
				b := lockerOn(t, sim.Dial(server, nil), rediscore.WithPrefix(c.prefix))
				last := int64(0)
				for i, l := range []*rediscore.Locker{a, b, a, b} {
					attempt, err := l.TryAcquire(t.Context(), c.key, "t", time.Minute)
					require.NoError(t, err)
					require.Greater(t, attempt.Fence, last)
					last = attempt.Fence
					held, err := l.Release(t.Context(), c.key, "t")
					require.NoError(t, err)
					require.True(t, held)
					if i == 0 {
						require.Equal(t, c.most, trips-1, "trips of the first call")
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
		conn := &single{Conn: sim.Dial(sim.NewServer(), nil)}
		l := lockerOn(t, conn)
		before, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
		conn.Follow(sim.NewCluster(1, 0).Nodes[0])
		after, err := l.TryAcquire(t.Context(), "k", "u", time.Minute)
		require.NoError(t, err)
		require.True(t, after.Acquired)
		require.Greater(t, after.Fence, before.Fence)
	})
}

// Calls that are refused at once, in words that are not known, all learn of the slots.
func TestSlotsAreLearntTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		conn := &single{Conn: sim.Dial(sim.NewCluster(1, 0).Nodes[0], func(trip sim.Trip) sim.Fate {
			f := sim.Fate{Request: sim.Leg{Delay: time.Millisecond}}
			for _, call := range trip.Calls {
				if keys := call.Keys(); len(keys) > 1 && rediscore.Slot(keys[0]) != rediscore.Slot(keys[1]) {
					f.Results = slices.Repeat([]rediscore.Result{{Err: sim.Error("ERR one shard only")}}, len(trip.Calls))
				}
			}
			return f
		})}
		l := lockerOn(t, conn)
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
		conn := sim.Dial(server, func(sim.Trip) (f sim.Fate) {
			if failing--; failing >= 0 {
				f.Results = []rediscore.Result{{Err: sim.Error("ERR upstream failure")}}
			}
			return f
		})
		l := lockerOn(t, conn)
		_, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.ErrorContains(t, err, "upstream failure")
		_, err = l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		keys := rediscore.KeysOf("", "k", false)
		require.ElementsMatch(t, keys[:2], server.Keys())
	})
}
