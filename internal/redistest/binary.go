package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

const (
	envServer  = "DLOCK_TEST_REDIS_SERVER"
	envRequire = "DLOCK_TEST_REQUIRE_SERVER"
)

// errNoServer is the reason to skip a test.
var errNoServer = errors.New("redistest: there is no redis-server and no valkey-server on PATH: " +
	"install one (apt-get install redis-server, brew install valkey), or set " + envServer + " to its path")

// Installed reports whether Start would find a server, for tests that have an alternative.
func Installed() bool {
	_, err := locate(os.Getenv, exec.LookPath)
	return err == nil
}

// A binary is the program of a server.
type binary struct {
	path string
	name string // for messages
}

func (b binary) String() string { return b.name }

// locate finds the binary. Its error matches errNoServer if the test is to be skipped.
func locate(getenv func(string) string, lookPath func(string) (string, error)) (binary, error) {
	if value := getenv(envServer); value != "" {
		name := fmt.Sprintf("%s=%q", envServer, value)
		path, err := lookPath(value)
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
	if getenv(envRequire) == "1" {
		return binary{}, fmt.Errorf("%s=1, but %v", envRequire, errNoServer)
	}
	return binary{}, errNoServer
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
