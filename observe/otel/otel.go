package otel

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/dlock-go/dlock"
)

// New returns an Observer for [dlock.WithObserver]. Several Clients may share it. The error is that of the MeterProvider.
func New(opts ...Option) (*dlock.Observer, error) {
	c := newConfig(opts)
	m, err := newMetrics(c)
	if err != nil {
		return nil, err
	}
	o := &observer{
		metrics:    m,
		tracer:     c.tracer(),
		attributes: c.attributes,
		keys:       c.keys,
		classes:    classes{of: c.class, known: make(map[string]struct{})},
		batches:    make(map[batchID]*batch),
	}
	return &dlock.Observer{
		AcquireStart: o.acquireStart,
		WaitStart:    o.waitStart,
		AcquireDone:  o.acquireDone,
		RenewDone:    o.renewDone,
		LeaseDone:    o.leaseDone,
		ReleaseDone:  o.releaseDone,
	}, nil
}

type observer struct {
	*metrics
	classes
	tracer     trace.Tracer
	attributes []attribute.KeyValue
	keys       bool

	none spans

	batchMu sync.Mutex
	batches map[batchID]*batch // those that have failed
}

// spans are those of an acquisition and its lease.
type spans struct {
	acquire *span
	hold    atomic.Pointer[span] // nil until AcquireDone: a renewal may be reported before that
}

type spansKey struct{ *observer }

// spans returns those in ctx, or none, if nothing is traced.
func (o *observer) spans(ctx context.Context) *spans {
	if s, ok := ctx.Value(spansKey{o}).(*spans); ok {
		return s
	}
	return &o.none
}

func (o *observer) acquireStart(ctx context.Context, i dlock.AcquireStartInfo) context.Context {
	caller := trace.SpanFromContext(ctx)
	_, acquire := o.tracer.Start(ctx, "dlock acquire", o.describe(i.Key, attribute.String("dlock.op", string(i.Op))))
	if !acquire.SpanContext().IsValid() {
		return ctx
	}
	s := &spans{acquire: &span{Span: acquire, o: o, caller: caller, key: i.Key, began: time.Now()}}
	return trace.ContextWithSpan(context.WithValue(ctx, spansKey{o}, s), s.acquire)
}

func (o *observer) waitStart(ctx context.Context, i dlock.WaitStartInfo) {
	if s := o.spans(ctx); s.acquire != nil && s.acquire.IsRecording() {
		s.acquire.AddEvent("dlock wait", trace.WithAttributes(
			attribute.String("dlock.owner", valid(i.Owner)), attribute.Float64("dlock.remaining", i.Remaining.Seconds())))
	}
}

func (o *observer) acquireDone(ctx context.Context, i dlock.AcquireDoneInfo) context.Context {
	s := o.spans(ctx)
	class, outcome := o.class(i.Key), outcome(i.Err)
	o.record(s.acquire.in(ctx), o.acquire, i.Took.Seconds(),
		labels{class: class, outcome: outcome, contended: strconv.FormatBool(i.Contended)})
	if s.acquire == nil {
		return ctx
	}
	if s.acquire.IsRecording() {
		s.acquire.SetAttributes(outcomeKey.String(outcome), contendedKey.Bool(i.Contended), attribute.Int("dlock.attempts", i.Attempts))
		if outcome == "failed" {
			s.acquire.SetAttributes(errorKey.String(failure(i.Err)))
			s.acquire.SetStatus(codes.Error, failure(i.Err))
		}
	}
	s.acquire.End()
	if i.Err != nil {
		return ctx
	}
	_, hold := o.tracer.Start(trace.ContextWithSpan(ctx, s.acquire.caller), "dlock hold",
		o.describe(i.Key, attribute.Int64("dlock.fence", i.Fence), attribute.Bool("dlock.degraded", i.Degraded)))
	h := &span{Span: hold, o: o, caller: s.acquire.caller, key: i.Key, began: time.Now()}
	s.hold.Store(h)
	return trace.ContextWithSpan(ctx, h)
}

func (o *observer) renewDone(ctx context.Context, i dlock.RenewDoneInfo) {
	h, why := o.spans(ctx).hold.Load(), failure(i.Err)
	class := o.class(i.Key)
	o.record(h.in(ctx), o.margin, share(i.Margin, i.TTL), labels{class: class, failure: why})
	if i.Err != nil && why != "lost" && h != nil { // LeaseDone reports a loss
		h.renewalFailed(i, errorKey.String(why))
	}
}

func (o *observer) leaseDone(ctx context.Context, i dlock.LeaseDoneInfo) {
	h := o.spans(ctx).hold.Load()
	o.record(h.in(ctx), o.hold, i.Held.Seconds(), labels{class: o.class(i.Key), end: string(i.End)})
	if h != nil {
		h.leaseEnded(i)
	}
}

func (o *observer) releaseDone(ctx context.Context, i dlock.ReleaseDoneInfo) {
	h := o.spans(ctx).hold.Load()
	if i.Overrun > 0 {
		o.record(h.in(ctx), o.overrun, i.Overrun.Seconds(), labels{class: o.class(i.Key)})
	}
	if h != nil {
		h.released(i)
	}
}

// describe returns the attributes of a span or an event.
func (o *observer) describe(key string, more ...attribute.KeyValue) trace.SpanStartEventOption {
	all := make([]attribute.KeyValue, 0, 4+len(o.attributes))
	all = append(append(all, classKey.String(o.class(key))), more...)
	if o.keys {
		all = append(all, attribute.String("dlock.key", valid(key)))
	}
	return trace.WithAttributes(append(all, o.attributes...)...)
}
