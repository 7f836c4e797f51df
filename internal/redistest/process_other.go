//go:build !unix

package redistest

import (
	"os"
	"os/exec"
)

// Only Kill works everywhere. Interrupt cannot be sent, so Suspend fails.
var (
	sigTerm = os.Kill
	sigStop = os.Interrupt
	sigCont = os.Interrupt
)

func dieWithParent(*exec.Cmd) {}

func stopped(int) bool { return false }
