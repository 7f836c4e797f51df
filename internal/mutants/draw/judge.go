package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
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

// A judge is a package whose tests judge mutants.
type judge struct {
	pkg, program string
	tests        []string // those of the top level
	took         map[string]time.Duration
	blocks       map[string][]block // of the package with the mutants, by test
}

type block struct {
	file     string
	from, to int // lines
	reached  bool
}

func (b block) has(file string, from, to int) bool {
	return b.file == file && b.from <= to && b.to >= from
}

const (
	slow     = 2 * time.Second  // slower tests run only if fewer than two others kill a mutant
	patience = 30 * time.Second // with tests that end their program: then the others are left out
	memory   = "ulimit -v 12000000; exec nice \"$@\""
	whole    = "TestMain" // stands for a program that fails outside of its tests

	testOfSums = "TestScripts" // fails whenever a script changes
)

// measured returns a judge that knows what each of its tests reaches in a package, and how long that takes.
func measured(dir, pkg, of string) *judge {
	j := &judge{pkg: pkg, took: make(map[string]time.Duration), blocks: make(map[string][]block)}
	program, err := mutants.Build(context.Background(), dir, pkg, nil, "-cover", "-coverpkg=./"+of)
	check(err)
	list, err := mutants.Tests{In: pkg, Run: "^$", Args: []string{"-test.list=^(Test|Example|Fuzz)"}}.Command(context.Background(), program).Output()
	check(err)
	j.tests = strings.Fields(string(list))
	slices.Sort(j.tests)
	var mu sync.Mutex
	parallel(slices.Values(j.tests), func(name string) {
		profile := filepath.Join(dir, name+".cover")
		begun := time.Now()
		out, err := mutants.Tests{In: pkg, Run: "^" + name + "$", Args: append(short(), "-test.coverprofile="+profile)}.Command(context.Background(), program).CombinedOutput()
		if err != nil {
			check(fmt.Errorf("%s of %s fails without a mutant: %s", name, pkg, out))
		}
		took, reached := time.Since(begun), blocksIn(profile, of)
		mu.Lock()
		defer mu.Unlock()
		j.took[name], j.blocks[name] = took, reached
	})
	j.tests = slices.DeleteFunc(j.tests, func(name string) bool {
		return !slices.ContainsFunc(j.blocks[name], func(b block) bool { return b.reached })
	})
	return j
}

var profiled = regexp.MustCompile(`(?m)/([^/\n]+):(\d+)\.\d+,(\d+)\.\d+ \d+ (\d)`)

// blocksIn reads a file of go test -coverprofile.
func blocksIn(profile, pkg string) (all []block) {
	text, err := os.ReadFile(profile)
	check(err)
	for _, m := range profiled.FindAllStringSubmatch(string(text), -1) {
		from, _ := strconv.Atoi(m[2])
		to, _ := strconv.Atoi(m[3])
		all = append(all, block{filepath.Join(pkg, m[1]), from, to, m[4] != "0"})
	}
	return all
}

// reaching returns the tests that reach a mutant: its line, or its function if the line is in no block or may be in
// several, or the package, if it is in no function.
func (j *judge) reaching(m mutant) (tests []string) {
	from, to := m.line, m.line
	known := func(b block) bool { return b.has(m.file, from, to) }
	if m.in != nil && (strings.HasPrefix(m.text, "case ") || !slices.ContainsFunc(j.blocks[j.tests[0]], known)) {
		from, to = m.first, m.last
	}
	for _, name := range j.tests {
		if slices.ContainsFunc(j.blocks[name], func(b block) bool { return b.reached && (m.in == nil || known(b)) }) {
			tests = append(tests, name)
		}
	}
	return tests
}

