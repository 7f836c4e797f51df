// Package storewait tells a wait for the store from a wait for a holder. A call waits for the store while its last
// request to the store has failed, and the call goes on.
package storewait

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Listener hears what happens in a wait of a Locker that goes on. Its methods are safe for concurrent use, and
// do not wait.
type Listener interface {
	Answered()                        // the store has answered a request
	Failed(sent time.Time, err error) // a request has failed, which was sent at a given time
	NoInbox(err error)                // the store cannot send messages to the wait
}

type listenerKey struct{}

// With returns a ctx for a wait of a Locker that l is to hear of.
func With(ctx context.Context, l Listener) context.Context {
	return context.WithValue(ctx, listenerKey{}, l)
}

// Of returns the Listener of a wait, which is never nil.
func Of(ctx context.Context) Listener {
	if l, ok := ctx.Value(listenerKey{}).(Listener); ok {
		return l
	}
	return nobody{}
}

// ReplyLimit is after how long the error of a wait says that there is no reply.
const ReplyLimit = time.Second

// Ended returns the error of a wait whose ctx has ended. It also wraps failure, which is that of the last request or nil, or
// says that the request in flight has had no reply for [ReplyLimit]. That one was sent at called; zero if there is none.
func Ended(ctx context.Context, failure error, called time.Time) error {
	if since := time.Since(called); failure == nil && !called.IsZero() && since >= ReplyLimit {
		failure = fmt.Errorf("no reply for %v", since.Round(time.Millisecond))
	}
	if failure == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ctx.Err(), failure)
}

type nobody struct{}

func (nobody) Answered()               {}
func (nobody) Failed(time.Time, error) {}
func (nobody) NoInbox(error)           {}

// A Watch counts the calls that wait for the store. The zero value is ready for use, and methods are safe for
// concurrent use.
type Watch struct {
	mu sync.Mutex
	n  int
}

// A Call is what a Watch knows of a call. The zero value is that of a new one, whose requests have not failed.
type Call struct {
	state atomic.Int32
	since time.Time // guarded by the mutex of the Watch
}

// The states of a Call.
const (
	served = iota
	failing
	over
)

// Failing reports whether the call waits for the store.
func (c *Call) Failing() bool { return c.state.Load() == failing }

// Count returns how many calls wait for the store.
func (w *Watch) Count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// Failed notes that a request has failed, which was sent at a given time, and that the call goes on. It returns since
// when the call waits for the store; zero if the call is over.
func (w *Watch) Failed(c *Call, sent time.Time) (since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.state.CompareAndSwap(served, failing) {
		w.n++
		c.since = sent
	}
	if !c.Failing() {
		return time.Time{}
	}
	return c.since
}

// Answered notes an answer of the store. It returns since when the call has waited for it; zero if it has not.
func (w *Watch) Answered(c *Call) (since time.Time) {
	if !c.Failing() {
		return time.Time{}
	}
	return w.leave(c, served)
}

// End notes that the call is over. It returns since when the call has waited for the store; zero if it has not.
func (w *Watch) End(c *Call) (since time.Time) {
	if c.state.CompareAndSwap(served, over) {
		return time.Time{}
	}
	return w.leave(c, over)
}

func (w *Watch) leave(c *Call, to int32) (since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch c.state.Load() {
	case failing:
		w.n--
		since = c.since
		c.state.Store(to)
	case served: // an answer came first
		c.state.CompareAndSwap(served, to)
	}
	return since
}
