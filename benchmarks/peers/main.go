package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/dlock-go/dlock/internal/redistest"
)

func main() {
	if isWorker() {
		return
	}
	brief := flag.Bool("short", false, "a run of some seconds, which measures nothing that counts; figures go to standard output")
	ofOrders := flag.Bool("orders", false, "measure locks that nobody else wants, and write their tables")
	majority := flag.Bool("majority", false, "measure locks on several servers, and write their tables")
	ofSets := flag.Bool("sets", false, "measure sets of locks, and print a table")
	again := flag.Bool("draw", false, "measure nothing; write the page and the charts again")
	flag.Parse()
	if !redistest.Asked() {
		os.Setenv("DLOCK_REDIS", "1")
	}
	h := new(host)
	err := h.program(*ofOrders, *majority, *ofSets, *brief, *again)
	h.close()
	if err != nil {
		log.Fatal(err)
	}
}

func (h *host) program(ofOrders, majority, ofSets, brief, again bool) error {
	if again {
		return redraw("")
	}
	all, file := onOneServer(), oneServer
	switch {
	case ofOrders:
		all, file = loads(), orders
	case majority:
		all, file = onNodes(), severalServers
	case ofSets:
		all = setsOf()
	}
	if brief {
		all = short(all)
	}
	m, failed := run(context.Background(), h, all)
	m.Command = strings.Join(append([]string{"go -C benchmarks/peers run ."}, os.Args[1:]...), " ")
	if brief {
		for _, r := range m.Results {
			fmt.Printf("%s: %s: %v\n", r.Scenario, r.Contestant, r.Figures)
		}
		return failed
	}
	if ofSets {
		fmt.Println(m.table("sets; sets, 5 ms", "sets a second|rate", "median of the waits, ms|p50 ms", "p99, ms|p99 ms", "the longest, ms|longest ms", "commands for a set|commands"))
		return failed
	}
	return errors.Join(failed, m.save(file), redraw(file))
}

// run measures all contestants in all scenarios, in rounds. The error says which turns failed.
func run(ctx context.Context, t testing.TB, all []scenario) (m *measurement, failed error) {
	b := startBench(t, all)
	m = describe(b.one[0])
	begun := time.Now()
	for round := range 3 {
		for _, s := range all {
			if round >= s.rounds {
				continue
			}
			fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), s.name)
			for i := range s.among {
				c := s.among[(i+round)%len(s.among)]
				if err := b.measure(ctx, s, c, m.of(s.name, c.id())); err != nil {
					failed = errors.Join(failed, fmt.Errorf("%s of %s: %w", s.name, c.id(), err))
				}
			}
		}
	}
	m.Took = time.Since(begun).Round(time.Second).String()
	m.finish()
	return m, failed
}

// A bench is the servers that contestants are measured on: one, and those of which a majority decides.
type bench struct {
	one   []*redistest.Server
	agree []*redistest.Server
	apart []*redistest.Server // their clocks differ by up to 100 ms from the system's
}

// startBench starts the servers of some scenarios, and waits until nodes vote.
func startBench(t testing.TB, all []scenario) (b bench) {
	b.one = []*redistest.Server{redistest.Start(t)}
	if all[0].nodes == 0 {
		return b
	}
	logging.Disable() // of go-redis, that a server is down
	for i := range 5 {
		b.agree = append(b.agree, redistest.Start(t))
		b.apart = append(b.apart, redistest.StartAhead(t, time.Duration(i-2)*50*time.Millisecond))
	}
	for _, nodes := range [][]*redistest.Server{b.agree, b.apart} {
		if err := awaitVotes(nodes); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b bench) servers(s scenario) []*redistest.Server {
	switch {
	case s.nodes == 0:
		return b.one
	case s.apart:
		return b.apart[:s.nodes]
	}
	return b.agree[:s.nodes]
}

// A host is the testing.TB of a program, for the servers.
type host struct {
	testing.TB
	cleanups []func()
}

func (*host) Helper()                           {}
func (h *host) Cleanup(f func())                { h.cleanups = append(h.cleanups, f) }
func (*host) Errorf(format string, args ...any) { log.Printf(format, args...) }
func (*host) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (*host) Fatal(args ...any)                 { log.Fatal(args...) }
func (*host) Skip(args ...any)                  { log.Fatal(args...) }

func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "peers")
	if err != nil {
		log.Fatal(err)
	}
	h.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (h *host) close() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
}
