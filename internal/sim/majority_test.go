package sim_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/sim"
)

// A majority of servers passes the whole suite, in virtual time. Package redlock tests nodes in memory, as many and
// also guarded ones, more quickly.
func TestMajority(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if long.Of("majority") == "" {
				t.Skip("takes many seconds: DLOCK_LONG=majority")
			}
			var all sync.Map // by the test
			of := func(t *testing.T) []*sim.Server {
				servers, _ := all.LoadOrStore(t, sync.OnceValue(func() (servers []*sim.Server) {
					for range n {
						servers = append(servers, sim.NewServer())
					}
					return servers
				}))
				return servers.(func() []*sim.Server)()
			}
			conformance.Run(t, conformance.Harness{
				New: func(t *testing.T) dlock.Locker {
					var nodes []dlock.Locker
					for _, s := range of(t) {
						conn := sim.Dial(s, nil)
						node := rediscore.New(conn)
						nodes = append(nodes, node)
						t.Cleanup(func() {
							node.Close()
							conn.Close()
						})
					}
					l := redlock.New(nodes, redlock.WithoutGuard())
					t.Cleanup(func() { l.Close() })
					return l
				},
				// No Wipe: these servers take no time, so split votes can draw a thousand fences in an instant, and the
				// counters are ahead of the clock. After a loss of all data, the next fences follow the clock: they are lower.
				Bubble:      true,
				Unordered:   true,
				SkipForward: true, // it is the same around nodes in memory
			})
		})
	}
}
