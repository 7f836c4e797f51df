package benchmarks

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// BenchmarkLocalTurns has 32 goroutines of one process pass one lock on, without and with
// local turns. An op is a handover: a hold that follows that of another goroutine. Beside
// ns/op it reports handovers/s, the p50 and p99 of the waits, and the commands that a handover
// costs the server, with those of scripts.
func BenchmarkLocalTurns(b *testing.B) {
	for _, name := range adapters {
		for _, n := range []int{1, 8} {
			b.Run(fmt.Sprintf("backend=%s/turns=%d", name, n), func(b *testing.B) {
				addr := server(b)
				info := infoOf(b, addr)
				client := newClient(b, dial(b, name, addr).locker).With(dlock.WithLocalTurns(n))
				passOn(b, client, 64)
				before, counted := info("stats")[commands]
				b.ResetTimer()
				waits := passOn(b, client, b.N)
				b.StopTimer()
				if counted {
					b.ReportMetric((info("stats")[commands]-before)/float64(b.N), "commands")
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "handovers/s")
				b.ReportMetric(milliseconds(percentile(waits, 50)), "wait-p50-ms")
				b.ReportMetric(milliseconds(percentile(waits, 99)), "wait-p99-ms")
			})
		}
	}
}

// passOn has 32 goroutines acquire the key k and release it at once, until it was handed over
// n times. It returns their waits.
func passOn(b *testing.B, client *dlock.Client, n int) []time.Duration {
	var all sync.WaitGroup
	var waits []time.Duration // guarded by the lock itself
	last := -1
	for who := range 32 {
		all.Go(func() {
			for more := true; more; {
				asked := time.Now()
				lease, err := client.Acquire(b.Context(), "k")
				if err != nil {
					b.Error(err)
					return
				}
				if last != who {
					last, waits = who, append(waits, time.Since(asked))
				}
				more = len(waits) < n
				if err := lease.Release(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return waits
}

// BenchmarkManyInLine has 10,000 goroutines of one process wait for one key that another
// holds. It reports their places in the store's queue, the commands that the server gets in a
// second, with those of scripts, and the heap and the stack of each, of the whole process.
func BenchmarkManyInLine(b *testing.B) {
	needRealServer(b)
	const (
		waiters = 10_000
		period  = 5 * time.Second
	)
	for _, name := range adapters {
		b.Run("backend="+name, func(b *testing.B) {
			addr := server(b)
			info := infoOf(b, addr)
			on := dial(b, name, addr)
			take(b, on.locker, "k", "holder", time.Hour)
			client := newClient(b, on.locker).With(dlock.WithLocalTurns(8))
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			heap, stack := memoryInUse()
			var all sync.WaitGroup
			for range waiters {
				all.Go(func() {
					_, err := client.Acquire(ctx, "k")
					assert.ErrorIs(b, err, context.Canceled)
				})
			}
			for client.Stats().Waiters < waiters && !b.Failed() {
				time.Sleep(time.Millisecond)
			}
			heapNow, stackNow := memoryInUse()
			before := info("stats")[commands]
			time.Sleep(period)
			after := info("stats")[commands]
			status, err := client.Inspect(b.Context(), "k")
			require.NoError(b, err)
			b.ReportMetric(float64(status.Waiting), "places")
			b.ReportMetric((after-before)/period.Seconds(), "commands/s")
			b.ReportMetric((heapNow-heap)/waiters, "heap-B")
			b.ReportMetric((stackNow-stack)/waiters, "stack-B")
			cancel()
			all.Wait()
		})
	}
}

func memoryInUse() (heap, stack float64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc), float64(m.StackInuse)
}
