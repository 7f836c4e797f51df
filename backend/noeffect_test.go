package backend_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/backend/rueidis"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/election"
	"github.com/dlock-go/dlock/internal/faultproxy"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/once"
	"github.com/dlock-go/dlock/semaphore"
)

// verdictOf returns what an error says of the effect of its call: "" if that is unknown.
func verdictOf(err error) string {
	if !dlock.NoEffect(err) {
		return ""
	}
	switch e, _ := errors.AsType[*dlock.NoEffectError](err); {
	case e != nil && e.Temporary:
		return "no effect, for now"
	case e != nil && e.State:
		return "no effect, in this state"
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

// refusals are the reasons that servers have to refuse calls. If a state of the server is one, heal ends it.
var refusals = []struct {
	text    string // of the error
	verdict string
	args    []string
	user    string
	refuse  func(t *testing.T, s *redistest.Server) // after the client has connected
	spares  string                                  // calls that are not refused
	heal    func(t *testing.T, s *redistest.Server)
}{
	{text: "NOPERM", verdict: "no effect", user: "nobody", refuse: command("ACL", "SETUSER", "nobody", "-evalsha", "-eval")},
	{text: "NOAUTH|unauthenticated", verdict: "no effect", args: []string{"--requirepass", clients.Password}},
	{text: "WRONGPASS", verdict: "no effect", user: "nobody", refuse: func(t *testing.T, s *redistest.Server) {
		do(t, s, "ACL", "SETUSER", "nobody", "resetpass", ">other")
		_, _ = s.Do("CLIENT", "KILL", "TYPE", "normal")
	}},
	{text: "OOM", verdict: "no effect, in this state", spares: "Renew RenewBatch Release", refuse: fill,
		user: "user", heal: command("CONFIG", "SET", "maxmemory", "0")},
	{text: "NOREPLICAS", verdict: "no effect, in this state", refuse: func(t *testing.T, s *redistest.Server) { sinceRedis7(t, s); isolate(t, s) },
		user: "user", heal: command("CONFIG", "SET", "min-replicas-to-write", "0")},
	{text: "MISCONF", verdict: "no effect, in this state", refuse: breakDisk, user: "user", heal: func(t *testing.T, s *redistest.Server) {
		require.NoError(t, os.Remove(dump(t, s)))
		do(t, s, "BGSAVE")
	}},
	{text: "unknown command", verdict: "no effect", args: []string{"--rename-command EVALSHA ''", "--rename-command EVAL ''"}},
	{text: "CLUSTERDOWN", verdict: "no effect, for now", args: []string{"--cluster-enabled", "yes"}},
	{text: "LOADING", verdict: "no effect, for now", refuse: load},
	{text: "BUSY", verdict: "no effect, in this state", refuse: occupy, user: "user", heal: command("SCRIPT", "KILL")},
	{text: "READONLY.*connected to a replica", verdict: "no effect, for now", refuse: command("REPLICAOF", "127.0.0.1", "1")},
	{text: "MASTERDOWN", verdict: "no effect, for now", args: []string{"--replica-serve-stale-data", "no"}, refuse: command("REPLICAOF", "127.0.0.1", "1")},
	{text: "WRONGTYPE", verdict: "no effect", spares: "Acquire", refuse: command("LPUSH", "k", "x")}, // inside a script
}

func command(args ...string) func(*testing.T, *redistest.Server) {
	return func(t *testing.T, s *redistest.Server) { t.Helper(); do(t, s, args...) }
}

// TestRefusedCalls makes servers refuse calls, for every reason that they have. Whoever has patience waits for the end of a
// state of the server, and whoever has none fails at once. If the server then forbids the call, the wait ends.
func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	each(t, clients.All, func(t *testing.T, a clients.Library) {
		for _, c := range refusals {
			t.Run(c.text, func(t *testing.T) {
				server := redistest.Start(t, c.args...)
				old := isOld(server)
				if c.user != "" {
					do(t, server, "ACL", "SETUSER", c.user, "on", ">"+clients.Password, "~*", "+@all")
					if _, err := server.Do("ACL", "SETUSER", c.user, "allchannels"); err != nil {
						t.Log(err)
					}
				}
				l := dialAs(t, a, server.Addr(), c.user)
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
					require.Equal(t, c.verdict != "no effect, for now", dlock.Refused(err), "%s: a server has answered: %v", method, err)
				}
				if c.heal == nil || old {
					return
				}
				patient := startPatient(t, l, "a")
				patient.requireWait(t)
				c.heal(t, server)
				patient.await(t, "")
				if c.text == "OOM" {
					c.refuse(t, server)
					patient = startPatient(t, l, "b")
					time.Sleep(300 * time.Millisecond)
					do(t, server, "ACL", "SETUSER", c.user, "-evalsha", "-eval")
					patient.await(t, "the store refused: NOPERM")
					do(t, server, "ACL", "SETUSER", c.user, "+evalsha", "+eval")
					c.heal(t, server)
				}
			})
		}
	})
}

