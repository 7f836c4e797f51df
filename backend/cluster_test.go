package backend_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

const slots = 16384

func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for name, a := range clusterAdapters {
		t.Run(name+"/AnyKey", func(t *testing.T) { anyKey(t, cluster, a) })
		t.Run(name+"/EverySlot", func(t *testing.T) { everySlot(t, cluster, a) })
		t.Run(name+"/MovingSlot", func(t *testing.T) { movingSlot(t, cluster, a) })
		t.Run(name+"/FreeInMovingSlot", func(t *testing.T) { freeInMovingSlot(t, cluster, a) })
	}
}

// TestClusterReplicated uses locks whose leases count when the replica of their master has them.
func TestClusterReplicated(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	for name, a := range clusterAdapters {
		replicated := func(t testing.TB, addrs []string, user string, opts ...rediscore.Option) (*rediscore.Locker, func(), error) {
			return a(t, addrs, user, append(opts, rediscore.WithReplicas(1, 10*time.Second))...)
		}
		t.Run(name+"/EverySlot", func(t *testing.T) { everySlot(t, cluster, replicated) })
		t.Run(name+"/MovingSlot", func(t *testing.T) { movingSlot(t, cluster, replicated) })
		t.Run(name+"/FreeInMovingSlot", func(t *testing.T) { freeInMovingSlot(t, cluster, replicated) })
		t.Run(name+"/OneReplicaIsAway", func(t *testing.T) { oneReplicaIsAway(t, cluster, a) })
	}
}

// oneReplicaIsAway suspends a replica: that fails the calls for its master, and no others.
func oneReplicaIsAway(t *testing.T, cluster *redistest.Cluster, a connectCluster) {
	l := a.dial(t, cluster, rediscore.WithReplicas(1, 2*time.Second))
	batch := []dlock.Renewal{
		{Key: keyOf(t, cluster, cluster.Nodes[0], t.Name()), Token: "t", TTL: ttl},
		{Key: keyOf(t, cluster, cluster.Nodes[1], t.Name()), Token: "t", TTL: ttl},
	}
	acquireAll(t, l, batch)
	cluster.Nodes[3].Suspend()
	results, err := l.RenewBatch(t.Context(), batch)
	cluster.Nodes[3].Resume()
	require.NoError(t, err)
	require.Equal(t, dlock.RenewResult{Held: true}, results[1])
	var few *rediscore.ReplicasError
	require.ErrorAs(t, results[0].Err, &few)
	require.Zero(t, few.Got)
}

// TestClusterNewMaster moves the slot of a lock to a master that joins the cluster after the client has
// read the table of slots. The master has no replicas, which shows that it was asked.
func TestClusterNewMaster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for name, a := range clusterAdapters {
		newMaster := func() *redistest.Server { return join(t, cluster) } // that outlives the subtest
		t.Run(name, func(t *testing.T) {
			l := a.dial(t, cluster, rediscore.WithReplicas(1, time.Millisecond))
			var few *rediscore.ReplicasError
			_, err := l.TryAcquire(t.Context(), t.Name(), "t", ttl)
			require.ErrorAs(t, err, &few)
			m := cluster.StartMigrationTo(t, t.Name(), newMaster())
			m.MoveKeys(t)
			_, err = l.TryAcquire(t.Context(), t.Name()+"{"+t.Name()+"}", "t", ttl)
			var unsent *dlock.NoEffectError
			require.ErrorAs(t, err, &unsent)
			require.True(t, unsent.Temporary, "an ASK that cannot be followed yet: %v", err)
			m.Finish(t)
			require.Eventually(t, func() bool {
				_, err = l.Renew(t.Context(), t.Name(), "t", ttl)
				return errors.As(err, &few)
			}, ttl, pause, "the new master is not known")
		})
	}
}

// join adds a master without slots to a cluster, and waits until all others know it.
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
		require.Eventually(t, func() bool { return strings.Contains(do(t, n, "CLUSTER", "NODES").(string), id) }, ttl, pause)
	}
	require.Eventually(t, func() bool {
		info := do(t, s, "CLUSTER", "INFO").(string)
		return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384")
	}, ttl, pause)
	return s
}

