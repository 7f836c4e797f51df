// Command redlockmodel searches a model of the majority lock exhaustively. README.md says what is
// modelled.
//
//	go run ./internal/redlockmodel            the small configurations, and each rule taken out
//	go run ./internal/redlockmodel -large     the large ones, which take long
package main

import (
	"strings"

	"github.com/dlock-go/dlock/internal/modelcheck"
)

func main() { modelcheck.Main(cases(small()), cases(large()), cases(breaks())) }

func cases(configs []*Config) (cases []modelcheck.Case) {
	for _, c := range configs {
		cases = append(cases, modelcheck.Case{Name: c.Title(), Search: func() (string, bool) {
			r := modelcheck.Search(c, c.Limit)
			return c.Text(&r), r.Err == nil
		}})
	}
	return cases
}

// Title names a configuration, and the rules that it lacks.
func (c *Config) Title() string {
	var lacks []string
	for i, name := range ruleNames {
		if c.without(1 << i) {
			lacks = append(lacks, name)
		}
	}
	if lacks == nil {
		return c.Name
	}
	return "without " + strings.Join(lacks, " and ") + ": " + c.Name
}
