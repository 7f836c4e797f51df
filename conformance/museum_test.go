package conformance

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/museum"
)

const (
	museumSource = "internal/museum/"
	museumPage   = "../docs/museum.md"
	contractPage = "../docs/contract.md"
)

var rewrite = flag.Bool("update", false, "write "+museumPage)

//go:generate go test -run TestMuseumPage -update .

// museumRounds is how often each exhibit is caught. Once is enough to see that it
// is; many times show that this is no luck.
func museumRounds(t *testing.T) int {
	const variable = "DLOCK_MUSEUM_ROUNDS"
	v, ok := os.LookupEnv(variable)
	if !ok {
		return 1
	}
	n, err := strconv.Atoi(v)
	require.NoError(t, err, variable)
	require.Positive(t, n, variable)
	return n
}

// museumHarness puts the exhibit on a server of its own for each t.
func museumHarness(e museum.Exhibit) Harness {
	var stores sync.Map
	of := func(t *testing.T) *museum.Store {
		s, _ := stores.LoadOrStore(t, e.Open())
		return s.(*museum.Store)
	}
	return Harness{
		New:    func(t *testing.T) dlock.Locker { return of(t).Client() },
		Wipe:   func(t *testing.T) { of(t).Wipe() },
		Count:  func(t *testing.T) int { return of(t).Stored() },
		Bubble: true,
	}
}

// TestMuseum demands that every broken lock is caught by the case that it names.
func TestMuseum(t *testing.T) {
	rounds := museumRounds(t)
	for _, e := range museum.Broken {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			for round := range rounds {
				err := play(t, museumHarness(e), caseNamed(t, e.Case))
				var skip skipError
				require.Errorf(t, err, "round %d of %d: %s does not catch: %s", round+1, rounds, e.Case, e.Flaw)
				require.Falsef(t, errors.As(err, &skip), "%s does not try: %v", e.Case, err)
				require.NotErrorIs(t, err, errInconclusive)
			}
		})
	}
}

// TestMuseumRight demands that the locks that are built in the same way, but have no
// flaw, pass, and that nearly nothing is skipped.
func TestMuseumRight(t *testing.T) {
	skipped := map[string]names{
		"lock": {"SinceIsConservative", "CancelledWait", "WaitEndsOnRelease", "WaitEndsOnExpiry", "WaitEndsOnRemoval", "FirstComeFirstServed", "LongQueue",
			"DeadWaiterIsSkipped", "DeadHostManyWaiters", "HolderAcquiresAgain", "WaiterIsNoHolder", "ReleaseForgets", "UnsupportedSendsNothing", "DecoratorHidesNothing"},
		"queue": {"UnsupportedSendsNothing"},
	}
	rounds := museumRounds(t)
	for _, e := range museum.Right {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			for range rounds {
				for _, c := range cases {
					h := museumHarness(e)
					if needsVia(h) != "" && errors.As(c.needs.missing(h), new(skipError)) {
						continue // there is no network
					}
					err := play(t, h, c)
					var skip skipError
					if errors.As(err, &skip) {
						assert.Contains(t, skipped[e.Name], c.name, skip.reason)
					} else {
						require.NoError(t, err, c.name)
					}
				}
			}
		})
	}
}

// TestMuseumCatalogue makes sure that the catalogue is complete.
func TestMuseumCatalogue(t *testing.T) {
	types := museumTypes(t)
	shown := make(map[string]bool)
	for _, e := range museum.Broken {
		assert.False(t, shown[e.Name], "%s is shown twice", e.Name)
		shown[e.Name] = true
		assert.NotEmpty(t, e.Flaw, e.Name)
		assert.NotEmpty(t, e.Seen, e.Name)
		assert.NotEmpty(t, e.Harm, e.Name)
		assert.Equal(t, e.Room, types[e.Name].file, "the room of %s", e.Name)
		assert.NotEmpty(t, types[e.Name].right(), "the comment of %s does not say what is right", e.Name)
	}
	for _, room := range museum.Rooms {
		for name, typ := range types {
			assert.True(t, typ.file != room.File || shown[name], "%s is in %s, but not in the catalogue", name, room.File)
		}
	}
}

