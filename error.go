package dlock

import (
	"errors"
	"fmt"
	"time"
)

// The errors of this package, to be tested with [errors.Is]. Any other error is either a
// context's, or the store's, as its client library returned it: the store has answered, and
// refused, for example for lack of memory or because of a wrong password. Its text says so.
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
	// of ctx. It says nothing of the outcome: the store may have done what it was asked. A ctx
	// that is cancelled within the first second of silence gives the store too little time:
	// the error then matches that of ctx, and not ErrUnavailable.
	//
	// If the store had said during a wait that the key is held, the error matches [ErrHeld]
	// first. It matches ErrUnavailable when the store has been silent for so long that the last
	// known holder's lease must have ended unless it was renewed: nobody knows then whether
	// the key is held.
	//
	// A store that says it will soon be ready is unavailable, too. After [WithOutage],
	// ErrUnavailable says that no attempt succeeded for so long. A breaker (package
	// backend/breaker) says with it that the store is away, and that nothing was sent.
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

	// ErrInvalid says that an argument or an option is out of range, or that the store's user
	// lacks the rights to queue. The error names it. No lock was acquired, and a lease
	// stays as it was.
	ErrInvalid = errors.New("invalid")

	// ErrClosed says that the Client has been closed, or the backend or store's client that
	// it uses.
	ErrClosed = errors.New("client closed")
)

// A HeldError is an [ErrHeld] with what the store knows about the holder.
type HeldError struct {
	Key       string
	Owner     string        // the holder's label, see [WithOwner]; empty if unknown, or if the holder is not a Client
	Started   time.Time     // when the holder began to acquire the lock, on the holder's clock; zero if unknown
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
	Err    error // of the last renewal, if it failed; else nil
}

// Error returns a text with key, reason and the last renewal's error.
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

// Unwrap returns the error of the last renewal.
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
