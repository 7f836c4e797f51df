//go:build linux

package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/internal/long"
	"github.com/dlock-go/dlock/internal/redistest"
)

// If this variable is set, the test binary is dlock, or a program with descendants. Its value is the folder of their records.
const asDlock = "DLOCK_TEST_AS_DLOCK"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asDlock) != "" && len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "program"):
		program(os.Getenv(asDlock), os.Args[1])
	case os.Getenv(asDlock) != "", len(os.Args) > 1 && os.Args[1] == guardCommand: // never the tests, which start dlock again
		main()
	}
	os.Exit(m.Run())
}

// program is a program with a child, one that is deaf to TERM, and one in a session of its own. Each notes when it
// was alive. program/root becomes root, as sudo does.
func program(dir, name string) {
	if name == "program/root" && syscall.Setresuid(0, 0, 0) != nil {
		os.Exit(1)
	}
	if name == "program" {
		for _, child := range []string{"program/deaf", "program/session"} {
			c := exec.Command("/proc/self/exe", child)
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: child == "program/session"}
			if c.Start() != nil {
				os.Exit(1)
			}
		}
	}
	if name != "program/polite" {
		signal.Ignore(unix.SIGTERM)
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprint(os.Getenv("DLOCK_FENCE"), " ", os.Getpid())))
	if err != nil {
		os.Exit(1)
	}
	for begun := now(); ; time.Sleep(time.Millisecond) {
		_, _ = file.WriteAt(fmt.Appendf(nil, "%d %d\n", begun, now()), 0)
	}
}

// A life is when a process was alive.
type life struct {
	fence, pid int64
	from, to   int64
}

func lives(t *testing.T, dir string) (all []life) {
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		var l life
		_, err := fmt.Sscan(f.Name(), &l.fence, &l.pid)
		require.NoError(t, err)
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		if len(content) == 0 {
			continue // it was killed at once
		}
		_, err = fmt.Sscan(string(content), &l.from, &l.to)
		require.NoError(t, err)
		all = append(all, l)
	}
	return all
}

// A shell starts dlock.
type shell struct {
	*testing.T
	server *redistest.Server
	dir    string // of the records of programs
}

func newShell(t *testing.T) *shell {
	return &shell{t, redistest.Start(t), t.TempDir()}
}

func (s *shell) command(args ...string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(s, err)
	c := exec.Command(self, args...)
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", asDlock+"="+s.dir, urlVariable+"=redis://"+s.server.Addr(), prefixVariable+"=")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return c
}

// start starts dlock, whose end done reports.
func (s *shell) start(args ...string) (c *exec.Cmd, done <-chan struct{}) {
	c = s.command(args...)
	return c, s.launch(c)
}

func (s *shell) launch(c *exec.Cmd) (done <-chan struct{}) {
	said, err := os.Create(filepath.Join(s.TempDir(), "stderr"))
	require.NoError(s, err)
	c.Stderr = said
	require.NoError(s, c.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait()
	}()
	s.Cleanup(func() {
		_ = c.Process.Kill()
		<-ended
		said.Close()
		if text, err := os.ReadFile(said.Name()); s.Failed() {
			s.Logf("%q: %v, %v\n%s", c.Args, c.ProcessState, err, text)
		}
	})
	return ended
}

// says waits until dlock has written a text to standard error.
func (s *shell) says(c *exec.Cmd, want string) {
	s.Helper()
	require.Eventually(s, func() bool { return strings.Contains(s.said(c), want) }, 20*time.Second, 2*time.Millisecond, want)
}

// said is what dlock has written to standard error.
func (s *shell) said(c *exec.Cmd) string {
	text, err := os.ReadFile(c.Stderr.(*os.File).Name())
	require.NoError(s, err)
	return string(text)
}

// run runs dlock, and returns its exit code and what it has written.
func (s *shell) run(args ...string) (code int, out string) {
	c := s.command(args...)
	text, err := c.CombinedOutput()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		require.NoError(s, err)
	}
	return c.ProcessState.ExitCode(), string(text)
}

