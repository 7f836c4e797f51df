package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

const (
	tick   = 5 * time.Second
	blip   = 2 * time.Second
	outage = 25 * time.Second
	around = 150 * time.Second // before, between and after them
)

// The service runs in virtual time under its load, and loses its store twice: for a blip, and for an
// outage. What /metrics shows then moves as the alerts need it.
func TestMetricsOfAnOutage(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*memory.Locker, bool){
		"refuses": func(s *memory.Locker, away bool) {
			s.Fail(map[bool]error{true: syscall.ECONNREFUSED}[away])
		},
		"is silent": func(s *memory.Locker, away bool) {
			s.Delay(map[bool]time.Duration{true: time.Hour}[away])
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := make(samples)
			bubble.Test(t, func(t *testing.T) { suffer(t, seen, away) })
			acquired := []string{"dlock_acquire_duration_seconds_count", `dlock_class="sale"`}
			failed := append(acquired, `dlock_outcome="failed"`)
			late := []string{"dlock_renewal_margin_bucket", `dlock_class="leader"`, `error_type="`, `le="0.4"`}
			require.Zero(t, seen.rise(0, 2*around, late...), "renewals that fail late, in the blip")
			require.Positive(t, seen.rise(2*around, outage, late...), "and in the outage")
			require.Less(t, seen.rise(around, around, failed...), 0.05*seen.rise(around, around, acquired...), "acquisitions that fail")
			require.Greater(t, seen.rise(2*around, outage, failed...), 0.05*seen.rise(2*around, around, acquired...))
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
	begun := time.Now()
	watch := func(d time.Duration) {
		for range d / tick {
			seen.scrape(t, s, time.Since(begun))
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

// samples are what /metrics shows at each tick, by series.
type samples map[string]map[time.Duration]float64

func (all samples) scrape(t *testing.T, s *service, at time.Duration) {
	page := httptest.NewRecorder()
	s.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	for lines := bufio.NewScanner(page.Body); lines.Scan(); {
		if series, text, found := strings.Cut(lines.Text(), "} "); found && strings.HasPrefix(series, "dlock_") {
			value, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			if all[series] == nil {
				all[series] = make(map[time.Duration]float64)
			}
			all[series][at] = value
		}
	}
}

// rise returns by how much the series of a name with some labels rise in d.
func (all samples) rise(from, d time.Duration, nameAndLabels ...string) (sum float64) {
	for series, values := range all {
		if !slices.ContainsFunc(nameAndLabels, func(part string) bool { return !strings.Contains(series, part) }) {
			sum += values[from+d] - values[from] // 0 before it was there
		}
	}
	return sum
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
