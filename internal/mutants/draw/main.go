// Command draw breaks one place of the code after another, and notes which tests fail:
//
//	go run ./internal/mutants/draw                # all packages of the record; takes hours
//	go run ./internal/mutants/draw backend/memory # one package
//	go run ./internal/mutants/draw -old FILE      # compares with an older record, and runs nothing
//
// Of each package it draws the -n mutants with the lowest hash of function, text of the line, operator, ordinal. All
// tests run that reach a mutant. The folder -dir has each verdict with the names of all tests that fail. A run that was
// stopped, by -time or otherwise, continues there when it is started again, as long as -n, the code and the tests are
// the same. When all mutants of a package are judged, its lines of the record are replaced. What only one test finds:
//
//	jq -r 'select(.Only).Only' internal/mutants/record.jsonl | sort | uniq -c
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"hash"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/mutants"
)

// judges are the packages whose tests judge a package.
var judges = map[string][]string{
	".":                 {".", "backend/memory", "election", "once", "semaphore", "internal/sim", "internal/sim/world"},
	"backend/memory":    {"backend/memory", ".", "election", "once", "semaphore"},
	"backend/rediscore": {"backend/rediscore", "backend/goredis", "internal/sim", "internal/sim/world"},
	"backend/redlock":   {"backend/redlock", "internal/sim", "internal/sim/world"},
}

// A verdict is what became of a mutant, and a line of the record.
type verdict struct {
	Package, Place, ID, Function, Operator string
	Fail                                   int      // how many tests fail
	More                                   bool     `json:",omitempty"` // others were left out
	Only                                   string   `json:",omitempty"` // the one that fails, if there are no others
	Killers                                []string `json:",omitempty"` // all of them, package and name; not in the record
}

func main() {
	n := flag.Int("n", 300, "how many mutants of each package")
	limit := flag.Duration("time", 24*time.Hour, "when to stop")
	dir := flag.String("dir", filepath.Join(os.TempDir(), "dlock-mutants"), "the folder of all verdicts")
	old := flag.String("old", "", "an older record")
	flag.Parse()
	folder, record := must(filepath.Abs(*dir)), filepath.Join(mutants.Root(), "internal/mutants/record.jsonl")
	if *old != "" {
		now := verdicts(record)
		for id, before := range verdicts(*old) {
			if v, ok := now[id]; ok && v.Fail == 0 && before.Fail > 0 {
				fmt.Printf("is not found any more: %s, %s, %s\n", v.Place, v.Function, v.Operator)
			}
		}
		return
	}
	check(os.Chdir(mutants.Root()))
	packages, deadline := flag.Args(), time.Now().Add(*limit)
	if len(packages) == 0 {
		packages = slices.Sorted(maps.Keys(judges))
	}
	for _, pkg := range packages {
		judged := judgeAll(pkg, folder, *n, deadline)
		if time.Now().After(deadline) {
			return
		}
		for _, v := range verdicts(record) {
			if v.Package != pkg {
				judged = append(judged, encoded(v))
			}
		}
		slices.Sort(judged)
		check(os.WriteFile(record, []byte(strings.Join(judged, "")), 0o644))
	}
}

// judgeAll judges mutants of a package until the deadline, and returns lines for the record.
func judgeAll(pkg, dir string, n int, deadline time.Time) (judged []string) {
	s := newSuite(pkg, filepath.Join(dir, "programs"), n)
	path := filepath.Join(dir, fmt.Sprintf("mutants-%s-%x.jsonl", strings.ReplaceAll(pkg, "/", "-"), s.state.Sum(nil)[:6]))
	known, file := verdicts(path), must(os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644))
	defer file.Close()
	var mu sync.Mutex
	parallel(s.mutants, func(m mutant) {
		begun, v := time.Now(), known[m.id()]
		if v.ID == "" && begun.Before(deadline) {
			v = s.judge(m)
			must(file.WriteString(encoded(v)))
			log.Printf("%s %s %q: %d fail, in %.1f s", v.Place, v.Function, v.Operator, v.Fail, time.Since(begun).Seconds())
		}
		mu.Lock()
		defer mu.Unlock()
		v.Killers = nil
		judged = append(judged, encoded(v))
	})
	return judged
}

// verdicts reads a file with a verdict on each line, and none if there is no file.
func verdicts(path string) map[string]verdict {
	all := make(map[string]verdict)
	text, err := os.ReadFile(path)
	if !os.IsNotExist(err) {
		check(err)
	}
	for line := range strings.Lines(string(text)) {
		var v verdict
		if json.Unmarshal([]byte(line), &v) == nil { // the last line may be cut
			all[v.ID] = v
		}
	}
	return all
}

