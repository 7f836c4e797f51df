// Package hooks calls hooks: functions of others that are told what happens, and must not harm.
//
// A hook is a function in a field of O, an observer. Where it is nil, nothing is called.
package hooks

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dlock-go/dlock/internal/contexts"
)

// A Queue has events of the background, for one goroutine that calls their hooks in order. The
// goroutine ends when the queue is empty. The zero value is ready for use once Idle is set.
type Queue struct {
	Idle func() // called when the queue has become empty

	mu       sync.Mutex
	queue    []func()
	running  bool
	dropped  atomic.Uint64
	panicked atomic.Bool
}

// Dropped returns how many events were dropped so far, since too many waited.
func (q *Queue) Dropped() uint64 { return q.dropped.Load() }

// Running reports whether events are in the queue, or under way.
func (q *Queue) Running() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running
}

func (q *Queue) add(most int, event func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) >= most {
		q.dropped.Add(1)
		return
	}
	q.queue = append(q.queue, event)
	if !q.running {
		q.running = true
		go q.run()
	}
}

func (q *Queue) run() {
	for event := q.next(); event != nil; event = q.next() {
		event()
	}
	q.Idle()
}

func (q *Queue) next() (event func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running = len(q.queue) > 0; !q.running {
		q.queue = nil
		return nil
	}
	event, q.queue[0] = q.queue[0], nil
	q.queue = q.queue[1:]
	return event
}

// call calls a hook. It recovers a panic, and logs the first one.
func (q *Queue) call(hook func()) {
	defer func() {
		if reason := recover(); reason != nil && !q.panicked.Swap(true) {
			slog.Error("dlock: an Observer panicked", "panic", reason, "stack", string(debug.Stack()))
		}
	}()
	hook()
}

// Tell calls one hook of all observers, in this goroutine. It recovers panics, and logs the first one.
func Tell[O, I any](q *Queue, all []O, hook func(*O) func(context.Context, I), ctx context.Context, info I) {
	for i := range all {
		if f := hook(&all[i]); f != nil {
			q.call(func() { f(ctx, info) })
		}
	}
}

// TellLater has Tell called in the background, if an observer has the hook, and unless most events wait
// already.
func TellLater[O, I any](q *Queue, most int, all []O, hook func(*O) func(context.Context, I), ctx context.Context, info I) {
	if slices.ContainsFunc(all, func(o O) bool { return hook(&o) != nil }) {
		q.add(most, func() { Tell(q, all, hook, ctx, info) })
	}
}

// Ask is Tell for a hook that returns a context. It returns ctx with the values that they lend, and whether
// that differs from ctx.
func Ask[O, I any](q *Queue, all []O, hook func(*O) func(context.Context, I) context.Context, ctx context.Context, info I) (_ context.Context, differs bool) {
	for i := range all {
		if f := hook(&all[i]); f != nil {
			q.call(func() {
				var differsNow bool
				ctx, differsNow = contexts.Lend(ctx, f(ctx, info))
				differs = differs || differsNow
			})
		}
	}
	return ctx, differs
}
