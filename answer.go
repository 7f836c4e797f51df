package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/internal/errs"
)

// facts are what is known of a key, and of the store that keeps it. From them, the error of an acquisition is made.
type facts struct {
	held     *HeldError // the store's last answer, if that was "held"
	answered time.Time  // when the store last answered; before its first answer, when the first attempt was sent
	failure  error      // of the last call; nil if the store answered, or the call was cut short
	returned time.Time  // when the last call did
}

// add adds what others know of the same key.
func (f *facts) add(other facts) {
	switch {
	case other.held != nil && (f.held == nil || !other.answered.Before(f.answered)):
		*f = other
	case other.failure != nil:
		f.failure = other.failure
	case f.held == nil:
		*f = other
	}
}

// blame notes why the store did not answer a call. A call that was cut short is not the store's
// failure, unless it took long. A queue reports failures of its own calls, and silence.
func (f *facts) blame(sent time.Time, err error, alive, queued, hasAnswer bool) {
	took, reason := f.returned.Sub(sent), errs.BesidesEnd(err)
	switch {
	case !alive && took < attemptTime && f.failure != nil && timedOut(reason): // with ctx
	case reason != nil && alive:
		f.failure = err
	case reason != nil:
		f.failure = reason
	case alive: // a time limit of the store's client
		f.failure = noAnswer(took, err)
	case queued && (hasAnswer || took >= attemptTime):
		f.answered, f.failure = f.returned, nil
	case f.failure == nil && took >= attemptTime:
		f.failure = noAnswer(took, err)
	}
}

// timedOut reports whether an error, such as a socket's, says that there was no time left.
func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// An ending is all that decides the error of an acquisition that was granted nothing.
type ending struct {
	facts
	err     error // of the last call, or of the wait
	at      time.Time
	ctx     error         // of the caller's ctx; nil if that has not ended
	cause   error         // the same, with its cause
	over    bool          // else the wait has ended, with MaxWait
	wait    time.Duration // how long this wait was at most
	maxWait time.Duration // which the caller knows: it may be that of a set
	ttl     time.Duration // of a holder, if the store does not tell
	patient bool          // the attempt was repeated, as WithOutage says
}

// error is what the acquisition returns.
func (e *ending) error() error {
	known := e.ofKey()
	if known == nil || e.ctx == nil && !e.over {
		known = e.ofStore()
	}
	switch {
	case errors.Is(e.err, ErrClosed):
		return e.err
	case e.ctx != nil && errs.IsContext(known):
		return e.cause
	case e.ctx != nil && errs.BesidesEnd(known) == nil && errors.Is(known, e.ctx):
		return known
	case e.ctx != nil:
		return fmt.Errorf("%w: %w", e.cause, errs.HideContext(known))
	case !e.over:
		return known
	case errs.BesidesEnd(known) == nil: // the queue does not say why
		known = noAnswer(e.wait, known)
	}
	return fmt.Errorf("waited for %v: %w", e.maxWait, known)
}

// ofStore is what is known of the store if nothing is known of the key.
func (e *ending) ofStore() error {
	err := e.err
	switch reason := errs.BesidesEnd(err); {
	case ours(err) != nil:
		return err
	case e.failure != nil:
		err = e.failure
	case reason != nil: // not of a call
		return reason
	case !e.answered.Before(e.returned): // the store's queue did not fail
		return err
	}
	silence := e.at.Sub(e.answered)
	if e.patient && mayPass(err) { // the patience has ended with the wait
		return unavailable(silence, nil, err)
	}
	return storeError(err, silence, e.ctx)
}

// ofKey is what is known of the key when a wait ends, or nil if the store has not said that
// it is held. It is ErrUnavailable if calls have failed since the store's last answer, and the
// lease of that answer has ended.
func (e *ending) ofKey() error {
	if e.held == nil {
		return nil
	}
	silence, rest := e.at.Sub(e.answered), e.ttl
	if e.held.Remaining != 0 {
		rest = e.held.Remaining
	}
	failure, endless := errs.HideContext(e.failure), rest < 0
	switch {
	case failure == nil:
		return e.held
	case !endless && silence >= rest:
		return unavailable(silence, e.held, failure)
	case Refused(failure), failed(failure):
		return fmt.Errorf("%w; %w", e.held, saying(failure, Refused(failure)))
	}
	failure = errs.Hide(failure, ErrUnavailable) // which a breaker says at once: the holder's lease may last
	return fmt.Errorf("%w; the store last answered %v ago: %w", e.held, silence.Round(time.Millisecond), failure)
}

// callError is the error of a call of the Locker that failed with err. ctx is the caller's. The store has not
// answered since the given time.
func callError(ctx context.Context, since time.Time, err error) error {
	return storeError(err, time.Since(since), ctx.Err())
}

// storeError is the only rule for what an error says of the store: if the store has been silent, it matches
// ErrUnavailable. If the caller's ctx was cancelled within a second, as end says, the store had no time.
func storeError(err error, silence time.Duration, end error) error {
	switch {
	case err == nil, err == errPanic, err == errNoGrant, ours(err) != nil, errors.Is(err, errors.ErrUnsupported):
		return err
	case Refused(err), failed(err):
		return saying(err, Refused(err))
	case answered(err), silence < attemptTime && end == context.Canceled:
		return err
	}
	return unavailable(silence, nil, err)
}

// saying is an error that is an answer of the store, with what the store did: it refused, or it failed.
func saying(err error, refused bool) error {
	if refused {
		return fmt.Errorf("the store refused: %w", err)
	}
	return fmt.Errorf("the store failed: %w", err)
}

// unavailable is an ErrUnavailable with the store's last error. It shows the store's last
// answer as text only, since the error must not match ErrHeld. The error of a context is not
// shown: it is that of a time limit, or the caller has it besides.
func unavailable(silence time.Duration, held *HeldError, failure error) error {
	silence = silence.Round(time.Millisecond)
	reason := errs.BesidesEnd(failure)
	if reason == nil {
		reason = noAnswer(silence, failure)
	}
	text := "no answer"
	switch {
	case temporary(failure):
		text = "not ready"
	case Refused(failure) && held != nil:
		text = "only refusals"
	case Refused(failure), failed(failure): // after WithOutage
		text, reason = "no success", saying(reason, Refused(failure))
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
	if only := noAnswer(silence, nil).Error(); held == nil && reason.Error() == only {
		text = only
	}
	return errs.Reword(fmt.Sprintf("%v: %s", ErrUnavailable, text), ErrUnavailable, errs.HideContext(failure))
}

// noAnswer is the failure of a call that was cut short after so long, with the error of a context.
func noAnswer(took time.Duration, err error) error {
	return errs.Reword(fmt.Sprintf("no answer within %v", took.Round(time.Millisecond)), nil, errs.HideContext(err))
}
