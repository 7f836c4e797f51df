package benchmarks

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

// An observed is the options of a Client with an Observer.
type observed struct {
	name string
	opts []dlock.Option
}

// observers are what an Observer may be, from the cheapest.
func observers() []observed {
	discard := func(level slog.Level) []dlock.Option {
		l := slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: level}))
		return []dlock.Option{dlock.WithObserver(dlock.NewLogObserver(l))}
	}
	var events int
	all := &dlock.Observer{
		AcquireStart: func(ctx context.Context, _ dlock.AcquireStartInfo) context.Context { events++; return ctx },
		WaitStart:    func(context.Context, dlock.WaitStartInfo) { events++ },
		AcquireDone:  func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context { events++; return ctx },
		LeaseDone:    func(context.Context, dlock.LeaseDoneInfo) { events++ },
		ReleaseDone:  func(context.Context, dlock.ReleaseDoneInfo) { events++ },
	}
	return []observed{
		{"none", nil},
		{"empty", []dlock.Option{dlock.WithObserver(&dlock.Observer{})}},
		{"counts", []dlock.Option{dlock.WithObserver(all)}},
		{"slog-warn", discard(slog.LevelWarn)},
		{"slog-debug", discard(slog.LevelDebug)},
	}
}

// BenchmarkObserver is what Observers cost: one cycle on the memory backend, which costs nothing
// else, with logs that are discarded.
func BenchmarkObserver(b *testing.B) {
	for _, o := range observers() {
		b.Run("observer="+o.name, func(b *testing.B) {
			c := newClient(b, memory.New(), o.opts...)
			b.ReportAllocs()
			for b.Loop() {
				cycle(b, c, "k")
			}
		})
	}
}

// BenchmarkObserverPaired makes cycles with and without an Observer in turn, and reports the
// quotients of their times.
func BenchmarkObserverPaired(b *testing.B) {
	none := newClient(b, memory.New())
	for _, o := range observers()[1:] {
		b.Run("observer="+o.name, func(b *testing.B) {
			c := newClient(b, memory.New(), o.opts...)
			var without, with time.Duration
			for b.Loop() {
				without += timed(b, none)
				with += timed(b, c)
			}
			b.ReportMetric(float64(with)/float64(without), "x-without")
		})
	}
}

// timed is how long a hundred cycles take.
func timed(b *testing.B, c *dlock.Client) time.Duration {
	start := time.Now()
	for range 100 {
		cycle(b, c, "k")
	}
	return time.Since(start)
}
