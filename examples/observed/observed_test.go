package main

import (
	"bufio"
	"context"
	"io"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/redistest"
	"github.com/dlock-go/dlock/observe/otel"
)

// The queries of the dashboard and of the alerts name only metrics and labels that exist.
func TestQueries(t *testing.T) {
	t.Parallel()
	s, err := newService(nil)
	require.NoError(t, err)
	client, err := s.client(memory.New())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	wait := load(ctx, client, s.tracers.Tracer("test"), 12)
	defer func() {
		stop()
		wait()
		require.NoError(t, client.Close())
	}()
	nodes, err := otel.RegisterNodes(redlock.New([]dlock.Locker{memory.New()}), otel.WithMeterProvider(s.meters))
	require.NoError(t, err)
	defer nodes.Unregister()
	var used []string
	for _, file := range []string{"dashboard.json", "../../observe/otel/alerts.yml"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		names := regexp.MustCompile(`dlock_[a-z_]+`).FindAllString(string(text), -1)
		require.Greater(t, len(names), 4)
		used = append(used, names...)
	}
	labels := []string{"dlock_class", "dlock_contended", "dlock_end", "dlock_node", "dlock_outcome", "dlock_status"}
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		page := httptest.NewRecorder()
		s.ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		for _, name := range used {
			if slices.Contains(labels, name) {
				assert.Contains(t, page.Body.String(), name+`="`)
			} else {
				assert.Regexp(t, `(?m)^`+name+`[{ ]`, page.Body.String())
			}
		}
	}, time.Minute, 100*time.Millisecond)
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
