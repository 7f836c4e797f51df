package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// now is a clock that goes on while the machine is suspended, in nanoseconds.
func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails only for a clock that does not exist
	return t.Nano()
}

// executable is the program that runs here, even if its file has been replaced.
func executable() string { return "/proc/self/exe" }

// adoptOrphans makes this process the parent of its descendants whose parents have ended.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// endWithParent has the kernel kill a process when the thread that starts it ends.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// writeInBackground lets the calling goroutine write to a terminal that only the foreground may write to (stty tostop),
// which would stop this process. Its thread ends with it.
func writeInBackground() {
	runtime.LockOSThread()
	var set unix.Sigset_t
	set.Val[0] = 1 << (unix.SIGTTOU - 1)
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil)
}

// signalAll sends a signal to a group, and to the descendants of this process that are not in it. It continues
// those that are stopped: they would not notice TERM. It returns the descendants that it has found alive, and names
// those that this user may not signal. Others are spared, with their descendants.
func signalAll(group int, sig syscall.Signal, others []int) (found []int, defiant []string) {
	found = slices.DeleteFunc(descendants(os.Getpid(), others), dead)
	_ = signalGroup(group, sig) // without an error if one of them has got it
	for _, pid := range found {
		err := unix.Kill(pid, 0)
		if of, gone := unix.Getpgid(pid); gone == nil && of != group {
			err = signalTo(pid, sig)
		}
		if err == unix.EPERM && !dead(pid) {
			name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
			defiant = append(defiant, fmt.Sprintf("process %d (%s)", pid, printable(string(bytes.TrimSpace(name)))))
		}
	}
	return found, defiant
}

// descendants returns the children of a process but for others, theirs, and so on.
func descendants(of int, others []int) (pids []int) {
	children := listed
	if _, err := os.Stat("/proc/thread-self/children"); err != nil { // the kernel has no such files
		children = scanned()
	}
	for next := []int{of}; len(next) > 0; next = next[1:] {
		for _, pid := range children(next[0]) {
			if !slices.Contains(others, pid) {
				pids, next = append(pids, pid), append(next, pid)
			}
		}
	}
	return pids
}

// listed returns the children of a process, as the kernel lists them for each of its threads.
func listed(of int) (pids []int) {
	tasks := "/proc/" + strconv.Itoa(of) + "/task/"
	threads, _ := os.ReadDir(tasks)
	for _, t := range threads {
		list, _ := os.ReadFile(tasks + t.Name() + "/children")
		for _, word := range bytes.Fields(list) {
			if pid, _ := strconv.Atoi(string(word)); pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// scanned returns the same after a look at all processes, which takes a busy machine long.
func scanned() (children func(of int) []int) {
	entries, _ := os.ReadDir("/proc")
	found := make(map[int][]int)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			parent := parentOf(pid)
			found[parent] = append(found[parent], pid)
		}
	}
	return func(of int) []int { return found[of] }
}

// parentOf returns 0 for a process that is gone.
func parentOf(pid int) int {
	parent, _ := strconv.Atoi(stat(pid)[1])
	return parent
}

// dead reports whether no thread of a process is left. Its parent may not know yet.
func dead(pid int) bool {
	s := stat(pid)
	return s[0] == "" || strings.Contains("ZX", s[0]) && s[17] <= "1"
}

// stat returns what the kernel says of a process: its state, its parent, and so on; the 18th is how many threads it has.
// They are empty for one that is gone.
func stat(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return make([]string, 18)
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name in parentheses may contain anything
}
