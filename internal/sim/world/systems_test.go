package world

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/israce"
)

var (
	howMany   = flag.Uint64("systems", 50, "how many systems; of TestExact: for each CPU")
	from      = flag.Uint64("from", 0, "the first seed; 0: those from 1, in several processes if they are many")
	forTime   = flag.Duration("for", 0, "for how long seeds are tried that nobody has tried, instead of -systems")
	large     = flag.Bool("large", false, "more schedules")
	rowsToo   = flag.String("rows", "", "plant faults, and find them by what is known to do so, or by fresh seeds and schedules; record notes those that do")
	exactly   = flag.Bool("exact", false, "the runtime does nothing at random")
	rowNumber = flag.Int("row", -1, "the row that looks for the fault that is planted")
)

// TestSystems carries out the plans of some seeds, and stops at the first that fails. The seeds of a large
// number are divided among processes, since one process runs one system at a time. It prints all that happens in a single one.
func TestSystems(t *testing.T) {
	first, n := *from, *howMany
	switch {
	case first != 0: // one of several processes
	case *forTime != 0:
		divide(t, os.Args[0], "TestSystems", uint64(time.Now().UnixMicro()), 1<<40)
		return
	case n > 200:
		divide(t, os.Args[0], "TestSystems", 1, n)
		return
	case testing.Short() || israce.Enabled:
		n = min(n, 5)
	}
	defer oneAtATime()()
	done, single := 0, n == 1
	for begun, seed := time.Now(), max(first, 1); n > 0 && (*forTime == 0 || time.Since(begun) < *forTime); seed++ {
		n--
		s := newPlan(seed).run(t, single)
		if single {
			fmt.Print(s.journal.text.String())
		}
		if len(s.failures) > 0 {
			report(t, s)
			return
		}
		done++
	}
	t.Logf("%d systems", done)
}

// divide lets a process for each CPU run a test of a program with its share of n seeds.
func divide(t *testing.T, program, test string, from, n uint64, args ...string) {
	processes := uint64(runtime.NumCPU())
	share := (n + processes - 1) / processes
	for i := range processes {
		t.Run(fmt.Sprint("from ", from+i*share), func(t *testing.T) {
			t.Parallel()
			args := append(args, "-test.run=^"+test+"$", "-test.v", "-test.timeout=0",
				fmt.Sprint("-from=", from+i*share), fmt.Sprint("-systems=", share), fmt.Sprint("-for=", *forTime))
			out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
		})
	}
}

// Seeds repeat all that happens, to the nanosecond, if the runtime does nothing at random.
func TestSeedsRepeat(t *testing.T) {
	if !*exactly {
		t.Skip("a part of TestExact")
	}
	defer oneAtATime()()
	n, equal := *howMany, uint64(0)
	for seed := *from; seed < *from+n; seed++ {
		p := newPlan(seed)
		first, second := p.run(t, true).journal.text.String(), p.run(t, true).journal.text.String()
		require.NotEmpty(t, first)
		if first == second {
			equal++
		} else {
			t.Logf("seed %d (%s) differs: %s", seed, p.kind, difference(first, second))
		}
	}
	t.Logf("%d of %d seeds from %d repeat", equal, n, *from)
	require.Equal(t, n, equal)
}

// difference is where two journals differ first.
func difference(first, second string) string {
	a, b := strings.Split(first, "\n"), strings.Split(second, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return a[i] + "\n" + b[i]
		}
	}
	return "one goes on"
}

// A plan shrinks to what makes it fail.
func TestShrink(t *testing.T) {
	p := newPlan(1)
	require.Greater(t, len(p.jobs), 20)
	require.NotEmpty(t, p.faults)
	p.mishaps = map[string]mishap{"a": {}, "b": {}, "c": {}}
	culprit, first := p.jobs[11], p.faults[0]
	small := p.shrink(1000, func(q *plan) bool {
		_, b := q.mishaps["b"]
		return b && slices.Contains(q.jobs, culprit) && slices.Contains(q.faults, first)
	})
	require.Equal(t, []job{culprit}, small.jobs)
	require.Equal(t, []fault{first}, small.faults)
	require.Equal(t, map[string]mishap{"b": {}}, small.mishaps)
	require.Greater(t, len(p.items()), 20, "the plan itself is as it was")
}

// oneAtATime lets goroutines run one after the other, as they become ready.
func oneAtATime() (end func()) {
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}

// report says what is wrong with a system, with as little of its plan as shows it.
func report(t *testing.T, s *seeds) {
	kind, seed, full := s.failures[0].property, s.plan.seed, len(s.plan.items())
	s.plan.shrink(600, func(p *plan) bool {
		less := p.run(t, false)
		fails := slices.ContainsFunc(less.failures, func(f failure) bool { return f.property == kind })
		if fails {
			s = less
		}
		return fails
	})
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s: %d of %d events are left\n%v", seed, kind, len(s.plan.items()), full, s.plan)
	var violation *history.Violation
	for _, f := range s.failures {
		fmt.Fprintf(&b, "%s: %s\n", f.property, f.text)
		if f.violation != nil {
			violation = f.violation
		}
	}
	listing := filepath.Join(os.TempDir(), fmt.Sprintf("dlock-system-%d.txt", seed))
	if err := os.WriteFile(listing, []byte(s.recorder.History().Listing(violation)), 0o600); err == nil {
		fmt.Fprintf(&b, "the whole history: %s\n", listing)
	}
	t.Errorf("%s-from=%d -systems=1 repeats it", b.String(), seed)
}
