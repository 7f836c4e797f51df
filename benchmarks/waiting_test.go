package benchmarks

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

func needRealServer(b *testing.B) {
	if *redisAddr == "" { // leases on miniredis do not end by themselves
		redistest.Real(b)
	}
}

// BenchmarkDeadHolder has a holder die without a release while somebody waits, and
// reports how long after the end of the lease the next has it: in the median, and at
// most. The lease is taken to begin before it was asked for.
func BenchmarkDeadHolder(b *testing.B) {
	needRealServer(b)
	const ttl = 200 * time.Millisecond
	each(b, func(b *testing.B, on backend) {
		var late []time.Duration
		for i := 0; b.Loop(); i++ {
			dead, next := fmt.Sprint("dead", i), fmt.Sprint("next", i)
			start := time.Now()
			take(b, on.locker, "k", dead, ttl)
			a, err := on.locker.(dlock.Acquirer).Acquire(b.Context(), "k", next, ttl)
			late = append(late, time.Since(start)-ttl)
			require.NoError(b, err)
			require.True(b, a.Acquired)
			_, err = on.locker.Release(b.Context(), "k", next)
			require.NoError(b, err)
		}
		b.ReportMetric(milliseconds(percentile(late, 50)), "late-p50-ms")
		b.ReportMetric(milliseconds(percentile(late, 100)), "late-max-ms")
	})
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// BenchmarkWaiting has goroutines wait for a key that is held, each of another process or all of one, over a
// network with a round trip of -rtt. It reports, while they rest:
//   - scripts/s: how many the server runs in a second, for all of them;
//   - ping-p99-x: the 99th percentile of the bare client's round trips, as a multiple of that without waiters.
//
// Then the key is passed on, and each holder releases it at once: gap-p50-rtt and gap-p99-rtt are as in
// BenchmarkHandover.
func BenchmarkWaiting(b *testing.B) {
	needRealServer(b)
	for _, c := range []struct{ processes, waiters int }{{32, 1}, {1, 32}, {1, 10_000}} {
		b.Run(fmt.Sprintf("processes=%d/waiters=%d", c.processes, c.waiters), func(b *testing.B) {
			for _, name := range adapters {
				b.Run("backend="+name, func(b *testing.B) { waiting(b, name, c.processes, c.waiters) })
			}
		})
	}
}

func waiting(b *testing.B, name string, processes, waiters int) {
	const (
		begin  = 5 * time.Second
		period = 10 * time.Second
	)
	addr := server(b)
	info, proxy := infoOf(b, addr), slowed(b, addr, *rtt)
	first, err := newClient(b, dial(b, name, proxy).locker).Acquire(b.Context(), "k")
	require.NoError(b, err)
	ping := dial(b, name, proxy).ping
	stop := pinging(b, ping)
	time.Sleep(time.Second)
	alone := stop()
	turns := make(chan tenure, processes*waiters)
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	for range processes {
		c := newClient(b, dial(b, name, proxy).locker)
		for range waiters {
			all.Go(func() {
				if lease, err := c.Acquire(ctx, "k"); err == nil {
					t := tenure{got: time.Now()}
					t.done = t.got
					turns <- t
					assert.NoError(b, lease.Release())
				}
			})
		}
	}
	time.Sleep(begin)
	sent, stop := scripts(info("commandstats")), pinging(b, ping)
	time.Sleep(period)
	b.ReportMetric((scripts(info("commandstats"))-sent)/period.Seconds(), "scripts/s")
	b.ReportMetric(float64(percentile(stop(), 99))/float64(percentile(alone, 99)), "ping-p99-x")
	stop = pinging(b, ping)
	last := time.Now()
	require.NoError(b, first.Release())
	var gaps []time.Duration
	for range min(300, processes*waiters) {
		t := <-turns
		gaps = append(gaps, t.got.Sub(last))
		last = t.done
	}
	trip := float64(percentile(stop(), 50))
	cancel()
	all.Wait()
	b.ReportMetric(float64(percentile(gaps, 50))/trip, "gap-p50-rtt")
	b.ReportMetric(float64(percentile(gaps, 99))/trip, "gap-p99-rtt")
}

// scripts returns how many scripts the server has run.
func scripts(calls map[string]float64) (n float64) {
	for name, x := range calls {
		if strings.HasPrefix(name, "cmdstat_eval") {
			n += x
		}
	}
	return n
}
