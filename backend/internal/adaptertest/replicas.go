package adaptertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

const waitLimit = 200 * time.Millisecond // for replicas that do not answer

// replicated tests WithReplicas with a master, and replicas of which one does not answer for a
// while.
func replicated(t *testing.T, a Adapter) {
	master := redistest.Start(t)
	replicas := []*redistest.Server{redistest.StartReplica(t, master), redistest.StartReplica(t, master)}
	conn := a.Dial.must(t, Settings{Addrs: []string{master.Addr()}, Timeout: patient})
	all := rediscore.New(conn, rediscore.WithReplicas(2, patient))
	strict := rediscore.New(conn, rediscore.WithReplicas(2, waitLimit))
	some := rediscore.New(conn, rediscore.WithReplicas(1, dlock.NoLimit))

	take(t, all, "k", "t")
	requireOnAll(t, replicas, "k", "t", ttl)
	held, err := all.Renew(t.Context(), "k", "t", 2*ttl)
	require.NoError(t, err)
	require.True(t, held)
	requireOnAll(t, replicas, "k", "t", 2*ttl)
	results, err := all.RenewBatch(t.Context(), []dlock.Renewal{{Key: "k", Token: "t", TTL: 3 * ttl}, {Key: "k", Token: "other", TTL: ttl}})
	require.NoError(t, err)
	require.Equal(t, []dlock.RenewResult{{Held: true}, {}}, results)
	requireOnAll(t, replicas, "k", "t", 3*ttl)

	client := dlock.New(strict, dlock.WithOutage(patient)) // on a busy machine a replica may be late
	lease, err := client.Acquire(t.Context(), "leased")
	require.NoError(t, err)
	replicas[0].Suspend()
	var few *rediscore.ReplicasError
	_, err = strict.TryAcquire(t.Context(), "new", "t", ttl)
	require.ErrorAs(t, err, &few)
	require.Less(t, few.Got, 2)
	require.Equal(t, &rediscore.ReplicasError{Got: few.Got, Want: 2, Timeout: waitLimit}, few)
	_, err = strict.Renew(t.Context(), "k", "t", 4*ttl)
	require.ErrorAs(t, err, &few)
	results, err = strict.RenewBatch(t.Context(), []dlock.Renewal{{Key: "k", Token: "t", TTL: ttl}, {Key: "k", Token: "other", TTL: ttl}})
	require.NoError(t, err)
	require.ErrorAs(t, results[0].Err, &few)
	require.Equal(t, dlock.RenewResult{}, results[1], "another holds it, whatever the replicas have")
	held, err = strict.Renew(t.Context(), "k", "other", ttl)
	require.NoError(t, err)
	require.False(t, held)
	_, err = client.TryAcquire(t.Context(), "given back")
	require.ErrorAs(t, err, &few)
	requireFree(t, master, "given back")
	deadline := lease.Deadline()
	require.ErrorAs(t, lease.Renew(t.Context()), &few)
	require.WithinDuration(t, deadline, lease.Deadline(), 10*time.Millisecond)
	require.NoError(t, lease.Err(), "a replica that is slow has ended a lease")
	take(t, some, "one is enough", "t")

	handedOver(t, master, replicas, client)
	require.NoError(t, client.Close())
}

// requireOnAll requires that all replicas have a lease that lasts for about as long as expected.
func requireOnAll(t *testing.T, replicas []*redistest.Server, key, token string, rest time.Duration) {
	t.Helper()
	for _, r := range replicas {
		require.Equal(t, token, do(t, r, "GET", key))
		ms, _ := do(t, r, "PTTL", key).(int64)
		require.InDelta(t, rest.Milliseconds(), ms, float64(ttl.Milliseconds()/2))
	}
}

// handedOver hands a lock over while a replica does not answer. The waiter is granted the lock when
// the replica has it, and not before.
func handedOver(t *testing.T, master *redistest.Server, replicas []*redistest.Server, client *dlock.Client) {
	replicas[0].Resume()
	first, err := client.Acquire(t.Context(), "passed on")
	require.NoError(t, err)
	granted := make(chan error, 1)
	var next *dlock.Lease
	go func() {
		next, err = client.Acquire(t.Context(), "passed on")
		granted <- err
	}()
	require.Eventually(t, func() bool {
		hold, err := client.Inspect(t.Context(), "passed on")
		return err == nil && hold.Waiting == 1
	}, patient, time.Millisecond)
	replicas[0].Suspend()
	require.NoError(t, first.Release())
	require.Eventually(t, func() bool { return do(t, master, "GET", "passed on") != first.Token() }, patient, time.Millisecond)
	select {
	case err := <-granted:
		t.Fatalf("granted without a replica, or with an error: %v", err)
	case <-time.After(2 * waitLimit):
	}
	replicas[0].Resume()
	select {
	case err := <-granted:
		require.NoError(t, err)
	case <-time.After(patient):
		t.Fatal("nobody was granted the lock when the replica was back")
	}
	require.Greater(t, next.Fence(), first.Fence())
	for _, r := range replicas {
		require.Equal(t, next.Token(), do(t, r, "GET", "passed on"))
	}
	require.NoError(t, next.Release())
}
