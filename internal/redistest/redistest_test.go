package redistest

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

type patient struct{ *testing.M }

// Run runs more tests at once than there are CPUs, since most of them wait.
func (p patient) Run() int {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	return p.M.Run()
}

func do(t *testing.T, s *Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	require.NoError(t, err, "%q", args)
	return reply
}

func TestDo(t *testing.T) {
	t.Parallel()
	s := Start(t)
	binary := "\x00\r\n$-1\xff"
	for _, c := range []struct {
		want any
		args []string
	}{
		{"OK", []string{"SET", binary, binary}},
		{binary, []string{"GET", binary}},
		{"", []string{"ECHO", ""}},
		{int64(-7), []string{"INCRBY", "n", "-7"}},
		{nil, []string{"GET", "none"}},
		{nil, []string{"BLPOP", "none", "0.01"}},
		{[]any{"-7", nil}, []string{"MGET", "n", "none"}},
		{[]any{int64(1), []any{"two"}, []any{}}, []string{"EVAL", "return {1, {'two'}, {}}", "0"}},
	} {
		require.Equal(t, c.want, do(t, s, c.args...), "%q", c.args)
	}
	_, err := s.Do("INCR", binary)
	require.Equal(t, Error("ERR value is not an integer or out of range"), err)
	_, err = s.Do()
	require.ErrorContains(t, err, "empty command")
	for range 100 {
		clients := do(t, s, "CLIENT", "LIST").(string)
		require.Equal(t, 1, strings.Count(clients, "\n"), "a connection is left: %s", clients)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				text := fmt.Sprint(g, i)
				reply, err := s.Do("ECHO", text)
				assert.Equal(t, []any{text, nil}, []any{reply, err})
			}
		})
	}
	wg.Wait()
}

func TestArgs(t *testing.T) {
	t.Parallel()
	s := Start(t, "--requirepass", "secret", "--maxmemory", "10mb", "--databases", "3")
	for name, want := range map[string]string{"maxmemory": "10485760", "databases": "3", "save": ""} {
		require.Equal(t, []any{name, want}, do(t, s, "CONFIG", "GET", name))
	}
	require.Equal(t, "OK", do(t, s, "DEBUG", "SLEEP", "0"))
	require.Equal(t, "PONG", do(t, StartReplica(t, s), "PING"))
	for password, want := range map[string]string{"": "NOAUTH", "wrong": "WRONGPASS"} {
		s.password = password
		_, err := s.Do("PING")
		require.ErrorContains(t, err, want)
	}
}

func TestStartAhead(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 100 * time.Millisecond} {
		s := StartAhead(t, ahead)
		for range 2 {
			before := time.Now()
			reply := do(t, s, "TIME").([]any)
			after := time.Now()
			seconds, err1 := strconv.ParseInt(reply[0].(string), 10, 64)
			micros, err2 := strconv.ParseInt(reply[1].(string), 10, 64)
			require.NoError(t, errors.Join(err1, err2))
			clock := time.Unix(seconds, micros*1000).Add(-ahead)
			require.WithinRange(t, clock, before.Add(-time.Millisecond), after)
			s.Restart()
		}
	}
}

// A server is stopped in an orderly way or killed, also while it is suspended, and is empty when it has started again.
func TestEnds(t *testing.T) {
	t.Parallel()
	s := Start(t)
	for name, end := range map[string]func(){"stop": s.Stop, "kill": s.Kill, "suspend": s.Suspend, "nothing": func() {}} {
		for _, suspended := range []bool{false, true} {
			do(t, s, "SET", "a", "1")
			require.Equal(t, []string{"a"}, s.Keys(t))
			addr := s.Addr()
			if suspended {
				s.Suspend()
			}
			if end(); name == "stop" || name == "kill" {
				require.False(t, s.proc.running())
				require.False(t, s.alive())
				_, err := s.Do("PING")
				require.ErrorContains(t, err, "refused")
				end() // again, which is harmless
			}
			if name == "stop" {
				require.NoError(t, s.proc.err, "exit status")
			} else if name == "kill" {
				require.ErrorContains(t, s.proc.err, "killed")
			}
			s.Restart()
			require.Equal(t, addr, s.Addr())
			require.Empty(t, s.Keys(t))
		}
	}
	kept := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	do(t, kept, "SET", "a", "1")
	kept.Restart()
	require.Equal(t, []string{"a"}, kept.Keys(t), "what the arguments persist")
}

