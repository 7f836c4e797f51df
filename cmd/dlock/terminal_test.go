//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A screen is a terminal with a shell that knows jobs.
type screen struct {
	*shell
	master *os.File

	mu   sync.Mutex
	text strings.Builder
}

func newScreen(s *shell) *screen {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(s, err)
	require.NoError(s, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(s, err)
	slave, err := os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(s, err)
	defer slave.Close()
	bash := exec.Command("bash", "--norc", "--noprofile", "-i")
	bash.Env = append(s.command().Env, "PS1=ready> ", "HISTFILE=", "TERM=dumb")
	bash.Stdin, bash.Stdout, bash.Stderr = slave, slave, slave
	bash.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(s, bash.Start())
	c := &screen{shell: s, master: master}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for buf := make([]byte, 4096); ; {
			n, err := master.Read(buf)
			if err != nil {
				return // the shell has ended
			}
			c.mu.Lock()
			c.text.Write(buf[:n])
			c.mu.Unlock()
		}
	}()
	s.Cleanup(func() {
		_ = bash.Process.Kill()
		_ = bash.Wait()
		master.Close()
		<-read
	})
	c.see("ready> ")
	return c
}

// do types a text, and waits for others.
func (c *screen) do(text string, seen ...string) {
	c.Helper()
	_, err := c.master.WriteString(text)
	require.NoError(c, err)
	for _, text := range seen {
		c.see(text)
	}
}

// see waits for a text, and forgets what was before its end.
func (c *screen) see(text string) {
	c.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		c.mu.Lock()
		_, rest, found := strings.Cut(c.text.String(), text)
		if found {
			c.text.Reset()
			c.text.WriteString(rest)
		}
		seen := c.text.String()
		c.mu.Unlock()
		if found {
			return
		}
		if time.Now().After(end) {
			require.FailNow(c, "not on the screen", "%q: %q", text, seen)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	self, err := os.Executable()
	require.NoError(t, err)
	c := newScreen(s)
	run := self + " run --ttl 3s --grace 500ms k -- "

	c.do(run+"sh -c 'echo up; exec cat'\n", "cat'\r\nup\r\n")
	c.do("hello\n", "hello\r\nhello\r\n")                        // the terminal's echo, and cat's
	c.do("\x1a", "The lock is kept until", "Stopped", "ready> ") // Ctrl-Z
	c.do("echo the shell $((40+2))\n", "the shell 42")
	c.do("fg\n", "cat'\r\n")
	c.do("again\n", "again\r\nagain\r\n")
	c.do("\x03", "ready> ") // Ctrl-C
	c.do("echo code $?\n", "code 130")

	// Standard input need not be the terminal.
	c.do(run+"sh -c 'echo up; exec sleep 60' </dev/null\n", "</dev/null\r\nup")
	c.do("\x1a", "The lock is kept until", "Stopped")
	c.do("kill -TERM %%; fg\n", "sleep 60", "ready> ")
	c.do("echo code $?\n", "code 143")

	// A job in the background stops when it wants to read, and reads in the foreground.
	c.do(run+"sh -c 'read line; echo got $line' &\n", "The lock is kept until")
	c.do("while [ -z \"$(jobs -s)\" ]; do sleep 0.01; done\n", "Stopped")
	c.do("fg\n", "got $line'")
	c.do("this\n", "got this", "ready> ")

	// A pager needs the terminal, unless the program wants it.
	c.do(run+"sh -c 'echo a page; sleep 1' | (read page; echo top; read line </dev/tty; echo $page $line $((40+3)))\n", "+3)))\r\ntop")
	c.do("quit\n", "a page quit 43", "ready> ")
	c.do(run+"sh -c 'echo up; read line; echo got $line' | cat\n", "| cat\r\nup")
	c.do("that\n", "got that", "ready> ")

	// A program that stays stopped is ended before its lease.
	c.do(run+"sh -c 'echo up; exec sleep 60'\n", "sleep 60'\r\nup")
	c.do("\x1a", "Stopped", "ready> ")
	next, done := s.start("run", "k", "true")
	<-done
	require.Zero(t, next.ProcessState.ExitCode())
	c.do("fg\n", "the lease of k ", "ready> ")
	c.do("echo code $?\n", "code 79")

	// dlock is in the background, where some terminals stop what writes to them.
	c.do("stty tostop; "+run+"sh -c 'echo up; exec sleep 60'\n", "sleep 60'\r\nup")
	command(t, s.server, "DEL", "k")
	c.see("dlock: the lease of k is lost")
	c.see("ready> ")
	c.do("echo code $?\n", "code 79")

	// Nobody continues the leader of a session, so that it does not stop.
	c.do("exec "+run+"sh -c 'kill -STOP $$; echo went $((40+2))'\n", "went 42")
}
