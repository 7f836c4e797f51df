package backend_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/redistest"
)

const (
	readTimeout = 3 * time.Second  // of the clients below
	failoverTTL = 30 * time.Second // more than a failover and two read time-outs

	// recoveryLimit is more than the adapters take on a busy machine, and less than the minute
	// after which go-redis asks for the cluster's topology by itself.
	recoveryLimit = 10 * time.Second
)

// TestClusterFailover kills a master, whose replica takes its place. Soon after, locks can be acquired, and leases are renewed.
// Package stress has other faults.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	const killed = 1
	cluster := redistest.StartCluster(t, 3, 1)
	var leases []*dlock.Lease
	var promotion atomic.Pointer[time.Time]
	var all sync.WaitGroup
	for _, a := range clients.Topologies {
		l, _ := a.Dial(t, clients.Settings{Addrs: cluster.Addrs(), Cluster: true, Caches: true, Patience: readTimeout})
		client := dlock.New(l, dlock.WithTTL(failoverTTL))
		t.Cleanup(func() { client.Close(); l.Close() })
		for _, master := range cluster.Nodes[:3] {
			lease, err := client.Acquire(t.Context(), keyOf(t, cluster, master, a.Name))
			require.NoError(t, err, a.Name)
			leases = append(leases, lease)
		}
		key := keyOf(t, cluster, cluster.Nodes[killed], a.Name)
		all.Go(func() { // locks of the master, one after the other
			for i := 0; ; i++ {
				at := promotion.Load()
				ctx, cancel := context.WithTimeout(t.Context(), ttl) // the client's own limit is shorter
				attempt, err := l.TryAcquire(ctx, fmt.Sprint(key, i), "t", ttl)
				cancel()
				if at != nil && (err == nil && attempt.Acquired || time.Since(*at) > 2*recoveryLimit) {
					took := time.Since(*at)
					t.Logf("%s: a lock was taken %v after the promotion", a.Name, took.Round(time.Millisecond))
					assert.Less(t, took, recoveryLimit, a.Name)
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	cluster.Nodes[killed].Kill()
	cluster.AwaitFailover(t, cluster.Nodes[killed])
	now := time.Now()
	promotion.Store(&now)
	all.Wait()
	for _, lease := range leases { // since the failure
		require.Eventually(t, func() bool {
			return lease.Err() != nil || time.Until(lease.Deadline()) > failoverTTL*3/5
		}, failoverTTL, pause, "%s is not renewed", lease.Key())
		require.NoError(t, lease.Err(), lease.Key())
	}
}

// keyOf returns a key of master that begins with prefix.
func keyOf(t *testing.T, cluster *redistest.Cluster, master *redistest.Server, prefix string) string {
	t.Helper()
	for i := 0; ; i++ {
		if key := fmt.Sprintf("{%s%d}", prefix, i); cluster.MasterOf(t, key) == master {
			return key
		}
	}
}

const masterName = "mymaster"

// dialSentinel is dial for the master that Sentinels watch.
func dialSentinel(t *testing.T, lib clients.Library, sentinels ...string) *rediscore.Locker {
	l, _ := lib.Dial(t, clients.Settings{Addrs: sentinels, Master: masterName, Caches: true})
	return l
}

// A failover is the Client of one library, and its leases, in TestSentinel.
type failover struct {
	name           string
	client         *dlock.Client
	locker         *rediscore.Locker
	known, unknown *dlock.Lease
	granted        chan *dlock.Lease // the next lease of known's key
}

// TestSentinel promotes a replica. A lease that the replica has stays, and its waiter gets its
// message from the new master. A lease that the replica does not have is lost, and the next
// fence of its key is higher.
func TestSentinel(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	sentinel := redistest.StartSentinel(t, master, masterName, 1)
	failovers := make(map[string]*failover)
	for _, a := range clients.Topologies {
		name := a.Name
		f := &failover{name: name, locker: dialSentinel(t, a, sentinel.Addr()), granted: make(chan *dlock.Lease, 1)}
		f.client = dlock.New(f.locker, dlock.WithTTL(20*time.Second))
		failovers[name] = f
		t.Cleanup(func() { f.client.Close(); f.locker.Close() })
		var err error
		f.known, err = f.client.Acquire(t.Context(), name)
		require.NoError(t, err)
		f.unknown, err = f.client.Acquire(t.Context(), "unknown"+name)
		require.NoError(t, err)
		go f.wait(t.Context())
	}
	soon(t, func() bool {
		return listening(t, replica, "") == len(failovers) && len(replica.Keys(t)) == len(master.Keys(t))
	})
	master.Kill()
	for name, f := range failovers {
		soon(t, func() bool {
			hold, err := f.locker.Inspect(t.Context(), name)
			if err != nil || hold.Token != f.known.Token() {
				return false
			}
			inboxes, err := replica.Do("PUBSUB", "CHANNELS", "dlock1:inbox:*") // Sentinel may cut the connection
			return err == nil && len(inboxes.([]any)) == len(failovers)
		}, 30*time.Second, 10*time.Millisecond, "%s: nobody has taken the master's place, or not all listen to it", name)
		do(t, replica, "DEL", "unknown"+name) // as if it had missed the last write
		f.require(t, replica)
	}
}

// wait waits for the lease that follows known.
func (f *failover) wait(ctx context.Context) {
	if next, err := f.client.Acquire(ctx, f.name); err == nil {
		f.granted <- next
	}
}

func (f *failover) require(t *testing.T, master *redistest.Server) {
	require.ErrorIs(t, f.unknown.Renew(t.Context()), dlock.ErrLost, f.name)
	require.ErrorIs(t, f.unknown.Err(), dlock.ErrLost, f.name)
	require.NoError(t, f.known.Renew(t.Context()), f.name)
	requireByMessage(t, func() (others int64) {
		before := scripts(t, master)
		require.NoError(t, f.known.Release(), f.name)
		select {
		case next := <-f.granted:
			require.Greater(t, next.Fence(), f.known.Fence(), f.name)
			f.known = next
		case <-time.After(patient):
			t.Fatalf("%s: the waiter was not served", f.name)
		}
		if others = scripts(t, master) - before - 1; others > 0 { // once more
			go f.wait(t.Context())
			soon(t, func() bool {
				hold, err := f.locker.Inspect(t.Context(), f.name)
				return err == nil && hold.Waiting == 1
			})
		}
		return others
	})
	require.NoError(t, f.known.Release(), f.name)
	again, err := f.client.Acquire(t.Context(), "unknown"+f.name)
	require.NoError(t, err, f.name)
	require.Greater(t, again.Fence(), f.unknown.Fence(), f.name)
	require.NoError(t, again.Release(), f.name)
}

// TestFencesAfterPromotions promotes a replica again and again, without its master's last writes, while locks are taken
// and released on both. Fences follow the clock, which both servers share here: a lock that is requested when another
// was granted has the larger fence, whichever server granted them. There are twelve promotions if DLOCK_LONG has adapters.
func TestFencesAfterPromotions(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	lockers := make(map[*redistest.Server]*rediscore.Locker)
	for _, s := range []*redistest.Server{master, replica} {
		lockers[s] = dial(t, clients.GoRedis, s.Addr())
	}
	promotions := 2
	if adaptertest.All() {
		promotions = 12
	}
	r := history.NewRecorder(time.Now())
	for n := range promotions {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		take(ctx, t, &all, r, master.Addr(), lockers[master])
		time.Sleep(200 * time.Millisecond)
		do(t, replica, "REPLICAOF", "NO", "ONE")
		take(ctx, t, &all, r, replica.Addr(), lockers[replica])
		time.Sleep(500 * time.Millisecond)
		cancel()
		all.Wait()
		do(t, master, append([]string{"REPLICAOF"}, strings.Split(replica.Addr(), ":")...)...)
		master, replica = replica, master
		do(t, master, "SET", "promotion", fmt.Sprint(n))
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			reply, err := replica.Do("GET", "promotion")
			assert.NoError(t, err)
			assert.Equal(t, fmt.Sprint(n), reply)
		}, 30*time.Second, 10*time.Millisecond)
	}
	require.Empty(t, r.History().Disorders(1))
}

// take takes and releases some locks on a server, one after another each, until ctx ends.
func take(ctx context.Context, t *testing.T, all *sync.WaitGroup, r *history.Recorder, server string, l *rediscore.Locker) {
	for i := range 8 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				h := &history.Hold{Client: server, Key: fmt.Sprint("key", i), Token: fmt.Sprint(server, n, r.Now()), Asked: r.Now()}
				a, err := l.TryAcquire(t.Context(), h.Key, h.Token, 50*time.Millisecond)
				h.Start, h.Fence = r.Now(), a.Fence
				if err == nil && !a.Acquired { // the former master's last lease
					continue
				}
				if !assert.NoError(t, err) {
					return
				}
				r.Held(h)
				if _, err := l.Release(t.Context(), h.Key, h.Token); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
}

// TestDurable kills servers and starts them again. Which leases they still have then is said in
// docs/operations.md. A master that comes back empty empties its replicas.
func TestDurable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args     []string
		replicas int
		kept     bool
	}{
		"nothing is stored":  {nil, 0, false},
		"appendfsync always": {[]string{"--appendonly", "yes", "--appendfsync", "always"}, 0, true},
		"a replica has it":   {nil, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.args...)
			if c.replicas > 0 {
				redistest.StartReplica(t, server)
			}
			l, _ := clients.GoRedis.Dial(t, clients.At(server.Addr()), rediscore.WithReplicas(c.replicas, ttl))
			last := acquire(t, l, "k", "mine")
			server.Restart()
			var attempt dlock.Attempt
			soon(t, func() bool { // until the replica is back
				var err error
				attempt, err = l.TryAcquire(t.Context(), "k", "other", ttl)
				return err == nil
			})
			require.Equal(t, c.kept, !attempt.Acquired)
			if attempt.Acquired {
				require.Greater(t, attempt.Fence, last)
			}
		})
	}
}

