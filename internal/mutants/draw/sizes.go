package main

import (
	"fmt"
	"maps"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/internal/mutants"
)

var (
	notCode  = regexp.MustCompile(`(?m)^[ \t]*(//.*|--.*)?$`)
	typeName = regexp.MustCompile(`(?m)^type \w+|^\t\w+ (struct|interface) \{`)
	steers   = regexp.MustCompile(`"DLOCK_[A-Z_]+"`)
	shows    = regexp.MustCompile(`(^|/)(conformance|examples?|benchmarks|interop|internal/(sim|history|faultproxy|mutants|bubble|\w*test|freeport|release)|backend/internal/\w+test)(/|_)`)
)

// sizes returns for each folder the code of the product, and of what tests or shows it, without blank lines and
// comments, and all lines in files that are not tests, and in tests.
func sizes() string {
	files, err := exec.Command("git", "-C", mutants.Root(), "ls-files", "*.go", "*.lua").Output()
	check(err)
	count := make(map[string]*[4]int)
	types, variables := 0, make(map[string]bool)
	for _, file := range strings.Fields(string(files)) {
		text := read(file)
		lines, test := strings.Count(text, "\n"), strings.HasSuffix(file, "_test.go")
		code, of := lines-len(notCode.FindAllString(text, -1))+1, 0 // there is a match after the last line
		if test || shows.MatchString(file) {
			of, types = 1, types+len(typeName.FindAllString(text, -1))
			for _, name := range steers.FindAllString(text, -1) {
				variables[name] = true
			}
		}
		for _, folder := range []string{path.Dir(file), "all"} {
			if count[folder] == nil {
				count[folder] = new([4]int)
			}
			count[folder][of] += code
			if count[folder][2] += lines; test {
				count[folder][2], count[folder][3] = count[folder][2]-lines, count[folder][3]+lines
			}
		}
	}
	text := "folder\tproduct\trest\tnot tests\ttests\n"
	for _, folder := range slices.Sorted(maps.Keys(count)) {
		c := count[folder]
		text += fmt.Sprintf("%s\t%d\t%d\t%d\t%d\n", folder, c[0], c[1], c[2], c[3])
	}
	return text + fmt.Sprintf("types outside of the product: %d; variables in tests: %d\n", types, len(variables))
}
