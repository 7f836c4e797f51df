package sim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/sim"
)

// The scripts and package rediscore pass the whole suite on each topology, in virtual time.
func TestConformance(t *testing.T) {
	const lag = 300 * time.Microsecond // of replicas
	for name, c := range map[string]struct {
		masters, replicas int // how many replicas each master has, and grants wait for
		lag               time.Duration
	}{
		"Server":     {1, 0, 0},
		"Replicated": {1, 2, lag},
		"Cluster":    {3, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if israce.Enabled && name != "Server" {
				t.Skip("the goroutines of the library are the same on each topology")
			}
			of := perTest(func() []*sim.Server { return mastersOf(c.masters, c.replicas, c.lag) })
			conformance.Run(t, conformance.Harness{
				New: func(t *testing.T) dlock.Locker {
					l, _ := dial(t, of(t)[0], rediscore.WithReplicas(c.replicas, time.Second))
					return l
				},
				Wipe: func(t *testing.T) {
					for _, s := range of(t) {
						s.FlushAll()
					}
				},
				Count: func(t *testing.T) (n int) {
					for _, s := range of(t) {
						for _, key := range s.Keys() {
							if !strings.HasSuffix(key, "dlock1:fence") {
								n++
							}
						}
					}
					return n
				},
				Bubble: true,
			})
		})
	}
}

// A majority of servers passes the whole suite, in virtual time. Package redlock tests nodes in memory, as many and
// also guarded ones, more quickly.
func TestMajority(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if long.Of("majority") == "" {
				t.Skip("takes many seconds: DLOCK_LONG=majority")
			}
			of := perTest(func() []*sim.Server { return servers(n) })
			conformance.Run(t, conformance.Harness{
				New: func(t *testing.T) dlock.Locker { return majorityOf(t, of(t), nil) },
				// No Wipe: these servers take no time, so split votes can draw a thousand fences in an instant, and the
				// counters are ahead of the clock. After a loss of all data, the next fences follow the clock: they are lower.
				Bubble:    true,
				Unordered: true,
			})
		})
	}
}

// What is known of the holder since it was granted the lock is the grant, however long it has waited and where.
func TestStarted(t *testing.T) {
	for name, c := range map[string]struct {
		servers int
		away    bool // the server is, in place of the lock being held
		unqueue bool
		options []dlock.Option
	}{
		"queue":               {servers: 1},
		"polling":             {servers: 1, unqueue: true},
		"turns":               {servers: 1, options: []dlock.Option{dlock.WithLocalTurns(3)}},
		"majority":            {servers: 3},
		"no answer":           {servers: 1, away: true, options: []dlock.Option{dlock.WithOutage(dlock.NoLimit)}},
		"no answer, no queue": {servers: 1, away: true, unqueue: true, options: []dlock.Option{dlock.WithOutage(dlock.NoLimit)}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var away atomic.Bool
				fate := func(sim.Trip) sim.Fate { return sim.Fate{Request: sim.Leg{Lost: away.Load()}} }
				all := servers(c.servers)
				client := func(opts ...dlock.Option) *dlock.Client {
					client := dlock.New(majorityOf(t, all, fate, rediscore.WithQueue(!c.unqueue)), opts...)
					t.Cleanup(func() { client.Close() })
					return client
				}
				other := client()
				if away.Store(c.away); c.away {
					time.AfterFunc(10*time.Minute, func() { away.Store(false) })
				} else {
					first, err := other.Acquire(t.Context(), "k")
					require.NoError(t, err)
					time.AfterFunc(10*time.Minute, func() { first.Release() })
				}
				b := client(append(c.options, dlock.WithOwner("B"))...)
				lease, err := b.Acquire(t.Context(), "k")
				require.NoError(t, err)
				granted := time.Now()
				for range 2 { // the second lease is adopted
					time.Sleep(20 * time.Second)
					_, err = other.TryAcquire(t.Context(), "k")
					held, ok := errors.AsType[*dlock.HeldError](err)
					require.True(t, ok, "%v", err)
					status, err := other.Inspect(t.Context(), "k")
					require.NoError(t, err)
					require.Equal(t, "B", held.Owner)
					require.WithinDuration(t, granted, held.Started, time.Second)
					require.Equal(t, held.Started, status.Started)
					detached, err := lease.Detach()
					require.NoError(t, err)
					lease, err = b.Adopt(t.Context(), detached)
					require.NoError(t, err)
				}
				time.Sleep(5 * time.Minute)
				status, err := other.Inspect(t.Context(), "k")
				require.NoError(t, err)
				require.True(t, status.Started.IsZero() || status.Started.Sub(granted).Abs() <= time.Second, "%v", status.Started)
				require.NoError(t, lease.Release())
			})
		})
	}
}

