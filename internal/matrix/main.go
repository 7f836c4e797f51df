// Command matrix runs the conformance suite and the tests of the Redis backends on several
// versions of the server, and writes docs/servers.md:
//
//	go run ./internal/matrix /path/to/redis-server /path/to/valkey-server
//
// A server that has a row in the page gets a new one. The rows of others stay. Without arguments, the server
// is the one that DLOCK_REDIS names, or else the servers are the redis-server and the valkey-server on PATH.
// Progress, failures and the reasons of what is skipped go to stderr. The exit status is 1 if a test has failed.
package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const page = "docs/servers.md"

// products is what a row of the page, and the output of --version, begin with.
const products = "(?:Redict|Redis|Valkey) "

//go:embed servers.md.tmpl
var template string

func main() {
	log.SetFlags(0)
	log.SetPrefix("matrix: ")
	servers := os.Args[1:]
	if named := os.Getenv("DLOCK_REDIS"); len(servers) == 0 && strings.Trim(named, "1") != "" {
		servers = []string{named}
	}
	if len(servers) == 0 {
		for _, name := range []string{"redis-server", "valkey-server"} {
			if path, err := exec.LookPath(name); err == nil {
				servers = append(servers, path)
			}
		}
	}
	contract, err := os.ReadFile("docs/contract.md")
	if err != nil || len(servers) == 0 {
		log.Fatalf("it needs a server (it has %q), and runs where the module is (%v)", servers, err)
	}
	failed := false
	for _, server := range servers {
		version, path, err := ask(server)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", version, path)
		// The tests start the server themselves.
		cmd := exec.Command("go", "test", "-json", "-count=1", "-timeout=30m", "-skip=^TestAdapter$/^Miniredis$|^TestTopology$",
			"./backend", "./backend/rediscore", "./backend/goredis", "./backend/rueidis", "./backend/redigo")
		cmd.Env = append(os.Environ(), "DLOCK_REDIS="+path, "DLOCK_ADAPTERS=all")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			log.Printf("%s: %v", version, err)
			failed = true
		}
		r := row(version, time.Now(), count(bytes.NewReader(out), string(contract), os.Stderr))
		fmt.Print(r)
		old, err := os.ReadFile(page)
		if err == nil {
			err = os.WriteFile(page, []byte(with(string(old), r)), 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// with is the page with the rows of an older one, of which r replaces that of its server.
func with(old string, r ...string) string {
	rows := make(map[string]string)
	for _, r := range append(regexp.MustCompile(`(?m)^\| `+products+`.*\n`).FindAllString(old, -1), r...) {
		rows[server(r)] = r
	}
	sorted := slices.SortedFunc(maps.Values(rows), func(a, b string) int { return cmp.Compare(server(a), server(b)) })
	return strings.Replace(template, "{{rows}}\n", strings.Join(sorted, ""), 1)
}

// server is what a row begins with.
func server(row string) string { return strings.SplitN(row, " | ", 2)[0] }

// ask returns the version of a server, such as "Redis 7.0.15", and its path: the tests run in other folders.
func ask(server string) (version, path string, err error) {
	if path, err = exec.LookPath(server); err == nil {
		path, err = filepath.Abs(path)
	}
	out, _ := exec.Command(path, "--version").Output()
	m := regexp.MustCompile(`^(` + products + `)server v=(\S+)`).FindSubmatch(out)
	if err != nil || m == nil {
		return "", "", fmt.Errorf("%q is no Redis, Valkey or Redict: --version says %q (%v)", server, out, err)
	}
	return string(m[1]) + string(m[2]), path, nil
}

func row(version string, date time.Time, counts map[string]int) string {
	return fmt.Sprintf("| %s | %s | %d | %d | %d |\n", version, date.UTC().Format(time.DateOnly), counts["pass"], counts["fail"], counts["skip"])
}

// caseName is what a line of the contract begins with, in a table or in a list.
var caseName = regexp.MustCompile(`(?m)^(?:\| |- \*\*)(\w+)(?: \| [A-Z]|\*\*: )`)

// count reads the output of go test -json. It counts the cases of the contract, and the other tests that have
// no subtests. Others, and packages, count only if they have failed and nothing in them has. What was running
// when its package ended has failed. The output of what does not pass goes to progress.
func count(events io.Reader, contract string, progress io.Writer) map[string]int {
	isCase := make(map[string]bool)
	for _, m := range caseName.FindAllStringSubmatch(contract, -1) {
		isCase[m[1]] = true
	}
	type name struct{ pkg, test string }
	last, output := make(map[name]string), make(map[name]string)
	for d := json.NewDecoder(events); ; {
		var e struct{ Action, Package, Test, Output string }
		if d.Decode(&e) != nil {
			break
		}
		switch n := (name{e.Package, e.Test}); e.Action {
		case "run":
			last[n] = "fail" // unless something else follows
		case "output":
			output[n] += e.Output
		case "build-output":
			fmt.Fprint(progress, e.Output)
		case "pass", "fail", "skip":
			last[n] = e.Action
			if e.Action != "pass" || e.Test == "" {
				fmt.Fprint(progress, output[n])
			}
			delete(output, n)
		}
	}
	parents, blamed := make(map[name]bool), make(map[name]bool)
	for n, action := range last {
		for p := n; p.test != ""; {
			p.test = p.test[:max(0, strings.LastIndex(p.test, "/"))]
			parents[p], blamed[p] = true, blamed[p] || action == "fail"
		}
	}
	counts := make(map[string]int)
	for n, action := range last {
		path := strings.Split(n.test, "/")
		first := slices.IndexFunc(path, func(part string) bool { return isCase[part] }) + 1
		switch {
		case first > 0 && first < len(path): // within a case
		case first == 0 && (parents[n] || n.test == "") && (action != "fail" || blamed[n]):
		default:
			counts[action]++
		}
	}
	return counts
}
