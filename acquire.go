package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// An acquisition is one call of Acquire, TryAcquire or Adopt.
type acquisition struct {
	client *Client
	ctx    context.Context // the caller's, with the values that Observers lend
	op     AcquireOp
	key    string
	ttl    time.Duration // of the lease, once it is renewed
	errand *errand       // that makes the acquisition; nil if a caller does
	token  string        // of the next attempt; empty if a new one is to be made
	left   residue       // of the calls for token

	word
	waited time.Duration // from when the last attempt was sent to its grant, at least

	observation
}

// A word is what the store has said about a key.
type word struct {
	held     *HeldError // the store's last answer, if that was "held"
	answered time.Time  // when the store last answered; before its first answer, when the first attempt was sent
	failure  error      // of the last call; nil if the store answered, or the call was cut short
	returned time.Time  // when the last call did
}

// A residue describes what the calls for one token may have left in the store.
type residue struct {
	some     bool     // there may be something, which a release ends
	inFlight inFlight // several also if one call may follow the release of something else
}

// unknown adds a call with an unknown outcome. One to a queue may be several requests.
func (r *residue) unknown(queued bool) {
	r.inFlight = one
	if queued || r.some {
		r.inFlight = several
	}
	r.some = true
}

type acquireFunc = func(ctx context.Context, key, token string, ttl time.Duration) (Attempt, error)

const (
	attemptTime = time.Second      // the first attempt has at least this time, however short MaxWait is
	readyTime   = 10 * time.Second // how long the first attempt is repeated while the store is not ready

	outageAttempt = 3 * time.Second // after which an attempt is made again, with WithOutage
)

var (
	errNoGrant  = errors.New("the store's queue returned neither a grant nor an error")
	errLate     = errors.New("granted, but the answer took too much of the TTL")
	errStandIn  = fmt.Errorf("%w: its stand-in has no fences, which WithFence demands", ErrUnavailable)
	errNoFences = fmt.Errorf("%w: the store has no fences, which WithFence demands", errors.ErrUnsupported)
)

// take acquires, as the op says. d is for Adopt.
func (a *acquisition) take(d *detached) (*Lease, error) {
	if a.op == OpAdopt && d == nil {
		return nil, errNotDetached
	}
	if err := a.client.begin(a.ctx, a.key); err != nil {
		return nil, err
	}
	defer a.client.keeper.leave()
	a.ttl = a.client.options.ttlOf(a.key)
	switch a.op {
	case OpAdopt:
		return a.adopt(d)
	case OpTry:
		return a.once(a.try)
	}
	return a.acquire()
}

// wrap gives an error its context. The loss of a detached lease has it.
func (a *acquisition) wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case a.op == OpAdopt:
		return wrapUnlessLost(a.ctx, "adopt", a.key, err)
	}
	return wrap(a.ctx, "acquire", a.key, err)
}

func (a *acquisition) acquire() (*Lease, error) {
	o := &a.client.options
	if o.maxWait == 0 {
		return a.once(a.tryInTime)
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

// nested reports whether the caller holds the key itself.
func (a *acquisition) nested() bool {
	return nil != findLease(a.ctx, func(l *Lease) bool {
		return l.key == a.key && l.keeper == a.client.keeper
	})
}

// once makes one attempt without waiting.
func (a *acquisition) once(try func(context.Context) (*Lease, error)) (*Lease, error) {
	lease, err := try(a.ctx)
	if err != nil {
		return nil, a.verdict(a.ctx, err)
	}
	return lease, nil
}

func (a *acquisition) tryOrWait(ctx context.Context) (*Lease, error) {
	if lease, decided, err := a.waitFirst(ctx); decided {
		return lease, err
	}
	if a.held == nil {
		lease, err := a.first(ctx)
		if a.held == nil || ended(ctx) != nil {
			return lease, err
		}
	}
	if a.client.takesTurns() {
		if lease, decided, err := a.takeTurn(ctx, false); decided {
			return lease, err
		}
	}
	return a.wait(ctx)
}

// waitFirst waits without an attempt first, if the key is most likely held or the Client makes
// many attempts already. If the acquisition is not decided then, it goes on as if it had just
// begun. With WithOutage it begins with an attempt: that has a limit, and a wait has none.
func (a *acquisition) waitFirst(ctx context.Context) (lease *Lease, decided bool, err error) {
	k := a.client.keeper
	if a.client.options.outage > 0 {
		return nil, false, nil
	}
	contended := a.client.options.maxWait >= attemptTime && (k.contended.has(a.key) || k.crowded())
	if a.client.takesTurns() {
		return a.takeTurn(ctx, contended)
	} else if contended {
		return a.rejoin(ctx)
	}
	return nil, false, nil
}

// first makes the first attempt, and repeats it while the store's failure may pass.
func (a *acquisition) first(ctx context.Context) (*Lease, error) {
	begun := time.Now()
	lease, err := a.tryInTime(ctx)
	if a.patience(err) == 0 {
		return lease, err
	}
	ctx, stop := a.client.keeper.untilClosed(ctx)
	defer stop()
	pace := pace{backoff: a.client.options.backoff}
	for {
		rest := a.patience(err) - time.Since(begun)
		if rest <= 0 {
			return lease, a.outOfPatience(err)
		}
		limited, cancel := context.WithTimeout(ctx, rest)
		end := pace.pause(limited, a, err)
		cancel()
		switch {
		case end == nil:
			lease, err = a.tryFor(ctx, a.patience(err)-time.Since(begun))
		case ended(ctx) != nil || end != context.DeadlineExceeded:
			return nil, a.pick(end, err)
		}
	}
}

// patience returns how long the first attempt is repeated after an error: 0 if that would be
// of no use, or was not asked for.
func (a *acquisition) patience(err error) time.Duration {
	outage := a.client.options.outage
	switch {
	case temporary(err):
		return max(readyTime, outage)
	case err == nil, errors.Is(err, ErrHeld), final(err), hopeless(err), Refused(err):
		return 0
	}
	return outage
}

// outOfPatience is the error after the last attempt, which failed with err.
func (a *acquisition) outOfPatience(err error) error {
	if a.client.options.outage == 0 || a.failure == nil || a.patience(err) == 0 {
		return err
	}
	return unavailable(time.Since(a.answered), nil, a.failure)
}

// tryInTime makes an attempt that has at least attemptTime for its answer: callers need not
// choose a MaxWait that covers the network's round trip.
func (a *acquisition) tryInTime(ctx context.Context) (*Lease, error) {
	a.client.keeper.attempts.Add(1)
	defer a.client.keeper.attempts.Add(-1)
	if a.client.options.maxWait >= attemptTime {
		return a.tryFor(ctx, max(a.client.options.outage, attemptTime))
	}
	ctx, cancel := context.WithTimeout(a.ctx, attemptTime)
	defer cancel()
	return a.try(ctx)
}

// tryFor makes an attempt. With WithOutage, it is cut off after rest or outageAttempt: the
// store that does not answer may have been replaced by another.
func (a *acquisition) tryFor(ctx context.Context, rest time.Duration) (*Lease, error) {
	if a.client.options.outage > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(rest, outageAttempt))
		defer cancel()
	}
	return a.try(ctx)
}

