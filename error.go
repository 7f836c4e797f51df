package dlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/dlock-go/dlock/internal/errs"
)

// The errors of this package, to be tested with [errors.Is]. Any other error is either a context's, or the
// store's, as its client library returned it: the store has answered, and refused, for example for lack of memory
// or because of a wrong password, or it has failed with a reply that this module does not know. The text says
// which. Two errors match nothing: a grant whose answer took too much of the TTL (see [WithRenewal]), and a Renew
// that [WithMaxHold] does not allow.
//
// The cause of a ctx may be one of these errors, from another lease or Client. An error of
// this package shows such a cause as text, and does not match it.
var (
	// ErrHeld says that another holds the key. The error is a [*HeldError]. If ctx ended the
	// wait, the error also matches the error of ctx. To treat that case differently, test for
	// the error of ctx first.
	ErrHeld = errors.New("held by another")

	// ErrUnavailable says that the store is away: a call of a Client or a Lease got no answer,
	// because it timed out, or because the connection was refused or broken. The error shows
	// the length of the silence. It also matches the store's error and, if ctx has ended, that
	// of ctx. It says nothing about the outcome: the store may have done what it was asked. A
	// ctx that is cancelled within the first second of silence gives the store too little time:
	// the error then matches that of ctx, and not ErrUnavailable.
	//
	// If the store had said during a wait that the key is held, the error matches [ErrHeld]
	// first. It matches ErrUnavailable when the store has been silent for so long that the last
	// known holder's lease must have ended unless it was renewed: nobody knows then whether
	// the key is held.
	//
	// A store that says it will soon be ready is unavailable, too. With [WithOutage], the error
	// says that no attempt succeeded for that long. From a breaker (package backend/breaker),
	// it says that the store is away, and that nothing was sent.
	ErrUnavailable = errors.New("store unavailable")

	// ErrNested says that the caller's ctx carries a lease of the same key (see
	// [LeaseFromContext]), so Acquire would wait for its own caller.
	ErrNested = errors.New("already held by the caller")

	// ErrLost says that the lease has ended without being released: the store said so, or its
	// deadline has passed. Another may hold the key. The error is a [*LostError].
	ErrLost = errors.New("lease lost")

	// ErrReleased says that the lease was released or detached. From [Client.Break] it says
	// that the holder no longer holds the lock.
	ErrReleased = errors.New("lease released")

	// ErrInvalid says that an argument or an option is out of range, or that the store, a proxy or the rights of the
	// store's user do not allow what an option needs. The error names it. No lock was acquired, and a lease stays as
	// it was. If the call may have left anything in the store, the Client releases it in the background.
	ErrInvalid = errors.New("invalid")

	// ErrClosed says that the Client has been closed, or the backend or store's client that
	// it uses.
	ErrClosed = errors.New("client closed")
)

// A HeldError is an [ErrHeld] with what the store knows about the holder.
type HeldError struct {
	Key       string
	Owner     string        // the holder's label, see [WithOwner]; empty if unknown, or if the holder is not a Client
	Started   time.Time     // when the holder was granted the lock, on its clock or on the store's; zero if unknown, or if the holder is not a Client
	Remaining time.Duration // of the holder's lease when the store answered; 0 if unknown, negative if it never ends
}

// Error returns a text with owner, start and remaining time. It never shows the token.
func (e *HeldError) Error() string {
	s := ErrHeld.Error()
	if e.Owner != "" {
		s = fmt.Sprintf("held by %q", e.Owner)
	}
	if !e.Started.IsZero() {
		s += " since " + e.Started.UTC().Format(time.RFC3339)
	}
	if e.Remaining > 0 {
		s += fmt.Sprintf(", for %v unless renewed", e.Remaining.Round(time.Millisecond))
	}
	return s
}

// Is makes a HeldError match [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// A LostError is an [ErrLost] that says how the lease was lost.
type LostError struct {
	Key    string
	Reason LossReason

	// Err says why renewals have failed; nil if there is nothing to say. It is what the store, or its client library,
	// said last, with the time since the store's last answer. It also shows if a renewal began late, because this
	// process was paused or got no CPU.
	Err error
}

// Error returns a text with key, reason and Err.
func (e *LostError) Error() string {
	return fmt.Sprintf("dlock: %q: %s", e.Key, e.text())
}

func (e *LostError) text() string {
	s := fmt.Sprintf("%v: %v", ErrLost, e.Reason)
	if e.Err != nil {
		s += fmt.Sprintf(" (last renewal: %v)", e.Err)
	}
	return s
}

// Is makes a LostError match [ErrLost].
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns Err.
func (e *LostError) Unwrap() error { return e.Err }

