package backend_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

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
	require.Eventually(t, func() bool {
		return listening(t, replica, "") == len(failovers) && len(replica.Keys(t)) == len(master.Keys(t))
	}, patient, pause)
	master.Kill()
	for name, f := range failovers {
		require.Eventually(t, func() bool {
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
			require.Eventually(t, func() bool {
				hold, err := f.locker.Inspect(t.Context(), f.name)
				return err == nil && hold.Waiting == 1
			}, patient, pause)
		}
		return others
	})
	require.NoError(t, f.known.Release(), f.name)
	again, err := f.client.Acquire(t.Context(), "unknown"+f.name)
	require.NoError(t, err, f.name)
	require.Greater(t, again.Fence(), f.unknown.Fence(), f.name)
	require.NoError(t, again.Release(), f.name)
}
