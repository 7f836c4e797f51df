//go:build unix

package sqltest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dlock-go/dlock/internal/freeport"
)

// A Server is a PostgreSQL server of one test. It ends with the test.
type Server struct {
	Addr string

	t                     testing.TB
	bin, dir, port, serve string
	ended                 chan error // of the process that runs
}

// Start starts a server, with settings as in "fsync=on", which is off otherwise. Unless DLOCK_POSTGRES is 1, t is skipped.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	if os.Getenv("DLOCK_POSTGRES") != "1" {
		t.Skip("it is left out unless DLOCK_POSTGRES=1 is set")
	}
	return newServer(t, postgreSQL.install, settings...)
}

// Standby starts another server that follows s, which it reaches at an address. Promote with "SELECT pg_promote()".
func (s *Server) Standby(at string) *Server {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(at)
	return newServer(s.t, fmt.Sprintf(`pg_basebackup -h %s -p %s -U postgres -D "$dir/data" -R -c fast`, host, port))
}

// attend ends the server, and removes its files, when its standard input ends, as it does when the test binary ends.
const attend = `cat >/dev/null; pid=$(head -1 "$1/data/postmaster.pid") && kill -QUIT $pid && pkill -CONT -P $pid; kill -CONT $pid
while kill -0 $pid; do sleep 0.05; done; rm -rf "$1"`

func newServer(t testing.TB, install string, settings ...string) *Server {
	t.Helper()
	s := &Server{t: t, serve: "exec " + strings.Join(append([]string{postgreSQL.serve}, settings...), " -c ")}
	bin, err := postgreSQL.bin()
	s.must(err)
	claim, port, err := freeport.Claim()
	s.must(err)
	s.bin, s.Addr, s.port = bin, freeport.Addr(port), strconv.Itoa(port)
	s.dir, err = os.MkdirTemp("", "sqltest-")
	s.must(err)
	attendant := exec.Command("/bin/sh", "-c", attend, "sh", s.dir)
	attendant.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	life, err := attendant.StdinPipe()
	s.must(err)
	s.must(attendant.Start())
	t.Cleanup(func() { life.Close(); attendant.Wait(); claim.Close() })
	out, err := s.command(install).CombinedOutput()
	s.must(err, out)
	s.Start()
	return s
}

func (s *Server) must(err error, why ...[]byte) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%v %s", err, why)
	}
}

// command is one of sh, with the variables dir and port.
func (s *Server) command(text string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-c", text)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "PATH="+os.Getenv("PATH")+":"+s.bin, "dir="+s.dir, "port="+s.port)
	s.must(unprivileged(cmd, s.dir))
	return cmd
}

// Start starts a server that was stopped, with the same data, and returns when it answers.
func (s *Server) Start() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	s.must(err)
	defer log.Close()
	cmd := s.command(s.serve)
	cmd.Stdout, cmd.Stderr = log, log
	s.must(cmd.Start())
	s.ended = make(chan error, 1)
	go func(ended chan<- error) { ended <- cmd.Wait() }(s.ended)
	err = postgreSQL.await(s.Addr, s.ended)
	text, _ := os.ReadFile(log.Name())
	s.must(err, text)
}

// Stop ends the server: with SIGINT fast, with SIGQUIT as in a crash of the server.
func (s *Server) Stop(how syscall.Signal) {
	syscall.Kill(s.pid(), how)
	<-s.ended
}

// Suspend stops all processes of the server until Resume.
func (s *Server) Suspend() { s.signal("-STOP") }
func (s *Server) Resume()  { s.signal("-CONT") }

// signal signals the postmaster first: a stopped one starts no more processes.
func (s *Server) signal(name string) {
	pid := strconv.Itoa(s.pid())
	s.must(exec.Command("kill", name, pid).Run())
	s.must(exec.Command("pkill", name, "-P", pid).Run())
}

func (s *Server) pid() int {
	text, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	s.must(err)
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	s.must(err)
	return pid
}