// begun waits until a program and its descendants run, and returns the process ID of the guard.
func (s *shell) begun(c *exec.Cmd, processes int) (guard int) {
	s.Helper()
	require.Eventually(s, func() bool {
		all := lives(s.T, s.dir)
		return len(all) == processes
	}, 20*time.Second, 2*time.Millisecond)
	for _, pid := range descendants(c.Process.Pid, nil) {
		if parentOf(pid) == c.Process.Pid {
			return pid
		}
	}
	require.FailNow(s, "no guard")
	return 0
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	c, _ := s.start("run", "taken", "--", "sleep", "60")
	require.Eventually(t, func() bool { return len(descendants(c.Process.Pid, nil)) == 2 }, 20*time.Second, time.Millisecond)
	for _, test := range []struct {
		args string
		code int
		out  string
	}{
		{"run k true", 0, ""},
		{"run k -- true", 0, ""},
		{"run k false", 1, ""},
		{"run k -- sh -c exit\t7", 7, ""},
		{"run k -- sh -c kill\t-TERM\t$$", 128 + 15, ""},
		{"run k -- sh -c kill\t-KILL\t$$", 128 + 9, ""},
		{"run k -- sh -c echo\t$DLOCK_KEY", 0, "k\n"},
		{"run k -- sh -c echo\t${DLOCK_TOKEN-none}", 0, "none\n"},
		{"run k no-such-program", 127, "dlock: exec: \"no-such-program\""},
		{"run k /etc/passwd", 126, "dlock: "},
		{"run -n --outage 20s taken true", 75, ""},
		{"run -v -n taken true", 75, "dlock: "},
		{"run -E 0 -n taken true", 0, ""},
		{"run -w 50ms taken true", 75, ""},
		{"run --wait 0 taken true", 75, ""},
		{"run --once 1s taken true", 75, ""},
		{"run --ttl 3s k sleep 4", 0, ""},
		{"run --ttl 300ms k true", 64, "dlock: --ttl 300ms"},
		{"run", 64, "dlock: "},
		{"run k", 64, "dlock: "},
		{"run k --", 64, "dlock: "},
		{"run -n -w 1s k true", 64, "dlock: "},
		{"run -w -1s k true", 64, "dlock: "},
		{"run -E 256 k true", 64, "dlock: --conflict-exit-code 256"},
		{"run --ttl 1ms k true", 64, "dlock: "},
		{"run --ttl -1s k true", 64, "dlock: --ttl -1s"},
		{"run --ttl 3s --grace 2s k true", 64, "dlock: --grace 2s"},
		{"run --once 1h -n k true", 64, "dlock: "},
		{"run --phase 1h k true", 64, "dlock: "},
		{"run --once 24h --zone Nowhere k true", 64, "dlock: "},
		{"run --redis localhost k true", 64, "dlock: --redis: "},
		{"run --redis redis://u:secret%@h k true", 64, "dlock: --redis: not a URL of Redis (a password may need % escapes)\n"},
		{"run --redis redis://u:12/secret@h k true", 64, "dlock: --redis: not a URL of Redis (a password may need % escapes)\n"},
		{"run --cluster --sentinel x k true", 64, "dlock: "},
		{"run --redis redis://127.0.0.1:65536 k true", 64, "dlock: --redis: address 65536: invalid port\n"},
		{"show --sentinel x --redis redis://h?addr=h:70000 k", 64, "dlock: --redis: address 70000: invalid port\n"},
		{"show --redis redis://127.0.0.1/-1 k", 64, "dlock: --redis: database -1: negative\n"},
		{"show --redis redis://127.0.0.1?db=-1 k", 64, "dlock: --redis: database -1: negative\n"},
		{"run --redis redis://127.0.0.1:1 k true", 69, "dlock: "},
		{"run --redis redis://127.0.0.1:1 --outage 100ms k true", 69, "dlock: "},
		{"run --max-hold 100ms --ttl 1s k sleep 60", 79, "dlock: the lease of k was not renewed, or --max-hold has passed"},
		{"no-such-command", 64, "dlock: "},
		{"run --bad\x1b k true", 64, "dlock: unknown flag: --bad\\u001b\n"},
		{"run --once 24h job false", 1, ""},
		{"run --once 24h job -- echo done", 0, "done\n"},
		{"run --once 24h job -- echo done", 0, ""},
		{"run --once 24h -v job -- echo done", 0, "dlock: job is done for "},
	} {
		var args []string
		for _, f := range strings.Split(test.args, " ") {
			args = append(args, strings.ReplaceAll(f, "\t", " "))
		}
		code, out := s.run(args...)
		assert.Equal(t, test.code, code, "%s: %s", test.args, out)
		if test.out == "" || strings.HasSuffix(test.out, "\n") {
			assert.Equal(t, test.out, out, test.args)
		} else {
			assert.Contains(t, out, test.out, test.args)
		}
	}
}

