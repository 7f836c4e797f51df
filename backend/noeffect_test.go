package backend_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/internal/redistest"
)

// verdictOf returns what an error says of the effect of its call: "" if that is unknown.
func verdictOf(err error) string {
	if !dlock.NoEffect(err) {
		return ""
	}
	if e, ok := errors.AsType[*dlock.NoEffectError](err); ok && e.Temporary {
		return "no effect, for now"
	}
	return "no effect"
}

// calls has one call of each method that writes, for a key that another token holds. The token that waits is
// released, and not used for anything else: after its release it must not be.
func calls(l *rediscore.Locker, key string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"TryAcquire": func(ctx context.Context) error { _, err := l.TryAcquire(ctx, key, "tries", ttl); return err },
		"Acquire":    func(ctx context.Context) error { _, err := l.Acquire(ctx, key, "waits", ttl); return err },
		"Renew":      func(ctx context.Context) error { _, err := l.Renew(ctx, key, "renews", ttl); return err },
		"Release":    func(ctx context.Context) error { _, err := l.Release(ctx, key, "waits"); return err },
		"RenewBatch": func(ctx context.Context) error {
			results, err := l.RenewBatch(ctx, []dlock.Renewal{{Key: key, Token: "renews", TTL: ttl}})
			if err == nil {
				err = results[0].Err
			}
			return err
		},
	}
}

// refusals are the reasons that servers have to refuse calls.
var refusals = []struct {
	text    string
	verdict string
	args    []string
	user    string
	refuse  func(t *testing.T, s *redistest.Server) // after the client has connected
	spares  string                                  // calls that are not refused
}{
	{text: "NOPERM", verdict: "no effect", user: "nobody", refuse: func(t *testing.T, s *redistest.Server) {
		do(t, s, "ACL", "SETUSER", "nobody", "-evalsha", "-eval")
	}},
	{text: "NOAUTH|unauthenticated", verdict: "no effect", args: []string{"--requirepass", password}},
	{text: "WRONGPASS", verdict: "no effect", user: "nobody", refuse: func(t *testing.T, s *redistest.Server) {
		do(t, s, "ACL", "SETUSER", "nobody", "resetpass", ">other")
		_, _ = s.Do("CLIENT", "KILL", "TYPE", "normal")
	}},
	{text: "OOM", verdict: "no effect", spares: "Renew RenewBatch Release", refuse: func(t *testing.T, s *redistest.Server) {
		do(t, s, "CONFIG", "SET", "maxmemory", "1")
	}},
	{text: "NOREPLICAS", verdict: "no effect", refuse: func(t *testing.T, s *redistest.Server) {
		sinceRedis7(t, s)
		do(t, s, "CONFIG", "SET", "min-replicas-to-write", "1")
	}},
	{text: "unknown command", verdict: "no effect", args: []string{"--rename-command EVALSHA ''", "--rename-command EVAL ''"}},
	{text: "CLUSTERDOWN", verdict: "no effect, for now", args: []string{"--cluster-enabled", "yes"}},
	{text: "LOADING", verdict: "no effect, for now", refuse: load},
	{text: "BUSY", verdict: "no effect", args: []string{"--lua-time-limit", "1"}, refuse: func(t *testing.T, s *redistest.Server) {
		go s.Do("EVAL", "while true do end", "0")
	}},
	{text: "READONLY", verdict: "no effect, for now", refuse: func(t *testing.T, s *redistest.Server) {
		do(t, s, "REPLICAOF", "127.0.0.1", "1")
	}},
	{text: "MASTERDOWN", verdict: "no effect, for now", args: []string{"--replica-serve-stale-data", "no"},
		refuse: func(t *testing.T, s *redistest.Server) {
			do(t, s, "REPLICAOF", "127.0.0.1", "1")
		}},
	{text: "WRONGTYPE", verdict: "no effect", spares: "Acquire", refuse: func(t *testing.T, s *redistest.Server) { // inside a script
		do(t, s, "LPUSH", "k", "x")
	}},
}

