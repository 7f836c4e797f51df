package dlock

import (
	"math"
	"time"

	"github.com/dlock-go/dlock/internal/token"
)

// Limits of what callers may ask for.
const (
	maxKey = 1024 // bytes
	minTTL = 10 * time.Millisecond
	maxTTL = 365 * 24 * time.Hour // a Locker need not keep leases for longer
)

// DefaultTTL is the TTL of leases unless [WithTTL] sets another.
const DefaultTTL = 30 * time.Second

// An Option changes how a Client acquires and keeps leases. If its value is out of range,
// every call of that Client fails with [ErrInvalid].
type Option func(*options)

type options struct {
	terms
	maxWait   time.Duration
	ttlFrom   func(key string) time.Duration // nil: the TTL is that of the terms
	outage    time.Duration
	observers []Observer // in the order of their calls
	err       error      // the first value that was out of range
}

// terms are the options that waiters must share to stand in one line (see turns). An option
// belongs here unless its value is each waiter's own.
type terms struct {
	ttl       time.Duration
	maxHold   time.Duration
	minHold   time.Duration
	autoRenew bool
	fenced    bool
	owner     string
	turns     int
	backoff   *func(attempt int) time.Duration // that of one call of WithBackoff; nil: the default
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

// WithTTL sets how long a lease lasts without a renewal, and so how long a key stays locked
// after its holder dies. The default is [DefaultTTL]. The TTL is between 10 ms and 365 days,
// and is cut to whole milliseconds. A short TTL frees a dead holder's key sooner, but a
// shorter outage then loses the lease.
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

// WithTTLFrom sets the TTL of each lease to what f returns for its key when the acquisition
// begins, such as what has been learned about the work: see package observe/learn. It is for
// Clients with [WithRenewal](false), whose work must end within the TTL; others are refused. (A
// renewed lease lasts as long as the work. Its TTL is how long a dead holder blocks the key, and
// says nothing about the work.)
//
// The TTL is at most that of [WithTTL], which is also used if f returns 0 or less. It is at least
// 10 ms, and is cut to whole milliseconds. [Lease.Renew] extends a lease to its own TTL again. f is
// called in the caller's goroutine; for a set, in several at once. Nil, the default, means WithTTL.
func WithTTLFrom(f func(key string) time.Duration) Option {
	return func(o *options) { o.ttlFrom = f }
}

// ttlOf returns the TTL for a lease of key.
func (o *options) ttlOf(key string) time.Duration {
	if o.ttlFrom == nil {
		return o.ttl
	}
	ttl := o.ttlFrom(key)
	if ttl <= 0 {
		return o.ttl
	}
	return min(o.ttl, max(minTTL, ttl.Truncate(time.Millisecond)))
}

// leastRest is how much of a TTL a new lease has left. A renewal may still extend one that has little
// left. Without renewal, the work must fit into it.
func (o *options) leastRest(ttl time.Duration) time.Duration {
	if o.autoRenew {
		return ttl / 10
	}
	return ttl / 2
}

// NoLimit is the longest possible duration. WithMaxWait(NoLimit) is the default.
const NoLimit time.Duration = math.MaxInt64

// WithMaxWait limits how long Acquire waits for a key. If d passes while the key is held, the
// error matches [ErrHeld]. If the store was silent for too long to know that, it matches
// [ErrUnavailable]. It matches no context error. With 0, Acquire does not wait: it makes one
// attempt. However short d is, the first attempt has 1 s for its answer, unless ctx ends sooner.
// The default is [NoLimit]: only ctx ends a wait.
func WithMaxWait(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.refuse("WithMaxWait(%v): negative", d)
		}
		o.maxWait = d
	}
}

// WithOutage gives Acquire patience with a store that cannot be reached, does not answer, or
// refuses because of its own state: it has no memory, for example, or too few replicas. Acquire
// repeats its first attempt for up to d, instead of failing at once. Use it for work that must
// not be skipped because of a failover, such as a nightly job. The patience is part of the
// wait: it ends with ctx and with [WithMaxWait], and TryAcquire has none. When d has passed,
// the error matches [ErrUnavailable], and shows how long nothing succeeded, and the last
// failure. An error that would come again, such as a wrong password, is returned at once, even
// in the middle of an outage. The default is 0.
//
// With it, each acquisition begins with an attempt. Without it, an acquisition joins the store's
// queue at once if its key was waited for within the last second, or if the Client is making 128
// attempts.
//
// Each attempt whose outcome is unknown is released as soon as the store is back.
func WithOutage(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.refuse("WithOutage(%v): negative", d)
		}
		o.outage = d
	}
}

// WithMaxHold stops the renewal of a lease when d has passed since the grant, so that work that
// hangs does not keep its key forever. Nothing is released early: the lease is lost when its
// TTL runs out, at most one TTL later, and until then [Lease.Renew] fails. When a lease is
// adopted, the taker's limit applies, and counts from the grant. A limit below [WithMinHold] is
// refused. The default, 0, means no limit.
func WithMaxHold(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.refuse("WithMaxHold(%v): negative", d)
		}
		o.maxHold = d
	}
}

