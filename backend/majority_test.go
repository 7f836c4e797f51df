package backend_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A majority of servers passes the suite, with each library and with all of them. Leases are not
// lost on all servers at once, so the cases of that are left to the nodes in memory. Networks that are faulty before some
// of the servers are left to package world and to backend/stress.
func TestMajority(t *testing.T) {
	if long.Of("majority") == "" {
		t.Skip("DLOCK_LONG has no majority")
	}
	for _, bed := range []struct {
		name    string
		servers int
		library []clients.Library
	}{
		{"goredis", 3, []clients.Library{clients.GoRedis}},
		{"rueidis", 3, []clients.Library{clients.Rueidis}},
		{"redigo", 5, []clients.Library{clients.Redigo}},
		{"mixed", 5, clients.All},
	} {
		t.Run(bed.name, func(t *testing.T) {
			addrs := make([]string, bed.servers)
			for i := range addrs {
				addrs[i] = redistest.Start(t).Addr()
			}
			conformance.Run(t, conformance.Harness{
				New: func(t *testing.T) dlock.Locker {
					nodes := make([]dlock.Locker, len(addrs))
					for i, addr := range addrs {
						node := dial(t, bed.library[i%len(bed.library)], addr)
						t.Cleanup(func() { require.NoError(t, node.Close()) })
						nodes[i] = node
					}
					l := redlock.New(nodes, redlock.WithoutGuard())
					t.Cleanup(func() { require.NoError(t, l.Close()) })
					return l
				},
				Unordered: true,
				Grace:     250 * time.Millisecond, // a busy server may execute a renewal so late
			})
		})
	}
}
