package otel_test

import (
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/observe/otel"
)

// BenchmarkObserver is the cost report of the README: a cycle of Acquire and Release in memory.
func BenchmarkObserver(b *testing.B) {
	r := record()
	traced := func(rate float64) *dlock.Observer {
		return r.observer(b, otel.WithTracerProvider(sdktrace.NewTracerProvider(
			sdktrace.WithSyncer(tracetest.NewNoopExporter()), sdktrace.WithSampler(sdktrace.TraceIDRatioBased(rate)))))
	}
	log := slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, with := range []struct {
		name     string
		observer *dlock.Observer
	}{
		{"none", nil},
		{"empty", &dlock.Observer{}},
		{"slog-off", dlock.NewLogObserver(slog.New(slog.DiscardHandler))},
		{"slog-discarded", dlock.NewLogObserver(log)},
		{"otel-metrics", r.observer(b, otel.WithTracerProvider(noop.NewTracerProvider()))},
		{"otel-sampled-at-0", traced(0)},
		{"otel-sampled-at-1", traced(1)},
	} {
		b.Run("observer="+with.name, func(b *testing.B) {
			c := dlock.New(memory.New())
			if with.observer != nil {
				c = c.With(dlock.WithObserver(with.observer))
			}
			b.ReportAllocs()
			for b.Loop() {
				lease, err := c.Acquire(b.Context(), "k")
				require.NoError(b, err)
				require.NoError(b, lease.Release())
			}
			require.NoError(b, c.Close())
		})
	}
}
