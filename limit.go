package dlock

import (
	"context"
	"sync"
	"time"
)

// A limit is a context with the values of another and a deadline of its own,
// like one of context.WithTimeout. It starts a timer only when it is asked for
// Done: a client that sets the deadline on its connection never does, and a lock
// that is taken and released often should not cost a timer each time.
type limit struct {
	context.Context // of the values
	deadline        time.Time

	mu    sync.Mutex
	done  chan struct{} // made by Done
	timer *time.Timer
	err   error
}

func newLimit(values context.Context, d time.Duration) *limit {
	return &limit{Context: values, deadline: time.Now().Add(d)}
}

func (l *limit) Deadline() (time.Time, bool) { return l.deadline, true }

func (l *limit) Done() <-chan struct{} {
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

func (l *limit) Err() error {
	if !time.Now().Before(l.deadline) {
		l.end(context.DeadlineExceeded)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// cancel must be called when the context is not needed any more.
func (l *limit) cancel() { l.end(context.Canceled) }

func (l *limit) end(err error) {
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
