// Package redistest starts real Redis or Valkey servers for tests, on free ports of the loopback
// interface: a single server, a replica, a Sentinel, or a whole Cluster. A test can kill,
// suspend and restart them. They are killed when the test ends. Sentinels and a Cluster are each a
// [Bed], with a list of faults that can strike it.
//
// A test that starts a server is skipped unless the variable DLOCK_REDIS is set: to 1 for the
// redis-server or valkey-server on PATH, or to the name or path of a server's program. If that is
// not there, the test fails.
//
// On Linux, the servers also die when the test binary dies, whatever the reason.
//
// The package imports no client library, so it can test any client.
package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/freeport"
)

const (
	startLimit = 20 * time.Second     // for a server to answer, and to free a port
	replyLimit = 5 * time.Second      // for one Do
	poll       = 5 * time.Millisecond // between two checks of a server
	host       = "127.0.0.1"          // of every server
)

// A Server is one running server. Its methods are safe for concurrent use, but a method with a
// testing.TB may be called only by that test's own goroutine. The errors of methods without one
// fail the test that started the server.
type Server struct {
	t        testing.TB
	program  string // path
	config   string // path of a configuration file, or empty
	args     []string
	env      []string // added to the environment
	dir      string
	password string
	port     int
	limit    time.Duration // of one Do
	role     []string      // arguments that say whose replica it is since restartAsReplica

	mu     sync.Mutex
	proc   *process
	closed bool
}

// Start starts a server without persistence, in a directory of its own, and waits until it
// answers. The args are added to the command line:
//
//	redistest.Start(t, "--maxmemory", "10mb")
//
// The server is killed when t ends. If it crashes before, t fails and shows the server's log.
// DEBUG commands are allowed.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, "", args)
}

func start(t testing.TB, config string, args []string, env ...string) *Server {
	t.Helper()
	s := &Server{t: t, program: find(t), config: config, args: args, env: env, dir: t.TempDir(), limit: replyLimit}
	s.password = option(args, "--requirepass")
	claim, port, err := freeport.Claim()
	check(t, err)
	t.Cleanup(func() { claim.Close() })
	s.port = port
	if err := s.launch(); err != nil {
		t.Fatalf("redistest: %s does not start: %v", s.program, err)
	}
	t.Cleanup(s.close)
	return s
}

// option returns what follows name in args, or "".
func option(args []string, name string) (value string) {
	for i := range len(args) - 1 {
		if args[i] == name {
			value = args[i+1]
		}
	}
	return value
}

// Addr returns the server's host and port.
func (s *Server) Addr() string { return freeport.Addr(s.port) }

// Kill ends the server like a power cut, with SIGKILL, and waits until it has ended. A second Kill
// does nothing.
func (s *Server) Kill() {
	s.t.Helper()
	s.do("killing", (*process).kill)
}

// Suspend freezes the server with SIGSTOP. When Suspend returns, no command is being executed. The
// kernel still accepts connections and data for the server.
func (s *Server) Suspend() {
	s.t.Helper()
	s.do("suspending", (*process).suspend)
}

// Resume continues a suspended server. The server first executes what it received meanwhile.
func (s *Server) Resume() {
	s.t.Helper()
	s.do("resuming", func(p *process) error { return p.cmd.Process.Signal(sigCont) })
}

func (s *Server) do(what string, f func(*process) error) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report(what, f(s.proc))
}

func (s *Server) report(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Errorf("redistest: %s %s at %s: %v", what, s.program, s.Addr(), s.proc.explain(err))
	}
}

// Restart kills the server if it is running, starts it on the same port, and waits until it
// answers. The server is empty then, unless the args of Start enabled persistence. A node of a
// Cluster keeps its place in the Cluster.
func (s *Server) Restart() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.report("killing", s.proc.kill())
	err := s.launch()
	for limit := time.Now().Add(startLimit); errors.Is(err, errPortTaken) && time.Now().Before(limit); {
		time.Sleep(poll)
		err = s.launch()
	}
	if err != nil {
		s.t.Errorf("redistest: %s does not start again on %s: %v", s.program, s.Addr(), err)
	}
}