// Each command runs where algorithms such as SHA-1 are not allowed.
func TestForbiddenAlgorithms(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, mode := range []string{"on", "only"} {
		for args, code := range map[string]int{
			"run k true": 0, "run --once 24h job" + mode + " false": 1, "list --all": 0, "show k": 0, "break k": exitHeld,
			"doctor --probe": 1, "watch --every 0s k": exitUsage, "completion bash": 0,
		} {
			c := s.command(strings.Fields(args)...)
			c.Env = append(c.Env, "GODEBUG=fips140="+mode)
			out, _ := c.CombinedOutput()
			assert.Equal(t, code, c.ProcessState.ExitCode(), "%s: %s", args, out)
		}
	}
}

// A full server is waited for with --outage and --once.
func TestFullServer(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	memory := func(limit string) func() {
		return func() { _, err := s.server.Do("CONFIG", "SET", "maxmemory", limit); assert.NoError(t, err) }
	}
	const refusal = "the store refused: OOM "
	for _, test := range []struct {
		args string
		code int
		out  string
	}{
		{"run k echo begun", exitOwnFault, "dlock: acquire \"k\": " + refusal},
		{"run --outage 3s k echo begun", exitUnavailable, "dlock: acquire \"k\": store unavailable: no success for "},
		{"run --once 1s job echo begun", exitUnavailable, "dlock: once: job@"},
		{"run --outage 1m k echo begun", 0, "begun\n"},
		{"run --outage 1m k echo begun", 0, "dlock: waiting for the store, for "},
		{"run --once 24h job echo begun", 0, "begun\n"},
	} {
		memory("1")()
		if refused := s.server.CommandCount(t)["evalsha"] + 2; test.code == 0 {
			go func() {
				for s.server.CommandCount(t)["evalsha"] < refused {
					time.Sleep(10 * time.Millisecond)
				}
				memory("0")()
			}()
		}
		code, out := s.run(strings.Fields(test.args)...)
		assert.Equal(t, test.code, code, "%s: %s", test.args, out)
		assert.Contains(t, out, test.out, test.args)
	}
}

// A server that is asked for TLS, and waits for the rest of a command, is waited for once.
func TestTLS(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	begun := time.Now()
	code, out := s.run("show", "--redis", "rediss://"+s.server.Addr(), "k")
	assert.Equal(t, exitUnavailable, code)
	assert.Contains(t, out, "(rediss:// needs a port for TLS)")
	assert.Less(t, time.Since(begun), 20*time.Second)
}

// TestFaults kills and stops the holder, the guard and the server. Nothing of the program may be alive when the next
// has the lock. DLOCK_LONG=run=1000 does it for longer.
func TestFaults(t *testing.T) {
	t.Parallel()
	toHolder := func(sig syscall.Signal) func(*shell, int, int) {
		return func(_ *shell, holder, _ int) { _ = unix.Kill(holder, sig) }
	}
	toGuard := func(sig syscall.Signal) func(*shell, int, int) {
		return func(_ *shell, _, guard int) { _ = unix.Kill(guard, sig) }
	}
	faults := []struct {
		name string
		do   func(s *shell, holder, guard int)
		late time.Duration // how much later than the begin of the next the end may be
		args []string
	}{
		{"holder killed", toHolder(unix.SIGKILL), 0, nil},
		{"holder stopped", toHolder(unix.SIGSTOP), 0, nil},
		{"guard killed", toGuard(unix.SIGKILL), 0, nil},
		{"guard stopped", toGuard(unix.SIGSTOP), 0, nil},
		{"guard stopped, and the lease ends", toGuard(unix.SIGSTOP), 0, []string{"--grace", "0", "--max-hold", "1500ms"}},
		{"server stopped", func(s *shell, _, _ int) {
			s.server.Suspend()
			time.Sleep(3500 * time.Millisecond)
			s.server.Resume()
		}, 0, nil},
		// The next renewal tells the holder, a third of the TTL later at most.
		{"lock deleted", func(s *shell, _, _ int) { s.server.Do("DEL", "k") }, 2500 * time.Millisecond, nil},
	}
	rounds, err := strconv.Atoi(cmp.Or(long.Of("run"), "1"))
	require.NoError(t, err)
	var all sync.WaitGroup
	for _, f := range faults {
		all.Go(func() {
			t.Run(f.name, func(t *testing.T) {
				for range rounds {
					newShell(t).fault(f.do, f.late, f.args)
				}
			})
		})
	}
	all.Wait()
}

