//go:build unix && !aix && !solaris

package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardSettings are the second argument of a guard. Those of the program follow.
type guardSettings struct {
	Grace           time.Duration
	Terminal        bool    // is the program's
	Orders, Reports uintptr // file descriptors
}

// An order is what the holder of the lease tells the guard. One without Kill and Signal ends the program.
type order struct {
	Kill   int64          `json:",omitempty"` // when KILL is sent at the latest, in nanoseconds of the clock of now
	Signal syscall.Signal `json:",omitempty"` // for the group
	End    time.Duration  `json:",omitempty"` // TERM at once, and KILL when this has passed
}

// A report is what the guard tells the holder. An empty one says that it lives.
type report struct {
	Group   int            `json:",omitempty"` // of the program, which has begun
	Stopped syscall.Signal `json:",omitempty"` // has stopped the program
	Ended   bool           `json:",omitempty"` // the program and its group; the last report
	Code    int            `json:",omitempty"` // for the exit
	Lost    bool           `json:",omitempty"` // the guard has ended them, as far as it may
	Defied  bool           `json:",omitempty"` // it may not, and they have ended by themselves
}

// A fuse says when a group is to end.
type fuse struct {
	grace time.Duration
	kill  int64 // when KILL is sent; moves until the fuse is lit
	lit   bool
	asked bool // TERM was sent
}

// burn returns what the group gets now, and when to ask again.
func (f *fuse) burn(now int64) (sig syscall.Signal, pause time.Duration) {
	term := f.kill - int64(f.grace)
	f.lit = f.lit || now >= term
	switch {
	case !f.lit:
		return 0, time.Duration(term - now)
	case now >= f.kill:
		return syscall.SIGKILL, killPause
	case !f.asked:
		f.asked, sig = true, syscall.SIGTERM
	}
	return sig, time.Duration(f.kill - now)
}

const (
	killPause = 5 * time.Millisecond   // between two rounds of KILL
	lookPause = 250 * time.Millisecond // at most so long until the next look at the clock and at the group
)

// A guard is the parent of the program. It ends the program in time if the holder does not.
type guard struct {
	fuse    fuse
	killer  *time.Timer // sends KILL to the group when it is due, whatever else this process does then
	reports io.Writer
	program int // process ID, and group
	ended   bool
	code    int   // once it has ended
	look    int64 // when the guard looks next whether it may end all processes
	warned  bool  // that it may not
	defied  bool  // when the lock was lost
}

// guardMain is the main function of a guard. The first order says when KILL is due.
func guardMain(args []string) {
	// The kernel kills the program if the thread ends that has started it.
	runtime.LockOSThread()
	// Signals of the terminal are for the program. They are caught, because the program inherits what is ignored.
	catch(make(chan os.Signal), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGPIPE)
	var settings guardSettings
	if json.Unmarshal([]byte(args[0]), &settings) != nil {
		quit(exitOwnFault)
	}
	unix.CloseOnExec(int(settings.Orders))
	unix.CloseOnExec(int(settings.Reports))
	orders := decode[order](os.NewFile(settings.Orders, "orders"))
	first, ok := <-orders
	if !ok {
		quit(exitOwnFault)
	}
	g := &guard{fuse: fuse{grace: settings.Grace, kill: first.Kill}, reports: os.NewFile(settings.Reports, "reports")}
	adoptOrphans()
	_ = os.WriteFile("/proc/self/comm", []byte("dlock guard"), 0) // instead of "exe"; Linux only
	if sig, _ := g.fuse.burn(now()); sig != 0 {                   // this process was stopped
		g.report(report{Ended: true, Lost: true})
		return
	}
	if err := g.start(args[1:], settings.Terminal); err != nil {
		code := exitNotRun
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			code = exitNotFound
		}
		complain("%v", err)
		g.report(report{Ended: true, Code: code})
		return
	}
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, -20) // of all threads of this process, and of no other; only root may
	g.report(report{Group: g.program})
	g.watch(orders, children())
	g.report(report{Ended: true, Code: g.code, Lost: g.fuse.lit, Defied: g.defied})
}

// start starts the program, in a group of its own, which may get the terminal.
func (g *guard) start(args []string, foreground bool) error {
	c := exec.Command(args[0], args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Foreground: foreground}
	g.foresee(c.Path)
	endWithParent(c.SysProcAttr)
	err := c.Start()
	if err == nil {
		g.program = c.Process.Pid
	}
	return err
}

