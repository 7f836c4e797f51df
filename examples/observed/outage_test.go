package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

const (
	tick   = 5 * time.Second
	blip   = 2 * time.Second
	outage = 25 * time.Second
	around = 150 * time.Second // before, between and after them
)

// The service runs in virtual time under its load, and loses its store twice: for a blip, and for an
// outage. What /metrics shows then moves as the alerts need it. Prometheus's own tool evaluates them.
func TestAlertsOfAnOutage(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*memory.Locker, bool){
		"refuses": func(s *memory.Locker, away bool) {
			s.Fail(nil)
			if away {
				s.Fail(syscall.ECONNREFUSED)
			}
		},
		"is silent": func(s *memory.Locker, away bool) {
			s.Delay(0)
			if away {
				s.Delay(time.Hour)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := make(samples)
			synctest.Test(t, func(t *testing.T) { suffer(t, seen, away) })
			acquired := []string{"dlock_acquire_duration_seconds_count", `dlock_class="sale"`}
			failed := append(acquired, `dlock_outcome="failed"`)
			late := []string{"dlock_renewal_margin_bucket", `dlock_class="leader"`, `error_type="`, `le="0.4"`}
			require.Zero(t, seen.rise(0, 2*around, late...), "renewals that fail late, in the blip")
			require.Positive(t, seen.rise(2*around, outage, late...), "and in the outage")
			require.Less(t, seen.rise(around, around, failed...), 0.05*seen.rise(around, around, acquired...), "acquisitions that fail")
			require.Greater(t, seen.rise(2*around, outage, failed...), 0.05*seen.rise(2*around, around, acquired...))
			promtool, err := exec.LookPath("promtool")
			if err != nil {
				t.Skip("promtool is not installed: the alerts are not evaluated")
			}
			args := []string{"test", "rules"}
			for _, interval := range []time.Duration{15 * time.Second, time.Minute} {
				for _, offset := range []time.Duration{0, interval / 3 * 2} {
					args = append(args, seen.rulesTest(t, interval, offset))
				}
			}
			out, err := exec.Command(promtool, args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}

// suffer runs the service without its store at times. Beside the load, whose workers wait for as long as
// a silence lasts, there are ten requests a second, which do not, and a leader that holds a lock.
func suffer(t *testing.T, seen samples, away func(*memory.Locker, bool)) {
	s, err := newService(nil)
	require.NoError(t, err)
	store := memory.New()
	client, err := s.client(store)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	leader, err := client.Acquire(ctx, "leader:1")
	require.NoError(t, err)
	wait := load(ctx, client, s.tracers.Tracer("test"), 6)
	var requests sync.WaitGroup
	requests.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			requests.Go(func() {
				work(ctx, client.With(dlock.WithMaxWait(time.Second)), fmt.Sprintf("sale:%d", i%20), 50*time.Millisecond)
			})
			pause(ctx, 100*time.Millisecond)
		}
	})
	watch := func(d time.Duration) {
		for range d / tick {
			seen.scrape(t, s)
			time.Sleep(tick)
		}
	}
	for _, lasts := range []time.Duration{blip, outage} {
		watch(around)
		away(store, true)
		time.AfterFunc(lasts, func() { away(store, false) })
	}
	watch(outage + around)
	_ = leader.Release() // it may be lost
	stop()
	wait()
	requests.Wait()
	require.NoError(t, client.Close())
}

// samples are the values of series, one for each tick.
type samples map[string][]string

// scrape adds what /metrics shows.
func (all samples) scrape(t *testing.T, s *service) {
	now := 0 // in ticks
	for _, values := range all {
		now = max(now, len(values))
	}
	page := httptest.NewRecorder()
	s.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	for lines := bufio.NewScanner(page.Body); lines.Scan(); {
		series, value, found := strings.Cut(lines.Text(), "} ")
		if name, labels, _ := strings.Cut(series, "{"); found && strings.HasPrefix(name, "dlock_") {
			series = name + `{job="observed",` + labels + "}"
			for len(all[series]) < now {
				all[series] = append(all[series], "_")
			}
			all[series] = append(all[series], value)
		}
	}
}

// rise returns by how much the series of a name with some labels rise in d.
func (all samples) rise(from, d time.Duration, nameAndLabels ...string) (sum float64) {
	for series, values := range all {
		if slices.ContainsFunc(nameAndLabels, func(part string) bool { return !strings.Contains(series, part) }) {
			continue
		}
		first, _ := strconv.ParseFloat(values[from/tick], 64) // 0 if it was not there
		last, _ := strconv.ParseFloat(values[(from+d)/tick], 64)
		sum += last - first
	}
	return sum
}

// rulesTest returns the name of a file for "promtool test rules": if only each interval is scraped, the
// alerts fire after the outage, and none fires before it.
func (all samples) rulesTest(t *testing.T, interval, offset time.Duration) string {
	type object = map[string]any
	alerts, err := filepath.Abs("../../observe/otel/alerts.yml")
	require.NoError(t, err)
	require.FileExists(t, alerts) // so that go test runs again if it has changed
	var series []object
	for name, values := range all {
		var scraped []string
		for i := int(offset / tick); i < len(values); i += int(interval / tick) {
			scraped = append(scraped, values[i])
		}
		series = append(series, object{"series": name, "values": strings.Join(scraped, " ")})
	}
	const fired = `group by (alertname, dlock_class) (count_over_time(
		ALERTS{alertstate="firing", alertname=~"Dlock(Acquire|Renewal)Failing", dlock_class=~"sale|leader"}[1h]))`
	begins := 2*around - offset
	text, err := json.Marshal(object{
		"rule_files":          []string{alerts},
		"evaluation_interval": interval.String(),
		"tests": []object{{
			"interval":     interval.String(),
			"input_series": series,
			"promql_expr_test": []object{
				{"expr": fired, "eval_time": begins.String(), "exp_samples": []object{}},
				{"expr": fired, "eval_time": (begins + time.Minute + interval).String(), "exp_samples": []object{
					{"labels": `{alertname="DlockAcquireFailing", dlock_class="sale"}`, "value": 1},
					{"labels": `{alertname="DlockRenewalFailing", dlock_class="leader"}`, "value": 1},
				}},
			},
		}},
	})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "test.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

// Each panel of the dashboard says what it shows, and names only alerts that there are.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title, Description string
			Targets            []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	alerts, err := os.ReadFile("../../observe/otel/alerts.yml")
	require.NoError(t, err)
	named := make(map[string]bool)
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Description, p.Title)
		for _, alert := range regexp.MustCompile(`Dlock\w+`).FindAllString(p.Description, -1) {
			require.Contains(t, string(alerts), "alert: "+alert+"\n", p.Title)
			named[alert] = true
		}
		if strings.HasPrefix(p.Title, "Wait") {
			for _, target := range p.Targets {
				require.Contains(t, target.Expr, `dlock_contended="true"`, p.Title)
			}
		}
	}
	require.Len(t, named, strings.Count(string(alerts), "alert: "), "alerts without a panel: %v", named)
}
