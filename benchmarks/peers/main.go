package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/dlock-go/dlock/internal/redistest"
)

// limit is how long a run may take. Turns that would begin later are left out.
const limit = 10*time.Minute - 25*time.Second

func main() {
	if text := os.Getenv(jobVariable); text != "" {
		if err := work(text, os.Stdin, os.Stdout); err != nil {
			log.Fatal(err)
		}
		return
	}
	rtt := flag.Duration("rtt", 2*time.Millisecond, "round-trip time that is added in the second half of the run; 0 leaves that half out")
	brief := flag.Bool("short", false, "a run of some seconds, which measures nothing that counts; figures go to standard output")
	only := flag.String("only", "", "only the scenarios whose names match this regular expression; figures go to standard output")
	majority := flag.Bool("majority", false, "measure locks on several servers, and write their chapter")
	data := flag.String("data", "", "where what was measured is written (default data.json, or majority.json)")
	from := flag.String("from", "", "measure nothing; write the page and the charts from this file")
	docs := flag.String("docs", "../../docs", "the folder of the page and the charts")
	flag.Parse()
	if *from != "" {
		if err := redraw(*from, *docs); err != nil {
			log.Fatal(err)
		}
		return
	}
	all := scenarios(*rtt)
	if *majority {
		all = onNodes(*rtt)
	}
	if *brief {
		all = short(all)
	}
	names, err := regexp.Compile(*only)
	if err != nil {
		log.Fatal(err)
	}
	h := new(host)
	defer h.close()
	m, failed := run(context.Background(), h, matching(all, names))
	m.Command = strings.Join(append([]string{"go -C benchmarks/peers run ."}, os.Args[1:]...), " ")
	if *brief || *only != "" {
		for _, r := range m.Results {
			fmt.Println(r)
		}
	} else {
		failed = errors.Join(failed, m.save(cmp.Or(*data, file(*majority))), m.write(*docs))
	}
	if failed != nil {
		h.close()
		log.Fatal(failed)
	}
}

// redraw writes the page and the charts of an earlier run.
func redraw(from, docs string) error {
	m, err := readMeasurement(from)
	if err != nil {
		return err
	}
	return m.write(docs)
}

func matching(all []scenario, names *regexp.Regexp) (some []scenario) {
	for _, s := range all {
		if names.MatchString(s.Name) {
			some = append(some, s)
		}
	}
	return some
}

// run measures all contestants in all scenarios, in rounds. The error says which turns failed.
func run(ctx context.Context, t testing.TB, all []scenario) (m *measurement, failed error) {
	b := bench{t: t, server: redistest.Start(t)}
	m = describe(b)
	if m.Majority = all[0].nodes > 0; m.Majority {
		b.farm = startFarm(t)
	}
	begun := time.Now()
	show := newProgress(all)
	for round := range 3 {
		for _, s := range all {
			if round >= s.rounds {
				continue
			}
			for i := range s.among {
				c := s.among[(i+round)%len(s.among)]
				if time.Since(begun) > limit {
					m.Cut = true
					continue
				}
				show.next(s, c)
				figures, waits, err := b.measure(ctx, c, s)
				failed = errors.Join(failed, err)
				m.add(s, c, figures, waits)
			}
		}
	}
	show.end()
	m.Took = time.Since(begun).Round(time.Second).String()
	m.finish()
	return m, failed
}

// A progress shows how far a run is: a bar on a terminal, or else a line for each scenario.
type progress struct {
	bar  *progressbar.ProgressBar
	done time.Duration
	last string
}

func newProgress(all []scenario) *progress {
	var total time.Duration
	for _, s := range all {
		total += s.cost() * time.Duration(s.rounds*len(s.among))
	}
	fmt.Fprintf(os.Stderr, "about %v\n", total.Round(time.Second))
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return new(progress)
	}
	return &progress{bar: progressbar.NewOptions64(int64(total/time.Millisecond),
		progressbar.OptionSetWriter(os.Stderr), progressbar.OptionFullWidth(), progressbar.OptionSetPredictTime(true))}
}

func (p *progress) next(s scenario, c contestant) {
	title := s.title()
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("%-20s %-24s", title, c.id()))
		p.bar.Set64(int64(p.done / time.Millisecond))
	} else if p.last != title {
		fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), title)
	}
	p.last, p.done = title, p.done+s.cost()
}

func (p *progress) end() {
	if p.bar != nil {
		p.bar.Finish()
		fmt.Fprintln(os.Stderr)
	}
}

// A host is the testing.TB of a program, for the server.
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
	return filepath.Clean(dir)
}

func (h *host) close() {
	for len(h.cleanups) > 0 {
		last := len(h.cleanups) - 1
		f := h.cleanups[last]
		h.cleanups = h.cleanups[:last]
		f()
	}
}