// TestRefusedCalls makes servers refuse calls, for every reason that they have.
func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range refusals {
				t.Run(c.text, func(t *testing.T) {
					server := redistest.Start(t, c.args...)
					if c.user != "" {
						do(t, server, "ACL", "SETUSER", c.user, "on", ">"+password, "~*", "+@all")
						if _, err := server.Do("ACL", "SETUSER", c.user, "allchannels"); err != nil {
							t.Log(err)
						}
					}
					l, _ := a.connect(t, server.Addr(), c.user)
					_, _ = l.Inspect(t.Context(), "k") // connects
					if c.refuse != nil {
						c.refuse(t, server)
					}
					for method, call := range calls(l, "k") {
						if strings.Contains(c.spares, method) {
							continue
						}
						err := refusedWith(t, c.text, call)
						require.Equal(t, c.verdict, verdictOf(err), "%s: %v", method, err)
						require.Equal(t, c.verdict == "no effect", dlock.Refused(err), "%s: a server has answered: %v", method, err)
					}
				})
			}
		})
	}
}

// A server without memory grants nothing, not in part either. Leases on it can be renewed and released.
func TestFullServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := adapters[0].dial(t, server.Addr())
	acquire(t, l, "old", "t")
	do(t, server, "SCRIPT", "FLUSH")
	before := server.Keys(t)
	do(t, server, "CONFIG", "SET", "maxmemory", "1")
	_, err := l.TryAcquire(t.Context(), "k", "t", ttl)
	require.ErrorContains(t, err, "OOM")
	require.ElementsMatch(t, before, server.Keys(t), "a lock is half taken")
	require.True(t, renew(t, l, "old", "t"))
	require.True(t, release(t, l, "old", "t"))
}

// refusedWith repeats a call until its error matches text, and returns that error. The first
// calls may fail because the connection was killed.
func refusedWith(t *testing.T, text string, call func(context.Context) error) error {
	t.Helper()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(pause) {
		if err = call(t.Context()); regexp.MustCompile(text).MatchString(fmt.Sprint(err)) {
			return err
		}
	}
	require.ErrorContains(t, err, text)
	return nil
}

