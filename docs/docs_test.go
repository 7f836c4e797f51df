// Package docs_test checks what the README and these pages promise.
package docs_test

import (
	"bytes"
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

// read returns the text of a page without its blocks of code, and the blocks of Go.
func read(t *testing.T, page string) (text string, program []string) {
	t.Helper()
	all, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, m := range blocks.FindAllStringSubmatch(string(all), -1) {
		if m[1] == "go" {
			program = append(program, m[2])
		}
	}
	return blocks.ReplaceAllString(string(all), ""), program
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

// TestOptions: the table of the package documentation has every option, one in a line.
func TestOptions(t *testing.T) {
	doc, err := os.ReadFile("../doc.go")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(doc), "// # Options\n")
	table, _, _ = strings.Cut(table, "// # Errors\n")
	files, err := filepath.Glob("../*.go")
	require.NoError(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func (With\w+)\(.*\) Option {`).FindAllStringSubmatch(string(source), -1) {
			assert.Regexp(t, `(?m)^//\t`+m[1]+` `, table, "%s is not in the table", m[1])
		}
	}
}

// TestErrors: the table of the package documentation has every error, one in a line.
func TestErrors(t *testing.T) {
	doc, err := os.ReadFile("../doc.go")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(doc), "// # Errors\n")
	table, _, _ = strings.Cut(table, "// # What to close\n")
	source, err := os.ReadFile("../error.go")
	require.NoError(t, err)
	sentinels := regexp.MustCompile(`(?m)^\t(Err\w+) += errors\.New`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, sentinels)
	for _, m := range sentinels {
		assert.Regexp(t, `(?m)^//\t`+m[1]+` `, table, "%s is not in the table", m[1])
	}
}

// TestPagesQuoteExamples compares the Go code of pages with examples that are compiled.
func TestPagesQuoteExamples(t *testing.T) {
	plain := func(code string) string { return regexp.MustCompile(`\n\t+`).ReplaceAllString(code, "\n") }
	for page, files := range map[string][]string{"redlock.md": {"../backend/redlock/example_test.go"}, "keys.md": {"../example_test.go", "../fence/example_test.go"}} {
		var example []byte
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			example = append(example, text...)
		}
		_, programs := read(t, page)
		require.NotEmpty(t, programs)
		for _, program := range programs {
			require.True(t, strings.Contains(plain(string(example)), plain(program)), "%s quotes what is in no example:\n%s", page, program)
		}
	}
}

var quoted = regexp.MustCompile("(?s)<!-- quoted: (\\S+) -->\n```\\w+\n(.*?)\n```")

// TestQuotes: what pages quote is in the code that is tested. The value is what has such a mark on a page.
func TestQuotes(t *testing.T) {
	for page, marked := range map[string]string{"coming-from.md": "```go", "writing-a-backend.md": "<!-- quoted"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		found := quoted.FindAllStringSubmatch(string(text), -1)
		require.Len(t, found, strings.Count(string(text), marked), page)
		require.NotEmpty(t, found)
		for _, m := range found {
			source, err := os.ReadFile(m[1])
			require.NoError(t, err)
			require.Contains(t, string(source), m[2], "%s quotes what is not in %s", page, m[1])
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
	rules, err := os.ReadFile("../observe/otel/alerts.yml")
	require.NoError(t, err)
	page, err := os.ReadFile("operations.md")
	require.NoError(t, err)
	names := regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllSubmatch(rules, -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		assert.True(t, bytes.Contains(page, []byte("\n| `"+string(name[1])+"` |")), "operations.md does not say what to do at the alert %s", name[1])
	}
}

// TestSymptoms: the first line of operations.md that a search finds is the one that begins with what was searched for.
func TestSymptoms(t *testing.T) {
	page, err := os.ReadFile("operations.md")
	require.NoError(t, err)
	var code []byte
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		code = append(code, text...)
		return err
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
		assert.True(t, bytes.Contains(code, []byte(text)), "nothing says %q", text)
	}
	theirs := []string{
		"connection refused", "i/o timeout", "EOF", "connection reset by peer", "broken pipe", "connection pool timeout",
		"OOM command not allowed", "READONLY You can't write against a read only replica", "NOREPLICAS Not enough good replicas to write",
		"MISCONF", "BUSY Redis is busy running a script", "NOAUTH Authentication required", "WRONGPASS invalid username-password pair",
		"NOPERM", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "max number of clients reached",
		"context deadline exceeded", "context canceled",
	}
	for _, text := range append(ours, theirs...) {
		line := regexp.MustCompile("(?m)^.*" + regexp.QuoteMeta(text) + ".*$").Find(page)
		first, _, _ := strings.Cut(strings.TrimPrefix(string(line), "| "), " | ")
		assert.True(t, bytes.HasPrefix(line, []byte("| `")) && strings.Contains(first, text), "a search for %q finds first: %s", text, line)
	}
}

// TestCountOfFenceCounters runs the command of the page, on a server with locks in two hash slots.
func TestCountOfFenceCounters(t *testing.T) {
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("no redis-cli on PATH")
	}
	page, err := os.ReadFile("operations.md")
	require.NoError(t, err)
	command := regexp.MustCompile(`(?m)^redis-cli (--scan .*fence.*)$`).FindSubmatch(page)
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
	out, err := exec.Command("sh", "-c", cli+" -p "+port+" "+string(command[1])).CombinedOutput()
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
	source, err := os.ReadFile("../cmd/dlock/doctor.go")
	require.NoError(t, err)
	links := regexp.MustCompile(`"(\w+\.md)#([\w-]+)"`).FindAllStringSubmatch(string(source), -1)
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