// A server that has no connection left is one in such a state, too.
func TestMaxClients(t *testing.T) {
	t.Parallel()
	each(t, clients.All, func(t *testing.T, a clients.Library) {
		server := redistest.Start(t)
		sinceRedis7(t, server)
		l := dial(t, a, server.Addr())
		_, err := l.Inspect(t.Context(), "k") // connects
		require.NoError(t, err)
		last, err := redigolib.Dial("tcp", server.Addr())
		require.NoError(t, err)
		t.Cleanup(func() { last.Close() })
		call := func(name string, args ...any) { _, err := last.Do(name, args...); require.NoError(t, err) }
		call("CONFIG", "SET", "maxclients", "1")
		call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		call("CLIENT", "KILL", "TYPE", "pubsub")
		patient := startPatient(t, l, "a")
		patient.requireWait(t)
		call("CONFIG", "SET", "maxclients", "1000")
		patient.await(t, "")
	})
}

// waiters are the callers that wait for the end of such a state, by the names of their keys.
var waiters = map[string]func(ctx context.Context, c *dlock.Client, key string) error{
	"Acquire": func(ctx context.Context, c *dlock.Client, key string) error {
		_, err := c.Acquire(ctx, key)
		return err
	},
	"AcquireAll": func(ctx context.Context, c *dlock.Client, key string) error {
		_, err := c.AcquireAll(ctx, key, key+"2")
		return err
	},
	"semaphore": func(ctx context.Context, c *dlock.Client, key string) error {
		_, _, err := semaphore.New(c, key, 2).Acquire(ctx)
		return err
	},
	"election": func(ctx context.Context, c *dlock.Client, key string) error {
		return election.New(c.With(dlock.WithOutage(0)), key).Run(ctx, func(context.Context, *dlock.Lease) error { return nil })
	},
	"once": func(ctx context.Context, c *dlock.Client, key string) error {
		_, err := once.New(c.With(dlock.WithOutage(0)), key, time.Hour).Do(ctx, time.Now(), func(context.Context, *dlock.Lease) error { return nil })
		return err
	},
}

// patientWaiters are those who are patient, and have begun to wait.
type patientWaiters struct {
	*dlock.Client
	begun time.Time
	ended map[string]chan error
}

func startPatient(t *testing.T, l *rediscore.Locker, key string) *patientWaiters {
	p := &patientWaiters{dlock.New(l, dlock.WithOutage(time.Minute)), time.Now(), make(map[string]chan error)}
	for name, f := range waiters {
		end := make(chan error, 1)
		p.ended[name] = end
		go func() { end <- f(t.Context(), p.Client, key+name) }()
	}
	return p
}

// requireWait fails if any has ended before a second has passed, or if those without patience do not fail at once.
func (p *patientWaiters) requireWait(t *testing.T) {
	t.Helper()
	begun := time.Now()
	_, err := p.TryAcquire(t.Context(), "free")
	require.Error(t, err)
	_, err = p.With(dlock.WithOutage(0)).Acquire(t.Context(), "free")
	require.Error(t, err)
	require.Less(t, time.Since(begun), time.Second)
	time.Sleep(time.Until(p.begun.Add(time.Second)))
	for name, end := range p.ended {
		require.Empty(t, end, name)
	}
}

