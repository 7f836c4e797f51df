package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// A Client acquires locks from a [Locker], and renews the leases it was granted. Its methods
// are safe for concurrent use. One Client per process is normally enough.
type Client struct {
	keeper  *keeper
	options options
}

// New returns a Client for the locks that l keeps. If l is nil or an option is out of range,
// every method that talks to the store fails with [ErrInvalid].
func New(l Locker, opts ...Option) *Client {
	defaults := options{terms: terms{ttl: DefaultTTL, autoRenew: true, turns: 1}, maxWait: NoLimit}
	return &Client{newKeeper(l), defaults.apply(opts)}
}

// With returns a Client with the options of c, changed by opts. It shares everything else
// with c: closing one closes both.
func (c *Client) With(opts ...Option) *Client {
	return &Client{c.keeper, c.options.apply(opts)}
}

// Acquire takes the lock named key. If another holds it, Acquire waits until the lock is
// free, ctx ends, or [WithMaxWait] has passed. ctx limits only the wait: the lease lasts
// until it is released or lost.
//
// If the store fails before its first answer, Acquire returns the error at once, so that a wrong
// password does not look like a long wait. The exception is a store that says it will soon be ready:
// Acquire retries the attempt for up to 10 s. [WithOutage] makes it retry after other errors, too.
// The error matches [ErrUnavailable] if the store has not answered. Once the store has answered that
// the key is held, Acquire retries after errors until the wait ends.
//
// If ctx ends the wait, the error matches that of ctx. If ctx or WithMaxWait ends it, the
// error also matches [ErrHeld] if the key was held as far as is known, or ErrUnavailable if
// the store was silent for too long to know. If ctx carries a lease of key from this Client,
// Acquire fails with [ErrNested] instead of waiting.
//
// After an error the Client releases, in the background, whatever the attempt may have left
// in the store.
func (c *Client) Acquire(ctx context.Context, key string) (*Lease, error) {
	return c.take(&acquisition{client: c, ctx: ctx, op: OpAcquire, key: key}, nil)
}

// TryAcquire makes one attempt to take the lock named key. If another holds it, the error
// matches [ErrHeld].
func (c *Client) TryAcquire(ctx context.Context, key string) (*Lease, error) {
	return c.take(&acquisition{client: c, ctx: ctx, op: OpTry, key: key}, nil)
}

// take is every method that acquires.
func (c *Client) take(a *acquisition, d *detached) (*Lease, error) {
	if a.observed() {
		return a.observe(d)
	}
	lease, err := a.take(d)
	return lease, a.wrap(err)
}

// Do runs fn while it holds the lock named key. It acquires the lock like Acquire, and
// releases it when fn returns or panics. The context of fn ends with ctx or with the lease,
// whichever is first; [context.Cause] returns why. [LeaseFromContext] finds the lease in it.
//
// ctx limits both the wait and the work. To limit only the wait, use [WithMaxWait];
// WithMaxWait(0) makes a single attempt. If the lock was not acquired, fn is not called, and
// Do returns the error of Acquire.
//
// Otherwise Do returns the error of fn. If the lease was lost before fn returned, the error
// also matches [ErrLost]: another may have worked at the same time. (But a write that was
// accepted with its fence is done: see the example Http.) The error then does not match the
// [context.Canceled] that the loss caused, which would look like the end of ctx.
// Likewise, if [Client.Shutdown] ended the lease and fn returned an error, Do's error also
// matches [ErrClosed]. If the release fails, it is owed (see [Lease.Release]), and Do does
// not report it.
//
// If fn detaches the lease, the context of fn ends at that moment. Do then releases nothing,
// since the taker gets the lock, and returns the error of fn alone.
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
	ended := lease.Err()
	lost := lease.Release()
	switch {
	case errors.Is(lost, ErrLost):
	case err != nil && ended == ErrClosed: // Shutdown has ended the work
		lost = wrap(ctx, "do", key, ErrClosed)
	default:
		return err
	}
	if err == nil {
		return lost
	}
	if ctx.Err() == nil && errors.Is(err, context.Canceled) {
		err = hideContextErrors(err)
	}
	if strings.Contains(err.Error(), lost.Error()) {
		return shownLoss{err, lost}
	}
	return fmt.Errorf("%w: %w", lost, err)
}

// A shownLoss is an error of the work whose text already shows the loss of its lease.
type shownLoss struct{ err, loss error }

func (e shownLoss) Error() string { return e.err.Error() }

func (e shownLoss) Unwrap() []error { return []error{e.loss, e.err} }

// begin starts every call of a Client. Without an error, keeper.leave must follow.
func (c *Client) begin(ctx context.Context, key string) error {
	err := c.check(key)
	if err == nil && ctx.Err() != nil {
		err = endOf(ctx)
	}
	if err == nil && !c.keeper.enter() {
		err = ErrClosed
	}
	return err
}

func (c *Client) check(key string) error {
	switch {
	case c.keeper == nil || c.keeper.locker == nil:
		return invalid("Locker: nil")
	case c.options.err != nil:
		return c.options.err
	case c.options.ttlFrom != nil && c.options.autoRenew:
		return invalid("WithTTLFrom: needs WithRenewal(false)")
	case key == "":
		return invalid("key: empty")
	case c.options.maxHold > 0 && c.options.maxHold < c.options.minHold:
		return invalid("WithMaxHold(%v): less than WithMinHold(%v)", c.options.maxHold, c.options.minHold)
	case c.options.minHold > longestTTL(c.keeper.locker):
		return invalid("WithMinHold(%v): longer than %v, the longest TTL of the Locker", c.options.minHold, longestTTL(c.keeper.locker))
	case len(key) > maxKey:
		return invalid("key: %d bytes, more than %d", len(key), maxKey)
	}
	return nil
}
