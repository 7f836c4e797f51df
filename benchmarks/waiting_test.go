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

// BenchmarkWaiting has clients wait for a key that is held, and reports how many scripts
// each sends in a second once it waits.
func BenchmarkWaiting(b *testing.B) {
	needRealServer(b)
	const (
		waiters = 32
		begin   = time.Second
		period  = 10 * time.Second
	)
	for _, name := range adapters {
		b.Run("backend="+name, func(b *testing.B) {
			addr := server(b)
			info := infoOf(b, addr)
			take(b, dial(b, name, addr).locker, "k", "holder", time.Hour)
			ctx, cancel := context.WithTimeout(b.Context(), begin+period)
			defer cancel()
			var all sync.WaitGroup
			for i := range waiters {
				on := dial(b, name, addr).locker.(dlock.Acquirer)
				all.Go(func() {
					_, err := on.Acquire(ctx, "k", fmt.Sprint("waiter", i), time.Minute)
					assert.ErrorIs(b, err, context.DeadlineExceeded)
				})
			}
			time.Sleep(begin)
			sent := scripts(info("commandstats"))
			all.Wait()
			b.ReportMetric((scripts(info("commandstats"))-sent)/waiters/period.Seconds(), "scripts/s")
		})
	}
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
