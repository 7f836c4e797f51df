package modelcheck

import (
	"flag"
	"fmt"
	"os"
	"time"
)

// A Case is a configuration of a model, with what has been taken out of it.
type Case struct {
	Name   string
	Search func() (text string, holds bool)
}

// Main is the program of a model: it searches small configurations, and shows what is broken in
// others. With the flag -large it searches large ones. It ends with an error if one does not hold
// that should.
func Main(small, large, broken []Case) {
	big := flag.Bool("large", false, "search the large configurations, which takes long")
	flag.Parse()
	if *big {
		small, broken = large, nil
	}
	failed := false
	for _, c := range small {
		fmt.Printf("%-50s ", c.Name)
		start := time.Now()
		text, holds := c.Search()
		fmt.Printf("%6.1f s  %s", time.Since(start).Seconds(), text)
		failed = failed || !holds
	}
	for _, c := range broken {
		text, _ := c.Search()
		fmt.Printf("\n== %s\n%s", c.Name, text)
	}
	if failed {
		os.Exit(1)
	}
}
