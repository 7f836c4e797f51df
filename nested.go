package dlock

import "context"

// LeaseFromContext returns the lease of key that ctx carries, while it is held:
// [Client.Do] and [Lease.Context] put it there. Code deep in the call tree finds the
// fence with it. It returns false if ctx carries no lease of key, or if that was
// released, detached or lost. If Clients of several stores have leases of key in ctx, it
// returns the one that was put there last.
//
// Give a goroutine that outlives the work a ctx from before Do or Lease.Context. A ctx of
// the work carries the lease, also behind [context.WithoutCancel]: while the lease is
// held, the goroutine takes it for its own, and its Acquire of the same key fails with
// [ErrNested] instead of waiting.
func LeaseFromContext(ctx context.Context, key string) (*Lease, bool) {
	l := findLease(ctx, func(l *Lease) bool { return l.key == key })
	return l, l != nil
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
