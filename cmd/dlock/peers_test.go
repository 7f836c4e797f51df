//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/internal/long"
)

// loop is a lock as shell scripts have it. Its arguments are a port and a program.
const loop = `port=$1; shift
until [ "$(redis-cli -p $port SET k $$ NX PX 2000)" = OK ]; do sleep 0.1; done
while sleep 0.6; do redis-cli -p $port PEXPIRE k 2000; done & renewal=$!
"$@"; code=$?
kill $renewal; redis-cli -p $port DEL k; exit $code`

// TestPeers does to other locks what TestFaults does to dlock: what docs/command.md says of them.
func TestPeers(t *testing.T) {
	t.Parallel()
	if long.Of("run") == "" {
		t.Skip("others are slow to do nothing: DLOCK_LONG=run")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	peers := map[string]func(s *shell) []string{
		"dlock": func(*shell) []string { return []string{self, "run", "--ttl", "2s", "--grace", "300ms", "k"} },
		"flock": func(s *shell) []string { return []string{"flock", filepath.Join(filepath.Dir(s.dir), "lock")} },
		"redis-cli": func(s *shell) []string {
			_, port, _ := net.SplitHostPort(s.server.Addr())
			return []string{"sh", "-c", loop, "sh", port}
		},
	}
	kill := func(s *shell, holder int) { _ = unix.Kill(holder, unix.SIGKILL) }
	stop := func(s *shell, holder int) { _ = unix.Kill(holder, unix.SIGSTOP) }
	outage := func(s *shell, _ int) {
		s.server.Suspend()
		time.Sleep(2500 * time.Millisecond)
		s.server.Resume()
	}
	remove := func(s *shell, _ int) {
		s.server.Do("DEL", "k")
		_ = os.Remove(filepath.Join(filepath.Dir(s.dir), "lock"))
	}
	for _, test := range []struct {
		peer, fault string
		do          func(s *shell, holder int)
		begins      bool // the next program, within 5 s
		alive       int  // processes of the first, of three: after that, or when the 5 s have passed
	}{
		{"dlock", "holder killed", kill, true, 0},
		{"dlock", "holder stopped", stop, true, 0},
		{"dlock", "server stopped", outage, true, 0},
		{"dlock", "lock deleted", remove, true, 0},
		{"flock", "holder killed", kill, false, 3},
		{"flock", "holder stopped", stop, false, 3},
		{"flock", "lock deleted", remove, true, 3},
		{"redis-cli", "holder killed", kill, false, 3},
		{"redis-cli", "holder stopped", stop, false, 3},
		{"redis-cli", "server stopped", outage, true, 3},
		{"redis-cli", "lock deleted", remove, true, 3},
	} {
		t.Run(test.peer+", "+test.fault, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(test.peer); test.peer != "dlock" && err != nil {
				t.Skip(err)
			}
			s := newShell(t)
			line := peers[test.peer](s)
			start := func(name string) *exec.Cmd {
				c := s.command()
				c.Env = append(c.Env, "DLOCK_FENCE=0") // that of others
				c.Args = append(append([]string{}, line...), self, name)
				c.Path, err = exec.LookPath(line[0])
				require.NoError(t, err)
				require.NoError(t, c.Start())
				t.Cleanup(func() {
					_ = unix.Kill(-c.Process.Pid, unix.SIGKILL)
					for _, l := range lives(t, s.dir) {
						_ = unix.Kill(int(l.pid), unix.SIGKILL)
					}
					_ = c.Wait()
				})
				return c
			}
			first := start("program")
			require.Eventually(t, func() bool { return len(lives(t, s.dir)) == 3 }, 20*time.Second, 2*time.Millisecond)
			mine := lives(t, s.dir)
			test.do(s, first.Process.Pid)
			begun := time.Now()
			start("program/polite")
			for len(lives(t, s.dir)) == 3 && time.Since(begun) < 5*time.Second {
				time.Sleep(5 * time.Millisecond)
			}
			begins, took := len(lives(t, s.dir)) > 3, time.Since(begun)
			time.Sleep(1100 * time.Millisecond) // in which dlock notices that a lock was deleted
			alive := 0
			for _, l := range mine {
				if unix.Kill(int(l.pid), 0) == nil {
					alive++
				}
			}
			t.Logf("the next begins: %v (%v). A second later, %d processes of the first are alive",
				begins, took.Round(time.Millisecond), alive)
			assert.Equal(t, fmt.Sprint(test.begins, test.alive), fmt.Sprint(begins, alive))
		})
	}
}