// A LossReason is how a lease was lost.
type LossReason int

// The reasons for a loss.
const (
	LossExpired LossReason = iota + 1 // it was not renewed before its deadline
	LossRemoved                       // the store no longer knows it: it lost data, or somebody else removed the key
	LossMaxHold                       // renewal had stopped after [WithMaxHold], and it ran out
	LossClock                         // the wall clock has passed its deadline: it was set forward, or the machine was suspended
)

// String returns the reason in words.
func (r LossReason) String() string {
	switch r {
	case LossExpired:
		return "not renewed before its deadline"
	case LossRemoved:
		return "the store does not know it any more"
	case LossMaxHold:
		return "held for longer than WithMaxHold allows"
	case LossClock:
		return "the wall clock has passed its deadline"
	}
	return fmt.Sprintf("LossReason(%d)", int(r))
}

// A NoEffectError marks an error of a [Locker]: the call did not take effect, and never will.
// A backend returns one if it sent nothing, if the store refused the call before it began, or
// if each request of a wait that was cut short has been answered. Without it, the outcome of
// a failed call is unknown. The error has the text of Err, and matches what Err matches.
//
// An error that joins several (Unwrap() []error) is not marked by a NoEffectError among them,
// since each may come from a different store.
type NoEffectError struct {
	Err error

	// Temporary says that the store will soon be ready for the same call: for example, it is
	// loading its data, or a replica is being promoted. [Client.Acquire] then repeats its
	// first attempt until its wait ends, for at most 10 s.
	Temporary bool

	// State says that the store refused the call because of its own state, and not because of the
	// call or of the user: for example, it lacks memory, disk space or replicas, or it has too many
	// clients. The state may last. Acquire fails at once, unless it has the patience of
	// [WithOutage]: then it repeats its first attempt.
	State bool
}

// Error returns the text of Err.
func (e *NoEffectError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NoEffectError) Unwrap() error { return e.Err }

// An UnansweredError marks an error of TryAcquire or Acquire of a [Locker]: the call ended, in most cases with ctx, while a
// request was under way whose answer the Locker expects. The outcome is unknown, as after any other error. But the [Client] waits a moment
// for that answer before it releases the token, and it does not repeat that release once the answer has come.
//
// A Locker around another passes the error on, or wraps it. It may not know the answer: then it drops the mark.
type UnansweredError struct {
	Err error

	// Late calls f once, when every request of the call has been answered and none was repeated. f gets what the call
	// would have returned: an Attempt, or an error that [NoEffect] knows, with an Attempt as Acquire returns it. If
	// that can never be said, f gets another error, or is not called. f does not wait, and may be called before Late
	// returns.
	Late func(f func(Attempt, error))
}

// Error returns the text of Err.
func (e *UnansweredError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UnansweredError) Unwrap() error { return e.Err }

// unmark returns the Late of the UnansweredError that marks err, or nil, and err without that mark.
func unmark(err error) (late func(func(Attempt, error)), unmarked error) {
	mark, ok := errs.Find[*UnansweredError](err)
	switch {
	case !ok:
		return nil, err
	case error(mark) == err:
		return mark.Late, mark.Err
	}
	return mark.Late, err
}

// What a call that acquires leaves in the store.
type remains int

const (
	nothing   remains = iota
	something         // which one Release that is answered ends
	unknown           // it may leave something later
)

// leftBy is the only rule for what a call leaves that has this answer: TryAcquire, or Acquire if it is queued.
func leftBy(queued bool, answer Attempt, err error) remains {
	switch {
	case err != nil && !NoEffect(err):
		return unknown
	case err == nil && answer.Acquired, err != nil && queued && answer != (Attempt{}) && !answer.Degraded: // its place in the queue
		return something
	}
	return nothing
}

// NoEffect reports whether err, of a call of a [Locker], says that the call did not take effect,
// and never will: it is a [NoEffectError], it matches [errors.ErrUnsupported] or [ErrInvalid], or
// it is a [net.OpError] whose Op is "dial". Otherwise, the outcome of a failed call is unknown.
// NoEffect follows what err wraps, but does not look into errors that are joined (Unwrap()
// []error): each may be about another request. No other rule in the module decides this.
func NoEffect(err error) bool {
	return errs.InChain(err, func(err error) bool {
		_, marked := err.(*NoEffectError)
		return marked || isDial(err) || err == errors.ErrUnsupported || err == ErrInvalid
	})
}

