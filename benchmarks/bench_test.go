package benchmarks

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
)

var (
	rtt  = flag.Duration("rtt", 2*time.Millisecond, "round-trip time that is added in BenchmarkHandover")
	hold = flag.Duration("hold", time.Millisecond, "how long each holds the lock in BenchmarkHandover")
)

var adapters = []string{"goredis", "rueidis", "redigo"}

// dial returns a Locker on a client of the server at addr, and a round trip of the client.
func dial(b *testing.B, name, addr string, opts ...rediscore.Option) (_ dlock.Locker, ping func(context.Context) error) {
	switch name {
	case "goredis":
		client := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
		b.Cleanup(func() { client.Close() })
		return goredis.New(client, opts...), func(ctx context.Context) error { return client.Ping(ctx).Err() }
	case "rueidis":
		client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}, DisableCache: true})
		require.NoError(b, err)
		b.Cleanup(client.Close)
		return rueidis.New(client, opts...), func(ctx context.Context) error { return client.Do(ctx, client.B().Ping().Build()).Error() }
	}
	pool := &redigolib.Pool{
		MaxIdle: 128,
		DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			return redigolib.DialContext(ctx, "tcp", addr,
				redigolib.DialReadTimeout(3*time.Second), redigolib.DialWriteTimeout(3*time.Second))
		},
	}
	b.Cleanup(func() { pool.Close() })
	return redigo.New(pool, opts...), func(ctx context.Context) error {
		conn, err := pool.GetContext(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Do("PING")
		return err
	}
}

// clients returns n Clients, each with connections of its own.
func clients(b *testing.B, n int, name, addr string, opts ...rediscore.Option) []*dlock.Client {
	all := make([]*dlock.Client, n)
	for i := range all {
		l, _ := dial(b, name, addr, opts...)
		all[i] = dlock.New(l)
		b.Cleanup(func() { assert.NoError(b, all[i].Close()) })
	}
	return all
}

// slowed returns the address of a proxy that adds rtt to each round trip.
func slowed(b *testing.B, addr string, rtt time.Duration) string {
	proxy, err := faultproxy.New(addr)
	require.NoError(b, err)
	b.Cleanup(proxy.Close)
	proxy.Slow(faultproxy.Both, faultproxy.Pace{Latency: rtt / 2})
	return proxy.Addr()
}

// BenchmarkRenewBatch is the renewal of a thousand leases in one call.
func BenchmarkRenewBatch(b *testing.B) {
	for _, name := range adapters {
		b.Run("backend="+name, func(b *testing.B) {
			store, _ := dial(b, name, redistest.Start(b).Addr())
			batch := make([]dlock.Renewal, 1000)
			for i := range batch {
				batch[i] = dlock.Renewal{Key: strconv.Itoa(i), Token: "t", TTL: dlock.DefaultTTL}
				a, err := store.TryAcquire(b.Context(), batch[i].Key, "t", dlock.DefaultTTL)
				require.NoError(b, err)
				require.True(b, a.Acquired)
			}
			b.ReportAllocs()
			for b.Loop() {
				_, err := store.(dlock.BatchRenewer).RenewBatch(b.Context(), batch)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkHandover has so many clients, each with a connection of its own, pass one
// lock on among them, over a network with a round-trip time of -rtt. It reports
//   - gap-p50-rtt and gap-p99-rtt: from Release being called to the next holder
//     running, in round-trip times: the median of those that the bare client has at the
//     same time on the same network, since a busy machine makes both longer;
//   - rtt-µs and rtt-p99-x: their median, and their 99th percentile as a multiple of it;
//   - spread: how much oftener the most served was served than the least served;
//   - commands: what one handover is for the server, with the commands that scripts make.
func BenchmarkHandover(b *testing.B) {
	for _, waiters := range []int{2, 8, 32, 128} {
		for _, name := range adapters {
			b.Run(fmt.Sprintf("waiters=%d/backend=%s", waiters, name), func(b *testing.B) { handover(b, name, waiters) })
		}
	}
}

func handover(b *testing.B, name string, waiters int) {
	server := redistest.Start(b)
	proxy := slowed(b, server.Addr(), *rtt)
	all := clients(b, waiters, name, proxy)
	_, ping := dial(b, name, proxy)
	handovers(b, all, waiters) // connects everybody
	require.NoError(b, ping(b.Context()))
	before := processed(b, server)
	b.ResetTimer()
	stop := pinging(b, ping)
	turns := handovers(b, all, b.N*waiters)
	trips := stop()
	b.StopTimer()
	b.ReportMetric((processed(b, server)-before-float64(len(trips)))/float64(len(turns)), "commands")
	served := make([]int, waiters)
	for _, t := range turns {
		served[t.who]++
	}
	gaps, trip := gapsOf(turns), percentile(trips, 50)
	b.ReportMetric(float64(percentile(gaps, 50))/float64(trip), "gap-p50-rtt")
	b.ReportMetric(float64(percentile(gaps, 99))/float64(trip), "gap-p99-rtt")
	b.ReportMetric(float64(trip.Microseconds()), "rtt-µs")
	b.ReportMetric(float64(percentile(trips, 99))/float64(trip), "rtt-p99-x")
	b.ReportMetric(float64(slices.Max(served)-slices.Min(served)), "spread")
}

// processed is how many commands a server has run.
func processed(b *testing.B, server *redistest.Server) float64 {
	reply, err := server.Do("INFO", "stats")
	require.NoError(b, err)
	_, rest, _ := strings.Cut(reply.(string), "total_commands_processed:")
	var n float64
	_, err = fmt.Sscan(rest, &n)
	require.NoError(b, err)
	return n
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

// A turn is one hold of the lock by one of the clients.
type turn struct {
	who       int
	got, done time.Time
}

// handovers has all clients acquire one lock again and again, until it has been held n times by all of them together.
func handovers(b *testing.B, clients []*dlock.Client, n int) []turn {
	var mu sync.Mutex
	var turns []turn
	var all sync.WaitGroup
	for who, c := range clients {
		all.Go(func() {
			for more := true; more; {
				lease, err := c.Acquire(b.Context(), "k")
				if err != nil {
					b.Error(err)
					return
				}
				t := turn{who: who, got: time.Now()}
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

// gapsOf returns the time from each hold to the next.
func gapsOf(turns []turn) (gaps []time.Duration) {
	for i := 1; i < len(turns); i++ {
		gaps = append(gaps, turns[i].got.Sub(turns[i-1].done))
	}
	return gaps
}

func percentile[T cmp.Ordered](all []T, p int) (x T) {
	if len(all) == 0 {
		return x
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*p/100)]
}

// BenchmarkReplicas shows what it costs that grants and renewals count only when two replicas have
// them (replicas=2), beside the same without (replicas=0). The delay is the round-trip time that is
// added between the master and its replicas. It reports
//   - ns/op: of one cycle, acquire and release, with nobody else;
//   - gap-p50-µs: from Release being called to the next holder running, among eight clients.
func BenchmarkReplicas(b *testing.B) {
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
	all := clients(b, 8, name, addr, rediscore.WithReplicas(replicas, time.Second))
	handovers(b, all, len(all)) // connects everybody
	for b.Loop() {
		lease, err := all[0].TryAcquire(b.Context(), "k")
		require.NoError(b, err)
		require.NoError(b, lease.Release())
	}
	gaps := gapsOf(handovers(b, all, b.N))
	b.ReportMetric(float64(percentile(gaps, 50).Microseconds()), "gap-p50-µs")
}
