package dlock

import (
	"context"
	"sync"
	"time"
)

// A lazyTimeout is a context like that of context.WithTimeout, with the values of another
// context. It starts its timer only when Done is called. A client that sets the deadline on
// its connection never calls Done, so that a release costs no timer.
type lazyTimeout struct {
	context.Context // of the values
	deadline        time.Time

	mu    sync.Mutex
	done  chan struct{} // made by Done
	timer *time.Timer
	err   error
}

func newLazyTimeout(values context.Context, d time.Duration) *lazyTimeout {
	return &lazyTimeout{Context: values, deadline: time.Now().Add(d)}
}

func (l *lazyTimeout) Deadline() (time.Time, bool) { return l.deadline, true }

func (l *lazyTimeout) Done() <-chan struct{} {
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

func (l *lazyTimeout) Err() error {
	if !time.Now().Before(l.deadline) {
		l.end(context.DeadlineExceeded)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// cancel must be called when the context is no longer needed.
func (l *lazyTimeout) cancel() { l.end(context.Canceled) }

func (l *lazyTimeout) end(err error) {
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
