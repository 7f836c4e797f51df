//go:build unix && !linux

package redistest

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

func dieWithParent(*exec.Cmd) {}

// stopped reports whether the process is suspended.
func stopped(pid int) bool {
	state, _ := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return strings.HasPrefix(strings.TrimSpace(string(state)), "T")
}
