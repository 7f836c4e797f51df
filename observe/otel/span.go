package otel

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/dlock-go/dlock"
)

const (
	young    = time.Minute // until then a trace may grow
	maxLinks = 128         // that a span keeps by default

	batchTime = time.Second // in which the failures of a batch are reported
)

// A span is that of an acquisition or of a lease, and the current span of its calls of the store.
type span struct {
	trace.Span
	o      *observer
	caller trace.Span
	key    string
	began  time.Time

	late struct { // the parent of late calls of the store
		sync.Mutex
		parent trace.SpanContext
		at     time.Time
	}

	mu   sync.Mutex
	over bool        // the span has ended
	done bool        // released has been called
	last *time.Timer // ends the span of a lost lease that nobody releases
}

// in returns ctx with the span as it is: for exemplars of metrics.
func (s *span) in(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, s.Span)
}

func (s *span) young() bool { return time.Since(s.began) < young }

// SpanContext returns the parent for a call of the store. It is the span itself while the caller's
// span is open, for a minute at most, and the root of another trace after that.
func (s *span) SpanContext() trace.SpanContext {
	own := s.Span.SpanContext()
	open := s.caller.IsRecording() || !s.caller.SpanContext().IsValid()
	if !own.IsSampled() || open && s.young() {
		return own
	}
	late := &s.late
	late.Lock()
	defer late.Unlock()
	if now := time.Now(); late.at.IsZero() || now.Sub(late.at) >= young {
		late.parent, late.at = s.o.root("dlock background", now, []trace.Link{s.link()}, s.o.describe(s.key)), now
	}
	return late.parent
}

func (s *span) link() trace.Link { return trace.Link{SpanContext: s.Span.SpanContext()} }

// root makes a span of one instant that begins a trace.
func (o *observer) root(name string, at time.Time, links []trace.Link, opts ...trace.SpanStartOption) trace.SpanContext {
	opts = append(opts, trace.WithNewRoot(), trace.WithTimestamp(at), trace.WithLinks(links...))
	_, root := o.tracer.Start(context.Background(), name, opts...)
	root.End(trace.WithTimestamp(at))
	return root.SpanContext()
}

// tellLocked adds an event, or makes it a root span if the span is too old for that.
func (s *span) tellLocked(name string, at time.Time, about attribute.KeyValue) {
	attributes := s.o.describe(s.key, about)
	if !s.over && s.young() {
		s.AddEvent(name, trace.WithTimestamp(at), attributes)
	} else {
		s.o.root(name, at, []trace.Link{s.link()}, attributes)
	}
}

func (s *span) renewalFailed(i dlock.RenewDoneInfo, why attribute.KeyValue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.Batch > 1 && (s.over || !s.young()) {
		s.o.batchFailed(s, i, why)
	} else {
		s.tellLocked("dlock renewal failed", time.Now(), why)
	}
}

// leaseEnded ends the span of a lease. That of a lost one stays open for the release that is late, as long as it is young.
func (s *span) leaseEnded(i dlock.LeaseDoneInfo) {
	end := endKey.String(string(i.End))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.SetAttributes(end)
	switch i.End {
	case dlock.EndReleased, dlock.EndDetached, dlock.EndShutdown:
		s.endLocked(i.At)
		return
	}
	s.SetStatus(codes.Error, string(i.End))
	s.tellLocked("dlock lost", i.At, end)
	if rest := young - time.Since(s.began); s.done || rest <= 0 {
		s.endLocked(time.Now())
	} else {
		s.last = time.AfterFunc(rest, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.endLocked(i.At)
		})
	}
}

// released notes a call of Release. Its LeaseDone may follow.
func (s *span) released(i dlock.ReleaseDoneInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.Overrun > 0 {
		s.tellLocked("dlock late release", time.Now(), attribute.Float64("dlock.overrun", i.Overrun.Seconds()))
	}
	s.done = true
	if s.last != nil {
		s.last.Stop()
		s.endLocked(time.Now())
	}
}

func (s *span) endLocked(at time.Time) {
	if !s.over {
		s.over = true
		if at.Before(s.began) { // lost before it was handed out
			at = s.began
		}
		s.End(trace.WithTimestamp(at))
	}
}

// A batch is a call that has failed to renew several leases. Each of them reports it.
type batch struct {
	at     time.Time
	leases int
	links  []trace.Link
	why    attribute.KeyValue // of the first
}

// A batchID distinguishes calls that fail at the same time.
type batchID struct {
	size int
	took time.Duration
}

// batchFailed adds a lease to its batch, which becomes one span when all its leases are there, or
// after a second: those that are young have an event instead.
func (o *observer) batchFailed(s *span, i dlock.RenewDoneInfo, why attribute.KeyValue) {
	o.batchMu.Lock()
	defer o.batchMu.Unlock()
	id := batchID{i.Batch, i.Took}
	b := o.batches[id]
	if b == nil {
		b = &batch{at: time.Now(), why: why}
		o.batches[id] = b
		time.AfterFunc(batchTime, func() {
			o.batchMu.Lock()
			defer o.batchMu.Unlock()
			o.flushLocked(id, b)
		})
	}
	b.leases++
	if len(b.links) < maxLinks {
		b.links = append(b.links, s.link())
	}
	if b.leases == i.Batch {
		o.flushLocked(id, b)
	}
}

func (o *observer) flushLocked(id batchID, b *batch) {
	if o.batches[id] == b {
		delete(o.batches, id)
		attributes := append([]attribute.KeyValue{b.why, attribute.Int("dlock.leases", b.leases)}, o.attributes...)
		o.root("dlock renewal failed", b.at, b.links, trace.WithAttributes(attributes...))
	}
}
