package dlock

import (
	"context"
	"errors"
	"net"
)

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
}

// Error returns the text of Err.
func (e *NoEffectError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NoEffectError) Unwrap() error { return e.Err }

// noEffect reports whether a Locker's error says that its call did not and will not take
// effect, or that there was no connection.
func noEffect(err error) bool {
	return inChain(err, func(err error) bool {
		if op, ok := err.(*net.OpError); ok {
			return op.Op == "dial"
		}
		_, marked := err.(*NoEffectError)
		return marked || err == errors.ErrUnsupported || err == ErrInvalid
	})
}

// temporary reports whether a Locker's error says that the same call may succeed soon, and had
// no effect.
func temporary(err error) bool {
	return inChain(err, func(err error) bool {
		marked, ok := err.(*NoEffectError)
		return ok && marked.Temporary
	})
}

// hopeless reports whether a Locker's error says that the same call will always fail.
func hopeless(err error) bool {
	return inChain(err, func(err error) bool {
		return err == errors.ErrUnsupported || err == ErrInvalid || err == ErrClosed
	})
}

// refused reports whether a Locker's error says that the store has answered, and will refuse
// again: its user lacks a right, for example. A call that had no connection, or was not sent
// before its ctx ended, has no answer.
func refused(err error) bool {
	refused := false
	unsent := inChain(err, func(err error) bool {
		if e, ok := err.(*NoEffectError); ok {
			refused = !e.Temporary
		}
		op, ok := err.(*net.OpError)
		return ok && op.Op == "dial" || err == context.DeadlineExceeded || err == context.Canceled
	})
	return refused && !unsent
}

func inChain(err error, is func(error) bool) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if is(err) {
			return true
		}
	}
	return false
}
