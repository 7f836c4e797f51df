package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/observe/otel"
)

const patience = time.Minute // for what takes a second

// serve starts a service under load.
func serve(t *testing.T, store dlock.Locker) (*service, string) {
	s, err := newService(nil)
	require.NoError(t, err)
	client, err := s.client(store)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	wait := load(ctx, client, s.tracers.Tracer("test"), 12)
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		stop()
		wait()
		server.Close()
		require.NoError(t, client.Close())
	})
	return s, server.URL
}

func get(t *testing.T, url string) io.Reader {
	resp, err := (&http.Client{Timeout: patience}).Get(url)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return resp.Body
}

// series returns the names of the series on the page, as Prometheus's own parser reads it.
func series(t *testing.T, url string) map[string]bool {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(get(t, url+"/metrics"))
	require.NoError(t, err)
	names := make(map[string]bool)
	for name, family := range families {
		names[name] = true
		if family.Metric[0].Histogram != nil {
			names[name+"_bucket"], names[name+"_count"], names[name+"_sum"] = true, true, true
		}
	}
	return names
}

// The queries of the dashboard and of the alerts name only metrics and labels that exist.
func TestQueries(t *testing.T) {
	t.Parallel()
	s, url := serve(t, memory.New())
	nodes, err := otel.RegisterNodes(redlock.New([]dlock.Locker{memory.New()}), otel.WithMeterProvider(s.meters))
	require.NoError(t, err)
	defer nodes.Unregister()
	labels := []string{"dlock_class", "dlock_contended", "dlock_end", "dlock_node", "dlock_outcome", "dlock_status"}
	used := make(map[string]bool)
	for _, file := range []string{"dashboard.json", "../../observe/otel/alerts.yml"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(file, "yml") || json.Valid(text))
		names := regexp.MustCompile(`dlock_[a-z_]+`).FindAllString(string(text), -1)
		require.Greater(t, len(names), 4)
		for _, name := range names {
			used[name] = true
		}
	}
	maps.DeleteFunc(used, func(name string, _ bool) bool {
		return slices.Contains(labels, name)
	})
	require.Eventually(t, func() bool {
		there := series(t, url)
		for name := range used {
			if !there[name] {
				t.Log("not there yet:", name)
				return false
			}
		}
		return true
	}, patience, 100*time.Millisecond)
	page, err := io.ReadAll(get(t, url+"/metrics"))
	require.NoError(t, err)
	for _, label := range labels {
		require.Contains(t, string(page), label+`="`)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"", redistest.Start(t).Addr()} {
		ctx, stop := context.WithCancel(t.Context())
		printed, w := io.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- run(ctx, []string{"-redis", server, "-addr", "localhost:0", "-spans"}, w)
			w.Close()
		}()
		missing := []string{`"Name":"dlock acquire"`, `"Name":"dlock hold"`, `"Name":"job"`}
		for lines := bufio.NewScanner(printed); len(missing) > 0 && lines.Scan(); {
			missing = slices.DeleteFunc(missing, func(name string) bool { return strings.Contains(lines.Text(), name) })
		}
		require.Empty(t, missing, "spans that are printed")
		stop()
		go io.Copy(io.Discard, printed)
		require.NoError(t, <-done)
	}
	require.Error(t, run(t.Context(), []string{"-workers", "many"}, io.Discard))
}
