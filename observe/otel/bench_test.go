package otel_test

import (
	"context"
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

// BenchmarkAcquireRelease is the cost report of the README.
func BenchmarkAcquireRelease(b *testing.B) {
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
		{"slog, off", dlock.NewLogObserver(slog.New(slog.DiscardHandler))},
		{"slog to io.Discard", dlock.NewLogObserver(log)},
		{"OTel metrics", r.observer(b, otel.WithTracerProvider(noop.NewTracerProvider()))},
		{"and traces, sampled at 0", traced(0)},
		{"and traces, sampled at 1", traced(1)},
	} {
		b.Run(with.name, func(b *testing.B) {
			var opts []dlock.Option
			if with.observer != nil {
				opts = append(opts, dlock.WithObserver(with.observer))
			}
			c := dlock.New(memory.New(), opts...)
			b.ReportAllocs()
			for b.Loop() {
				lease, err := c.Acquire(context.Background(), "k")
				if err != nil {
					b.Fatal(err)
				}
				_ = lease.Release()
			}
			require.NoError(b, c.Close())
		})
	}
}
