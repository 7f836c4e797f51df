package dlock

import (
	"context"
	"fmt"
)

// LeaseFromContext returns the lease of key that ctx carries, while it is held:
// [Client.Do] and [Lease.Context] put it there. Code deep in the call tree finds the
// fence with it. It returns false if ctx carries no lease of key, or if that was
// released, detached or lost.
//
// A goroutine that outlives the work must not carry its lease along: give it a ctx
// from before Do or Lease.Context.
func LeaseFromContext(ctx context.Context, key string) (*Lease, bool) {
	l := findLease(ctx, func(l *Lease) bool { return l.key == key })
	return l, l != nil
}

// A leaseContext carries a lease. Its ctx is the value for leaseKey, from which the
// search for other leases goes on.
type leaseContext struct {
	context.Context
	lease *Lease
}

type leaseKey struct{}

// withLease returns ctx with l in it.
func withLease(ctx context.Context, l *Lease) context.Context { return &leaseContext{ctx, l} }

// Value implements [context.Context].
func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// String returns a text like those of package context, without the token.
func (c *leaseContext) String() string {
	return fmt.Sprintf("%v.WithLease(%q)", c.Context, c.lease.key)
}

// findLease returns the innermost lease in ctx that is wanted and held, or nil.
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

// nested reports whether the caller of a wait holds the key itself.
func (a *acquisition) nested() bool {
	return nil != findLease(a.ctx, func(l *Lease) bool {
		return l.key == a.key && l.keeper == a.client.keeper
	})
}
