package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// report writes what came of both sales, worker by worker, and of the holder
// that came late. The workers' waits are sorted by it.
func report(out io.Writer, stock int, without, with *sale, late *lateness) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\n\twithout a lock\twith a lock\t\n")
	fmt.Fprint(table, "worker\tsold\tsold\twaited p50\twaited p99\t\n")
	var waits []time.Duration
	for i, w := range with.workers {
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\n", w.label, without.workers[i].sold, w.sold, percentiles(w.waits))
		waits = append(waits, w.waits...)
	}
	_, soldWithout := without.shop.counts()
	_, soldWith := with.shop.counts()
	fmt.Fprintf(table, "all\t%d\t%d\t%s\n", soldWithout, soldWith, percentiles(waits))
	fmt.Fprintf(table, "stock\t%d\t%d\t\n", stock, stock)
	fmt.Fprintf(table, "oversold by\t%d\t%d\t\n", soldWithout-stock, soldWith-stock)
	if err := table.Flush(); err != nil {
		return err
	}
	return late.report(out)
}

func (l *lateness) report(out io.Writer) error {
	answer := "took it"
	if l.refusal != nil {
		answer = "refused it: " + l.refusal.Error()
	}
	_, err := fmt.Fprintf(out, `
A holder stopped for longer than its lease of %v, and then went on to write.
first    fence %d: read the stock, stopped
second   fence %d: granted when that lease had run out, read the stock
first    %v
         wrote all the same
shop     %s
second   wrote
`, shortTTL, l.stale, l.fresh, l.lost, answer)
	return err
}

// percentiles returns two cells of the table.
func percentiles(waits []time.Duration) string {
	slices.Sort(waits)
	return fmt.Sprintf("%v\t%v\t", percentile(waits, 50), percentile(waits, 99))
}

// percentile returns the smallest of the sorted waits that p percent of them do
// not exceed (the nearest rank).
func percentile(waits []time.Duration, p int) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	rank := (len(waits)*p + 99) / 100
	return waits[rank-1].Round(100 * time.Microsecond)
}
