package conformance

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/conformance/internal/museum"
	night "github.com/dlock-go/dlock/internal/long"
)

const (
	museumSource = "internal/museum/"
	museumPage   = "../docs/museum.md"
)

var rewrite = flag.Bool("update", false, "write the pages that are generated")

//go:generate go test -run TestMuseumPage -update .

// museumRounds is how often each exhibit is caught. Once is enough to see that it
// is; many times show that this is no luck.
func museumRounds(t *testing.T) int {
	v := night.Of("museum")
	if v == "" {
		return 1
	}
	n, err := strconv.Atoi(v)
	require.NoError(t, err)
	require.Positive(t, n)
	return n
}

// mustCatch returns the cases that must catch e in a bubble: none, if it takes a network.
func mustCatch(e museum.Exhibit) names {
	if e.BeyondModel || e.Sporadic || e.Cases == nil {
		return e.Cases
	}
	return append(slices.Clone(e.Cases), "AgreesWithModel")
}

// byChance are the cases whose calls are random. A broken lock may be lucky in one of fifty,
// but not in five that follow each other.
var byChance = names{"History", "HistoryAcrossDataLoss", "GuardedCounter", "GuardedRegister"}

// TestMuseum demands that every broken lock is caught by the cases that it names, and by
// the model.
func TestMuseum(t *testing.T) {
	rounds := museumRounds(t)
	for _, e := range exhibits() {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			for round := range rounds {
				for _, name := range mustCatch(e) {
					if testing.Short() && name == "AgreesWithModel" {
						continue // package rapid makes too few checks
					}
					h := museumHarness(e)
					h.explore = time.Minute // the same sequences on a busy machine
					err := play(t, h, caseNamed(t, name))
					for more := 4; slices.Contains(byChance, name) && more > 0 && (err == nil || errors.Is(err, errInconclusive)); more-- {
						err = play(t, museumHarness(e), caseNamed(t, name))
					}
					var skip skipError
					require.Errorf(t, err, "round %d of %d: %s does not catch it", round+1, rounds, name)
					require.Falsef(t, errors.As(err, &skip), "%s does not try: %v", name, err)
					require.NotErrorIs(t, err, errInconclusive)
					showsWhatItNames(t, err)
				}
			}
		})
	}
}