// restartAsReplica is Restart, but the server is a replica from the beginning: nobody mistakes it for
// a master without data.
func (s *Server) restartAsReplica(of *Server) {
	s.t.Helper()
	s.mu.Lock()
	s.role = replicaOf(of)
	s.mu.Unlock()
	s.Restart()
}

// launch starts the process on s.port and waits until it answers. After an
// error there is no new process.
func (s *Server) launch() error {
	p, err := run(s.dir, s.program, s.arguments(), s.env)
	if err != nil {
		return err
	}
	if err := s.awaitAnswer(p); err != nil {
		p.kill()
		return p.explain(err)
	}
	s.proc = p
	return nil
}

func (s *Server) arguments() []string {
	var args []string
	if s.config != "" {
		args = append(args, s.config)
	}
	args = append(args,
		"--bind", host,
		"--port", strconv.Itoa(s.port),
		"--dir", s.dir,
		"--save", "",
		"--appendonly", "no",
		"--repl-diskless-sync", "yes",
		"--repl-diskless-sync-delay", "0",
	)
	args = append(append(args, options(s.program)...), s.args...)
	return append(args, s.role...)
}

// awaitAnswer waits until p, and no other process on the same port, answers.
func (s *Server) awaitAnswer(p *process) error {
	err := errors.New("it has not answered")
	for limit := time.Now().Add(startLimit); time.Now().Before(limit); {
		select {
		case <-p.done:
			return fmt.Errorf("it has ended: %v", p.err)
		case <-time.After(poll):
		}
		if err = s.answers(p.pid()); err == nil {
			return nil
		}
	}
	return err
}

func (s *Server) answers(pid int) error {
	if pong, err := s.Do("PING"); err != nil || pong != "PONG" {
		return fmt.Errorf("PING: got %v, %v", pong, err)
	}
	info, err := s.info("server")
	if err != nil {
		return err
	}
	if got := info["process_id"]; got != strconv.Itoa(pid) {
		return fmt.Errorf("process %s answers in place of %d (a wrapper must exec the server)", got, pid)
	}
	return nil
}

// alive reports whether the server could answer: it runs and is not suspended.
func (s *Server) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.running() && !stopped(s.proc.pid())
}

func (s *Server) close() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.report("killing", s.proc.kill())
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
}

// envAsked is the variable of the package documentation.
const envAsked = "DLOCK_REDIS"

// Asked reports whether tests use real servers, networks and time, for those that have an alternative.
func Asked() bool { return os.Getenv(envAsked) != "" }

// Real skips t unless Asked. Start and its like do so too: Real is for a test without a server
// that waits for a real network, or for real time.
func Real(t testing.TB) {
	t.Helper()
	if !Asked() {
		t.Skip("it is left out unless " + envAsked + "=1 is set, or the path of a server")
	}
}

// find returns the path of the program that is asked for. A test that has not asked for one is skipped.
func find(t testing.TB) (path string) {
	t.Helper()
	Real(t)
	asked := os.Getenv(envAsked)
	if asked != "1" {
		path, err := exec.LookPath(asked)
		if err != nil {
			t.Fatalf("redistest: %s=%q: %v", envAsked, asked, err)
		}
		return path
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("redistest: " + envAsked + "=1, but there is no redis-server and no valkey-server on PATH: " +
		"install one (apt-get install redis-server, brew install valkey), or set " + envAsked + " to its path")
	return ""
}

// options returns the options that not every version of a program supports.
func options(path string) (args []string) {
	major := major(path)
	if major >= 6 {
		// A replica would load its last copy of the master when it restarts.
		args = append(args, "--rdb-del-sync-files", "yes")
	}
	if major >= 7 {
		args = append(args, "--enable-debug-command", "local")
	}
	return args
}

var version = regexp.MustCompile(`\bv=(\d+)\.`)

// major returns the major version of a program, or 0 if it is unknown.
func major(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, path, "--version").Output()
	if m := version.FindSubmatch(out); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		return n
	}
	return 0
}