// run runs tests with the mutant of a number, each once, and returns those that fail. It returns more if some were
// left out, since too many ended the program.
func (j *judge) run(program string, number int, tests []string) (killers []string, more bool) {
	var skip []string
	for begun := time.Now(); ; {
		failed, ended, culprit := j.once(program, number, tests, skip)
		killers = append(killers, failed...)
		if culprit == "" {
			return leaves(killers), false
		}
		killers = append(killers, culprit)
		top, _, sub := strings.Cut(culprit, "/")
		tests = slices.DeleteFunc(slices.Clone(tests), func(t string) bool { return t == top || slices.Contains(ended, t) })
		if sub {
			skip, tests = append(skip, culprit), append(tests, top)
		}
		if culprit == whole || len(tests) == 0 || time.Since(begun) > patience {
			return leaves(killers), len(tests) > 0
		}
	}
}

var event = regexp.MustCompile(`\x16(?:=== (RUN|CONT|PAUSE) +|--- (PASS|FAIL|SKIP): )(\S+)`)

// once runs a program until it ends, or until a test takes too long. It returns which tests have failed, which have
// ended, and the one that has ended the program, if any.
func (j *judge) once(program string, number int, tests, skip []string) (failed, ended []string, culprit string) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	args := append(short(), "-test.v=test2json", "-test.parallel=1", "-test.timeout=0", "-test.skip="+pattern(skip))
	cmd := mutants.Tests{In: j.pkg, Run: pattern(tests), Args: args, Env: []string{fmt.Sprint(variable, "=", number)}}.Command(ctx, program)
	cmd.Args, cmd.Path = append([]string{"sh", "-c", memory, "sh"}, cmd.Args...), "/bin/sh"
	out, err := cmd.StdoutPipe()
	check(err)
	check(cmd.Start())
	limit := time.AfterFunc(time.Minute, func() { stop(); time.AfterFunc(time.Second, func() { out.Close() }) }) // a child may keep it open
	defer limit.Stop()
	var running []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		for _, m := range event.FindAllStringSubmatch(lines.Text(), -1) {
			name, begins := m[3], m[1] == "RUN" || m[1] == "CONT"
			running = slices.DeleteFunc(running, func(t string) bool { return t == name })
			if begins {
				running = append(running, name)
			}
			if m[2] == "FAIL" {
				failed = append(failed, name)
			}
			if top := !strings.Contains(name, "/"); top && begins {
				limit.Reset(3*j.took[name] + *floor)
			} else if top && m[2] != "" {
				ended = append(ended, name)
				limit.Reset(time.Minute)
			}
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) && exit.ExitCode() == 1 && len(failed) > 0 && len(ended) == len(tests) {
		return failed, ended, ""
	} else if n := len(running); n > 0 {
		return failed, ended, running[n-1]
	} else if all := leaves(failed); len(all) > 0 {
		return failed, ended, all[len(all)-1] // a panic ends its test, too
	}
	return nil, ended, whole
}

// pattern matches the names of tests, and nothing if there are none.
func pattern(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, "^"+strings.ReplaceAll(regexp.QuoteMeta(name), "/", "$/^")+"$")
	}
	return strings.Join(all, "|")
}

// leaves returns the names without those of which others are a part.
func leaves(names []string) (all []string) {
	for _, name := range names {
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, name+"/") }) && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// A suite is a package, and the judges of its mutants.
type suite struct {
	pkg, dir string
	judges   []*judge
	numbers  map[string]int // of the mutants that are in the judges' programs
}

