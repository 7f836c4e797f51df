package benchmarks

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

func newClient(b *testing.B, l dlock.Locker, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(l, opts...)
	b.Cleanup(func() { assert.NoError(b, c.Close()) })
	return c
}

// BenchmarkOrders is cycles with a new key each, which nobody else wants: by=dlock, and next to it by=bare, the bare client.
// It reports for each cycle the commands that the server runs, with those of scripts, and the CPU time of the server and of
// this process (on Linux); and the keys that stay on the server.
func BenchmarkOrders(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		for _, name := range adapters {
			for _, by := range []string{"bare", "dlock"} {
				b.Run(fmt.Sprintf("goroutines=%d/backend=%s/by=%s", goroutines, name, by), func(b *testing.B) {
					addr := server(b)
					on := dial(b, name, addr)
					order := func(key string) { onFloor(b, on, key) }
					if by == "dlock" {
						c := newClient(b, on.locker)
						order = func(key string) { cycle(b, c, key) }
					}
					share(goroutines, goroutines, func(i int) { order(fmt.Sprint("connects:", i)) })
					b.ReportAllocs()
					report := usage(b, addr)
					b.ResetTimer()
					share(goroutines, b.N, func(i int) { order("order:" + strconv.Itoa(i)) })
					report()
				})
			}
		}
	}
}

// share has goroutines call f with the numbers below n.
func share(goroutines, n int, f func(i int)) {
	var all sync.WaitGroup
	for first := range goroutines {
		all.Go(func() {
			for i := first; i < n; i += goroutines {
				f(i)
			}
		})
	}
	all.Wait()
}

// BenchmarkRenewBatch is the renewal of a thousand leases in one call.
func BenchmarkRenewBatch(b *testing.B) {
	for _, name := range adapters {
		b.Run("backend="+name, func(b *testing.B) {
			store := dial(b, name, server(b)).locker
			batch := make([]dlock.Renewal, 1000)
			for i := range batch {
				batch[i] = dlock.Renewal{Key: strconv.Itoa(i), Token: "t", TTL: dlock.DefaultTTL}
				a, err := store.TryAcquire(b.Context(), batch[i].Key, "t", dlock.DefaultTTL)
				require.NoError(b, err)
				require.True(b, a.Acquired)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := store.(dlock.BatchRenewer).RenewBatch(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func onFloor(b *testing.B, on backend, key string) {
	token := rand.Text()
	err := on.floor.Take(b.Context(), key, token, dlock.DefaultTTL)
	if err == nil {
		err = on.floor.Free(b.Context(), key, token)
	}
	if err != nil {
		b.Error(err)
	}
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
