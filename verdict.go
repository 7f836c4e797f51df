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
	a.blame(ctx, sent, err, queued)
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
// failure, unless it took long. A queue reports failures of its own calls.
func (a *acquisition) blame(ctx context.Context, sent time.Time, err error, queued bool) {
	if ended(ctx) != nil {
		err = besidesEnd(err)
	}
	took := a.returned.Sub(sent)
	switch {
	case err != nil:
		a.failure = err
	case queued:
		a.answered, a.failure = a.returned, nil
	case a.failure == nil && took >= attemptTime:
		a.failure = fmt.Errorf("no answer within %v", took.Round(time.Millisecond))
	}
}

// verdict is the error of an acquisition that ended with err. ctx is the
// caller's, or one made from it that ends with MaxWait.
func (a *acquisition) verdict(ctx context.Context, err error) error {
	mine := ended(a.ctx) != nil
	if !mine && ended(ctx) == nil || errors.Is(err, ErrClosed) {
		return err
	}
	known := a.known(time.Now())
	if known == nil && besidesEnd(err) == nil {
		known = hideContextErrors(a.failure) // says more than err
	}
	switch {
	case known == nil && mine:
		return err
	case known == nil:
		known = err
	}
	if mine {
		return fmt.Errorf("%w: %w", endOf(a.ctx), known)
	}
	return fmt.Errorf("waited for %v: %w", a.client.options.maxWait, known)
}

// known is what is known about the key when a wait ends, or nil if the store has not said that
// it is held. It is ErrUnavailable if calls have failed since the store's last answer, and the
// lease of that answer has ended.
func (a *acquisition) known(now time.Time) error {
	silence, rest := now.Sub(a.answered), a.client.options.ttl
	if a.held != nil && a.held.Remaining != 0 {
		rest = a.held.Remaining
	}
	failure, endless := hideContextErrors(a.failure), rest < 0
	switch {
	case failure != nil && !endless && silence >= rest:
		return unavailable(silence.Round(time.Millisecond), a.held, failure)
	case a.held == nil:
		return nil
	case failure == nil:
		return a.held
	}
	return fmt.Errorf("%w; the store last answered %v ago: %w", a.held, silence.Round(time.Millisecond), failure)
}

// unavailable is an ErrUnavailable with the store's last error. It shows the store's last
// answer as text only, since the error must not match ErrHeld.
func unavailable(silence time.Duration, held *HeldError, failure error) error {
	last := ""
	if held != nil {
		last = fmt.Sprintf(" (the last: %v)", held)
	}
	return fmt.Errorf("%w: no answer for %v%s: %w", ErrUnavailable, silence, last, failure)
}

func heldBy(key string, a Attempt) *HeldError {
	owner, started := parseToken(a.Holder)
	return &HeldError{Key: key, Owner: owner, Started: started, Remaining: a.Remaining}
}
