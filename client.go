package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Client acquires locks from a [Locker], and renews the leases that it was granted.
// All its methods may be called by any number of goroutines. One Client per process is
// normally enough.
type Client struct {
	keeper  *keeper
	options options
}

// New returns a Client of the locks that l keeps. If l is nil or an option is out of
// range, every method that talks to the store fails with [ErrInvalid].
func New(l Locker, opts ...Option) *Client {
	defaults := options{ttl: DefaultTTL, maxWait: NoLimit, renewal: true}
	return &Client{newKeeper(l), defaults.apply(opts)}
}

// With returns a Client whose options are those of c changed by opts. It shares
// everything else with c: closing one closes both.
func (c *Client) With(opts ...Option) *Client {
	return &Client{c.keeper, c.options.apply(opts)}
}

// Acquire takes the lock named key. If another holds it, Acquire waits until it
// is free, ctx ends, or [WithMaxWait] is over. ctx limits only the wait: the lease
// stays until it is released or lost.
//
// If the store fails before it has answered for the first time, Acquire returns its
// error at once, so that a wrong password does not look like a long wait. But if the
// store says that it will soon be ready, Acquire repeats the attempt for up to 10 s.
// Once the store has answered that the key is held, Acquire retries after errors until
// the wait ends.
//
// When ctx ends the wait, the error matches that of ctx. When ctx or WithMaxWait ends
// it, the error also matches [ErrHeld] if the key is held as far as is known, or
// [ErrUnavailable] if the store has been silent for too long to know. If ctx carries
// a lease of key from this Client, Acquire fails with [ErrNested] instead of waiting.
//
// After an error the Client releases in the background whatever the attempt may have
// left in the store.
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

// TryAcquire makes one attempt to take the lock named key. If another holds it, the
// error matches [ErrHeld].
func (c *Client) TryAcquire(ctx context.Context, key string) (*Lease, error) {
	a, err := c.begin(ctx, "acquire", key)
	if err != nil {
		return nil, err
	}
	defer c.keeper.leave()
	lease, err := a.tryOnce()
	if err != nil {
		return nil, wrap(ctx, "acquire", key, err)
	}
	return lease, nil
}

// Do runs fn while it holds the lock named key: it acquires it like Acquire, and
// releases it when fn returns or panics. The context of fn ends with ctx or with
// the lease, whichever is first; [context.Cause] returns why. [LeaseFromContext] finds
// the lease in it.
//
// ctx limits wait and work together. Use [WithMaxWait] for the wait alone, and
// WithMaxWait(0) for a single attempt. If the lock was not acquired, fn is not called,
// and Do returns the error of Acquire.
//
// Otherwise Do returns the error of fn. If the lease was lost before fn returned, the
// error also matches [ErrLost], since another may have worked at the same time. It then
// does not match a [context.Canceled] that the loss caused, which would look like the
// end of ctx. Likewise if [Client.Shutdown] has ended the lease: then the error matches
// [ErrClosed]. If the release fails, it is owed (see [Lease.Release]), and the error of Do
// does not tell.
//
// If fn detaches the lease, the context of fn ends then, and Do releases nothing: the lock
// is left to the taker. Do returns the error of fn alone.
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
		return toldLoss{err, lost}
	}
	return fmt.Errorf("%w: %w", lost, err)
}

// A toldLoss is an error of the work whose text tells the loss of its lease already.
type toldLoss struct{ err, loss error }

func (e toldLoss) Error() string   { return e.err.Error() }
func (e toldLoss) Unwrap() []error { return []error{e.loss, e.err} }

// A Status says who holds a lock.
type Status struct {
	Held      bool
	Owner     string        // label given with [WithOwner]; empty if unknown, or if the holder is not a Client
	Started   time.Time     // when the holder began to acquire the lock, on the holder's clock; zero if unknown
	Remaining time.Duration // of the holder's lease; 0 if unknown, negative if it never ends
	Waiting   int           // how many wait in the store's queue; 0 if it has none

	seen func() (key, token string) // for Break; nil if the holder is not a Client. Nothing prints what a function returns
}

// Inspect returns who holds the lock named key, and changes nothing. The answer
// may be out of date when it arrives: show it to people, and do not decide by
// it. If the store cannot tell, the error matches [errors.ErrUnsupported].
func (c *Client) Inspect(ctx context.Context, key string) (Status, error) {
	if _, err := c.begin(ctx, "inspect", key); err != nil {
		return Status{}, err
	}
	defer c.keeper.leave()
	hold, err := Forward{c.keeper.locker}.Inspect(ctx, key)
	if err != nil {
		return Status{}, wrap(ctx, "inspect", key, err)
	}
	owner, started := parseToken(hold.Token)
	status := Status{Held: hold.Held, Owner: owner, Started: started, Remaining: hold.Remaining, Waiting: hold.Waiting}
	if !started.IsZero() {
		status.seen = func() (string, string) { return key, hold.Token }
	}
	return status, nil
}

// Break releases the lock that s shows to be held, for operators: the lock goes to the
// first waiter, or is free. Only the holder that Inspect has seen is released. If it does
// not hold the lock any more, the error matches [ErrReleased], and nothing changes. A
// Status that no Inspect has returned is refused with [ErrInvalid], and so is one that
// shows no holder, or a holder that is not a [Client]. A key that is kept only by
// [WithMinHold] is freed too.
//
// The old holder gets no message. It believes in its lease, and may work on, until its next
// renewal: that is at most a third of its TTL later. If it does not renew its lease, or does
// not reach the store, it believes in it until its [Lease.Deadline]. Before you call
// Break, be sure that it has stopped, or that what it writes is fenced.
func (c *Client) Break(ctx context.Context, s Status) error {
	if s.seen == nil {
		return wrap(ctx, "break", "", invalid("Status: shows no holder that dlock knows"))
	}
	key, token := s.seen()
	if _, err := c.begin(ctx, "break", key); err != nil {
		return err
	}
	defer c.keeper.leave()
	held, err := c.keeper.locker.Release(ctx, key, token)
	if err == nil && !held {
		err = fmt.Errorf("%w: it is not held any more by the holder that was seen", ErrReleased)
	}
	if err != nil {
		return wrap(ctx, "break", key, err)
	}
	return nil
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
