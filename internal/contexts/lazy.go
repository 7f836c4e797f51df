package contexts

import (
	"context"
	"sync"
	"time"
)

// A Lazy is a context like that of context.WithTimeout, with the values of another context. It starts its
// timer only when Done is called. A client that sets the deadline on its connection never calls Done, so
// that such a call costs no timer.
type Lazy struct {
	context.Context // of the values
	deadline        time.Time

	mu    sync.Mutex
	err   error
	done  chan struct{} // made by Done
	timer *time.Timer   // made by Done, unless the context has ended
}

// NewLazy returns a context that ends after d. Cancel must follow.
func NewLazy(values context.Context, d time.Duration) *Lazy {
	return &Lazy{Context: values, deadline: time.Now().Add(d)}
}

// Deadline returns the end of the time.
func (l *Lazy) Deadline() (time.Time, bool) { return l.deadline, true }

// Done starts the timer.
func (l *Lazy) Done() <-chan struct{} {
	_ = l.Err() // which ends it if the time is over
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
		} else {
			l.timer = time.AfterFunc(time.Until(l.deadline), func() { l.end(context.DeadlineExceeded) })
		}
	}
	return l.done
}

// Err looks at the time, also without a timer.
func (l *Lazy) Err() error {
	if !time.Now().Before(l.deadline) {
		l.end(context.DeadlineExceeded)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Cancel must be called when the context is no longer needed.
func (l *Lazy) Cancel() { l.end(context.Canceled) }

func (l *Lazy) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	if l.done != nil {
		l.timer.Stop()
		close(l.done)
	}
}