// moveLimit is how long after a move of the address the first lock is granted.
const (
	moveLimit = 2 * time.Second
	movedTTL  = 10 * time.Second // of a lease that is held meanwhile
)

// TestAddressMoves has the address of a master lead to its successor while old connections stay open: the former
// master is a replica, and refuses calls. Soon after, locks are granted, a lease that was held meanwhile is
// renewed, a waiter has kept its place, and handovers are made by messages again.
func TestAddressMoves(t *testing.T) {
	t.Parallel()
	for answer, demote := range map[string]func(t *testing.T, master, successor *redistest.Server){
		"READONLY": func(t *testing.T, master, successor *redistest.Server) {
			do(t, master, append([]string{"REPLICAOF"}, strings.Split(successor.Addr(), ":")...)...)
		},
		"MASTERDOWN": func(t *testing.T, master, _ *redistest.Server) { // its link is down
			do(t, master, "CONFIG", "SET", "replica-serve-stale-data", "no")
			do(t, master, "REPLICAOF", "127.0.0.1", "1")
		},
	} {
		for _, a := range clients.All {
			t.Run(answer+"/"+a.Name, func(t *testing.T) { t.Parallel(); testMove(t, a, demote) })
		}
	}
}

func testMove(t *testing.T, lib clients.Library, demote func(t *testing.T, master, successor *redistest.Server)) {
	master := redistest.Start(t)
	successor := redistest.StartReplica(t, master)
	proxy := adaptertest.Proxy(t, master.Addr())
	l := dial(t, lib, proxy.Addr())
	client := dlock.New(l, dlock.WithTTL(movedTTL))
	t.Cleanup(func() { client.Close(); l.Close() })
	useAtOnce(t, client) // many connections are stale soon
	lease, err := client.Acquire(t.Context(), "held")
	require.NoError(t, err)
	granted := make(chan *dlock.Lease, 1)
	wait := func(server *redistest.Server) {
		go func() {
			next, err := client.Acquire(t.Context(), "held")
			assert.NoError(t, err)
			granted <- next
		}()
		soon(t, func() bool { return listening(t, server, "") == 1 })
	}
	wait(master)

	do(t, successor, "REPLICAOF", "NO", "ONE")
	demote(t, master, successor)
	proxy.Move(successor.Addr())
	moved := time.Now()
	other, err := client.Acquire(t.Context(), "other")
	require.NoError(t, err)
	took := time.Since(moved)
	t.Logf("granted %v after the move", took)
	require.Less(t, took, moveLimit)
	require.NoError(t, other.Release())
	useAtOnce(t, client)

	soon(t, func() bool { return time.Since(moved) > movedTTL || lease.Err() != nil })
	require.NoError(t, lease.Err())
	require.NoError(t, lease.Release())
	require.NoError(t, (<-granted).Release())
	requireByMessage(t, func() (others int64) {
		lease, err := client.Acquire(t.Context(), "held")
		require.NoError(t, err)
		wait(successor)
		before := scripts(t, successor)
		require.NoError(t, lease.Release())
		next := <-granted
		others = scripts(t, successor) - before - 1
		require.NoError(t, next.Release())
		return others
	})
}

