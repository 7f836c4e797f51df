//go:build unix && !aix && !solaris

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock"
)

// catch sends signals to a channel. Those that are ignored, as under nohup, stay so.
func catch(to chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
}

// waiting returns a ctx that ends with the first signal that asks for an end, until stop is called. Its cause is then
// an exit.
func waiting(ctx context.Context, signals <-chan os.Signal) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case s := <-signals:
				if s != unix.SIGWINCH && s != unix.SIGUSR1 && s != unix.SIGUSR2 {
					cancel(exit{exitSignal + int(s.(syscall.Signal)), nil})
				}
			case <-over:
				return
			}
		}
	})
	return ctx, sync.OnceFunc(func() {
		close(over)
		reading.Wait()
	})
}

// A holder has a lease, and a guard whose child is the program.
type holder struct {
	lease   *dlock.Lease
	lost    <-chan struct{} // closed when the lease is lost; nil once that was said
	grace   time.Duration
	look    time.Duration // between two orders
	orders  *json.Encoder
	reports <-chan report
	guard   *os.Process
	group   int   // of the program
	others  []int // descendants that were there before: children of a shell that has exec'd dlock
	tty     *terminal
	halting bool // TSTP was passed on, and this process is to stop with the program
}

// silence is how long the guard may say nothing.
const silence = 5 * time.Second

// hold runs the program while the lease is held. Unless it succeeds, the error is an exit. When hold returns, the
// program and its group are dead.
func (r *run) hold(lease *dlock.Lease, signals chan os.Signal) error {
	h := &holder{lease: lease, lost: lease.Done(), grace: r.grace, look: min(lookPause, r.ttl/10), tty: openTerminal()}
	r.say("%s is held, with fence %d", printable(lease.Key()), lease.Fence())
	if time.Until(lease.Deadline()) < r.ttl*9/10 { // it is short at first, after a wait
		if err := lease.Renew(context.Background()); err != nil {
			return err
		}
	}
	catch(signals, unix.SIGTSTP)
	h.others = descendants(os.Getpid(), nil)
	adoptOrphans()
	if err := h.start(r.command); err != nil {
		return exit{exitOwnFault, fmt.Errorf("the guard does not start: %w", err)}
	}
	defer h.tty.takeBack()
	if code := h.watch(signals); code != 0 {
		return exit{code, nil}
	}
	return nil
}

