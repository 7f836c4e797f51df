package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"
)

// An acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	client *Client
	ctx    context.Context // the caller's
	key    string
	token  string        // of the next attempt; empty if a new one is to be made
	often  bool          // the token may be in several requests that are on their way
	held   *HeldError    // the last answer; nil if the last attempt got none
	asked  time.Time     // when the last attempt returned
	waited time.Duration // from when the last attempt was sent to its grant, at least
}

type acquireFunc = func(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error)

var (
	errNoGrant  = errors.New("the store's queue returned neither a grant nor an error")
	errLate     = errors.New("granted, but the answer took nearly as long as the TTL")
	errNoFences = fmt.Errorf("%w: the store has no fences, which WithFence demands", errors.ErrUnsupported)
)

func (a *acquisition) acquire() (*Lease, error) {
	o := a.client.options
	ctx := a.ctx
	if o.maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.maxWait)
		defer cancel()
	}
	lease, err := a.tryOrWait(ctx)
	if err != nil {
		return nil, a.verdict(ctx, err)
	}
	return lease, nil
}

func (a *acquisition) tryOrWait(ctx context.Context) (*Lease, error) {
	waits := a.client.options.maxWait != 0
	if waits && a.client.keeper.crowded.has(a.key) {
		if lease, decided, err := a.rejoin(ctx); decided {
			return lease, err
		}
	}
	if a.held == nil {
		lease, err := a.try(ctx)
		if a.held == nil || !waits || ended(ctx) != nil {
			return lease, err
		}
	}
	return a.wait(ctx)
}

// try makes one attempt without waiting.
func (a *acquisition) try(ctx context.Context) (*Lease, error) {
	return a.attempt(ctx, a.client.keeper.locker.TryAcquire, a.client.options.ttl)
}

// rejoin waits in the queue of the store without an attempt before, for a key that was
// waited for there a moment ago: most likely that attempt would be in vain. What fails
// before the store has answered decides nothing, and neither does what a wait retries.
func (a *acquisition) rejoin(ctx context.Context) (lease *Lease, decided bool, err error) {
	ctx, stop := a.client.keeper.untilClosed(ctx)
	defer stop()
	lease, err = a.enqueue(ctx, a.client.keeper.locker.(Acquirer))
	if err != nil && ended(ctx) != nil {
		return nil, true, pick(context.Cause(ctx), err)
	}
	if err == nil && a.waited >= leastWait {
		a.client.keeper.crowded.note(a.key)
	}
	return lease, err == nil || final(err), err
}

// final says of an error that the wait need not go on.
func final(err error) bool {
	return errors.Is(err, errNoFences) || errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalid)
}

// wait goes on when the store has answered that the key is held: in the queue
// of the store if it has one, else by asking again and again.
func (a *acquisition) wait(ctx context.Context) (*Lease, error) {
	ctx, stop := a.client.keeper.untilClosed(ctx)
	defer stop()
	queue, queued := a.client.keeper.locker.(Acquirer)
	pace := pace{backoff: a.client.options.backoff}
	var err error = a.held
	for again := !queued; ; again = true {
		if again {
			if ended := pace.pause(ctx, a, err); ended != nil {
				return nil, pick(ended, err)
			}
		}
		var lease *Lease
		if queued {
			lease, err = a.enqueue(ctx, queue)
		} else {
			lease, err = a.try(ctx)
		}
		switch {
		case err == nil || final(err):
			if err == nil && queued {
				a.client.keeper.crowded.note(a.key)
			}
			return lease, err
		case ended(ctx) != nil:
			return nil, pick(context.Cause(ctx), err)
		case queued && errors.Is(err, errors.ErrUnsupported):
			queued = false
		}
	}
}

// enqueue waits in the queue of the store.
func (a *acquisition) enqueue(ctx context.Context, queue Acquirer) (*Lease, error) {
	a.often = true
	return a.attempt(ctx, func(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error) {
		answer, err := queue.Acquire(ctx, key, token, ttl)
		if err == nil && !answer.Acquired {
			err = errNoGrant
		}
		return answer, err
	}, a.client.options.firstTTL())
}

// pick returns why a wait has ended: ended if that is an error of this package,
// else err, that of the last attempt.
func pick(ended, err error) error {
	if errors.Is(ended, ErrClosed) || errors.Is(ended, ErrInvalid) {
		return ended
	}
	return err
}

// attempt makes one call and judges its answer. A grant that is found late may
// have ended already, and is not believed: the token tries once more, and that
// answer alone counts. (A renewal would not do. If the lease ended and the token
// was granted the key again, another may have held it between, with a fence
// above the one that was found.)
func (a *acquisition) attempt(ctx context.Context, call acquireFunc, ttl time.Duration) (*Lease, error) {
	lease, err := a.send(ctx, call, ttl)
	if err == errLate {
		a.often = true
		lease, err = a.send(ctx, a.client.keeper.locker.TryAcquire, a.client.options.ttl)
		if err != nil {
			a.giveUp()
		}
	}
	return lease, err
}

