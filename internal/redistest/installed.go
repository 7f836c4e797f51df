package redistest

import (
	"os"
	"os/exec"
)

// Installed reports whether Start would find a server, for tests that have an alternative.
func Installed() bool {
	_, err := locate(os.Getenv, exec.LookPath)
	return err == nil
}
