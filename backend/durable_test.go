package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

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
			require.Eventually(t, func() bool { // until the replica is back
				var err error
				attempt, err = l.TryAcquire(t.Context(), "k", "other", ttl)
				return err == nil
			}, patient, pause)
			require.Equal(t, c.kept, !attempt.Acquired)
			if attempt.Acquired {
				require.Greater(t, attempt.Fence, last)
			}
		})
	}
}