// newSuite builds the programs of the judges, whose tests are those that pass without a mutant.
func newSuite(pkg string, all []mutant) *suite {
	dir, err := filepath.Abs(filepath.Join(*dir, "programs"))
	check(err)
	check(os.RemoveAll(dir))
	check(os.MkdirAll(dir, 0o755))
	s := &suite{pkg: pkg, dir: dir}
	edits, numbers := switches(pkg, all)
	s.numbers = numbers
	for _, of := range judgesOf(pkg) {
		j := measured(dir, of, pkg)
		if len(j.tests) == 0 {
			continue
		}
		j.program, err = mutants.Build(context.Background(), dir, of, edits, "-vet=off")
		check(err)
		failed, more := j.run(j.program, 0, j.tests)
		if more || slices.Contains(failed, whole) {
			check(fmt.Errorf("%v of %s fail without a mutant", failed, of))
		}
		log.Printf("%s: of %d tests of %s, %v fail without a mutant, and are left out", pkg, len(j.tests), of, failed)
		j.tests = slices.DeleteFunc(j.tests, func(name string) bool {
			return slices.ContainsFunc(failed, func(f string) bool { return f == name || strings.HasPrefix(f, name+"/") })
		})
		s.judges = append(s.judges, j)
	}
	return s
}

// judgesOf returns the packages whose tests judge a package.
func judgesOf(pkg string) (all []string) {
	patterns := judges[pkg]
	if patterns == nil {
		patterns = []string{"./" + pkg}
	}
	for _, dir := range strings.Fields(goes(append([]string{"list", "-f", "{{.Dir}}"}, patterns...)...)) {
		all = append(all, relative(dir))
	}
	return all
}

// state is a sum of the code and the tests.
func (s *suite) state() string {
	args := []string{"list", "-deps", "-test", "-f", "{{if .Module}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}"}
	for _, of := range judgesOf(s.pkg) {
		args = append(args, "./"+of)
	}
	dirs := strings.Fields(goes(args...))
	slices.Sort(dirs)
	sum := sha256.New()
	for _, dir := range slices.Compact(dirs) {
		for _, files := range []string{"*.go", "lua/*"} {
			paths, _ := filepath.Glob(filepath.Join(dir, files))
			for _, path := range paths {
				text, err := os.ReadFile(path)
				check(err)
				sum.Write(text)
			}
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:6])
}

// judge runs the tests that reach a mutant: all, but slow ones only until there are two that fail. A test that fails
// alone must do so twice.
func (s *suite) judge(m mutant) (v verdict) {
	dir, err := os.MkdirTemp(s.dir, "")
	check(err)
	defer os.RemoveAll(dir)
	v = verdict{Package: s.pkg, ID: m.id(), Place: fmt.Sprint(m.file, ":", m.line), Function: m.fn, Operator: m.op}
	number := s.numbers[v.ID]
	if _, callable := call(m.in, ""); callable && number == 0 {
		v.Uncompiled = true
		return v
	}
	run := func(j *judge, tests []string) {
		program := j.program
		if number == 0 {
			src := read(m.file)
			edit := mutants.Edit{File: m.file, Old: src, New: src[:m.start] + m.with + src[m.end:]}
			if program, err = mutants.Build(context.Background(), dir, j.pkg, []mutants.Edit{edit}, "-p=1", "-vet=off", "-ldflags=-w"); err != nil {
				v.Uncompiled = true
				return
			}
		}
		failed, more := j.run(program, number, tests)
		for _, name := range failed {
			v.Killers = append(v.Killers, j.pkg+" "+name)
		}
		v.More = v.More || more
	}
	for _, late := range []bool{false, true} {
		for _, j := range s.judges {
			tests := slices.DeleteFunc(j.reaching(m), func(t string) bool {
				return late != (j.took[t] > slow) || strings.HasSuffix(m.file, ".lua") && t == testOfSums
			})
			if len(tests) > 0 && !v.Uncompiled && !v.More && !(late && len(v.Killers) > 1) {
				run(j, tests)
			}
		}
	}
	if len(v.Killers) == 1 && !v.More {
		pkg, name, _ := strings.Cut(v.Killers[0], " ")
		if name, _, _ = strings.Cut(name, "/"); name != whole {
			v.Killers = nil
			run(s.judges[slices.IndexFunc(s.judges, func(j *judge) bool { return j.pkg == pkg })], []string{name})
		}
	}
	v.count()
	return v
}
