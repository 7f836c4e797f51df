package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Client acquires locks from a [Locker], and keeps the leases that it was
// granted alive. All its methods may be called by any number of goroutines; one
// Client for a whole process is what it is made for.
type Client struct {
	keeper  *keeper
	options options
}

// New returns a Client of the locks that l keeps. Options out of range, or a nil
// l, make its methods fail with [ErrInvalid].
func New(l Locker, opts ...Option) *Client {
	defaults := options{ttl: DefaultTTL, maxWait: -1, renewal: true}
	return &Client{newKeeper(l), defaults.apply(opts)}
}

// With returns a Client whose options are those of c changed by opts. It shares
// everything else with c: closing one closes both.
func (c *Client) With(opts ...Option) *Client {
	return &Client{c.keeper, c.options.apply(opts)}
}

// Acquire takes the lock named key. If another holds it, Acquire waits until it
// is free, ctx ends, or the time of [WithMaxWait] has passed. ctx bounds the wait
// only: the lease goes on until it is released or lost.
//
// An error of the store is returned if it comes before the store ever answered,
// since a wrong password must not look like a long wait. Once the store has
// answered that the key is held, errors are retried until the wait ends. A wait
// that ctx cuts short matches the error of ctx; it matches [ErrHeld] as well if
// the last that the store answered was that the key is held. After an error,
// whatever the attempt may have left in the store is released in the background.
func (c *Client) Acquire(ctx context.Context, key string) (*Lease, error) {
	a, err := c.begin(ctx, "acquire", key)
	if err != nil {
		return nil, err
	}
	defer c.keeper.leave()
	lease, err := a.acquire()
	if err != nil {
		return nil, wrap(ctx, "acquire", key, err)
	}
	return lease, nil
}

// TryAcquire takes the lock named key if it is free, and returns an error that
// matches [ErrHeld] if another holds it. It does not wait, except for the answer
// of the store.
func (c *Client) TryAcquire(ctx context.Context, key string) (*Lease, error) {
	a, err := c.begin(ctx, "acquire", key)
	if err != nil {
		return nil, err
	}
	defer c.keeper.leave()
	lease, err := a.try(ctx)
	if err != nil {
		return nil, wrap(ctx, "acquire", key, a.verdict(ctx, err))
	}
	return lease, nil
}

// Do runs fn while it holds the lock named key: it acquires it like Acquire, and
// releases it when fn returns or panics. The context of fn ends with ctx, and as
// soon as the lease is lost; [context.Cause] tells which.
//
// ctx is what the work runs under, so it bounds wait and work together: use
// [WithMaxWait] for the wait alone, WithMaxWait(0) for a single attempt. If the
// lock was not acquired, fn is not called and the error is that of Acquire.
// Otherwise Do returns the error of fn. If the lease was lost before fn returned,
// the error matches [ErrLost] as well, since another may have worked at the same
// time; a [context.Canceled] that the loss brought about is then kept as text
// only, lest it be taken for the end of ctx. A release that is still owed (see
// [Lease.Release]) is not an error of the work.
func (c *Client) Do(ctx context.Context, key string, fn func(context.Context, *Lease) error) error {
	if fn == nil {
		return wrap(ctx, "do", key, invalid("function: nil"))
	}
	lease, err := c.Acquire(ctx, key)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // but panicked, or ended its goroutine
			lease.Release()
		}
	}()
	err = fn(lease.Context(ctx), lease)
	returned = true
	lost := lease.Release()
	if !errors.Is(lost, ErrLost) {
		return err
	}
	if err == nil {
		return lost
	}
	if ctx.Err() == nil && errors.Is(err, context.Canceled) {
		err = hideContextErrors(err)
	}
	return fmt.Errorf("%w: %w", lost, err)
}

// A Status tells who holds a lock.
type Status struct {
	Held      bool
	Owner     string        // label given with [WithOwner]; empty if unknown, or if the holder is not a Client
	Remaining time.Duration // of the holder's lease; 0 if unknown, negative if it never ends
}

// Inspect tells who holds the lock named key, and changes nothing. The answer
// may be out of date when it arrives: show it to people, and do not decide by
// it. Where the store cannot tell, the error matches [errors.ErrUnsupported].
func (c *Client) Inspect(ctx context.Context, key string) (Status, error) {
	if _, err := c.begin(ctx, "inspect", key); err != nil {
		return Status{}, err
	}
	defer c.keeper.leave()
	hold, err := Forward{c.keeper.locker}.Inspect(ctx, key)
	if err != nil {
		return Status{}, wrap(ctx, "inspect", key, err)
	}
	return Status{hold.Held, ownerOf(hold.Token), hold.Remaining}, nil
}

// begin is how every call of a Client starts. If there is no error the call must
// end with keeper.leave.
func (c *Client) begin(ctx context.Context, op, key string) (acquisition, error) {
	err := c.check(key)
	if err == nil && ctx.Err() != nil {
		err = endOf(ctx)
	}
	if err == nil && !c.keeper.enter() {
		err = ErrClosed
	}
	if err != nil {
		return acquisition{}, wrap(ctx, op, key, err)
	}
	return acquisition{client: c, ctx: ctx, key: key}, nil
}

func (c *Client) check(key string) error {
	switch {
	case c.keeper == nil || c.keeper.locker == nil:
		return invalid("Locker: nil")
	case c.options.err != nil:
		return c.options.err
	case key == "":
		return invalid("key: empty")
	case c.options.maxHold > 0 && c.options.maxHold < c.options.minHold:
		return invalid("WithMaxHold(%v): less than WithMinHold(%v)", c.options.maxHold, c.options.minHold)
	case len(key) > maxKey:
		return invalid("key: %d bytes, more than %d", len(key), maxKey)
	}
	return nil
}
