package redistest

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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
	for range 20 {
		clients := do(t, s, "CLIENT", "LIST").(string)
		require.Equal(t, 1, strings.Count(clients, "\n"), "a connection is left: %s", clients)
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

func TestRestartWaitsForThePort(t *testing.T) {
	t.Parallel()
	s := Start(t)
	require.NoError(t, s.answers(s.proc.pid()))
	require.ErrorContains(t, s.answers(1), "in place of 1 ")
	require.ErrorIs(t, s.launch(), errPortTaken, "by the server itself")
	s.Kill()
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

// A server is used only if it is asked for, and a test that has asked fails without one. The reason is shown.
func TestAsked(t *testing.T) {
	start := func(t testing.TB) { Start(t) }
	t.Setenv(envAsked, "")
	for _, fn := range []func(testing.TB){start, Real} {
		require.Contains(t, record(t, fn).skipped, "unless DLOCK_REDIS=1 is set")
	}
	t.Setenv(envAsked, "1")
	require.Empty(t, record(t, Real).skipped)
	for name, c := range map[string]struct {
		asked  string
		onPath []string // which end at once
		want   []string // in the failure
	}{
		"redis first": {"1", []string{"redis-server", "valkey-server"}, []string{"/redis-server does not start", "exit status 3", "something is wrong"}},
		"else valkey": {"1", []string{"valkey-server"}, []string{"/valkey-server does not start"}},
		"named":       {"mine", []string{"redis-server", "mine"}, []string{"/mine does not start"}},
		"named, gone": {"mine", []string{"redis-server"}, []string{`DLOCK_REDIS="mine"`}},
		"none": {"1", nil, []string{"DLOCK_REDIS=1, but there is no redis-server",
			"install one (apt-get install redis-server, brew install valkey), or set DLOCK_REDIS"}},
	} {
		dir := t.TempDir()
		for _, file := range c.onPath {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("#!/bin/sh\necho something is wrong\nexit 3\n"), 0o700))
		}
		t.Setenv("PATH", dir)
		t.Setenv(envAsked, c.asked)
		failed := record(t, start).failed
		for _, want := range c.want {
			require.Contains(t, failed, want, name)
		}
	}
}

func TestCrashIsReported(t *testing.T) {
	t.Parallel()
	find(t)
	for _, next := range []func(*Server){(*Server).Kill, (*Server).Restart, (*Server).close} {
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

// Each fault does what it says, and a bed keeps all data that it had before.
func TestBeds(t *testing.T) {
	t.Parallel()
	t.Run("Sentinels", func(t *testing.T) {
		t.Parallel()
		s := StartSentinels(t, "orders")
		require.Len(t, s.Addrs(), 3)
		require.Same(t, s.Nodes[0], s.MasterOf(t, ""))
		strikeAll(t, s)
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		c := StartCluster(t, 3, 1)
		require.Equal(t, c.Nodes[:3], c.Masters(t))
		strikeAll(t, c)
	})
}

func strikeAll(t *testing.T, bed Bed) {
	const keys = 50
	places := func() (places [keys]*Server) {
		for i := range places {
			places[i] = bed.MasterOf(t, fmt.Sprint(i))
		}
		return places
	}
	for i, m := range places() {
		do(t, m, "SET", fmt.Sprint(i), "")
	}
	for _, f := range bed.Faults() {
		before, old, begun := places(), bed.Masters(t), time.Now()
		took := f.Strike(t)
		t.Logf("%s: %v until a replica was master, %v until all was well", f.Name, took, time.Since(begun))
		now := bed.Masters(t)
		require.Len(t, now, len(old), f.Name)
		require.Equal(t, f.Name == "slots moved", took == 0, f.Name)
		if took == 0 { // others have seen a new master, which a busy machine may have replaced again
			require.NotEqual(t, before, places(), f.Name)
		}
		n := 0
		for _, m := range now {
			n += len(m.Keys(t))
		}
		require.Equal(t, keys, n, f.Name)
	}
}
