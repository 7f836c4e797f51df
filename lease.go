package dlock

import (
	"context"
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
// A lease ends once, by Release or Detach, or by being lost: then its contexts
// end, Done is closed, and Err tells which. Printed or logged, a Lease shows its
// key and fence, never its token.
type Lease struct {
	keeper  *keeper
	options *options
	key     string
	token   string
	fence   int64
	step    int             // how many times it was passed on since the grant
	values  context.Context // the values of Acquire's ctx; it never ends
	granted time.Time       // when it was handed to its holder
	event   event           // of the keeper's agenda

	mu       sync.Mutex
	extended time.Time // when the request was sent that was acknowledged last
	deadline time.Time
	wall     time.Time     // the deadline on the wall clock
	renewAt  time.Time     // when a renewal is due; zero if none is, or one is on its way
	failure  error         // of the last renewal, if it failed
	group    int           // of those that are renewed together
	err      error         // nil while held
	done     chan struct{} // made when it is asked for
	contexts map[context.Context]context.CancelCauseFunc

	busy bool          // a call for this lease is on its way
	idle chan struct{} // closed when it returns; made by those who wait for that

	release release
}

// A release is how far the release of a lease has come.
type release struct {
	sent    bool  // a call may have reached the store
	owed    bool  // it is left to the keeper
	settled bool  // the store has answered, or need not be asked
	verdict error // of that answer: nil or ErrLost
	failure error // of the last call, if there was no answer
}

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
// is certain to be held, unless the store loses data. Renewals move it on.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
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
// or detached, or an error that matches [ErrLost] and tells how it was lost.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.look()
}

// Context returns a context for work that needs the lock: it ends with parent or
// with the lease, whichever is first, and [context.Cause] returns parent's cause
// or the lease's Err.
func (l *Lease) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look() != nil {
		cancel(l.err)
		return ctx
	}
	if l.contexts == nil {
		l.contexts = make(map[context.Context]context.CancelCauseFunc)
	}
	l.contexts[ctx] = cancel
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.contexts, ctx)
	})
	return withLease(ctx, l)
}

// String returns the key and the fence, not the token.
func (l *Lease) String() string { return fmt.Sprintf("lease %q (fence %d)", l.key, l.fence) }

// Format prints String, whatever the verb.
func (l *Lease) Format(s fmt.State, _ rune) { io.WriteString(s, l.String()) }

// LogValue returns the key and the fence, not the token.
func (l *Lease) LogValue() slog.Value {
	return slog.GroupValue(slog.String("key", l.key), slog.Int64("fence", l.fence))
}
