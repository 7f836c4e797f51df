package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/redistest"
)

func needRealServer(b *testing.B) {
	if *redisAddr == "" && !redistest.Installed() {
		b.Skip("no Redis server is installed, and leases on miniredis do not end by themselves")
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
			if a, err := on.locker.TryAcquire(b.Context(), "k", dead, ttl); err != nil || !a.Acquired {
				b.Fatal(a, err)
			}
			if a, err := on.locker.(dlock.Acquirer).Acquire(b.Context(), "k", next, ttl); err != nil || !a.Acquired {
				b.Fatal(a, err)
			}
			late = append(late, time.Since(start)-ttl)
			if _, err := on.locker.Release(b.Context(), "k", next); err != nil {
				b.Fatal(err)
			}
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
			if a, err := dial(b, name, addr).locker.TryAcquire(b.Context(), "k", "holder", time.Hour); err != nil || !a.Acquired {
				b.Fatal(a, err)
			}
			ctx, cancel := context.WithTimeout(b.Context(), begin+period)
			defer cancel()
			var all sync.WaitGroup
			for i := range waiters {
				on := dial(b, name, addr).locker.(dlock.Acquirer)
				all.Go(func() {
					if _, err := on.Acquire(ctx, "k", fmt.Sprint("waiter", i), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
						b.Error(err)
					}
				})
			}
			time.Sleep(begin)
			sent := scripts(b, addr)
			all.Wait()
			b.ReportMetric((scripts(b, addr)-sent)/waiters/period.Seconds(), "scripts/s")
		})
	}
}

// scripts returns how many scripts the server has run.
func scripts(b *testing.B, addr string) (n float64) {
	conn, err := redigolib.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	info, err := redigolib.String(conn.Do("INFO", "commandstats"))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		var calls float64
		if name, rest, _ := strings.Cut(line, ":calls="); strings.HasPrefix(name, "cmdstat_eval") {
			if _, err := fmt.Sscanf(rest, "%f,", &calls); err != nil {
				b.Fatal(err)
			}
			n += calls
		}
	}
	return n
}
