package dlock

import (
	"context"
	"errors"
	"time"
)

// A Locker is a store that keeps leases: a backend. Applications use a
// [Client]; only the authors of backends and decorators call or implement
// Locker.
//
// Each method is one operation that takes effect at one instant. A Locker has
// no policy: it makes no tokens, waits for nothing, repeats nothing and starts
// no renewal; the Client does all that. Keys have 1 to 1,024 bytes, tokens are
// not empty, and both may hold any bytes; TTLs are whole milliseconds between 1 ms and
// 365 days. A lease ends when its TTL has passed, for all methods at
// the same time, however many others there are. One token may hold several keys:
// these are leases of their own. A Locker is safe for use by any number of
// goroutines.
//
// ctx limits only the call: a lease stays when the ctx of the call that granted it
// ends. If ctx is already done, nothing is sent and ctx.Err() is returned, not its
// cause. An error means that the outcome
// is unknown: the operation may have taken effect, or may do so later. A
// [NoEffectError] says that it has not, and will not. Errors that match
// [errors.ErrUnsupported] or [ErrInvalid], and a [net.OpError] whose Op is "dial", say the
// same. An error that matches [ErrClosed] says that no later call can succeed.
//
// The package conformance tests all of this.
type Locker interface {
	// TryAcquire makes one attempt to take key for token until ttl has passed.
	// If another token holds key, nothing changes. If token itself holds it,
	// that is a grant like any other, with a fence of its own; the lease is
	// extended to at least ttl from now, and never shortened.
	TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error)

	// Renew extends the lease to at least ttl from now, and never shortens it. It
	// reports whether token held key. If it did not, nothing changes: a lease
	// that has ended is never revived.
	Renew(ctx context.Context, key, token string, ttl time.Duration) (held bool, err error)

	// Release ends token's lease and removes it from the queue; it reports
	// whether token held key. If token has neither, nothing changes. It does not
	// matter which client acquired the key, or waits for it. A wait for token
	// that is still under way may end then, or take a new place.
	Release(ctx context.Context, key, token string) (held bool, err error)
}

// An Attempt is the store's answer to an attempt to take a key.
type Attempt struct {
	// Acquired says that the token holds the key now.
	Acquired bool

	// Since is an instant of this process's clock, from [time.Now], such that
	// the store keeps this grant at least until Since+ttl. Zero stands for the
	// instant at which the call was made.
	//
	// Beside an error, Since is when the store last answered that another holds
	// the key. Zero stands for the instant at which the call returned.
	Since time.Time

	// Fence is the number of this grant, larger than that of every earlier
	// grant of the key by at least 8; 0 where the store has no fences.
	Fence int64

	// Holder is the exact token of the present holder, if the key was not
	// acquired and the store reports it. An Attempt that is not zero may be set
	// with an error: the store had already answered "held".
	Holder string

	// Remaining is how long the lease of the present holder still lasts, if
	// the key was not acquired: 0 if unknown, negative if it never ends.
	Remaining time.Duration
}

// An Acquirer is a [Locker] whose store queues waiters and hands the lock over to
// them. Like all optional interfaces of this package it is found with a type
// assertion, and a method that answers [errors.ErrUnsupported] is treated as if it
// were not there.
type Acquirer interface {
	// Acquire takes key for token, waiting until it is free or ctx ends. It
	// returns an Attempt that is Acquired, and whose Since tells when, or an
	// error. The lease begins with the grant. If token itself holds key, it is
	// granted at once, as by TryAcquire, whoever waits. Other methods treat a
	// waiting token as not holding key. After an error the caller releases token,
	// unless the error says that nothing is left, so Acquire need not clean up. But
	// if the caller has died, what its waits have left must not hold others up for
	// longer than seconds. While a token waits, the caller must not use it for
	// another key.
	//
	// If ctx ends the wait, Acquire returns the error of ctx, and an Attempt whose
	// Holder, Remaining and Since are the store's last answer. If the last call of
	// the wait has failed, or has had no reply for a second, the error wraps two
	// (Unwrap() []error): first the error of ctx, then why. From these the Client
	// tells a key that is held from a store that is away.
	//
	// After a [NoEffectError] beside an Attempt that tells the holder, only the
	// place in the queue may be left: one Release that is answered ends it. After
	// one beside the zero Attempt nothing is left.
	Acquire(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error)
}

// A BatchRenewer is a [Locker] that renews many leases in one round trip.
type BatchRenewer interface {
	// RenewBatch does what Renew does for each element of batch, independently
	// of the others, and returns the results in the order of the batch. If a lease
	// appears twice, the longest TTL applies. A batch may be of any size, and
	// have leases in common with others that are renewed at the same time. It is
	// not changed; the results are the caller's. An error says that the outcome
	// of all of them is unknown. If only a part of the store does not answer, the
	// errors belong to its elements, soon enough for the others to be repeated.
	RenewBatch(ctx context.Context, batch []Renewal) ([]RenewResult, error)
}

// A Renewal is one element of a batch for a [BatchRenewer].
type Renewal struct {
	Key, Token string
	TTL        time.Duration
}

// A RenewResult is what [Locker.Renew] would have returned.
type RenewResult struct {
	Held bool
	Err  error
}

// An Inspector is a [Locker] that can tell who holds a key.
type Inspector interface {
	// Inspect returns who holds key, and for how long still, and changes
	// nothing.
	Inspect(ctx context.Context, key string) (Hold, error)
}

// A Hold is the answer of an [Inspector].
type Hold struct {
	Held      bool
	Token     string        // of the holder; empty if unknown
	Remaining time.Duration // 0 if unknown, negative if it never ends
	Waiting   int           // how many wait in the store's queue; 0 where it has none
}

// Forward is embedded by Lockers that are built around another Locker. It
// passes every method on to it, the optional ones too, so that a decorator
// which changes one method hides none of the others:
//
//	type counting struct {
//		dlock.Forward
//		attempts atomic.Int64
//	}
//
//	func (c *counting) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
//		c.attempts.Add(1)
//		return c.Forward.TryAcquire(ctx, key, token, ttl)
//	}
//
// An optional method that the inner Locker does not have answers
// [errors.ErrUnsupported].
type Forward struct{ Locker }

var (
	_ Locker       = Forward{}
	_ Acquirer     = Forward{}
	_ BatchRenewer = Forward{}
	_ Inspector    = Forward{}
)

// Acquire calls the Acquire of the inner Locker, if it is an [Acquirer].
func (f Forward) Acquire(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error) {
	if a, ok := f.Locker.(Acquirer); ok {
		return a.Acquire(ctx, key, token, ttl)
	}
	return Attempt{}, errors.ErrUnsupported
}

// RenewBatch calls the RenewBatch of the inner Locker, if it is a [BatchRenewer].
func (f Forward) RenewBatch(ctx context.Context, batch []Renewal) ([]RenewResult, error) {
	if r, ok := f.Locker.(BatchRenewer); ok {
		return r.RenewBatch(ctx, batch)
	}
	return nil, errors.ErrUnsupported
}

// Inspect calls the Inspect of the inner Locker, if it is an [Inspector].
func (f Forward) Inspect(ctx context.Context, key string) (Hold, error) {
	if i, ok := f.Locker.(Inspector); ok {
		return i.Inspect(ctx, key)
	}
	return Hold{}, errors.ErrUnsupported
}
