package dlock

import (
	"context"
	"errors"
	"time"
)

// A Locker is a store that keeps leases: a backend. Applications use a [Client]; only authors
// of backends and decorators call or implement Locker.
//
// Each method is one operation that takes effect at one instant. A Locker has no policy: the
// Client makes the tokens, waits, retries and renews. Keys have 1 to 1,024 bytes, tokens are
// not empty, and both may contain any bytes. TTLs are whole milliseconds between 1 ms and 365
// days. A lease ends when its TTL has passed, for all methods at the same instant, however
// many leases there are. One token may hold several keys; their leases are independent. A
// Locker is safe for concurrent use.
//
// ctx limits only the call: a lease outlives the ctx of the call that granted it. If ctx is
// already done, nothing is sent and ctx.Err() is returned, not its cause. An error means that
// the outcome is unknown: the operation may have taken effect, or may do so later. A
// [NoEffectError] says that it has not, and will not; [NoEffect] names other errors that say the
// same. An [UnansweredError] says that the outcome may become known later. An error that matches
// [ErrClosed] says that no later call can succeed.
//
// Package conformance tests all of this.
//
// A Locker that takes only shorter TTLs is a [TTLLimiter].
type Locker interface {
	// TryAcquire makes one attempt to take key for token until ttl has passed. If another
	// token holds key, nothing changes. If token itself holds it, that is a grant like any
	// other, with its own fence; the lease is extended to at least ttl from now, and never
	// shortened. If key is empty, nothing changes, and the error matches [ErrInvalid]; the same
	// holds for [Acquirer].
	TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error)

	// Renew extends the lease to at least ttl from now, and never shortens it. It reports
	// whether token held key. If it did not, nothing changes: a lease that has ended is never
	// revived.
	Renew(ctx context.Context, key, token string, ttl time.Duration) (held bool, err error)

	// Release ends token's lease and removes token from the queue; it reports whether token
	// held key. If token has neither, nothing changes. Any client may release a token, not
	// only the one that acquired key or waits for it. A wait for token that is still under
	// way may end then, or take a new place in the queue. See [Acquirer] for when a token is
	// not used again after its Release.
	Release(ctx context.Context, key, token string) (held bool, err error)
}

// An Attempt is the store's answer to an attempt to take a key.
type Attempt struct {
	// Acquired says that the token holds the key now.
	Acquired bool

	// Since is an instant of this process's clock, from [time.Now]. The store keeps this
	// grant at least until Since+ttl. Zero means the instant at which the call was made.
	//
	// If there is an error too, Since is when the store last answered that another holds the
	// key. Zero means the instant at which the call returned.
	Since time.Time

	// Fence is the number of this grant. It exceeds that of every earlier grant of the key by
	// at least 8. It is 0 if the store has no fences.
	Fence int64

	// Degraded says that a stand-in has answered, since the store is away: nobody but this
	// process knows of its grants. If there is an error too, nothing is left in the store's
	// queue. See package backend/breaker.
	Degraded bool

	// Free says that the key was not acquired though no other token holds it or is next for it: another key of
	// its set was held. See [SetAcquirer].
	Free bool

	// Holder is the exact token of the current holder, if the key was not acquired and the
	// store reports it. A nonzero Attempt may come with an error: the store had already
	// answered "held".
	Holder string

	// Remaining is the remaining time of the current holder's lease, if the key was not
	// acquired: 0 if unknown, negative if the lease never ends.
	Remaining time.Duration

	// HeldSince is when the current holder was granted the key, if the key was not acquired: on the clock of the
	// store, or on that of the holder. A later grant to the same token does not change it. It is zero if unknown. The
	// Client then shows when the Holder's token was made, unless that token waited in the store's queue.
	HeldSince time.Time
}

// An Acquirer is a [Locker] whose store queues waiters and hands the lock over to them. Like
// all optional interfaces of this package, it is found by a type assertion. A method that
// returns [errors.ErrUnsupported] is treated as missing.
type Acquirer interface {
	// Acquire takes key for token, waiting until it is free or ctx ends. It returns an error, or an
	// Attempt that is Acquired, with the Since of the grant: the lease begins then. If token itself
	// holds key, it is granted at once, as by TryAcquire, even if others wait. Other methods treat a
	// waiting token as not holding key. While a token waits, the caller must not use it for another
	// key or another wait. A token that has waited for key and was released is not used for key again,
	// but Release may be repeated: from then on a store may release whatever the token is granted, or
	// refuse the token with [ErrReleased].
	//
	// Acquire need not clean up: after an error the caller releases token, unless the error
	// says that nothing is left. If the caller has died, what its waits left behind delays
	// others by a few seconds at most.
	//
	// If ctx ends the wait, Acquire returns the error of ctx, and an Attempt with the Holder,
	// Remaining and Since of the store's last answer. If the wait's last call failed, or had
	// no reply for a second, the error wraps two (Unwrap() []error): first the error of ctx,
	// then the reason. This is how the Client distinguishes a key that is held from a store
	// that is away.
	//
	// After a [NoEffectError] with a nonzero Attempt, at most the place in the queue is left:
	// one Release that is answered ends it. After one with the zero Attempt nothing is left.
	Acquire(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error)
}

