package otel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/observe/otel"
)

// A recorder keeps all that is exported.
type recorder struct {
	*tracetest.InMemoryExporter
	reader  *sdkmetric.ManualReader
	tracers *sdktrace.TracerProvider
	meters  *sdkmetric.MeterProvider
}

func record() *recorder {
	r := &recorder{InMemoryExporter: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	r.tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r))
	r.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	return r
}

func (r *recorder) observer(t testing.TB, opts ...otel.Option) *dlock.Observer {
	o, err := otel.New(append([]otel.Option{otel.WithTracerProvider(r.tracers), otel.WithMeterProvider(r.meters)}, opts...)...)
	require.NoError(t, err)
	return o
}

// metrics returns the metrics by name.
func (r *recorder) metrics(t testing.TB) map[string]metricdata.Metrics {
	all := make(map[string]metricdata.Metrics)
	if scopes := r.collect(t).ScopeMetrics; len(scopes) > 0 { // there is one, of this package
		for _, m := range scopes[0].Metrics {
			all[m.Name] = m
		}
	}
	return all
}

func (r *recorder) collect(t testing.TB) (all metricdata.ResourceMetrics) {
	require.NoError(t, r.reader.Collect(context.Background(), &all))
	return all
}

// A sum is how many measurements there are, and their sum.
type sum struct {
	count int
	total float64
}

func (s *sum) add(seconds float64) { s.count++; s.total += seconds }

// sums returns the sums of a histogram by one attribute.
func (r *recorder) sums(t testing.TB, name, by string) map[string]sum {
	all := make(map[string]sum)
	h, ok := r.metrics(t)[name].Data.(metricdata.Histogram[float64])
	if !ok {
		return all
	}
	for _, p := range h.DataPoints {
		v, _ := p.Attributes.Value(attribute.Key(by))
		s := all[text(v)]
		s.count += int(p.Count)
		s.total += p.Sum
		all[text(v)] = s
	}
	return all
}

// values returns the values of a counter by their attributes.
func (r *recorder) values(t testing.TB, name string) map[string]int64 {
	all := make(map[string]int64)
	counter, _ := r.metrics(t)[name].Data.(metricdata.Sum[int64])
	for _, p := range counter.DataPoints {
		all[p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
	}
	return all
}

// named returns the spans with a name.
func (r *recorder) named(name string) (found tracetest.SpanStubs) {
	for _, s := range r.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func (r *recorder) only(t testing.TB, name string) tracetest.SpanStub {
	t.Helper()
	found := r.named(name)
	require.Len(t, found, 1, "spans %q", name)
	return found[0]
}

// told returns how often something was reported: as an event of a hold, or as a span.
func (r *recorder) told(name string) int {
	n := len(r.named(name))
	for _, s := range r.named("dlock hold") {
		n += len(events(s, name))
	}
	return n
}

func events(s tracetest.SpanStub, name string) (found []sdktrace.Event) {
	for _, e := range s.Events {
		if e.Name == name {
			found = append(found, e)
		}
	}
	return found
}

func value(attributes []attribute.KeyValue, key string) string {
	set := attribute.NewSet(attributes...)
	v, _ := set.Value(attribute.Key(key))
	return text(v)
}

// exported returns the bytes of all that is exported.
func (r *recorder) exported(t testing.TB) string {
	var text bytes.Buffer
	exporter, err := stdouttrace.New(stdouttrace.WithWriter(&text))
	require.NoError(t, err)
	require.NoError(t, exporter.ExportSpans(context.Background(), r.GetSpans().Snapshots()))
	require.NoError(t, json.NewEncoder(&text).Encode(r.collect(t)))
	return text.String()
}

func acquire(t testing.TB, ctx context.Context, c *dlock.Client, key string) *dlock.Lease {
	t.Helper()
	lease, err := c.Acquire(ctx, key)
	require.NoError(t, err)
	return lease
}

// text returns the value of an attribute, or "" if there is none.
func text(v attribute.Value) string {
	if v.Type() == attribute.INVALID {
		return ""
	}
	return v.Emit()
}
