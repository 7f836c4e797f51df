//go:build unix && !aix && !linux && !solaris

package main

import (
	"os"
	"syscall"
	"time"
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

// signalAll sends a signal to a group, and reports whether it was there. Descendants that have left it are not known.
func signalAll(group int, sig syscall.Signal, _ []int) bool { return signalGroup(group, sig) }
