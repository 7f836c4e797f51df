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

func (g guarded) cluster() (is bool) {
	_ = rediserr.Try(func() { is = g.conn.Cluster() })
	return is
}

// master is that of a [Router]; known is false if the Conn is none.
func (g guarded) master(ctx context.Context, call Call) (master any, known bool) {
	r, known := g.conn.(Router)
	if known {
		_ = rediserr.Try(func() { master = r.Master(ctx, call) })
	}
	return master, known
}

// locate is that of a [Locator], or nil.
func (g guarded) locate(ctx context.Context, channel string) (master any) {
	if l, ok := g.conn.(Locator); ok {
		_ = rediserr.Try(func() { master = l.Locate(ctx, channel) })
	}
	return master
}

// poolSize is that of a [Pooled], or 0.
func (g guarded) poolSize() (n int) {
	if p, ok := g.conn.(Pooled); ok {
		_ = rediserr.Try(func() { n = p.PoolSize() })
	}
	return n
}

// addr is that of an [Addressed], or empty.
func (g guarded) addr() (addr string) {
	if a, ok := g.conn.(Addressed); ok {
		_ = rediserr.Try(func() { addr = a.Addr() })
	}
	return addr
}

// isReply reports whether an error wraps an error reply, as a [Replier] says.
func (g guarded) isReply(err error) (is bool) {
	r, ok := g.conn.(Replier)
	if inner := rediserr.Innermost(err); ok && inner != nil {
		_ = rediserr.Try(func() { is = r.IsReply(inner) })
	}
	return is
}

// drain is that of a [Drainer].
func (g guarded) drain(ctx context.Context) {
	if d, ok := g.conn.(Drainer); ok {
		_ = rediserr.Try(func() { d.Drain(ctx) })
	}
}
