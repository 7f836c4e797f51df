package redistest

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// envAsked is the variable of the package documentation.
const envAsked = "DLOCK_REDIS"

// Asked reports whether tests use real servers, networks and time, for those that have an alternative.
func Asked() bool { return os.Getenv(envAsked) != "" }

// Real skips t unless Asked. Start and its like do so too: Real is for a test without a server
// that waits for a real network, or for real time.
func Real(t testing.TB) {
	t.Helper()
	if !Asked() {
		t.Skip("it is left out unless " + envAsked + "=1 is set, or the path of a server")
	}
}

// find returns the path of the program that is asked for. A test that has not asked for one is skipped.
func find(t testing.TB) (path string) {
	t.Helper()
	Real(t)
	asked := os.Getenv(envAsked)
	if asked != "1" {
		path, err := exec.LookPath(asked)
		if err != nil {
			t.Fatalf("redistest: %s=%q: %v", envAsked, asked, err)
		}
		return path
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("redistest: " + envAsked + "=1, but there is no redis-server and no valkey-server on PATH: " +
		"install one (apt-get install redis-server, brew install valkey), or set " + envAsked + " to its path")
	return ""
}

// options returns the options that not every version of a program supports.
func options(path string) (args []string) {
	major := major(path)
	if major >= 6 {
		// A replica would load its last copy of the master when it restarts.
		args = append(args, "--rdb-del-sync-files", "yes")
	}
	if major >= 7 {
		args = append(args, "--enable-debug-command", "local")
	}
	return args
}

var version = regexp.MustCompile(`\bv=(\d+)\.`)

// major returns the major version of a program, or 0 if it is unknown.
func major(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, path, "--version").Output()
	if m := version.FindSubmatch(out); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		return n
	}
	return 0
}
