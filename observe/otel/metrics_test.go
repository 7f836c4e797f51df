package otel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/observe/otel"
)

func TestOutcomes(t *testing.T) {
	inTrace(t, func(t *testing.T, ctx context.Context, _ trace.Span, r *recorder, store *memory.Locker, c *dlock.Client) {
		acquire(t, ctx, c, "a:1").Release()
		store.Steal("b:1", time.Hour)
		_, err := c.TryAcquire(ctx, "b:1")
		require.ErrorIs(t, err, dlock.ErrHeld)
		_, err = c.With(dlock.WithMaxWait(time.Minute)).Acquire(ctx, "b:1")
		require.ErrorIs(t, err, dlock.ErrHeld)
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = c.Acquire(limited, "b:1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		store.Fail(errors.New("secret"))
		_, err = c.Acquire(ctx, "a:1")
		require.Error(t, err)
		store.Fail(nil)
		require.NotContains(t, r.exported(t), "secret", "the text of an error")

		m := r.metrics(t)["dlock.acquire.duration"].Data.(metricdata.Histogram[float64])
		got := make(map[string]float64)
		for _, p := range m.DataPoints {
			got[p.Attributes.Encoded(attribute.DefaultEncoder())] += float64(p.Count) + p.Sum
		}
		require.Equal(t, map[string]float64{
			"dlock.class=a,dlock.contended=false,dlock.outcome=granted": 1,
			"dlock.class=b,dlock.contended=true,dlock.outcome=held":     2 + 60,
			"dlock.class=b,dlock.contended=true,dlock.outcome=canceled": 1 + 1,
			"dlock.class=a,dlock.contended=false,dlock.outcome=failed":  1,
		}, got)
	}, otel.WithClass(func(key string) string { return key[:1] }))
}

func TestMargin(t *testing.T) {
	inTrace(t, func(t *testing.T, ctx context.Context, _ trace.Span, r *recorder, store *memory.Locker, c *dlock.Client) {
		store.Steal("k", time.Second) // so the first TTL is short
		lease := acquire(t, ctx, c.With(dlock.WithTTL(time.Minute)), "k")
		time.Sleep(time.Minute)
		require.NoError(t, lease.Release())
		m := r.metrics(t)["dlock.renewal.margin"].Data.(metricdata.Histogram[float64]).DataPoints[0]
		low, _ := m.Min.Value()
		require.InDelta(t, 0.65, low, 0.05)
	})
}

func TestStats(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, store := record(), memory.New()
		c := dlock.New(store)
		registration, err := otel.RegisterStats(c, otel.WithMeterProvider(r.meters), otel.WithAttributes(attribute.String("pool", "a")))
		require.NoError(t, err)
		a := acquire(t, t.Context(), c, "a")
		acquire(t, t.Context(), c, "b")
		ctx, cancel := context.WithCancel(t.Context())
		go c.Acquire(ctx, "b")
		synctest.Wait()
		store.Fail(errors.New("away"))
		require.Error(t, a.Release())
		synctest.Wait()
		go c.With(dlock.WithOutage(dlock.NoLimit)).Acquire(ctx, "c")
		synctest.Wait()
		want := map[string]int64{"dlock.leases": 1, "dlock.waiters": 2, "dlock.store.waiters": 1, "dlock.waits.without_inbox": 0, "dlock.releases.owed": 2}
		require.Len(t, r.metrics(t), len(want))
		for name, n := range want {
			require.Equal(t, map[string]int64{"pool=a": n}, r.values(t, name), name)
			require.Equal(t, name == "dlock.waits.without_inbox", r.metrics(t)[name].Data.(metricdata.Sum[int64]).IsMonotonic)
		}
		require.NoError(t, registration.Unregister())
		require.Empty(t, r.metrics(t))
		cancel()
		store.Fail(nil)
		stop, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_ = c.Shutdown(stop)
	})
	_, err := otel.RegisterStats(nil)
	require.Error(t, err)
}

// A node of a redlock is down. All calls succeed, and the metric has its name.
func TestNodes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, dead := record(), memory.New()
		dead.Fail(errors.New("away"))
		l := redlock.New([]dlock.Locker{memory.New(), dead, memory.New()}, redlock.WithoutGuard(), redlock.WithNames("a", "b", "c\xff"))
		defer l.Close()
		pool := attribute.String("pool", "x")
		registration, err := otel.RegisterNodes(l, otel.WithMeterProvider(r.meters), otel.WithAttributes(pool))
		require.NoError(t, err)
		statuses := func() []string {
			points := r.values(t, "dlock.node.status")
			require.Len(t, points, 3*5)
			maps.DeleteFunc(points, func(_ string, value int64) bool { return value != 1 })
			return slices.Sorted(maps.Keys(points))
		}
		require.Equal(t, []string{
			"dlock.node=a,dlock.status=unknown,pool=x", "dlock.node=b,dlock.status=unknown,pool=x", "dlock.node=c\uFFFD,dlock.status=unknown,pool=x",
		}, statuses())
		c := dlock.New(l)
		defer c.Close()
		require.NoError(t, acquire(t, t.Context(), c, "k").Release())
		synctest.Wait()
		require.Equal(t, []string{
			"dlock.node=a,dlock.status=up,pool=x", "dlock.node=b,dlock.status=down,pool=x", "dlock.node=c\uFFFD,dlock.status=up,pool=x",
		}, statuses())
		require.NoError(t, registration.Unregister())
		require.Empty(t, r.values(t, "dlock.node.status"))
	})
	_, err := otel.RegisterNodes(nil)
	require.Error(t, err)
}

