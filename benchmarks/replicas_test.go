package benchmarks

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// BenchmarkReplicas shows what it costs that grants and renewals count only when two replicas have
// them (replicas=2), beside the same without (replicas=0). The delay is the round-trip time that is
// added between the master and its replicas. It reports
//   - ns/op: of one cycle, acquire and release, with nobody else;
//   - gap-p50-µs: from Release being called to the next holder running, among eight clients;
//   - cycles/s: of 64 goroutines with keys of their own.
func BenchmarkReplicas(b *testing.B) {
	redistest.Real(b)
	for _, delay := range []time.Duration{0, 2 * time.Millisecond} {
		b.Run(fmt.Sprintf("delay=%v", delay), func(b *testing.B) {
			addr := replicated(b, delay)
			for _, name := range adapters {
				for _, n := range []int{0, 2} {
					b.Run(fmt.Sprintf("backend=%s/replicas=%d", name, n), func(b *testing.B) { onReplicas(b, name, addr, n) })
				}
			}
		})
	}
}

// replicated returns the address of a master with two replicas.
func replicated(b *testing.B, delay time.Duration) string {
	master := redistest.Start(b)
	host, port, err := net.SplitHostPort(slowed(b, master.Addr(), delay))
	require.NoError(b, err)
	for range 2 {
		redistest.Start(b, "--replicaof", host, port)
	}
	for have := any(nil); have != int64(2); {
		have, err = master.Do("WAIT", "2", "1000")
		require.NoError(b, err)
	}
	return master.Addr()
}

func onReplicas(b *testing.B, name, addr string, replicas int) {
	clients := make([]*dlock.Client, 8)
	for i := range clients {
		clients[i] = newClient(b, dial(b, name, addr, rediscore.WithReplicas(replicas, time.Second)).locker)
	}
	handovers(b, clients, len(clients)) // connects everybody
	for b.Loop() {
		cycle(b, clients[0], "k")
	}
	var gaps []time.Duration
	turns := handovers(b, clients, b.N)
	for i := 1; i < len(turns); i++ {
		gaps = append(gaps, turns[i].got.Sub(turns[i-1].done))
	}
	b.ReportMetric(float64(percentile(gaps, 50).Microseconds()), "gap-p50-µs")
	const goroutines = 64
	begun := time.Now()
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for range b.N {
				cycle(b, clients[0], "k"+strconv.Itoa(i))
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(goroutines*b.N)/time.Since(begun).Seconds(), "cycles/s")
}
