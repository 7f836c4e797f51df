package otel_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A fault is what an operator may meet in a night. The signals are what a process shows from the minute 10 on, as
// values for promtool, each 15 s. What is not named stays as it was.
type fault struct {
	name    string
	signals map[string]string
	alerts  after
	quiet   string // why there is none
}

// after has the alerts that fire, and in which sample at the latest.
type after map[string]time.Duration

// The series of a process with a load of 8 acquisitions a second (class sale), candidates of an election (leader), a job
// that runs once a day (nightly), and TTLs of 10 s.
const (
	granted  = `dlock_acquire_duration_seconds_count{dlock_class="sale",dlock_outcome="granted"}`
	held     = `dlock_acquire_duration_seconds_count{dlock_class="sale",dlock_outcome="held"}`
	failed   = `dlock_acquire_duration_seconds_count{dlock_class="sale",dlock_outcome="failed"}`
	nightly  = `dlock_acquire_duration_seconds_count{dlock_class="nightly",dlock_outcome="failed"}`
	waiting  = `dlock_store_waiters{}`
	noInbox  = `dlock_waits_without_inbox_total{}`
	removed  = `dlock_hold_duration_seconds_count{dlock_class="leader",dlock_end="removed"}`
	noAnswer = `dlock_renewal_margin_bucket{dlock_class="leader",error_type="timeout",le="0.4"}`
	refusing = `dlock_renewal_margin_bucket{dlock_class="leader",error_type="_OTHER",le="0.4"}`
	away     = `dlock_renewal_margin_bucket{dlock_class="leader",error_type="unavailable",le="0.4"}`
	overrun  = `dlock_lease_overrun_seconds_count{dlock_class="leader"}`
	short    = `dlock_lease_overrun_seconds_bucket{dlock_class="leader",le="0.05"}`
	up       = `up{}`

	before = 40 // samples
	sample = 15 * time.Second
	begins = before * sample
	lasts  = 15 * time.Minute
)

const (
	stops   = "0+120x40 4800x60" // the acquisitions that are granted
	many    = "_x40 65+195x60"   // failures at once
	slow    = "_x40 8+24x60"     // each takes as long as its limit
	some    = "_x40 6x60"        // renewals that fail, until the lease ends
	waiters = "0x40 2x60"
)

// The alerts.
const (
	acquireFailing = "DlockAcquireFailing"
	noneAcquired   = "DlockNoneAcquired"
	renewalFailing = "DlockRenewalFailing"
	leasesRemoved  = "DlockLeasesRemoved"
	storeAway      = "DlockStoreAway"
	overran        = "DlockOverrun"
	unheard        = "DlockNoInbox"
)

// Most series are what clients on Redis 7.0 showed in three minutes of the fault; the failover was one by REPLICAOF.
// Those of the new process, of the processes that were killed and stopped, of the clock and the nightly job, and the
// numbers of waiters, are what the code says.
var faults = []fault{
	{"the server is killed", map[string]string{granted: stops, failed: many, away: some, waiting: waiters},
		after{acquireFailing: 1, renewalFailing: 1, storeAway: 5, noneAcquired: 44}, ""},
	{"the server is stopped (SIGSTOP)", map[string]string{granted: stops, failed: slow, noAnswer: some, waiting: waiters},
		after{acquireFailing: 3, renewalFailing: 1, storeAway: 5, noneAcquired: 44}, ""},
	{"FLUSHALL", map[string]string{removed: "_x40 1x60"}, after{leasesRemoved: 1}, ""},
	{"out of memory (OOM)", map[string]string{granted: stops, failed: many}, after{acquireFailing: 1, noneAcquired: 44}, ""},
	{"keys are evicted", map[string]string{removed: "_x40 1x60", failed: "_x40 14x60"}, after{leasesRemoved: 1}, ""},
	{"the right to run scripts is lost (ACL)", map[string]string{granted: stops, failed: many, refusing: some},
		after{acquireFailing: 1, renewalFailing: 1, noneAcquired: 44}, ""},
	{"the right to SUBSCRIBE is missing", map[string]string{noInbox: "0x40 1+4x60"}, after{unheard: 1}, ""},
	{"the password is changed", map[string]string{granted: stops, failed: many, refusing: some},
		after{acquireFailing: 1, renewalFailing: 1, noneAcquired: 44}, ""},
	{"a new process has a wrong password", map[string]string{granted: "_x100", failed: many}, after{acquireFailing: 1, noneAcquired: 5}, ""},
	{"the server becomes a replica (REPLICAOF)", map[string]string{granted: stops, failed: slow, away: some, waiting: waiters},
		after{acquireFailing: 3, renewalFailing: 1, storeAway: 5, noneAcquired: 44}, ""},
	{"a failover takes 12 s (Sentinel)", map[string]string{failed: "_x40 15x60", away: some, waiting: "0x40 2 0x59"}, after{renewalFailing: 1}, ""},
	{"a network swallows all packets", map[string]string{granted: stops, failed: slow, noAnswer: some, waiting: waiters},
		after{acquireFailing: 3, renewalFailing: 1, storeAway: 5, noneAcquired: 44}, ""},
	{"other code uses the whole pool", map[string]string{granted: "0+120x40 4805+5x60", failed: "_x40 5+3x60", held: "_x40 1+4x60"}, after{acquireFailing: 7}, ""},
	{"a holder is killed", map[string]string{granted: "0+120x40 stale", up: "1x40 0x60"}, nil,
		"its keys are free after their TTL, and others work on. Prometheus's own `up` shows the process"},
	{"a holder is stopped for a minute", map[string]string{granted: "0+120x40 stale _x3 4920+120x56", up: "1x40 0x3 1x56",
		overrun: "_x44 1x56", short: "_x44 0x56"}, after{overran: 5}, ""},
	{"the leader is stopped for ever", map[string]string{granted: "0+120x40 stale", up: "1x40 0x60"}, nil,
		"another process leads after the TTL. Prometheus's own `up` shows the process. When it goes on, `DlockOverrun` fires"},
	{"a key is stuck, without a TTL", map[string]string{granted: "0+120x40 4860+60x60", held: "_x40 12+12x60"}, nil,
		"contention looks the same, and callers get `ErrHeld`. `dlock list` shows a key that never ends"},
	{"the server's clock is set forward", map[string]string{removed: "_x40 1x60"}, after{leasesRemoved: 1}, ""},
	{"a nightly job finds no server on two replicas", map[string]string{nightly: "_x40 2x60"}, after{noneAcquired: 5}, ""},
}

