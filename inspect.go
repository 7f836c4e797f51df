package dlock

import (
	"context"
	"fmt"
	"time"
)

// A Status says who holds a lock.
type Status struct {
	Held      bool
	Owner     string        // the holder's label, see [WithOwner]; empty if unknown, or if the holder is not a Client
	Started   time.Time     // when the holder began to acquire the lock, on the holder's clock; zero if unknown
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
		return Status{}, wrap(ctx, "inspect", key, said(ctx, sent, err))
	}
	owner, started := parseToken(hold.Token)
	status := Status{Held: hold.Held, Owner: owner, Started: started, Remaining: hold.Remaining, Waiting: hold.Waiting}
	if !started.IsZero() {
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
	key, token := "", ""
	if s.seen != nil {
		key, token = s.seen()
	}
	err := errPanic
	if c.observed() {
		begun := time.Now()
		defer func() {
			c.tellBreak(ctx, BreakDoneInfo{Key: key, Owner: s.Owner, Took: time.Since(begun), Err: forEvent(ctx, err)})
		}()
	}
	if err = c.breakHold(ctx, key, token); err != nil {
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
	return said(ctx, sent, err)
}
