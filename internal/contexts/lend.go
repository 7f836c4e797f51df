package contexts

import (
	"context"
	"time"
)

// Within returns a context that has values, and ends after d or with end.
func Within(values context.Context, d time.Duration, end context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(values, d)
	stop := context.AfterFunc(end, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// WithoutCancel is that of package context, which it does not use for a ctx that never ends anyway.
func WithoutCancel(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// Lend returns ctx with the values of another context, and whether that differs from ctx. Cancellation and
// owners stay those of ctx, and so do values that the other does not have. The other may be nil.
func Lend(ctx, values context.Context) (_ context.Context, differs bool) {
	if values == nil || same(ctx, values) {
		return ctx, false
	}
	return &lent{ctx, context.WithoutCancel(values)}, true
}

type lent struct {
	context.Context
	values context.Context // without cancellation, so that package context finds that of the other
}

func (l *lent) Value(key any) any {
	if key != ownerKey {
		if v := l.values.Value(key); v != nil {
			return v
		}
	}
	return l.Context.Value(key)
}

// same reports whether two contexts are the same one. Those of a type that cannot be compared
// are not.
func same(a, b context.Context) (same bool) {
	defer func() { _ = recover() }()
	return a == b
}