func anyKey(t *testing.T, cluster *redistest.Cluster, a connectCluster) {
	for _, prefix := range []string{"", "app:", "{app}:", "{", "}", "a}{b:", "{}", "{a", "é\x00"} {
		l := a.dial(t, cluster, rediscore.WithPrefix(prefix))
		for _, key := range []string{
			"order:7", "{user1}:a", "{user1}:b", "a{}b", "{", "}", "{}", "}{", "{{x}}", "{x}{y}", "{}{x}",
			"с{é}", "\x00", "a\r\nb", " ",
		} {
			requireCycle(t, l, key)
		}
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
	require.Eventually(t, func() bool {
		hold, err := l.Inspect(t.Context(), key)
		return err == nil && hold.Waiting == 1
	}, ttl, pause)
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

// everySlot renews a lease in each slot in one batch.
func everySlot(t *testing.T, cluster *redistest.Cluster, a connectCluster) {
	l := a.dial(t, cluster, rediscore.WithPrefix(t.Name()))
	batch := oneOfEachSlot(t.Name())
	acquireAll(t, l, batch)
	const stranger = slots / 2
	batch[stranger].Token = "stranger"
	results, err := l.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	require.Len(t, results, slots)
	for i, r := range results {
		require.NoError(t, r.Err, "slot %d", i)
		require.Equal(t, i != stranger, r.Held, "slot %d", i)
	}
}

// oneOfEachSlot returns a renewal for each slot, in order.
func oneOfEachSlot(prefix string) []dlock.Renewal {
	batch := make([]dlock.Renewal, slots)
	for i, found := 0, 0; found < slots; i++ {
		key := strconv.Itoa(i)
		if r := &batch[rediscore.Slot(prefix+key)]; r.Key == "" {
			*r = dlock.Renewal{Key: key, Token: "mine", TTL: 2 * ttl}
			found++
		}
	}
	return batch
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

// movingSlot uses a lock while its slot moves from one master to another, and
// afterwards.
func movingSlot(t *testing.T, cluster *redistest.Cluster, a connectCluster) {
	l := a.dial(t, cluster)
	key := t.Name()
	fence := acquire(t, l, key, "mine")
	batch := []dlock.Renewal{{Key: key, Token: "mine", TTL: ttl}}
	m := startMigration(t, cluster, key)
	for _, step := range []func(){
		func() {},                // the keys are still where they were
		func() { m.MoveKeys(t) }, // ASK
		func() { m.Finish(t) },   // MOVED
	} {
		step()
		require.True(t, renew(t, l, key, "mine"))
		requireRenewed(t, l, batch)
		requireHeldBy(t, l, key, "mine")
	}
	require.True(t, release(t, l, key, "mine"))
	require.Greater(t, acquire(t, l, key, "next"), fence)
	require.True(t, release(t, l, key, "next"))
}

// freeInMovingSlot acquires a free key whose fence counter is on another server. Redis
// refuses (TRYAGAIN) until the slot has moved; that is neither a grant nor "held".
func freeInMovingSlot(t *testing.T, cluster *redistest.Cluster, a connectCluster) {
	l := a.dial(t, cluster)
	other, free := "{"+t.Name()+"}other", "{"+t.Name()+"}free"
	acquire(t, l, other, "mine") // makes the counter
	m := startMigration(t, cluster, other)
	for _, step := range []func(){func() {}, func() { m.MoveKeys(t) }} {
		step()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		attempt, err := l.TryAcquire(ctx, free, "mine", ttl)
		cancel()
		require.ErrorContains(t, err, "TRYAGAIN")
		require.Zero(t, attempt)
	}
	m.Finish(t)
	acquire(t, l, free, "mine")
	require.True(t, release(t, l, free, "mine"))
	require.True(t, release(t, l, other, "mine"))
}

// startMigration begins to move the slot of key to another master, which then knows no scripts.
func startMigration(t *testing.T, c *redistest.Cluster, key string) *redistest.Migration {
	t.Helper()
	m := c.StartMigration(t, key)
	do(t, m.To, "SCRIPT", "FLUSH")
	return m
}
