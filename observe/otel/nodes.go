package otel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/dlock-go/dlock/backend/redlock"
)

// RegisterNodes reports the Nodes of l as the metric dlock.node.status, until the Registration is
// unregistered. It sends nothing to them. There are five series for each node, and their attribute
// dlock.node is its name: see [redlock.WithNames]. [WithClass] and [WithKeys] have no effect.
func RegisterNodes(l *redlock.Locker, opts ...Option) (metric.Registration, error) {
	if l == nil {
		return nil, errors.New("dlock/observe/otel: Locker: nil")
	}
	config := newConfig(opts)
	meter := config.meter()
	status, err := meter.Int64ObservableUpDownCounter("dlock.node.status",
		metric.WithUnit("{node}"), metric.WithDescription("1 for the status that a node of a redlock has, and 0 for the others."))
	if err != nil {
		return nil, err
	}
	attributes := metric.WithAttributes(config.attributes...)
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, n := range l.Nodes() {
			for _, s := range redlock.NodeStatuses() {
				value := int64(0)
				if s == n.Status {
					value = 1
				}
				o.ObserveInt64(status, value, attributes, metric.WithAttributes(nodeKey.String(valid(n.Node)), statusKey.String(string(s))))
			}
		}
		return nil
	}, status)
}
