package rediscore

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock"
)

// WithReplicas makes grants and renewals count only when n replicas of the master have them. The
// Locker sends WAIT behind each script that may grant or renew, on the same connection and in the
// same round trip. Replicas that do not answer within timeout count as missing. The call then
// fails with a [*ReplicasError]: a lease that was just granted must be released, as after any
// error whose outcome is unknown (a [dlock.Client] does so), and one that was to be renewed keeps
// its old deadline. Releases do not wait for replicas.
//
// With n = all replicas of a master, a failover loses no lease that a client relies on. (WAIT also
// counts replicas that cannot be promoted, so n must count them too.) But as long as one of them is
// away, nothing is granted or renewed. With a smaller n, a replica without the lease may be
// promoted, and an old master with n replicas may go on granting. A call takes longer by the round
// trip from the master to the replicas. A handover also takes one from the waiter to the master:
// its message is only a hint then, and the waiter asks.
//
// The replicas' clocks decide when a lease expires after a failover, so they must be as good as
// the master's. The timeout should be shorter than the time that the client library gives a
// call. n may be 0, which is the default. A negative n, or a timeout below 1 ms, is refused: all
// methods fail with [dlock.ErrInvalid]. So do they if the [Conn] is not a [Replicator].
func WithReplicas(n int, timeout time.Duration) Option {
	return func(l *Locker) {
		l.replicas = nil
		conn := l.conn.conn
		_, ok := conn.(Replicator)
		switch {
		case n < 0:
			l.refuse("WithReplicas(%d, %v): a negative number", n, timeout)
		case n == 0:
		case timeout < time.Millisecond:
			l.refuse("WithReplicas(%d, %v): a timeout of less than 1ms", n, timeout)
		case conn != nil && !ok:
			l.refuse("WithReplicas(%d, %v): %T cannot ask for replicas", n, timeout, conn)
		default:
			l.replicas = &Replication{Replicas: n, Timeout: timeout}
		}
	}
}

// A Replicator is a [Conn] that can ask a master whether its replicas have what was written.
type Replicator interface {
	// EvalReplicated makes calls as EvalAll does. Behind the calls for a master it sends WAIT on
	// the same connection, which nobody else uses meanwhile. It sets Replicas of each result that
	// is no error to the reply, or NoWait to the error of WAIT.
	EvalReplicated(ctx context.Context, calls []Call, results []Result, wait Replication)
}

// A Replication says for how many replicas to wait, and for how long.
type Replication struct {
	Replicas int
	Timeout  time.Duration
}

// Milliseconds returns the time-out for WAIT: less than Timeout if ctx ends before, and at least 1,
// since 0 means to wait for ever.
func (r Replication) Milliseconds(ctx context.Context) int64 {
	timeout := r.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	return max(timeout.Milliseconds(), 1)
}

// A ReplicasError says that a lease was granted or renewed, but not on as many replicas as
// [WithReplicas] asks for. It may be lost in a failover.
type ReplicasError struct {
	Got, Want int
	Timeout   time.Duration
	Err       error // of WAIT, or nil
}

// Error returns a text with the numbers and the time-out, or with the error of WAIT.
func (e *ReplicasError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("the master has the lease, and WAIT for %d replicas fails: %v", e.Want, e.Err)
	}
	return fmt.Sprintf("the master has the lease, and %d of %d replicas have it within %v", e.Got, e.Want, e.Timeout)
}

// Unwrap returns the error of WAIT, if any, as one of several: it says nothing about the effect of
// the call.
func (e *ReplicasError) Unwrap() []error {
	if e.Err == nil {
		return nil
	}
	return []error{e.Err}
}

// replication returns for which replicas the calls of a flight wait, or nil.
func (l *Locker) replication(calls []Call) *Replication {
	if l.replicas == nil || kinds[calls[0].Script] == others {
		return nil
	}
	return l.replicas
}

// count turns what was granted or renewed on too few replicas into an error, if the calls wait for replicas.
func (l *Locker) count(calls []Call, results []Result) {
	wait := l.replication(calls)
	for i, r := range results {
		if wait != nil && r.Err == nil && holds(r.Reply) && (r.NoWait != nil || r.Replicas < wait.Replicas) {
			err := error(&ReplicasError{r.Replicas, wait.Replicas, wait.Timeout, r.NoWait})
			if forbidden(r.NoWait) || l.conn.unsupported(r.NoWait) { // of no use, but the master has the lease
				err = fmt.Errorf("%w: the server, a proxy or the rights of the Redis user do not allow WAIT, which WithReplicas needs: %w", dlock.ErrInvalid, err)
			}
			results[i] = Result{Err: err}
		}
	}
}

// holds reports whether the reply of a script that may grant says that the token holds the lock.
func holds(reply any) bool {
	switch r := reply.(type) {
	case int64: // a fence, or whether a lease was renewed
		return r != 0
	case []any: // of acquire.lua it begins with the token of another
		state, ok := r[0].(int64)
		return ok && (state == answerGranted || state == answerFound)
	}
	return false
}
