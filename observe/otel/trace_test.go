package otel_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/observe/otel"
)

// A traced Locker makes a span of each call, as an instrumented Redis client does.
type traced struct {
	dlock.Forward
	tracer trace.Tracer
}

func (l traced) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	ctx, span := l.tracer.Start(ctx, "try")
	defer span.End()
	return l.Forward.TryAcquire(ctx, key, token, ttl)
}

func (l traced) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	ctx, span := l.tracer.Start(ctx, "renew")
	defer span.End()
	return l.Forward.Renew(ctx, key, token, ttl)
}

func (l traced) Release(ctx context.Context, key, token string) (bool, error) {
	ctx, span := l.tracer.Start(ctx, "release")
	defer span.End()
	return l.Forward.Release(ctx, key, token)
}

// inTrace runs a test in virtual time: under a caller's span, over a store that makes spans.
func inTrace(t *testing.T, f func(t *testing.T, ctx context.Context, caller trace.Span, r *recorder, store *memory.Locker, c *dlock.Client), opts ...otel.Option) {
	bubble.Test(t, func(t *testing.T) {
		r, store := record(), memory.New()
		tracer := r.tracers.Tracer("test")
		c := dlock.New(traced{dlock.Forward{Locker: store}, tracer}, dlock.WithTTL(6*time.Second), dlock.WithObserver(r.observer(t, opts...)))
		ctx, caller := tracer.Start(t.Context(), "caller")
		f(t, ctx, caller, r, store, c)
		require.NoError(t, c.Close())
		synctest.Wait()
	})
}

func parent(s tracetest.SpanStub) trace.SpanID { return s.Parent.SpanID() }

func id(s tracetest.SpanStub) trace.SpanID { return s.SpanContext.SpanID() }

// linked returns the spans to which a root span is linked.
func linked(t *testing.T, s tracetest.SpanStub) (ids []trace.SpanID) {
	t.Helper()
	require.False(t, s.Parent.IsValid(), "%s is a root", s.Name)
	for _, l := range s.Links {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}

func TestSpans(t *testing.T) {
	about := attribute.String("service.zone", "b")
	inTrace(t, func(t *testing.T, ctx context.Context, caller trace.Span, r *recorder, store *memory.Locker, c *dlock.Client) {
		store.Steal("secret", 2*time.Second)
		lease := acquire(t, ctx, c, "secret")
		time.Sleep(9 * time.Second)
		require.NoError(t, lease.Release())
		caller.End()

		acquired, hold := r.only(t, "dlock acquire"), r.only(t, "dlock hold")
		require.Equal(t, caller.SpanContext().SpanID(), parent(acquired))
		require.Equal(t, caller.SpanContext().SpanID(), parent(hold))
		require.Equal(t, id(acquired), parent(r.named("try")[0]))
		require.NotEmpty(t, r.named("renew"))
		for _, renewal := range r.named("renew") {
			require.Equal(t, id(hold), parent(renewal))
		}
		require.Equal(t, id(hold), parent(r.only(t, "release")))
		require.Equal(t, 2*time.Second, acquired.EndTime.Sub(acquired.StartTime))
		require.Equal(t, 9*time.Second, hold.EndTime.Sub(hold.StartTime))
		require.Len(t, events(acquired, "dlock wait"), 1)
		require.Equal(t, "granted", value(acquired.Attributes, "dlock.outcome"))
		require.Equal(t, "acquire", value(acquired.Attributes, "dlock.op"))
		require.Equal(t, "released", value(hold.Attributes, "dlock.end"))
		require.Equal(t, fmt.Sprint(lease.Fence()), value(hold.Attributes, "dlock.fence"))
		for _, s := range (tracetest.SpanStubs{acquired, hold}) {
			require.Equal(t, "all", value(s.Attributes, "dlock.class"))
			require.Equal(t, "b", value(s.Attributes, "service.zone"))
		}
		require.NotContains(t, r.exported(t), "secret")
	}, otel.WithAttributes(about))
}

func TestKeysOnRequest(t *testing.T) {
	inTrace(t, func(t *testing.T, ctx context.Context, _ trace.Span, r *recorder, _ *memory.Locker, c *dlock.Client) {
		acquire(t, ctx, c, "secret\xff").Release()
		require.Equal(t, "secret\uFFFD", value(r.only(t, "dlock acquire").Attributes, "dlock.key"))
		require.Equal(t, "secret\uFFFD", value(r.only(t, "dlock hold").Attributes, "dlock.key"))
		require.Equal(t, "\uFFFD", value(r.only(t, "dlock hold").Attributes, "dlock.class"))
		for name := range r.metrics(t) {
			require.NotContains(t, r.sums(t, name, "dlock.key"), "secret\uFFFD")
		}
	}, otel.WithKeys(true), otel.WithClass(func(key string) string { return key[6:] }))
}

// What a lease does after the caller's span has ended, or after a minute, is not in its trace. The
// traces where it is are linked, and end within a minute, too.
func TestBackgroundIsLinked(t *testing.T) {
	for _, requestEnds := range []bool{true, false} {
		inTrace(t, func(t *testing.T, ctx context.Context, caller trace.Span, r *recorder, _ *memory.Locker, c *dlock.Client) {
			lease := acquire(t, ctx, c, "k")
			if requestEnds {
				caller.End()
			}
			time.Sleep(5 * time.Minute)
			require.NoError(t, lease.Release())
			caller.End()
			hold := r.only(t, "dlock hold")
			roots := make(map[trace.SpanID]int)
			for _, root := range r.named("dlock background") {
				require.Equal(t, []trace.SpanID{id(hold)}, linked(t, root))
				roots[id(root)] = 0
			}
			inside := 0
			for _, s := range append(r.named("renew"), r.named("release")...) {
				if parent(s) == id(hold) {
					inside++
				} else {
					require.Contains(t, roots, parent(s))
					roots[parent(s)]++
				}
			}
			require.Equal(t, requestEnds, inside == 0)
			require.LessOrEqual(t, inside, 30)
			require.Greater(t, len(roots), 3)
			for _, n := range roots {
				require.LessOrEqual(t, n, 31)
			}
		})
	}
}

// The trace of a caller that is not sampled stays so.
func TestNotSampled(t *testing.T) {
	inTrace(t, func(t *testing.T, _ context.Context, _ trace.Span, r *recorder, _ *memory.Locker, c *dlock.Client) {
		caller := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})
		lease := acquire(t, trace.ContextWithSpanContext(t.Context(), caller), c, "k")
		time.Sleep(5 * time.Minute)
		require.NoError(t, lease.Release())
		require.Empty(t, r.GetSpans())
		require.Equal(t, sum{1, 300}, r.sums(t, "dlock.hold.duration", "dlock.end")["released"])
	})
}

