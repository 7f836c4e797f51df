package backend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

const slots = 16384

// TestCluster uses a cluster of three masters with a replica each. Slots also move under leases that count
// when the replica of their master has them.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	for _, a := range clients.Topologies {
		t.Run(a.Name+"/AnyKey", func(t *testing.T) { anyKey(t, cluster, a) })
		t.Run(a.Name+"/ManySlots", func(t *testing.T) { manySlots(t, cluster, a) })
		t.Run(a.Name+"/MovingSlot", func(t *testing.T) { movingSlot(t, cluster, a) })
		t.Run(a.Name+"/MovingSlotReplicated", func(t *testing.T) { movingSlot(t, cluster, a, rediscore.WithReplicas(1, 10*time.Second)) })
		t.Run(a.Name+"/HeldInMovingSlot", func(t *testing.T) { heldInMovingSlot(t, cluster, a) })
		t.Run(a.Name+"/OneReplicaIsAway", func(t *testing.T) { oneReplicaIsAway(t, cluster, a) })
		t.Run(a.Name+"/ClosedClient", func(t *testing.T) {
			sinceRedis7(t, cluster.Nodes[0]) // whose clusters have inboxes
			l, closeClient := a.Dial(t, clients.Settings{Addrs: cluster.Addrs(), Cluster: true})
			requireClosed(t, l, closeClient, cluster.MasterOf(t, "k"))
			do(t, cluster.MasterOf(t, "k"), "FLUSHALL")
		})
	}
}

// oneReplicaIsAway suspends a replica: that fails the calls for its master, and no others.
func oneReplicaIsAway(t *testing.T, cluster *redistest.Cluster, a clients.Library) {
	l := dialCluster(t, a, cluster, rediscore.WithReplicas(1, time.Second))
	batch := []dlock.Renewal{
		{Key: keyOf(t, cluster, cluster.Nodes[0], t.Name()), Token: "t", TTL: ttl},
		{Key: keyOf(t, cluster, cluster.Nodes[1], t.Name()), Token: "t", TTL: ttl},
	}
	acquireAll(t, dialCluster(t, a, cluster), batch)
	cluster.Nodes[3].Suspend()
	results, err := l.RenewBatch(t.Context(), batch)
	cluster.Nodes[3].Resume()
	require.NoError(t, err)
	require.Equal(t, dlock.RenewResult{Held: true}, results[1])
	var few *rediscore.ReplicasError
	require.ErrorAs(t, results[0].Err, &few)
	require.Zero(t, few.Got)
}

func anyKey(t *testing.T, cluster *redistest.Cluster, a clients.Library) {
	for _, prefix := range []string{"", "app:", "{app}:", "{", "}", "a}{b:", "{}", "{a", "é\x00"} {
		l := dialCluster(t, a, cluster, rediscore.WithPrefix(prefix))
		for _, key := range []string{
			"order:7", "{user1}:a", "{user1}:b", "a{}b", "{", "}", "{}", "}{", "{{x}}", "{x}{y}", "{}{x}",
			"с{é}", "\x00", "a\r\nb", " ",
		} {
			requireCycle(t, l, key)
		}
		requireSet(t, l, prefix != "{}") // which is no tag, and hides that of the keys
		requireVotes(t, l, "{vote}:"+t.Name())
	}
}

// requireCycle acquires, inspects, renews and releases key.
func requireCycle(t *testing.T, l *rediscore.Locker, key string) {
	t.Helper()
	require.Positive(t, acquire(t, l, key, "mine"), key)
	requireHeldBy(t, l, key, "mine")
	require.True(t, renew(t, l, key, "mine"), key)
	hold, err := l.Inspect(t.Context(), key)
	require.NoError(t, err, key)
	require.Equal(t, "mine", hold.Token, key)
	require.Greater(t, hold.Remaining, ttl, key)
	require.False(t, release(t, l, key, "stranger"), key)
	require.True(t, release(t, l, key, "mine"), key)
	hold, err = l.Inspect(t.Context(), key)
	require.NoError(t, err, key)
	require.Equal(t, dlock.Hold{}, hold, key)
}

