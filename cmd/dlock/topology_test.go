//go:build linux

package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/internal/redistest"
)

// Each way to name a Redis leads to the same commands.
func TestTopologies(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	sentinels := redistest.StartSentinels(t, "main")
	for name, flags := range map[string]string{
		"cluster":  "--cluster --redis redis://" + cluster.Nodes[1].Addr(),
		"sentinel": "--sentinel main --redis redis://" + sentinels.Addrs()[0],
	} {
		s := &shell{t, cluster.Nodes[0], t.TempDir()}
		run := func(args string) (int, string) {
			return s.run(append(strings.Fields(flags), strings.Fields(args)...)...)
		}
		for _, key := range []string{"a:1", "a:2", "a:3", "a:4"} { // on several masters
			s.start(append(strings.Fields(flags), "run", "--prefix", "p:", key, "--", "sleep", "60")...)
		}
		require.Eventually(t, func() bool {
			_, out := run("list --prefix p: a:")
			return strings.Count(out, "a:") == 4
		}, 20*time.Second, 50*time.Millisecond, name)
		s.start(append(strings.Fields(flags), "run", "--prefix", "p:", "a:2", "--", "sleep", "60")...)
		require.Eventually(t, func() bool {
			_, out := run("show a:2")
			return strings.Contains(out, `add --prefix "p:"`) && strings.Contains(out, "waiter 1 of 1")
		}, 20*time.Second, 50*time.Millisecond, name)
		_, out := run("list --all")
		assert.Regexp(t, `p:a:2 .* 1\n`, out, name)
		code, out := run("run -n --outage 20s --prefix p: a:3 true")
		assert.Equal(t, exitHeld, code, "%s: %s", name, out)
		code, out = run("break --prefix p: --yes a:3")
		assert.Zero(t, code, "%s: %s", name, out)
		code, out = run("run --prefix p: a:3 true")
		assert.Zero(t, code, "%s: %s", name, out)
		_, out = run("doctor --probe --prefix p:")
		assert.NotContains(t, out, "FAILURE", name)
	}
}

// A load balancer gives connections to two servers in turn.
func TestDoctorOfALoadBalancer(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for i := 0; ; i++ {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", servers[i%2].Addr())
			if err != nil {
				return
			}
			go io.Copy(in, out) //nolint:errcheck // until one of them is closed
			go func() {
				defer out.Close()
				_, _ = io.Copy(out, in)
			}()
		}
	}()
	s := &shell{t, servers[0], t.TempDir()}
	code, out := s.run("doctor", "--redis", "redis://"+listener.Addr().String())
	assert.Equal(t, 2, code, out)
	assert.Contains(t, out, "FAILURE  1  ")
	assert.Contains(t, out, "load balancer")
}

// As process 1 of a container, dlock passes signals on, and collects orphans.
func TestProcess1(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	if err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "true").Run(); err != nil {
		t.Skip("no right to make a process namespace:", err)
	}
	up := filepath.Join(s.dir, "up")
	inner := s.command("run", "k", "--", "sh", "-c", "trap 'exit 5' TERM; (sleep 0.1 &); touch "+up+"; while :; do sleep 0.01; done")
	c := exec.Command("unshare", append([]string{"--pid", "--fork", "--kill-child", "--mount-proc"}, inner.Args...)...)
	c.Env = inner.Env
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { _, err := os.Stat(up); return err == nil }, 20*time.Second, time.Millisecond)
	time.Sleep(200 * time.Millisecond) // in which the orphan ends
	for _, pid := range descendants(c.Process.Pid, nil) {
		if parentOf(pid) == c.Process.Pid {
			require.NoError(t, unix.Kill(pid, unix.SIGTERM))
		}
	}
	_ = c.Wait()
	assert.Equal(t, 5, c.ProcessState.ExitCode())
}