// The events of a lease may come in another order, and with an end before its span has begun.
func TestEventsThatAreLate(t *testing.T) {
	r := record()
	o := r.observer(t)
	acquired := func() context.Context {
		return o.AcquireDone(o.AcquireStart(t.Context(), dlock.AcquireStartInfo{}), dlock.AcquireDoneInfo{})
	}
	past := time.Now().Add(-time.Hour)
	ctx := acquired()
	o.ReleaseDone(ctx, dlock.ReleaseDoneInfo{Overrun: time.Hour})
	o.LeaseDone(ctx, dlock.LeaseDoneInfo{End: dlock.EndExpired, At: past})
	require.Len(t, r.only(t, "dlock hold").Events, 2)
	r.Reset()
	o.LeaseDone(acquired(), dlock.LeaseDoneInfo{End: dlock.EndReleased, At: past})
	hold := r.only(t, "dlock hold")
	require.False(t, hold.EndTime.Before(hold.StartTime))
}

func TestLossAndLateRelease(t *testing.T) {
	for _, test := range []struct {
		lostAfter, releasedAfter time.Duration // 0: nobody releases
		asEvents                 int
		lasts                    time.Duration // the span
	}{
		{10 * time.Second, 15 * time.Second, 2, 15 * time.Second},
		{50 * time.Second, 70 * time.Second, 1, 50 * time.Second},
		{70 * time.Second, 80 * time.Second, 0, 70 * time.Second},
		{10 * time.Second, 0, 1, 10 * time.Second},
	} {
		inTrace(t, func(t *testing.T, ctx context.Context, _ trace.Span, r *recorder, store *memory.Locker, c *dlock.Client) {
			lease := acquire(t, ctx, c.With(dlock.WithTTL(time.Hour)), "k")
			time.Sleep(test.lostAfter)
			require.True(t, store.Expire("k"))
			require.ErrorIs(t, lease.Renew(t.Context()), dlock.ErrLost)
			want := 1
			if test.releasedAfter > 0 {
				time.Sleep(test.releasedAfter - test.lostAfter)
				require.ErrorIs(t, lease.Release(), dlock.ErrLost)
				require.Equal(t, map[string]sum{"": {1, (test.releasedAfter - test.lostAfter).Seconds()}}, r.sums(t, "dlock.lease.overrun", ""))
				want = 2
			}
			time.Sleep(2 * time.Minute)
			hold := r.only(t, "dlock hold")
			require.Equal(t, codes.Error, hold.Status.Code)
			require.Equal(t, "removed", value(hold.Attributes, "dlock.end"))
			require.Equal(t, test.lasts, hold.EndTime.Sub(hold.StartTime))
			require.Len(t, hold.Events, test.asEvents)
			roots := append(r.named("dlock lost"), r.named("dlock late release")...)
			require.Len(t, roots, want-test.asEvents)
			for _, root := range roots {
				require.Equal(t, []trace.SpanID{id(hold)}, linked(t, root))
			}
		})
	}
}

