package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// A MajorityError says that no majority of the nodes decided a call. Its outcome is unknown,
// unless a [dlock.NoEffectError] is around it.
type MajorityError struct {
	// Quorum is how many nodes would have been needed.
	Quorum int

	// Names are the names of the nodes, in the order of New: see [WithNames].
	Names []string

	// Nodes has an error for each node that did not count, in the order of New, and nil for the
	// others. A node's time-out does not match [context.DeadlineExceeded], which is for the
	// caller's.
	Nodes []error

	// Wait is how long it takes until a majority is old enough to count. It is 0 if the call did
	// not fail because of the guard.
	Wait time.Duration

	cause error // see Unwrap
}

// Error names each node that did not count.
func (e *MajorityError) Error() string {
	var nodes []string
	for i, err := range e.Nodes {
		if err != nil {
			nodes = append(nodes, fmt.Sprintf("node %s: %v", e.name(i), err))
		}
	}
	text := fmt.Sprintf("%d of %d nodes counted, %d are needed", len(e.Nodes)-len(nodes), len(e.Nodes), e.Quorum)
	if e.Wait > 0 {
		text += fmt.Sprintf("; a majority is old enough in %v", e.Wait.Round(time.Millisecond))
	}
	return text + ": " + strings.Join(nodes, "; ")
}

func (e *MajorityError) name(i int) string {
	if i < len(e.Names) {
		return e.Names[i]
	}
	return strconv.Itoa(i)
}

// Unwrap returns an error that matches [dlock.ErrInvalid], [dlock.ErrClosed] or
// [errors.ErrUnsupported] if so many nodes said it that the others are no majority, else nil.
// It is a joined error if another node may have done what it was asked: then it does not say that
// the call had no effect.
func (e *MajorityError) Unwrap() error { return e.cause }

// Answered reports whether a majority of the nodes answered the call: each of them counted, refused
// the call (see [dlock.Refused]), has forgotten its leases, or decided for another token.
func (e *MajorityError) Answered() bool { return e.count(hasAnswered) >= e.Quorum }

// Failed reports whether a majority of the nodes answered the call, but too many of them with an error that leaves its
// outcome unknown.
func (e *MajorityError) Failed() bool {
	replied := func(err error) bool {
		var failed interface{ Failed() bool }
		return hasAnswered(err) || errors.As(err, &failed) && failed.Failed()
	}
	return !e.Answered() && e.count(replied) >= e.Quorum
}

func (e *MajorityError) count(so func(err error) bool) (n int) {
	for _, err := range e.Nodes {
		if so(err) {
			n++
		}
	}
	return n
}

func hasAnswered(err error) bool {
	var answer interface{ Answered() bool }
	return err == nil || dlock.Refused(err) || errors.As(err, &answer) && answer.Answered()
}

// Timeout reports whether a majority might have decided the call with more time: nodes had not
// answered, or a split vote was not settled.
func (e *MajorityError) Timeout() bool {
	return e.count(func(err error) bool {
		var timeout interface{ Timeout() bool }
		return err == nil || errors.As(err, &timeout) && timeout.Timeout()
	}) >= e.Quorum
}

var (
	errSplit    error = timeout{"its votes went to several tokens", true}
	errSpoilt   error = timeout{"a release of this token had no answer", false}
	errRepeated error = timeout{"says no, but an earlier request of this call had no answer", true}
	errNoVote         = errors.New("granted by a stand-in")
	errPending  error = timeout{"no answer yet", false}
)

// A timeout is why a node did not count in time.
type timeout struct {
	text     string
	answered bool
}

func (e timeout) Error() string  { return e.text }
func (e timeout) Answered() bool { return e.answered }
func (timeout) Timeout() bool    { return true }

// youngError is why the answer of a node does not count because of the guard.
type youngError struct{ wait time.Duration }

func (e *youngError) Error() string {
	return fmt.Sprintf("has forgotten its leases, and counts in %v", e.wait.Round(time.Millisecond))
}

func (*youngError) Answered() bool { return true }

// failure returns the error of a call that was not decided. errs has an error for each node
// that did not count. The call had no effect if all nodes say so, unless earlier requests make
// it unsure.
func (l *Locker) failure(errs []error, unsure bool) error {
	e := &MajorityError{Quorum: l.quorum, Names: slices.Clone(l.names), Nodes: errs}
	noEffect, temporary, state, refusing := !unsure, false, false, 0
	said := make(map[error]int)
	var waits []time.Duration
	for _, err := range errs {
		switch err {
		case nil, errSplit, errSpoilt, errRepeated: // not by the guard
			waits = append(waits, 0)
		}
		if err == nil {
			noEffect = false
			continue
		}
		var none *dlock.NoEffectError
		if noEffect = noEffect && dlock.NoEffect(err); noEffect && errors.As(err, &none) {
			temporary, state = temporary || none.Temporary, state || none.State
			if !none.State && dlock.Refused(err) {
				refusing++
			}
		}
		for _, sentinel := range []error{dlock.ErrInvalid, dlock.ErrClosed, errors.ErrUnsupported} {
			if errors.Is(err, sentinel) {
				said[sentinel]++
			}
		}
		var young *youngError
		if errors.As(err, &young) {
			waits = append(waits, max(0, young.wait))
		}
	}
	for sentinel, n := range said {
		if n > len(errs)-l.quorum {
			e.cause = sentinel
		}
	}
	if len(waits) >= l.quorum {
		e.Wait = nthLargest(waits, len(waits)-l.quorum+1)
	}
	if noEffect {
		again := e.cause == nil && refusing <= len(errs)-l.quorum // the others may become a majority
		return &dlock.NoEffectError{Err: e, Temporary: temporary && again, State: state && again}
	}
	if dlock.NoEffect(e.cause) {
		e.cause = errors.Join(e.cause)
	}
	return e
}

// uncertain reports whether a request that failed with err may have had an effect, or may still have
// one.
func uncertain(err error) bool { return err != nil && err != errSpoilt && !dlock.NoEffect(err) }

// pointless reports whether a node would fail again in the same way.
func pointless(err error) bool {
	return err == errSpoilt || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, dlock.ErrInvalid) || errors.Is(err, dlock.ErrClosed)
}

// hideContext returns the error of a node, which must not look like the end of the caller's
// context.
func hideContext(err error, limit time.Duration) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	hidden := timeout{text: fmt.Sprintf("no answer within %v", limit)}
	if dlock.NoEffect(err) {
		return &dlock.NoEffectError{Err: hidden}
	}
	return hidden
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))
}