// TestContractPage compares the contract's table with the cases.
func TestContractPage(t *testing.T) {
	page, err := os.ReadFile(contractPage)
	require.NoError(t, err)
	clauses := make(map[string]string)
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if names, ok := strings.CutPrefix(cells[0], "| `"); ok && len(cells) == 2 {
			for name := range strings.SplitSeq(strings.TrimSuffix(names, "`"), "`, `") {
				assert.NotContains(t, clauses, name, "the contract has two clauses of this name")
				clauses[name] = strings.TrimSuffix(cells[1], " |")
			}
		}
	}
	for _, c := range cases {
		assert.Equal(t, clauses[c.name], c.clause, "the clause %s of %s, and the case", c.name, contractPage)
		delete(clauses, c.name)
	}
	assert.Empty(t, clauses, "these clauses have no case")
}

// TestMuseumPage compares the page of the museum with the catalogue; with -update it
// writes the page.
func TestMuseumPage(t *testing.T) {
	want := museumText(t)
	if *rewrite {
		require.NoError(t, os.WriteFile(museumPage, []byte(want), 0o644))
	}
	got, err := os.ReadFile(museumPage)
	require.NoError(t, err)
	assert.Equal(t, want, string(got), "%s is out of date: go generate ./conformance", museumPage)
}

const museumIntroduction = `# The museum of broken locks

A lock that is wrong works nearly always. These are small locks that are wrong, each
in a way of its own: recipes that have been copied for years, defects that real lock
libraries have had, and some that were made, knowing nothing but the documentation, to
try the suite. They are there to be read, ten to fifty lines each, and so that we know that the [conformance suite](../conformance) finds what it looks for: for each
of them there is a case that must fail, and two locks that are right, built in the
same way, must pass all of it.

Begin with the two that are right: [lock.go](../conformance/internal/museum/lock.go),
and [queue.go](../conformance/internal/museum/queue.go), whose waiters stand in line.
They run on a [very small Redis](../conformance/internal/museum/redis.go), in virtual
time: commands take a while to arrive, one client is near the server and another far
from it, and in between the others go on. Then go through the rooms. A name leads to
the code; the comment there says more. Projects and numbers are those of the
issues where it was reported.

The contract that they break is [here](contract.md). To see them caught:

    go test -run TestMuseum -v ./conformance
    DLOCK_MUSEUM_ROUNDS=50 go test -run TestMuseum ./conformance

This page is generated (go generate ./conformance) from the catalogue,
[registry.go](../conformance/internal/museum/registry.go).
`

func museumText(t *testing.T) string {
	types := museumTypes(t)
	var page strings.Builder
	page.WriteString(museumIntroduction)
	for _, room := range museum.Rooms {
		fmt.Fprintf(&page, "\n## %s\n\n| lock | what is wrong | seen | what comes of it | what is right | caught by |\n|---|---|---|---|---|---|\n", room.Title)
		for _, e := range museum.Broken {
			if e.Room == room.File {
				fmt.Fprintf(&page, "| [%s](../conformance/%s%s#L%d) | %s | %s | %s | %s | %s |\n",
					e.Name, museumSource, e.Room, types[e.Name].line, e.Flaw, e.Seen, e.Harm, types[e.Name].right(), e.Case)
			}
		}
	}
	page.WriteString("\n## Who catches whom\n\nWhat a broken lock of the museum is caught by at least. The cases that are not here\ncatch stores that are broken for their sake, in the suite's own tests.\n\n| case | locks |\n|---|---|\n")
	for _, c := range cases {
		var locks names
		for _, e := range museum.Broken {
			if e.Case == c.name {
				locks = append(locks, e.Name)
			}
		}
		if locks != nil {
			fmt.Fprintf(&page, "| %s | %s |\n", c.name, strings.Join(locks, ", "))
		}
	}
	return page.String()
}

// A museumType is a type of the museum's source.
type museumType struct {
	file    string
	line    int
	comment string
}

// right is what its comment says is right.
func (m museumType) right() string {
	_, right, _ := strings.Cut(strings.Join(strings.Fields(m.comment), " "), "Right: ")
	return strings.TrimSuffix(right, ".")
}

func museumTypes(t *testing.T) map[string]museumType {
	types := make(map[string]museumType)
	for _, room := range museum.Rooms {
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, museumSource+room.File, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				name := g.Specs[0].(*ast.TypeSpec).Name.Name
				types[name] = museumType{room.File, files.Position(g.Pos()).Line, g.Doc.Text()}
			}
		}
	}
	require.True(t, slices.ContainsFunc(museum.Broken, func(e museum.Exhibit) bool { return types[e.Name].file != "" }))
	return types
}