func (s *shell) fault(do func(s *shell, holder, guard int), late time.Duration, args []string) {
	const ttl = "3s"
	first, done := s.start(slices.Concat([]string{"run", "--ttl", ttl, "--grace", "1s"}, args, []string{"k", "/proc/self/exe", "program"})...)
	guard := s.begun(first, 3)
	// The next begins beside all this: a short lease would not last until its guard has started on a busy machine.
	next, nextDone := s.start("run", "--ttl", "15s", "--outage", "10s", "k", "/proc/self/exe", "program/polite")
	do(s, first.Process.Pid, guard)
	require.Eventually(s, func() bool { return len(lives(s.T, s.dir)) == 4 }, 30*time.Second, 5*time.Millisecond)
	all := lives(s.T, s.dir)
	var before, begun int64
	for _, l := range all {
		if l.fence == all[3].fence && l.from > begun {
			begun = l.from
		}
	}
	for _, l := range all {
		if l.fence != all[3].fence {
			before = max(before, l.to)
		}
	}
	assert.Less(s, before, begun+int64(late), "a process of the first was alive %v after the next had begun: %+v", time.Duration(before-begun), all)
	_ = unix.Kill(first.Process.Pid, unix.SIGCONT)
	<-done
	_ = unix.Kill(next.Process.Pid, unix.SIGTERM)
	<-nextDone
	assert.Equal(s, 128+15, next.ProcessState.ExitCode())
	for _, l := range all {
		assert.ErrorIs(s, unix.Kill(int(l.pid), 0), unix.ESRCH, "process %d lives", l.pid)
	}
}

// A program that has become root cannot be ended by the user who runs dlock. That is said at once, and again when it
// matters. The lock is kept, if it can be.
func TestProgramBecomesRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user, and give it the right to become root")
	}
	asNobody := func(s *shell, args ...string) *exec.Cmd {
		c := s.command(append([]string{"run", "--ttl", "3s", "--grace", "200ms"}, args...)...)
		c.Path = "/proc/self/exe" // the folder is root's
		c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		c.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SETUID}
		return c
	}
	for _, test := range []struct {
		name string
		args []string
		do   func(s *shell, holder, guard int)
		says string
		next int // exit code of one that wants the lock meanwhile
		code int // when the program has ended
	}{
		{"lease lost", []string{"k", "/proc/self/exe", "program/root"}, func(s *shell, _, _ int) { s.server.Do("DEL", "k") },
			"dlock: user 65534 may not end process ", 0, exitLost},
		{"max-hold", []string{"--max-hold", "1500ms", "k", "/proc/self/exe", "program/root"}, func(*shell, int, int) {},
			", and works on without the lock", 0, exitLost},
		{"holder killed", []string{"k", "/proc/self/exe", "program/root"}, func(_ *shell, holder, _ int) { _ = unix.Kill(holder, unix.SIGKILL) },
			", and works on without the lock", 0, -1},
		{"guard killed", []string{"k", "/proc/self/exe", "program/root"}, func(_ *shell, _, guard int) { _ = unix.Kill(guard, unix.SIGKILL) },
			"dlock: the guard is dead: user 65534 may not end process ", exitHeld, exitOwnFault},
		{"asked to end", []string{"k", "/proc/self/exe", "program/root"}, func(_ *shell, holder, _ int) { _ = unix.Kill(holder, unix.SIGTERM) },
			`dlock: user 65534 may not send "terminated" to the program`, exitHeld, 128 + 9},
		{"the rest of the group", []string{"k", "sh", "-c", "/proc/$PPID/exe program/root & sleep 1; exit 3"}, func(*shell, int, int) { time.Sleep(2 * time.Second) },
			"", exitHeld, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			c := asNobody(s, test.args...)
			done := s.launch(c)
			guard := s.begun(c, 1)
			program := int(lives(t, s.dir)[0].pid)
			s.says(c, fmt.Sprintf("dlock: warning: user 65534 may not end process %d (", program))
			test.do(s, c.Process.Pid, guard)
			s.says(c, test.says)
			code, _ := s.run("run", "-w", "5s", "k", "true")
			assert.Equal(t, test.next, code)
			assert.False(t, dead(program))
			require.NoError(t, unix.Kill(program, unix.SIGKILL))
			<-done
			assert.Equal(t, test.code, c.ProcessState.ExitCode())
			assert.NotContains(t, s.said(c), "was killed")
			assert.NotContains(t, s.said(c), "was ended")
		})
	}
	out, _ := asNobody(newShell(t), "k", "su", "--version").CombinedOutput()
	assert.Regexp(t, "^dlock: warning: .*/su may become user 0. Then user 65534 may not end it when the lease is lost\n", string(out))
}

