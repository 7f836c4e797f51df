package dlock

import (
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

// NoEffect reports whether err, of a call of a [Locker], says that the call did not take effect,
// and never will: it is a [NoEffectError], it matches [errors.ErrUnsupported] or [ErrInvalid], or
// it is a [net.OpError] whose Op is "dial". Otherwise, the outcome of a failed call is unknown.
// NoEffect follows what err wraps, but does not look into errors that are joined (Unwrap()
// []error): each may be about another request. It is the only rule for this in the module.
func NoEffect(err error) bool {
	return inChain(err, func(err error) bool {
		_, marked := err.(*NoEffectError)
		return marked || isDial(err) || err == errors.ErrUnsupported || err == ErrInvalid
	})
}

// Refused reports whether err, of a call of a [Locker], says that the store has answered, and
// will refuse the same call again: the user lacks a right, for example. The call had no effect
// then. A call that had no connection, that was not sent before its ctx ended, or that was not
// made because the store is away ([ErrUnavailable]), has no answer. A store that will soon be
// ready has refused nothing.
//
// An error about several stores, such as that of a majority, may have a method Answered() bool.
// If that returns false, too few of them have answered, and Refused returns false.
func Refused(err error) bool {
	refused := false
	unanswered := inChain(err, func(err error) bool {
		switch e := err.(type) {
		case *NoEffectError:
			refused = !e.Temporary
		case interface{ Answered() bool }:
			return !e.Answered()
		case interface{ Unwrap() []error }: // a wait's: the error of its ctx, and the reason
			all := e.Unwrap()
			return len(all) == 2 && contextError(all[0]) && !Refused(all[1])
		}
		return isDial(err) || contextError(err)
	})
	return refused && !unanswered && !errors.Is(err, ErrUnavailable)
}

// answered reports whether err, of a call of a Locker, is about an answer of the store that is no
// refusal: the error has a method Answered() bool that returns true.
func answered(err error) bool {
	return inChain(err, func(err error) bool {
		answer, ok := err.(interface{ Answered() bool })
		return ok && answer.Answered()
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

func inChain(err error, is func(error) bool) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if is(err) {
			return true
		}
	}
	return false
}
