package world

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/history"
	"github.com/dlock-go/dlock/internal/israce"
)

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, variable)
	return n
}

// TestSystems carries out the plans of some seeds, and stops at the first that fails. The seeds of a large
// number are divided among processes, since one process runs one system at a time.
func TestSystems(t *testing.T) {
	from, n := number(t, "DLOCK_SIM_FROM", 0), number(t, "DLOCK_SIM_SYSTEMS", 50)
	limit, err := time.ParseDuration(cmp.Or(os.Getenv("DLOCK_SIM_TIME"), "1000h"))
	require.NoError(t, err)
	seed := number(t, "DLOCK_SIM_SEED", 0)
	switch {
	case seed != 0:
		from, n = seed, 1
	case from != 0: // one of several processes
	case os.Getenv("DLOCK_SIM_TIME") != "":
		divide(t, uint64(time.Now().UnixMicro()), 1<<40)
		return
	case n > 200:
		divide(t, 1, n)
		return
	case testing.Short() || israce.Enabled:
		n = min(n, 5)
	}
	defer oneAtATime()()
	done, jobs, holds, calls := 0, 0, 0, 0
	for begun, seed := time.Now(), max(from, 1); n > 0 && time.Since(begun) < limit; seed++ {
		p := newPlan(seed)
		if only := os.Getenv("DLOCK_SIM_KIND"); only != "" && string(p.kind) != only {
			continue
		}
		n--
		r := p.run(t, os.Getenv("DLOCK_SIM_LOG") != "")
		fmt.Print(r.journal)
		if len(r.failures) > 0 {
			t.Logf("the first %d systems pass", done)
			report(t, r)
			return
		}
		done, jobs, holds, calls = done+1, jobs+len(r.plan.jobs), holds+len(r.history.Holds), calls+r.scripts
	}
	t.Logf("%d systems: %d jobs, %d holds, %d calls", done, jobs, holds, calls)
}

// divide lets a process for each CPU try its share of n seeds.
func divide(t *testing.T, from, n uint64) {
	processes := uint64(runtime.NumCPU())
	share := (n + processes - 1) / processes
	for i := range processes {
		t.Run(fmt.Sprint("from ", from+i*share), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestSystems$", "-test.v", "-test.timeout=0")
			cmd.Env = append(os.Environ(), fmt.Sprint("DLOCK_SIM_FROM=", from+i*share), fmt.Sprint("DLOCK_SIM_SYSTEMS=", share))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
		})
	}
}

// The seeds of most systems repeat all that happens, to the nanosecond. Of those where several timers of the
// library go off at the same instant, goroutines may run in another order.
func TestSeedsRepeat(t *testing.T) {
	if israce.Enabled {
		t.Skip("the race detector runs goroutines in random order")
	}
	defer oneAtATime()()
	equal := 0
	for seed := range uint64(10) {
		p := newPlan(seed + 1)
		first, second := p.run(t, true).journal, p.run(t, true).journal
		require.NotEmpty(t, first)
		if first == second {
			equal++
		}
	}
	require.GreaterOrEqual(t, equal, 5)
	t.Logf("%d of 10 seeds", equal)
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
	require.Greater(t, p.size(), 20, "the plan itself is as it was")
}

// oneAtATime lets goroutines run one after the other, as they become ready.
func oneAtATime() (end func()) {
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}

// has reports whether r has failed in one way.
func (r result) has(kind property) bool {
	return slices.ContainsFunc(r.failures, func(f failure) bool { return f.property == kind })
}

// report says what is wrong with a system, with as little of its plan as shows it.
func report(t *testing.T, r result) {
	kind, seed, full := r.failures[0].property, r.plan.seed, r.plan.size()
	fails := func(p *plan) bool { return p.run(t, false).has(kind) }
	if small := r.plan.shrink(600, fails); fails(small) {
		if less := small.run(t, false); less.has(kind) {
			r = less
		}
	}
	again := 0
	for range 20 {
		if fails(r.plan) {
			again++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s: %d of %d events are left, and fail in %d of 20 runs\n%v", seed, kind, r.plan.size(), full, again, r.plan)
	var violation *history.Violation
	for _, f := range r.failures {
		fmt.Fprintf(&b, "%s: %s\n", f.property, f.text)
		if f.violation != nil {
			violation = f.violation
		}
	}
	picture := filepath.Join(os.TempDir(), fmt.Sprintf("dlock-system-%d.html", seed))
	if err := os.WriteFile(picture, history.Picture(r.history, violation, fmt.Sprint("seed ", seed), b.String()), 0o600); err == nil {
		fmt.Fprintf(&b, "picture of the history: %s\n", picture)
	}
	t.Errorf("%sDLOCK_SIM_SEED=%d repeats it", b.String(), seed)
}

var large = flag.Bool("large", false, "")