// Without a grace too, a program whose lock was deleted is ended at the next renewal, not at the deadline.
func TestDeletedWithoutGrace(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	const ttl = 18 * time.Second
	c, done := s.start("run", "--ttl", ttl.String(), "--grace", "0s", "k", "/proc/self/exe", "program/polite")
	s.begun(c, 1)
	begun := time.Now()
	command(t, s.server, "DEL", "k")
	<-done
	assert.Equal(t, exitLost, c.ProcessState.ExitCode())
	assert.Less(t, time.Since(begun), ttl*2/3-margin, "the earliest deadline")
	assert.Contains(t, s.said(c), "dlock: the lease of k is lost: ")
	assert.NotContains(t, s.said(c), "not renewed", "which is not the reason")
}

// The lock is free when the last process of the group has ended.
func TestGroupIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	begun := time.Now()
	code, out := s.run("run", "k", "--", "sh", "-c", "(sleep 0.5; echo late) & exit 3")
	assert.Equal(t, 3, code)
	assert.Equal(t, "late\n", out)
	assert.GreaterOrEqual(t, time.Since(begun), 500*time.Millisecond)
	code, _ = s.run("run", "-w", "20s", "k", "true")
	assert.Zero(t, code)
}

// A guard that was stopped before it has started the program does not start it too late.
func TestGuardIsLate(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	orders, out, err := os.Pipe()
	require.NoError(t, err)
	_, err = fmt.Fprintf(out, `{"Kill":%d}`, now())
	require.NoError(t, err)
	file := filepath.Join(s.dir, "never")
	c := s.command(guardCommand, `{"Orders":3,"Reports":4}`, "touch", file)
	in, reports, err := os.Pipe()
	require.NoError(t, err)
	c.ExtraFiles = []*os.File{orders, reports}
	require.NoError(t, c.Run())
	for _, f := range []*os.File{orders, out, reports} {
		f.Close()
	}
	report, err := io.ReadAll(in)
	require.NoError(t, err)
	assert.Equal(t, `{"Ended":true,"Lost":true}`+"\n", string(report))
	assert.NoFileExists(t, file)
}

func TestFuse(t *testing.T) {
	for _, grace := range []time.Duration{0, margin / 2, margin, 3 * margin} {
		f := fuse{grace: grace, kill: int64(time.Second - margin)}
		sig, pause := f.burn(0)
		assert.Zero(t, sig)
		assert.Equal(t, time.Second-margin-grace, pause, "grace %v", grace)
		if grace > 0 { // otherwise KILL is due
			sig, _ = f.burn(int64(pause))
			assert.Equal(t, unix.SIGTERM, sig)
		}
		sig, _ = f.burn(int64(time.Second - margin))
		assert.Equal(t, unix.SIGKILL, sig)
	}
}

// KILL of the group is on time although the guard is busy with something else. Here the holder hears no report.
func TestKillIsNotHeldUp(t *testing.T) {
	redistest.Real(t)
	c := exec.Command("sleep", "60")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, c.Start())
	in, reports := io.Pipe()
	first := now() + int64(time.Second)
	g := &guard{fuse: fuse{kill: first}, program: c.Process.Pid, reports: reports}
	orders, changes, done := make(chan order, 1), make(chan change), make(chan struct{})
	kill := first + int64(time.Second)
	orders <- order{Kill: kill}
	go func() {
		defer close(done)
		g.watch(orders, changes)
	}()
	assert.EqualError(t, c.Wait(), "signal: killed")
	assert.GreaterOrEqual(t, now(), kill, "the later order counts")
	assert.Less(t, now(), kill+int64(margin), "the deadline")
	in.Close()
	close(changes)
	<-done
}

