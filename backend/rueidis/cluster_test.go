package rueidis

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestCluster(t *testing.T) {
	replicas := func(cmd rueidis.Completed) bool { return cmd.IsReadOnly() }
	adaptertest.RunCluster(t, map[string]adaptertest.Dial{
		"Default":        dialWith(rueidis.ClientOption{}),
		"SendToReplicas": dialWith(rueidis.ClientOption{SendToReplicas: replicas}),
	})
}

// TestBatchWithASlotOfNobody renews a batch in a cluster that serves half of the slots. Since Redis 8
// rueidis leaves a dead master out of its table, so the other half has no node then.
func TestBatchWithASlotOfNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
	if _, err := server.Do("CLUSTER", "ADDSLOTSRANGE", "0", "8191"); err != nil {
		t.Skip(err)
	}
	client := newClient(t, rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	l := New(client)
	t.Cleanup(func() { l.Close() })
	served := func(key string) bool { return rediscore.Slot(key) < 8192 }
	batch := make([]dlock.Renewal, 60)
	for i := range batch {
		batch[i] = dlock.Renewal{Key: fmt.Sprint("k", i), Token: "mine", TTL: time.Minute}
		if served(batch[i].Key) {
			require.Eventually(t, func() bool { // the server is ready soon
				_, err := l.TryAcquire(t.Context(), batch[i].Key, "mine", time.Minute)
				return err == nil
			}, 30*time.Second, 10*time.Millisecond)
		}
	}
	results, err := l.RenewBatch(t.Context(), batch)
	require.NoError(t, err)
	for i, r := range results {
		if served(batch[i].Key) {
			require.Equal(t, dlock.RenewResult{Held: true}, r, "%q, whose slot is served", batch[i].Key)
			continue
		}
		require.True(t, dlock.NoEffect(r.Err), "%q, whose slot has no node: %v", batch[i].Key, r.Err)
		require.False(t, dlock.Refused(r.Err), "%q, whose slot may have a node soon: %v", batch[i].Key, r.Err)
	}
}
