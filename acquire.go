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
	token  string  // of the next attempt; empty if a new one is to be made
	left   residue // of the calls for token

	held     *HeldError    // the store's last answer, if that was "held"
	answered time.Time     // when the store last answered; before its first answer, when the first attempt was sent
	failure  error         // of the last call; nil if the store answered
	asked    time.Time     // when the last attempt returned
	waited   time.Duration // from when the last attempt was sent to its grant, at least
}

// A residue is what the calls for one token may have left in the store.
type residue struct {
	some    bool // there may be something, which a release ends
	pending bool // a call may take effect later
	often   bool // several may, or one that comes after a release has ended something
}

// unknown adds a call with an unknown outcome. One to a queue may be several requests.
func (r *residue) unknown(queued bool) {
	r.often = r.often || queued || r.some
	r.some, r.pending = true, true
}

type acquireFunc = func(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error)

const (
	attemptTime = time.Second      // that the first attempt has, however short MaxWait is
	readyTime   = 10 * time.Second // for how long a store may say that it will soon be ready
)

var (
	errNoGrant  = errors.New("the store's queue returned neither a grant nor an error")
	errLate     = errors.New("granted, but the answer took nearly as long as the TTL")
	errNoFences = fmt.Errorf("%w: the store has no fences, which WithFence demands", errors.ErrUnsupported)
)

func (a *acquisition) acquire() (*Lease, error) {
	o := &a.client.options
	if o.maxWait == 0 {
		return a.tryOnce()
	}
	if a.nested() {
		return nil, ErrNested
	}
	ctx := a.ctx
	if o.maxWait < NoLimit {
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

// tryOnce makes one attempt without waiting.
func (a *acquisition) tryOnce() (*Lease, error) {
	lease, err := a.try(a.ctx)
	if err != nil {
		return nil, a.verdict(a.ctx, err)
	}
	return lease, nil
}

func (a *acquisition) tryOrWait(ctx context.Context) (*Lease, error) {
	if a.client.keeper.crowded.has(a.key) && a.client.options.maxWait >= attemptTime {
		if lease, decided, err := a.rejoin(ctx); decided {
			return lease, err
		}
	}
	if a.held == nil {
		lease, err := a.first(ctx)
		if a.held == nil || ended(ctx) != nil {
			return lease, err
		}
	}
	return a.wait(ctx)
}

// first makes the first attempt, and repeats it if the store says that it will soon be
// ready.
func (a *acquisition) first(ctx context.Context) (*Lease, error) {
	lease, err := a.tryInTime(ctx)
	if !temporary(err) {
		return lease, err
	}
	ctx, stop := a.client.keeper.untilClosed(ctx)
	defer stop()
	patience, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	pace := pace{backoff: a.client.options.backoff}
	for temporary(err) {
		if end := pace.pause(patience, a, err); end != nil {
			return nil, a.pick(end, err)
		}
		lease, err = a.try(ctx)
	}
	return lease, err
}

// tryInTime makes an attempt that has attemptTime for its answer, though MaxWait is
// shorter: a round trip of the network is not for the caller to know.
func (a *acquisition) tryInTime(ctx context.Context) (*Lease, error) {
	if a.client.options.maxWait >= attemptTime {
		return a.try(ctx)
	}
	ctx, cancel := context.WithTimeout(a.ctx, attemptTime)
	defer cancel()
	return a.try(ctx)
}

func (a *acquisition) try(ctx context.Context) (*Lease, error) {
	return a.attempt(ctx, a.client.keeper.locker.TryAcquire, a.client.options.ttl, false)
}

// rejoin waits in the queue of the store without an attempt before, for a key that was
// waited for there a moment ago: most likely that attempt would be in vain. What fails
// before the store has answered decides nothing, and neither does what a wait retries.
func (a *acquisition) rejoin(ctx context.Context) (lease *Lease, decided bool, err error) {
	ctx, stop := a.client.keeper.untilClosed(ctx)
	defer stop()
	lease, err = a.enqueue(ctx, a.client.keeper.locker.(Acquirer))
	if err != nil && ended(ctx) != nil {
		return nil, true, a.pick(context.Cause(ctx), err)
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
			if end := pace.pause(ctx, a, err); end != nil {
				return nil, a.pick(end, err)
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
			return nil, a.pick(context.Cause(ctx), err)
		case queued && errors.Is(err, errors.ErrUnsupported):
			queued = false
		}
	}
}

// enqueue waits in the queue of the store.
func (a *acquisition) enqueue(ctx context.Context, queue Acquirer) (*Lease, error) {
	return a.attempt(ctx, func(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error) {
		answer, err := queue.Acquire(ctx, key, token, ttl)
		if err == nil && !answer.Acquired {
			err = errNoGrant
		}
		return answer, err
	}, a.client.options.firstTTL(), true)
}

// pick returns why a wait has ended: end if that is an error of this Client, else err,
// that of the last attempt. (The caller's context may have ended with an error of
// another.)
func (a *acquisition) pick(end, err error) error {
	if ended(a.ctx) == nil && (end == ErrClosed || errors.Is(end, ErrInvalid)) {
		return end
	}
	return err
}

// attempt makes one call and judges its answer. A grant that is found late may
// have ended already, and is not believed: the token tries once more, and that
// answer alone counts. (A renewal would not do. If the lease ended and the token
// was granted the key again, another may have held it between, with a fence
// above the one that was found.)
func (a *acquisition) attempt(ctx context.Context, call acquireFunc, ttl time.Duration, queued bool) (*Lease, error) {
	lease, err := a.send(ctx, call, ttl, queued)
	if err == errLate {
		lease, err = a.send(ctx, a.client.keeper.locker.TryAcquire, a.client.options.ttl, false)
	}
	if err != nil {
		a.giveUp()
	}
	return lease, err
}

func (a *acquisition) send(ctx context.Context, call acquireFunc, ttl time.Duration, queued bool) (*Lease, error) {
	sent := time.Now()
	if a.token == "" {
		a.token, a.left = newToken(a.client.options.owner, sent), residue{}
	}
	if a.answered.IsZero() {
		a.answered = sent
	}
	returned := false
	defer func() {
		if !returned { // but panicked
			a.left.unknown(queued)
			a.giveUp()
		}
	}()
	answer, err := call(ctx, a.key, a.token, ttl)
	returned = true
	a.asked = time.Now()
	if err != nil {
		a.failed(ctx, sent, answer, err, queued)
		return nil, err
	}
	a.answered, a.failure = a.asked, nil
	if !answer.Acquired {
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
		a.left.some = true
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
		a.left.some = true
		a.giveUp()
	}
	a.token = ""
	return nil, unwanted
}

// failed notes what is known after a call that failed: of the store, which may have
// answered "held" while the call waited in its queue, and of what the call may have left
// there.
func (a *acquisition) failed(ctx context.Context, sent time.Time, answer Attempt, err error, queued bool) {
	told := answer != (Attempt{})
	a.blame(ctx, sent, err, queued)
	if told {
		a.held, a.answered = heldBy(a.key, answer), answer.Since
		if a.answered.IsZero() || a.answered.After(a.asked) {
			a.answered = a.asked
		}
	}
	switch {
	case !noEffect(err):
		a.left.unknown(queued)
	case queued && told:
		a.left.some = true // its place in the queue
	}
}

// blame notes why the store did not answer. A call that was cut short is no failure of
// the store, unless it took long. A queue tells of its own calls.
func (a *acquisition) blame(ctx context.Context, sent time.Time, err error, queued bool) {
	if ended(ctx) != nil {
		err = besidesEnd(err)
	}
	took := a.asked.Sub(sent)
	switch {
	case err != nil:
		a.failure = err
	case queued:
		a.answered, a.failure = a.asked, nil
	case a.failure == nil && took >= attemptTime:
		a.failure = fmt.Errorf("no answer within %v", took.Round(time.Millisecond))
	}
}

// besidesEnd returns what an error says besides that a context has ended, or nil if it
// says no more.
func besidesEnd(err error) error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if contextError(e) {
			return nil
		}
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			if all := joined.Unwrap(); len(all) == 2 && contextError(all[0]) {
				return all[1]
			}
		}
	}
	return err
}

