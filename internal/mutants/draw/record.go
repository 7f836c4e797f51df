package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// A verdict is what became of a mutant.
type verdict struct {
	ID, Place, Function, Operator string
	Killers                       []string // package and name of each test that fails
	More                          bool     // others were left out
	Uncompiled                    bool
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

// tests returns the tests of the top level that fail, each once.
func (v verdict) tests() (all []string) {
	for _, killer := range v.Killers {
		pkg, name, _ := strings.Cut(killer, " ")
		name, _, _ = strings.Cut(name, "/")
		all = append(all, pkg+" "+name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// only returns the test that fails alone, or the top of those that do, and "" if there are others.
func (v verdict) only() string {
	switch tests := v.tests(); {
	case v.More || len(tests) != 1:
		return ""
	case len(v.Killers) == 1:
		return v.Killers[0]
	default:
		return tests[0]
	}
}

// A table is a record: its lines by package and identity of the mutant. A line has these, the place, the function,
// the operator, how many tests fail, and the only one.
type table map[string][]string

const header = "package\tmutant\tplace\tfunction\toperator\ttests that fail\tthe only one\n"

func readRecord(path string) table {
	all := make(table)
	text, err := os.ReadFile(path)
	if !os.IsNotExist(err) {
		check(err)
	}
	for line := range strings.Lines(strings.TrimPrefix(string(text), header)) {
		row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		all[row[0]+"\t"+row[1]] = row
	}
	return all
}

func (t table) replace(pkg string, verdicts []verdict) {
	maps.DeleteFunc(t, func(_ string, row []string) bool { return row[0] == pkg })
	for _, v := range verdicts {
		fails := fmt.Sprint(len(v.Killers))
		if v.More {
			fails += "+"
		}
		t[pkg+"\t"+v.ID] = []string{pkg, v.ID, v.Place, v.Function, v.Operator, fails, v.only()}
	}
}

// String has the lines in the order of places.
func (t table) String() string {
	var lines []string
	for _, row := range t {
		lines = append(lines, strings.Join(row, "\t")+"\n")
	}
	slices.SortFunc(lines, func(a, b string) int {
		return slices.Compare(strings.Split(a, "\t")[2:], strings.Split(b, "\t")[2:])
	})
	return header + strings.Join(lines, "")
}

// compared counts the mutants that both records have, and lists those that no test finds any more.
func compared(before, now table) (text string) {
	count, lost := make(map[string][3]int), ""
	for _, id := range slices.Sorted(maps.Keys(before)) {
		old, row := before[id], now[id]
		if row == nil {
			continue
		}
		c := count[row[0]]
		c[0]++
		if old[5] != "0" {
			c[1]++
		}
		if row[5] != "0" {
			c[2]++
		} else if old[5] != "0" {
			lost += "is not found any more: " + strings.Join(row, " ") + "\n"
		}
		count[row[0]] = c
	}
	for _, pkg := range slices.Sorted(maps.Keys(count)) {
		text += fmt.Sprintf("%s: of %d mutants, tests found %d before, and find %d\n", pkg, count[pkg][0], count[pkg][1], count[pkg][2])
	}
	return text + lost
}

// alone counts, for each test, the mutants that it finds, and those that it finds alone.
func (s *suite) alone(verdicts []verdict) (text string) {
	finds, alone := make(map[string]int), make(map[string]int)
	for _, v := range verdicts {
		for _, test := range v.tests() {
			if finds[test]++; v.only() != "" {
				alone[test]++
			}
		}
	}
	text = "finds\talone\ttest\n"
	for _, j := range s.judges {
		for _, name := range j.tests {
			name = j.pkg + " " + name
			text += fmt.Sprintf("%d\t%d\t%s\n", finds[name], alone[name], name)
		}
	}
	return text
}
