// Package docs_test checks what the README and these pages promise.
package docs_test

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/redistest"
)

const readme = "../README.md"

var (
	blocks      = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	punctuation = regexp.MustCompile("[^a-z0-9 _-]")
)

// contentOf returns the content of a file.
func contentOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// read returns the text of a page without its blocks of code, and the blocks of Go.
func read(t *testing.T, page string) (text string, program []string) {
	t.Helper()
	all := contentOf(t, page)
	for _, m := range blocks.FindAllStringSubmatch(all, -1) {
		if m[1] == "go" {
			program = append(program, m[2])
		}
	}
	return blocks.ReplaceAllString(all, ""), program
}

// TestProgramOfTheREADME runs the first program of the README: on a server of its own, while another holds the
// lock, without a server, and with work that loses its lock.
func TestProgramOfTheREADME(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	const addr = "localhost:6379"
	_, programs := read(t, readme)
	require.Contains(t, programs[0], addr)
	server := miniredis.RunT(t)
	dir := t.TempDir()
	build := func(name, source string) string {
		file, program := filepath.Join(dir, name+".go"), filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(source, addr, server.Addr(), 1)), 0o600))
		out, err := exec.Command("go", "build", "-o", program, file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return program
	}
	program := build("program", programs[0])
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "handling the order\nhandled\n", string(out))

	require.NoError(t, server.Set("order:1234", "another's token"))
	out, err = exec.Command(program).CombinedOutput()
	require.ErrorContains(t, err, "exit status 1", "%s", out)
	require.Contains(t, string(out), "another process is handling it: ")

	server.Del("order:1234")
	const ends, waits = "return ctx.Err()", "rdb.Del(ctx, \"order:1234\"); <-ctx.Done(); return ctx.Err()"
	require.Contains(t, programs[0], ends)
	loses := strings.Replace(programs[0], ends, waits, 1)
	out, err = exec.Command(build("loses", strings.Replace(loses, "WithMaxWait(2*time.Second)", "WithTTL(time.Second)", 1))).CombinedOutput()
	require.ErrorContains(t, err, "exit status 1", "%s", out)
	require.Contains(t, string(out), "the lock was lost: ")

	server.Close()
	out, err = exec.Command(program).CombinedOutput()
	require.ErrorContains(t, err, "exit status 1", "%s", out)
	require.Contains(t, string(out), "Redis or the work failed: ")
}

// TestTables: the tables of the package documentation have every option and every error, one in a line.
func TestTables(t *testing.T) {
	for _, test := range []struct{ heading, next, name string }{
		{"Options", "Errors", `(?m)^func (With\w+)\(.*\) Option {`},
		{"Errors", "What to close", `(?m)^\t(Err\w+) += errors\.New`},
	} {
		_, table, _ := strings.Cut(contentOf(t, "../doc.go"), "// # "+test.heading+"\n")
		table, _, _ = strings.Cut(table, "// # "+test.next+"\n")
		files, err := filepath.Glob("../*.go")
		require.NoError(t, err)
		var names [][]string
		for _, file := range files {
			names = append(names, regexp.MustCompile(test.name).FindAllStringSubmatch(contentOf(t, file), -1)...)
		}
		require.Greater(t, len(names), 5, test.heading)
		for _, m := range names {
			assert.Regexp(t, `(?m)^//\t`+m[1]+` `, table, "%s is not in the table", m[1])
		}
	}
}

// TestPagesQuoteExamples compares the Go code of pages with examples that are compiled.
func TestPagesQuoteExamples(t *testing.T) {
	plain := func(code string) string { return regexp.MustCompile(`\n\t+`).ReplaceAllString(code, "\n") }
	for page, files := range map[string][]string{"redlock.md": {"../backend/redlock/example_test.go"}, "keys.md": {"../example_test.go", "../fence/example_test.go"}} {
		var example string
		for _, file := range files {
			example += contentOf(t, file)
		}
		_, programs := read(t, page)
		require.NotEmpty(t, programs)
		for _, program := range programs {
			require.True(t, strings.Contains(plain(example), plain(program)), "%s quotes what is in no example:\n%s", page, program)
		}
	}
}

var quoted = regexp.MustCompile("(?s)<!-- quoted: (\\S+) -->\n```\\w+\n(.*?)\n```")

// TestQuotes: what pages quote is in the code that is tested. The value is what has such a mark on a page.
func TestQuotes(t *testing.T) {
	for page, marked := range map[string]string{"coming-from.md": "```go", "command.md": "```go", "writing-a-backend.md": "<!-- quoted"} {
		text := contentOf(t, page)
		found := quoted.FindAllStringSubmatch(text, -1)
		require.Len(t, found, strings.Count(text, marked), page)
		require.NotEmpty(t, found)
		for _, m := range found {
			source := contentOf(t, m[1])
			require.Contains(t, source, m[2], "%s quotes what is not in %s", page, m[1])
		}
	}
}