// watch returns when the group is dead.
func (g *guard) watch(orders <-chan order, changes <-chan change) {
	timer := time.NewTimer(0)
	g.killer = time.AfterFunc(time.Duration(g.fuse.kill-now()), func() { signalGroup(g.program, syscall.SIGKILL) })
	defer g.killer.Stop()
	for {
		select {
		case o, ok := <-orders:
			if !ok { // the holder is dead
				orders, o.End = nil, g.fuse.grace
			}
			g.obey(o)
		case c, ok := <-changes:
			if !ok { // no process is left
				return
			}
			g.note(c)
		case <-timer.C:
		}
		sig, pause := g.fuse.burn(now())
		if g.signal(sig) {
			pause = lookPause
		}
		if !g.fuse.lit && g.ended && unix.Kill(-g.program, 0) == unix.ESRCH { // the dead count until their parent knows
			return
		}
		timer.Reset(min(pause, lookPause))
	}
}

// foresee warns of a program that may become another user, as sudo does. dlock may not end it then.
func (g *guard) foresee(path string) {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeSetuid == 0 || os.Geteuid() == 0 {
		return
	}
	if file, ok := info.Sys().(*syscall.Stat_t); ok && int(file.Uid) != os.Geteuid() {
		g.warned = true
		complain("warning: %s may become user %d. Then user %d may not end it when the lease is lost", printable(path), file.Uid, os.Geteuid())
	}
}

// signal sends a signal to all processes, and reports whether KILL was refused. Signal 0 only looks, once a second.
func (g *guard) signal(sig syscall.Signal) (defied bool) {
	if sig == 0 && (g.warned || g.fuse.lit || now() < g.look) {
		return false
	}
	g.look = now() + int64(time.Second)
	_, defiant := signalAll(g.program, sig, nil)
	switch {
	case len(defiant) == 0:
		return false
	case sig == unix.SIGKILL && !g.defied:
		g.defied = true
		complain("%s, and works on without the lock", defies(defiant))
	case !g.defied && !g.warned:
		g.warned = true
		complain("warning: %s when the lease is lost", defies(defiant))
	}
	return sig == unix.SIGKILL
}

func (g *guard) obey(o order) {
	switch {
	case o.Kill != 0:
		if !g.fuse.lit && g.killer.Stop() { // otherwise KILL may have been sent
			g.fuse.kill = o.Kill
			g.killer.Reset(time.Duration(o.Kill - now()))
		}
		g.report(report{})
	case o.Signal != 0:
		if unix.Kill(-g.program, o.Signal) == unix.EPERM && o.Signal != unix.SIGWINCH {
			complain("user %d may not send %q to the program", os.Geteuid(), o.Signal)
		}
		if o.Signal == unix.SIGTERM || o.Signal == unix.SIGHUP {
			_ = unix.Kill(-g.program, unix.SIGCONT) // as a shell does: one that is stopped would keep the lock for ever
		}
	default:
		g.fuse.lit, g.fuse.kill = true, min(g.fuse.kill, now()+int64(o.End))
		g.killer.Reset(time.Duration(g.fuse.kill - now()))
	}
}

// note takes note of a process that has ended or was stopped.
func (g *guard) note(c change) {
	switch {
	case c.pid != g.program:
	case c.status.Stopped():
		g.report(report{Stopped: c.status.StopSignal()})
	case c.status.Signaled():
		g.ended, g.code = true, exitSignal+int(c.status.Signal())
	case c.status.Exited():
		g.ended, g.code = true, c.status.ExitStatus()
	}
}

// decode returns a channel of what comes down a pipe. It is closed when the other end is.
func decode[T any](pipe io.Reader) <-chan T {
	came := make(chan T)
	go func() {
		defer close(came)
		for d := json.NewDecoder(pipe); ; {
			var value T
			if d.Decode(&value) != nil {
				return
			}
			came <- value
		}
	}()
	return came
}

// report tells the holder something. One that is dead hears nothing.
func (g *guard) report(r report) { _ = json.NewEncoder(g.reports).Encode(r) }

// A change is the end or the stop of a child.
type change struct {
	pid    int
	status unix.WaitStatus
}

// children returns a channel of what happens to the children. It is closed when there are none.
func children() <-chan change {
	changes := make(chan change)
	go func() {
		defer close(changes)
		for {
			var c change
			var err error
			c.pid, err = unix.Wait4(-1, &c.status, unix.WUNTRACED, nil)
			if err == nil {
				changes <- c
			} else if err != unix.EINTR {
				return
			}
		}
	}()
	return changes
}
