package dlock

import (
	"context"
	"fmt"
)

// A life is shared by all contexts of a lease whose parents end together. The lease keeps
// nothing else of its contexts, so a context for each step of a long work costs nothing once
// it is dropped.
type life struct {
	context.Context // ends with the parents or the lease
	cancel          context.CancelCauseFunc
}

// A leaseContext has the values of its parent, ends with its life, and carries its lease: it
// is the value for leaseKey, so that a search for another lease can continue at its parent.
type leaseContext struct {
	context.Context // the parent
	life            *life
	first           bool // the life was made for this parent, and has its values
	lease           *Lease
}

type leaseKey struct{}

// Context returns a context for work that needs the lock. It ends with parent or with the
// lease, whichever is first; [context.Cause] returns parent's cause or the lease's Err. It
// need not be cancelled. [LeaseFromContext] finds the lease in it.
func (l *Lease) Context(parent context.Context) context.Context {
	life, made := l.lifeOf(parent)
	return &leaseContext{parent, life, made, l}
}

// lifeOf returns the life of contexts of parent, and whether it was made for this one. It asks
// parent without the mutex, since parent may ask the lease.
func (l *Lease) lifeOf(parent context.Context) (_ *life, made bool) {
	ends := parent.Done()
	if shared := l.share(ends, nil); shared != nil {
		return shared, false
	}
	outer, leave := context.WithCancel(parent)
	ctx, cancel := context.WithCancelCause(outer) // endLocked calls cancel, which asks nothing but outer
	own := &life{ctx, cancel}
	shared := l.share(ends, own)
	if shared != own { // another was made meanwhile
		leave()
		return shared, false
	}
	context.AfterFunc(ctx, func() {
		leave()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.lives, ends)
	})
	return own, true
}

// share returns the life of contexts whose parents end with ends, if there is one. Otherwise it
// makes own that life, unless own is nil, and returns own.
func (l *Lease) share(ends <-chan struct{}, own *life) *life {
	l.mu.Lock()
	defer l.mu.Unlock()
	if shared := l.lives[ends]; shared != nil || own == nil {
		return shared
	}
	if err := l.lookLocked(); err != nil {
		own.cancel(err)
		return own
	}
	if l.lives == nil {
		l.lives = make(map[<-chan struct{}]*life)
	}
	l.lives[ends] = own
	return own
}

func (c *leaseContext) Done() <-chan struct{} { return c.life.Done() }

func (c *leaseContext) Err() error { return c.life.Err() }

// Value returns the parent's values, with two exceptions: leaseKey, and the key by which
// package context finds its own contexts. The life answers that one.
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

// LeaseFromContext returns the lease of key that ctx carries, while it is held. [Client.Do]
// and [Lease.Context] put it there. With it, code deep in the call tree finds the fence.
// LeaseFromContext returns false if ctx carries no lease of key, or if that lease was
// released, detached or lost. If ctx carries leases of key from Clients of several stores, it
// returns the one that was put there last.
//
// A goroutine that outlives the work needs a ctx from before Do or Lease.Context. A ctx of
// the work carries the lease, even through [context.WithoutCancel]. While the lease is held,
// the goroutine would take it for its own, and its Acquire of the same key would fail with
// [ErrNested] instead of waiting.
func LeaseFromContext(ctx context.Context, key string) (*Lease, bool) {
	l := findLease(ctx, func(l *Lease) bool { return l.key == key })
	return l, l != nil
}

// findLease returns the innermost wanted lease in ctx that is held, or nil.
func findLease(ctx context.Context, wanted func(*Lease) bool) *Lease {
	for {
		c, _ := ctx.Value(leaseKey{}).(*leaseContext)
		if c == nil {
			return nil
		}
		if wanted(c.lease) && c.lease.Err() == nil {
			return c.lease
		}
		ctx = c.Context
	}
}
