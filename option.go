package dlock

import (
	"time"
)

// Limits of what callers may ask for.
const (
	maxKey   = 1024 // bytes
	maxOwner = 256  // bytes
	minTTL   = 10 * time.Millisecond
	maxTTL   = 365 * 24 * time.Hour // a Locker need not keep leases for longer
)

// DefaultTTL is how long a grant lasts without renewal, unless [WithTTL] says
// otherwise.
const DefaultTTL = 30 * time.Second

// An Option changes how a Client acquires and keeps leases. A value out of range
// makes every call of that Client fail with [ErrInvalid].
type Option func(*options)

type options struct {
	ttl     time.Duration
	maxWait time.Duration // negative: as long as ctx lives
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

// WithTTL sets how long a grant lasts if it is not renewed: how long a key stays
// locked after its holder died. The default is [DefaultTTL], the least 10 ms, the
// most 365 days; fractions of a millisecond are cut off. A short TTL frees the keys of the dead
// sooner, and lets a lease be lost to a shorter failure of the store.
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

// WithMaxWait bounds how long Acquire waits for a key. A wait that it ends
// matches [ErrHeld], and no context error, if the key was held to the end. 0
// does not wait at all: Acquire is TryAcquire then. By default only ctx ends a
// wait.
func WithMaxWait(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.refuse("WithMaxWait(%v): negative", d)
		}
		o.maxWait = d
	}
}

// WithMaxHold stops the renewal of a lease when it has been held for d, so that
// work that hangs does not hold its key for ever: the lease is then lost when
// its TTL runs out, at most a TTL later. Nothing is released early, and Renew
// refuses from then on. 0, the default, means no limit.
func WithMaxHold(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.refuse("WithMaxHold(%v): negative", d)
		}
		o.maxHold = d
	}
}

// WithMinHold keeps a key taken until d has passed since the grant, however soon
// the lease is released. Mutual exclusion alone does not make a job run once
// when its replicas start 100 ms apart and the job takes 50 ms; a MinHold longer
// than they are apart does.
//
// Release still returns at once. In the background the Client sees to it that
// the store keeps the key until then, with one renewal where the TTL is too
// short for that, and releases it when the time has come. If the process ends
// after that renewal the store frees the key at the same time; if it ends
// before, when the TTL has passed. 0, the default, frees the key on Release; the
// most is 365 days.
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

// WithRenewal says whether leases are renewed in the background for as long as
// they are held, which is the default. Without, a lease is lost when its TTL has
// passed, unless its holder calls [Lease.Renew].
func WithRenewal(on bool) Option {
	return func(o *options) { o.renewal = on }
}

// WithOwner labels this Client's leases for those who find the key held: who or
// where the holder is, such as a host name. It has up to 256 bytes, and is part
// of what is stored under the key. The default is no label.
func WithOwner(label string) Option {
	return func(o *options) {
		if len(label) > maxOwner {
			o.refuse("WithOwner(%.32q…): %d bytes, more than %d", label, len(label), maxOwner)
		}
		o.owner = label
	}
}

// WithFence(true) makes an acquisition fail with [errors.ErrUnsupported], and hold
// nothing, if the store does not number its grants. The default is false. Use it wherever [Lease.Fence]
// is sent along with a write: a fence that is always 0 would fence nothing.
func WithFence(on bool) Option {
	return func(o *options) { o.fenced = on }
}

// WithBackoff sets how long a waiter pauses before it asks a store that does not
// queue waiters again, or one that failed: after its first unsuccessful attempt
// for backoff(1), then for backoff(2), and so on. A result that is not positive
// ends the wait with [ErrInvalid].
//
// Nil stands for the default. While the store answers that the key is held, each pause is
// between 50 and 250 ms, at random: a waiter asks 6 or 7 times a second, however long it
// waits, and also when the holder's lease is about to end. While the store fails, pauses
// double from 50 ms to about a second. With many waiters for one key, or a store where each
// question costs money, use longer pauses.
func WithBackoff(backoff func(attempt int) time.Duration) Option {
	return func(o *options) { o.backoff = backoff }
}
