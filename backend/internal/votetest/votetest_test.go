package votetest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/memory"
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

// Each broken Voter breaks the clauses that it names, and no other.
func TestFlaws(t *testing.T) {
	broken := make(map[string]bool)
	for _, f := range flaws {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var found []string
			for _, c := range clauses {
				if Fails(t, func(_ *testing.T, o require.TestingT) {
					m := memory.New()
					c.play(o, Store{New: func() Client { return &voter{Locker: m, hook: f.hook} }, Wipe: m.Wipe}, tries-1)
				}) {
					found = append(found, c.name)
				}
			}
			require.Equal(t, f.breaks, found, "%s %s", f.wrong, f.harm)
		})
		for _, name := range f.breaks {
			broken[name] = true
		}
	}
	for _, c := range clauses {
		require.True(t, broken[c.name], "no broken Voter shows that the check of %s finds anything", c.name)
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
