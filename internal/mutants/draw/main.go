// Command draw breaks one place of the code after another, and notes which tests fail:
//
//	go run ./internal/mutants/draw                # all packages of the record; takes hours
//	go run ./internal/mutants/draw backend/memory # one package
//	go run ./internal/mutants/draw -old FILE      # compares with an older record, and runs nothing
//	go run ./internal/mutants/draw -sizes         # lines, types and variables of each folder
//
// Each package has -n mutants that compile. They are those of the record that the code still has, and then those
// with the lowest hash of -seed and of their identity: function, text of the line, operator, ordinal. All tests run
// that reach the mutant, in the package and in others that use it. The folder -dir has each verdict with the names
// of all tests that fail. A run that was stopped, by -time or otherwise, continues there when it is started again,
// as long as the code and the tests are the same. When a package is finished, its lines are written to -record, and
// the tests are printed that were the only ones to fail, and those that never were.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/mutants"
)

// judges are the packages whose tests judge a package, as patterns of the go command. Others are judged by their own.
var judges = map[string][]string{
	".":                 {".", "./backend/memory", "./election", "./once", "./semaphore", "./internal/sim/..."},
	"backend/memory":    {"./backend/memory", ".", "./election", "./once", "./semaphore"},
	"backend/rediscore": {"./backend/rediscore", "./backend/goredis", "./internal/sim/..."},
	"backend/redlock":   {"./backend/redlock", "./internal/sim/..."},
}

var (
	n       = flag.Int("n", 300, "how many mutants of each package")
	seed    = flag.Uint64("seed", 1, "which mutants are drawn")
	limit   = flag.Duration("time", 24*time.Hour, "when to stop")
	floor   = flag.Duration("floor", 5*time.Second, "how much longer than three times its usual time a test may take")
	workers = flag.Int("workers", 2, "how many mutants are judged at a time")
	long    = flag.Bool("long", false, "run the tests without -short")
	dir     = flag.String("dir", filepath.Join(os.TempDir(), "dlock-mutants"), "the folder of all verdicts")
	record  = flag.String("record", filepath.Join(mutants.Root(), "internal/mutants/record.jsonl"), "the file of the record")
	old     = flag.String("old", "", "an older record")
	measure = flag.Bool("sizes", false, "print sizes")
)

func main() {
	log.SetFlags(log.Ltime)
	flag.Parse()
	switch packages := flag.Args(); {
	case *measure:
		fmt.Print(sizes())
	case *old != "":
		fmt.Print(compared(verdicts(*old), verdicts(*record)))
	default:
		if len(packages) == 0 {
			packages = slices.Sorted(maps.Keys(judges))
		}
		deadline := time.Now().Add(*limit)
		for _, pkg := range packages {
			judgeAll(pkg, deadline)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// judgeAll judges the mutants of a package until the deadline, and writes its record if it is finished.
func judgeAll(pkg string, deadline time.Time) {
	before := verdicts(*record)
	all := drawn(pkg, *seed, func(id string) bool { return before[pkg+" "+id].ID != "" })
	all = all[:min(len(all), *n*3/2)] // some do not compile
	s := newSuite(pkg, all)
	defer os.RemoveAll(s.dir)
	path := filepath.Join(*dir, fmt.Sprintf("mutants-%s-%s.jsonl", strings.ReplaceAll(pkg, "/", "-"), s.state()))
	known := verdicts(path)
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	check(err)
	defer file.Close()
	var mu sync.Mutex
	finished := func() (vs []verdict) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range all {
			if v, ok := known[pkg+" "+m.id()]; ok && !v.Uncompiled && len(vs) < *n {
				vs = append(vs, v)
			}
		}
		return vs
	}
	parallel(func(yield func(mutant) bool) {
		for _, m := range all {
			mu.Lock()
			_, ok := known[pkg+" "+m.id()]
			mu.Unlock()
			if !ok && (len(finished()) == *n || time.Now().After(deadline) || !yield(m)) {
				return
			}
		}
	}, func(m mutant) {
		v := s.judge(m)
		mu.Lock()
		known[v.key()] = v
		check(json.NewEncoder(file).Encode(v))
		mu.Unlock()
		log.Printf("%s %d: %s %s %q: %d fail", pkg, len(finished()), v.Place, v.Function, v.Operator, len(v.Killers))
	})
	if time.Now().Before(deadline) {
		writeRecord(pkg, finished(), before)
		fmt.Print(s.alone(finished()))
	}
}

// parallel calls f for each value, in some goroutines.
func parallel[T any](values iter.Seq[T], f func(T)) {
	var wg sync.WaitGroup
	ch := make(chan T)
	for range *workers {
		wg.Go(func() {
			for v := range ch {
				f(v)
			}
		})
	}
	for v := range values {
		ch <- v
	}
	close(ch)
	wg.Wait()
}

// goes returns what a go command prints.
func goes(args ...string) string {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = mutants.Root(), os.Stderr
	out, err := cmd.Output()
	check(err)
	return string(out)
}

func short() []string {
	if *long {
		return nil
	}
	return []string{"-test.short"}
}
