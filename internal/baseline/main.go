// Command baseline measures how much the tests prove, and how much code that takes. A change that
// makes the project smaller is compared with what was measured before it:
//
//	go run ./internal/baseline -mutants 300     # takes hours
//	go run ./internal/baseline -figures         # runs all tests
//	go run ./internal/baseline -old DIR         # both results beside each other
//
// -mutants breaks one place of a package's code after another, and notes whether a test fails. Each
// package, or each that is an argument, has so many mutants that compile. They are those with the
// lowest hash of -seed and of their identity: function, text of the line, operator, ordinal. The
// same mutants are drawn again where the code is the same, in whichever file or package. A mutant
// is appended to mutants.tsv as soon as it is judged. A run that was interrupted continues when it
// is started again. Delete the file to begin again, and after the tests have changed.
//
// -figures writes figures.tsv: the coverage of package dlock and of backend/memory, the cases that
// catch each broken lock, the times of the tests, and the size of each folder.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("baseline: ")
	dir := flag.String("dir", "internal/baseline/testdata", "the folder of the results")
	old := flag.String("old", "", "the folder of older results")
	n := flag.Int("mutants", 0, "how many mutants of each package are judged")
	seed := flag.Uint64("seed", 1, "which mutants are drawn")
	measure := flag.Bool("figures", false, "measure everything else")
	flag.Parse()
	check(os.MkdirAll(*dir, 0o755))
	var before result
	if *old != "" {
		before = read(*old)
	}
	if *measure {
		text := "name\tvalue\n"
		figures := measured()
		for _, name := range slices.Sorted(maps.Keys(figures)) {
			text += name + "\t" + figures[name] + "\n"
		}
		check(os.WriteFile(filepath.Join(*dir, figuresFile), []byte(text), 0o644))
	}
	if *n > 0 {
		mutate(filepath.Join(*dir, mutantsFile), *n, *seed, flag.Args(), before.mutants)
	}
	fmt.Print(report(before, read(*dir)))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

const (
	mutantsFile = "mutants.tsv"
	figuresFile = "figures.tsv"
)

// A result is what stands in a folder: a value for each name, and what became of each mutant, by
// its package and identity.
type result struct {
	figures map[string]string
	mutants map[string]verdict
}

func read(dir string) result {
	r := result{make(map[string]string), judged(filepath.Join(dir, mutantsFile))}
	for _, row := range rows(filepath.Join(dir, figuresFile)) {
		r.figures[row[0]] = row[1]
	}
	count := make(map[string]int)
	for id, v := range r.mutants {
		pkg, _, _ := strings.Cut(id, "\t")
		count["mutants of "+pkg+", "+v.became]++
	}
	for name, n := range count {
		r.figures[name] = fmt.Sprint(n)
	}
	return r
}

// rows returns the rows of a TSV file after its header, and none if there is no file.
func rows(path string) (all [][]string) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	check(err)
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return all[min(1, len(all)):]
}

// report has the older and the newer value of each figure, and the mutants that survive now and
// were killed before. A mutant is found again if its function has moved to another package.
func report(before, now result) (text string) {
	names := slices.Concat(slices.Collect(maps.Keys(before.figures)), slices.Collect(maps.Keys(now.figures)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		mark := " "
		if before.figures != nil && before.figures[name] != now.figures[name] {
			mark = "*"
		}
		text += fmt.Sprintf("%s %-60s  %-40s  %s\n", mark, name, cmp.Or(before.figures[name], "-"), cmp.Or(now.figures[name], "-"))
	}
	moved := make(map[string]string)
	for id, v := range before.mutants {
		_, id, _ = strings.Cut(id, "\t")
		moved[id] = min(cmp.Or(moved[id], v.became), v.became) // killed, if that happened anywhere
	}
	for _, id := range slices.Sorted(maps.Keys(now.mutants)) {
		_, identity, _ := strings.Cut(id, "\t")
		if now.mutants[id].became == survived && cmp.Or(before.mutants[id].became, moved[identity]) == killed {
			text += "killed before, survives now: " + strings.ReplaceAll(id, "\t", " | ") + "\n"
		}
	}
	return text
}