// requireSet acquires keys with a common hash tag.
func requireSet(t *testing.T, l *rediscore.Locker, oneSlot bool) {
	t.Helper()
	attempts, err := l.TryAcquireSet(t.Context(), []dlock.Acquisition{{Key: "{set}:a", Token: "mine", TTL: ttl}, {Key: "{set}:b", Token: "mine", TTL: ttl}})
	if !oneSlot {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		return
	}
	require.NoError(t, err)
	require.Equal(t, attempts[0].Fence+8, attempts[1].Fence)
	require.True(t, release(t, l, "{set}:a", "mine"))
	require.True(t, release(t, l, "{set}:b", "mine"))
}

// requireVotes votes for key, and passes it on to a waiter.
func requireVotes(t *testing.T, l *rediscore.Locker, key string) {
	t.Helper()
	first, err := l.Vote(t.Context(), key, "mine", ttl, 0)
	require.NoError(t, err)
	require.True(t, first.Acquired && first.Fresh)
	require.NotEmpty(t, first.Store)
	next := make(chan quorum.Ballot, 1)
	go func() {
		ballot, err := l.AcquireVote(t.Context(), key, "next", ttl, 0, 7)
		assert.NoError(t, err)
		next <- ballot
	}()
	soon(t, func() bool {
		hold, err := l.Inspect(t.Context(), key)
		return err == nil && hold.Waiting == 1
	})
	ballots, err := l.Confirm(t.Context(), []quorum.Confirmation{{Renewal: dlock.Renewal{Key: key, Token: "mine", TTL: ttl}, Fence: first.Fence + 8}})
	require.NoError(t, err)
	require.NoError(t, ballots[0].Err)
	require.True(t, ballots[0].Acquired)
	held, err := l.Pass(t.Context(), key, "mine", "next", 0)
	require.NoError(t, err)
	require.True(t, held)
	second := <-next
	require.True(t, second.Acquired && second.Fresh)
	require.GreaterOrEqual(t, second.Fence, first.Fence+16)
	for _, b := range []quorum.Ballot{ballots[0], second} {
		require.Equal(t, first.Store, b.Store)
		require.GreaterOrEqual(t, b.Age, first.Age)
		require.GreaterOrEqual(t, b.Clock, first.Clock)
	}
	require.True(t, release(t, l, key, "next"))
}

// manySlots renews leases in 512 slots in one batch.
func manySlots(t *testing.T, cluster *redistest.Cluster, a clients.Library) {
	l := dialCluster(t, a, cluster, rediscore.WithPrefix(t.Name()))
	batch := make([]dlock.Renewal, 512)
	for i, found := 0, 0; found < len(batch); i++ {
		key := strconv.Itoa(i)
		if r := &batch[rediscore.Slot(t.Name()+key)*len(batch)/slots]; r.Key == "" {
			*r = dlock.Renewal{Key: key, Token: "mine", TTL: 2 * ttl}
			found++
		}
	}
	acquireAll(t, l, batch)
	const stranger = 300
	batch[stranger].Token = "stranger"
	results, err := l.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	require.Len(t, results, len(batch))
	for i, r := range results {
		require.Equal(t, dlock.RenewResult{Held: i != stranger}, r, "lease %d", i)
	}
	scanned := make(map[string]bool)
	for e, err := range l.Scan(t.Context(), "") {
		require.NoError(t, err)
		scanned[e.Key] = true
	}
	require.Len(t, scanned, len(batch))
}

func acquireAll(t *testing.T, l dlock.Locker, batch []dlock.Renewal) {
	t.Helper()
	const workers = 64
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < len(batch); i += workers {
				attempt, err := l.TryAcquire(t.Context(), batch[i].Key, batch[i].Token, ttl)
				if err != nil || !attempt.Acquired {
					t.Errorf("TryAcquire(%q): got %+v, %v, want a grant", batch[i].Key, attempt, err)
				}
			}
		})
	}
	all.Wait()
	require.False(t, t.Failed())
}

