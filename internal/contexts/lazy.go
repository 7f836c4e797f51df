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

	mu        sync.Mutex
	timed     context.Context // made by Done
	stop      context.CancelFunc
	cancelled bool
}

// NewLazy returns a context that ends after d. Cancel must follow.
func NewLazy(values context.Context, d time.Duration) *Lazy {
	return &Lazy{Context: values, deadline: time.Now().Add(d)}
}

// Deadline returns the end of the time.
func (l *Lazy) Deadline() (time.Time, bool) { return l.deadline, true }

// Done starts the timer.
func (l *Lazy) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timed == nil {
		l.timed, l.stop = context.WithDeadline(l.Context, l.deadline)
		if l.cancelled {
			l.stop()
		}
	}
	return l.timed.Done()
}

// Err looks at the time, also without a timer.
func (l *Lazy) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.timed != nil:
		return l.timed.Err()
	case l.cancelled:
		return context.Canceled
	case !time.Now().Before(l.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

// Cancel must be called when the context is no longer needed.
func (l *Lazy) Cancel() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancelled = true
	if l.stop != nil {
		l.stop()
	}
}