// WithMinHold keeps a key taken until d has passed since the grant, even if the lease is
// released earlier. Without it, replicas that start the same job 100 ms apart run it twice if
// it takes 50 ms. With a MinHold longer than the time between the first start and the last,
// the job runs once.
//
// Release still returns at once. If the TTL ends before d, the Client sends one renewal in the
// background, which makes the store keep the key until d has passed. The Client releases the
// key then. If the process ends after that renewal, the store itself frees the key at that
// time. If the process ends before it, the store frees the key when the TTL has passed.
//
// A lease that is lost at its deadline, or because the wall clock was set forward, is kept in
// the same way if the store still knows it. A key that the store has lost, or given to
// another, is not taken back. When a lease is adopted, the taker's MinHold applies, and
// counts from the grant. While a lease is detached, its key is kept only until
// [Detached.Deadline].
//
// The default, 0, frees the key on Release. The maximum is 365 days.
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

// WithRenewal(false) turns off the renewal of leases in the background. A lease is then lost when
// its TTL has passed, unless its holder calls [Lease.Renew]. A new lease has at least half of its
// TTL left: if the store's answer takes too long for that, the attempt is repeated once, and fails
// if that is slow, too. (A lease from [Client.Adopt] may have less.) The default is true.
func WithRenewal(on bool) Option {
	return func(o *options) { o.autoRenew = on }
}

// WithOwner sets a label that others see when they find the key held by this Client: who or
// where the holder is. [HostOwner] makes one from host and process. The label has at most 256
// bytes. It appears in errors and logs, and is stored under the key as part of the token. The
// default is no label.
func WithOwner(label string) Option {
	return func(o *options) {
		if len(label) > token.MaxOwner {
			o.refuse("WithOwner(%.32q…): %d bytes, more than %d", label, len(label), token.MaxOwner)
		}
		o.owner = label
	}
}

// WithFence(true) makes an acquisition fail with [errors.ErrUnsupported], and hold nothing,
// if the store does not number its grants. Use it wherever you send [Lease.Fence] along with
// a write: a fence that is always 0 would protect nothing. The default is false.
func WithFence(on bool) Option {
	return func(o *options) { o.fenced = on }
}

// WithLocalTurns lets the goroutines of a process pass a lock on among themselves, up to n
// in a row, without asking the store each time. It is for processes in which many goroutines
// want the same key: the lock changes hands faster, and the store has less work.
//
// With n > 1, the waiters of a Client, and of those made from it by [Client.With], that want
// the same key with the same options (except [WithMaxWait] and [WithOutage]) form a line. The
// line has one place in the store's queue. When the lock is granted to it, the first in line
// gets a lease, and Release passes the lock on to the next. This ends after n holders, after
// as many as stood in line when the grant came, or 100 ms after the grant, whichever is first.
// The next Release frees the lock in the store, or hands it to the store's next waiter.
//
// What changes:
//
//   - Places in the store's queue are served in order, each for up to n goroutines of its
//     process. So up to 2n-1 later goroutines may pass one of another process that is already
//     waiting. Within a line the order is that of arrival.
//   - The holders of one grant share its [Lease.Token], and what [Client.Inspect] and
//     [HeldError] show. Each has its own fence.
//   - A grant has 8 fences, for turns and for [Lease.Detach] together. The last of n holders
//     can be followed by 8-n detached leases: with n = 8 its Detach fails with [ErrInvalid].
//   - A Release that passes the lock on sends nothing. If the store has lost the lock
//     meanwhile, or an operator has broken it, only a later holder finds out, at its first
//     renewal or at the Release that is sent.
//   - A wait whose ctx has ended, or whose [WithMaxWait] has passed, before the Release gets no lease.
//     It may have stood in the line when the grant came: the next one gets its turn.
//   - A wait that ends while others stay in its line reports what the store last said to the
//     line. If the store has been away since, the error may match [ErrHeld] where a wait of its
//     own would find [ErrUnavailable].
//
// With n > 1, the function of [WithBackoff] runs in a goroutine of the Client: a panic in it
// ends the process.
//
// [WithMaxHold] counts for each holder. n is between 1 and 8. The default, 1, turns this off.
// Use 8, or 4 if leases are detached. It has no effect for waiters without renewal in the
// background, with [WithMinHold], or with a MaxHold that ends before the first renewal, nor
// with a store that has no queue. TryAcquire always asks the store.
func WithLocalTurns(n int) Option {
	return func(o *options) {
		if n < 1 || n > token.MaxSteps+1 {
			o.refuse("WithLocalTurns(%d): not between 1 and %d", n, token.MaxSteps+1)
		}
		o.turns = n
	}
}

// WithBackoff sets the pauses of a waiter that polls, or whose store fails: backoff(1) after
// its first attempt, then backoff(2), and so on. If a result is not positive, the wait ends
// with [ErrInvalid].
//
// Nil means the default. While the store answers that the key is held, each pause is random
// between 50 and 250 ms: a waiter polls 6 or 7 times a second, however long it waits. It also
// polls when the holder's lease runs out. [Client.AcquireAll] says what a set does. While the store fails, pauses double from 50 ms to
// about a second. With many waiters for one key, or a store where each poll costs money, use
// longer pauses.
func WithBackoff(backoff func(attempt int) time.Duration) Option {
	if backoff == nil {
		return func(o *options) { o.backoff = nil }
	}
	return func(o *options) { o.backoff = &backoff }
}
