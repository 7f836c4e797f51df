package redistest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each fault does what it says, and a bed keeps all data that it had before.
func TestBeds(t *testing.T) {
	t.Parallel()
	t.Run("Sentinels", func(t *testing.T) {
		t.Parallel()
		s := StartSentinels(t, "orders")
		require.Len(t, s.Addrs(), 3)
		require.Same(t, s.Nodes[0], s.MasterOf(t, ""))
		strikeAll(t, s)
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		c := StartCluster(t, 3, 1)
		require.Equal(t, c.Nodes[:3], c.Masters(t))
		strikeAll(t, c)
	})
}

func strikeAll(t *testing.T, bed Bed) {
	const keys = 50
	places := func() (places [keys]*Server) {
		for i := range places {
			places[i] = bed.MasterOf(t, fmt.Sprint(i))
		}
		return places
	}
	for i, m := range places() {
		do(t, m, "SET", fmt.Sprint(i), "")
	}
	for _, f := range bed.Faults() {
		before, old, begun := places(), bed.Masters(t), time.Now()
		took := f.Strike(t)
		t.Logf("%s: %v until a replica was master, %v until all was well", f.Name, took, time.Since(begun))
		now := bed.Masters(t)
		require.Len(t, now, len(old), f.Name)
		require.Equal(t, f.Name == "slots moved", took == 0, f.Name)
		if took == 0 { // others have seen a new master, which a busy machine may have replaced again
			require.NotEqual(t, before, places(), f.Name)
		}
		n := 0
		for _, m := range now {
			n += len(m.Keys(t))
		}
		require.Equal(t, keys, n, f.Name)
	}
}

func TestCutOff(t *testing.T) {
	t.Parallel()
	master := Start(t)
	replica := StartReplica(t, master)
	c, err := master.connect()
	require.NoError(t, err)
	defer c.Close()
	rejoin := master.cutOff(t)
	await(t, func() error {
		if replica.inSync() == nil {
			return fmt.Errorf("the replica is still connected")
		}
		return nil
	})
	_, err = c.do("SET", "a", "1")
	require.NoError(t, err)
	_, err = master.Do("PING")
	require.Error(t, err)
	require.Empty(t, replica.Keys(t))

	rejoin()
	await(t, replica.inSync)
	require.Equal(t, []string{"a"}, replica.Keys(t))
}
