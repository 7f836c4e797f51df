//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

const goodServer = "--appendonly yes"

// TestDoctor plants one fault for each check, in a server, and none in the first one.
func TestDoctor(t *testing.T) {
	does := func(words string) func(*testing.T, *redistest.Server) {
		return func(t *testing.T, server *redistest.Server) { command(t, server, strings.Fields(words)...) }
	}
	for _, test := range []struct {
		name   string
		server string // arguments
		plant  func(t *testing.T, server *redistest.Server)
		args   string
		check  string // "" for none
		code   int
		remedy string
	}{
		{"good", goodServer, nil, "--probe", "", 0, "This Redis is fit for locks"},
		{"a replica", goodServer, func(t *testing.T, server *redistest.Server) {
			master := redistest.Start(t)
			host, port, _ := net.SplitHostPort(master.Addr())
			command(t, server, "REPLICAOF", host, port)
			require.Eventually(t, func() bool {
				return strings.Contains(command(t, server, "INFO", "replication").(string), "master_link_status:up")
			}, 20*time.Second, 10*time.Millisecond)
		}, "", "1", 2, "--sentinel"},
		{"eviction", goodServer + " --maxmemory 100mb --maxmemory-policy volatile-lru", nil, "", "2", 2, "noeviction"},
		{"eviction without a limit", goodServer + " --maxmemory-policy allkeys-lru", nil, "", "2", 1, "noeviction"},
		{"no file", "", nil, "", "3", 1, "appendonly yes"},
		{"one replica too few", goodServer, func(t *testing.T, server *redistest.Server) {
			host, port, _ := net.SplitHostPort(server.Addr())
			redistest.Start(t, "--replicaof", host, port)
			require.Eventually(t, func() bool {
				return strings.Contains(command(t, server, "INFO", "replication").(string), "state=online")
			}, 20*time.Second, 10*time.Millisecond)
		}, "", "4", 1, "min-replicas-to-write 1"},
		{"few connections", goodServer + " --maxclients 10", func(t *testing.T, server *redistest.Server) {
			for range 8 {
				c, err := net.Dial("tcp", server.Addr())
				require.NoError(t, err)
				t.Cleanup(func() { c.Close() })
				_, err = c.Write([]byte("PING\r\n"))
				require.NoError(t, err)
				_, err = io.ReadFull(c, make([]byte, len("+PONG\r\n")))
				require.NoError(t, err)
			}
		}, "", "9", 1, "maxclients"},
		{"small buffers", goodServer, func(t *testing.T, server *redistest.Server) {
			command(t, server, "CONFIG", "SET", "client-output-buffer-limit", "pubsub 1000 1000 1")
		}, "", "9", 1, "client-output-buffer-limit"},
		{"a lock for ever", goodServer, func(t *testing.T, server *redistest.Server) {
			s := &shell{t, server, ""}
			s.take(s.client("web-1"), "stuck")
			command(t, server, "PERSIST", "stuck")
		}, "", "11", 2, "dlock break"},
		{"no right to wait", goodServer, func(t *testing.T, server *redistest.Server) {
			if reply, err := server.Do("ACL", "DRYRUN", "default", "GET", "k"); err != nil || reply == nil {
				t.Skip("before Redis 7.0 only --probe finds out, which the next case uses: there is no ACL DRYRUN")
			}
			command(t, server, "ACL", "SETUSER", "default", "-zadd")
		}, "", "6", 2, "ZADD"},
		{"no right to wait, and a probe", goodServer, does("ACL SETUSER default -acl -zadd"), "--probe", "8", 2, "ZADD"},
		{"no right to write", goodServer, does("ACL SETUSER default -acl -set"), "--probe", "7", 2, "Look up the error"},
		{"no right to subscribe", goodServer, does("ACL SETUSER default -acl -subscribe"), "--probe", "8", 2, "subscribe"},
		{"the rights of the page", goodServer, func(t *testing.T, server *redistest.Server) {
			page, err := os.ReadFile("../../docs/security.md")
			require.NoError(t, err)
			args := []string{"ACL", "SETUSER", "default", "reset", "on", "nopass"}
			_, noChannels := server.Do("ACL", "SETUSER", "other", "&channel") // before Redis 6.2
			for _, section := range []string{"### Locks that do not queue", "### The queue", "### The number of waiters"} {
				_, text, ok := strings.Cut(string(page), section)
				require.True(t, ok)
				_, text, _ = strings.Cut(text, "ACL SETUSER dlock ")
				text, _, _ = strings.Cut(text, "\n")
				for _, right := range strings.Fields(text) {
					if right[0] == '+' || right[0] == '~' || right[0] == '&' && noChannels == nil {
						args = append(args, right)
					}
				}
			}
			command(t, server, append(args, "+info", "+acl", "+scan", "+config|get")...)
		}, "--probe --prefix app:", "", 0, "This Redis is fit for locks"},
		{"no WAIT", goodServer, does("ACL SETUSER default -wait"), "", "12", 0, "Do without WithReplicas"},
		{"no scripts", goodServer, does("ACL SETUSER default -acl -eval"), "", "12", 2, "locks need scripts"},
		{"no PUBLISH in a script", goodServer, does("ACL SETUSER default -acl -publish"), "", "12", 1, "WithQueue(false), or grant PUBLISH"},
		{"no TIME in a script", goodServer, does("ACL SETUSER default -acl -time"), "", "12", 2, "fences need it"},
		{"no subscriptions", goodServer, does("ACL SETUSER default -acl -subscribe"), "", "12", 1, "WithQueue(false), or grant SUBSCRIBE"},
		{"no right to read INFO", goodServer, does("ACL SETUSER default -info"), "", "1", 1, "Grant the user INFO"},
		{"no right to read the rights", goodServer, does("ACL SETUSER default -acl"), "", "6", 1, "--probe"},
		{"the same, and a probe", goodServer, does("ACL SETUSER default -acl"), "--probe", "", 0, "This Redis is fit for locks"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &shell{t, redistest.Start(t, strings.Fields(test.server)...), t.TempDir()}
			if test.plant != nil {
				test.plant(t, s.server)
			}
			code, out := s.run(append([]string{"doctor"}, strings.Fields(test.args)...)...)
			assert.Equal(t, test.code, code, out)
			assert.Contains(t, out, test.remedy)
			if test.check != "" {
				assert.Contains(t, out, "check "+test.check+": ")
				assert.Contains(t, out, level(test.code).String()+strings.Repeat(" ", 10-len(level(test.code).String())-len(test.check))+test.check+"  ")
			}
			_, out = s.run("doctor", "--json")
			for line := range strings.Lines(out) {
				assert.True(t, strings.HasPrefix(line, `{"check":`), line)
			}
		})
	}
}