// A wait at a majority of servers is given up, while its token is on the way to each queue. The release of the token overtakes
// that request, and so does the release of the holder. So each server votes for a token that was released. When the release
// has been answered, none does any more.
func TestReleaseOvertakesAWait(t *testing.T) {
	const rtt = 10 * time.Millisecond
	for _, after := range []time.Duration{0, 4 * rtt, time.Minute} {
		t.Run(after.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				requests := make(map[*sim.Server]int)
				all := servers(3)
				a := majorityOf(t, all, nil)
				b := majorityOf(t, all, func(trip sim.Trip) (f sim.Fate) {
					mu.Lock()
					defer mu.Unlock()
					if trip.Calls != nil {
						if requests[trip.To]++; requests[trip.To] == 2 { // the first is a vote
							f.Request.Delay = 5 * rtt
						}
					}
					return f
				})
				held, err := a.TryAcquire(t.Context(), "k", "holder", time.Hour)
				require.True(t, held.Acquired && err == nil, "%+v, %v", held, err)
				ctx, cancel := context.WithTimeout(t.Context(), 2*rtt)
				defer cancel()
				_, err = b.(dlock.Acquirer).Acquire(ctx, "k", "waiter", time.Hour)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				released, err := a.Release(t.Context(), "k", "holder")
				require.True(t, released && err == nil, "%v", err)
				_, err = b.Release(t.Context(), "k", "waiter")
				require.NoError(t, err)
				time.Sleep(after)
				next, err := a.TryAcquire(t.Context(), "k", "next", time.Hour)
				require.True(t, next.Acquired && err == nil, "%+v, %v", next, err)
			})
		})
	}
}

// perTest returns what was made for a test.
func perTest[T any](made func() T) func(t *testing.T) T {
	var all sync.Map
	return func(t *testing.T) T {
		one, _ := all.LoadOrStore(t, sync.OnceValue(made))
		return one.(func() T)()
	}
}

func servers(n int) []*sim.Server {
	all := make([]*sim.Server, n)
	for i := range all {
		all[i] = sim.NewServer()
	}
	return all
}

// majorityOf returns a Locker of a majority of servers, or of the only one.
func majorityOf(t *testing.T, servers []*sim.Server, fate func(sim.Trip) sim.Fate, opts ...rediscore.Option) dlock.Locker {
	var nodes []dlock.Locker
	for _, s := range servers {
		node, _ := dialWith(t, s, fate, opts...)
		nodes = append(nodes, node)
	}
	if len(nodes) == 1 {
		return nodes[0]
	}
	majority := redlock.New(nodes, redlock.WithoutGuard())
	t.Cleanup(func() { majority.Close() })
	return majority
}

// mastersOf returns masters with so many replicas each, in a cluster if there are several.
func mastersOf(masters, replicas int, lag time.Duration) (all []*sim.Server) {
	if masters > 1 {
		all = sim.NewCluster(masters, replicas).Masters()
	} else {
		all = servers(1)
		for range replicas {
			all[0].NewReplica()
		}
	}
	for _, m := range all {
		for _, r := range m.Replicas() {
			r.SetLink(sim.Link{Delay: lag})
		}
	}
	return all
}