// await waits until all have ended with this text of an error, or none.
func (p *patientWaiters) await(t *testing.T, text string) {
	t.Helper()
	for name, end := range p.ended {
		if err := <-end; text == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, text, name)
		}
	}
}

// refuse makes a server answer these commands with an error, also in scripts, if so says is nil or true of their arguments.
func refuse(s *miniredis.Miniredis, text string, so func(args []string) bool, commands ...string) {
	s.Server().SetPreHook(func(c *miniserver.Peer, cmd string, args ...string) bool {
		if !slices.Contains(commands, cmd) || so != nil && !so(args) {
			return false
		}
		c.WriteError(text)
		return true
	})
}

// dialMini connects to a miniredis, which takes no calls over a connection that subscribes.
func dialMini(t *testing.T, lib clients.Library, server *miniredis.Miniredis, opts ...rediscore.Option) *rediscore.Locker {
	if lib.Name != "rueidis" {
		return dial(t, lib, server.Addr(), opts...)
	}
	client, err := rueidislib.NewClient(rueidislib.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return rueidis.New(client, opts...)
}

// A proxy answers for its server, in words of its own: the store has failed. Whoever has patience waits.
func TestUnknownReplies(t *testing.T) {
	t.Parallel()
	for _, a := range clients.All {
		t.Run(a.Name, func(t *testing.T) {
			server := miniredis.RunT(t)
			l := dialMini(t, a, server)
			c := dlock.New(l)
			lease, err := c.TryAcquire(t.Context(), "held")
			require.NoError(t, err)
			refuse(server, "ERR upstream failure", nil, "EVALSHA", "EVAL")
			for method, call := range calls(l, "k") {
				err := call(t.Context())
				require.ErrorContains(t, err, "upstream failure", method)
				require.Empty(t, verdictOf(err), method)
				require.False(t, dlock.Refused(err), method)
			}
			patient := startPatient(t, l, "a")
			for name, call := range map[string]func() error{
				"TryAcquire": func() error { _, err := c.TryAcquire(t.Context(), "k"); return err },
				"Acquire":    func() error { _, err := c.With(dlock.WithOutage(0)).Acquire(t.Context(), "k"); return err },
				"Inspect":    func() error { _, err := c.Inspect(t.Context(), "k"); return err },
				"Renew":      func() error { return lease.Renew(t.Context()) },
			} {
				err := call()
				require.Regexp(t, "the store failed: (ERR )?upstream failure$", err, name)
				require.NotErrorIs(t, err, dlock.ErrUnavailable, name)
			}
			require.Regexp(t, "the store failed: ", lease.Release())
			_, err = c.With(dlock.WithOutage(300*time.Millisecond)).Acquire(t.Context(), "k")
			require.ErrorIs(t, err, dlock.ErrUnavailable)
			require.Regexp(t, "no success for [0-9.]+ms: the store failed: ", err)
			server.SetError("")
			patient.await(t, "")
			require.NoError(t, patient.Close())
			require.NoError(t, c.Close())
		})
	}
}

// A reply to the beginning of a connection says that the call was not sent.
func TestUnknownReplyOfANewConnection(t *testing.T) {
	t.Parallel()
	for _, a := range clients.All {
		for refused, commands := range map[string][]string{"SELECT": {"SELECT"}, "AUTH": {"AUTH", "HELLO"}} {
			t.Run(a.Name+refused, func(t *testing.T) {
				server := miniredis.RunT(t)
				server.RequireUserAuth("u", clients.Password)
				l, _ := a.Dial(t, clients.Settings{Addrs: []string{server.Addr()}, User: "u", DB: 1}, rediscore.WithPrefix(t.Name()))
				t.Cleanup(func() { l.Close() })
				server.Server().SetPreHook(func(c *miniserver.Peer, cmd string, _ ...string) bool {
					if slices.Contains(commands, cmd) {
						c.WriteError("ERR upstream failure")
					} else if strings.HasPrefix(cmd, "EVAL") { // over an old connection
						c.Close()
					}
					return slices.Contains(commands, cmd) || strings.HasPrefix(cmd, "EVAL")
				})
				for method, call := range calls(l, "k") {
					err := refusedWith(t, "upstream failure", call)
					require.Equal(t, "no effect", verdictOf(err), "%s: %v", method, err)
					require.False(t, dlock.Refused(err), "only a refusal ends patience: %s", method)
				}
				_, err := dlock.New(l).TryAcquire(t.Context(), "k")
				require.Regexp(t, "the store failed: .*upstream failure$", err)
			})
		}
	}
}

// What a server, or a proxy, lacks is named, and so is the option that does without it.
func TestUnsupportedCommands(t *testing.T) {
	t.Parallel()
	manyKeys := func(args []string) bool { return args[1] > "1" }
	for _, a := range clients.All {
		for _, text := range []string{
			"ERR unknown command 'publish', with args beginning with: ",
			"ERR This Redis command is not allowed from script",
			"ERR command 'PUBLISH' not support in script",
			"NOPERM User u has no permissions to run the 'publish' command",
		} {
			t.Run(a.Name+"/"+text, func(t *testing.T) {
				server := miniredis.RunT(t)
				l := dialMini(t, a, server)
				c := dlock.New(l)
				refuse(server, text, nil, "PUBLISH", "WAIT")
				lease, err := c.Acquire(t.Context(), "k")
				require.NoError(t, err)
				_, err = c.Acquire(t.Context(), "k")
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.ErrorContains(t, err, "WithQueue(false)")
				time.AfterFunc(100*time.Millisecond, func() { lease.Release() })
				_, err = dlock.New(dialMini(t, a, server, rediscore.WithQueue(false))).Acquire(t.Context(), "k")
				require.NoError(t, err)
				require.NoError(t, c.Close())

				c = dlock.New(dialMini(t, a, server, rediscore.WithReplicas(1, time.Second)))
				_, err = c.Acquire(t.Context(), "replicated")
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.ErrorContains(t, err, "WithReplicas")
				require.False(t, dlock.NoEffect(err), "the master has granted it")
				require.NoError(t, c.Close())
				require.False(t, server.Exists("replicated"), "it was released")
			})
		}
		for _, text := range []string{
			"ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array",
			"ERR command 'PUBLISH' not support in script",
		} {
			t.Run(a.Name+"/all: "+text, func(t *testing.T) {
				server := miniredis.RunT(t)
				l := dialMini(t, a, server)
				refuse(server, text, manyKeys, "EVAL", "EVALSHA")
				_, err := l.TryAcquire(t.Context(), "k", "t", ttl)
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.ErrorContains(t, err, "WithQueue(false)")
				require.Equal(t, "no effect", verdictOf(err))
				refuse(server, text, nil, "EVAL", "EVALSHA")
				_, err = l.TryAcquire(t.Context(), "k", "t", ttl)
				require.NotErrorIs(t, err, dlock.ErrInvalid, "it is not the queue")
			})
		}
	}
}

// A server without memory grants nothing, not in part either. Leases on it can be renewed and released.
func TestFullServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := dial(t, clients.GoRedis, server.Addr())
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

func fill(t *testing.T, s *redistest.Server) { do(t, s, "CONFIG", "SET", "maxmemory", "1") }
func isolate(t *testing.T, s *redistest.Server) {
	do(t, s, "CONFIG", "SET", "min-replicas-to-write", "1")
}

// occupy makes a server run a script that does not end.
func occupy(t *testing.T, s *redistest.Server) {
	do(t, s, "CONFIG", "SET", "lua-time-limit", "1")
	go s.Do("EVAL", "while true do end", "0")
	awaitAnswer(t, s, "BUSY", "GET", "k")
}

// breakDisk makes a server unable to save its data.
func breakDisk(t *testing.T, s *redistest.Server) {
	require.NoError(t, os.Mkdir(dump(t, s), 0o755))
	do(t, s, "CONFIG", "SET", "save", "3600 1")
	do(t, s, "BGSAVE")
	awaitAnswer(t, s, "MISCONF", "SET", "written", "")
}

// dump is the file to which a server saves its data.
func dump(t *testing.T, s *redistest.Server) string {
	dir, err := s.Do("CONFIG", "GET", "dir")
	require.NoError(t, err)
	return filepath.Join(dir.([]any)[1].(string), "dump.rdb")
}

func awaitAnswer(t *testing.T, s *redistest.Server, answer string, args ...string) {
	t.Helper()
	soon(t, func() bool {
		_, err := s.Do(args...)
		return err != nil && strings.Contains(err.Error(), answer)
	}, 20*time.Second, pause, answer)
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
	awaitAnswer(t, s, "LOADING", "GET", "k")
}

// TestNoConnection makes calls without a server, or without a free connection in the pool.
// Nothing is sent.
func TestNoConnection(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	down := redistest.Start(t)
	down.Kill()
	hang := unanswered(t)
	sentinel := redistest.StartSentinel(t, server, masterName, 1)
	nameless := redistest.Start(t, "--cluster-enabled", "yes")
	// Close returns when what is owed was released, for which the client must still be open.
	givesBack := func(t *testing.T, l *rediscore.Locker) {
		t.Cleanup(func() {
			l.Close()
			assert.NotContains(t, server.Keys(t), t.Name()+"k", "of a wait whose call was still on its way")
		})
	}
	goRedisPool := func(timeout time.Duration, wrap func(*goredislib.Client, string) *rediscore.Locker) func(*testing.T) *rediscore.Locker {
		return func(t *testing.T) *rediscore.Locker {
			client := goredislib.NewClient(&goredislib.Options{Addr: server.Addr(), PoolSize: 1, PoolTimeout: timeout})
			t.Cleanup(func() { client.Close() })
			l := wrap(client, t.Name())
			givesBack(t, l)
			taken := client.Conn()
			require.NoError(t, taken.Ping(t.Context()).Err())
			t.Cleanup(func() { taken.Close() })
			return l
		}
	}
	plain := func(c *goredislib.Client, prefix string) *rediscore.Locker {
		return goredis.New(c, goredis.WithPrefix(prefix))
	}
	decorated := func(c *goredislib.Client, _ string) *rediscore.Locker {
		return goredis.New(ofAny{c}, goredis.WithInside(ofSingle{c}))
	}
	redigoPool := func(pool *redigolib.Pool) func(*testing.T) *rediscore.Locker {
		return func(t *testing.T) *rediscore.Locker {
			l := newRedigo(t, pool, server.Addr())
			givesBack(t, l)
			taken := pool.Get()
			t.Cleanup(func() { taken.Close() })
			return l
		}
	}
	refused := func(lib clients.Library, cluster bool) func(*testing.T) *rediscore.Locker {
		return func(t *testing.T) *rediscore.Locker {
			l, _ := lib.Dial(t, clients.Settings{Addrs: []string{down.Addr()}, Cluster: cluster})
			return l
		}
	}
	for name, c := range map[string]struct {
		dial func(t *testing.T) *rediscore.Locker
		text string
	}{
		"goredis/refused": {refused(clients.GoRedis, false), "connection refused"},
		"goredis/refused in time": {func(t *testing.T) *rediscore.Locker {
			return newGoRedis(t, goredislib.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				select {
				case <-ctx.Done():
				case <-t.Context().Done(): // go-redis may dial for others, too
				}
				return nil, context.DeadlineExceeded
			}})
		}, "context deadline exceeded"},
		"goredis/cluster": {refused(clients.GoRedis, true), "connection refused"},
		"goredis/sentinel": {func(t *testing.T) *rediscore.Locker {
			client := goredislib.NewFailoverClient(&goredislib.FailoverOptions{
				MasterName: "my-master", SentinelAddrs: []string{sentinel.Addr()},
			})
			t.Cleanup(func() { client.Close() })
			return goredis.New(ofSingle{client})
		}, "do not know the name that the client asks for"},
		"goredis/unknown-endpoint": {namelessCluster(nameless), "the cluster names no address of a node"},
		"goredis/hostname":         {namelessCluster(nameless), "the cluster names no address of a node"},
		"goredis/decorated pool":   {goRedisPool(100*time.Millisecond, decorated), "pool timeout"},
		"goredis/pool":             {goRedisPool(100*time.Millisecond, plain), "pool timeout"},
		"goredis/pool in time":     {goRedisPool(time.Minute, plain), "context deadline exceeded"},
		"goredis/handshake": {func(t *testing.T) *rediscore.Locker {
			return newGoRedis(t, goredislib.Options{Addr: hang, ReadTimeout: 100 * time.Millisecond})
		}, ""},
		"rueidis/refused":     {refused(clients.Rueidis, false), "connection refused"},
		"redigo/refused":      {refused(clients.Redigo, false), "connection refused"},
		"redigo/pool":         {redigoPool(&redigolib.Pool{MaxActive: 1}), "exhausted"},
		"redigo/pool in time": {redigoPool(&redigolib.Pool{MaxActive: 1, Wait: true}), "context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := c.dial(t)
			all := calls(l, "k")
			for _, method := range slices.Backward(slices.Sorted(maps.Keys(all))) { // Acquire is the last: others may meet its call
				call := all[method]
				if method == "Acquire" && strings.HasSuffix(t.Name(), "in_time") {
					require.ErrorIs(t, failsWith(t, "", call), context.DeadlineExceeded)
					continue // its call was still on its way
				}
				err := failsWith(t, c.text, call)
				if method == "RenewBatch" && strings.HasPrefix(name, "goredis/") && strings.Contains(name, "pool") {
					continue // go-redis has another pool for it
				}
				require.ErrorContains(t, err, c.text, method)
				require.Equal(t, "no effect", verdictOf(err), "%s: %v", method, err)
				require.False(t, dlock.Refused(err), "%s: no server has answered: %v", method, err)
			}
			require.Error(t, failsWith(t, "", all["Release"])) // of the wait
		})
	}
}

