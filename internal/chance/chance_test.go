package chance_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/israce"
)

type draws struct {
	n    time.Duration
	bits [16]byte
	text string
}

func draw() draws { return draws{chance.N(time.Hour), chance.Bits(), chance.Text()} }

// A seed repeats the draws of all kinds, until it ends. Without one they differ.
func TestSeed(t *testing.T) {
	from := func(seed uint64) draws {
		defer chance.Seed(seed)()
		return draw()
	}
	require.Equal(t, from(1), from(1))
	differ := func(a, b draws) {
		t.Helper()
		require.NotEqual(t, a.n, b.n)
		require.NotEqual(t, a.bits, b.bits)
		require.NotEqual(t, a.text, b.text)
	}
	differ(from(1), from(2))
	differ(from(1), draw())
	differ(draw(), draw())
	require.Len(t, chance.Text(), 26)

	first := from(1)
	defer chance.Seed(1)()
	require.Panics(t, func() { chance.Seed(2) })
	require.Equal(t, first, draw(), "of the seed that is in force")
}

// Draws of the default cost no memory.
func TestNoAllocation(t *testing.T) {
	if israce.Enabled {
		t.Skip("the race detector allocates")
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		chance.N(time.Hour)
		chance.Bits()
	}))
}

// No package that users import draws from another source.
func TestOnlySource(t *testing.T) {
	root := filepath.Join("..", "..")
	sources := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			switch d.Name() {
			case "internal", "conformance", "examples", "testdata", ".git": // tests, and programs
				return filepath.SkipDir
			}
			if nested == nil && path != root {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		sources++
		for _, i := range f.Imports {
			if name := strings.Trim(i.Path.Value, `"`); name == "crypto/rand" || strings.HasPrefix(name, "math/rand") {
				t.Errorf("%s imports %s: draw from internal/chance", path, name)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, sources, 50)
}
