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
// adapter's client library, and that one without needs no other module.
func TestOneClientLibraryEach(t *testing.T) {
	t.Parallel()
	libraries := map[string]string{
		"backend/goredis":    "github.com/redis/go-redis/v9",
		"backend/rueidis":    "github.com/redis/rueidis",
		"backend/redigo":     "github.com/gomodule/redigo",
		"backend/rediscore":  "",
		"backend/memory":     "",
		"backend/redlock":    "",
		"election":           "",
		"fence":              "",
		"once":               "",
		"semaphore":          "",
		"examples/inventory": "", // the first command of the README
	}
	args := []string{"list", "-deps", "-f", `{{.ImportPath}};{{with .Module}}{{.Path}}{{end}};{{join .Imports " "}};{{join .Deps " "}}`}
	for pkg := range libraries {
		args = append(args, root+"/"+pkg)
	}
	out, err := exec.Command("go", args...).Output()
	require.NoError(t, err)
	module, imports, deps := make(map[string]string), make(map[string]string), make(map[string]string)
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), ";")
		module[fields[0]], imports[fields[0]], deps[fields[0]] = fields[1], fields[2], fields[3]
	}
	for pkg, of := range module {
		for _, imported := range strings.Fields(imports[pkg]) { // GODEBUG=fips140=only does not allow these
			forbidden := slices.Contains([]string{"crypto/des", "crypto/dsa", "crypto/md5", "crypto/rc4", "crypto/sha1"}, imported)
			require.False(t, of == root && forbidden, "%s imports %s", pkg, imported)
		}
	}
	modules := func(packages string) (all []string) { // without the standard library
		for _, pkg := range strings.Fields(packages) {
			if m := module[pkg]; m != "" {
				all = append(all, m)
			}
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	for pkg, library := range libraries {
		want := []string{root}
		if library != "" {
			want = append(want, library)
		}
		require.ElementsMatch(t, want, modules(imports[root+"/"+pkg]), "modules that %s imports", pkg)
		clients := slices.DeleteFunc(modules(deps[root+"/"+pkg]), func(m string) bool { // without what these need themselves
			return library != "" && m != root && !strings.Contains(m, "redi") && !strings.Contains(m, "rueidis")
		})
		require.ElementsMatch(t, want, clients, "client libraries that %s needs", pkg)
	}
}
