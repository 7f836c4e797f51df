package benchmarks

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/redistest"
)

// each runs a benchmark on every backend.
func each(b *testing.B, f func(b *testing.B, on backend)) {
	for _, on := range backends(b) {
		b.Run("backend="+on.name, func(b *testing.B) { f(b, on) })
	}
}

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

// BenchmarkSet takes and frees 2,000 keys at a time. The floor is the same commands, sent with go-redis in one pipeline to
// take all and in another to free all.
func BenchmarkSet(b *testing.B) {
	keys := make([]string, 2000)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	set := func(b *testing.B, c *dlock.Client, taken func()) {
		leases, err := c.AcquireAll(b.Context(), keys...)
		require.NoError(b, err)
		taken()
		require.NoError(b, leases.Release())
	}
	each(b, func(b *testing.B, on backend) {
		c := newClient(b, on.locker)
		for b.Loop() {
			set(b, c, func() {})
		}
	})
	b.Run("floor", func(b *testing.B) {
		client := goredislib.NewClient(&goredislib.Options{Addr: server(b)})
		b.Cleanup(func() { client.Close() })
		c, sent := newClient(b, goredis.New(client)), new(recorder)
		set(b, c, func() {}) // loads the scripts
		client.AddHook(sent)
		var take, free [][]any
		set(b, c, func() { take, sent.commands = sent.commands, nil })
		free, sent.commands = sent.commands, nil
		require.Equal(b, []int{len(keys), len(keys)}, []int{len(take), len(free)})
		bare := goredislib.NewClient(&goredislib.Options{Addr: client.Options().Addr})
		b.Cleanup(func() { bare.Close() })
		for b.Loop() {
			for _, commands := range [][][]any{take, free} {
				_, err := bare.Pipelined(b.Context(), func(p goredislib.Pipeliner) error {
					for _, args := range commands {
						p.Do(b.Context(), args...)
					}
					return nil
				})
				require.NoError(b, err)
			}
		}
	})
}

// A recorder notes the scripts that a client calls.
type recorder struct {
	mu       sync.Mutex
	commands [][]any
}

func (*recorder) DialHook(next goredislib.DialHook) goredislib.DialHook { return next }

func (r *recorder) ProcessHook(next goredislib.ProcessHook) goredislib.ProcessHook {
	return func(ctx context.Context, cmd goredislib.Cmder) error {
		r.note(cmd)
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next goredislib.ProcessPipelineHook) goredislib.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredislib.Cmder) error {
		r.note(cmds...)
		return next(ctx, cmds)
	}
}

func (r *recorder) note(cmds ...goredislib.Cmder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cmd := range cmds {
		if cmd.Name() == "evalsha" {
			args := slices.Clone(cmd.Args())
			args[1] = fmt.Sprint(args[1]) // which is not written twice
			r.commands = append(r.commands, args)
		}
	}
}

// BenchmarkOwnKeysFarAway is cycles of 1,000 goroutines with a key each, at a round trip of 2 ms.
func BenchmarkOwnKeysFarAway(b *testing.B) {
	redistest.Real(b)
	addr := slowed(b, redistest.Start(b).Addr(), 2*time.Millisecond)
	for _, name := range adapters {
		b.Run("backend="+name, func(b *testing.B) {
			c := newClient(b, dial(b, name, addr).locker)
			const goroutines = 1000
			round := func(n int) {
				var all sync.WaitGroup
				for i := range goroutines {
					all.Go(func() {
						for range n {
							cycle(b, c, "k"+strconv.Itoa(i))
						}
					})
				}
				all.Wait()
			}
			round(1) // connects
			b.ResetTimer()
			begun := time.Now()
			round(b.N)
			b.ReportMetric(float64(goroutines*b.N)/time.Since(begun).Seconds(), "cycles/s")
		})
	}
}

// BenchmarkContended is cycles of so many waiters, each with a Client of its own,
// that all want the same key.
func BenchmarkContended(b *testing.B) {
	for _, waiters := range []int{2, 8, 32, 128} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
			each(b, func(b *testing.B, on backend) { contend(b, on.locker, waiters) })
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
	b.ReportMetric(float64(percentile(slices.Concat(waits...), 99).Nanoseconds()), "p99-wait-ns")
}

// BenchmarkRenew is the renewal of one of a thousand leases, by hand.
func BenchmarkRenew(b *testing.B) {
	each(b, func(b *testing.B, on backend) {
		c := newClient(b, on.locker, dlock.WithRenewal(false))
		leases := make([]*dlock.Lease, 1000)
		for i := range leases {
			var err error
			leases[i], err = c.TryAcquire(b.Context(), strconv.Itoa(i))
			require.NoError(b, err)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if err := leases[i%len(leases)].Renew(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		for _, lease := range leases {
			assert.NoError(b, lease.Release())
		}
	})
}

// BenchmarkRenewBatch is the renewal of a thousand leases in one call.
func BenchmarkRenewBatch(b *testing.B) {
	each(b, func(b *testing.B, on backend) {
		batch := make([]dlock.Renewal, 1000)
		for i := range batch {
			batch[i] = dlock.Renewal{Key: strconv.Itoa(i), Token: "t", TTL: dlock.DefaultTTL}
			take(b, on.locker, batch[i].Key, "t", dlock.DefaultTTL)
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := on.locker.(dlock.BatchRenewer).RenewBatch(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		for _, r := range batch {
			_, err := on.locker.Release(b.Context(), r.Key, r.Token)
			assert.NoError(b, err)
		}
	})
}

// BenchmarkHeld is calls about a key that another holds: an attempt that is refused, and Inspect.
func BenchmarkHeld(b *testing.B) {
	each(b, func(b *testing.B, on backend) {
		take(b, on.locker, "k", "holder", time.Hour)
		for name, call := range map[string]func(context.Context) error{
			"TryAcquire": func(ctx context.Context) error {
				_, err := on.locker.TryAcquire(ctx, "k", "t", time.Hour)
				return err
			},
			"Inspect": func(ctx context.Context) error {
				_, err := on.locker.(dlock.Inspector).Inspect(ctx, "k")
				return err
			},
		} {
			b.Run("call="+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, call(b.Context()))
				}
			})
		}
		_, err := on.locker.Release(b.Context(), "k", "holder")
		assert.NoError(b, err)
	})
}

// take acquires a key that is free.
func take(b *testing.B, l dlock.Locker, key, token string, ttl time.Duration) {
	a, err := l.TryAcquire(b.Context(), key, token, ttl)
	require.NoError(b, err)
	require.True(b, a.Acquired)
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