// useAtOnce takes some locks at the same time.
func useAtOnce(t *testing.T, client *dlock.Client) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			lease, err := client.Acquire(t.Context(), fmt.Sprint("k", i))
			require.NoError(t, err)
			require.NoError(t, lease.Release())
		})
	}
	all.Wait()
}

// TestClientOfReplica has clients that are given the address of a replica. They make at most ten connections a second.
func TestClientOfReplica(t *testing.T) {
	t.Parallel()
	each(t, clients.All, func(t *testing.T, a clients.Library) {
		replica := redistest.StartReplica(t, redistest.Start(t))
		l := dial(t, a, replica.Addr())
		before, begun := connections(t, replica), time.Now()
		var all sync.WaitGroup
		var calls atomic.Int64
		for range 8 {
			all.Go(func() {
				for time.Since(begun) < 3*time.Second {
					_, err := l.TryAcquire(t.Context(), rand.Text(), "t", ttl)
					require.ErrorContains(t, err, "READONLY")
					calls.Add(1)
				}
			})
		}
		all.Wait()
		made := connections(t, replica) - before - 1 // which counts them
		t.Logf("%d connections for %d calls", made, calls.Load())
		require.LessOrEqual(t, float64(made), 10*time.Since(begun).Seconds())
		require.NoError(t, l.Close())
	})
}

// connections returns how many connections a server has accepted.
func connections(t *testing.T, s *redistest.Server) int {
	t.Helper()
	n, err := strconv.Atoi(s.Info(t, "stats")["total_connections_received"])
	require.NoError(t, err)
	return n
}
