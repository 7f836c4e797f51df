package rediscore

import (
	"context"

	"github.com/dlock-go/dlock/backend/internal/rediserr"
)

// A guarded is a Conn whose client may panic. The call fails then, and its outcome is unknown. A question about the
// client has no answer then. No other code calls a Conn, but for Scan: that
// also calls the code of its caller, whose panics go on.
type guarded struct{ conn Conn }

func (g guarded) eval(ctx context.Context, call Call) (r Result) {
	if err := rediserr.Try(func() { r.Reply, r.Err = g.conn.Eval(ctx, call) }); err != nil {
		return Result{Err: err}
	}
	return r
}

func (g guarded) evalAll(ctx context.Context, calls []Call, results []Result) {
	failAll(results, rediserr.Try(func() { g.conn.EvalAll(ctx, calls, results) }))
}

func (g guarded) evalReplicated(ctx context.Context, calls []Call, results []Result, wait Replication) {
	failAll(results, rediserr.Try(func() { g.conn.(Replicator).EvalReplicated(ctx, calls, results, wait) }))
}

func (g guarded) evalAnew(ctx context.Context, calls []Call, results []Result, wait *Replication) (closed int) {
	failAll(results, rediserr.Try(func() { closed = g.conn.(Leaver).EvalAnew(ctx, calls, results, wait) }))
	return closed
}

func failAll(results []Result, err error) {
	for i := range results {
		if err != nil {
			results[i] = Result{Err: err}
		}
	}
}

func (g guarded) listen(ctx context.Context, channel string, sharded bool, on func(Event)) error {
	return rediserr.Call(func() error { return g.conn.Listen(ctx, channel, sharded, on) })
}

func (g guarded) cluster() bool { return ask(g, Conn.Cluster) }

// ask asks a Conn that is a T. Another one has no answer.
func ask[T, R any](g guarded, question func(T) R) (answer R) {
	if conn, ok := g.conn.(T); ok {
		_ = rediserr.Try(func() { answer = question(conn) })
	}
	return answer
}

// locate is that of a [Locator], or nil.
func (g guarded) locate(ctx context.Context, channel string) any {
	return ask(g, func(l Locator) any { return l.Locate(ctx, channel) })
}

// isReply reports whether an error wraps an error reply, as a [Replier] says.
func (g guarded) isReply(err error) bool {
	inner := rediserr.Innermost(err)
	return inner != nil && ask(g, func(r Replier) bool { return r.IsReply(inner) })
}

// unsupported reports whether an error reply speaks of a command or a script that is not allowed.
func (g guarded) unsupported(err error) bool {
	return err != nil && rediserr.Unsupported(rediserr.Answer(err)) && g.isReply(err)
}
