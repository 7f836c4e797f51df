package dlock

import (
	"math"
	"time"
)

// Limits of what callers may ask for.
const (
	maxKey   = 1024 // bytes
	maxOwner = 256  // bytes
	minTTL   = 10 * time.Millisecond
	maxTTL   = 365 * 24 * time.Hour // a Locker need not keep leases for longer
)

// DefaultTTL is the TTL of leases unless [WithTTL] sets another.
const DefaultTTL = 30 * time.Second

// An Option changes how a Client acquires and keeps leases. A value out of range
// makes every call of that Client fail with [ErrInvalid].
type Option func(*options)

type options struct {
	ttl     time.Duration
	maxWait time.Duration
	maxHold time.Duration
	minHold time.Duration
	renewal bool
	fenced  bool
	owner   string
	backoff func(attempt int) time.Duration
	err     error // the first value that was out of range
}

// apply returns o changed by opts.
func (o options) apply(opts []Option) options {
	for i, opt := range opts {
		if opt == nil {
			o.refuse("Option %d of %d: nil", i+1, len(opts))
			continue
		}
		opt(&o)
	}
	return o
}

func (o *options) refuse(format string, args ...any) {
	if o.err == nil {
		o.err = invalid(format, args...)
	}
}

// WithTTL sets how long a lease lasts if it is not renewed, and so how long a key stays
// locked after its holder died. The default is [DefaultTTL]. The TTL is at least 10 ms
// and at most 365 days; fractions of a millisecond are cut off. A short TTL frees a dead
// holder's key sooner, but a shorter outage then loses the lease.
func WithTTL(ttl time.Duration) Option {
	return func(o *options) {
		switch {
		case ttl < minTTL:
			o.refuse("WithTTL(%v): less than %v", ttl, minTTL)
		case ttl > maxTTL:
			o.refuse("WithTTL(%v): more than %v", ttl, maxTTL)
		}
		o.ttl = ttl.Truncate(time.Millisecond)
	}
}

// NoLimit is the longest possible duration. WithMaxWait(NoLimit) is the default.
const NoLimit time.Duration = math.MaxInt64

// WithMaxWait limits how long Acquire waits for a key. If the wait reaches the
// limit while the key is held, the error matches [ErrHeld], or [ErrUnavailable] if the
// store has been silent for too long to know, and no context error. With 0, Acquire does
// not wait: it is TryAcquire. However short d is, the first attempt has 1 s for its answer.
// [NoLimit] is the default: then only ctx ends a wait.
func WithMaxWait(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.refuse("WithMaxWait(%v): negative", d)
		}
		o.maxWait = d
	}
}

// WithMaxHold stops the renewal of a lease when d has passed since the grant, so that
// work that hangs does not hold its key for ever. The lease is lost when the TTL then
// runs out, at most one TTL later. Nothing is released early, and Renew refuses from
// then on. When a lease is adopted, the taker's limit applies, and counts from the grant.
// A limit below [WithMinHold] is refused. 0, the default, means no limit.
func WithMaxHold(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.refuse("WithMaxHold(%v): negative", d)
		}
		o.maxHold = d
	}
}

// WithMinHold keeps a key taken until d has passed since the grant, however soon
// the lease is released. Without it, replicas that start the same job 100 ms apart
// run it twice if it takes 50 ms. With a MinHold longer than the time between the
// first start and the last, it runs once.
//
// Release still returns at once. If the TTL ends earlier than d, the Client sends one
// renewal in the background, which makes the store keep the key until d has passed. It
// releases the key then. If the process ends after that renewal, the store frees the key
// at the same time. If the process ends before, the store frees it when the TTL has passed.
//
// A lease that is lost at its deadline, or because the wall clock was set forward, is kept
// in the same way, if the store still knows it. A key that the store has lost or given to
// another is not taken back. When a lease is adopted, the taker's MinHold applies, and
// counts from the grant. While a lease is detached, its key is kept only until
// [Detached.Deadline].
//
// 0, the default, frees the key on Release. The most is 365 days.
func WithMinHold(d time.Duration) Option {
	return func(o *options) {
		switch {
		case d < 0:
			o.refuse("WithMinHold(%v): negative", d)
		case d > maxTTL:
			o.refuse("WithMinHold(%v): more than %v", d, maxTTL)
		}
		o.minHold = d
	}
}

// WithRenewal(false) switches off the renewal of leases in the background. A lease is
// then lost when its TTL has passed, unless its holder calls [Lease.Renew]. The default
// is true.
func WithRenewal(on bool) Option {
	return func(o *options) { o.renewal = on }
}

// WithOwner sets a label that others see when they find the key held by this
// Client: who or where the holder is. [HostOwner] makes one of host and process.
// The label has at most 256 bytes. It shows in errors and logs, and is part of what
// is stored under the key. The default is no label.
func WithOwner(label string) Option {
	return func(o *options) {
		if len(label) > maxOwner {
			o.refuse("WithOwner(%.32q…): %d bytes, more than %d", label, len(label), maxOwner)
		}
		o.owner = label
	}
}

// WithFence(true) makes an acquisition fail with [errors.ErrUnsupported], and hold
// nothing, if the store does not number its grants. Use it wherever [Lease.Fence] is sent
// along with a write: a fence that is always 0 would protect nothing. The default is
// false.
func WithFence(on bool) Option {
	return func(o *options) { o.fenced = on }
}

// WithBackoff sets the pauses of a waiter that polls, or whose store fails: backoff(1)
// after its first attempt, then backoff(2), and so on. If a result is not positive, the
// wait ends with [ErrInvalid].
//
// Nil stands for the default. While the store answers that the key is held, each pause is
// between 50 and 250 ms, at random: a waiter polls 6 or 7 times a second, however long it
// waits. It also polls when the holder's lease runs out. While the store fails, pauses
// double from 50 ms to about a second. With many waiters for one key, or a store where each
// poll costs money, use longer pauses.
func WithBackoff(backoff func(attempt int) time.Duration) Option {
	return func(o *options) { o.backoff = backoff }
}
