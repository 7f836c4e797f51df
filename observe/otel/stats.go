package otel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/dlock-go/dlock"
)

// RegisterStats reports the metrics dlock.leases, dlock.waiters, dlock.store.waiters, dlock.waits.without_inbox and
// dlock.releases.owed from the Stats of c, until the Registration is unregistered. These cover all Clients related to c by
// [dlock.Client.With]. [WithClass] and [WithKeys] have no effect.
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
	away, err3 := meter.Int64ObservableUpDownCounter("dlock.store.waiters",
		metric.WithUnit("{waiter}"), metric.WithDescription("Calls that wait for the store: their last request has failed."))
	noInbox, err4 := meter.Int64ObservableCounter("dlock.waits.without_inbox",
		metric.WithUnit("{wait}"), metric.WithDescription("Waits to which the store could send no message."))
	owed, err5 := meter.Int64ObservableUpDownCounter("dlock.releases.owed",
		metric.WithUnit("{release}"), metric.WithDescription("Releases that the store has still to confirm."))
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	attributes := metric.WithAttributes(config.attributes...)
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := c.Stats()
		o.ObserveInt64(leases, int64(s.Leases), attributes)
		o.ObserveInt64(waiters, int64(s.Waiters), attributes)
		o.ObserveInt64(away, int64(s.StoreWaiters), attributes)
		o.ObserveInt64(noInbox, int64(s.WaitsWithoutInbox), attributes)
		o.ObserveInt64(owed, int64(s.ReleasesOwed), attributes)
		return nil
	}, leases, waiters, away, noInbox, owed)
}