func (a *acquisition) try(ctx context.Context) (*Lease, error) {
	return a.attempt(ctx, a.client.keeper.locker.TryAcquire, a.ttl, false)
}

// rejoin waits for a contended key in the queue of the store, without an attempt first: the
// key is most likely held. If it fails before the store has answered, or with an error that a
// wait retries, the acquisition is not decided, and begins with an attempt.
func (a *acquisition) rejoin(ctx context.Context) (lease *Lease, decided bool, err error) {
	if err := a.tellWait(); err != nil {
		return nil, true, err
	}
	ctx, stop := a.client.keeper.untilClosed(ctx)
	defer stop()
	lease, err = a.enqueue(ctx, a.client.keeper.locker.(Acquirer))
	if err != nil && ended(ctx) != nil {
		return nil, true, a.pick(context.Cause(ctx), err)
	}
	if err == nil && a.waited >= shortestWait {
		a.client.keeper.contended.note(a.key)
	}
	return lease, err == nil || final(err), err
}

// final reports whether an error ends a wait.
func final(err error) bool {
	return errors.Is(err, errNoFences) || errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalid)
}

// wait waits for a key that is held: in the queue of the store if it has one, else by polling.
func (a *acquisition) wait(ctx context.Context) (*Lease, error) {
	if err := a.tellWait(); err != nil {
		return nil, err
	}
	ctx, stop := a.client.keeper.untilClosed(ctx)
	defer stop()
	queue, queued := a.client.keeper.locker.(Acquirer)
	queued = queued && !a.client.keeper.lines.unqueued.Load()
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
				a.client.keeper.contended.note(a.key)
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
	}, min(a.ttl, a.client.options.firstTTL()), true)
}

// pick returns why a wait has ended: end if that is an error of this Client, else err, the
// error of the last attempt. (The caller's context may have ended with another Client's error.)
func (a *acquisition) pick(end, err error) error {
	if ended(a.ctx) == nil && (end == ErrClosed || errors.Is(end, ErrInvalid)) {
		return end
	}
	return err
}