// namelessCluster dials a cluster whose node announces no address, in the way that the test is named after.
func namelessCluster(node *redistest.Server) func(t *testing.T) *rediscore.Locker {
	return func(t *testing.T) *rediscore.Locker {
		sinceRedis7(t, node)
		_, _ = node.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383") // unless it has them
		_, kind, _ := strings.Cut(t.Name(), "goredis/")
		do(t, node, "CONFIG", "SET", "cluster-preferred-endpoint-type", kind)
		client := goredislib.NewClusterClient(&goredislib.ClusterOptions{Addrs: []string{node.Addr()}})
		t.Cleanup(func() { client.Close() })
		require.Error(t, client.Ping(t.Context()).Err()) // it reads the table of slots
		return goredis.New(client)
	}
}

// endsAs makes a call whose ctx ends soon, and returns its error. On a busy machine ctx may end before the client has tried to
// connect, or has sent anything: if the error is not as it should be, the call is made again with more time.
func endsAs(t *testing.T, call func(context.Context) error, is func(error) bool) (err error) {
	for limit := 200 * time.Millisecond; limit < 15*time.Second; limit *= 3 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err = call(ctx)
		cancel()
		if is(err) {
			break
		}
	}
	return err
}

// failsWith is endsAs for an error with a text.
func failsWith(t *testing.T, text string, call func(context.Context) error) error {
	return endsAs(t, call, func(err error) bool { return strings.Contains(fmt.Sprint(err), text) })
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
	each(t, clients.All, func(t *testing.T, a clients.Library) {
		server := redistest.Start(t)
		for method := range calls(nil, "k") {
			l := dial(t, a, server.Addr())
			for _, connects := range []string{"Renew", "RenewBatch"} { // go-redis has two pools
				require.NoError(t, calls(l, "k")[connects](t.Context()))
			}
			server.Suspend()
			err := endsAs(t, calls(l, "k")[method], func(err error) bool { return verdictOf(err) == "" })
			server.Resume()
			require.Error(t, err, method)
			require.Empty(t, verdictOf(err), "%s: %v", method, err)
		}
	})
}