// movingSlot uses a lock while its slot moves from one master to another, and afterwards. A free key
// whose fence counter is on the other server is acquired, too. Redis refuses that (TRYAGAIN) until the
// slot has moved, which is neither a grant nor "held".
func movingSlot(t *testing.T, cluster *redistest.Cluster, a clients.Library, opts ...rediscore.Option) {
	l := dialCluster(t, a, cluster, opts...)
	key := t.Name()
	fence := acquire(t, l, key, "mine")
	batch := []dlock.Renewal{{Key: key, Token: "mine", TTL: ttl}}
	m := startMigration(t, cluster, key)
	for i, step := range []func(){
		func() {},                // the keys are still where they were
		func() { m.MoveKeys(t) }, // ASK
		func() { m.Finish(t) },   // MOVED
	} {
		step()
		require.True(t, renew(t, l, key, "mine"))
		requireRenewed(t, l, batch)
		requireHeldBy(t, l, key, "mine")
		if i < 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			attempt, err := l.TryAcquire(ctx, key+"{"+key+"}", "free", ttl)
			cancel()
			require.ErrorContains(t, err, "TRYAGAIN")
			require.Zero(t, attempt)
		}
	}
	acquire(t, l, key+"{"+key+"}", "free")
	require.True(t, release(t, l, key, "mine"))
	require.Greater(t, acquire(t, l, key, "next"), fence)
	require.True(t, release(t, l, key, "next"))
}

// heldInMovingSlot uses a key without companions while its slot moves: calls for that key alone are
// answered.
func heldInMovingSlot(t *testing.T, cluster *redistest.Cluster, a clients.Library) {
	sinceRedis7(t, cluster.Nodes[0])
	key := t.Name()
	do(t, cluster.MasterOf(t, key), "SET", key, "H", "PX", "60000")
	m := startMigration(t, cluster, key)
	defer func() { m.MoveKeys(t); m.Finish(t) }()
	l := dialCluster(t, a, cluster)
	hold, err := l.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, "H", hold.Token)
	requireHeldBy(t, l, key, "H")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = l.Acquire(ctx, key, "t", ttl)
	require.ErrorContains(t, err, "TRYAGAIN")
	require.Equal(t, "no effect, for now", verdictOf(err), "%v", err)
}

// startMigration begins to move the slot of key to another master, which then knows no scripts.
func startMigration(t *testing.T, c *redistest.Cluster, key string) *redistest.Migration {
	t.Helper()
	m := c.StartMigration(t, key)
	do(t, m.To, "SCRIPT", "FLUSH")
	return m
}