func TestManyKeys(t *testing.T) {
	const keys = 100_000
	r := record()
	o := r.observer(t, otel.WithClass(func(key string) string { return key }), otel.WithTracerProvider(noop.NewTracerProvider()))
	ctx := t.Context()
	use := func(from, to int) uint64 {
		for i := from; i < to; i++ {
			key := fmt.Sprint("key", i)
			ctx := o.AcquireDone(o.AcquireStart(ctx, dlock.AcquireStartInfo{Key: key}), dlock.AcquireDoneInfo{Key: key, Contended: i%2 == 0})
			o.LeaseDone(ctx, dlock.LeaseDoneInfo{Key: key, End: dlock.EndReleased})
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := use(0, 1000)
	after := use(1000, keys)
	require.Less(t, after, before+256<<10, "bytes of the heap")
	classes := r.sums(t, "dlock.hold.duration", "dlock.class")
	require.Len(t, classes, 101)
	require.Equal(t, keys-100, classes["other"].count)
	require.Equal(t, 1, classes["key7"].count)
}

// An acquisition that has failed because the store was silent is no cancellation, even if its
// caller's context has ended it. One that found the key held is.
func TestOutcomeOfASilentStore(t *testing.T) {
	held, away := &dlock.HeldError{Key: "k"}, fmt.Errorf("%w: no answer for 2s", dlock.ErrUnavailable)
	for _, test := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w: %w", context.DeadlineExceeded, away), "failed"},
		{fmt.Errorf("waited for 2s: %w", away), "failed"},
		{fmt.Errorf("%w: %w", context.DeadlineExceeded, held), "canceled"},
		{fmt.Errorf("%w: %w; the store last answered 2s ago: %w", context.DeadlineExceeded, held, away), "canceled"},
		{fmt.Errorf("%w; the store last answered 2s ago: %w", held, away), "held"},
	} {
		r := record()
		o := r.observer(t)
		o.AcquireDone(t.Context(), dlock.AcquireDoneInfo{Err: test.err})
		require.Equal(t, map[string]sum{test.want: {1, 0}}, r.sums(t, "dlock.acquire.duration", "dlock.outcome"), "%v", test.err)
	}
}

// The README lists what there is, and nothing else.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	listed := make(map[string]string) // unit by metric
	for _, m := range regexp.MustCompile("(?m)^\\| `(dlock\\.[a-z._]+)` \\| [a-z- ]+ \\| `?([^ |`]+)`? \\|").FindAllStringSubmatch(string(text), -1) {
		listed[m[1]] = m[2]
	}
	r := record()
	for name, m := range everything(t, r).metrics(t) {
		require.Equal(t, m.Unit, listed[name], name)
		delete(listed, name)
	}
	require.Empty(t, listed, "metrics that there are not")

	var spans, there []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(dlock [a-z ]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		spans = append(spans, m[1])
	}
	for _, s := range r.GetSpans() {
		there = append(there, s.Name)
		for _, e := range s.Events {
			there = append(there, e.Name)
			s.Attributes = append(s.Attributes, e.Attributes...)
		}
		for _, a := range s.Attributes {
			require.Contains(t, string(text), "`"+string(a.Key)+"`")
		}
	}
	there = slices.DeleteFunc(there, func(name string) bool { return !strings.HasPrefix(name, "dlock ") })
	slices.Sort(there)
	slices.Sort(spans)
	require.Equal(t, slices.Compact(there), spans)
}

// The code of the README is part of an example, so it compiles.
func TestCodeOfTheReadme(t *testing.T) {
	example, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	code := regexp.MustCompile(`(?s)observer, err := .*?Unregister\(\)`).FindString(string(text))
	require.NotEmpty(t, code)
	require.Contains(t, string(example), strings.ReplaceAll(code, "\n", "\n\t"))
}

// everything makes everything happen once.
func everything(t *testing.T, r *recorder) *recorder {
	o := r.observer(t, otel.WithKeys(true))
	l := redlock.New([]dlock.Locker{memory.New()})
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	_, err := otel.RegisterNodes(l, otel.WithMeterProvider(r.meters))
	require.NoError(t, err)
	_, err = otel.RegisterStats(dlock.New(memory.New()), otel.WithMeterProvider(r.meters))
	require.NoError(t, err)
	for _, failed := range []error{nil, errors.New("")} {
		ctx := o.AcquireStart(t.Context(), dlock.AcquireStartInfo{Op: dlock.OpAcquire})
		o.WaitStart(ctx, dlock.WaitStartInfo{})
		ctx = o.AcquireDone(ctx, dlock.AcquireDoneInfo{Err: failed})
		o.RenewDone(ctx, dlock.RenewDoneInfo{Err: errors.New("")})
		o.LeaseDone(ctx, dlock.LeaseDoneInfo{End: dlock.EndExpired})
		o.ReleaseDone(ctx, dlock.ReleaseDoneInfo{Overrun: 1})
	}
	bubble.Test(t, func(t *testing.T) {
		tracer := r.tracers.Tracer("")
		c := dlock.New(traced{dlock.Forward{Locker: memory.New()}, tracer}, dlock.WithObserver(o))
		acquired := make([]*dlock.Lease, 2)
		for i := range acquired {
			acquired[i] = acquire(t, t.Context(), c, fmt.Sprint(i))
		}
		time.Sleep(2 * time.Minute)
		for _, l := range acquired {
			require.NoError(t, l.Release())
		}
	})
	return r
}

// Prometheus's own tool loads the alerts, and they fire when they should. Debian has it in the package prometheus.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: the alerts are not tested")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		require.FileExists(t, args[2]) // so that go test runs again if it has changed
		out, err := exec.Command(promtool, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}
