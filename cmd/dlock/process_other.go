//go:build unix && !aix && !linux && !solaris

package main

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// now is in nanoseconds. Only the wall clock goes on while the machine is suspended.
func now() int64 { return time.Now().UnixNano() }

func executable() string {
	path, _ := os.Executable() // or "", which does not start
	return path
}

func adoptOrphans() {}

func endWithParent(*syscall.SysProcAttr) {}

func descendants(int, []int) []int { return nil }

func writeInBackground() {}

// signalAll sends a signal to a group. It returns the group if it is there, and its name if this user may not signal any
// of it. Descendants that have left the group are not known.
func signalAll(group int, sig syscall.Signal, _ []int) (found []int, defiant []string) {
	err := signalGroup(group, sig)
	if err == unix.EPERM { // macOS says so of the dead, too, until their parent knows
		time.Sleep(killPause)
		err = signalGroup(group, sig)
	}
	switch err {
	case nil:
		return []int{group}, nil
	case unix.EPERM:
		return []int{group}, []string{"process group " + strconv.Itoa(group)}
	}
	return nil, nil
}
