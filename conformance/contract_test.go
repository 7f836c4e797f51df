package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const contractPage = "../docs/contract.md"

//go:generate go test -run TestContractPage -update .

// TestContractPage compares the page of the contract with the cases; with -update it writes
// the page.
func TestContractPage(t *testing.T) {
	want := contractText()
	if *rewrite {
		require.NoError(t, os.WriteFile(contractPage, []byte(want), 0o644))
	}
	got, err := os.ReadFile(contractPage)
	require.NoError(t, err)
	assert.Equal(t, want, string(got), "%s is out of date: go generate ./conformance", contractPage)
}

const contractIntroduction = `# The contract of a Locker

These are the promises that a backend makes to those who lock with it. Each clause is checked
by the case of that name in the [conformance suite](../conformance). The words (key, token,
TTL, lease, fence, holder, waiter) are explained in the [package documentation](../doc.go).

Some backends have no queue, or no fences: then nobody waits, or each fence is 0. Some do not
implement BatchRenewer, Inspector or Voter. The suite finds out, or the Harness says so, and skips
these cases with the reason. Everything else is demanded of every backend.

The [museum of broken locks](museum.md) has the same chapters. It shows what happens when a clause
is broken.

This page is generated (go generate ./conformance) from the tables at the beginning of the
files named below.
`

func contractText() string {
	var page strings.Builder
	page.WriteString(contractIntroduction)
	for _, c := range chapters {
		fmt.Fprintf(&page, "\n## %s\n\nThe checks are in [%s](../conformance/%s).\n\n| case | clause |\n|---|---|\n", c.title, c.file(), c.file())
		for _, c := range c.cases {
			fmt.Fprintf(&page, "| %s | %s |\n", c.name, c.clause.text)
		}
	}
	return page.String()
}

// Each chapter's table stands in one file, and each clause is a sentence or several.
func TestChapters(t *testing.T) {
	names := make(map[string]bool)
	for _, chapter := range chapters {
		for _, c := range chapter.cases {
			assert.Equal(t, chapter.file(), c.clause.file, c.name)
			assert.Regexp(t, `^(A backend|A BatchRenewer|An Inspector|A Voter) .*\.$`, c.clause.text, c.name)
			assert.False(t, names[c.name], "two cases are named %s", c.name)
			names[c.name] = true
		}
	}
}
