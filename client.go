package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/errs"
	"github.com/dlock-go/dlock/internal/hooks"
	"github.com/dlock-go/dlock/internal/token"
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

// MaxWait returns what [WithMaxWait] has set: how long Acquire waits for a key.
func (c *Client) MaxWait() time.Duration { return c.options.maxWait }

// MinHold returns what [WithMinHold] has set: how long a key stays taken at least.
func (c *Client) MinHold() time.Duration { return c.options.minHold }

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
	return c.acquire(request{client: c, ctx: ctx, op: OpAcquire, key: key})
}

// TryAcquire makes one attempt to take the lock named key. If another holds it, the error
// matches [ErrHeld].
func (c *Client) TryAcquire(ctx context.Context, key string) (*Lease, error) {
	return c.acquire(request{client: c, ctx: ctx, op: OpTry, key: key})
}

func (c *Client) acquire(r request) (*Lease, error) {
	a := &acquisition{request: r}
	return a.take(a.acquire)
}

// take is every method that acquires, as f does.
func (r *request) take(f func() (*Lease, error)) (*Lease, error) {
	if r.client.observed() {
		return r.observe(f)
	}
	lease, err := f()
	return lease, r.wrap(err)
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
		return wrap(context.Background(), "do", key, invalid("function: nil"))
	}
	lease, err := c.Acquire(ctx, key)
	if err != nil {
		return err
	}
	return work(ctx, key, lease, fn)
}

// A finisher is a lease or a set. finish releases it, and reports losses.
type finisher interface {
	Context(parent context.Context) context.Context
	Err() error
	finish() (lost error)
}

func (l *Lease) finish() error { return l.Release() }

// work runs fn while it holds a lease or a set.
func work[H finisher](ctx context.Context, key string, held H, fn func(context.Context, H) error) error {
	returned := false
	defer func() {
		if !returned { // but panicked, or ended its goroutine
			held.finish()
		}
	}()
	inside := held.Context(ctx)
	err := fn(inside, held)
	returned = true
	ended := held.Err()
	lost := contexts.End(inside, held.finish)
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
		err = errs.HideContext(err)
	}
	if strings.Contains(err.Error(), lost.Error()) {
		return errs.Reword(err.Error(), nil, errors.Join(lost, err)) // the text already shows the loss
	}
	return fmt.Errorf("%w: %w", lost, err)
}

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

// A Status says who holds a lock.
type Status struct {
	Held      bool
	Owner     string        // the holder's label, see [WithOwner]; empty if unknown, or if the holder is not a Client
	Started   time.Time     // when the holder was granted the lock, as in a [HeldError]; zero if unknown
	Remaining time.Duration // of the holder's lease; 0 if unknown, negative if it never ends
	Waiting   int           // in the store's queue; 0 if it has none

	seen func() (key, token string) // for Break; nil if the holder is not a Client. A function, so that printing shows no token
}

// Inspect reports who holds the lock named key, and changes nothing. The answer may be
// outdated on arrival: show it to people, and do not base decisions on it. If the store
// cannot tell, the error matches [errors.ErrUnsupported].
func (c *Client) Inspect(ctx context.Context, key string) (Status, error) {
	if err := c.begin(ctx, key); err != nil {
		return Status{}, wrap(ctx, "inspect", key, err)
	}
	defer c.keeper.leave()
	sent := time.Now()
	hold, err := Forward{c.keeper.locker}.Inspect(ctx, key)
	if err != nil {
		return Status{}, wrap(ctx, "inspect", key, callError(ctx, sent, err))
	}
	owner, started := startOf(hold.Token, hold.Since)
	status := Status{Held: hold.Held, Owner: owner, Started: started, Remaining: hold.Remaining, Waiting: hold.Waiting}
	if _, made := token.Parse(hold.Token); !made.IsZero() {
		status.seen = func() (string, string) { return key, hold.Token }
	}
	return status, nil
}

