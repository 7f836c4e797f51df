package benchmarks

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/benchmarks/internal/bare"
	"github.com/dlock-go/dlock/internal/redistest"
)

var redisAddr = flag.String("redis", "", "host:port of the Redis server to use; one is started if it is empty, miniredis if none is installed")

// A backend is one of those that are compared.
type backend struct {
	locker dlock.Locker
	floor  bare.Lock
	ping   func(ctx context.Context) error // a round trip of the bare client
}

var adapters = []string{"goredis", "rueidis", "redigo"}

// dial makes a client of the server at addr.
func dial(b *testing.B, name, addr string, opts ...rediscore.Option) backend {
	switch name {
	case "goredis":
		client := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
		b.Cleanup(func() { client.Close() })
		return backend{goredis.New(client, opts...), bare.OnGoredis(client), func(ctx context.Context) error { return client.Ping(ctx).Err() }}
	case "rueidis":
		client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}, DisableCache: true})
		require.NoError(b, err)
		b.Cleanup(client.Close)
		ping := func(ctx context.Context) error { return client.Do(ctx, client.B().Ping().Build()).Error() }
		return backend{rueidis.New(client, opts...), bare.OnRueidis(client), ping}
	}
	pool := &redigolib.Pool{
		MaxIdle: 128,
		DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			return redigolib.DialContext(ctx, "tcp", addr,
				redigolib.DialReadTimeout(3*time.Second), redigolib.DialWriteTimeout(3*time.Second))
		},
	}
	b.Cleanup(func() { pool.Close() })
	return backend{redigo.New(pool, opts...), bare.OnRedigo(pool), func(ctx context.Context) error {
		conn, err := pool.GetContext(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Do("PING")
		return err
	}}
}

// cpuOf returns what tells the CPU time of the server, or nil for miniredis.
func cpuOf(b *testing.B, addr string) func() time.Duration {
	info := infoOf(b, addr)
	if _, ok := info("cpu")["used_cpu_sys"]; !ok {
		return nil
	}
	return func() time.Duration {
		cpu := info("cpu")
		return time.Duration((cpu["used_cpu_sys"] + cpu["used_cpu_user"]) * float64(time.Second))
	}
}

const commands = "total_commands_processed" // of INFO stats; miniredis does not have it

// infoOf returns what reads the numbers of a section of the server's INFO, the calls of each command, and the keys of each database.
func infoOf(b *testing.B, addr string) func(section string) map[string]float64 {
	conn, err := redigolib.Dial("tcp", addr)
	require.NoError(b, err)
	b.Cleanup(func() { conn.Close() })
	return func(section string) map[string]float64 {
		info, _ := redigolib.String(conn.Do("INFO", section)) // miniredis has only some
		numbers := make(map[string]float64)
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(value, "calls="), "keys="), ",")
			if x, err := strconv.ParseFloat(value, 64); err == nil {
				numbers[name] = x
			}
		}
		return numbers
	}
}

// usage begins to measure what ops cost. report says how many commands and how much CPU time an op took, and how many keys
// have come to stay. It says nothing of miniredis.
func usage(b *testing.B, addr string) (report func()) {
	info, cpu := infoOf(b, addr), cpuOf(b, addr)
	if cpu == nil {
		return func() {}
	}
	keys, ran, server, client := info("keyspace")["db0"], info("stats")[commands], cpu(), ownCPU()
	return func() {
		b.StopTimer()
		each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(b.N) }
		b.ReportMetric(each(ownCPU()-client), "client-µs")
		b.ReportMetric(each(cpu()-server), "server-µs")
		b.ReportMetric((info("stats")[commands]-ran)/float64(b.N), "commands")
		b.ReportMetric(info("keyspace")["db0"]-keys, "keys")
	}
}

// ownCPU is the CPU time that this process has used so far, in steps of 10 ms; 0 where it is not Linux.
func ownCPU() time.Duration {
	stat, _ := os.ReadFile("/proc/self/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// server returns the address of the server to use.
func server(b *testing.B) string {
	if *redisAddr != "" {
		return *redisAddr
	}
	if !redistest.Asked() {
		fmt.Fprintln(os.Stderr, "DLOCK_REDIS is not set: measuring on miniredis")
		return miniredis.RunT(b).Addr()
	}
	return redistest.Start(b).Addr()
}
