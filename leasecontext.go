package dlock

import (
	"context"
	"fmt"
)

// A life is what all contexts of a lease share whose parents end together. It is all
// that the lease keeps of them, so that a context for each step of a long work costs
// nothing when it is dropped.
type life struct {
	context.Context // ends with the parents or the lease
	cancel          context.CancelCauseFunc
}

// A leaseContext has the values of its parent, the end of its life, and carries its lease:
// it is itself the value for leaseKey, from which the search for other leases goes on.
type leaseContext struct {
	context.Context // the parent
	life            *life
	first           bool // the life was made for this parent, and has its values
	lease           *Lease
}

type leaseKey struct{}

// Context returns a context for work that needs the lock: it ends with parent or
// with the lease, whichever is first, and [context.Cause] returns parent's cause
// or the lease's Err. It need not be cancelled. [LeaseFromContext] finds the lease in it.
func (l *Lease) Context(parent context.Context) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	life, made := l.lifeOf(parent)
	return &leaseContext{parent, life, made, l}
}

func (l *Lease) lifeOf(parent context.Context) (_ *life, made bool) {
	ends := parent.Done()
	if shared := l.lives[ends]; shared != nil {
		return shared, false
	}
	ctx, cancel := context.WithCancelCause(parent)
	shared := &life{ctx, cancel}
	if err := l.look(); err != nil {
		cancel(err)
		return shared, true
	}
	if l.lives == nil {
		l.lives = make(map[<-chan struct{}]*life)
	}
	l.lives[ends] = shared
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.lives, ends)
	})
	return shared, true
}

func (c *leaseContext) Done() <-chan struct{} { return c.life.Done() }

func (c *leaseContext) Err() error { return c.life.Err() }

// Value returns the parent's values, but for two: that for leaseKey, and the one by which
// package context finds what it has made itself, which is the life's.
func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c
	}
	if v := c.life.Value(key); c.first || v == any(c.life.Context) {
		return v
	}
	return c.Context.Value(key)
}

// String returns a text like those of package context, without the token.
func (c *leaseContext) String() string {
	return fmt.Sprintf("%v.WithLease(%q)", c.Context, c.lease.key)
}