// Break lets an operator release the lock that s shows as held. The lock goes to the first
// waiter, or is free; a key that only [WithMinHold] keeps is freed too. Break releases only
// the holder that Inspect saw: if that holder no longer holds the lock, the error matches
// [ErrReleased], and nothing changes. It refuses, with [ErrInvalid], a Status that no Inspect
// returned, or that shows no holder, or a holder that is not a [Client].
//
// The old holder is not notified. It considers the lock its own, and may continue to work,
// until its next renewal, at most a third of its TTL later. If it does not renew, or cannot
// reach the store, it does so until its [Lease.Deadline]. Before you call Break, make sure
// that the old holder has stopped, or that its writes are fenced.
func (c *Client) Break(ctx context.Context, s Status) error {
	key, secret := "", ""
	if s.seen != nil {
		key, secret = s.seen()
	}
	err := errPanic
	if c.observed() {
		begun := time.Now()
		defer func() {
			hook := func(o *Observer) func(context.Context, BreakDoneInfo) { return o.BreakDone }
			info := BreakDoneInfo{Key: key, Owner: s.Owner, Took: time.Since(begun), Err: forEvent(ctx, err)}
			hooks.Tell(&c.keeper.hooks, c.options.observers, hook, ctx, info)
		}()
	}
	if err = c.breakHold(ctx, key, secret); err != nil {
		return wrap(ctx, "break", key, err)
	}
	return nil
}

func (c *Client) breakHold(ctx context.Context, key, token string) error {
	if token == "" {
		return invalid("Status: shows no holder that dlock knows")
	}
	if err := c.begin(ctx, key); err != nil {
		return err
	}
	defer c.keeper.leave()
	sent := time.Now()
	held, err := c.keeper.locker.Release(ctx, key, token)
	if err == nil && !held {
		err = fmt.Errorf("%w: it is not held any more by the holder that was seen", ErrReleased)
	}
	return callError(ctx, sent, err)
}

// Stats describes what a [Client] does now (the fields of type int), and what it has done
// since it was made (the other fields, which only grow).
type Stats struct {
	Leases  int // leases held
	Waiters int // calls that wait for a key

	// StoreWaiters counts the calls that wait for the store, not for a holder: their last request to
	// it has failed, and they go on trying. It is 0 once the store has served them.
	StoreWaiters int

	// ReleasesOwed counts the releases that are owed, answered or not: see "Unknown outcomes"
	// in the package documentation. They include leases that were released before their
	// [WithMinHold] has passed. A number that stays high means that the store does not
	// answer, or refuses.
	ReleasesOwed int

	// ReleasesDropped counts owed releases that were dropped because there were more than
	// 100,000. Their keys stay taken for up to one TTL.
	ReleasesDropped uint64

	// NestedWaits counts waits for a key inside the work of another lease. Two of them can
	// deadlock: see [Client.AcquireAll].
	NestedWaits uint64

	// WaitsWithoutInbox counts waits in the store's queue to which the store could send no message: see
	// [InboxMissingInfo]. They are served more slowly.
	WaitsWithoutInbox uint64

	Lost           uint64 // leases lost, including those whose Release discovered the loss
	RenewalsFailed uint64 // failed renewals; one for each lease of a failed batch
	EventsDropped  uint64 // because an [Observer] was too slow
}

// Stats returns the figures of c and all Clients that are related to it by [Client.With].
// Leases, ReleasesOwed, ReleasesDropped, Lost and RenewalsFailed are from one instant. The others are read
// at about the same time. It is cheap enough to be called once a second.
func (c *Client) Stats() Stats {
	k := c.keeper
	if k == nil {
		return Stats{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	owed, dropped := k.owed.Count()
	return Stats{
		Leases:            k.leases,
		Waiters:           int(k.waiters.Load()),
		StoreWaiters:      k.silence.Count(),
		NestedWaits:       k.nested.Load(),
		WaitsWithoutInbox: k.noInbox.Load(),
		ReleasesOwed:      owed,
		ReleasesDropped:   dropped,
		Lost:              k.lost,
		RenewalsFailed:    k.failed,
		EventsDropped:     k.hooks.Dropped(),
	}
}

// HostOwner returns a label for [WithOwner] that names this process: host name, program and
// process id, as in "web-7/billing[4711]". It has at most 256 bytes, and only printable
// characters. The label is visible in the store, in the errors of callers that find the key
// held, and in their logs.
func HostOwner() string { return token.HostOwner() }
