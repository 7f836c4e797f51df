package votetest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The package documentation of quorum lists the clauses.
func TestClausesAreDocumented(t *testing.T) {
	source, err := os.ReadFile("../../quorum/quorum.go")
	require.NoError(t, err)
	doc, _, _ := strings.Cut(strings.ReplaceAll(string(source), "//", ""), "package quorum")
	doc = strings.Join(strings.Fields(doc), " ")
	require.Equal(t, len(clauses), strings.Count(doc, " - "), "clauses of the list")
	for _, c := range clauses {
		require.Contains(t, doc, " - "+c.name+": "+c.text)
	}
}

// A clause that nobody could check fails in CI.
func TestTooSlow(t *testing.T) {
	for strict, want := range map[string]string{"": "skipped", "0": "skipped", "1": "failed"} {
		t.Setenv("DLOCK_CONFORMANCE_STRICT", strict)
		var end ending
		tooSlow(&end)
		require.Equal(t, want, string(end), "DLOCK_CONFORMANCE_STRICT=%s", strict)
	}
}

// An ending is how a test has ended.
type ending string

func (e *ending) Skipf(string, ...any)  { *e = "skipped" }
func (e *ending) Fatalf(string, ...any) { *e = "failed" }