// contextError reports whether err is that of a context, and no more.
func contextError(err error) bool {
	return err == context.Canceled || err == context.DeadlineExceeded
}

// giveUp owes the store a release of the token if its calls may have left something
// there. Then the token is never used again.
func (a *acquisition) giveUp() {
	if !a.left.some {
		return
	}
	a.client.keeper.owe(&debt{
		key:     a.key,
		token:   a.token,
		ttl:     a.client.options.ttl,
		values:  withoutCancel(a.ctx),
		pending: a.left.pending,
		often:   a.left.often,
	})
	a.token, a.left = "", residue{}
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

// temporary says of an error of a Locker that the same call may succeed soon, and left
// nothing.
func temporary(err error) bool {
	return inChain(err, func(err error) bool {
		marked, ok := err.(*NoEffectError)
		return ok && marked.Temporary
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
	owner, started := parseToken(a.Holder)
	return &HeldError{Key: key, Owner: owner, Started: started, Remaining: a.Remaining}
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

// known is what is known of the key when a wait ends, or nil if the store has not said
// that it is held. What it has said is not known any more when calls have failed since,
// and the lease of that time has ended.
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

// unavailable is an ErrUnavailable that tells the store's last answer, if there was one,
// and its last error. The answer is told as text, since it is not to be matched.
func unavailable(silence time.Duration, held *HeldError, failure error) error {
	last := ""
	if held != nil {
		last = fmt.Sprintf(" (the last: %v)", held)
	}
	return fmt.Errorf("%w: no answer for %v%s: %w", ErrUnavailable, silence, last, failure)
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
