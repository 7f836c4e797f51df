package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// failed notes what a failed call says: the store may have answered "held" while the call
// waited in its queue, and the call may have left something in the store.
func (a *acquisition) failed(ctx context.Context, sent time.Time, answer Attempt, err error, queued bool) {
	hasAnswer := answer != (Attempt{})
	a.blame(ctx, sent, err, queued, hasAnswer)
	if hasAnswer {
		a.held, a.contended, a.answered = heldBy(a.key, answer), true, answer.Since
		if a.answered.IsZero() || a.answered.After(a.returned) {
			a.answered = a.returned
		}
	}
	switch {
	case !NoEffect(err):
		a.left.unknown(queued)
	case queued && hasAnswer && !answer.Degraded:
		a.left.some = true // its place in the queue
	}
}

// blame notes why the store did not answer. A call that was cut short is not the store's
// failure, unless it took long. A queue reports failures of its own calls, and silence.
func (a *acquisition) blame(ctx context.Context, sent time.Time, err error, queued, hasAnswer bool) {
	took, reason := a.returned.Sub(sent), besidesEnd(err)
	alive := ended(ctx) == nil
	switch {
	case reason != nil && alive:
		a.failure = err
	case reason != nil:
		a.failure = reason
	case alive: // a time limit of the store's client
		a.failure = noAnswer{took, err}
	case queued && (hasAnswer || took >= attemptTime):
		a.answered, a.failure = a.returned, nil
	case a.failure == nil && took >= attemptTime:
		a.failure = noAnswer{took, err}
	}
}

// verdict is the error of an acquisition that ended with err. ctx is the
// caller's, or one made from it that ends with MaxWait.
func (a *acquisition) verdict(ctx context.Context, err error) error {
	mine := ended(a.ctx) != nil
	waited := !mine && ended(ctx) != nil
	var known error
	switch {
	case errors.Is(err, ErrClosed):
		return err
	case mine || waited:
		known = a.known(time.Now())
	}
	if known == nil {
		known = a.said(err)
	}
	switch {
	case mine && contextError(known):
		return endOf(a.ctx)
	case mine && besidesEnd(known) == nil && errors.Is(known, ended(a.ctx)):
		return known
	case mine:
		return fmt.Errorf("%w: %w", endOf(a.ctx), hideContextErrors(known))
	case !waited:
		return known
	case besidesEnd(known) == nil: // the queue does not say why
		known = noAnswer{a.client.options.maxWait, known}
	}
	return fmt.Errorf("waited for %v: %w", a.client.options.maxWait, known)
}

// said is what is known of the store when an acquisition ends with err, and nothing is known
// about the key.
func (a *acquisition) said(err error) error {
	switch reason := besidesEnd(err); {
	case ours(err) != nil:
		return err
	case a.failure != nil:
		err = a.failure
	case reason != nil: // not of a call
		return reason
	case !a.answered.Before(a.returned): // the store's queue did not fail
		return err
	}
	return said(a.ctx, a.answered, err)
}

// known is what is known about the key when a wait ends, or nil if the store has not said that
// it is held. It is ErrUnavailable if calls have failed since the store's last answer, and the
// lease of that answer has ended.
func (a *acquisition) known(now time.Time) error {
	if a.held == nil {
		return nil
	}
	silence, rest := now.Sub(a.answered), a.client.options.ttl
	if a.held.Remaining != 0 {
		rest = a.held.Remaining
	}
	failure, endless := hideContextErrors(a.failure), rest < 0
	switch {
	case failure == nil:
		return a.held
	case !endless && silence >= rest:
		return unavailable(silence, a.held, failure)
	case Refused(failure):
		return fmt.Errorf("%w; the store refused: %w", a.held, failure)
	}
	failure = hide(failure, ErrUnavailable) // which a breaker says at once: the holder's lease may last
	return fmt.Errorf("%w; the store last answered %v ago: %w", a.held, silence.Round(time.Millisecond), failure)
}

// said is the error of a call of the Locker that failed with err. It is the only rule for what an
// error says of the store: if the store has not answered since the given time, it matches
// ErrUnavailable. ctx is the caller's: if it was cancelled within a second, the store had no time.
func said(ctx context.Context, since time.Time, err error) error {
	silence := time.Since(since)
	switch {
	case err == nil, err == errPanic, err == errNoGrant, ours(err) != nil, errors.Is(err, errors.ErrUnsupported):
		return err
	case Refused(err):
		return fmt.Errorf("the store refused: %w", err)
	case answered(err), silence < attemptTime && ctx.Err() == context.Canceled:
		return err
	}
	return unavailable(silence, nil, err)
}

// unavailable is an ErrUnavailable with the store's last error. It shows the store's last
// answer as text only, since the error must not match ErrHeld. The error of a context is not
// shown: it is that of a time limit, or the caller has it besides.
func unavailable(silence time.Duration, held *HeldError, failure error) error {
	silence = silence.Round(time.Millisecond)
	reason := besidesEnd(failure)
	if reason == nil {
		reason = noAnswer{silence, failure}
	}
	text := "no answer"
	switch {
	case temporary(failure):
		text = "not ready"
	case Refused(failure):
		text = "only refusals"
	case answered(failure): // after WithOutage
		text = "no success"
	}
	if silence > 0 {
		text += fmt.Sprintf(" for %v", silence)
	}
	if held != nil {
		text += fmt.Sprintf(" (the last: %v)", held)
	}
	text += ": " + reason.Error()
	if only := (noAnswer{silence, nil}).Error(); held == nil && reason.Error() == only {
		text = only
	}
	return silent{fmt.Sprintf("%v: %s", ErrUnavailable, text), failure}
}

// silent is an ErrUnavailable that matches what the store's client said.
type silent struct {
	text string
	err  error
}

func (e silent) Error() string        { return e.text }
func (e silent) Is(target error) bool { return target == ErrUnavailable }
func (e silent) Unwrap() error        { return hideContextErrors(e.err) }

// noAnswer is the failure of a call that was cut short after so long, with the error of a context.
type noAnswer struct {
	took time.Duration
	err  error
}

func (e noAnswer) Error() string {
	return fmt.Sprintf("no answer within %v", e.took.Round(time.Millisecond))
}

func (e noAnswer) Unwrap() error { return hideContextErrors(e.err) }

func heldBy(key string, a Attempt) *HeldError {
	owner, started := parseToken(a.Holder)
	return &HeldError{Key: key, Owner: owner, Started: started, Remaining: a.Remaining}
}