// Refused reports whether err, of a call of a [Locker], says that the store has answered, and
// refused the call: the user lacks a right, for example. The call had no effect then. The store
// will refuse the same call again, unless it has refused because of its own state (see
// [NoEffectError]). A call that had no connection, that was not sent before its ctx ended, or that was not
// made because the store is away ([ErrUnavailable]), has no answer. A store that will soon be
// ready has refused nothing.
//
// An error about several stores, such as that of a majority, may have a method Answered() bool.
// If that returns false, too few of them have answered, and Refused returns false.
//
// An error with a method Failed() bool that returns true is an answer, too, but the store has refused nothing: the
// answer, such as that of a proxy, does not say what became of the call. A Client does not call that silence. The
// method says nothing about the effect.
func Refused(err error) bool {
	refused := false
	unanswered := errs.InChain(err, func(err error) bool {
		switch e := err.(type) {
		case *NoEffectError:
			refused = !e.Temporary
		case interface{ Answered() bool }:
			return !e.Answered()
		case interface{ Unwrap() []error }: // a wait's: the error of its ctx, and the reason
			all := e.Unwrap()
			return len(all) == 2 && errs.IsContext(all[0]) && !Refused(all[1])
		}
		return isDial(err) || errs.IsContext(err)
	})
	return refused && !unanswered && !errors.Is(err, ErrUnavailable)
}

// answered reports whether err, of a call of a Locker, is about an answer of the store that is no
// refusal: the error has a method Answered() bool that returns true.
func answered(err error) bool {
	return errs.InChain(err, func(err error) bool {
		answer, ok := err.(interface{ Answered() bool })
		return ok && answer.Answered()
	})
}

// failed reports whether err, of a call of a Locker, is an answer of the store that says neither what has become of the
// call nor whether it may succeed later: the error has a method Failed() bool that returns true.
func failed(err error) bool {
	return errs.InChain(err, func(err error) bool {
		answer, ok := err.(interface{ Failed() bool })
		return ok && answer.Failed()
	})
}

// isDial reports whether err itself says that there was no connection.
func isDial(err error) bool {
	op, ok := err.(*net.OpError)
	return ok && op.Op == "dial"
}

// temporary reports whether a Locker's error says that the same call may succeed soon, and had
// no effect.
func temporary(err error) bool {
	return marked(err, func(mark *NoEffectError) bool { return mark.Temporary })
}

// mayPass reports whether a Locker's error says that the store refused because of its own state.
func mayPass(err error) bool {
	return marked(err, func(mark *NoEffectError) bool { return mark.State })
}

// marked reports whether err, or one that it wraps, is such a NoEffectError.
func marked(err error, as func(mark *NoEffectError) bool) bool {
	return errs.InChain(err, func(err error) bool {
		mark, ok := err.(*NoEffectError)
		return ok && as(mark)
	})
}

// hopeless reports whether a Locker's error says that the same call will always fail.
func hopeless(err error) bool {
	return errs.InChain(err, func(err error) bool {
		return err == errors.ErrUnsupported || err == ErrInvalid || err == ErrClosed
	})
}

// wrap is the one place where errors get their context. While the caller's ctx is alive, a
// context error comes from a time limit of this package or the store's client, and is hidden.
// Once ctx has ended, the result matches its error, whatever the store's client returned.
func wrap(ctx context.Context, op, key string, err error) error {
	return fmt.Errorf("dlock: %s %q: %w", op, key, withEnd(ctx, err))
}

// withEnd is wrap without the call and its key.
func withEnd(ctx context.Context, err error) error {
	if end := ended(ctx); end == nil {
		err = errs.HideContext(err)
	} else if !errors.Is(err, end) {
		err = fmt.Errorf("%w: %w", endOf(ctx), err)
	}
	return err
}

func wrapUnlessLost(ctx context.Context, op, key string, err error) error {
	if err == nil || errors.Is(err, ErrLost) {
		return err
	}
	return wrap(ctx, op, key, err)
}

// ended is the error of ctx, also if its deadline has passed and ctx has not noticed: a socket
// with the same deadline may time out a little earlier.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// endOf is the error of a context that has ended, and its cause. If the cause is an error of
// this package, it is about another lease or Client (the context is from [Lease.Context], for
// example), so it is shown as text only.
func endOf(ctx context.Context) error {
	err, cause := ended(ctx), context.Cause(ctx)
	switch {
	case cause == nil, cause == err:
		return err
	case ours(cause) != nil:
		return fmt.Errorf("%w: %v", err, cause)
	case errors.Is(cause, err):
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// ours returns the error of this package that err matches, or nil.
func ours(err error) error {
	for _, target := range []error{ErrHeld, ErrUnavailable, ErrNested, ErrLost, ErrReleased, ErrInvalid, ErrClosed} {
		if errors.Is(err, target) {
			return target
		}
	}
	return nil
}