// Both ways to find descendants find those that have left the group and those whose parents have ended.
func TestDescendants(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	c, _ := s.start("run", "k", "--", "sh", "-c", "(setsid sleep 60 & setsid sh -c 'sleep 60; true' &); sleep 60")
	var all []int
	require.EventuallyWithT(t, func(t *assert.CollectT) { // some end when others have begun
		all = descendants(c.Process.Pid, nil)
		require.Len(t, all, 6)
		scan := scanned()
		for _, pid := range append(all, c.Process.Pid) {
			assert.ElementsMatch(t, scan(pid), listed(pid))
		}
	}, 20*time.Second, 10*time.Millisecond)
	assert.Empty(t, descendants(c.Process.Pid, all[:1]), "those of the guard are spared with it")
}

// All threads of a guard that root has started get the highest priority. The program keeps that of the shell.
func TestPriority(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	c, _ := s.start("run", "k", "--", "/proc/self/exe", "program/polite")
	guard := s.begun(c, 1)
	shells, err := unix.Getpriority(unix.PRIO_PROCESS, os.Getpid())
	require.NoError(t, err)
	programs, err := unix.Getpriority(unix.PRIO_PROCESS, int(lives(t, s.dir)[0].pid))
	require.NoError(t, err)
	assert.Equal(t, shells, programs)
	threads := func() (priorities []int) {
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", guard))
		for _, e := range entries {
			id, _ := strconv.Atoi(e.Name())
			priority, _ := unix.Getpriority(unix.PRIO_PROCESS, id)
			priorities = append(priorities, 20-priority) // as the kernel returns it
		}
		return priorities
	}
	if unix.Setpriority(unix.PRIO_PROCESS, c.Process.Pid, -1) != nil {
		t.Skip("this user may not raise priorities")
	}
	assert.Eventually(t, func() bool { return slices.Max(threads()) == -20 }, 5*time.Second, time.Millisecond, "%v", threads())
}

// The program and dlock are ended even if nobody reads what dlock says.
func TestStandardErrorIsHalted(t *testing.T) {
	t.Parallel()
	for closed, lost := range map[bool]bool{false: true, true: false} {
		s := newShell(t)
		c := s.command("run", "-v", "--ttl", "3s", "k", "/proc/self/exe", "program/deaf")
		in, out, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, out.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
		_, err = out.Write(make([]byte, 1<<20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is full")
		if closed {
			in.Close()
		}
		c.Stderr = out
		require.NoError(t, c.Start())
		out.Close()
		guard := s.begun(c, 1)
		_ = unix.Kill(guard, unix.SIGSTOP)
		if lost {
			command(t, s.server, "DEL", "k")
		}
		program := int(lives(t, s.dir)[0].pid)
		assert.Eventually(t, func() bool { return unix.Kill(program, 0) != nil }, 2*silence, 10*time.Millisecond, "closed: %v", closed)
		_ = c.Wait()
		in.Close()
		assert.Equal(t, map[bool]int{false: exitOwnFault, true: exitLost}[lost], c.ProcessState.ExitCode(), "closed: %v", closed)
	}
}

// Other files of the shell are the program's too.
func TestInheritedFiles(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	script := []string{"sh", "-c", "echo three >&3; echo four >&4; ls /proc/self/fd"}
	c := s.command(append([]string{"run", "k", "--"}, script...)...)
	var files [2]*os.File
	for i := range files {
		var err error
		files[i], err = os.Create(filepath.Join(s.dir, fmt.Sprint(i)))
		require.NoError(t, err)
		defer files[i].Close()
	}
	c.ExtraFiles = files[:]
	out, err := c.Output()
	require.NoError(t, err)
	plain := exec.Command(script[0], script[1:]...)
	plain.ExtraFiles = files[:]
	same, err := plain.Output()
	require.NoError(t, err)
	assert.Equal(t, string(same), string(out), "and dlock adds none")
	for i, want := range []string{"three\nthree\n", "four\nfour\n"} {
		got, err := os.ReadFile(files[i].Name())
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
}

// Signals go to the group. Before the program runs, they end the wait.
func TestSignals(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT} {
		if signal.Ignored(sig) {
			continue // as of HUP under nohup: dlock and the program inherit that
		}
		holder := s.command("run", "k", "--", "sh", "-c", "trap 'exit 5' TERM INT HUP QUIT; echo up; while :; do sleep 0.01; done")
		out, err := holder.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, holder.Start())
		_, err = out.Read(make([]byte, 3))
		require.NoError(t, err)
		waiter, done := s.start("run", "k", "--", "touch", filepath.Join(s.dir, "never"))
		require.Eventually(t, func() bool { return len(s.server.Keys(t)) > 2 }, 20*time.Second, time.Millisecond, "it waits")
		require.NoError(t, waiter.Process.Signal(sig))
		<-done
		assert.Equal(t, 128+int(sig), waiter.ProcessState.ExitCode(), "the waiter, %v", sig)
		require.NoError(t, holder.Process.Signal(sig))
		_ = holder.Wait()
		assert.Equal(t, 5, holder.ProcessState.ExitCode(), "the holder, %v", sig)
	}
	assert.NoFileExists(t, filepath.Join(s.dir, "never"))
}

// TERM ends the program and dlock.
func TestTERM(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rounds int
		args   []string
		before func(dlock, program int)
	}{
		"a job gets each signal":                    {4, []string{"--once", "24h"}, func(int, int) {}},
		"a stopped process of the group notices it": {1, nil, func(_, program int) { _ = unix.Kill(program, unix.SIGSTOP) }},
		"a holder that was stopped has not heard the guard, which is no fault of the guard": {1, nil, func(dlock, _ int) {
			_ = unix.Kill(dlock, unix.SIGSTOP)
			time.Sleep(silence + time.Second)
			_ = unix.Kill(dlock, unix.SIGCONT)
			time.Sleep(4 * lookPause)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range test.rounds {
				s := newShell(t)
				c, done := s.start(slices.Concat([]string{"run"}, test.args, []string{"k", "/proc/self/exe", "program/polite"})...)
				s.begun(c, 1)
				program := int(lives(t, s.dir)[0].pid)
				test.before(c.Process.Pid, program)
				require.NoError(t, c.Process.Signal(unix.SIGTERM))
				select {
				case <-done:
				case <-time.After(10 * time.Second):
					require.Fail(t, "it is stopped")
				}
				assert.Equal(t, 128+15, c.ProcessState.ExitCode())
				assert.ErrorIs(t, unix.Kill(program, 0), unix.ESRCH)
			}
		})
	}
}