func TestFailedRenewals(t *testing.T) {
	inTrace(t, func(t *testing.T, ctx context.Context, _ trace.Span, r *recorder, store *memory.Locker, c *dlock.Client) {
		lease := acquire(t, ctx, c, "k")
		fail := func() {
			store.Fail(fmt.Errorf("the key %q of %s", "k", lease.Token()))
			time.Sleep(3 * time.Second)
			store.Fail(nil)
			time.Sleep(6 * time.Second)
		}
		fail()
		require.Empty(t, r.named("dlock renewal failed"))
		inHold := r.sums(t, "dlock.renewal.margin", "error.type")["unavailable"].count
		require.NotZero(t, inHold)
		time.Sleep(time.Minute)
		fail()
		require.NoError(t, lease.Release())
		hold := r.only(t, "dlock hold")
		require.Len(t, events(hold, "dlock renewal failed"), inHold)
		failures := r.named("dlock renewal failed")
		require.Len(t, failures, r.sums(t, "dlock.renewal.margin", "error.type")["unavailable"].count-inHold)
		require.Equal(t, []trace.SpanID{id(hold)}, linked(t, failures[0]))
		require.NotContains(t, r.exported(t), lease.Token(), "the text of an error")
	})
}

// The failure of a batch is one span, with a link for each lease, up to 128.
func TestFailedBatch(t *testing.T) {
	for _, leases := range []int{2, 100, 300} {
		inTrace(t, func(t *testing.T, ctx context.Context, _ trace.Span, r *recorder, store *memory.Locker, c *dlock.Client) {
			c = c.With(dlock.WithTTL(10 * time.Minute)) // renewed after 200 s
			for i := range leases {
				acquire(t, ctx, c, fmt.Sprint(i))
			}
			time.Sleep(199 * time.Second)
			store.Fail(errors.New("away"))
			time.Sleep(1500 * time.Millisecond)
			store.Fail(nil)
			time.Sleep(3 * time.Second)
			failed := r.named("dlock renewal failed")
			require.NotEmpty(t, failed)
			require.Len(t, linked(t, failed[0]), min(leases, 128))
			require.Zero(t, failed[0].DroppedLinks)
			require.Equal(t, fmt.Sprint(leases), value(failed[0].Attributes, "dlock.leases"))
			total := 0
			for _, f := range failed {
				n, err := strconv.Atoi(value(f.Attributes, "dlock.leases"))
				if err != nil { // not of a batch
					n = 1
				}
				total += n
			}
			require.Equal(t, r.sums(t, "dlock.renewal.margin", "error.type")["unavailable"].count, total)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_ = c.Shutdown(ctx)
		})
	}
}

// A lease is renewed while its AcquireDone runs. The race detector sees if that is not expected.
func TestRenewalDuringAcquireDone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, renewed := record(), make(chan struct{})
		first := &dlock.Observer{
			AcquireDone: func(ctx context.Context, _ dlock.AcquireDoneInfo) context.Context {
				<-renewed
				return ctx
			},
			RenewDone: func(context.Context, dlock.RenewDoneInfo) {
				close(renewed)
				time.Sleep(time.Millisecond)
			},
		}
		c := dlock.New(memory.New(), dlock.WithObserver(first), dlock.WithObserver(r.observer(t)))
		require.NoError(t, acquire(t, t.Context(), c, "k").Release())
		require.NoError(t, c.Close())
		require.Equal(t, 1, r.sums(t, "dlock.renewal.margin", "dlock.class")["all"].count)
	})
}
