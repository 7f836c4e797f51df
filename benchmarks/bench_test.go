package benchmarks

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// backends makes a Locker of each kind.
var backends = []struct {
	name string
	new  func(b *testing.B) dlock.Locker
}{
	{"memory", func(*testing.B) dlock.Locker { return memory.New() }},
}

// each runs a benchmark on every backend.
func each(b *testing.B, f func(b *testing.B, l dlock.Locker)) {
	for _, backend := range backends {
		b.Run("backend="+backend.name, func(b *testing.B) { f(b, backend.new(b)) })
	}
}

func newClient(b *testing.B, l dlock.Locker, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(l, opts...)
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	})
	return c
}

// BenchmarkAcquireRelease is one cycle on a key that nobody else wants.
func BenchmarkAcquireRelease(b *testing.B) {
	each(b, func(b *testing.B, l dlock.Locker) {
		c := newClient(b, l)
		b.ReportAllocs()
		for b.Loop() {
			cycle(b, c, "k")
		}
	})
}

// BenchmarkFloor is the same two calls of the Locker, without a Client.
func BenchmarkFloor(b *testing.B) {
	each(b, func(b *testing.B, l dlock.Locker) {
		ctx := b.Context()
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			token := strconv.Itoa(i)
			if a, err := l.TryAcquire(ctx, "k", token, time.Minute); err != nil || !a.Acquired {
				b.Fatal(a, err)
			}
			if held, err := l.Release(ctx, "k", token); err != nil || !held {
				b.Fatal(held, err)
			}
		}
	})
}

// BenchmarkOwnKeys is cycles of 64 goroutines with a key each.
func BenchmarkOwnKeys(b *testing.B) {
	each(b, func(b *testing.B, l dlock.Locker) {
		c := newClient(b, l)
		b.ReportAllocs()
		b.SetParallelism(32)
		var n atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			key := fmt.Sprint(n.Add(1))
			for pb.Next() {
				cycle(b, c, key)
			}
		})
	})
}

// BenchmarkContended is cycles of so many waiters, each with a Client of its own,
// that all want the same key.
func BenchmarkContended(b *testing.B) {
	for _, waiters := range []int{2, 8, 32, 128} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
			each(b, func(b *testing.B, l dlock.Locker) { contend(b, l, waiters) })
		})
	}
}

func contend(b *testing.B, l dlock.Locker, waiters int) {
	clients := make([]*dlock.Client, waiters)
	for i := range clients {
		clients[i] = newClient(b, l)
	}
	waits := make([][]time.Duration, waiters)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for i, c := range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				start := time.Now()
				lease, err := c.Acquire(b.Context(), "k")
				waits[i] = append(waits[i], time.Since(start))
				if err == nil {
					err = lease.Release()
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Sorted(slices.Values(slices.Concat(waits...)))
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds()), "p99-wait-ns")
}

// BenchmarkRenew is the renewal of one of a thousand leases, by hand.
func BenchmarkRenew(b *testing.B) {
	each(b, func(b *testing.B, l dlock.Locker) {
		c := newClient(b, l, dlock.WithRenewal(false))
		leases := make([]*dlock.Lease, 1000)
		for i := range leases {
			var err error
			if leases[i], err = c.TryAcquire(b.Context(), strconv.Itoa(i)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if err := leases[i%len(leases)].Renew(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		for _, lease := range leases {
			if err := lease.Release(); err != nil {
				b.Error(err)
			}
		}
	})
}

func cycle(b *testing.B, c *dlock.Client, key string) {
	lease, err := c.TryAcquire(context.Background(), key)
	if err != nil {
		b.Error(err)
		return
	}
	if err := lease.Release(); err != nil {
		b.Error(err)
	}
}