// TestMuseumRight demands that the locks that are built in the same way, but have no
// flaw, pass, and that nearly nothing is skipped.
func TestMuseumRight(t *testing.T) {
	skipped := map[string]names{
		"lock": {"SinceIsConservative", "CancelledWait", "WaitEndsOnRelease", "WaitEndsOnExpiry", "WaitEndsOnRemoval", "FirstComeFirstServed", "LongQueue",
			"DeadWaiterIsSkipped", "DeadHostManyWaiters", "HolderAcquiresAgain", "WaiterIsNoHolder", "ReleaseForgets", "OneReleaseSettles", "HeldSinceTheGrant", "UnsupportedSendsNothing", "DecoratorHidesNothing", "SetOvertakesNobody"},
		"queue":       {"UnsupportedSendsNothing"},
		"near":        {"UnsupportedSendsNothing"},
		"unfenced":    {"UnsupportedSendsNothing", "FenceRises", "FenceSurvivesIdleness", "FenceSurvivesDataLoss", "GuardedRegister"},
		"joinsErrors": {"OneReleaseSettles"},
	}
	rounds := museumRounds(t)
	for _, e := range museum.Right {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			for range rounds {
				for _, c := range cases {
					if e.Cases != nil && !slices.Contains(e.Cases, c.name) {
						continue
					}
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

// TestMuseumCatalogue makes sure that every exhibit is in its chapter's list, and that the
// comment of its type says all that the page shows.
func TestMuseumCatalogue(t *testing.T) {
	for _, c := range museum.Chapters {
		comments := museumComments(t, c)
		shown := make(map[string]bool)
		for _, e := range c.Exhibits {
			assert.False(t, shown[e.Name], "%s is in the list of %s twice", e.Name, c.File)
			shown[e.Name], shown[declaration(e)] = true, true
			for _, label := range museumLabels {
				if told := comments[declaration(e)].told(label); label != "Seen: " {
					assert.NotEmpty(t, told, "%s in %s: %q", e.Name, c.File, label)
				}
			}
		}
		for name, comment := range comments {
			assert.True(t, shown[name] || comment.told("Right: ") == "", "%s is not in the list of %s", name, c.File)
		}
	}
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
	assert.Truef(t, want == string(got), "%s is out of date: go generate ./conformance", museumPage)
}

const museumIntroduction = `# The museum of broken locks

Each of these small locks is wrong in a way of its own. Some are recipes that have been copied for years,
some are defects of real lock libraries, and some were made to try the
[conformance suite](../conformance). The cases after each lock must catch it. The link leads to the code,
which says where the lock was seen, what harm it does, and what is right.

[store.go](../conformance/internal/museum/store.go) is right, and must pass. To see the others caught:
go test -run TestMuseum -v ./conformance

This page is generated from the code: go generate ./conformance
`

func museumText(t *testing.T) string {
	var page strings.Builder
	page.WriteString(museumIntroduction)
	for _, c := range museum.Chapters {
		fmt.Fprintf(&page, "\n## %s\n\n", c.Title)
		comments := museumComments(t, c)
		last := ""
		for _, e := range c.Exhibits {
			if name := declaration(e); name != last {
				last = name
				fmt.Fprintf(&page, "- [%s](../conformance/%s%s#L%d): %s (%s)\n", name, museumSource, c.File,
					comments[name].line, comments[name].told(""), strings.Join(caughtBy(e), ", "))
			}
		}
	}
	return page.String()
}

// caughtBy returns the cases that must catch e, but for the model.
func caughtBy(e museum.Exhibit) names {
	return slices.Concat(e.Cases, slices.Sorted(maps.Keys(e.Network)))
}

// museumLabels begin the lines of a comment: the first has none. What was made for its case was not seen.
var museumLabels = names{"", "Seen: ", "Harm: ", "Right: "}

// A museumComment is that of an exhibit.
type museumComment struct {
	line int
	text string
}

// told is what the comment says after a label, up to the next.
func (m museumComment) told(label string) string {
	text := " " + strings.Join(strings.Fields(m.text), " ")
	_, text, _ = strings.Cut(text, " "+label)
	for _, next := range museumLabels[1:] {
		text, _, _ = strings.Cut(text, " "+next)
	}
	return strings.TrimSuffix(text, ".")
}

// declaration is the name of what the comment of an exhibit stands above: a type, a function, or a row.
func declaration(e museum.Exhibit) string { return strings.Fields(e.Name)[0] }

var museumDeclaration = regexp.MustCompile(`^(?:type |func |\t\{Name: "|\tExhibit\{Name: ")(\w+)`)

// museumLine is a line of a comment that does not stand within a row.
var museumLine = regexp.MustCompile(`^\t?//(.*)`)

// museumComments returns the comments of a chapter's exhibits, by the names of what they stand above.
// A comment is that of all rows up to the next.
func museumComments(t *testing.T, c museum.Chapter) map[string]museumComment {
	source, err := os.ReadFile(museumSource + c.File)
	require.NoError(t, err)
	comments := make(map[string]museumComment)
	text, goesOn := "", false
	for i, line := range strings.Split(string(source), "\n") {
		comment := museumLine.FindStringSubmatch(line)
		switch found := museumDeclaration.FindStringSubmatch(line); {
		case comment != nil && goesOn:
			text += comment[1]
		case comment != nil:
			text = comment[1]
		case line == "}":
			text = ""
		case found != nil && text != "":
			comments[found[1]] = museumComment{i + 1, text}
		}
		goesOn = comment != nil
	}
	return comments
}
