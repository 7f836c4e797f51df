package benchmarks

import (
	"context"
	"errors"
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
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redigo"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/redistest"
)

var redisAddr = flag.String("redis", "", "host:port of the Redis server to use; one is started if it is empty, miniredis if none is installed")

// A backend is one of those that are compared.
type backend struct {
	name   string
	locker dlock.Locker
	floor  floor
	ping   func(ctx context.Context) error // a round trip of the bare client; nil for memory
	cpu    func() time.Duration            // that the server has used so far; nil if it cannot tell
}

// A floor takes a lock and frees it again with the bare client, as cheaply as it
// can be done: SET NX PX and a script that compares and deletes. There is nothing
// cheaper for memory than the Locker itself.
type floor func(ctx context.Context, key, token string) error

const compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// freed tells whether compareAndDelete has deleted the key.
func freed(n int64, err error) error {
	if err == nil && n != 1 {
		err = errors.New("the lock was not taken and freed")
	}
	return err
}

func backends(b *testing.B) []backend {
	addr := server(b)
	store := memory.New()
	all := []backend{
		{name: "memory", locker: store, floor: func(ctx context.Context, key, token string) error {
			a, err := store.TryAcquire(ctx, key, token, dlock.DefaultTTL)
			if err == nil && a.Acquired {
				_, err = store.Release(ctx, key, token)
			}
			return err
		}},
	}
	for _, name := range adapters {
		all = append(all, dial(b, name, addr))
	}
	cpu := cpuOf(b, addr)
	for i := range all[1:] {
		all[1+i].cpu = cpu
	}
	return all
}

var adapters = []string{"goredis", "rueidis", "redigo"}

// dial makes a client of the server at addr.
func dial(b *testing.B, name, addr string, opts ...rediscore.Option) backend {
	switch name {
	case "goredis":
		return onGoredis(b, addr, opts)
	case "rueidis":
		return onRueidis(b, addr, opts)
	default:
		return onRedigo(b, addr, opts)
	}
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

// infoOf returns what reads the numbers of a section of the server's INFO, and the calls of each command.
func infoOf(b *testing.B, addr string) func(section string) map[string]float64 {
	conn, err := redigolib.Dial("tcp", addr)
	require.NoError(b, err)
	b.Cleanup(func() { conn.Close() })
	return func(section string) map[string]float64 {
		info, _ := redigolib.String(conn.Do("INFO", section)) // miniredis has only some
		numbers := make(map[string]float64)
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value, _, _ = strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			if x, err := strconv.ParseFloat(value, 64); err == nil {
				numbers[name] = x
			}
		}
		return numbers
	}
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

func onGoredis(b *testing.B, addr string, opts []rediscore.Option) backend {
	client := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
	b.Cleanup(func() { client.Close() })
	script := goredislib.NewScript(compareAndDelete)
	floor := func(ctx context.Context, key, token string) error {
		if err := client.SetArgs(ctx, key, token, goredislib.SetArgs{Mode: "NX", TTL: dlock.DefaultTTL}).Err(); err != nil {
			return err
		}
		return freed(script.Run(ctx, client, []string{key}, token).Int64())
	}
	ping := func(ctx context.Context) error { return client.Ping(ctx).Err() }
	return backend{name: "goredis", locker: goredis.New(client, opts...), floor: floor, ping: ping}
}

func onRueidis(b *testing.B, addr string, opts []rediscore.Option) backend {
	client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	require.NoError(b, err)
	b.Cleanup(client.Close)
	script := rueidislib.NewLuaScript(compareAndDelete)
	floor := func(ctx context.Context, key, token string) error {
		set := client.B().Set().Key(key).Value(token).Nx().PxMilliseconds(dlock.DefaultTTL.Milliseconds()).Build()
		if err := client.Do(ctx, set).Error(); err != nil {
			return err
		}
		return freed(script.Exec(ctx, client, []string{key}, []string{token}).AsInt64())
	}
	ping := func(ctx context.Context) error { return client.Do(ctx, client.B().Ping().Build()).Error() }
	return backend{name: "rueidis", locker: rueidis.New(client, opts...), floor: floor, ping: ping}
}

func onRedigo(b *testing.B, addr string, opts []rediscore.Option) backend {
	pool := &redigolib.Pool{
		MaxIdle: 128,
		DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			return redigolib.DialContext(ctx, "tcp", addr,
				redigolib.DialReadTimeout(3*time.Second), redigolib.DialWriteTimeout(3*time.Second))
		},
	}
	b.Cleanup(func() { pool.Close() })
	script := redigolib.NewScript(1, compareAndDelete)
	do := func(ctx context.Context, f func(redigolib.Conn) error) error {
		conn, err := pool.GetContext(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		return f(conn)
	}
	floor := func(ctx context.Context, key, token string) error {
		err := do(ctx, func(c redigolib.Conn) error {
			_, err := redigolib.String(c.Do("SET", key, token, "NX", "PX", dlock.DefaultTTL.Milliseconds()))
			return err
		})
		if err != nil {
			return err
		}
		return do(ctx, func(c redigolib.Conn) error { return freed(redigolib.Int64(script.Do(c, key, token))) })
	}
	ping := func(ctx context.Context) error {
		return do(ctx, func(c redigolib.Conn) error {
			_, err := c.Do("PING")
			return err
		})
	}
	return backend{name: "redigo", locker: redigo.New(pool, opts...), floor: floor, ping: ping}
}