func (a *acquisition) send(ctx context.Context, call acquireFunc, ttl time.Duration) (*Lease, error) {
	if a.token == "" {
		a.token, a.often = newToken(a.client.options.owner), false
	}
	returned := false
	defer func() {
		if !returned { // but panicked
			a.giveUp()
		}
	}()
	sent := time.Now()
	answer, err := call(ctx, a.key, a.token, ttl)
	returned = true
	a.asked = time.Now()
	switch {
	case err != nil:
		return nil, a.failed(ctx, answer, err)
	case !answer.Acquired:
		a.held = heldBy(a.key, answer)
		return nil, a.held
	}
	a.held = nil
	if answer.Since.IsZero() || answer.Since.After(a.asked) || wallClock(answer.Since) && !wallClock(sent) {
		answer.Since = sent
	}
	a.waited = answer.Since.Sub(sent)
	lease := newLease(a, answer, ttl)
	if lease.rest(a.asked) < ttl/10 {
		return nil, errLate
	}
	return a.hand(lease)
}

// wallClock says of an instant that it has no monotonic reading, and would move with the
// clock on the wall.
func wallClock(t time.Time) bool { return t == t.Round(0) }

// hand returns a lease that is good, unless it is not wanted any more: then it
// is released.
func (a *acquisition) hand(lease *Lease) (*Lease, error) {
	var unwanted error
	switch {
	case a.client.options.fenced && lease.fence == 0:
		unwanted = errNoFences
	case !lease.start():
		unwanted = ErrClosed
	default:
		return lease, nil
	}
	ctx, cancel := context.WithTimeout(lease.values, releaseTimeout)
	defer cancel()
	if _, err := a.client.keeper.locker.Release(ctx, a.key, a.token); err != nil {
		a.giveUp()
	}
	a.token = ""
	return nil, unwanted
}

// failed notes that an attempt got no answer, or (an Acquirer says so beside its
// error) that the store had answered "held" before.
func (a *acquisition) failed(ctx context.Context, answer Attempt, err error) error {
	if answer.Holder != "" || answer.Remaining != 0 {
		a.held = heldBy(a.key, answer)
	} else if ended(ctx) == nil {
		a.held = nil
	}
	if !noEffect(err) {
		a.giveUp()
	}
	return err
}

// giveUp owes the store a release of the token, and never uses it again.
func (a *acquisition) giveUp() {
	if a.token == "" {
		return
	}
	a.client.keeper.owe(&debt{
		key:     a.key,
		token:   a.token,
		ttl:     a.client.options.ttl,
		values:  withoutCancel(a.ctx),
		pending: true,
		often:   a.often,
	})
	a.token = ""
}

// noEffect says of an error of a Locker that its call did not and will not take
// effect: the Locker says so, or there was no connection.
func noEffect(err error) bool {
	return inChain(err, func(err error) bool {
		if op, ok := err.(*net.OpError); ok {
			return op.Op == "dial"
		}
		_, marked := err.(*NoEffectError)
		return marked || err == errors.ErrUnsupported || err == ErrInvalid
	})
}

// hopeless says of an error of a Locker that the same call will always fail.
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

func heldBy(key string, a Attempt) *HeldError {
	return &HeldError{key, ownerOf(a.Holder), a.Remaining}
}

// verdict is the error of an acquisition that ended with err. ctx is the
// caller's, or one made from it that ends with MaxWait.
func (a *acquisition) verdict(ctx context.Context, err error) error {
	mine := ended(a.ctx)
	switch {
	case mine != nil && a.held != nil:
		return fmt.Errorf("%w: %w", endOf(a.ctx), a.held)
	case mine != nil, ended(ctx) == nil, errors.Is(err, ErrClosed):
		return err
	case a.held != nil:
		return fmt.Errorf("waited for %v: %w", a.client.options.maxWait, a.held)
	default:
		return fmt.Errorf("waited for %v: %w", a.client.options.maxWait, err)
	}
}

// The pauses of a waiter that asks again and again. As long as the store answers, each is
// between minPause and maxPause, at random, however many there were before: whoever came
// first asks no more seldom than the others, and those who began together do not stay
// together. They are redsync's, so that a lock that both use goes to each as often as to
// the other. When the store does not answer they double up to maxRetry, and up to half as
// much more.
const (
	minPause = 50 * time.Millisecond
	maxPause = 250 * time.Millisecond
	maxRetry = 640 * time.Millisecond
)

type pace struct {
	backoff  func(attempt int) time.Duration
	pauses   int
	failures int  // of attempts, in a row
	early    bool // the last pause ended early, with the holder's lease
}

// pause returns nil when it is time for the next attempt, or the error of ctx. The last
// attempt returned err.
func (p *pace) pause(ctx context.Context, a *acquisition, err error) error {
	p.pauses++
	p.failures++
	if errors.Is(err, ErrHeld) {
		p.failures = 0
	}
	d, err := p.next(a)
	if err != nil {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func (p *pace) next(a *acquisition) (time.Duration, error) {
	if p.backoff != nil {
		d := p.backoff(p.pauses)
		if d <= 0 {
			return 0, invalid("WithBackoff: %v for attempt %d: not positive", d, p.pauses)
		}
		return d, nil
	}
	if p.failures > 0 {
		d := min(minPause<<min(p.failures-1, 10), maxRetry)
		return d + rand.N(d/2), nil
	}
	d := minPause + rand.N(maxPause-minPause)
	if p.early {
		p.early = false
		return max(d, 2*minPause), nil // a short TTL does not make it ask more often
	}
	if a.held == nil || a.held.Remaining <= 0 || a.held.Remaining > d {
		return d, nil
	}
	p.early = true
	expiry := time.Until(a.asked.Add(a.held.Remaining)) + time.Millisecond + rand.N(2*time.Millisecond)
	return max(0, min(d, expiry)), nil
}