func TestRestartWaitsForThePort(t *testing.T) {
	t.Parallel()
	s := Start(t)
	require.NoError(t, s.answers(s.proc.pid()))
	require.ErrorContains(t, s.answers(1), "in place of 1 ")
	require.ErrorIs(t, s.launch(), errPortTaken, "by the server itself")
	s.Stop()
	l, err := net.Listen("tcp4", s.Addr())
	require.NoError(t, err)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			conn.Close()
		}
	}()
	require.ErrorIs(t, s.launch(), errPortTaken)
	time.AfterFunc(200*time.Millisecond, func() { l.Close() })
	s.Restart()
	require.Equal(t, "PONG", do(t, s, "PING"))
}

func TestSuspendAndResume(t *testing.T) {
	t.Parallel()
	s := Start(t)
	require.True(t, s.alive())
	s.limit = 100 * time.Millisecond
	for range 10 {
		s.Suspend()
		require.False(t, s.alive())
	}
	s.limit = time.Second // so that the command is sent in time
	begin := time.Now()
	_, err := s.Do("INCR", "n")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(begin), s.limit)
	require.Less(t, time.Since(begin), s.limit+20*time.Second)

	s.limit = replyLimit
	s.Resume()
	require.True(t, s.alive())
	await(t, func() error {
		if n, err := s.Do("GET", "n"); n != "1" {
			return fmt.Errorf("the command that timed out: got %v, %v, want 1", n, err)
		}
		return nil
	})
}

// Servers that start at once have nothing in common. They end with their tests, also one that is suspended.
func TestConcurrentStarts(t *testing.T) {
	t.Parallel()
	find(t)
	servers := make([]*Server, 8)
	t.Run("group", func(t *testing.T) {
		for i := range servers {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				servers[i] = Start(t)
				do(t, servers[i], "SET", fmt.Sprint(i), "")
				require.Equal(t, []string{fmt.Sprint(i)}, servers[i].Keys(t))
				if i == 0 {
					servers[0].Suspend()
				}
			})
		}
	})
	servers[1].Restart() // too late
	for _, s := range servers {
		require.False(t, s.proc.running())
	}
}

func TestInfo(t *testing.T) {
	t.Parallel()
	s := Start(t)
	info := s.CommandCount(t)["info"]
	do(t, s, "EVAL", "return redis.call('SET', KEYS[1], 'v')", "1", "k")
	for range 3 {
		do(t, s, "GET", "k")
	}
	counts := s.CommandCount(t)
	require.Equal(t, info+1, counts["info"])
	require.Equal(t, int64(3), counts["get"])
	require.Equal(t, int64(1), counts["set"])
	require.Equal(t, int64(1), counts["eval"])

	do(t, s, "SET", "a\x00b", "")
	require.Equal(t, []string{"a\x00b", "k"}, s.Keys(t))
}

func TestReplica(t *testing.T) {
	t.Parallel()
	master := Start(t)
	do(t, master, "SET", "a", "1")
	r := StartReplica(t, master)
	require.Equal(t, "1", do(t, r, "GET", "a"))
	_, err := r.Do("SET", "a", "2")
	require.ErrorContains(t, err, "READONLY")

	r.Stop()
	master.Kill()
	r.Restart()
	require.Empty(t, r.Keys(t), "a copy of the master's data survived")
}

func TestStopWithASuspendedReplica(t *testing.T) {
	t.Parallel()
	master := Start(t)
	StartReplica(t, master).Suspend()
	do(t, master, "SET", "a", "1")
	begin := time.Now()
	master.Stop()
	require.Less(t, time.Since(begin), endLimit-time.Second)
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	master := Start(t, "--requirepass", "secret")
	replica := StartReplica(t, master)
	s := StartSentinel(t, master, "orders", 1)
	ask := []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", "orders"}
	require.Equal(t, []any{host, fmt.Sprint(master.port)}, do(t, s, ask...))
	master.Kill()
	await(t, func() error {
		if reply, _ := s.Do(ask...); reply.([]any)[1] != fmt.Sprint(replica.port) {
			return fmt.Errorf("the master is still %v", reply)
		}
		return nil
	})
	require.Equal(t, "OK", do(t, replica, "SET", "a", "1"))
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 0)
	require.Len(t, c.Addrs(), 3)
	require.Equal(t, c.Nodes[2].Addr(), c.Addrs()[2])
	served := make(map[*Server]bool)
	for i := range 30 {
		key := fmt.Sprint(i)
		m := c.MasterOf(t, key)
		require.Same(t, m, c.Nodes[(m.Slot(t, key)*3+2)/slots])
		for _, n := range c.Nodes {
			if _, err := n.Do("SET", key, ""); n == m {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, fmt.Sprintf("MOVED %d %s", m.Slot(t, key), m.Addr()))
			}
		}
		served[m] = true
	}
	require.Len(t, served, 3)
	require.Equal(t, 12182, c.Nodes[0].Slot(t, "foo"))
	require.Equal(t, 12182, c.Nodes[1].Slot(t, "bar{foo}"))
	c.Nodes[1].Restart()
	c.awaitWhole(t)
}

