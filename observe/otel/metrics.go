package otel

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"

	"github.com/dlock-go/dlock"
)

// Attributes of metrics and spans.
const (
	classKey     = attribute.Key("dlock.class")
	outcomeKey   = attribute.Key("dlock.outcome")
	contendedKey = attribute.Key("dlock.contended")
	endKey       = attribute.Key("dlock.end")
	nodeKey      = attribute.Key("dlock.node")
	statusKey    = attribute.Key("dlock.status")
	errorKey     = semconv.ErrorTypeKey
)

// The bounds of the buckets of histograms.
var (
	seconds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	rests   = []float64{.05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1}
)

// metrics are the histograms of an Observer.
type metrics struct {
	acquire, hold, overrun, margin metric.Float64Histogram

	attributes []attribute.KeyValue // of all

	mu      sync.RWMutex
	options map[labels][]metric.RecordOption
}

// labels are the attributes of one measurement. Those that are empty are left out.
type labels struct{ class, outcome, contended, end, failure string }

func newMetrics(c *config) (*metrics, error) {
	m := &metrics{attributes: c.attributes, options: make(map[labels][]metric.RecordOption)}
	meter := c.meter()
	var errs [4]error
	histogram := func(i int, name, unit, description string, bounds []float64) (h metric.Float64Histogram) {
		h, errs[i] = meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(bounds...))
		return h
	}
	m.acquire = histogram(0, "dlock.acquire.duration", "s", "Duration of acquisitions, with the wait.", seconds)
	m.hold = histogram(1, "dlock.hold.duration", "s", "Time for which leases were held.", seconds)
	m.overrun = histogram(2, "dlock.lease.overrun", "s", "Time from the loss of a lease to the call of Release.", seconds)
	m.margin = histogram(3, "dlock.renewal.margin", "1", "Rest of the lease when its renewal was answered, as a part of its TTL.", rests)
	return m, errors.Join(errs[:]...)
}

// record records a value, with attributes that are made once.
func (m *metrics) record(ctx context.Context, h metric.Float64Histogram, value float64, l labels) {
	m.mu.RLock()
	options := m.options[l]
	m.mu.RUnlock()
	if options == nil {
		options = []metric.RecordOption{metric.WithAttributeSet(m.set(l))}
		m.mu.Lock()
		m.options[l] = options
		m.mu.Unlock()
	}
	h.Record(ctx, value, options...)
}

func (m *metrics) set(l labels) attribute.Set {
	all := append([]attribute.KeyValue{classKey.String(l.class)}, m.attributes...)
	if l.outcome != "" {
		all = append(all, outcomeKey.String(l.outcome), contendedKey.Bool(l.contended == "true"))
	}
	if l.end != "" {
		all = append(all, endKey.String(l.end))
	}
	if l.failure != "" {
		all = append(all, errorKey.String(l.failure))
	}
	return attribute.NewSet(all...)
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "granted"
	case errors.Is(err, dlock.ErrUnavailable) && !errors.Is(err, dlock.ErrHeld):
		return "failed" // even if the caller's context has ended the silence
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	case errors.Is(err, dlock.ErrHeld):
		return "held"
	}
	return "failed"
}

// failure returns the error.type of an error: one of a few words, never its text.
func failure(err error) string {
	var network net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, dlock.ErrLost):
		return "lost"
	case errors.Is(err, dlock.ErrClosed):
		return "closed"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.As(err, &network):
		return "network"
	case errors.Is(err, dlock.ErrUnavailable):
		return "unavailable"
	}
	return semconv.ErrorTypeOther.Value.AsString()
}

// share returns a rest as a part of a whole. A rest that is negative counts as none.
func share(rest, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return max(0, rest.Seconds()/whole.Seconds())
}
