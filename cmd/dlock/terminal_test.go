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

// enter types a text.
func (c *screen) enter(text string) {
	_, err := c.master.WriteString(text)
	require.NoError(c, err)
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

	c.enter(run + "sh -c 'echo up; exec cat'\n")
	c.see("cat'\r\nup\r\n")
	c.enter("hello\n")
	c.see("hello\r\nhello\r\n") // the terminal's echo, and cat's
	c.enter("\x1a")             // Ctrl-Z
	c.see("The lock is kept until")
	c.see("Stopped")
	c.see("ready> ")
	c.enter("echo the shell $((40+2))\n")
	c.see("the shell 42")
	c.enter("fg\n")
	c.see("cat'\r\n")
	c.enter("again\n")
	c.see("again\r\nagain\r\n")
	c.enter("\x03") // Ctrl-C
	c.see("ready> ")
	c.enter("echo code $?\n")
	c.see("code 130")

	// Standard input need not be the terminal.
	c.enter(run + "sh -c 'echo up; exec sleep 60' </dev/null\n")
	c.see("</dev/null\r\nup")
	c.enter("\x1a")
	c.see("The lock is kept until")
	c.see("Stopped")
	c.enter("kill -TERM %%; fg\n")
	c.see("sleep 60")
	c.see("ready> ")
	c.enter("echo code $?\n")
	c.see("code 143")

	// A job in the background stops when it wants to read, and reads in the foreground.
	c.enter(run + "sh -c 'read line; echo got $line' &\n")
	c.see("The lock is kept until")
	c.enter("while [ -z \"$(jobs -s)\" ]; do sleep 0.01; done\n")
	c.see("Stopped")
	c.enter("fg\n")
	c.see("got $line'")
	c.enter("this\n")
	c.see("got this")
	c.see("ready> ")

	// A pager needs the terminal, unless the program wants it.
	c.enter(run + "sh -c 'echo a page; sleep 1' | (read page; echo top; read line </dev/tty; echo $page $line $((40+3)))\n")
	c.see("+3)))\r\ntop")
	c.enter("quit\n")
	c.see("a page quit 43")
	c.see("ready> ")
	c.enter(run + "sh -c 'echo up; read line; echo got $line' | cat\n")
	c.see("| cat\r\nup")
	c.enter("that\n")
	c.see("got that")
	c.see("ready> ")

	// A program that stays stopped is ended before its lease.
	c.enter(run + "sh -c 'echo up; exec sleep 60'\n")
	c.see("sleep 60'\r\nup")
	c.enter("\x1a")
	c.see("Stopped")
	c.see("ready> ")
	next, done := s.start("run", "k", "true")
	<-done
	require.Zero(t, next.ProcessState.ExitCode())
	c.enter("fg\n")
	c.see("the lease of k ")
	c.see("ready> ")
	c.enter("echo code $?\n")
	c.see("code 79")

	// dlock is in the background, where some terminals stop what writes to them.
	c.enter("stty tostop; " + run + "sh -c 'echo up; exec sleep 60'\n")
	c.see("sleep 60'\r\nup")
	command(t, s.server, "DEL", "k")
	c.see("dlock: the lease of k is lost")
	c.see("ready> ")
	c.enter("echo code $?\n")
	c.see("code 79")

	// Nobody continues the leader of a session, so that it does not stop.
	c.enter("exec " + run + "sh -c 'kill -STOP $$; echo went $((40+2))'\n")
	c.see("went 42")
}
