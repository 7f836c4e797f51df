package benchmarks

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/faultproxy"
)

var (
	rtt  = flag.Duration("rtt", 2*time.Millisecond, "round-trip time that is added in BenchmarkHandover")
	hold = flag.Duration("hold", time.Millisecond, "how long each holds the lock in BenchmarkHandover")
)

// BenchmarkHandover has so many clients, each with a connection of its own, pass one
// lock on among them, over a network with a round-trip time of -rtt. It reports
//   - gap-p50-rtt and gap-p99-rtt: from Release being called to the next holder
//     running, in round-trip times: the median of those that the bare client has at the
//     same time on the same network, since a busy machine makes both longer;
//   - rtt-µs and rtt-p99-x: their median, and their 99th percentile as a multiple of it;
//   - wait-p99-x: the 99th percentile of the waits as a multiple of the ideal, in which
//     each waits for all others to hold the lock for -hold and to pass it on at the
//     median gap;
//   - spread: how much oftener the most served was served than the least served;
//   - commands and server-µs: what one handover costs the server, with the commands
//     that scripts make, and the CPU time (with that of the bare client's round trips).
func BenchmarkHandover(b *testing.B) {
	for _, waiters := range []int{2, 8, 32, 128} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
			for _, name := range adapters {
				b.Run("backend="+name, func(b *testing.B) { handover(b, name, waiters) })
			}
		})
	}
}

// A tenure is one hold of the lock by one of the clients.
type tenure struct {
	who              int
	asked, got, done time.Time
}

func handover(b *testing.B, name string, waiters int) {
	addr := server(b)
	cpu, info := cpuOf(b, addr), infoOf(b, addr)
	proxy := slowed(b, addr, *rtt)
	clients := make([]*dlock.Client, waiters)
	for i := range clients {
		clients[i] = newClient(b, dial(b, name, proxy).locker)
	}
	ping := dial(b, name, proxy).ping
	handovers(b, clients, waiters) // connects everybody
	require.NoError(b, ping(b.Context()))
	var used time.Duration
	if cpu != nil {
		used = cpu()
	}
	before, counted := info("stats")[commands]
	b.ResetTimer()
	stop := pinging(b, ping)
	turns := handovers(b, clients, b.N*waiters)
	trips := stop()
	b.StopTimer()
	n := float64(len(turns))
	if counted {
		b.ReportMetric((info("stats")[commands]-before-float64(len(trips)))/n, "commands")
	}
	if cpu != nil {
		b.ReportMetric(float64((cpu()-used).Microseconds())/n, "server-µs")
	}
	report(b, turns, waiters, trips)
}

// slowed returns the address of a proxy that adds rtt to each round trip.
func slowed(b *testing.B, addr string, rtt time.Duration) string {
	proxy, err := faultproxy.New(addr)
	require.NoError(b, err)
	b.Cleanup(proxy.Close)
	proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: rtt / 2})
	return proxy.Addr()
}

// pinging measures round-trip times until stop is called, which returns them.
func pinging(b *testing.B, ping func(context.Context) error) (stop func() []time.Duration) {
	var trips []time.Duration
	end := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			start := time.Now()
			if err := ping(b.Context()); err != nil {
				b.Error(err)
				return
			}
			trips = append(trips, time.Since(start))
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() []time.Duration {
		close(end)
		all.Wait()
		return trips
	}
}

// handovers has all clients acquire one lock again and again, until it has been held
// n times by all of them together.
func handovers(b *testing.B, clients []*dlock.Client, n int) []tenure {
	var mu sync.Mutex
	var turns []tenure
	var all sync.WaitGroup
	for who, c := range clients {
		all.Go(func() {
			for more := true; more; {
				t := tenure{who: who, asked: time.Now()}
				lease, err := c.Acquire(b.Context(), "k")
				if err != nil {
					b.Error(err)
					return
				}
				t.got = time.Now()
				time.Sleep(*hold)
				mu.Lock()
				t.done = time.Now()
				turns = append(turns, t)
				more = len(turns) < n
				mu.Unlock()
				if err := lease.Release(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return turns[:min(n, len(turns))]
}

func report(b *testing.B, turns []tenure, waiters int, trips []time.Duration) {
	var gaps, waits []time.Duration
	served := make([]int, waiters)
	for i, t := range turns {
		served[t.who]++
		if i > 0 {
			gaps = append(gaps, t.got.Sub(turns[i-1].done))
		}
		if i >= 2*waiters { // those before had no full queue before them
			waits = append(waits, t.got.Sub(t.asked))
		}
	}
	gap, trip := percentile(gaps, 50), percentile(trips, 50)
	b.ReportMetric(float64(gap)/float64(trip), "gap-p50-rtt")
	b.ReportMetric(float64(percentile(gaps, 99))/float64(trip), "gap-p99-rtt")
	b.ReportMetric(float64(trip.Microseconds()), "rtt-µs")
	b.ReportMetric(float64(percentile(trips, 99))/float64(trip), "rtt-p99-x")
	ideal := time.Duration(waiters) * (holdOf(turns) + gap)
	b.ReportMetric(float64(percentile(waits, 99))/float64(ideal), "wait-p99-x")
	b.ReportMetric(float64(slices.Max(served)-slices.Min(served)), "spread")
}

// holdOf is how long the lock was really held, in the median.
func holdOf(turns []tenure) time.Duration {
	holds := make([]time.Duration, len(turns))
	for i, t := range turns {
		holds[i] = t.done.Sub(t.got)
	}
	return percentile(holds, 50)
}

func percentile[T cmp.Ordered](all []T, p int) T {
	var zero T
	if len(all) == 0 {
		return zero
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*p/100)]
}
