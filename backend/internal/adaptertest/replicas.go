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

// replicated tests WithReplicas with a master, and replicas of which one does not answer in the end.
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
	batch := []dlock.Renewal{{Key: "k", Token: "t", TTL: 3 * ttl}, {Key: "k", Token: "other", TTL: ttl}}
	results, err := all.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, []dlock.RenewResult{{Held: true}, {}}, results)
	requireOnAll(t, replicas, "k", "t", 3*ttl)

	replicas[0].Suspend()
	var few *rediscore.ReplicasError
	_, err = strict.TryAcquire(t.Context(), "new", "t", ttl)
	require.ErrorAs(t, err, &few)
	require.Less(t, few.Got, 2)
	require.Equal(t, &rediscore.ReplicasError{Got: few.Got, Want: 2, Timeout: waitLimit}, few)
	_, err = strict.Renew(t.Context(), "k", "t", 4*ttl)
	require.ErrorAs(t, err, &few)
	results, err = strict.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	require.ErrorAs(t, results[0].Err, &few)
	require.Equal(t, dlock.RenewResult{}, results[1], "another holds it, whatever the replicas have")
	take(t, some, "one is enough", "t")
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