// TestListsOfRedlock looks, for each change of a list of nodes that the page has, for two majorities
// that share no node.
func TestListsOfRedlock(t *testing.T) {
	text, _ := read(t, "redlock.md")
	rows := regexp.MustCompile(`(?m)^\| ([A-Z ]+) \| ([A-Z ]+) \| \**(safe|unsafe)\** \|`).FindAllStringSubmatch(text, -1)
	require.Len(t, rows, 6)
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

// TestAlerts looks for each alert on the page that says what to do.
func TestAlerts(t *testing.T) {
	names := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(contentOf(t, "../observe/otel/alerts.yml"), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		assert.Contains(t, contentOf(t, "operations.md"), "\n| `"+name[1]+"` |", "what to do at the alert")
	}
}

// TestSymptoms: the first line of operations.md that a search finds is the one that begins with what was searched for.
func TestSymptoms(t *testing.T) {
	page := contentOf(t, "operations.md")
	var code strings.Builder
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		code.WriteString(contentOf(t, path))
		return nil
	}))
	ours := []string{
		"renewal failed", "renewals succeed again", "lock not acquired", "waiting for the store", "the store answers again",
		"stopped waiting for the store", "no inbox: the wait is served more slowly", "lease lost", "work went on after its lease was lost",
		"lock broken by an operator", "Break failed", "not renewed before its deadline", "the store does not know it any more",
		"held for longer than WithMaxHold allows", "the wall clock has passed its deadline", "a release was given up, and its key may stay",
		"held by", "already held by the caller", "lease released", "client closed", "the store refused: ", "the store failed: ",
		"granted, but the answer took too much of the TTL", "another run is not over", "the work has succeeded, but is not marked",
		"the period is marked, but another replica may have run it, too", "fence: a later holder has been here",
		"the breaker has been open for", "the client is connected to a replica", "locks need a client of the cluster",
		"the connection pool is exhausted", "the master of the key is not known", "subscribes on another server",
		"do not allow what the queue needs", "do not allow WAIT", "no Sentinel names a master", "the cluster names no address",
		"the master has the lease, and ", "hides whether it is for",
	}
	for _, text := range ours {
		assert.True(t, strings.Contains(code.String(), text), "nothing says %q", text)
	}
	theirs := []string{
		"connection refused", "i/o timeout", "EOF", "connection reset by peer", "broken pipe", "connection pool timeout",
		"OOM command not allowed", "READONLY You can't write against a read only replica", "NOREPLICAS Not enough good replicas to write",
		"MISCONF", "BUSY Redis is busy running a script", "NOAUTH Authentication required", "WRONGPASS invalid username-password pair",
		"NOPERM", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "max number of clients reached",
		"context deadline exceeded", "context canceled",
	}
	for _, text := range append(ours, theirs...) {
		line := regexp.MustCompile("(?m)^.*" + regexp.QuoteMeta(text) + ".*$").FindString(page)
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		assert.True(t, strings.HasPrefix(line, "| `") && strings.Contains(first, text), "a search for %q finds first: %s", text, line)
	}
}

// TestCountOfFenceCounters runs the command of the page, on a server with locks in two hash slots.
func TestCountOfFenceCounters(t *testing.T) {
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("no redis-cli on PATH")
	}
	command := regexp.MustCompile(`(?m)^redis-cli (--scan .*fence.*)$`).FindStringSubmatch(contentOf(t, "operations.md"))
	require.NotNil(t, command, "the page has no command that counts fence counters")

	server := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	locks := dlock.New(goredis.New(rdb, goredis.WithPrefix("myapp:lock:")))
	defer locks.Close()
	for _, key := range []string{"order:1", "order:2"} {
		_, err := locks.TryAcquire(t.Context(), key)
		require.NoError(t, err)
	}
	_, port, err := net.SplitHostPort(server.Addr())
	require.NoError(t, err)
	out, err := exec.Command("sh", "-c", cli+" -p "+port+" "+command[1]).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "1", strings.TrimSpace(string(out)), "one for the prefix")
}

// TestLinks follows the links of the README and of these pages to files and headings.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	for _, page := range append(pages, readme, "../CONTRIBUTING.md", "../CHANGELOG.md", "../SECURITY.md", "../observe/otel/README.md", "../interop/README.md") {
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

// TestFilesOfCONTRIBUTING: what CONTRIBUTING.md says to read, or where something is, is there.
func TestFilesOfCONTRIBUTING(t *testing.T) {
	text, _ := read(t, "../CONTRIBUTING.md")
	text, _, found := strings.Cut(text, "## Dependencies")
	require.True(t, found)
	there := make(map[string]bool)
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		there[filepath.Base(path)] = true
		return err
	}))
	names := regexp.MustCompile("`([a-z_./]+\\.(?:go|lua)|(?:backend|cmd|conformance|examples|integrate|internal|observe)/[a-z/]+)`").FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, names)
	for _, m := range names {
		_, err := os.Stat(filepath.Join("..", m[1]))
		assert.True(t, err == nil || !strings.Contains(m[1], "/") && there[m[1]], "CONTRIBUTING.md names %s", m[1])
	}
}

// TestLinksOfTheCommand follows the links of the findings of dlock doctor.
func TestLinksOfTheCommand(t *testing.T) {
	source := contentOf(t, "../cmd/dlock/doctor.go")
	links := regexp.MustCompile(`"(\w+\.md)#([\w-]+)"`).FindAllStringSubmatch(source, -1)
	require.NotEmpty(t, links)
	for _, m := range links {
		assert.Contains(t, headings(t, m[1]), m[2], "link to %s", m[1])
	}
}

// headings returns the names under which GitHub links to the headings of a page.
func headings(t *testing.T, page string) (names []string) {
	text, _ := read(t, page)
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			title = punctuation.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			names = append(names, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return names
}
