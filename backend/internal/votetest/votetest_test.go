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
