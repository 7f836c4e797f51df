package main

import (
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/observe/otel"
)

// A service shows what the locks of its client do.
type service struct {
	*http.ServeMux
	tracers *trace.TracerProvider
	meters  *metric.MeterProvider
}

// newService returns a service that prints all spans to stdout, if that is not nil.
func newService(stdout io.Writer) (*service, error) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		return nil, err
	}
	var options []trace.TracerProviderOption
	if stdout != nil {
		printer, err := stdouttrace.New(stdouttrace.WithWriter(stdout))
		if err != nil {
			return nil, err
		}
		options = append(options, trace.WithBatcher(printer, trace.WithBatchTimeout(time.Second)))
	}
	s := &service{
		ServeMux: http.NewServeMux(),
		tracers:  trace.NewTracerProvider(options...),
		meters:   metric.NewMeterProvider(metric.WithReader(reader)),
	}
	s.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return s, nil
}

// client returns a Client that is observed. The class of "order:3" is "order".
func (s *service) client(store dlock.Locker) (*dlock.Client, error) {
	options := []otel.Option{
		otel.WithTracerProvider(s.tracers),
		otel.WithMeterProvider(s.meters),
		otel.WithClass(func(key string) string {
			class, _, _ := strings.Cut(key, ":")
			return class
		}),
	}
	observer, err := otel.New(options...)
	if err != nil {
		return nil, err
	}
	client := dlock.New(store, dlock.WithObserver(observer))
	_, err = otel.RegisterStats(client, options...)
	return client, err
}

// redis returns a client that is observed, too. What redisotel exports must not have the arguments of commands: they are secrets.
func (s *service) redis(addr string) (*redis.Client, error) {
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	return c, redisotel.InstrumentTracing(c, redisotel.WithTracerProvider(s.tracers), redisotel.WithDBStatement(false))
}
