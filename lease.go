package dlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// A Lease is a lock that is held. Until its [Lease.Deadline] nobody else is
// granted the lock, and in the background the Client moves the deadline on for
// as long as the lease is held. All methods may be called by any number of
// goroutines.
//
// A lease ends once: by Release or Detach, by [Client.Shutdown], or by being lost. Then
// its contexts end, Done is closed, and Err tells which. Printed or logged, a Lease shows
// its key and fence, never its token.
type Lease struct {
	keeper  *keeper
	options *options
	key     string
	token   string
	fence   int64
	step    int             // how many times it was detached and adopted since the grant
	values  context.Context // the values of Acquire's ctx; it never ends
	granted time.Time       // when it was handed to its holder

	inherited time.Duration // what was left of the giver's lease, which may be longer than the TTL

	// The keeper's, and guarded by its mutex.
	event   event     // of the agenda
	counted bool      // it has been on the agenda
	queued  bool      // it is due for a renewal
	dueBy   time.Time // the deadline that it had then

	mu       sync.Mutex
	extended time.Time // when the request was sent that was acknowledged last
	deadline time.Time
	wall     time.Time // the deadline on the wall clock
	renewAt  time.Time // when a renewal is due; zero if none is
	trouble  trouble   // of its renewals
	err      error     // nil while held
	ended    time.Time // what Deadline returns since then
	done     chan struct{}
	lives    map[<-chan struct{}]*life // of its contexts, by the Done of their parents

	release release
}

// drift is what is taken off a TTL, for clocks that do not run at the same
// speed. It is that of the Redlock algorithm.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// newLease makes the lease that was granted to a for a TTL, which may be shorter
// than that of the options.
func newLease(a *acquisition, grant Attempt, ttl time.Duration) *Lease {
	l := &Lease{
		keeper:  a.client.keeper,
		options: &a.client.options,
		key:     a.key,
		token:   a.token,
		fence:   grant.Fence,
		values:  withoutCancel(a.ctx),
		granted: a.asked,
	}
	l.event.lease = l
	l.extend(grant.Since, ttl)
	l.renewAt = l.extended.Add(ttl / 3)
	if ttl < l.options.ttl {
		l.renewAt = l.granted.Add(firstRenewal)
	}
	return l
}

func withoutCancel(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx // it never ends anyway
	}
	return context.WithoutCancel(ctx)
}

// Key returns the name of the lock.
func (l *Lease) Key() string { return l.key }

// Token returns the secret of this lease: whoever knows it can release the lock.
func (l *Lease) Token() string { return l.token }

// Fence returns the number of this grant, larger than that of every earlier
// grant of the same key, or 0 if the store has no fences. Sent along with each
// write, it lets the resource that is written to refuse a holder whose lease was
// lost: it remembers the largest fence it has seen, and refuses smaller ones.
func (l *Lease) Fence() int64 { return l.fence }

// Deadline returns the instant, on this process's clock, until which the lease
// is certain to be held, unless the store loses data. Renewals move it on. It is never
// later than either of the process's clocks allows, and not in the future once the lease
// has ended.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.look() != nil {
		if l.ended.IsZero() {
			l.ended = earlier(l.deadline, now)
		}
		return l.ended
	}
	return earlier(l.deadline, now.Add(l.rest(now)))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Done returns a channel that is closed when the lease ends.
func (l *Lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.look()
	if l.done == nil {
		l.done = make(chan struct{})
		if err != nil {
			close(l.done)
		}
	}
	return l.done
}

// Err returns nil while the lease is held; then [ErrReleased] if it was released
// or detached, a [*LostError], which matches [ErrLost] and tells how it was lost, or
// [ErrClosed] if it was held when [Client.Shutdown] ended.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.look()
}

// String returns the key and the fence, not the token.
func (l *Lease) String() string { return fmt.Sprintf("lease %q (fence %d)", l.key, l.fence) }

// Format prints String, whatever the verb.
func (l *Lease) Format(s fmt.State, _ rune) { io.WriteString(s, l.String()) }

