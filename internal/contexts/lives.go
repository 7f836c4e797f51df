// Package contexts has contexts that package context lacks: those that end with something that is held
// (Lives), one whose timer starts when it is needed (Lazy), and one that lends its values (Lend). A Mutex waits
// with a context.
package contexts

import (
	"context"
	"fmt"
	"sync"
)

// Lives are the contexts of an owner: something that ends once, for a reason. They are shared by all
// contexts whose parents end together. The owner keeps nothing else of its contexts, so a context for each
// step of a long work costs nothing once it is dropped.
//
// The zero value is that of an owner that lives. Methods are safe for concurrent use.
type Lives struct {
	mu   sync.Mutex
	err  error         // why the owner has ended
	done chan struct{} // nil until it is asked for
	also *Lives        // that end too
	all  map[<-chan struct{}]*life
}

// A life is shared by contexts whose parents have the same Done.
type life struct {
	context.Context // ends with the parents or the owner
	cancel          context.CancelCauseFunc
	leave           func()      // the parents
	spare           func() bool // keeps leave from being called in a goroutine when the life ends
}

// A tied context has the values of its parent, ends with its life, and carries an owner: it is the value for
// ownerKey, so that a search for another owner can continue at its parent.
type tied struct {
	context.Context // the parent
	life            *life
	first           bool // the life was made for this parent, and has its values
	owner           any
	name            func(owner any) string
}

// ownerKey is the key of the innermost tied context.
var ownerKey any = (*tied)(nil)

// Context returns a context that ends with parent or the owner, whichever is first; context.Cause returns
// parent's cause, or why the owner has ended. It need not be cancelled. Its text ends with the name of owner.
func (all *Lives) Context(parent context.Context, owner any, name func(owner any) string) context.Context {
	life, made := all.of(parent)
	return &tied{parent, life, made, owner, name}
}

// Bind returns a context that ends like that of Context, and carries no owner.
func (all *Lives) Bind(parent context.Context) context.Context {
	life, _ := all.of(parent)
	return life.Context
}

// of returns the life of contexts of parent, and whether it was made for this one. It asks parent
// without the mutex, since parent may ask the owner.
func (all *Lives) of(parent context.Context) (_ *life, made bool) {
	ends := parent.Done()
	if shared := all.share(ends, nil); shared != nil {
		return shared, false
	}
	outer, leave := context.WithCancel(parent)
	ctx, cancel := context.WithCancelCause(outer) // End calls cancel, which asks nothing but outer
	own := &life{Context: ctx, cancel: cancel, leave: leave}
	own.spare = context.AfterFunc(ctx, func() {
		leave()
		all.mu.Lock()
		defer all.mu.Unlock()
		if all.all[ends] == own {
			delete(all.all, ends)
		}
	})
	shared := all.share(ends, own)
	if shared != own { // another was made meanwhile
		leave()
		return shared, false
	}
	return own, true
}

// End calls end, which must end the owner of ctx. Then ctx leaves its parent in this goroutine: without End, it does so in
// one of its own.
func End(ctx context.Context, end func() error) error {
	if c, ok := ctx.(*tied); ok && c.life.spare() {
		defer c.life.leave()
	}
	return end()
}

// share returns the life of contexts whose parents end with ends, if there is one. Otherwise it makes
// own that life, unless own is nil, and returns own.
func (all *Lives) share(ends <-chan struct{}, own *life) *life {
	all.mu.Lock()
	defer all.mu.Unlock()
	switch shared := all.all[ends]; {
	case shared != nil || own == nil:
		return shared
	case all.err != nil:
		own.cancel(all.err)
	case all.all == nil:
		all.all = map[<-chan struct{}]*life{ends: own}
	default:
		all.all[ends] = own
	}
	return own
}

// End ends everything with err, unless that was done before.
func (all *Lives) End(err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.err != nil {
		return
	}
	all.err = err
	if all.done != nil {
		close(all.done)
	}
	for _, life := range all.all {
		life.cancel(err)
	}
	all.all = nil
	if all.also != nil {
		all.also.End(err)
		all.also = nil // a lease that is kept does not keep its set
	}
}

// EndAlso has others end with these, and for the same reason; at once if these have ended.
func (all *Lives) EndAlso(others *Lives) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.err != nil {
		others.End(all.err)
	} else {
		all.also = others
	}
}

// Done returns a channel that is closed when the owner ends.
func (all *Lives) Done() <-chan struct{} {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.done == nil {
		all.done = make(chan struct{})
		if all.err != nil {
			close(all.done)
		}
	}
	return all.done
}

// Err returns why the owner has ended, or nil.
func (all *Lives) Err() error {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.err
}

// Owner returns the innermost owner that ctx carries, and the context around that. It returns nil if ctx
// carries none.
func Owner(ctx context.Context) (owner any, outer context.Context) {
	if c, _ := ctx.Value(ownerKey).(*tied); c != nil {
		return c.owner, c.Context
	}
	return nil, nil
}

func (c *tied) Done() <-chan struct{} { return c.life.Done() }

func (c *tied) Err() error { return c.life.Err() }

// Value returns the parent's values, with two exceptions: ownerKey, and the key by which package context
// finds its own contexts. The life answers that one.
func (c *tied) Value(key any) any {
	if key == ownerKey {
		return c
	}
	if v := c.life.Value(key); c.first || v == any(c.life.Context) {
		return v
	}
	return c.Context.Value(key)
}

// String returns a text like those of package context.
func (c *tied) String() string { return fmt.Sprintf("%v.%s", c.Context, c.name(c.owner)) }