// load makes a server load its data for several seconds.
func load(t *testing.T, s *redistest.Server) {
	sinceRedis7(t, s)
	do(t, s, "DEBUG", "POPULATE", "3000", "populated", "1024")
	do(t, s, "CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
	do(t, s, "CONFIG", "SET", "key-load-delay", "3000")
	go s.Do("DEBUG", "RELOAD")
	require.Eventually(t, func() bool {
		_, err := s.Do("GET", "k")
		return err != nil && strings.Contains(err.Error(), "LOADING")
	}, 20*time.Second, pause)
}

// TestNoConnection makes calls without a server, or without a free connection in the pool.
// Nothing is sent.
func TestNoConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
	server := redistest.Start(t)
	down := redistest.Start(t)
	down.Stop()
	hang := unanswered(t)
	// Close returns when what is owed was released, for which the client must still be open.
	givesBack := func(t *testing.T, l *rediscore.Locker) {
		t.Cleanup(func() {
			l.Close()
			assert.NotContains(t, server.Keys(t), "k", "of a wait whose call was still on its way")
		})
	}
	for name, c := range map[string]struct {
		dial func(t *testing.T) *rediscore.Locker
		text string
	}{
		"goredis/refused": {func(t *testing.T) *rediscore.Locker {
			return newGoRedis(t, goredislib.Options{Addr: down.Addr()})
		}, "connection refused"},
		"goredis/refused in time": {func(t *testing.T) *rediscore.Locker {
			return newGoRedis(t, goredislib.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}})
		}, "context deadline exceeded"},
		"goredis/cluster": {func(t *testing.T) *rediscore.Locker {
			client := goredislib.NewClusterClient(&goredislib.ClusterOptions{Addrs: []string{down.Addr()}})
			t.Cleanup(func() { client.Close() })
			return goredis.New(client)
		}, "connection refused"},
		"goredis/pool": {func(t *testing.T) *rediscore.Locker {
			client := goredislib.NewClient(&goredislib.Options{Addr: server.Addr(), PoolSize: 1, PoolTimeout: 100 * time.Millisecond})
			t.Cleanup(func() { client.Close() })
			taken := client.Conn()
			require.NoError(t, taken.Ping(t.Context()).Err())
			t.Cleanup(func() { taken.Close() })
			return goredis.New(client)
		}, "pool timeout"},
		"goredis/pool in time": {func(t *testing.T) *rediscore.Locker {
			client := goredislib.NewClient(&goredislib.Options{Addr: server.Addr(), PoolSize: 1, PoolTimeout: time.Minute})
			t.Cleanup(func() { client.Close() })
			l := goredis.New(client)
			givesBack(t, l)
			taken := client.Conn()
			require.NoError(t, taken.Ping(t.Context()).Err())
			t.Cleanup(func() { taken.Close() })
			return l
		}, "context deadline exceeded"},
		"goredis/handshake": {func(t *testing.T) *rediscore.Locker {
			return newGoRedis(t, goredislib.Options{Addr: hang, ReadTimeout: 100 * time.Millisecond})
		}, ""},
		"rueidis/refused": {func(t *testing.T) *rediscore.Locker {
			client, _ := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{down.Addr()}, ForceSingleClient: true})
			t.Cleanup(client.Close)
			return rueidis.New(client)
		}, "connection refused"},
		"redigo/refused": {func(t *testing.T) *rediscore.Locker {
			return newRedigo(t, &redigolib.Pool{MaxIdle: 1}, "tcp", down.Addr())
		}, "connection refused"},
		"redigo/pool": {func(t *testing.T) *rediscore.Locker {
			pool := &redigolib.Pool{MaxActive: 1}
			l := newRedigo(t, pool, "tcp", server.Addr())
			taken := pool.Get()
			t.Cleanup(func() { taken.Close() })
			return l
		}, "exhausted"},
		"redigo/pool in time": {func(t *testing.T) *rediscore.Locker {
			pool := &redigolib.Pool{MaxActive: 1, Wait: true}
			l := newRedigo(t, pool, "tcp", server.Addr())
			givesBack(t, l)
			taken := pool.Get()
			t.Cleanup(func() { taken.Close() })
			return l
		}, "context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := c.dial(t)
			for method, call := range calls(l, "k") {
				if method == "Acquire" && strings.HasSuffix(t.Name(), "in_time") {
					require.ErrorIs(t, failsWith(t, "", call), context.DeadlineExceeded)
					continue // its call was still on its way
				}
				err := failsWith(t, c.text, call)
				if method == "RenewBatch" && strings.HasPrefix(name, "goredis/pool") {
					continue // go-redis has another pool for it
				}
				require.ErrorContains(t, err, c.text, method)
				require.Equal(t, "no effect", verdictOf(err), "%s: %v", method, err)
				require.False(t, dlock.Refused(err), "%s: no server has answered: %v", method, err)
			}
			// Once more, in case it came before the wait.
			require.Error(t, failsWith(t, "", calls(l, "k")["Release"]))
		})
	}
}

// failsWith makes a call that fails within 300 ms, and returns its error. On a busy machine they
// may be over before the client has tried to connect: if the error lacks text, the call is made
// again with more time.
func failsWith(t *testing.T, text string, call func(context.Context) error) (err error) {
	for limit := 300 * time.Millisecond; limit < 10*time.Second; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err = call(ctx)
		cancel()
		if strings.Contains(fmt.Sprint(err), text) {
			break
		}
	}
	return err
}

// unanswered returns the address of a listener that never answers.
func unanswered(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// TestAnswerThatNeverComes makes calls that are sent and not answered. Their outcome is
// unknown.
func TestAnswerThatNeverComes(t *testing.T) {
	t.Parallel()
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			for method := range calls(nil, "k") {
				l := a.dial(t, server.Addr())
				for _, connects := range []string{"Renew", "RenewBatch"} { // go-redis has two pools
					require.NoError(t, calls(l, "k")[connects](t.Context()))
				}
				server.Suspend()
				err := endedUnanswered(t, calls(l, "k")[method])
				server.Resume()
				require.Error(t, err, method)
				require.Empty(t, verdictOf(err), "%s: %v", method, err)
			}
		})
	}
}

// endedUnanswered makes a call that ends with its ctx. If that was over before anything was
// sent, as on a busy machine, the call is made again with more time.
func endedUnanswered(t *testing.T, call func(context.Context) error) (err error) {
	for _, limit := range []time.Duration{200 * time.Millisecond, 2 * time.Second, 10 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err = call(ctx)
		cancel()
		if verdictOf(err) == "" {
			break
		}
	}
	return err
}
