package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// A verdict is what became of a mutant.
type verdict struct {
	Package, ID, Place, Function, Operator string

	Uncompiled bool     `json:",omitempty"`
	Fail       int      // how many tests fail
	More       bool     `json:",omitempty"` // others were left out
	Only       string   `json:",omitempty"` // the one that fails, if there are no others
	Killers    []string `json:",omitempty"` // all of them, package and name; not in the record
}

func (v verdict) key() string { return v.Package + " " + v.ID }

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

// count sets Fail and Only. Several parts of a test are that test.
func (v *verdict) count() {
	v.Fail = len(v.Killers)
	if tests := v.tests(); len(tests) == 1 && !v.More {
		v.Only = tests[0]
		if v.Fail == 1 {
			v.Only = v.Killers[0]
		}
	}
}

// verdicts reads a file with a verdict on each line, and none if there is no file.
func verdicts(path string) map[string]verdict {
	all := make(map[string]verdict)
	text, err := os.ReadFile(path)
	if !os.IsNotExist(err) {
		check(err)
	}
	for line := range bytes.Lines(text) {
		var v verdict
		if json.Unmarshal(line, &v) == nil { // the last line may be cut
			all[v.key()] = v
		}
	}
	return all
}

// writeRecord replaces the verdicts on a package in the record.
func writeRecord(pkg string, verdicts []verdict, all map[string]verdict) {
	maps.DeleteFunc(all, func(_ string, v verdict) bool { return v.Package == pkg })
	for _, v := range verdicts {
		v.Killers = nil
		all[v.key()] = v
	}
	order := func(a, b verdict) int {
		return cmp.Or(strings.Compare(a.Package, b.Package), strings.Compare(a.Place, b.Place), strings.Compare(a.ID, b.ID))
	}
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	lines.SetEscapeHTML(false)
	for _, v := range slices.SortedFunc(maps.Values(all), order) {
		check(lines.Encode(v))
	}
	check(os.WriteFile(*record, text.Bytes(), 0o644))
}

// compared counts the mutants that both records have, and lists those that no test finds any more.
func compared(before, now map[string]verdict) (text string) {
	type counts struct{ both, before, now int }
	count := make(map[string]*counts)
	for _, key := range slices.Sorted(maps.Keys(before)) {
		old, v := before[key], now[key]
		if v.ID == "" {
			continue
		}
		if count[v.Package] == nil {
			count[v.Package] = new(counts)
		}
		c := count[v.Package]
		if c.both++; old.Fail > 0 {
			c.before++
		}
		if v.Fail > 0 {
			c.now++
		} else if old.Fail > 0 {
			text += fmt.Sprintf("is not found any more: %s, %s, %s\n", v.Place, v.Function, v.Operator)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(count)) {
		text += fmt.Sprintf("%s: of %d mutants, tests found %d before, and find %d\n", pkg, count[pkg].both, count[pkg].before, count[pkg].now)
	}
	return text
}

// alone counts, for each test, the mutants that it finds, and those that it finds alone.
func (s *suite) alone(verdicts []verdict) (text string) {
	finds, alone := make(map[string]int), make(map[string]int)
	for _, v := range verdicts {
		for _, test := range v.tests() {
			if finds[test]++; v.Only != "" {
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
