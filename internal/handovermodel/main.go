// Command handovermodel searches a model of the handover on Redis exhaustively. README.md
// says what is modelled.
//
//	go run ./internal/handovermodel            the small configurations, and each rule taken out
//	go run ./internal/handovermodel -large     the large ones, which take long
package main

import (
	"fmt"

	"github.com/dlock-go/dlock/internal/modelcheck"
)

func main() {
	var broken []modelcheck.Case
	for _, b := range breaks() {
		c := b.Config.lacks(b.Rule)
		broken = append(broken, c.named(fmt.Sprintf("without rule %d: %s", b.Rule, c.Name)))
	}
	modelcheck.Main(cases(small()), cases(large()), broken)
}

func cases(configs []*Config) (cases []modelcheck.Case) {
	for _, c := range configs {
		cases = append(cases, c.named(c.Name))
	}
	return cases
}

func (c *Config) named(name string) modelcheck.Case {
	return modelcheck.Case{Name: name, Search: func() (string, bool) {
		r := Search(c)
		return r.Text(c), r.Broken == 0
	}}
}
