package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRulesOfTheHouse checks what a program can check of the rules in CONTRIBUTING.md.
func TestRulesOfTheHouse(t *testing.T) {
	files, err := filepath.Glob("../*.go")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(files), 32, "files of package dlock")
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && strings.HasSuffix(f.Name.Name, "Locked") {
				assert.False(t, unlocks(f.Body), "%s: %s unlocks or waits", path, f.Name.Name)
			}
		}
		return nil
	}))
}

// unlocks reports whether a function itself unlocks a mutex, or waits.
func unlocks(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		case *ast.SelectorExpr:
			name := n.Sel.Name
			found = found || strings.HasSuffix(name, "Unlocking") || slices.Contains([]string{"Unlock", "unlock", "RUnlock", "Wait", "Sleep"}, name)
		}
		return true
	})
	return found
}