// TestClusterInPart changes a cluster that serves the other slots when a master is down: a master joins,
// slots get lost, and then a master.
func TestClusterInPart(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for _, n := range cluster.Nodes {
		do(t, n, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	joined := join(t, cluster)
	t.Run("NewMaster", func(t *testing.T) { newMaster(t, cluster, joined) })
	t.Run("LostSlot", func(t *testing.T) { lostSlot(t, cluster) })
	t.Run("DeadMaster", func(t *testing.T) { deadMaster(t, cluster) })
}

// newMaster moves the slots of locks to a master that has joined the cluster after the clients have
// read the table of slots. The master has no replicas, which shows that it was asked.
func newMaster(t *testing.T, cluster *redistest.Cluster, master *redistest.Server) {
	for _, a := range clients.Topologies {
		name := a.Name
		l := dialCluster(t, a, cluster, rediscore.WithReplicas(1, time.Millisecond))
		key := "new " + name
		var few *rediscore.ReplicasError
		_, err := l.TryAcquire(t.Context(), key, "t", ttl)
		require.ErrorAs(t, err, &few)
		m := cluster.StartMigrationTo(t, key, master)
		m.MoveKeys(t)
		_, err = l.TryAcquire(t.Context(), key+"{"+key+"}", "t", ttl)
		var unsent *dlock.NoEffectError
		require.ErrorAs(t, err, &unsent, name)
		require.True(t, unsent.Temporary, "%s: an ASK that cannot be followed yet: %v", name, err)
		m.Finish(t)
		soon(t, func() bool {
			_, err = l.Renew(t.Context(), key, "t", ttl)
			return errors.As(err, &few)
		}, "%s: the new master is not known", name)
	}
}

// join adds a master without slots to a cluster, and waits until all others know it. It ends with t.
func join(t *testing.T, cluster *redistest.Cluster) *redistest.Server {
	t.Helper()
	s := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
	host, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	id := do(t, s, "CLUSTER", "MYID").(string)
	for _, n := range cluster.Nodes {
		do(t, n, "CLUSTER", "MEET", host, port)
	}
	for _, n := range cluster.Nodes {
		soon(t, func() bool { return strings.Contains(do(t, n, "CLUSTER", "NODES").(string), id) })
	}
	soon(t, func() bool {
		info := do(t, s, "CLUSTER", "INFO").(string)
		return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384")
	})
	return s
}

// lostSlot takes the slot of a key away. The error of a cluster client says that the call had no effect.
func lostSlot(t *testing.T, cluster *redistest.Cluster) {
	lockers := make(map[string]*rediscore.Locker)
	for _, a := range clients.Topologies {
		lockers[a.Name] = dialCluster(t, a, cluster)
		acquire(t, lockers[a.Name], "lost "+a.Name, "H") // connects
		release(t, lockers[a.Name], "lost "+a.Name, "H")
	}
	for name, l := range lockers {
		slot := strconv.Itoa(cluster.Nodes[0].Slot(t, "lost "+name))
		for _, n := range cluster.Nodes {
			_, _ = n.Do("CLUSTER", "DELSLOTS", slot)
		}
		for method, call := range calls(l, "lost "+name) {
			err := refusedWith(t, "CLUSTERDOWN", call)
			require.Equal(t, "no effect, for now", verdictOf(err), "%s, %s: %v", name, method, err)
		}
	}
}

// deadMaster renews a batch while one master hangs and the others have forgotten the scripts, as after a
// failover, and when it is down. The leases on the others are renewed, and reported so: through clients
// that have connections to all masters, and through clients without one to the dead master.
func deadMaster(t *testing.T, cluster *redistest.Cluster) {
	dead := cluster.Nodes[2]
	batch := make([]dlock.Renewal, 60)
	onDead := make([]bool, len(batch))
	for i := range batch {
		batch[i] = dlock.Renewal{Key: fmt.Sprint("k", i), Token: "mine", TTL: ttl}
		onDead[i] = cluster.MasterOf(t, batch[i].Key) == dead
	}
	require.False(t, onDead[0], "the key that cold clients use")
	connect := func(a clients.Library) map[string]dlock.BatchRenewer {
		warm, cold := dialCluster(t, a, cluster), dialCluster(t, a, cluster)
		acquireAll(t, warm, batch)
		requireRenewed(t, warm, batch)
		require.True(t, renew(t, cold, batch[0].Key, batch[0].Token))
		return map[string]dlock.BatchRenewer{"Warm": warm, "Cold": cold}
	}
	hung, down := make(map[string]map[string]dlock.BatchRenewer), make(map[string]map[string]dlock.BatchRenewer)
	for _, a := range clients.Topologies {
		hung[a.Name], down[a.Name] = connect(a), connect(a)
	}
	dead.Suspend()
	for name, lockers := range hung {
		for _, n := range cluster.Nodes[:2] {
			do(t, n, "SCRIPT", "FLUSH")
		}
		t.Run("Suspended/"+name, func(t *testing.T) { requireLivingRenewed(t, lockers, batch, onDead) })
	}
	dead.Kill()
	for name, lockers := range down {
		t.Run("Killed/"+name, func(t *testing.T) { requireLivingRenewed(t, lockers, batch, onDead) })
	}
}

func requireRenewed(t *testing.T, l dlock.BatchRenewer, batch []dlock.Renewal) {
	t.Helper()
	results, err := l.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	for i, r := range results {
		require.Equal(t, dlock.RenewResult{Held: true}, r, "%q", batch[i].Key)
	}
}

// requireLivingRenewed has all lockers renew a batch at the same time.
func requireLivingRenewed(t *testing.T, lockers map[string]dlock.BatchRenewer, batch []dlock.Renewal, onDead []bool) {
	for name, l := range lockers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			start := time.Now()
			results, err := l.RenewBatch(ctx, batch)
			require.Less(t, time.Since(start), 15*time.Second, "RenewBatch did not end with its context")
			require.NoError(t, err)
			for i, r := range results {
				if onDead[i] {
					require.Error(t, r.Err, "%q, on the dead master", batch[i].Key)
					require.False(t, r.Held, "%q, on the dead master", batch[i].Key)
				} else {
					require.Equal(t, dlock.RenewResult{Held: true}, r, "%q, on a living master", batch[i].Key)
				}
			}
		})
	}
}