// limits are what rented services do not allow: some refuse scripts by their text, others a command that a script calls. The
// words are those of Tair and of Redis, or are made up.
var limits = map[string]struct {
	server []string // options
	reject func(r faultproxy.Request) string
}{
	"PublishWhenCalled": {withoutPublish, func(faultproxy.Request) string { return "" }},
	"PublishByText": {nil, func(r faultproxy.Request) string {
		switch {
		case strings.Contains(sourceOf(r), "PUBLISH"):
			return "ERR PUBLISH is not supported in a script"
		case faultproxy.Command("WAIT")(r):
			return "ERR WAIT is not supported by the proxy"
		}
		return ""
	}},
	"Everything": {withoutPublish, func(r faultproxy.Request) string { return adaptertest.RefuseText(sourceOf(r)) }},
}

var withoutPublish = []string{"--rename-command", "PUBLISH", "", "--rename-command", "WAIT", ""}

// sourceOf is the source of a script, or "".
func sourceOf(r faultproxy.Request) string {
	switch {
	case faultproxy.Command("EVAL")(r):
		return r.Args[1]
	case faultproxy.Command("SCRIPT", "LOAD")(r):
		return r.Args[2]
	}
	return ""
}

// A Locker without a queue passes the suite where scripts are limited, with each library if DLOCK_LONG has adapters. With a queue,
// one error says so.
func TestLimits(t *testing.T) {
	for name, limit := range limits {
		for _, a := range clients.All {
			t.Run(name+"/"+a.Name, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t, limit.server...)
				proxy := adaptertest.Proxy(t, server.Addr())
				proxy.Reject(limit.reject)
				dial := func(t *testing.T, opts ...rediscore.Option) *rediscore.Locker {
					l, _ := a.Dial(t, clients.At(proxy.Addr()), opts...)
					t.Cleanup(func() { require.NoError(t, l.Close()) })
					return l
				}
				requireLimit(t, dial)
				_, err := dial(t, rediscore.WithQueue(false), rediscore.WithReplicas(1, time.Second)).TryAcquire(t.Context(), "r", "t", ttl)
				require.ErrorIs(t, err, dlock.ErrInvalid)
				require.ErrorContains(t, err, "WithReplicas")
				plain := dial(t, rediscore.WithQueue(false))
				_, err = plain.TryAcquireSet(t.Context(), []dlock.Acquisition{{Key: "s", Token: "t", TTL: ttl}, {Key: "s2", Token: "t", TTL: ttl}})
				if name != "Everything" {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, errors.ErrUnsupported)
				if a.Name != "goredis" && !adaptertest.All() {
					return // the scripts are the same
				}
				conformance.Run(t, conformance.Harness{
					New: func(t *testing.T) dlock.Locker {
						if path.Base(t.Name()) == "NoLeaks" {
							t.Skip("other tests run in this process")
						}
						return dial(t, rediscore.WithQueue(false))
					},
					Wipe: func(t *testing.T) { do(t, server, "FLUSHALL") },
					TTL:  400 * time.Millisecond, // other tests run beside it
				})
			})
		}
	}
}

// requireLimit fails unless waiters get an error that names the option once, and leave nothing.
func requireLimit(t *testing.T, dial func(*testing.T, ...rediscore.Option) *rediscore.Locker) {
	plain := dial(t, rediscore.WithQueue(false))
	acquire(t, plain, "k", "H")
	_, err := dial(t).Acquire(t.Context(), "k", "w", ttl)
	_, err2 := dlock.New(dial(t)).Acquire(t.Context(), "k")
	for _, err := range []error{err, err2} {
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.Equal(t, 1, strings.Count(err.Error(), "WithQueue(false)"), err.Error())
		require.NotErrorIs(t, err, dlock.ErrUnavailable)
	}
	held, err := plain.Release(t.Context(), "k", "w") // as who gets the error must
	require.NoError(t, err)
	require.False(t, held)
	soon(t, func() bool { // the Client releases in the background
		hold, err := plain.Inspect(t.Context(), "k")
		return err == nil && hold.Token == "H" && hold.Waiting == 0
	})
	release(t, plain, "k", "H")
}
