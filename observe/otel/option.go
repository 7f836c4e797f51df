package otel

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/dlock-go/dlock/observe/otel"

// An Option configures [New], [RegisterStats] or [RegisterNodes].
type Option func(*config)

type config struct {
	tracers    trace.TracerProvider
	meters     metric.MeterProvider
	attributes []attribute.KeyValue
	class      func(key string) string
	keys       bool
}

func newConfig(opts []Option) *config {
	c := &config{}
	for _, opt := range opts {
		opt(c)
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	return c
}

func (c *config) tracer() trace.Tracer {
	return c.tracers.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))
}

func (c *config) meter() metric.Meter {
	return c.meters.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
}

// WithTracerProvider sets where spans go. Nil, the default, means the global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithMeterProvider sets where metrics go. Nil, the default, means the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithAttributes adds attributes to every metric and span. Clients of one process whose Stats are
// registered need attributes that differ.
func WithAttributes(attributes ...attribute.KeyValue) Option {
	return func(c *config) { c.attributes = append(c.attributes, attributes...) }
}

// WithClass sets the attribute dlock.class of metrics and spans to what f returns for the key, such
// as "order" for "order:4711". Return few values, and no personal data. The first 100 values are
// kept; all others become "other". By default the class of every key is "all".
//
// f is called for each event, in the caller's goroutine or in that of background events.
func WithClass(f func(key string) string) Option { return func(c *config) { c.class = f } }

// WithKeys(true) adds the key to spans, as the attribute dlock.key. Keys never become attributes of
// metrics. The default is false, since keys may be personal data.
func WithKeys(on bool) Option { return func(c *config) { c.keys = on } }