func TestLocate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		asked  string
		onPath []string
		want   string // path, or what the error says
	}{
		"redis first": {"1", []string{"redis-server", "valkey-server"}, "/bin/redis-server"},
		"else valkey": {"1", []string{"valkey-server"}, "/bin/valkey-server"},
		"named":       {"mine", []string{"redis-server", "mine"}, "/bin/mine"},
		"named, gone": {"mine", []string{"redis-server"}, `DLOCK_REDIS="mine"`},
		"none":        {"1", nil, "install one (apt-get install redis-server, brew install valkey), or set DLOCK_REDIS"},
	} {
		lookPath := func(file string) (string, error) {
			for _, f := range c.onPath {
				if f == file {
					return "/bin/" + file, nil
				}
			}
			return "", exec.ErrNotFound
		}
		b, err := locate(c.asked, lookPath)
		if err == nil {
			require.Equal(t, c.want, b.path, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
}

// A recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed, skipped string
}

func (r *recorder) Fatal(args ...any) { r.failed = fmt.Sprint(args...); runtime.Goexit() }
func (r *recorder) Skip(args ...any)  { r.skipped = fmt.Sprint(args...); runtime.Goexit() }

func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.failed += fmt.Sprintf(format, args...) }

// record runs fn as a test of its own, without its clean-up.
func record(t *testing.T, fn func(testing.TB)) *recorder {
	r := &recorder{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { fn(r) })
	wg.Wait()
	return r
}

// A server is used only if it is asked for, and a test that has asked fails without one.
func TestAsked(t *testing.T) {
	start := func(t testing.TB) { Start(t) }
	t.Setenv(envAsked, "")
	for _, fn := range []func(testing.TB){start, Real} {
		require.Contains(t, record(t, fn).skipped, "unless DLOCK_REDIS=1 is set")
	}
	t.Setenv(envAsked, "1")
	require.Empty(t, record(t, Real).skipped)
	t.Setenv("PATH", t.TempDir())
	require.Contains(t, record(t, start).failed, "DLOCK_REDIS=1, but there is no redis-server")
}

func TestServerThatDoesNotStart(t *testing.T) {
	script := filepath.Join(t.TempDir(), "server")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho something is wrong\nexit 3\n"), 0o700))
	t.Setenv(envAsked, script)
	got := record(t, func(t testing.TB) { Start(t) }).failed
	require.Contains(t, got, fmt.Sprintf("DLOCK_REDIS=%q does not start", script))
	require.Contains(t, got, "exit status 3")
	require.Contains(t, got, "something is wrong")

	t.Setenv(envAsked, script+"-not-there")
	got = record(t, func(t testing.TB) { Start(t) }).failed
	require.Contains(t, got, script+"-not-there")
}

func TestBadArgument(t *testing.T) {
	t.Parallel()
	find(t)
	got := record(t, func(t testing.TB) { Start(t, "--no-such-option", "1") }).failed
	require.Contains(t, got, "does not start")
	require.Contains(t, got, "no-such-option")
}

func TestCrashIsReported(t *testing.T) {
	t.Parallel()
	find(t)
	for _, next := range []func(*Server){(*Server).Stop, (*Server).Restart, (*Server).close} {
		var s *Server
		r := record(t, func(t testing.TB) {
			s = Start(t)
			_, err := s.Do("DEBUG", "SEGFAULT")
			require.Error(t, err)
			<-s.proc.done
			next(s)
		})
		require.Contains(t, r.failed, "it has crashed: signal: segmentation fault")
		require.Contains(t, r.failed, "BUG REPORT")
	}
}
