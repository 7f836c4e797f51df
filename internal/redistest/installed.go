package redistest

import (
	"os"
	"os/exec"
)

// Installed reports whether there is a server that Start can start, for those who
// can do with something else.
func Installed() bool {
	_, err := locate(os.Getenv, exec.LookPath)
	return err == nil
}
