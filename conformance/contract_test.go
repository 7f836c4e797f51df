package conformance

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const contractPage = "../docs/contract.md"

var rewrite = flag.Bool("update", false, "write the page that is generated")

//go:generate go test -run TestContractPage -update .

// TestContractPage compares the page of the contract with the cases; with -update it writes the page.
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

What a backend promises. The case of that name in the [conformance suite](../conformance) checks each
clause. The [package documentation](../doc.go) explains the words.

**The short path.** These clauses make a lock, and a new backend makes them pass first: Exclusion, HeldIsUntouched and
SameTokenAgain; RenewExtends, RenewNeverShortens, RenewByStranger and RenewAfterExpiry; ReleaseFrees, ReleaseByStranger
and ReleaseAfterExpiry; Expiry and NotBefore. Then come FenceRises, NoEffect and LostReply: what a holder may rely on when
something fails. The others follow.

A backend may lack a queue, fences (each is 0), BatchRenewer, SetAcquirer or Inspector. The suite finds out, or the
Harness says so, and it skips these cases with the reason. Nothing else is optional.

Generated from the files named below: go generate ./conformance
`

func contractText() string {
	var page strings.Builder
	page.WriteString(contractIntroduction)
	for _, c := range chapters {
		subject := c.subject()
		fmt.Fprintf(&page, "\n## %s\n\n%s … ([%s](../conformance/%[3]s))\n\n", c.title, subject, c.file())
		for _, c := range c.cases {
			fmt.Fprintf(&page, "- **%s**: %s\n", c.name, strings.TrimPrefix(c.clause.text, subject+" "))
		}
	}
	return page.String()
}

// subject returns the words with which all clauses of the chapter begin.
func (c chapter) subject() string {
	first := strings.Fields(c.cases[0].clause.text)
	for n := len(first); ; n-- {
		subject := strings.Join(first[:n], " ")
		if !slices.ContainsFunc(c.cases, func(c testCase) bool { return !strings.HasPrefix(c.clause.text, subject+" ") }) {
			return subject
		}
	}
}

// Each chapter's table stands in one file, and each clause is a sentence or several.
func TestChapters(t *testing.T) {
	names := make(map[string]bool)
	for _, chapter := range chapters {
		for _, c := range chapter.cases {
			assert.Equal(t, chapter.file(), c.clause.file(), c.name)
			assert.Regexp(t, `^(A backend|A BatchRenewer|A SetAcquirer|An Inspector) .*\.$`, c.clause.text, c.name)
			assert.False(t, names[c.name], "two cases are named %s", c.name)
			names[c.name] = true
		}
	}
}
