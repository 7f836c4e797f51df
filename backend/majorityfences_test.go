package backend_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
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