func encoded(v verdict) string { return string(must(json.Marshal(v))) + "\n" }

// A suite has mutants of a package, and their judges.
type suite struct {
	dir      string
	mutants  []mutant
	programs map[string]string // with all mutants of functions, by the package of the tests
	state    hash.Hash         // of the programs: of the code, the tests and the mutants
	tests    []test            // that pass without a mutant, the quickest first
}

// A test of the top level, and the lines of the package with the mutants that it reaches, such as backend/memory/vote.go:105.
type test struct {
	pkg, name string
	took      time.Duration
	lines     map[string]bool
}

const (
	floor    = 5 * time.Second  // a test may take three times its time, and this
	slow     = 2 * time.Second  // slower tests run only if fewer than two others find a mutant
	patience = 30 * time.Second // then tests are left out, if two have failed
	variable = "DLOCK_DRAWN_MUTANT"
)

var (
	profiled = regexp.MustCompile(`(?m)/([^/\n]+):(\d+)\.\d+,(\d+)\.\d+ \d+ [^0\n]`)
	failure  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
)

// newSuite draws n mutants of a package that compile, and builds programs in dir.
func newSuite(pkg, dir string, n int) *suite {
	check(os.RemoveAll(dir))
	check(os.MkdirAll(dir+"/cover", 0o755))
	s := &suite{dir: dir, programs: make(map[string]string), state: sha256.New()}
	edits := s.compiling(pkg, 2*n)
	s.mutants = s.mutants[:min(n, len(s.mutants))]
	var mu sync.Mutex
	for _, in := range judges[pkg] {
		s.programs[in] = must(mutants.Build(context.Background(), dir, in, edits))
		s.state.Write(must(os.ReadFile(s.programs[in])))
		cover := must(mutants.Build(context.Background(), dir+"/cover", in, nil, "-cover", "-coverpkg=./"+pkg))
		list := must(exec.Command(cover, "-test.list=^(Test|Example|Fuzz)").Output())
		parallel(strings.Fields(string(list)), func(name string) {
			t, begun, profile := test{in, name, time.Hour, make(map[string]bool)}, time.Now(), filepath.Join(dir, name+".cover")
			failed := t.run(s.programs[in], "")
			t.took = time.Since(begun)
			if failed = append(failed, t.run(cover, "", "-test.coverprofile="+profile)...); failed != nil {
				log.Printf("%s fail without a mutant, and are left out", failed)
				return
			}
			for _, m := range profiled.FindAllStringSubmatch(string(must(os.ReadFile(profile))), -1) {
				for line := must(strconv.Atoi(m[2])); line <= must(strconv.Atoi(m[3])); line++ {
					t.lines[fmt.Sprint(filepath.Join(pkg, m[1]), ":", line)] = true
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if len(t.lines) > 0 {
				s.tests = append(s.tests, t)
			}
		})
	}
	slices.SortFunc(s.tests, func(a, b test) int { return cmp.Compare(a.took, b.took) })
	return s
}

// reaching returns the tests that reach one of some lines.
func (s *suite) reaching(file string, from, to int) (tests []test) {
	for _, t := range s.tests {
		for line := from; line <= to; line++ {
			if t.lines[fmt.Sprint(file, ":", line)] {
				tests = append(tests, t)
				break
			}
		}
	}
	return tests
}

// compiling draws n mutants, leaves out those that do not compile, and returns the edits for a program with the others.
func (s *suite) compiling(pkg string, n int) (edits []mutants.Edit) {
	for s.mutants = drawn(pkg, n); ; {
		edits = switches(pkg, s.mutants)
		overlay := must(mutants.Overlay(s.dir, edits))
		out, err := exec.Command("go", "build", "-gcflags=-e", "-overlay", overlay, "./"+pkg).CombinedOutput()
		if err == nil {
			return edits
		}
		before := len(s.mutants)
		s.mutants = slices.DeleteFunc(s.mutants, func(m mutant) bool { return strings.Contains(string(out), m.id()+":") })
		if len(s.mutants) == before {
			check(fmt.Errorf("%w: %s", err, out))
		}
	}
}

// switches puts mutants of functions into a package, so that they are compiled once: a function begins with its
// mutants, and the one that runs replaces the rest. Their results have names, for a return without values. The compiler
// takes the identity of a mutant for the name of its file.
func switches(pkg string, all []mutant) (edits []mutants.Edit) {
	texts := make(map[string]string)
	for _, m := range slices.Backward(slices.SortedFunc(slices.Values(all), func(a, b mutant) int { return a.start - b.start })) {
		if m.in == nil {
			continue
		}
		results, call, end := "", "", "; return"
		if r := m.in.Type.Results; r != nil {
			results, call, end = m.src[r.Pos()-1:r.End()-1], "return", ""
			if r.List[0].Names == nil {
				results = "(_ " + strings.ReplaceAll(strings.Trim(results, "()"), ", ", ", _ ") + ")"
			}
		}
		at, text := int(m.in.Body.Lbrace), cmp.Or(texts[m.file], m.src)
		body := m.src[at-1:m.start] + m.with + m.src[m.end:m.in.Body.Rbrace]
		head := fmt.Sprintf(" if drawnMutant == %q { /*line %[1]s:1:1*/ %s func() %s %s()%s }; ", m.id(), call, results, body, end)
		texts[m.file] = text[:at] + head + text[at:]
	}
	for file, text := range texts {
		edits = append(edits, mutants.Edit{File: file, Old: string(must(os.ReadFile(file))), New: text})
	}
	return append(edits, mutants.Edit{File: filepath.Join(pkg, "drawn.go"), New: "package " + filepath.Base(filepath.Join("dlock", pkg)) + `
import "os"
var drawnMutant = os.Getenv("` + variable + `")`})
}

// run runs a test alone with a mutant, and returns what fails: its parts rather than itself.
func (t test) run(program, mutant string, args ...string) (failed []string) {
	ctx, stop := context.WithTimeout(context.Background(), 3*t.took+floor)
	defer stop()
	args = append([]string{"-c", `ulimit -v 12000000; exec nice "$@"`, "sh", program, "-test.short", "-test.run=^" + t.name + "$"}, args...)
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = t.pkg, append(os.Environ(), variable+"="+mutant), time.Second // a child may keep the output open
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	for _, m := range failure.FindAllStringSubmatch(string(out), -1) {
		if !strings.Contains(string(out), "--- FAIL: "+m[1]+"/") {
			failed = append(failed, t.pkg+" "+m[1])
		}
	}
	if failed == nil {
		return []string{t.pkg + " " + t.name}
	}
	return failed
}

// judge runs the tests that reach a mutant: its line, or its function, if the line may be in several blocks or in none,
// or the package, if it is in no function. A test that fails alone must do so twice.
func (s *suite) judge(m mutant) verdict {
	v := verdict{Package: m.pkg, ID: m.id(), Place: fmt.Sprint(m.file, ":", m.line), Function: m.fn, Operator: m.op}
	tests, programs := s.reaching(m.file, m.line, m.line), s.programs
	if m.in == nil {
		dir := must(os.MkdirTemp(s.dir, ""))
		defer os.RemoveAll(dir)
		tests, programs = s.tests, make(map[string]string)
		for _, in := range judges[m.pkg] {
			edit := mutants.Edit{File: m.file, Old: m.src, New: m.src[:m.start] + m.with + m.src[m.end:]}
			program, err := mutants.Build(context.Background(), dir, in, []mutants.Edit{edit}, "-p=1", "-ldflags=-w")
			if err != nil {
				v.Fail, v.Only = 1, "the compiler"
				return v
			}
			programs[in] = program
		}
	} else if len(tests) == 0 || strings.HasPrefix(m.text, "case ") {
		tests = s.reaching(m.file, line(m.src, int(m.in.Pos())-1), line(m.src, int(m.in.End())-1))
	}
	var failing []test
	begun := time.Now()
	for _, t := range tests {
		if t.name == "TestScripts" && strings.HasSuffix(m.file, ".lua") { // compares sums of the scripts
			continue
		} else if len(failing) > 1 && (t.took > slow || time.Since(begun) > patience) {
			v.More = t.took <= slow
			break
		}
		if failed := t.run(programs[t.pkg], v.ID); failed != nil {
			v.Killers, failing = append(v.Killers, failed...), append(failing, t)
		}
	}
	if len(failing) == 1 {
		v.Killers = failing[0].run(programs[failing[0].pkg], v.ID)
		v.Only = strings.Join(v.Killers, ", ")
	}
	v.Fail = len(v.Killers)
	return v
}

// parallel calls f for each value, two at a time.
func parallel[T any](values []T, f func(T)) {
	var wg sync.WaitGroup
	slots := make(chan bool, 2)
	for _, v := range values {
		wg.Go(func() { slots <- true; f(v); <-slots })
	}
	wg.Wait()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
