package backend_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/internal/sim"
)

// The clock of one of three nodes is far ahead, so that the other one that votes raises its counter.
// Nobody asks for a fence for days, and then the first node is away. The next fence is the largest.
func TestFencesOfAMajorityAfterAClockError(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const ahead, idle = 72 * time.Hour, 49 * time.Hour
		right, wrong, other := sim.NewServer(), sim.NewServer(), sim.NewServer()
		wrong.SetClock(ahead)
		fence := func(servers ...*sim.Server) int64 {
			away := memory.New()
			away.Fail(errors.New("away"))
			nodes := []dlock.Locker{away}
			for _, s := range servers {
				conn := sim.Dial(s, nil)
				defer conn.Close()
				node := rediscore.New(conn)
				defer node.Close()
				nodes = append(nodes, node)
			}
			l := redlock.New(nodes, redlock.WithoutGuard())
			defer l.Close()
			a, err := l.TryAcquire(t.Context(), "key", "token", time.Minute)
			require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
			return a.Fence
		}
		before := fence(right, wrong)
		time.Sleep(idle)
		require.Greater(t, fence(right, other), before, "%v later", idle)
	})
}

// Servers that have just started do not count yet, and one is then killed. Errors and states name them
// by their addresses, if the client library tells.
func TestNodesOfARedlock(t *testing.T) {
	t.Parallel()
	var servers []*redistest.Server
	var nodes []dlock.Locker
	var names []string
	for i, a := range clients.All {
		servers = append(servers, redistest.Start(t))
		node := dial(t, a, servers[i].Addr())
		t.Cleanup(func() { require.NoError(t, node.Close()) })
		nodes = append(nodes, node)
		names = append(names, servers[i].Addr())
		if a.Name == "redigo" {
			names[i] = strconv.Itoa(i)
		}
	}
	changes := make(chan redlock.NodeState, 100)
	l := redlock.New(nodes, redlock.OnNodeChange(func(s redlock.NodeState) { changes <- s }))
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	_, err := l.TryAcquire(t.Context(), "key", "x", time.Second)
	for _, name := range names {
		require.ErrorContains(t, err, "node "+name+": ")
	}
	for range nodes {
		require.Equal(t, redlock.NodeYoung, next(t, changes).Status)
	}
	for i, node := range l.Nodes() {
		require.Equal(t, names[i], node.Node)
		require.ErrorContains(t, node.Err, "has forgotten its leases, and counts in ")
	}
	const killed = 0 // by goredis, which says "connection refused"
	servers[killed].Kill()
	_, err = l.Inspect(t.Context(), "key")
	require.NoError(t, err)
	death := next(t, changes)
	require.Equal(t, names[killed], death.Node)
	require.Equal(t, redlock.NodeDown, death.Status)
	require.ErrorContains(t, death.Err, "refused")
}

func next(t *testing.T, changes <-chan redlock.NodeState) (s redlock.NodeState) {
	t.Helper()
	select {
	case s = <-changes:
	case <-time.After(time.Minute):
		require.Fail(t, "a change was not seen")
	}
	return s
}
