package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/dlock-go/dlock"
)

// load has workers use locks until ctx ends. The returned function waits for them.
func load(ctx context.Context, client *dlock.Client, tracer trace.Tracer, workers int) (wait func()) {
	var all sync.WaitGroup
	for i := range workers {
		client := client.With(dlock.WithOwner(fmt.Sprint("worker ", i+1)))
		all.Go(func() {
			for ctx.Err() == nil {
				job(ctx, client, tracer)
				pause(ctx, upTo(800*time.Millisecond))
			}
		})
	}
	return all.Wait
}

// job is one use of a lock. Most work is short, and waits for at most a second. Reports are long:
// their lease is renewed. An import has a TTL that is often too short for it, and is not renewed:
// it goes on without its lock, which is what the alert is for.
func job(ctx context.Context, client *dlock.Client, tracer trace.Tracer) {
	ctx, span := tracer.Start(ctx, "job")
	defer span.End()
	switch n := rand.IntN(20); {
	case n == 0:
		work(ctx, client.With(dlock.WithRenewal(false), dlock.WithTTL(300*time.Millisecond)), "import:all", upTo(600*time.Millisecond))
	case n < 3:
		work(ctx, client.With(dlock.WithTTL(900*time.Millisecond)), fmt.Sprintf("report:%d", rand.IntN(2)), upTo(3*time.Second))
	default:
		work(ctx, client.With(dlock.WithMaxWait(time.Second)), fmt.Sprintf("order:%d", rand.IntN(5)), upTo(200*time.Millisecond))
	}
}

// work takes a lock and works, without a look at whether it still has the lock.
func work(ctx context.Context, client *dlock.Client, key string, d time.Duration) {
	lease, err := client.Acquire(ctx, key)
	if err != nil {
		return // nothing depends on it
	}
	defer lease.Release()
	pause(ctx, d)
}

func upTo(d time.Duration) time.Duration { return rand.N(d) }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
