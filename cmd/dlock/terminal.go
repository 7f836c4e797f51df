//go:build unix && !aix && !solaris

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is the controlling terminal. takeBack does nothing if it is nil.
type terminal struct {
	file  *os.File
	group int  // of this process
	lent  bool // to the program
}

// openTerminal returns nil if there is no terminal. It lends one that is standard input to the program, unless this
// process is in the background, or writes to another, such as a pager, which needs the terminal too.
func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	out, err := os.Stdout.Stat()
	piped := err == nil && out.Mode()&os.ModeNamedPipe != 0
	return &terminal{file: file, group: unix.Getpgrp(), lent: front(os.Stdin) == unix.Getpgrp() && !piped}
}

// front is the process group in the foreground, or -1. (0 is a group outside of a container.)
func front(tty *os.File) int {
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return group
}

// give puts a process group into the foreground.
func (t *terminal) give(group int) {
	signal.Ignore(unix.SIGTTOU) // which a process in the background gets for this
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
	t.lent = group != t.group
}

// takeBack puts this process into the foreground again, if the program has the terminal.
func (t *terminal) takeBack() {
	if t != nil && t.lent {
		t.give(t.group)
	}
}

// suspend stops this process as the program was stopped, so that the shell has its prompt. When the
// shell continues it, it continues the program. One that only wants the terminal goes on with it.
func (h *holder) suspend(by syscall.Signal) {
	asked, lent := h.halting, h.tty != nil && h.tty.lent
	h.halting = false
	wants := by == unix.SIGTTIN || by == unix.SIGTTOU
	inFront := func() bool { return h.tty != nil && front(h.tty.file) == h.tty.group }
	session, _ := unix.Getsid(0)
	switch {
	case !asked && !lent && !wants:
		return
	case wants && inFront():
		h.tty.give(h.group)
	case session != unix.Getpgrp(): // otherwise nobody could continue this process
		h.tty.takeBack()
		complain("stopped. The lock is kept until %s only", h.lease.Deadline().Format(time.TimeOnly))
		stderr.say("", quitLimit) // before this process stops
		continued := make(chan os.Signal, 1)
		signal.Notify(continued, unix.SIGCONT)
		defer signal.Stop(continued)
		_ = unix.Kill(0, unix.SIGSTOP) // the group, as the terminal does
		<-continued                    // this thread may go on for a while after the signal
		if (lent || wants) && inFront() {
			h.tty.give(h.group)
		}
		h.tell(order{Kill: now() + int64(h.left())})
	}
	h.tell(order{Signal: unix.SIGCONT})
}
