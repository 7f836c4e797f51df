package backend_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

// The clock of one of three nodes is far ahead, so that the other one that votes raises its counter.
// Nobody asks for a fence for days, and then the first node is away. The next fence is the largest.
func TestFencesOfAMajorityAfterAClockError(t *testing.T) {
	t.Parallel()
	const ahead, idle = 72 * time.Hour, 49 * time.Hour
	right, wrong := redistest.Start(t), redistest.StartAhead(t, ahead)
	later, other := redistest.StartAhead(t, idle), redistest.StartAhead(t, idle)
	fence := func(servers ...*redistest.Server) int64 {
		away := memory.New()
		away.Fail(errors.New("away"))
		nodes := []dlock.Locker{away}
		for _, s := range servers {
			nodes = append(nodes, dial(t, clients.GoRedis, s.Addr()))
		}
		l := redlock.New(nodes, redlock.WithoutGuard())
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "token", time.Minute)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		return a.Fence
	}
	before := fence(right, wrong)
	copyCounters(t, right, later)
	require.Greater(t, fence(later, other), before, "%v later", idle)
}

// copyCounters copies the fence counters of a server to one whose clock is later. They expire at the same
// time there, or have expired.
func copyCounters(t *testing.T, from, to *redistest.Server) {
	t.Helper()
	source, target := redis.NewClient(&redis.Options{Addr: from.Addr()}), redis.NewClient(&redis.Options{Addr: to.Addr()})
	defer source.Close()
	defer target.Close()
	counters, err := source.Keys(t.Context(), "*dlock1:fence").Result()
	require.NoError(t, err)
	require.NotEmpty(t, counters)
	for _, key := range counters {
		now, err := source.Time(t.Context()).Result()
		require.NoError(t, err)
		ttl, err := source.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		dump, err := source.Dump(t.Context(), key).Result()
		require.NoError(t, err)
		require.NoError(t, target.Do(t.Context(), "RESTORE", key, now.Add(ttl).UnixMilli(), dump, "ABSTTL").Err())
	}
}