// Under nohup, the end of the terminal is no end.
func TestNohup(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	inner := s.command("run", "k", "--", "sh", "-c", "kill -HUP $$; kill -HUP $PPID; sleep 0.2; exit 5")
	c := exec.Command("nohup", inner.Args...)
	c.Env = inner.Env
	_ = c.Run()
	assert.Equal(t, 5, c.ProcessState.ExitCode())
}

func TestDue(t *testing.T) {
	const day = 24 * time.Hour
	for _, test := range []struct {
		now          string
		every, phase time.Duration
		zone         string
		want         string
	}{
		{"2026-11-24T10:59:59Z", time.Hour, 0, "UTC", "2026-11-24T10:00:00Z"},
		{"2026-11-24T10:59:59Z", time.Hour, 30 * time.Minute, "UTC", "2026-11-24T10:30:00Z"},
		{"2026-11-24T10:29:59Z", time.Hour, 30 * time.Minute, "UTC", "2026-11-24T09:30:00Z"},
		{"2026-11-24T03:00:00Z", day, 3 * time.Hour, "UTC", "2026-11-24T03:00:00Z"},
		{"2026-11-24T02:59:59Z", day, 3 * time.Hour, "UTC", "2026-11-23T03:00:00Z"},
		{"2026-03-29T01:00:00Z", day, 3 * time.Hour, "Europe/Berlin", "2026-03-29T03:00:00+02:00"},
		{"2026-03-29T00:59:59Z", day, 3 * time.Hour, "Europe/Berlin", "2026-03-28T03:00:00+01:00"},
		{"1970-01-09T12:00:00Z", 7 * day, 36 * time.Hour, "UTC", "1970-01-09T12:00:00Z"},
		{"1970-01-09T11:59:59Z", 7 * day, 36 * time.Hour, "UTC", "1970-01-02T12:00:00Z"},
		{"2026-07-01T22:30:00Z", day, 0, "Europe/Berlin", "2026-07-02T00:00:00+02:00"},
		{"2026-12-01T22:30:00Z", day, 0, "Europe/Berlin", "2026-12-01T00:00:00+01:00"},
		{"2026-10-25T05:00:00Z", day, 3 * time.Hour, "Europe/Berlin", "2026-10-25T03:00:00+01:00"},     // the day has 25 hours
		{"2026-03-29T05:00:00Z", day, 3 * time.Hour, "Europe/Berlin", "2026-03-29T03:00:00+02:00"},     // and this one 23
		{"2026-03-29T00:29:59Z", day, 150 * time.Minute, "Europe/Berlin", "2026-03-28T02:30:00+01:00"}, // cron runs at 03:00, when it is not 02:30
		{"2026-03-29T01:00:00Z", day, 150 * time.Minute, "Europe/Berlin", "2026-03-29T01:30:00+01:00"},
		{"2026-10-25T00:30:00Z", day, 150 * time.Minute, "Europe/Berlin", "2026-10-25T02:30:00+02:00"}, // and it is 02:30 twice
		{"2026-10-25T01:30:00Z", day, 150 * time.Minute, "Europe/Berlin", "2026-10-25T02:30:00+02:00"},
		{"2026-11-01T12:00:00Z", day, 150 * time.Minute, "America/New_York", "2026-11-01T02:30:00-05:00"},
		{"2026-11-01T12:00:00Z", day, 90 * time.Minute, "America/New_York", "2026-11-01T01:30:00-04:00"},
		{"1970-01-09T12:00:00Z", 7 * day, 0, "UTC", "1970-01-08T00:00:00Z"},
	} {
		now, err := time.Parse(time.RFC3339, test.now)
		require.NoError(t, err)
		location, err := time.LoadLocation(test.zone)
		require.NoError(t, err)
		got := due(now, test.every, test.phase, location)
		assert.Equal(t, test.want, got.Format(time.RFC3339), "%+v", test)
	}
}

