package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// The errors of this package, to be tested with [errors.Is]. Any other error is the
// error of a context, or that of the store as its client library returned it: the store
// did not answer, or refused.
//
// The cause of a ctx may be one of these errors: that of another lease or Client. An error
// of this package shows such a cause as text, and does not match it.
var (
	// ErrHeld says that another holds the key. The error is a [*HeldError]. If ctx
	// ended the wait, the error also matches the error of ctx: test for that
	// first if you treat it differently.
	ErrHeld = errors.New("held by another")

	// ErrUnavailable says that a wait has ended, and that the store had not
	// answered for so long that the lease of the last known holder must have
	// ended unless it was renewed. Nobody knows whether the key is held. The error
	// tells how long the store has been silent, and its last error. (If the first
	// attempt fails at once, Acquire returns the store's error as it is.)
	ErrUnavailable = errors.New("store unavailable")

	// ErrNested says that the caller's ctx carries a lease of the same key (see
	// [LeaseFromContext]), so that Acquire would wait for its own caller.
	ErrNested = errors.New("already held by the caller")

	// ErrLost says that the lease has ended without being released: the store
	// said so, or its deadline has passed. Another may hold the key. The error is a
	// [*LostError].
	ErrLost = errors.New("lease lost")

	// ErrReleased says that the lease was released or detached; from
	// [Client.Break], that the holder does not hold the lock any more.
	ErrReleased = errors.New("lease released")

	// ErrInvalid says that an argument or an option is out of range, or that the
	// store's user lacks the rights to queue. The error names it. The call changed
	// nothing: no lock was acquired, and a lease stays as it was.
	ErrInvalid = errors.New("invalid")

	// ErrClosed says that the Client has been closed, or the backend or the
	// store's client that it uses.
	ErrClosed = errors.New("client closed")
)

// A HeldError is an [ErrHeld] with what the store knows of the holder.
type HeldError struct {
	Key       string
	Owner     string        // label given with [WithOwner]; empty if unknown, or if the holder is not a Client
	Started   time.Time     // when the holder began to acquire the lock, on the holder's clock; zero if unknown
	Remaining time.Duration // of the holder's lease when the store answered; 0 if unknown, negative if it never ends
}

// Error returns a text with owner, start and remaining time, and never with the token.
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

// wrap is the one place where errors get their context. ctx is the caller's. While
// it is alive, a context error can only come from a limit that this package or the
// store's client has set itself, and must not be taken for the caller's own. When
// it has ended, the error matches its error, whatever the client made of that.
func wrap(ctx context.Context, op, key string, err error) error {
	if end := ended(ctx); end == nil {
		err = hideContextErrors(err)
	} else if !errors.Is(err, end) {
		err = fmt.Errorf("%w: %w", endOf(ctx), err)
	}
	return fmt.Errorf("dlock: %s %q: %w", op, key, err)
}

func hideContextErrors(err error) error {
	return hide(err, context.Canceled, context.DeadlineExceeded)
}

// hide returns err if it matches none of the errors to be hidden, and else one that
// reads like err and matches everything that err does but these.
func hide(err error, hidden ...error) error {
	if slices.ContainsFunc(hidden, func(target error) bool { return errors.Is(err, target) }) {
		return hiding{err, hidden}
	}
	return err
}

type hiding struct {
	err    error
	hidden []error
}

func (e hiding) Error() string { return e.err.Error() }

func (e hiding) Is(target error) bool {
	return !slices.Contains(e.hidden, target) && errors.Is(e.err, target)
}

func (e hiding) As(target any) bool { return errors.As(e.err, target) }

// ended is the error of ctx, like ctx.Err. A socket with the deadline of a context
// may time out just before the context notices that it has ended.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// endOf is the error of a context that has ended, and its cause. A cause that is an
// error of this package is of another lease or Client (the context is from
// [Lease.Context], say), and must not be taken for what this call has found: it is told
// as text only.
func endOf(ctx context.Context) error {
	err, cause := ended(ctx), context.Cause(ctx)
	switch {
	case cause == nil, cause == err:
		return err
	case ours(cause):
		return fmt.Errorf("%w: %v", err, cause)
	case errors.Is(cause, err):
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// ours reports whether err matches an error of this package.
func ours(err error) bool {
	for _, target := range []error{ErrHeld, ErrUnavailable, ErrNested, ErrLost, ErrReleased, ErrInvalid, ErrClosed} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// A NoEffectError marks an error of a [Locker]: the call did not take effect, and
// nothing of it is on its way, so that it never will. A backend returns one when it
// sent nothing, when the store refused the call before it began, and when each request
// of a wait that was cut short has been answered. Without it, the outcome of a call
// that fails is unknown. The error reads, and matches, as Err does.
//
// An error that joins several (Unwrap() []error) is not marked by a NoEffectError among
// them, since each may be of another store.
type NoEffectError struct {
	Err error

	// Temporary says that the store will soon be ready for the same call: it is
	// loading its data, say, or a replica is being promoted. [Client.Acquire] then
	// repeats its first attempt until its wait ends, for at most 10 s.
	Temporary bool
}

// Error returns the text of Err.
func (e *NoEffectError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NoEffectError) Unwrap() error { return e.Err }

// A LostError is an [ErrLost] that tells how the lease was lost.
type LostError struct {
	Key    string
	Reason LossReason
	Err    error // of the last renewal, if it failed; else nil
}

// Error tells key, reason and the last renewal's error.
func (e *LostError) Error() string {
	s := fmt.Sprintf("dlock: %q: %v: %v", e.Key, ErrLost, e.Reason)
	if e.Err != nil {
		s += fmt.Sprintf(" (last renewal: %v)", e.Err)
	}
	return s
}

// Is makes a LostError match [ErrLost].
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the error of the last renewal.
func (e *LostError) Unwrap() error { return e.Err }

// A LossReason is how a lease was lost.
type LossReason int

// The reasons for a loss.
const (
	LossExpired LossReason = iota + 1 // it was not renewed before its deadline
	LossRemoved                       // the store does not know it any more: it lost data, or somebody else removed the key
	LossMaxHold                       // it was held for longer than [WithMaxHold] allows, and ran out
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
