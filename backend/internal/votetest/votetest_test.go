package votetest

import (
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

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

// An outcome is that of a clause which may fail without this test.
type outcome struct{ failed bool }

func (o *outcome) Errorf(string, ...any) { o.failed = true }

// FailNow ends the check, whose goroutine has nothing else to do.
func (o *outcome) FailNow() {
	o.failed = true
	runtime.Goexit()
}

// Each broken Voter breaks the clauses that it names, and no other.
func TestFlaws(t *testing.T) {
	broken := make(map[string]bool)
	for _, f := range flaws {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var found []string
			for _, c := range clauses {
				o := new(outcome)
				synctest.Test(t, func(*testing.T) {
					m := memory.New()
					store := Store{New: func() Client { return &voter{Locker: m, hook: f.hook} }, Wipe: m.Wipe}
					var check sync.WaitGroup
					check.Go(func() { c.play(o, store, tries-1) })
					check.Wait()
				})
				if o.failed {
					found = append(found, c.name)
				}
			}
			require.Equal(t, f.breaks, found)
		})
		for _, name := range f.breaks {
			broken[name] = true
		}
	}
	for _, c := range clauses {
		require.True(t, broken[c.name], "no broken Voter shows that the check of %s finds anything", c.name)
	}
}
