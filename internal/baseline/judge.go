package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// suites are the packages whose tests judge a package, which is the first of them.
var suites = [][]string{
	{".", "./backend/memory"},
	{"./backend/memory", "."},
	{"./backend/redlock"},
	{"./backend/rediscore", "./backend/goredis"},
}

const (
	killed     = "killed"
	survived   = "survived"
	uncompiled = "uncompiled"
)

// A verdict is what became of a mutant, and the test that has killed it.
type verdict struct{ became, by string }

// judged returns the verdicts in a file, by package and identity.
func judged(path string) map[string]verdict {
	all := make(map[string]verdict)
	for _, row := range rows(path) {
		all[strings.Join(row[:5], "\t")] = verdict{row[6], row[7]}
	}
	return all
}

// mutate judges n mutants of each package, or of each that is named, two at a time, and appends
// them to the file. What is known from before makes it quicker: the test that killed a mutant runs
// first, and a mutant that survived is taken to survive again.
func mutate(path string, n int, seed uint64, packages []string, before map[string]verdict) {
	known := judged(path)
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	check(err)
	defer file.Close()
	if len(known) == 0 {
		file.WriteString("package\tfunction\tline\toperator\tordinal\tfile\tresult\ttest\tseconds\n")
	}
	for _, suite := range suites {
		pkg := suite[0]
		if len(packages) > 0 && !slices.Contains(packages, pkg) {
			continue
		}
		tests := passing(append([]string{"-short", "-p=1"}, suite...)...)
		slowest := slices.MaxFunc(tests, func(a, b event) int { return cmp.Compare(a.Elapsed, b.Elapsed) })
		limit := time.Duration(15+3*slowest.Elapsed) * time.Second // for the tests of one package
		var mu sync.Mutex
		all, compiled := drawn(pkg, seed), 0
		log.Printf("%s: %d mutants, limit %v", pkg, len(all), limit)
		next := func() (m mutant, ok bool) {
			mu.Lock()
			defer mu.Unlock()
			for compiled < n && len(all) > 0 {
				m, all = all[0], all[1:]
				v, ok := known[pkg+"\t"+m.id()]
				if !ok {
					return m, true
				} else if v.became != uncompiled {
					compiled++
				}
			}
			return m, false
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for m, ok := next(); ok; m, ok = next() {
					begun := time.Now()
					v := judge(m, suite, limit, before[pkg+"\t"+m.id()])
					line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%.1f\n", pkg, m.id(), filepath.Base(m.file), v.became, v.by, time.Since(begun).Seconds())
					mu.Lock()
					if v.became != uncompiled {
						compiled++
					}
					file.WriteString(line)
					fmt.Fprint(os.Stderr, compiled, "\t", line)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}
}

// judge returns what becomes of a mutant, and the first test that fails.
func judge(m mutant, suite []string, limit time.Duration, before verdict) verdict {
	if before.became == survived {
		return verdict{survived, "not run again"}
	}
	work, err := os.MkdirTemp("", "baseline")
	check(err)
	defer os.RemoveAll(work)
	src, err := os.ReadFile(m.file)
	check(err)
	source, overlay := filepath.Join(work, "mutant.go"), filepath.Join(work, "overlay.json")
	check(os.WriteFile(source, slices.Concat(src[:m.start], []byte(m.with), src[m.end:]), 0o644))
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: source}})
	check(err)
	check(os.WriteFile(overlay, replaced, 0o644))
	for _, run := range []string{pattern(before.by), "."} {
		for _, pkg := range suite { // one go test for all would build the tests of all first
			if run == "" {
				continue
			}
			args := []string{"-overlay", overlay, "-short", "-failfast", "-p=1", "-vet=off", "-timeout", limit.String(), "-run", run, pkg}
			if v := judgedBy(test(args...)); v.became != survived {
				return v
			}
		}
	}
	return verdict{became: survived}
}

// pattern is the -run of the test that a verdict names, and "" if it names none.
func pattern(by string) string {
	name := strings.TrimPrefix(by, inTimeout)
	if name == "" {
		return ""
	}
	return "^" + strings.ReplaceAll(regexp.QuoteMeta(name), "/", "$/^") + "$"
}

// inTimeout stands before the name of a test that did not end.
const inTimeout = "timeout in "

// judgedBy is the verdict of the tests of one package.
func judgedBy(events []event) verdict {
	timeout, running := "", ""
	for _, e := range events {
		switch {
		case e.Action == "build-fail":
			return verdict{became: uncompiled}
		case e.Action == "fail":
			return verdict{killed, timeout + cmp.Or(e.Test, running)}
		case e.Action == "run":
			running = e.Test
		case e.Action == "output":
			timeout = inTimeout
		}
	}
	return verdict{became: survived}
}

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// test runs go test, and returns the events that matter here: of all output, only that of a timeout.
// A mutant may use up memory, or write without end.
func test(args ...string) (events []event) {
	limits := `ulimit -v 8000000; exec nice go test -count=1 -json "$@"`
	cmd := exec.Command("sh", append([]string{"-c", limits, "sh"}, args...)...)
	out, err := cmd.StdoutPipe()
	check(err)
	check(cmd.Start())
	for lines := json.NewDecoder(out); ; {
		var e event
		if lines.Decode(&e) != nil {
			if cmd.Wait() != nil { // whatever the reason
				events = append(events, event{Action: "fail"})
			}
			return events
		}
		if slices.Contains([]string{"run", "pass", "fail", "build-fail"}, e.Action) || strings.HasPrefix(e.Output, "panic: test timed out") {
			events = append(events, e)
		}
	}
}

// passing is test for tests that must pass.
func passing(args ...string) []event {
	events := test(args...)
	for _, e := range events {
		if strings.HasSuffix(e.Action, "fail") {
			log.Fatalf("without a mutant, %s %s fails", e.Package, e.Test)
		}
	}
	return events
}
