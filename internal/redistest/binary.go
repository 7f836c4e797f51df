package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// envAsked is the variable of the package documentation.
const envAsked = "DLOCK_REDIS"

// errNotAsked is the reason to skip a test.
var errNotAsked = errors.New("it is left out unless " + envAsked + "=1 is set, or the path of a server")

// Asked reports whether tests use real servers, networks and time, for those that have an alternative.
func Asked() bool { return os.Getenv(envAsked) != "" }

// Real skips t unless Asked. Start and its like do so too: Real is for a test without a server
// that waits for a real network, or for real time.
func Real(t testing.TB) {
	t.Helper()
	if !Asked() {
		t.Skip(errNotAsked)
	}
}

// A binary is the program of a server.
type binary struct {
	path string
	name string // for messages
}

func (b binary) String() string { return b.name }

// locate finds the binary that is asked for.
func locate(asked string, lookPath func(string) (string, error)) (binary, error) {
	if asked != "1" {
		name := fmt.Sprintf("%s=%q", envAsked, asked)
		path, err := lookPath(asked)
		if err != nil {
			return binary{}, fmt.Errorf("redistest: %s: %w", name, err)
		}
		return binary{path, name}, nil
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := lookPath(name); err == nil {
			return binary{path, path}, nil
		}
	}
	return binary{}, errors.New("redistest: " + envAsked + "=1, but there is no redis-server and no valkey-server on PATH: " +
		"install one (apt-get install redis-server, brew install valkey), or set " + envAsked + " to its path")
}

// options returns the options that not every version supports.
func (b binary) options() (args []string) {
	major := b.major()
	if major >= 6 {
		// A replica would load its last copy of the master when it restarts.
		args = append(args, "--rdb-del-sync-files", "yes")
	}
	if major >= 7 {
		// Stop would wait 10 s for a replica that does not answer.
		args = append(args, "--enable-debug-command", "local", "--shutdown-timeout", "1")
	}
	return args
}

var version = regexp.MustCompile(`\bv=(\d+)\.`)

// major returns the server's major version, or 0 if it is unknown.
func (b binary) major() int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, b.path, "--version").Output()
	if m := version.FindSubmatch(out); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		return n
	}
	return 0
}
