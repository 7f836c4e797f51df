package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// A MajorityError says that no majority of the nodes decided a call. Its outcome is unknown,
// unless a [dlock.NoEffectError] is around it.
type MajorityError struct {
	// Quorum is how many nodes would have been needed.
	Quorum int

	// Nodes has an error for each node that did not count, in the order of New, and nil for the
	// others. A node's time-out does not match [context.DeadlineExceeded], which is for the
	// caller's.
	Nodes []error

	// Wait is how long it takes until a majority is old enough to count. It is 0 if the call did
	// not fail because of the guard.
	Wait time.Duration

	cause error // what so many nodes said that no majority is left; or nil
}

// Error names each node that did not count.
func (e *MajorityError) Error() string {
	var nodes []string
	for i, err := range e.Nodes {
		if err != nil {
			nodes = append(nodes, fmt.Sprintf("node %d: %v", i, err))
		}
	}
	text := fmt.Sprintf("%d of %d nodes counted, %d are needed", len(e.Nodes)-len(nodes), len(e.Nodes), e.Quorum)
	if e.Wait > 0 {
		text += fmt.Sprintf("; a majority is old enough in %v", e.Wait.Round(time.Millisecond))
	}
	return text + ": " + strings.Join(nodes, "; ")
}

// Unwrap returns [dlock.ErrInvalid], [dlock.ErrClosed] or [errors.ErrUnsupported] if so many
// nodes said it that the others are no majority, else nil.
func (e *MajorityError) Unwrap() error { return e.cause }

// Timeout reports whether a majority might have decided the call with more time: nodes had not
// answered, or a split vote was not settled.
func (e *MajorityError) Timeout() bool {
	n := 0
	for _, err := range e.Nodes {
		var timeout interface{ Timeout() bool }
		if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			n++
		}
	}
	return n >= e.Quorum
}

var (
	errSplit    error = timeout("its votes went to several tokens")
	errSpoilt   error = timeout("a release of this token had no answer")
	errRepeated error = timeout("says no, but an earlier request of this call had no answer")
	errNoVote         = errors.New("granted by a stand-in")
	errPending  error = timeout("no answer yet")
)

// A timeout is why a node did not count in time.
type timeout string

func (e timeout) Error() string { return string(e) }
func (timeout) Timeout() bool   { return true }

// youngError is why the answer of a node does not count because of the guard.
type youngError struct{ wait time.Duration }

func (e *youngError) Error() string {
	return fmt.Sprintf("has forgotten its leases, and counts in %v", e.wait.Round(time.Millisecond))
}

// failure returns the error of a call that was not decided. errs has an error for each node
// that did not count. The call had no effect if all nodes say so.
func (l *Locker) failure(errs []error) error {
	e := &MajorityError{Quorum: l.quorum, Nodes: errs}
	unsent, temporary, failed := true, false, 0
	said := make(map[error]int)
	var waits []time.Duration
	for _, err := range errs {
		switch err {
		case nil, errSplit, errSpoilt, errRepeated: // not by the guard
			waits = append(waits, 0)
		}
		if err == nil {
			unsent = false
			continue
		}
		failed++
		var none *dlock.NoEffectError
		if errors.As(err, &none) {
			temporary = temporary || none.Temporary
		}
		unsent = unsent && noEffect(err)
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
	if unsent && failed == len(errs) {
		return &dlock.NoEffectError{Err: e, Temporary: temporary && e.cause == nil}
	}
	return e
}

// noEffect reports whether an error of a node says that its call had no effect.
func noEffect(err error) bool {
	var none *dlock.NoEffectError
	var dial *net.OpError
	return errors.As(err, &none) || errors.As(err, &dial) && dial.Op == "dial" ||
		errors.Is(err, errors.ErrUnsupported) || errors.Is(err, dlock.ErrInvalid)
}

// uncertain reports whether a request that failed with err may have had an effect, or may still have
// one.
func uncertain(err error) bool { return err != nil && err != errSpoilt && !noEffect(err) }

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
	hidden := timeout(fmt.Sprintf("no answer within %v", limit))
	var none *dlock.NoEffectError
	if errors.As(err, &none) {
		return &dlock.NoEffectError{Err: hidden}
	}
	return hidden
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w %s", dlock.ErrInvalid, fmt.Sprintf(format, args...))
}
