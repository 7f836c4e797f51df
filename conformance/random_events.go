package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock"
)

// A tally is what the workers of a history have counted, or what an Observer of their Clients
// has: the two must agree.
type tally struct {
	acquisitions int // calls of Acquire and TryAcquire
	leases       int // that they returned
	lost         int // of the leases, by the error of their release
}

// An audit compares what the Observers of a history were told with what its workers have done.
type audit struct {
	mu     sync.Mutex
	done   tally // by the workers
	begun  tally // as told at the start of calls
	ended  tally // as told at their end, and that of their leases
	closed int   // releases, as told
	missed uint64
}

func (a *audit) count(f func(*audit)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a)
}

// called notes the end of an acquisition, and released that of a lease. A lease that is lost while
// the Observers are told of it, on a slow machine, is not returned: its loss is.
func (a *audit) called(err error) {
	diedAtOnce := errors.Is(err, dlock.ErrLost)
	a.count(func(a *audit) {
		a.done.acquisitions++
		if err == nil || diedAtOnce {
			a.done.leases++
		}
		if diedAtOnce { // and nobody releases it
			a.done.lost++
			a.begun.lost++
			a.closed++
		}
	})
}

func (a *audit) released(err error) {
	if errors.Is(err, dlock.ErrLost) {
		a.count(func(a *audit) { a.done.lost++ })
	}
}

func (a *audit) observer() *dlock.Observer {
	return &dlock.Observer{
		AcquireStart: func(ctx context.Context, _ dlock.AcquireStartInfo) context.Context {
			a.count(func(a *audit) { a.begun.acquisitions++ })
			return ctx
		},
		AcquireDone: func(ctx context.Context, i dlock.AcquireDoneInfo) context.Context {
			a.count(func(a *audit) {
				a.ended.acquisitions++
				if i.Err == nil {
					a.begun.leases++
				}
			})
			return ctx
		},
		LeaseDone: func(_ context.Context, i dlock.LeaseDoneInfo) {
			a.count(func(a *audit) {
				a.ended.leases++
				if errors.Is(i.Err, dlock.ErrLost) {
					a.ended.lost++
				}
			})
		},
		ReleaseDone: func(_ context.Context, i dlock.ReleaseDoneInfo) {
			a.count(func(a *audit) {
				a.closed++
				if errors.Is(i.Err, dlock.ErrLost) {
					a.begun.lost++
				}
			})
		},
	}
}

// verdict says where the events of a history that has ended do not agree with it.
func (a *audit) verdict() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun != a.done || a.ended != a.done || a.closed != a.done.leases || a.missed > 0 {
		return fmt.Errorf("the workers counted %+v; Observers were told of %+v at the start and %+v at the end, of %d releases, and missed %d events",
			a.done, a.begun, a.ended, a.closed, a.missed)
	}
	return nil
}
