// Package docs_test checks what the README and these pages promise.
package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const readme = "../README.md"

// read returns the text of a page without its blocks of code, and the blocks of Go.
func read(t *testing.T, page string) (text string, program []string) {
	t.Helper()
	all, err := os.ReadFile(page)
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	for _, m := range blocks.FindAllStringSubmatch(string(all), -1) {
		if m[1] == "go" {
			program = append(program, m[2])
		}
	}
	return blocks.ReplaceAllString(string(all), ""), program
}

// TestProgramOfTheREADME runs the first program of the README, on a server of its own.
func TestProgramOfTheREADME(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	const addr = "localhost:6379"
	_, programs := read(t, readme)
	require.Contains(t, programs[0], addr)
	server := miniredis.RunT(t)
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(programs[0], addr, server.Addr(), 1)), 0o600))
	out, err := exec.Command("go", "run", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "handling the order\n", string(out))
}

// TestRedlockQuotesItsExample compares the Go code of the page with an example that is compiled.
func TestRedlockQuotesItsExample(t *testing.T) {
	example, err := os.ReadFile("../backend/redlock/example_test.go")
	require.NoError(t, err)
	_, programs := read(t, "redlock.md")
	require.NotEmpty(t, programs)
	for _, program := range programs {
		require.Contains(t, strings.ReplaceAll(string(example), "\n\t", "\n"), program)
	}
}

// TestListsOfRedlock looks, for each change of a list of nodes that the page has, for two majorities
// that share no node.
func TestListsOfRedlock(t *testing.T) {
	text, _ := read(t, "redlock.md")
	rows := regexp.MustCompile(`(?m)^\| ([A-Z ]+) \| ([A-Z ]+) \| \**(safe|unsafe)\** \|`).FindAllStringSubmatch(text, -1)
	require.Len(t, rows, 9)
	for _, row := range rows {
		verdict := "safe"
		for _, old := range majorities(row[1]) {
			for _, other := range majorities(row[2]) {
				if !strings.ContainsAny(old, other) {
					verdict = "unsafe"
				}
			}
		}
		require.Equal(t, verdict, row[3], "%s and %s", row[1], row[2])
	}
}

// majorities returns the subsets of a list of nodes that are majorities.
func majorities(list string) (found []string) {
	nodes := strings.Fields(list)
	for set := range 1 << len(nodes) {
		var members []string
		for i, node := range nodes {
			if set>>i&1 == 1 {
				members = append(members, node)
			}
		}
		if len(members) > len(nodes)/2 {
			found = append(found, strings.Join(members, ""))
		}
	}
	return found
}

// TestLinks follows the links of the README and of these pages to files and headings.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	for _, page := range append(pages, readme) {
		text, _ := read(t, page)
		for _, m := range regexp.MustCompile(`(?:\]\(|src="|srcset=")([^)"]+)`).FindAllStringSubmatch(text, -1) {
			path, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := filepath.Join(filepath.Dir(page), path)
			if path == "" {
				target = page
			}
			_, err := os.Stat(target)
			assert.NoError(t, err, "link of %s", page)
			if heading != "" && filepath.Ext(target) == ".md" {
				assert.Contains(t, headings(t, target), heading, "link of %s to %s", page, target)
			}
		}
	}
}

// headings returns the names under which GitHub links to the headings of a page.
func headings(t *testing.T, page string) (names []string) {
	text, _ := read(t, page)
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			title = regexp.MustCompile("[^a-z0-9 _-]").ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			names = append(names, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return names
}
