package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A repository with four modules: bench is not released, and cmd/tool is a program.
var repository = map[string]string{
	"CHANGELOG.md":     "# Changelog\n\n## v0.2.0\n\n## v0.1.0\n",
	"go.mod":           "module example.com/lock\n\ngo 1.26.0\n",
	"lock.go":          "package lock\n\nfunc Lock() {}\n",
	"watch/go.mod":     "module example.com/lock/watch\n\ngo 1.26.0\n\nrequire example.com/lock v0.2.0\n\nreplace example.com/lock => ../\n",
	"watch/watch.go":   "package watch\n\nimport \"example.com/lock\"\n\nfunc Watch() { lock.Lock() }\n",
	"bench/go.mod":     "// Not released: this module is for a clone of the repository.\nmodule example.com/lock/bench\n\ngo 1.26.0\n",
	"bench/bench.go":   "package bench\n\nvar Bench int\n",
	"backend/text.go":  "package backend\n\nimport _ \"embed\"\n\n//go:embed text\nvar Text string\n",
	"backend/text":     "text",
	"cmd/tool/go.mod":  "module example.com/lock/cmd/tool\n\ngo 1.26.0\n\nrequire example.com/lock v0.2.0\n\nreplace example.com/lock => ../..\n",
	"cmd/tool/main.go": "package main\n\nimport _ \"example.com/lock\"\n\nfunc main() {}\n",
}

func TestRelease(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, root string)
		want   string // the error; none if it is empty
	}{
		"as it should be": {func(*testing.T, string) {}, ""},
		"a module requires no version that there will be": {
			replace("watch/go.mod", "lock v0.2.0", "lock v0.0.0"),
			"example.com/lock/watch requires example.com/lock@v0.0.0, not v0.2.0",
		},
		"a module that is not released does so": {
			replace("bench/go.mod", "go 1.26.0\n", "go 1.26.0\n\nrequire example.com/lock v0.1.0\n"),
			"example.com/lock/bench requires example.com/lock@v0.1.0, not v0.2.0",
		},
		"a module needs one that is not released": {
			func(t *testing.T, root string) {
				replace("watch/go.mod", "lock v0.2.0", "lock/bench v0.2.0")(t, root)
				replace("watch/watch.go", "example.com/lock\"", "example.com/lock/bench\"")(t, root)
				replace("watch/watch.go", "lock.Lock()", "_ = bench.Bench")(t, root)
			},
			"example.com/lock/watch@v0.2.0 cannot be installed",
		},
		"a file is in a clone, but not in a zip": {
			func(t *testing.T, root string) {
				require.NoError(t, os.Rename(filepath.Join(root, "backend/text"), filepath.Join(root, "text")))
				require.NoError(t, os.Symlink("../text", filepath.Join(root, "backend/text")))
			},
			"pattern text: no matching files found",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range repository {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
			}
			c.change(t, root)
			var out bytes.Buffer
			err := try(&out, root, nil)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.Regexp(t, "\tv0.2.0\n\tcmd/tool/v0.2.0\n\twatch/v0.2.0\n$", out.String())
		})
	}
}

// replace returns a change that replaces a text in a file.
func replace(file, old, new string) func(t *testing.T, root string) {
	return func(t *testing.T, root string) {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		require.Contains(t, string(text), old)
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(strings.Replace(string(text), old, new, 1)), 0o600))
	}
}