// start starts the guard.
func (h *holder) start(command []string) error {
	orders, out, err := os.Pipe()
	in, reports, err2 := os.Pipe()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	defer orders.Close()
	defer reports.Close()
	settings, _ := json.Marshal(guardSettings{h.grace, h.tty != nil && h.tty.lent, orders.Fd(), reports.Fd()})
	guard := exec.Command(executable(), append([]string{guardCommand, string(settings)}, command...)...)
	guard.Args[0] = os.Args[0]
	guard.Env = append(os.Environ(), "DLOCK_KEY="+h.lease.Key(), fmt.Sprintf("DLOCK_FENCE=%d", h.lease.Fence()))
	guard.Stdin, guard.Stdout, guard.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The guard finds these under their numbers: those of ExtraFiles could be of files that the program inherits.
	for _, f := range []*os.File{orders, reports} {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h.orders = json.NewEncoder(out)
	h.tell(order{Kill: now() + int64(h.left())})
	if err := guard.Start(); err != nil {
		return err
	}
	h.guard = guard.Process
	h.reports = decode[report](in)
	return nil
}

// left is the time until the guard sends KILL at the latest. A busy machine may run it late: a long lease has room for that.
func (h *holder) left() time.Duration { return time.Until(h.lease.Deadline()) - max(margin, h.look) }

// tell gives the guard an order. One that is dead is noticed by its silence.
func (h *holder) tell(o order) { _ = h.orders.Encode(o) }

// watch returns when the program is dead, with its exit code.
func (h *holder) watch(signals <-chan os.Signal) (code int) {
	var (
		timer      = time.NewTimer(h.look)
		unanswered int       // orders. The time counts for nothing: this process may have been stopped
		end        time.Time // of the grace, once the lease is lost
	)
	for {
		select {
		case r, ok := <-h.reports:
			unanswered = 0
			switch {
			case !ok:
				return h.endAll("the guard is dead")
			case r.Ended:
				return h.ended(r)
			case r.Stopped != 0:
				h.suspend(r.Stopped)
			case r.Group != 0:
				h.group = r.Group
			}
		case s := <-signals:
			h.halting = h.halting || s == unix.SIGTSTP
			h.tell(order{Signal: s.(syscall.Signal)})
		case <-h.lost:
			pause := min(h.grace, time.Second)
			end = time.Now().Add(pause)
			h.tell(order{End: pause})
			h.sayLost()
		case <-timer.C:
			left := h.left()
			if h.lost == nil {
				left = time.Until(end)
			}
			if unanswered < 3 { // the guard may only be late
				left += margin / 2
			}
			if unanswered > int(silence/h.look) || left <= 0 && unanswered > 0 {
				return h.endAll("the guard is silent")
			}
			unanswered++
			h.tell(order{Kill: now() + int64(h.left())})
			timer.Reset(max(killPause, min(h.look, left)))
		}
	}
}

func (h *holder) sayLost() {
	h.lost = nil
	complain("the lease of %s is lost: %v", printable(h.lease.Key()), h.lease.Err())
}

// ended returns the exit code after the last report of the guard.
func (h *holder) ended(last report) (code int) {
	hangs := time.AfterFunc(silence, func() { _ = h.guard.Kill() })
	_, _ = h.guard.Wait()
	hangs.Stop()
	if !last.Lost {
		return last.Code
	}
	if h.lost != nil && !last.Defied { // otherwise it was said
		complain("the lease of %s was not renewed, or --max-hold has passed: the program was ended", printable(h.lease.Key()))
	}
	return exitLost
}

// endAll kills everything, in place of the guard. It waits for what it may not kill, with the lock if that is not lost.
func (h *holder) endAll(why string) (code int) {
	if code = exitOwnFault; h.left() <= 0 {
		code = exitLost
	}
	_ = h.guard.Kill() // elsewhere than on Linux, it is not found as a descendant
	how := "the program has ended"
	for defied := false; ; {
		found, defiant := signalAll(h.group, unix.SIGKILL, h.others)
		changed := reap() // not while descendants are looked for
		pause := killPause
		switch {
		case len(found) == 0 && !changed:
			complain("%s: %s", why, how)
			return code
		case len(defiant) > 0:
			if pause = lookPause; !defied {
				complain("%s: %s, and works on. dlock waits for its end", why, defies(defiant))
			}
			defied, how = true, "the program has ended by itself"
		case !defied && slices.ContainsFunc(found, func(pid int) bool { return pid != h.guard.Pid }):
			how = "the program was killed"
		}
		select {
		case <-h.lost:
			h.sayLost()
			code = exitLost
		case <-time.After(pause):
		}
	}
}

// reap reports whether children were found dead. Theirs, which the last look at the descendants may have missed, are
// then children of this process.
func reap() (some bool) {
	for {
		if pid, _ := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 {
			return some
		}
		some = true
	}
}

// signalGroup sends a signal to a process group, and continues it: one that is stopped would not notice TERM. Signal 0
// only finds out whether it may.
func signalGroup(group int, sig syscall.Signal) error {
	if group == 0 {
		return unix.ESRCH
	}
	return signalTo(-group, sig)
}

func signalTo(pid int, sig syscall.Signal) error {
	err := unix.Kill(pid, sig)
	if err == nil && sig != 0 {
		_ = unix.Kill(pid, unix.SIGCONT)
	}
	return err
}

// defies says that processes cannot be ended.
func defies(processes []string) string {
	return fmt.Sprintf("user %d may not end %s", os.Geteuid(), strings.Join(processes, ", "))
}
