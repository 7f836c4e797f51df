// Command handovermodel searches a model of the handover on Redis exhaustively. README.md
// says what is modelled.
//
//	go run ./internal/handovermodel            the small configurations, and each rule taken out
//	go run ./internal/handovermodel -large     the large ones, which take long
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	big := flag.Bool("large", false, "search the large configurations, which takes long")
	flag.Parse()
	if *big {
		run(large())
	} else {
		run(small())
		takeOut()
	}
}

// takeOut shows what breaks without each rule.
func takeOut() {
	for _, b := range breaks() {
		c := b.Config.lacks(b.Rule)
		fmt.Printf("\n== without rule %d: %s\n", b.Rule, c.Name)
		result := Search(c)
		fmt.Print(result.Text(c))
	}
}

// run searches configurations, and ends the program if a property was broken.
func run(configs []*Config) {
	failed := false
	for _, c := range configs {
		fmt.Printf("%-50s ", c.Name)
		start := time.Now()
		result := Search(c)
		fmt.Printf("%6.1f s  %s", time.Since(start).Seconds(), result.Text(c))
		failed = failed || result.Broken != 0
	}
	if failed {
		os.Exit(1)
	}
}