const rows = "| fault | alert, and after how long at the latest |\n|---|---|\n"

// cells are what the README says of a fault.
func (f *fault) cells() string {
	alerts := slices.SortedFunc(maps.Keys(f.alerts), func(a, b string) int { return cmp.Or(cmp.Compare(f.alerts[a], f.alerts[b]), cmp.Compare(a, b)) })
	for i, a := range alerts {
		alerts[i] = fmt.Sprintf("`%s` after %s", a, strings.Replace((f.alerts[a]*sample).String(), "m0s", "m", 1))
	}
	return fmt.Sprintf("| %s | %s |\n", f.name, cmp.Or(strings.Join(alerts, ", "), "none: "+f.quiet))
}

// promtool makes a test of a fault: no alert before, each in its time, and no others.
func (f *fault) promtool() map[string]any {
	series := map[string]string{granted: "0+120x40 4920+120x60", up: "1x100", waiting: "0x100", noInbox: "0x100", short: "0x100"}
	maps.Copy(series, f.signals)
	var input []map[string]string
	for name, values := range series {
		name = strings.Replace(name, "{", `{job="shop",instance="a",`, 1)
		input = append(input, map[string]string{"series": name, "values": values})
	}
	const fired = `group by (alertname) (count_over_time(ALERTS{alertstate="firing"%s}[20m]))`
	expect := func(at time.Duration, expr string, alerts ...string) map[string]any {
		samples := []map[string]any{}
		for _, a := range alerts {
			samples = append(samples, map[string]any{"labels": fmt.Sprintf("{alertname=%q}", a), "value": 1})
		}
		return map[string]any{"expr": expr, "eval_time": (begins + at).String(), "exp_samples": samples}
	}
	tests := []map[string]any{
		expect(-sample, fmt.Sprintf(fired, "")),
		expect(lasts-sample, fmt.Sprintf(fired, ""), slices.Sorted(maps.Keys(f.alerts))...),
	}
	for alert, n := range f.alerts {
		tests = append(tests, expect(n*sample, fmt.Sprintf(fired, fmt.Sprintf(",alertname=%q", alert)), alert))
	}
	return map[string]any{"name": f.name, "interval": sample.String(), "input_series": input, "promql_expr_test": tests}
}

// TestFaults asks Prometheus's own tool which alerts fire in which fault, and compares the table of the README.
func TestFaults(t *testing.T) {
	table := rows
	var tests []map[string]any
	for _, f := range faults {
		require.NotEqual(t, len(f.alerts) > 0, f.quiet != "", f.name)
		table += f.cells()
		tests = append(tests, f.promtool())
	}
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "\n"+table+"\n", "the table is made of the faults of this test")
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: the faults are not tested")
	}
	rules, err := filepath.Abs("alerts.yml")
	require.NoError(t, err)
	text, err := json.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": sample.String(), "tests": tests})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "faults.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
