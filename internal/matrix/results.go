package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// A name is that of a test, or of a package if test is empty.
type name struct{ pkg, test string }

// collect reads the output of go test -json, and returns the last action of each test. It writes
// to progress what the tests print that do not pass.
func collect(events io.Reader, progress io.Writer) (map[name]string, error) {
	outcomes, output := make(map[name]string), make(map[name]string)
	for d := json.NewDecoder(events); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return outcomes, nil
		} else if err != nil {
			return outcomes, fmt.Errorf("output of go test: %w", err)
		}
		switch n := (name{e.Package, e.Test}); e.Action {
		case "run":
			outcomes[n] = e.Action
		case "output":
			output[n] += e.Output
		case "build-output":
			fmt.Fprint(progress, e.Output)
		case "pass", "fail", "skip":
			outcomes[n] = e.Action
			if e.Action != "pass" || e.Test == "" {
				fmt.Fprint(progress, output[n])
			}
			delete(output, n)
		}
	}
}

// A suite is the conformance suite: the names of its cases.
type suite map[string]bool

// line is one of the contract: it begins with the name of a case, in a table or in a list.
var line = regexp.MustCompile(`(?m)^(?:\| |- \*\*)(\w+)(?: \| [A-Z]|\*\*: )`)

// readContract reads the page of the contract, which the suite keeps in step with its cases.
func readContract(page string) (suite, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	s := make(suite)
	for _, m := range line.FindAllStringSubmatch(string(text), -1) {
		s[m[1]] = true
	}
	if len(s) == 0 {
		return nil, fmt.Errorf("%s: no cases", page)
	}
	return s, nil
}

// place says whether a test is a case of the suite, or within one.
func (s suite) place(test string) (isCase, within bool) {
	path := strings.Split(test, "/")
	for i, part := range path {
		if s[part] {
			return i+1 == len(path), i+1 < len(path)
		}
	}
	return false, false
}

// counts says how many tests have passed, failed and were skipped.
type counts [3]int

// column returns the place of an action in counts. What was running when its package ended has failed.
func column(action string) int {
	switch action {
	case "pass":
		return 0
	case "skip":
		return 2
	}
	return 1
}

// count counts the cases of the suite, and the other tests. Others with subtests, and packages,
// count only if they have failed and nothing in them has.
func (s suite) count(outcomes map[name]string) (result counts) {
	parents, blamed := make(map[name]bool), make(map[name]bool)
	for n, action := range outcomes {
		for p := n; p.test != ""; {
			p.test = p.test[:max(0, strings.LastIndex(p.test, "/"))]
			parents[p], blamed[p] = true, blamed[p] || column(action) == 1
		}
	}
	for n, action := range outcomes {
		isCase, within := s.place(n.test)
		if within || !isCase && (parents[n] || n.test == "") && (column(action) != 1 || blamed[n]) {
			continue
		}
		result[column(action)]++
	}
	return result
}

// header begins the table, which has a row for each server.
const header = "| server | date | passed | failed | skipped |\n|---|---|---|---|---|\n"

func (c counts) row(version, date string) string {
	return fmt.Sprintf("| %s | %s | %d | %d | %d |\n", version, date, c[0], c[1], c[2])
}
