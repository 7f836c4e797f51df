package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
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

func TestSpansOnRequest(t *testing.T) {
	t.Parallel()
	_, url := serve(t, memory.New())
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
	s, url := serve(t, memory.New())
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
			require.Equal(t, bar{b.ID, first.Key, first.Kind, first.Who, first.Start, b.End, b.How, first.Holder}, b)
			require.Regexp(t, `^worker \d+$`, b.Who)
			require.GreaterOrEqual(t, b.End, b.Start)
			ended[b.Kind]++
		}
	}
}

// Each acquisition that fails leaves a mark, whether it has waited or not, and so does each renewal.
func TestEventsOfAnOutage(t *testing.T) {
	s, err := newService(nil)
	require.NoError(t, err)
	store := memory.New()
	client, err := s.client(store)
	require.NoError(t, err)
	defer client.Close()
	ctx := context.WithValue(t.Context(), workerKey{}, "worker 7")
	held, err := client.With(dlock.WithOwner("worker 7")).Acquire(ctx, "held")
	require.NoError(t, err)
	_, err = client.With(dlock.WithMaxWait(100*time.Millisecond)).Acquire(ctx, "held")
	require.ErrorIs(t, err, dlock.ErrHeld)
	store.Fail(errors.New("away"))
	_, err = client.TryAcquire(ctx, "key")
	require.Error(t, err)
	_, err = client.Acquire(ctx, "key")
	require.Error(t, err)
	require.Error(t, held.Renew(ctx))
	store.Fail(nil)
	require.NoError(t, held.Release())
	var got []string
	for _, id := range slices.Sorted(maps.Keys(s.timeline.bars)) {
		b := s.timeline.bars[id]
		got = append(got, strings.TrimSpace(strings.Join([]string{b.Key, b.Kind, b.How, b.Who, b.Holder}, " ")))
	}
	require.Equal(t, []string{
		"held hold released worker 7", "held wait held worker 7 worker 7",
		"key fail failed worker 7", "key fail failed worker 7", "held renewal failed worker 7",
	}, got)
}

// A listener that does not read does not delay the others, and is sent away.
func TestListenerThatDoesNotRead(t *testing.T) {
	line := newTimeline()
	slow := line.listen()
	for range cap(slow) {
		line.end(line.begin(bar{Kind: "hold", Key: "k"}), time.Now(), "released")
	}
	for range slow {
	}
	require.Empty(t, line.listeners)
}

// probe waits until the page has drawn, has an outage begin then, and waits until that is drawn. It
// keeps the page from being complete until then.
const probe = `<script>
let away = false;
const probe = setInterval(() => {
  if (!away && document.querySelector("rect.hold") && document.querySelector("rect.wait")) { away = true; fetch("/outage"); }
  if (document.querySelector("rect.fail") && document.querySelector("rect.column")) {
    clearInterval(probe);
    document.body.dataset.back = getComputedStyle(document.body).backgroundColor;
    fetch("/drawn");
  }
}, 50);
</script><img src="/until-drawn">`

// A real browser in dark mode draws holds and waits, and what fails in an outage.
func TestPage(t *testing.T) {
	t.Parallel()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	headless := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(),
		"--blink-settings=preferredColorScheme=0", "--dump-dom"}
	starting, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	blank := exec.CommandContext(starting, chromium, append(headless, "about:blank")...)
	blank.WaitDelay = time.Second
	if out, err := blank.CombinedOutput(); err != nil {
		t.Skipf("chromium does not start here: %v\n%s", err, out)
	}
	store := memory.New()
	s, _ := serve(t, store)
	for range 20 {
		s.timeline.begin(bar{Kind: "wait", Key: "crowd", Who: "worker 0"})
	}
	drawn := make(chan struct{})
	var once sync.Once
	web := http.NewServeMux()
	web.Handle("/", s)
	web.HandleFunc("/probed", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page+probe) })
	web.HandleFunc("/outage", func(http.ResponseWriter, *http.Request) { store.Fail(errors.New("away")) })
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
	store.Fail(nil) // lest the end wait for it
	for _, drawn := range []string{
		`<rect class="hold [a-z]*" x=`, `<rect class="wait [a-z]*" x=`, `<rect class="fail failed" x=`, `<rect class="column" x=`,
		`<title>[a-z]+:[a-z\d]+: fail of worker \d+, \d+ ms failed</title>`,
		`<text[^>]*>order:\d</text>`, `<text class="faint holder"[^>]*>(not held here|worker \d+)</text>`,
		`<text class="faint time"[^>]*>\d+:\d\d:\d0</text>`,
		`<p id="count">\d+ keys, [1-9]\d* holds \(\d+ lost\), [1-9]\d* waits, [1-9]\d* failures, \d+ failed renewals</p>`,
		`data-back="rgb\(22, 25, 29\)"`, `<a href="metrics">`, `<a href="spans">`,
	} {
		require.Regexp(t, drawn, dom.String())
	}
	requireApart(t, dom.String())
}

// requireApart fails if two waits or failures in one lane overlap by more than the width of the shortest.
func requireApart(t *testing.T, dom string) {
	const shortest = 2.01
	lanes := make(map[string][][2]float64) // from and to, by y
	for _, m := range regexp.MustCompile(`<rect class="(?:wait|fail) [a-z]*" x="([^"]*)" width="([^"]*)" y="([^"]*)"`).FindAllStringSubmatch(dom, -1) {
		x, err1 := strconv.ParseFloat(m[1], 64)
		width, err2 := strconv.ParseFloat(m[2], 64)
		require.NoError(t, errors.Join(err1, err2))
		lanes[m[3]] = append(lanes[m[3]], [2]float64{x, x + width})
	}
	for y, bars := range lanes {
		slices.SortFunc(bars, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
		for i := 1; i < len(bars); i++ {
			require.LessOrEqual(t, bars[i-1][1], bars[i][0]+shortest, "two bars overlap at y = %s", y)
		}
	}
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
