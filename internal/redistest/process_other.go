//go:build !unix

package redistest

import (
	"os"
	"os/exec"
)

// Interrupt cannot be sent, so Suspend fails.
var (
	sigStop = os.Interrupt
	sigCont = os.Interrupt
)

func dieWithParent(*exec.Cmd) {}

func stopped(int) bool { return false }