// attempt makes one call and judges its answer. If a grant arrives late, the lease may have ended
// already, or too little is left for the work, so the token tries once more, and only that answer
// counts. (A renewal is not enough. Between the end of the lease and a second grant to the token
// another may have held the key, with a larger fence than that of the first grant.)
func (a *acquisition) attempt(ctx context.Context, call acquireFunc, ttl time.Duration, queued bool) (*Lease, error) {
	lease, err := a.send(ctx, call, ttl, queued)
	if err == errLate {
		lease, err = a.send(ctx, a.client.keeper.locker.TryAcquire, a.ttl, false)
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
	a.attempts++
	answer, err := call(ctx, a.key, a.token, ttl)
	returned = true
	a.returned = time.Now()
	if err != nil {
		a.failed(ctx, sent, answer, err, queued)
		return nil, err
	}
	a.answered, a.failure = a.returned, nil
	if !answer.Acquired {
		a.held, a.contended = heldBy(a.key, answer), true
		return nil, a.held
	}
	a.held = nil
	if answer.Since.IsZero() || answer.Since.After(a.returned) || wallClock(answer.Since) && !wallClock(sent) {
		answer.Since = sent
	}
	a.waited = answer.Since.Sub(sent)
	a.contended = a.contended || a.waited >= shortestWait
	lease := newLease(a, answer, ttl)
	if lease.restLocked(a.returned) < a.client.options.leastRest(ttl) {
		a.left.some = true
		return nil, errLate
	}
	return a.hand(lease)
}

// wallClock reports whether an instant has no monotonic reading.
func wallClock(t time.Time) bool { return t == t.Round(0) }

// hand returns the lease, or releases it if it cannot be used.
func (a *acquisition) hand(lease *Lease) (*Lease, error) {
	var unwanted error
	switch {
	case a.client.options.fenced && lease.standIn:
		unwanted = errStandIn
	case a.client.options.fenced && lease.fence == 0:
		unwanted = errNoFences
	case a.errand != nil:
		unwanted = a.errand.serve(lease)
	case !lease.start():
		unwanted = ErrClosed
	}
	if unwanted == nil {
		return lease, nil
	}
	ctx, cancel := context.WithTimeout(lease.values, releaseTimeout)
	defer cancel()
	if _, err := a.client.keeper.locker.Release(ctx, a.key, a.token); err != nil {
		a.left.some = true
		a.giveUp()
	}
	a.token, a.left = "", residue{}
	return nil, unwanted
}

// giveUp leaves the release of the token to the keeper, if its calls may have left something
// in the store. The token is never used again then.
func (a *acquisition) giveUp() {
	if !a.left.some {
		return
	}
	a.client.keeper.owe(&owedRelease{
		key:      a.key,
		token:    a.token,
		ttl:      a.ttl,
		values:   withoutCancel(a.ctx),
		inFlight: a.left.inFlight,

		observers: a.client.options.observers,
	})
	a.token, a.left = "", residue{}
}

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

func heldBy(key string, a Attempt) *HeldError {
	owner, started := parseToken(a.Holder)
	return &HeldError{Key: key, Owner: owner, Started: started, Remaining: a.Remaining}
}

// A key is contended for a second after a wait for it. Acquisitions with WithOutage make an attempt
// nevertheless, also beside many others.
const (
	contendedFor = time.Second
	maxContended = 1024
	shortestWait = time.Millisecond // a grant is dated a little later than its call even if the key was free
)

// contendedKeys are the keys for which an acquisition has just waited: the next one joins the
// queue at once. The zero value is ready for use.
type contendedKeys struct {
	some  atomic.Bool // there may be any
	mu    sync.Mutex
	until map[string]time.Time
}

// maxAttempts is how many first attempts of a Client may be in flight at once. With more, the calls
// would stand before renewals and releases for the connections of the store's client. So further
// acquisitions join the queue of the store at once, free or not, and the backend sends them
// together.
const maxAttempts = 128

func (k *keeper) crowded() bool {
	if k.attempts.Load() < maxAttempts || k.lines.unqueued.Load() {
		return false
	}
	_, ok := k.locker.(Acquirer)
	return ok
}

func (c *contendedKeys) note(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.until == nil || len(c.until) >= maxContended {
		c.until = make(map[string]time.Time)
	}
	c.until[key] = time.Now().Add(contendedFor)
	c.some.Store(true)
}

func (c *contendedKeys) has(key string) bool {
	if !c.some.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	until, ok := c.until[key]
	if ok && !time.Now().Before(until) {
		delete(c.until, key)
		c.some.Store(len(c.until) > 0)
		return false
	}
	return ok
}

// The pauses of a waiter that polls. While the store answers, each is random between
// minPollPause and maxPollPause, however long the wait: early waiters poll as frequently as
// late ones, and waiters that began together drift apart. These are redsync's pauses, so that
// both libraries get a shared lock equally often. While the store fails, pauses double up to
// maxErrorPause, plus up to a half.
const (
	minPollPause  = 50 * time.Millisecond
	maxPollPause  = 250 * time.Millisecond
	maxErrorPause = 640 * time.Millisecond
)

// A pace is the pauses of one wait.
type pace struct {
	backoff  *func(attempt int) time.Duration
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
		d := (*p.backoff)(p.pauses)
		if d <= 0 {
			return 0, invalid("WithBackoff: %v for attempt %d: not positive", d, p.pauses)
		}
		return d, nil
	}
	if p.failures > 0 {
		d := min(minPollPause<<min(p.failures-1, 10), maxErrorPause)
		return d + rand.N(d/2), nil
	}
	d := minPollPause + rand.N(maxPollPause-minPollPause)
	if p.early {
		p.early = false
		return max(d, 2*minPollPause), nil // a short TTL does not make it poll more frequently
	}
	if a.held == nil || a.held.Remaining <= 0 || a.held.Remaining > d {
		return d, nil
	}
	p.early = true
	expiry := time.Until(a.returned.Add(a.held.Remaining)) + time.Millisecond + rand.N(2*time.Millisecond)
	return max(0, min(d, expiry)), nil
}
