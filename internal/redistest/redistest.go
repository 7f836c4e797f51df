// Package redistest starts real servers for tests, Redis or Valkey, on free
// ports of the loopback interface, and ends them with the test: one server,
// a replica, a Sentinel, or a whole Cluster. Servers can be stopped, killed,
// suspended and restarted in mid-test.
//
// The server is the one that DLOCK_TEST_REDIS_SERVER names, or else
// redis-server or valkey-server, whichever is on PATH. Where there is none the
// test is skipped, or fails if DLOCK_TEST_REQUIRE_SERVER is 1.
//
// On Linux a server is killed when the test binary dies, however it dies.
//
// Importing the standard library only, the package can test any client.
package redistest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	startLimit = 20 * time.Second     // for a server to answer, and to free a port
	replyLimit = 5 * time.Second      // for one Do
	poll       = 5 * time.Millisecond // between two looks at a server
	host       = "127.0.0.1"          // of every server
	attempts   = 20                   // at a port that nobody takes meanwhile
)

// A Server is one running server. Its methods may be called by many goroutines
// at once, those that take a testing.TB by that test's own only. What goes
// wrong in the others is an error of the test that started the server.
type Server struct {
	t        testing.TB
	binary   binary
	config   string // path of a configuration file, or empty
	args     []string
	dir      string
	password string
	port     int
	claim    net.PacketConn
	limit    time.Duration // of one Do

	mu     sync.Mutex
	proc   *process
	closed bool
}

// Start starts a server without persistence, in a directory of its own, and
// waits until it answers. The args are passed on to it behind Start's own, as
// in
//
//	redistest.Start(t, "--maxmemory", "10mb")
//
// The server is killed when t ends. A crash before that is an error of t, and
// shows the server's log. DEBUG commands are allowed.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, "", args)
}

func start(t testing.TB, config string, args []string) *Server {
	t.Helper()
	bin := find(t)
	s := &Server{t: t, binary: bin, config: config, args: args, dir: t.TempDir(), limit: replyLimit}
	s.password = option(args, "--requirepass")
	if err := s.open(); err != nil {
		t.Fatalf("redistest: %s does not start: %v", bin, err)
	}
	t.Cleanup(s.close)
	return s
}

// Find returns the binary. A test that has none is skipped, or fails.
func find(t testing.TB) binary {
	t.Helper()
	bin, err := locate(os.Getenv, exec.LookPath)
	if errors.Is(err, errNoServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Option returns what follows name in args, or "".
func option(args []string, name string) (value string) {
	for i := range len(args) - 1 {
		if args[i] == name {
			value = args[i+1]
		}
	}
	return value
}

// Addr is the server's host and port.
func (s *Server) Addr() string { return address(s.port) }

// Stop ends the server as an administrator would, with SIGTERM, also when it
// is suspended, and waits for its end. Stopping twice is harmless.
func (s *Server) Stop() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(sigTerm)
}

// Kill ends the server as a power cut would, with SIGKILL, and waits for its
// end. Killing twice is harmless.
func (s *Server) Kill() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(os.Kill)
}

// Suspend freezes the server with SIGSTOP. When it returns no command is being
// executed. The kernel goes on to accept connections and data for it.
func (s *Server) Suspend() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.suspend(); err != nil {
		s.t.Errorf("redistest: suspending %s: %v", s.Addr(), err)
	}
}

// Resume lets a suspended server go on: first with what it has received
// meanwhile.
func (s *Server) Resume() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.cmd.Process.Signal(sigCont); err != nil {
		s.t.Errorf("redistest: resuming %s: %v", s.Addr(), err)
	}
}

// Restart kills the server if it still runs, starts it again on the same port,
// and waits until it answers. It is empty then, unless the args of Start turned
// persistence on. A node of a Cluster keeps its place in it.
func (s *Server) Restart() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.end(os.Kill)
	err := s.launch()
	for limit := time.Now().Add(startLimit); errors.Is(err, errPortTaken) && time.Now().Before(limit); {
		time.Sleep(poll)
		err = s.launch()
	}
	if err != nil {
		s.t.Errorf("redistest: %s does not start again on %s: %v", s.binary, s.Addr(), err)
	}
}

// Open starts the server on a port that nobody else has.
func (s *Server) open() (err error) {
	for range attempts {
		if s.claim, s.port, err = claimPort(); err != nil {
			return err
		}
		if err = s.launch(); err == nil {
			return nil
		}
		s.claim.Close()
		if !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// Launch starts the process on s.port and waits until it answers. After an
// error there is no new process.
func (s *Server) launch() error {
	p, err := run(s.dir, s.binary.path, s.arguments())
	if err != nil {
		return err
	}
	if err := s.awaitAnswer(p); err != nil {
		p.end(os.Kill)
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
	return append(append(args, s.binary.options()...), s.args...)
}

// AwaitAnswer waits until p, and no other process on the same port, answers.
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

// Alive reports whether the server could answer: it runs and is not suspended.
func (s *Server) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.running() && !stopped(s.proc.pid())
}

func (s *Server) end(sig os.Signal) {
	s.t.Helper()
	if err := s.proc.end(sig); err != nil {
		s.t.Errorf("redistest: %s at %s: %v", s.binary, s.Addr(), s.proc.explain(err))
	}
}

func (s *Server) close() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.end(os.Kill)
	s.claim.Close()
}