// A BatchRenewer is a [Locker] that renews many leases in one round trip. The Client assumes
// that it also combines other calls that are in flight at the same time: [Client.AcquireAll] makes all of its calls at once.
type BatchRenewer interface {
	// RenewBatch does what Renew does for each element of batch, independently of the others,
	// and returns the results in the order of the batch. If a lease appears twice, the
	// longest TTL applies. A batch may have any size, and may share leases with a batch that
	// is renewed at the same time. RenewBatch does not change batch; the results belong to
	// the caller. An error says that the outcome of all elements is unknown. If only a part
	// of the store does not answer, the errors are in the results, early enough to retry
	// these elements.
	RenewBatch(ctx context.Context, batch []Renewal) ([]RenewResult, error)
}

// A Renewal is one element of a batch for a [BatchRenewer].
type Renewal struct {
	Key, Token string
	TTL        time.Duration
}

// A RenewResult is what [Locker.Renew] would return.
type RenewResult struct {
	Held bool
	Err  error
}

// A SetAcquirer is a [Locker] that takes several keys in one operation. [Client.AcquireAll] asks it first.
type SetAcquirer interface {
	// TryAcquireSet takes all keys of set at one instant, or none. It returns an Attempt for each element, in the
	// order of set. If it takes the keys, all are Acquired, each with its own Fence, as by TryAcquire. If another
	// token holds one of the keys, or waits in the queue for it, nothing changes: each Attempt says that its key is
	// Free, or who holds it. A key that a token of set holds itself is granted, as by TryAcquire.
	//
	// A set has at least one element, and no key twice: otherwise the error matches [ErrInvalid]. TryAcquireSet does
	// not change set. An error says that the outcome of all elements is unknown. It returns [errors.ErrUnsupported],
	// and nothing changes, if it cannot take these keys in one operation: then the Client makes one attempt for
	// each.
	//
	// [Forward] does not pass it on: a decorator of TryAcquire would not see these attempts.
	TryAcquireSet(ctx context.Context, set []Acquisition) ([]Attempt, error)
}

// An Acquisition is one element of a set for a [SetAcquirer].
type Acquisition struct {
	Key, Token string
	TTL        time.Duration
}

// An Inspector is a [Locker] that can say who holds a key.
type Inspector interface {
	// Inspect returns the current holder of key and its remaining time, and changes nothing.
	Inspect(ctx context.Context, key string) (Hold, error)
}

// A Hold is the answer of an [Inspector].
type Hold struct {
	Held      bool
	Token     string        // of the holder; empty if unknown
	Remaining time.Duration // of the lease; 0 if unknown, negative if it never ends
	Since     time.Time     // of the holder's grant, as the HeldSince of an [Attempt]; zero if unknown
	Waiting   int           // in the store's queue; 0 if it has none
}

// A TTLLimiter is a [Locker] whose longest TTL is less than 365 days. It fails with
// [ErrInvalid] for a longer one. The Client refuses a longer [WithMinHold], which the store
// would not keep.
type TTLLimiter interface {
	// LongestTTL returns the longest TTL that the Locker takes.
	LongestTTL() time.Duration
}

// Forward is embedded by a Locker around another Locker. It passes on every method, even the optional ones
// except TryAcquireSet, so a decorator that changes one hides no other. Without TryAcquireSet,
// [Client.AcquireAll] makes an attempt for each key, and the decorator's TryAcquire sees each:
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
// If the inner Locker lacks an optional method, Forward returns [errors.ErrUnsupported] for
// it. The LongestTTL is then 365 days.
type Forward struct{ Locker }

var (
	_ Locker       = Forward{}
	_ Acquirer     = Forward{}
	_ BatchRenewer = Forward{}
	_ Inspector    = Forward{}
	_ TTLLimiter   = Forward{}
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

// LongestTTL calls the LongestTTL of the inner Locker, if it is a [TTLLimiter].
func (f Forward) LongestTTL() time.Duration { return longestTTL(f.Locker) }

func longestTTL(l Locker) time.Duration {
	if limiter, ok := l.(TTLLimiter); ok {
		return limiter.LongestTTL()
	}
	return maxTTL
}
