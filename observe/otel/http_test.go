package otel_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/goredis"
	"github.com/dlock-go/dlock/internal/redistest"
)

// A request takes two locks, and leaves one to work that outlives it. The calls of Redis for the
// request are in its trace; those for the work are not, but linked. Tokens are not exported if redisotel is told not to.
func TestRequest(t *testing.T) {
	t.Parallel()
	r := record()
	store := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr()})
	defer store.Close()
	require.NoError(t, redisotel.InstrumentTracing(store, redisotel.WithTracerProvider(r.tracers), redisotel.WithDBStatement(false)))
	c := dlock.New(goredis.New(store), dlock.WithTTL(9*time.Second), dlock.WithObserver(r.observer(t)))
	var work, short *dlock.Lease
	server := httptest.NewServer(otelhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		work = acquire(t, req.Context(), c, "work")
		short = acquire(t, req.Context(), c, "short")
		require.NoError(t, short.Release())
	}), "GET", otelhttp.WithTracerProvider(r.tracers)))
	defer server.Close()
	_, err := http.Get(server.URL)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(r.named("dlock background")) > 0 }, 30*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool { return c.Stats().Lost > 0 || calls(r, r.named("dlock background")) > 0 }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, work.Release())
	require.NoError(t, c.Close())

	request := r.only(t, "GET")
	locks := append(r.named("dlock acquire"), r.named("dlock hold")...)
	require.Len(t, locks, 4)
	for _, s := range locks {
		require.Equal(t, id(request), parent(s), s.Name)
		require.Equal(t, request.SpanContext.TraceID(), s.SpanContext.TraceID())
	}
	require.NotZero(t, calls(r, locks[:1]), "of the first acquisition")
	holds := r.named("dlock hold") // of short, which ended first, and of work
	require.NotZero(t, calls(r, holds[:1]), "of the release")
	require.Zero(t, calls(r, holds[1:]), "renewals")
	for _, root := range r.named("dlock background") {
		require.Equal(t, []trace.SpanID{id(holds[1])}, linked(t, root))
		require.NotEqual(t, request.SpanContext.TraceID(), root.SpanContext.TraceID())
	}
	for _, token := range []string{work.Token(), short.Token()} {
		require.NotContains(t, r.exported(t), token)
	}
}

// calls returns how many calls of Redis are children of some spans.
func calls(r *recorder, of tracetest.SpanStubs) (n int) {
	for _, s := range of {
		for _, child := range r.GetSpans() {
			if parent(child) == id(s) {
				n++
			}
		}
	}
	return n
}
