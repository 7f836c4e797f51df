// Package otel shows what a [dlock.Client] does in OpenTelemetry metrics and traces.
//
// The example makes an Observer, and reports the Stats of a Client. It imports this package under another name, because
// OpenTelemetry has an otel, too.
//
// The README lists every metric, span and alert.
//
// # Traces
//
// An acquisition is a span "dlock acquire", and its lease a span "dlock hold". They are siblings under the caller's span.
// Spans of an instrumented Redis client for the acquisition or the lease are children of these while the caller's span is
// open, for a minute at most. Later ones are in traces of their own, each for up to a minute. Their root "dlock background"
// is linked to the span. So the trace of a request ends with the request, and that of a leader does not grow for as long as
// it leads. Renewals of several leases in one call belong to no lease: their spans are traces of their own without a link.
//
// A failed renewal, the loss of a lease and a late release are events of the span "dlock hold" while that is younger than a
// minute. Later they are root spans that are linked to it: they are exported at once, and not when the lease ends.
//
// # What is not exported
//
// Tokens are never exported, nor are the texts of errors: a server may put the arguments of a
// command into them. A Redis client that is instrumented by redisotel exports the arguments of all
// commands by default, and so tokens, with which anybody can release a lock. Turn that off:
//
//	redisotel.InstrumentTracing(client, redisotel.WithDBStatement(false))
//
// Keys are exported only in spans, and only if [WithKeys] asks for that. The attribute of metrics
// is the class of the key: see [WithClass].
package otel