// Standard input is the program's, to the last byte.
func TestInput(t *testing.T) {
	s := newShell(t)
	c := s.command("run", "k", "--", "sha256sum")
	const size, block = 1 << 28, 1 << 20
	in, err := c.StdinPipe()
	require.NoError(t, err)
	var out bytes.Buffer
	c.Stdout = &out
	require.NoError(t, c.Start())
	sum := sha256.New()
	both := io.MultiWriter(in, sum)
	content := bytes.Repeat([]byte("0123456789abcdef"), block/16)
	for n := range size / block {
		binary.LittleEndian.PutUint64(content, uint64(n)) // no block is like another
		_, err := both.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, in.Close())
	require.NoError(t, c.Wait())
	assert.Equal(t, fmt.Sprintf("%x  -\n", sum.Sum(nil)), out.String())
}

// The guard is the program that runs, even if another was installed meanwhile.
func TestReplacedBinary(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	c := s.command("run", "k", "--", "echo", "hello")
	binary, err := os.ReadFile(c.Path)
	require.NoError(t, err)
	c.Path = filepath.Join(s.dir, "dlock")
	require.NoError(t, os.WriteFile(c.Path, binary, 0o700))
	lease := s.take(s.client("other"), "k")[0]
	var out bytes.Buffer
	c.Stdout = &out
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return len(s.server.Keys(t)) > 2 }, 20*time.Second, time.Millisecond, "it waits")
	require.NoError(t, os.Remove(c.Path))
	require.NoError(t, os.WriteFile(c.Path, []byte("#!/bin/sh\necho replaced\n"), 0o700))
	require.NoError(t, lease.Release())
	require.NoError(t, c.Wait())
	assert.Equal(t, "hello\n", out.String())
}

// A shell may exec dlock and leave a child to it, which is no descendant of the program.
func TestChildrenFromBefore(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	inner := s.command("run", "k", "--", "/proc/self/exe", "program")
	c := exec.Command("sh", append([]string{"-c", `sleep 60 & echo $!; exec "$@"`, "sh"}, inner.Args...)...)
	c.Env = inner.Env
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var other int
	_, err = fmt.Fscan(out, &other)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(lives(t, s.dir)) == 3 }, 20*time.Second, 2*time.Millisecond)
	guard := slices.DeleteFunc(descendants(c.Process.Pid, []int{other}), func(pid int) bool { return parentOf(pid) != c.Process.Pid })
	for _, pid := range guard { // its children become those of the process when it has ended
		require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	_, _ = c.Process.Wait() // not for the pipe, which the other has, too
	assert.NoError(t, unix.Kill(other, unix.SIGKILL), "it was spared")
	for _, l := range lives(t, s.dir) {
		assert.ErrorIs(t, unix.Kill(int(l.pid), 0), unix.ESRCH, "process %d lives", l.pid)
	}
}