func command(t *testing.T, server *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := server.Do(args...)
	require.NoError(t, err, "%q", args)
	return reply
}

func TestDoctorOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := &shell{t, cluster.Nodes[0], t.TempDir()}
	_, out := s.run("doctor", "--cluster")
	assert.NotContains(t, out, "FAILURE")
	assert.Equal(t, 3, strings.Count(out, "warning  3"), "each of the masters")
	_, err := cluster.Nodes[0].Do("CLUSTER", "DELSLOTS", "0")
	require.NoError(t, err)
	code, out := s.run("doctor", "--cluster")
	assert.Equal(t, 2, code)
	assert.Contains(t, out, "FAILURE 10  ")
}

// A server whose clock is off, or that is two servers, is made of replies.
func TestDoctorOfClocks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		times []time.Duration // of the server, against this machine
		level level
	}{
		{"good", []time.Duration{0, 0}, good},
		{"fast", []time.Duration{0, 20 * time.Millisecond}, failure},
		{"slow", []time.Duration{0, -20 * time.Millisecond}, failure},
		{"ahead", []time.Duration{time.Hour, time.Hour}, warning},
	} {
		calls := 0
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		client.AddHook(replying(func() time.Time {
			calls++
			return time.Now().Add(test.times[calls-1])
		}))
		m := &master{client: client}
		clock(t.Context(), m)
		worst := good
		for _, f := range m.all {
			worst = max(worst, f.Level)
		}
		assert.Equal(t, test.level, worst, "%s: %v", test.name, m.all)
		client.Close()
	}
}

// replying answers TIME.
type replying func() time.Time

func (replying) DialHook(next redis.DialHook) redis.DialHook { return next }
func (r replying) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.(*redis.TimeCmd).SetVal(r())
		return nil
	}
}
func (replying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
