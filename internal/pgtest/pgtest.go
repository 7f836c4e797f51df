//go:build unix

// Package pgtest starts a real PostgreSQL server for tests, on a free port of the loopback interface.
//
// It imports only the standard library. A test imports the driver, whose name is "pgx".
package pgtest

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// envRequire makes tests fail, and not skip, where there is no server.
const envRequire = "DLOCK_TEST_REQUIRE_SERVER"

var errNoServer = errors.New("there is no PostgreSQL: install one (apt-get install postgresql, brew install postgresql)")

// A Server is a PostgreSQL of the tests' own, in a directory of its own.
type Server struct {
	addr string // host and port
	dir  string
	life io.Closer     // the server ends when this is closed
	done chan struct{} // closed when it has ended
}

// Addr returns the host and the port.
func (s *Server) Addr() string { return s.addr }

// Require fails t if a server could not be started, and skips it if none is installed.
func Require(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, errNoServer) && os.Getenv(envRequire) != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Open returns a database of the server at addr, and closes it when t ends. The
// settings are of its sessions, as in "default_transaction_read_only=on".
func Open(t testing.TB, addr string, settings ...string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", "postgres://postgres@"+addr+"/postgres?sslmode=disable&"+strings.Join(settings, "&"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// Start starts a server. The error says so if none is installed: see Require.
func Start() (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	for range 5 { // as somebody else may take the port before the server does
		var s *Server
		if s, err = start(bin); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// binaries returns the directory of initdb and postgres, which Debian does not put on
// PATH.
func binaries() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", errNoServer
	}
	return filepath.Dir(found[len(found)-1]), nil
}

// script runs a server until its standard input ends, as it does when the test binary
// dies, however it dies; and then removes all that it has written. The server's time
// zone is not the client's.
const script = `
bin=$1 dir=$2 port=$3
exec 3<&0
"$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --no-locale -N && {
	"$bin/postgres" -D "$dir/data" -h 127.0.0.1 -p "$port" -k "" -F -c timezone=Asia/Kathmandu -c max_connections=300 &
	pid=$!
	{ cat <&3 >/dev/null; kill -QUIT $pid; } &
	wait $pid
}
rm -rf "$dir"
`

func start(bin string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		return nil, err
	}
	s := &Server{
		addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		dir:  dir,
		done: make(chan struct{}),
	}
	if err := s.run(exec.Command("/bin/sh", "-c", script, "sh", bin, dir, strconv.Itoa(port))); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.awaitAnswer(); err != nil {
		log, _ := os.ReadFile(s.log()) // before stop removes it
		s.Stop()
		return nil, fmt.Errorf("%w\nits log:\n%s", err, log)
	}
	return s, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

func (s *Server) run(cmd *exec.Cmd) error {
	log, err := os.Create(s.log())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	// A group of its own, so that Ctrl-C ends the test, and the test ends the server.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		if err := s.runAsNobody(cmd.SysProcAttr); err != nil {
			return err
		}
	}
	if s.life, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(s.done)
		_ = cmd.Wait() // what matters is in the log
	}()
	return nil
}

// runAsNobody makes another user than root run the server, which refuses root.
func (s *Server) runAsNobody(attr *syscall.SysProcAttr) error {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(s.dir, uid, gid)
}

func (s *Server) awaitAnswer() error {
	db, err := sql.Open("pgx", "postgres://postgres@"+s.addr+"/postgres?sslmode=disable")
	if err != nil {
		return err
	}
	defer db.Close()
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		if err = db.Ping(); err == nil {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("the server has ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("the server does not answer: %w", err)
}

// Stop ends the server and waits until it has gone, with its directory.
func (s *Server) Stop() {
	s.life.Close()
	<-s.done
}
