package main

import (
	"bytes"
	"os"
	"slices"
	"strconv"
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

// signalAll sends a signal to a group, and to the descendants of this process that are not in it. It continues
// those that are stopped: they would not notice TERM. It reports whether there was one. Others are spared, with their
// descendants.
func signalAll(group int, sig syscall.Signal, others []int) bool {
	lives := signalGroup(group, sig)
	all := descendants(os.Getpid(), others)
	for _, pid := range all {
		if of, err := unix.Getpgid(pid); err == nil && of != group {
			_ = unix.Kill(pid, sig)
			_ = unix.Kill(pid, unix.SIGCONT)
		}
	}
	return lives || len(all) > 0
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
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name in parentheses may contain anything
	parent, _ := strconv.Atoi(string(fields[1]))
	return parent
}
