package backend_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

// moveLimit is how long after a move of the address the first lock is granted.
const (
	moveLimit = 2 * time.Second
	movedTTL  = 10 * time.Second // of a lease that is held meanwhile
)

// TestAddressMoves has the address of a master lead to its successor while old connections stay open: the former
// master is a replica, and refuses calls. Soon after, locks are granted, a lease that was held meanwhile is
// renewed, a waiter has kept its place, and handovers are made by messages again.
func TestAddressMoves(t *testing.T) {
	t.Parallel()
	for answer, demote := range map[string]func(t *testing.T, master, successor *redistest.Server){
		"READONLY": func(t *testing.T, master, successor *redistest.Server) {
			do(t, master, append([]string{"REPLICAOF"}, strings.Split(successor.Addr(), ":")...)...)
		},
		"MASTERDOWN": func(t *testing.T, master, _ *redistest.Server) { // its link is down
			do(t, master, "CONFIG", "SET", "replica-serve-stale-data", "no")
			do(t, master, "REPLICAOF", "127.0.0.1", "1")
		},
	} {
		for _, a := range clients.All {
			t.Run(answer+"/"+a.Name, func(t *testing.T) { t.Parallel(); testMove(t, a, demote) })
		}
	}
}

func testMove(t *testing.T, lib clients.Library, demote func(t *testing.T, master, successor *redistest.Server)) {
	master := redistest.Start(t)
	successor := redistest.StartReplica(t, master)
	proxy, err := faultproxy.New(master.Addr())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	l := dial(t, lib, proxy.Addr())
	client := dlock.New(l, dlock.WithTTL(movedTTL))
	t.Cleanup(func() { client.Close(); l.Close() })
	useAtOnce(t, client) // many connections are stale soon
	lease, err := client.Acquire(t.Context(), "held")
	require.NoError(t, err)
	granted := make(chan *dlock.Lease, 1)
	wait := func(server *redistest.Server) {
		go func() {
			next, err := client.Acquire(t.Context(), "held")
			assert.NoError(t, err)
			granted <- next
		}()
		require.Eventually(t, func() bool { return listening(t, server, "") == 1 }, patient, pause)
	}
	wait(master)

	do(t, successor, "REPLICAOF", "NO", "ONE")
	demote(t, master, successor)
	proxy.Move(successor.Addr())
	moved := time.Now()
	other, err := client.Acquire(t.Context(), "other")
	require.NoError(t, err)
	took := time.Since(moved)
	t.Logf("granted %v after the move", took)
	require.Less(t, took, moveLimit)
	require.NoError(t, other.Release())
	useAtOnce(t, client)

	require.Eventually(t, func() bool { return time.Since(moved) > movedTTL || lease.Err() != nil }, patient, pause)
	require.NoError(t, lease.Err())
	require.NoError(t, lease.Release())
	require.NoError(t, (<-granted).Release())
	requireByMessage(t, func() (others int64) {
		lease, err := client.Acquire(t.Context(), "held")
		require.NoError(t, err)
		wait(successor)
		before := scripts(t, successor)
		require.NoError(t, lease.Release())
		next := <-granted
		others = scripts(t, successor) - before - 1
		require.NoError(t, next.Release())
		return others
	})
}

// useAtOnce takes some locks at the same time.
func useAtOnce(t *testing.T, client *dlock.Client) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			lease, err := client.Acquire(t.Context(), fmt.Sprint("k", i))
			require.NoError(t, err)
			require.NoError(t, lease.Release())
		})
	}
	all.Wait()
}

// TestClientOfReplica has clients that are given the address of a replica. They make at most ten connections a second.
func TestClientOfReplica(t *testing.T) {
	t.Parallel()
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			replica := redistest.StartReplica(t, redistest.Start(t))
			l := dial(t, a, replica.Addr())
			before, begun := connections(t, replica), time.Now()
			var all sync.WaitGroup
			var calls atomic.Int64
			for range 8 {
				all.Go(func() {
					for time.Since(begun) < 3*time.Second {
						_, err := l.TryAcquire(t.Context(), rand.Text(), "t", ttl)
						require.ErrorContains(t, err, "READONLY")
						calls.Add(1)
					}
				})
			}
			all.Wait()
			made := connections(t, replica) - before - 1 // which counts them
			t.Logf("%d connections for %d calls", made, calls.Load())
			require.LessOrEqual(t, float64(made), 10*time.Since(begun).Seconds())
			require.NoError(t, l.Close())
		})
	}
}

// connections returns how many connections a server has accepted.
func connections(t *testing.T, s *redistest.Server) (n int) {
	t.Helper()
	text := do(t, s, "INFO", "stats").(string)
	_, text, _ = strings.Cut(text, "total_connections_received:")
	_, err := fmt.Sscan(text, &n)
	require.NoError(t, err)
	return n
}
