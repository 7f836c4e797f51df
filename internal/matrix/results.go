package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
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

const (
	others = "The adapters' own tests"
	all    = "All"
)

// A suite is the conformance suite: its chapters, in order, and the chapter of each case.
type suite struct {
	chapters []string
	of       map[string]string
}

var line = regexp.MustCompile(`(?m)^## (.+)$|^\| (\w+) \| [A-Z]`)

// readContract reads the page of the contract, which the suite keeps in step with its cases.
func readContract(page string) (suite, error) {
	text, err := os.ReadFile(page)
	s := suite{of: make(map[string]string)}
	for _, m := range line.FindAllStringSubmatch(string(text), -1) {
		if m[1] != "" {
			s.chapters = append(s.chapters, m[1])
		} else {
			s.of[m[2]] = s.chapters[len(s.chapters)-1]
		}
	}
	return s, err
}

func (s suite) rows() []string { return append(slices.Clone(s.chapters), others, all) }

// row returns the row of a test. A test within a case of the suite does not count.
func (s suite) row(test string) (row string, within bool) {
	path := strings.Split(test, "/")
	for i, part := range path {
		if chapter, ok := s.of[part]; ok {
			return chapter, i+1 < len(path)
		}
	}
	return others, false
}

// counts has for each row how many tests have passed, failed and were skipped.
type counts map[string][3]int

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

// count counts the cases of each chapter, and the other tests. Others with subtests, and packages,
// count only if they have failed and nothing in them has.
func (s suite) count(outcomes map[name]string) counts {
	parents, blamed := make(map[name]bool), make(map[name]bool)
	for n, action := range outcomes {
		for p := n; p.test != ""; {
			p.test = p.test[:max(0, strings.LastIndex(p.test, "/"))]
			parents[p], blamed[p] = true, blamed[p] || column(action) == 1
		}
	}
	result := make(counts)
	for n, action := range outcomes {
		row, within := s.row(n.test)
		if within || row == others && (parents[n] || n.test == "") && (column(action) != 1 || blamed[n]) {
			continue
		}
		for _, r := range []string{row, all} {
			c := result[r]
			c[column(action)]++
			result[r] = c
		}
	}
	return result
}

func (s suite) table(versions []string, counts []counts) string {
	table := "| passed / failed / skipped | " + strings.Join(versions, " | ") + " |\n"
	table += strings.Repeat("|---", 1+len(versions)) + "|\n"
	for _, row := range s.rows() {
		table += "| " + row + " |"
		for _, c := range counts {
			table += fmt.Sprintf(" %d / %d / %d |", c[row][0], c[row][1], c[row][2])
		}
		table += "\n"
	}
	return table
}
