package mutants_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/mutants"
)

// A fault in a package is found by its tests, and by nothing else.
func TestFind(t *testing.T) {
	f := mutants.Fault{
		Edits: []mutants.Edit{
			{File: "internal/recent/fault.go", New: "package recent\nimport \"time\"\nvar start time.Time\n"},
			{File: "internal/recent/recent.go", Old: "k.until[key] = time.Now()", New: "k.until[key] = start"},
		},
		Tests: mutants.Tests{In: "internal/recent", Run: "^Test", Says: "--- FAIL"},
	}
	_, err := f.Find(t.Context(), t.TempDir())
	require.NoError(t, err)
	f.Says = "something else"
	_, err = f.Find(t.Context(), t.TempDir())
	require.ErrorContains(t, err, "do not find it: exit status 1")
}
