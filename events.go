package dlock

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
)

// How many events of the background may wait for their Observers: losses, and all others.
const (
	maxEvents  = 4096
	maxRoutine = maxEvents / 2
)

// events calls the Observers of a Client. Events of the background wait in a queue for one
// goroutine, which ends when the queue is empty. The zero value is ready for use.
type events struct {
	mu       sync.Mutex
	queue    []func()
	running  bool
	idle     func() // called when the queue has become empty
	dropped  atomic.Uint64
	panicked atomic.Bool
}

// later has an event called in the background, unless so many wait already.
func (e *events) later(most int, event func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) >= most {
		e.dropped.Add(1)
		return
	}
	e.queue = append(e.queue, event)
	if !e.running {
		e.running = true
		go e.run()
	}
}

func (e *events) run() {
	for event := e.next(); event != nil; event = e.next() {
		event()
	}
	e.idle()
}

func (e *events) next() func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		e.queue, e.running = nil, false
		return nil
	}
	event := e.queue[0]
	e.queue[0] = nil
	e.queue = e.queue[1:]
	return event
}

func (e *events) outstanding() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running
}

// survive recovers the panic of a hook, and logs the first one.
func (e *events) survive() {
	if reason := recover(); reason != nil && !e.panicked.Swap(true) {
		slog.Error("dlock: an Observer panicked", "panic", reason, "stack", string(debug.Stack()))
	}
}

// tell calls one hook of all observers, in this goroutine.
func tell[I any](e *events, all []Observer, hook func(*Observer) func(context.Context, I), ctx context.Context, info I) {
	for i := range all {
		if f := hook(&all[i]); f != nil {
			callHook(e, f, ctx, info)
		}
	}
}

// tellLater has tell called in the background, if an Observer has the hook.
func tellLater[I any](e *events, most int, all []Observer, hook func(*Observer) func(context.Context, I), ctx context.Context, info I) {
	if slices.ContainsFunc(all, func(o Observer) bool { return hook(&o) != nil }) {
		e.later(most, func() { tell(e, all, hook, ctx, info) })
	}
}

func callHook[I any](e *events, f func(context.Context, I), ctx context.Context, info I) {
	defer e.survive()
	f(ctx, info)
}

// ask calls one hook of all observers, and returns ctx with the values that they lend.
func ask[I any](e *events, all []Observer, hook func(*Observer) func(context.Context, I) context.Context, ctx context.Context, info I) context.Context {
	for i := range all {
		if f := hook(&all[i]); f != nil {
			ctx = lend(ctx, askHook(e, f, ctx, info))
		}
	}
	return ctx
}

func askHook[I any](e *events, f func(context.Context, I) context.Context, ctx context.Context, info I) context.Context {
	defer e.survive()
	return f(ctx, info)
}

// A lent context has the cancellation of one context, and the values of another. Values that
// the other does not have are those of the first, and so are its leases.
type lent struct {
	context.Context
	values context.Context // without cancellation, so that package context finds that of the first
}

func (l *lent) Value(key any) any {
	if key != (leaseKey{}) {
		if v := l.values.Value(key); v != nil {
			return v
		}
	}
	return l.Context.Value(key)
}

// lend returns ctx with the values of another context, which may be nil.
func lend(ctx, values context.Context) context.Context {
	if values == nil || same(ctx, values) {
		return ctx
	}
	return &lent{ctx, context.WithoutCancel(values)}
}

// same reports whether two contexts are the same one. Those of a type that cannot be compared
// are not.
func same(a, b context.Context) (same bool) {
	defer func() { _ = recover() }()
	return a == b
}
