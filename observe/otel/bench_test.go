package otel_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/observe/otel"
)

// BenchmarkObserver is the cost report of the README: a cycle of Acquire and Release in memory,
// beside cycles without an Observer, in turn.
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
			var opts []dlock.Option
			if with.observer != nil {
				opts = append(opts, dlock.WithObserver(with.observer))
			}
			none, c := dlock.New(memory.New()), dlock.New(memory.New(), opts...)
			cycle := func(c *dlock.Client) {
				lease, err := c.Acquire(context.Background(), "k")
				if err != nil {
					b.Fatal(err)
				}
				_ = lease.Release()
			}
			const turn = 100 // cycles of one kind, before those of the other
			times := func(c *dlock.Client) time.Duration {
				start := time.Now()
				for range turn {
					cycle(c)
				}
				return time.Since(start)
			}
			without, took := time.Hour, time.Hour // the best turns: the machine has other work
			for b.Loop() {
				without, took = min(without, times(none)), min(took, times(c))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took.Nanoseconds())/turn, "ns/cycle")
			b.ReportMetric(float64(took)/float64(without), "x-without")
			b.ReportMetric(testing.AllocsPerRun(100, func() { cycle(c) }), "allocs/cycle")
			require.NoError(b, errors.Join(none.Close(), c.Close()))
		})
	}
}
