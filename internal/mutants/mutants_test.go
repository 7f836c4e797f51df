package mutants_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/mutants"
)

// A fault in a package is found by its tests, and by nothing else.
func TestFail(t *testing.T) {
	tests := mutants.Tests{In: "internal/pace", Run: "^Test", Says: "--- FAIL"}
	program, err := mutants.Build(t.Context(), t.TempDir(), tests.In, []mutants.Edit{
		{File: "internal/pace/fault.go", New: "package pace\nimport \"time\"\nvar start time.Time\n"},
		{File: "internal/pace/recent.go", Old: "k.until[key] = time.Now()", New: "k.until[key] = start"},
	})
	require.NoError(t, err)
	_, err = tests.Fail(t.Context(), program)
	require.NoError(t, err)
	tests.Says = "something else"
	_, err = tests.Fail(t.Context(), program)
	require.ErrorContains(t, err, "do not find it: exit status 1")
}