// LogValue returns the key and the fence, not the token.
func (l *Lease) LogValue() slog.Value {
	return slog.GroupValue(slog.String("key", l.key), slog.Int64("fence", l.fence))
}

// start puts a new lease on the agenda. It reports false if the Client has been
// closed.
func (l *Lease) start() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeper.closed.Load() {
		return false
	}
	l.plan(l.renewAt)
	return true
}

// rest returns how long the lease is still certain to be held. Either clock may
// end it, since the monotonic one stops while the machine is suspended. l.mu is
// held, as it is for all unexported methods of a Lease unless they say otherwise.
func (l *Lease) rest(now time.Time) time.Duration {
	return min(l.deadline.Sub(now), l.wall.Sub(now.Round(0)))
}

// look returns the Err of the lease, after a look at the clocks.
func (l *Lease) look() error {
	if l.err != nil {
		return l.err
	}
	if now := time.Now(); l.rest(now) <= 0 {
		l.expire(now)
	} else if l.keeper.abandoned.Load() {
		l.end(ErrClosed)
		if hold := l.holdUntil(now); !hold.IsZero() {
			l.keeper.owe(&debt{lease: l, hold: hold, abandoned: true})
		}
	}
	return l.err
}

// expire ends a lease whose deadline has passed. The store may still keep it for
// a while, so a release is owed, or what is left of the MinHold.
func (l *Lease) expire(now time.Time) {
	reason := LossExpired
	switch {
	case l.overheld(now):
		reason = LossMaxHold
	case l.deadline.After(now):
		reason = LossClock
	}
	l.lose(reason)
	l.keeper.owe(&debt{lease: l, hold: l.holdUntil(now)})
}

func (l *Lease) lose(reason LossReason) { l.end(l.lost(reason)) }

func (l *Lease) lost(reason LossReason) error {
	err := &LostError{Key: l.key, Reason: reason}
	if reason != LossRemoved { // as the store has answered
		err.Err = l.trouble.cause(time.Now())
	}
	return err
}

// end ends the lease, once, and everything that depends on it.
func (l *Lease) end(err error) {
	l.err = err
	l.keeper.forget(l, errors.Is(err, ErrLost))
	if l.done != nil {
		close(l.done)
	}
	for _, life := range l.lives {
		life.cancel(err)
	}
	l.lives = nil
}

func (l *Lease) overheld(now time.Time) bool {
	return l.options.maxHold > 0 && now.Sub(l.granted) >= l.options.maxHold
}

// extend moves the deadline on: the store was asked at since to keep the lease
// for a TTL, and has said that it does.
func (l *Lease) extend(since time.Time, ttl time.Duration) {
	if deadline := since.Add(ttl - drift(ttl)); deadline.After(l.deadline) {
		l.extended, l.deadline, l.wall = since, deadline, deadline.Round(0)
	}
}

// plan puts the lease on the agenda: for a renewal at renewal, if it is to be
// renewed at all, else for its deadline.
func (l *Lease) plan(renewal time.Time) {
	l.renewAt = time.Time{}
	if l.options.renewal && !l.overheld(renewal) && renewal.Before(l.deadline) {
		l.renewAt = renewal
	}
	if l.renewAt.IsZero() {
		l.keeper.schedule(l, l.deadline, 0)
	} else {
		slack := time.Until(l.renewAt) / 4
		if l.trouble.inFlight > 0 || l.trouble.err != nil {
			slack *= 2
		}
		l.keeper.schedule(l, l.renewAt, min(l.options.ttl/12, slack))
	}
}

// due does what the agenda woke the lease for: it ends it, or queues it for a
// renewal. l.mu is not held.
func (l *Lease) due() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look() != nil {
		return
	}
	renew := !l.renewAt.IsZero() && l.keeper.renewing.Err() == nil
	l.renewAt = time.Time{}
	l.keeper.schedule(l, l.deadline, 0)
	if renew {
		if t := &l.trouble; t.inFlight > 0 {
			l.unanswered(outcome{t.sent, time.Now(), t.inFlight})
		}
		l.keeper.queueRenewal(l, l.deadline, l.trouble.queue)
	}
}
