package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/redistest"
)

const patience = time.Minute // for what takes a second

// serve starts a service under load.
func serve(t *testing.T) (*service, string) {
	s, err := newService(nil)
	require.NoError(t, err)
	client, err := s.client(memory.New())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	wait := load(ctx, client, s.tracers.Tracer("test"), 12)
	server := begin(ctx, s)
	t.Cleanup(func() {
		stop()
		wait()
		server.Close()
		require.NoError(t, client.Close())
	})
	return s, server.URL
}

// begin starts a server whose requests end with ctx.
func begin(ctx context.Context, h http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	server.Start()
	return server
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
	_, url := serve(t)
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
		return strings.HasPrefix(name, "dlock_class") || name == "dlock_contended" || name == "dlock_end" || name == "dlock_outcome"
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
	for _, label := range []string{"dlock_class", "dlock_contended", "dlock_end", "dlock_outcome"} {
		require.Contains(t, string(page), label+`="`)
	}
}

func TestSpansOnRequest(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	require.Eventually(t, func() bool {
		names := make(map[string]bool)
		for spans := json.NewDecoder(get(t, url+"/spans")); ; {
			var span struct{ Name string }
			if err := spans.Decode(&span); err == io.EOF {
				break
			} else if err != nil {
				t.Error(err)
				break
			}
			names[span.Name] = true
		}
		return names["dlock acquire"] && names["dlock hold"] && names["job"]
	}, patience, 10*time.Millisecond)
}

// Those who listen get the bars so far, and then each bar when it begins and when it ends.
func TestEvents(t *testing.T) {
	t.Parallel()
	s, url := serve(t)
	connected := time.Now().UnixMilli()
	require.Eventually(t, func() bool {
		s.timeline.mu.Lock()
		defer s.timeline.mu.Unlock()
		connected = time.Now().UnixMilli()
		return slices.ContainsFunc(slices.Collect(maps.Values(s.timeline.bars)), func(b *bar) bool { return b.Start < connected })
	}, patience, time.Millisecond)
	begun, ended, earlier := make(map[int]bar), make(map[string]int), 0
	for events := bufio.NewScanner(get(t, url+"/events")); ended["hold"] == 0 || ended["wait"] == 0 || earlier == 0; {
		require.True(t, events.Scan(), "%v", events.Err())
		text, ok := strings.CutPrefix(events.Text(), "data: ")
		if !ok {
			continue
		}
		var b bar
		require.NoError(t, json.Unmarshal([]byte(text), &b))
		if b.Start < connected {
			earlier++
		}
		if b.End == 0 {
			begun[b.ID] = b
		} else if first, ok := begun[b.ID]; ok {
			require.Equal(t, bar{b.ID, first.Key, first.Kind, first.Start, b.End, b.How}, b)
			require.GreaterOrEqual(t, b.End, b.Start)
			ended[b.Kind]++
		}
	}
}

// A listener that does not read does not delay the others, and is sent away.
func TestListenerThatDoesNotRead(t *testing.T) {
	line := newTimeline()
	slow := line.listen()
	for range cap(slow) {
		line.end(line.begin("hold", "k"), time.Now(), "released")
	}
	for range slow {
	}
	require.Empty(t, line.listeners)
}

// probe waits until the page has drawn, and keeps it from being complete until then.
const probe = `<script>
const probe = setInterval(() => {
  if (document.querySelector("rect.hold") && document.querySelector("rect.wait")) { clearInterval(probe); fetch("/drawn"); }
}, 50);
</script><img src="/until-drawn">`

// A real browser draws holds and waits.
func TestPage(t *testing.T) {
	t.Parallel()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	headless := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(), "--dump-dom"}
	starting, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	blank := exec.CommandContext(starting, chromium, append(headless, "about:blank")...)
	blank.WaitDelay = time.Second
	if out, err := blank.CombinedOutput(); err != nil {
		t.Skipf("chromium does not start here: %v\n%s", err, out)
	}
	s, _ := serve(t)
	drawn := make(chan struct{})
	var once sync.Once
	web := http.NewServeMux()
	web.Handle("/", s)
	web.HandleFunc("/probed", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page+probe) })
	web.HandleFunc("/drawn", func(http.ResponseWriter, *http.Request) { once.Do(func() { close(drawn) }) })
	web.HandleFunc("/until-drawn", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-drawn:
		case <-r.Context().Done():
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	server := begin(ctx, web)
	defer server.Close()
	defer cancel()
	var dom, complaints bytes.Buffer
	browser := exec.CommandContext(ctx, chromium, append(headless, server.URL+"/probed")...)
	browser.Stdout, browser.Stderr, browser.WaitDelay = &dom, &complaints, time.Second
	require.NoError(t, browser.Run(), "%s", &complaints)
	require.Regexp(t, `<rect class="hold [a-z]*" x=`, dom.String())
	require.Regexp(t, `<rect class="wait [a-z]*" x=`, dom.String())
	require.Regexp(t, `<text[^>]*>order:\d</text>`, dom.String())
	require.Regexp(t, `<p id="count">\d+ keys, [1-9]\d* holds \(\d+ lost\), [1-9]\d* waits</p>`, dom.String())
}

func TestRun(t *testing.T) {
	t.Parallel()
	addr := redistest.Start(t).Addr()
	for name := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			seen := &watched{of: []byte(`"Name":"dlock hold"`), then: stop}
			require.NoError(t, run(ctx, []string{"-backend", name, "-redis", addr, "-addr", "localhost:0", "-spans"}, seen))
			require.Greater(t, seen.count, 0)
		})
	}
	require.Error(t, run(t.Context(), []string{"-workers", "many"}, io.Discard))
	require.ErrorContains(t, run(t.Context(), []string{"-backend", "none"}, io.Discard), "-backend none")
}

// watched is a Writer that looks for something.
type watched struct {
	of    []byte
	then  func()
	count int
}

func (w *watched) Write(p []byte) (int, error) {
	if bytes.Contains(p, w.of) {
		w.count++
		w.then()
	}
	return len(p), nil
}
