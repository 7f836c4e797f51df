package otel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/dlock-go/dlock"
)

// RegisterStats has the metrics dlock.leases, dlock.waiters and dlock.releases.owed read from the
// Stats of c, which are those of all Clients related to it by [dlock.Client.With], until the
// Registration is unregistered. [WithClass] and [WithKeys] have no effect.
func RegisterStats(c *dlock.Client, opts ...Option) (metric.Registration, error) {
	if c == nil {
		return nil, errors.New("dlock/observe/otel: Client: nil")
	}
	config := newConfig(opts)
	meter := config.meter()
	leases, err1 := meter.Int64ObservableUpDownCounter("dlock.leases",
		metric.WithUnit("{lease}"), metric.WithDescription("Leases that are held."))
	waiters, err2 := meter.Int64ObservableUpDownCounter("dlock.waiters",
		metric.WithUnit("{waiter}"), metric.WithDescription("Calls that wait for a key."))
	owed, err3 := meter.Int64ObservableUpDownCounter("dlock.releases.owed",
		metric.WithUnit("{release}"), metric.WithDescription("Releases that the store has still to confirm."))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	attributes := metric.WithAttributes(config.attributes...)
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := c.Stats()
		o.ObserveInt64(leases, int64(s.Leases), attributes)
		o.ObserveInt64(waiters, int64(s.Waiters), attributes)
		o.ObserveInt64(owed, int64(s.ReleasesOwed), attributes)
		return nil
	}, leases, waiters, owed)
}
