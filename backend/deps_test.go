package backend_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "github.com/dlock-go/dlock"

// TestOneClientLibraryEach checks that an application with one adapter builds only that
// adapter's client library.
func TestOneClientLibraryEach(t *testing.T) {
	for pkg, client := range map[string]string{
		"goredis":   "github.com/redis/go-redis/v9",
		"rueidis":   "github.com/redis/rueidis",
		"redigo":    "github.com/gomodule/redigo",
		"rediscore": "",
		"memory":    "",
		"redlock":   "",

		"../election": "",
		"../fence":    "",
		"../once":     "",
	} {
		want := []string{root}
		if client != "" {
			want = append(want, client)
		}
		require.ElementsMatch(t, want, modules(t, pkg, "{{join .Imports \"\\n\"}}"), "modules that %s imports", pkg)
		require.ElementsMatch(t, want, clients(modules(t, pkg, "{{join .Deps \"\\n\"}}")), "client libraries that %s needs", pkg)
	}
}

// modules returns the modules that go list prints for pkg with a format, without the
// standard library.
func modules(t *testing.T, pkg, format string) []string {
	t.Helper()
	packages := goList(t, "-f", format, "./"+pkg)
	return goList(t, append([]string{"-f", "{{with .Module}}{{.Path}}{{end}}"}, packages...)...)
}

// goList returns the different lines of go list.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	out, err := cmd.Output()
	require.NoError(t, err, "%v", cmd)
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	return slices.Compact(lines)
}

// clients returns the client libraries among modules, without what these need themselves.
func clients(modules []string) []string {
	return slices.DeleteFunc(modules, func(m string) bool {
		return m != root && !strings.Contains(m, "redi") && !strings.Contains(m, "rueidis")
	})
}
