package dlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/errs"
	"github.com/dlock-go/dlock/internal/owed"
	"github.com/dlock-go/dlock/internal/pace"
	"github.com/dlock-go/dlock/internal/storewait"
	"github.com/dlock-go/dlock/internal/token"
)

// A request is a call of Acquire, TryAcquire or Adopt: what is asked for, and what Observers hear of it.
type request struct {
	client *Client
	ctx    context.Context // the caller's, with the values that Observers lend
	op     AcquireOp
	key    string
	ttl    time.Duration // of the lease, once it is renewed
	set    *gathering    // whose part the request is; nil if it stands alone

	start     time.Time // if there are Observers
	waitStart time.Time // zero before WaitStart
	attempts  int
	contended bool
}

// An acquisition acquires a key: for a request, or for an errand of a line. It is a loop: look sees how things are,
// next decides what to do, and do does it, which changes the state.
type acquisition struct {
	request
	state
	claim
	meets  *meeting // with the others of its set, who make the same attempts; nil if there is none, or it is over
	seat   int      // there
	errand *errand  // for which it acquires; nil if a caller acquires

	limited context.Context // ends with ctx and MaxWait
	wait    context.Context // ends with limited and Close; nil until it is needed
	stop    func()          // ends wait; nil if there is nothing to end

	pauses   int // in this stage
	failures int // of calls, in a row
	poll     pace.Poll

	sent     time.Time     // when the last call was
	waited   time.Duration // from when the last call was sent to its grant, at least
	listener *listener     // nil before the first failure or wait
}

// A claim is a token, and what the calls for it may have left in the store.
type claim struct {
	token    string                     // of the next call; empty if a new one is to be made
	left     bool                       // there may be something that a release ends
	place    bool                       // that is a place in the queue, and nothing else
	inFlight int                        // calls that may still arrive: several also if one may follow the release of something else
	later    func(func(Attempt, error)) // of the last call, whose answer may come; or nil
}

// leaves notes what the last call has left.
func (c *claim) leaves(what remains, queued bool) {
	switch what {
	case unknown: // one call to a queue may be several requests
		c.inFlight = 1
		if queued || c.left {
			c.inFlight = several
		}
		if c.left {
			c.later = nil
		}
		c.left = true
	case something:
		c.left, c.place = true, !c.left
	}
}

// A state is all that decides what an acquisition does next.
type state struct {
	// What was asked for.
	once    bool          // one attempt, and no wait
	tries   bool          // for a set: no wait, but the attempt is repeated while the store's failure may pass
	forLine bool          // an errand: it begins in the store's queue
	maxWait time.Duration // when the acquisition began
	outage  time.Duration
	latest  time.Time // when the first attempt ends at the latest; zero if its set has no limit, or there is none

	// What has happened.
	facts
	stage int
	last  action    // that was carried out
	lease *Lease    // that was granted
	err   error     // of the last call, or of the wait in a line; nil before
	late  bool      // the grant came too late, for the first time
	waits bool      // it is the one that waits before the next attempt of its set
	begun time.Time // when the first attempt was sent
	polls bool      // the store's queue has turned out to be missing

	// What look has seen.
	now    time.Time
	over   bool // the wait has ended, with the caller's ctx or MaxWait
	closed bool // the Client is
	queue  bool // the store has one
	turns  bool // waiters stand in lines
	busy   bool // the key is most likely held, or the Client makes many attempts already
	again  bool // a refused attempt of a set is made again, by all
}

// The stages of an acquisition: what it has done so far.
const (
	fresh = iota // nothing
	asked        // it waited in a line or in the store's queue, without an attempt first; or the line refused it
	tried        // it has made the first attempt, which is repeated while the store's failure may pass
	lined        // it waited in a line, knowing that the key is held
	alone        // it waits by itself: in the store's queue, or by polling
)

// An action is what an acquisition does next.
type action struct {
	do    int
	stage int       // of the acquisition from now on
	by    time.Time // the end of the call or pause, if it has one of its own
	first bool      // the first attempt, which MaxWait and Close do not cut off
	err   error     // of doEnd
}

const (
	doEnd     = iota // returns the lease, or err
	doTry            // makes an attempt
	doEnqueue        // waits in the store's queue
	doJoin           // waits in a line of this Client, if that takes it in
	doPause
)

const (
	attemptTime = time.Second      // the first attempt has at least this time, however short MaxWait is
	readyTime   = 10 * time.Second // how long the first attempt is repeated while the store is not ready

	outageAttempt = 3 * time.Second // after which an attempt is made again, with WithOutage: another store may be there by then
)

var (
	errNoGrant  = errors.New("the store's queue returned neither a grant nor an error")
	errLate     = errors.New("granted, but the answer took too much of the TTL")
	errStandIn  = fmt.Errorf("%w: its stand-in has no fences, which WithFence demands", ErrUnavailable)
	errFree     = errs.Reword("free, but another key of the set is held", ErrHeld, nil)
	errNoFences = fmt.Errorf("%w: the store has no fences, which WithFence demands", errors.ErrUnsupported)
)

// next decides what an acquisition does. With WithOutage it begins with an attempt: that has a limit,
// and a wait has none.
func next(s *state) action {
	begins := s.stage == fresh && !s.once && !s.tries && s.outage == 0
	paused := s.last.do == doPause
	end := s.begun.Add(s.patience())
	switch {
	case s.lease != nil:
		return action{do: doEnd}
	case s.late: // by an attempt that ends when the late call would have
		again := s.last
		again.do = doTry
		return again
	case s.err == nil:
	case s.again && errors.Is(s.err, ErrHeld) && s.waits && !paused:
		return action{do: doPause, stage: alone}
	case s.again && errors.Is(s.err, ErrHeld):
		return action{do: doTry, stage: alone, by: s.now.Add(attemptTime)}
	case s.once, final(s.err), s.forLine && errors.Is(s.err, errors.ErrUnsupported):
		return action{do: doEnd, err: s.err}
	case s.unanswered() && !s.now.Before(end):
		return action{do: doEnd, err: s.outOfPatience()}
	case s.over, s.tries && (s.held != nil || s.stage == alone):
		return action{do: doEnd, err: s.err}
	case s.closed:
		return action{do: doEnd, err: ErrClosed}
	case s.unanswered() && paused:
		return action{do: doTry, stage: tried, by: s.cut(end)}
	case s.unanswered():
		return action{do: doPause, stage: tried, by: end}
	}
	switch {
	case begins && s.turns:
		return action{do: doJoin, stage: asked}
	case begins && s.busy && s.queue:
		return action{do: doEnqueue, stage: asked}
	case s.stage < tried && s.held == nil:
		return action{do: doTry, stage: tried, by: s.firstEnd(), first: true}
	case s.stage < lined && s.turns:
		return action{do: doJoin, stage: lined}
	case s.queue && (paused || s.stage < alone):
		return action{do: doEnqueue, stage: alone}
	case paused:
		return action{do: doTry, stage: alone}
	}
	return action{do: doPause, stage: alone}
}

// unanswered reports whether the first attempts have failed so far.
func (s *state) unanswered() bool { return s.stage == tried && s.held == nil }

// patience returns how long the first attempt is repeated after its error: 0 if that would be of no
// use, or was not asked for.
func (s *state) patience() time.Duration {
	switch err := s.err; {
	case temporary(err):
		return max(readyTime, s.outage)
	case err == nil, errors.Is(err, ErrHeld), final(err), hopeless(err), Refused(err) && !mayPass(err):
		return 0
	}
	return s.outage
}

// outOfPatience is the error of first attempts that are not repeated any more.
func (s *state) outOfPatience() error {
	if s.outage == 0 || s.failure == nil || s.patience() == 0 {
		return s.err
	}
	return unavailable(s.now.Sub(s.answered), nil, s.failure)
}

// firstEnd is when the first attempt ends, if not with the wait. It has at least attemptTime for its
// answer: callers need not choose a MaxWait that covers the network's round trip.
func (s *state) firstEnd() time.Time {
	switch {
	case s.maxWait < attemptTime && !s.latest.IsZero():
		return alarm.Earlier(s.now.Add(attemptTime), s.latest)
	case s.maxWait < attemptTime:
		return s.now.Add(attemptTime)
	}
	return s.cut(s.now.Add(max(s.outage, attemptTime)))
}

// cut is when an attempt is cut off that may last until end.
func (s *state) cut(end time.Time) time.Time {
	if s.outage == 0 {
		return time.Time{}
	}
	return alarm.Earlier(end, s.now.Add(outageAttempt))
}

// final reports whether an error ends a wait.
func final(err error) bool {
	return err == errFree || errors.Is(err, errNoFences) || errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalid)
}

// acquire is Acquire and TryAcquire, and a part of a set.
func (a *acquisition) acquire() (lease *Lease, err error) {
	defer func() { a.meets.leave(err) }()
	if err := a.client.begin(a.ctx, a.key); err != nil {
		return nil, err
	}
	defer a.client.keeper.leave()
	o := &a.client.options
	a.ttl = o.ttlOf(a.key)
	switch {
	case a.set != nil: // a wait that begins when MaxWait has passed ends at once: it is not one attempt
		a.maxWait, a.outage, a.tries, a.latest = a.set.maxWait(), a.set.outage, a.op == OpTry, a.set.last()
		a.once = a.tries && a.maxWait == 0
	case a.op == OpTry:
		a.once, a.maxWait = true, NoLimit
	default:
		a.once, a.maxWait, a.outage = o.maxWait == 0, o.maxWait, o.outage
	}
	if !a.once && findLease(a.ctx, a.key, a.client.keeper) != nil { // the caller holds the key itself
		return nil, ErrNested
	}
	if a.limited = a.ctx; !a.once && a.maxWait < NoLimit {
		var cancel context.CancelFunc
		a.limited, cancel = context.WithTimeout(a.ctx, a.maxWait)
		defer cancel()
	}
	defer a.endSilence()
	if lease, err = a.run(); err != nil {
		return nil, a.ending(err).error()
	}
	return lease, nil
}

// wrap gives an error its context. The loss of a detached lease has it.
func (r *request) wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case r.op == OpAdopt:
		return wrapUnlessLost(r.ctx, "adopt", r.key, err)
	}
	return wrap(r.ctx, "acquire", r.key, err)
}

// run is the loop. It returns the lease, or the error of the last call or wait.
func (a *acquisition) run() (*Lease, error) {
	defer func() {
		if a.stop != nil {
			a.stop()
		}
	}()
	for {
		act := next(a.look())
		if act.do == doEnd {
			return a.lease, act.err
		}
		a.noteFailure()
		if act.stage != a.stage {
			a.pauses = 0
		}
		a.stage, a.last = act.stage, act
		a.do(act)
	}
}

// look sees how things are.
func (a *acquisition) look() *state {
	o, k := &a.client.options, a.client.keeper
	a.now, a.closed = time.Now(), k.open.Err() != nil
	a.over = ended(a.limited) != nil || a.forLine && a.closed
	_, a.queue = k.locker.(Acquirer)
	a.queue = a.queue && (a.forLine || !a.polls && !k.lines.unqueued.Load())
	a.turns = a.queue && o.takesTurns()
	a.again = a.meets != nil && a.attempts > 0 && !a.over && !a.closed
	a.busy = a.stage == fresh && a.maxWait >= attemptTime && (k.contended.Has(a.key) || k.attempts.Load() >= maxAttempts)
	return &a.state
}

// do carries out an action.
func (a *acquisition) do(act action) {
	if !a.forLine && act.stage != tried && (act.do == doEnqueue || act.do == doPause) {
		if err := a.reportWait(a.held); err != nil {
			a.err = err
			return
		}
	}
	switch act.do {
	case doTry, doEnqueue:
		a.call(act)
	case doJoin:
		a.join()
	case doPause:
		if a.forLine {
			a.errand.beginPause()
		}
		a.pause(act.by)
		if a.forLine {
			a.errand.endPause()
		}
	}
}

// waiting returns the context of all but the first attempt. With it the call counts as a waiter.
func (a *acquisition) waiting() context.Context {
	if a.wait == nil {
		k := a.client.keeper
		ctx, cancel := context.WithCancel(a.limited)
		stop := context.AfterFunc(k.open, cancel)
		k.waiters.Add(1)
		a.wait, a.stop = ctx, func() {
			stop()
			cancel()
			k.waiters.Add(-1)
		}
	}
	return a.wait
}

// call makes an attempt, or waits in the store's queue, and keeps what was granted.
func (a *acquisition) call(act action) {
	ctx, waits := a.limited, !act.first && (a.meets == nil || a.waits)
	if waits {
		ctx = a.waiting()
	} else if act.first && a.maxWait < attemptTime {
		ctx = a.ctx
	}
	if act.first && a.op != OpTry {
		a.client.keeper.attempts.Add(1)
		defer a.client.keeper.attempts.Add(-1)
	}
	if !act.by.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, act.by)
		defer cancel()
	}
	if waits {
		defer a.watch(act)()
	}
	defer func() { // also if the Locker panics
		if a.err != nil && !a.late {
			a.giveUp()
		}
	}()
	a.send(ctx, act)
	if a.lease != nil {
		a.hand()
	}
}

// send makes one call of the Locker.
func (a *acquisition) send(ctx context.Context, act action) {
	sent, ttl, l := time.Now(), a.ttl, a.client.keeper.locker
	if queues := act.do == doEnqueue; a.token == "" || !a.left && (token.Waits(a.token) != queues || !queues && (a.held != nil || a.err == errFree || a.outage > 0)) {
		a.token = token.New(a.client.options.owner, sent, queues) // its time is that of the attempt: see startOf
	}
	if a.answered.IsZero() {
		a.answered = sent
	}
	if act.first && a.begun.IsZero() {
		a.begun = sent
	}
	a.attempts++
	a.sent = sent
	answer, err := Attempt{}, errPanic
	defer func() { a.note(act, a.sent, ttl, answer, err, ended(ctx) == nil) }()
	if act.do == doTry {
		answer, err = a.attempt(ctx, ttl)
		return
	}
	ttl = min(ttl, a.client.options.firstTTL())
	answer, err = l.(Acquirer).Acquire(storewait.With(ctx, a.listens()), a.key, a.token, ttl)
	if err == nil && !answer.Acquired {
		err = errNoGrant
	}
}

// attempt makes one attempt to take the key: if it meets others, the same as they.
func (a *acquisition) attempt(ctx context.Context, ttl time.Duration) (answer Attempt, err error) {
	if m := a.meets; m != nil {
		r := m.attend(ctx, a, ttl)
		if a.sent, a.waits = r.sent, a.seat == m.waits; !r.again {
			a.meets = nil
		}
		if answer, err = r.answer(a.seat); !errors.Is(err, errors.ErrUnsupported) {
			return answer, err
		}
		m.room <- struct{}{}
		defer func() { <-m.room }()
		a.sent = time.Now()
	}
	answer, err = a.client.keeper.locker.TryAcquire(ctx, a.key, a.token, ttl)
	answer.Free = false // which only a set can be
	return answer, err
}

// note notes the answer to a call. If a grant arrives late, the lease may have ended already, or too
// little is left for the work, so the token tries once more, and only that answer counts. (A renewal
// is not enough. Between the end of the lease and a second grant to the token another may have held
// the key, with a larger fence than that of the first grant.)
func (a *acquisition) note(act action, sent time.Time, ttl time.Duration, answer Attempt, err error, alive bool) {
	again := a.late
	a.later, err = unmark(err)
	a.returned, a.late, a.err = time.Now(), false, err
	if err == nil && a.listener != nil && !(answer.Degraded && a.client.options.fenced) {
		a.listener.Answered()
	}
	switch {
	case err != nil:
		a.noteFailed(act, sent, answer, err, alive)
	case !answer.Acquired && answer.Free:
		a.held, a.answered, a.failure, a.err = nil, a.returned, nil, errFree
	case !answer.Acquired:
		a.held, a.contended, a.answered, a.failure = a.heldBy(answer), true, a.returned, nil
		a.err = a.held
	default:
		a.held, a.answered, a.failure = nil, a.returned, nil
		if answer.Since.IsZero() || answer.Since.After(a.returned) || wallClock(answer.Since) && !wallClock(sent) {
			answer.Since = sent
		}
		a.waited = answer.Since.Sub(sent)
		a.contended = a.contended || a.waited >= shortestWait
		a.lease = newLease(&a.request, a.token, a.returned, answer, ttl)
		if a.lease.restLocked(a.returned) < a.client.options.leastRest(ttl) {
			a.lease, a.left, a.late, a.err = nil, true, !again, errLate
		}
	}
	if errors.Is(a.err, ErrHeld) {
		a.failures = 0
	} else if !a.late {
		a.failures++
	}
}

// wallClock reports whether an instant has no monotonic reading.
func wallClock(t time.Time) bool { return t == t.Round(0) }

// hand keeps the lease for the caller or the line, or releases it if it cannot be used.
func (a *acquisition) hand() {
	lease, k := a.lease, a.client.keeper
	switch {
	case a.client.options.fenced && lease.standIn:
		a.err = errStandIn
	case a.client.options.fenced && lease.fence == 0:
		a.err = errNoFences
	case a.forLine:
		a.err = a.errand.give(lease)
	case !lease.start():
		a.err = ErrClosed
	case a.queue && !a.tries && (a.stage == alone || a.stage == asked && a.waited >= shortestWait):
		k.contended.Add(a.key)
	}
	if a.err == nil {
		return
	}
	a.lease = nil
	ctx, cancel := context.WithTimeout(lease.values, releaseTimeout)
	defer cancel()
	if _, err := k.locker.Release(ctx, a.key, a.token); err != nil {
		a.left = true
		a.giveUp()
	}
	a.forget()
}

// forget ends the use of the token.
func (a *acquisition) forget() { a.claim = claim{} }

// giveUp leaves the release of the token to the keeper, if its calls may have left something
// in the store. The token is never used again then.
func (a *acquisition) giveUp() {
	if !a.left {
		return
	}
	r, queued := &owedRelease{
		Call:      owed.Call{TTL: a.ttl, Light: a.place},
		key:       a.key,
		token:     a.token,
		values:    contexts.WithoutCancel(a.ctx),
		inFlight:  a.inFlight,
		observers: a.client.options.observers,
	}, a.last.do == doEnqueue
	if a.later != nil {
		r.Hold = time.Now().Add(answerTime)
	}
	k := a.client.keeper
	if k.owe(r) && a.later != nil {
		a.later(func(answer Attempt, err error) { k.lateAnswer(r, leftBy(queued, answer, err)) })
	}
	a.forget()
}

// noteFailed notes what a failed call says: the store may have answered "held" while the call
// waited in its queue, and the call may have left something in the store.
func (a *acquisition) noteFailed(act action, sent time.Time, answer Attempt, err error, alive bool) {
	queued, hasAnswer := act.do == doEnqueue, answer != (Attempt{})
	a.blame(sent, err, alive, queued, hasAnswer)
	if hasAnswer {
		a.held, a.contended, a.answered = a.heldBy(answer), true, answer.Since
		if a.answered.IsZero() || a.answered.After(a.returned) {
			a.answered = a.returned
		}
	}
	a.leaves(leftBy(queued, answer, err), queued)
	a.polls = a.polls || act.stage == alone && queued && errors.Is(err, errors.ErrUnsupported)
}

// ending is the end of an acquisition that was granted nothing, with err.
func (a *acquisition) ending(err error) *ending {
	o := &a.client.options
	e := &ending{facts: a.facts, err: err, at: time.Now(), ctx: ended(a.ctx), wait: a.maxWait, maxWait: a.maxWait, ttl: o.ttl, patient: a.outage > 0 && !a.once}
	if e.ctx != nil {
		e.cause = endOf(a.ctx)
	} else if a.set != nil && a.set.over() {
		e.over, e.maxWait = true, o.maxWait
	} else {
		e.over = ended(a.limited) != nil
	}
	return e
}

// A listener is the part of an acquisition that hears whether it waits for the store, and not for a holder: its last
// call has failed, and it goes on. The backend reports the calls that it makes itself during a wait in the store's
// queue (see package storewait). If a backend does not, a wait for the store is over when the next wait in the queue
// has lasted for queuedTime.
type listener struct {
	client  *Client
	ctx     context.Context
	key     string
	line    *line          // whose waiters are to hear; nil if it is a caller's
	call    storewait.Call // of the caller
	noInbox atomic.Bool    // the store cannot send it messages
}

const queuedTime = 10 * time.Second

// listens returns the listener, which an acquisition without failures and waits does not have.
func (a *acquisition) listens() *listener {
	if a.listener == nil {
		a.listener = &listener{client: a.client, ctx: a.ctx, key: a.key}
		if a.errand != nil {
			a.listener.line = a.errand.line
		}
	}
	return a.listener
}

// noteFailure notes that the last call has failed, if it has, and that the acquisition goes on.
func (a *acquisition) noteFailure() {
	failure, since := a.failure, a.returned
	if a.err == errStandIn {
		failure = a.err
	}
	if a.last.do == doTry {
		since = a.sent
	} else if a.last.do == doEnqueue && a.answered.After(a.sent) {
		since = a.answered
	}
	switch {
	case a.last.do == doPause, failure == nil, errors.Is(failure, errors.ErrUnsupported), errors.Is(failure, ErrReleased):
	default:
		a.listens().Failed(since, failure)
	}
}

// watch notes what a call says by taking long: an attempt has no answer, and a wait has a place in the queue.
func (a *acquisition) watch(act action) (stop func() bool) {
	l, sent := a.listens(), time.Now()
	switch {
	case act.do == doTry && act.by.IsZero():
		return time.AfterFunc(outageAttempt, func() { l.Failed(sent, noAnswer(outageAttempt, nil)) }).Stop
	case act.do == doEnqueue && l.silent():
		return time.AfterFunc(queuedTime, func() { l.answeredAt(sent) }).Stop
	}
	return func() bool { return false }
}

// Failed implements [storewait.Listener].
func (l *listener) Failed(sent time.Time, err error) {
	if l.line != nil {
		l.line.silent.Store(true)
	}
	l.callers(func(c *listener) {
		if since := c.client.keeper.silence.Failed(&c.call, sent); !since.IsZero() {
			c.reportStoreWait(StoreWaitInfo{Since: since, Took: time.Since(since), Err: callError(context.Background(), since, err)})
		}
	})
}

// Answered implements [storewait.Listener].
func (l *listener) Answered() { l.answeredAt(time.Now()) }

func (l *listener) answeredAt(now time.Time) {
	if !l.silent() {
		return
	}
	if l.line != nil {
		l.line.silent.Store(false)
	}
	l.callers(func(c *listener) {
		if since := c.client.keeper.silence.Answered(&c.call); !since.IsZero() {
			c.reportStoreWait(StoreWaitInfo{Since: since, Took: max(0, now.Sub(since)), Over: true})
		}
	})
}

// silent reports whether the last call has failed.
func (l *listener) silent() bool {
	if l.line != nil {
		return l.line.silent.Load()
	}
	return l.call.Failing()
}

// NoInbox implements [storewait.Listener].
func (l *listener) NoInbox(err error) {
	l.callers(func(c *listener) {
		if !c.noInbox.Swap(true) {
			c.client.keeper.noInbox.Add(1)
			c.reportInboxMissing(err)
		}
	})
}

// endSilence notes that the acquisition is over.
func (a *acquisition) endSilence() {
	if a.listener == nil {
		return
	}
	since := a.client.keeper.silence.End(&a.listener.call)
	if since.IsZero() {
		return
	}
	info := StoreWaitInfo{Since: since, Took: time.Since(since), Over: true}
	if a.lease == nil {
		info.Err = a.ending(a.err).ofStore()
	}
	a.listener.reportStoreWait(info)
}

func (r *request) heldBy(answer Attempt) *HeldError {
	owner, started := startOf(answer.Holder, answer.HeldSince)
	return &HeldError{Key: r.key, Owner: owner, Started: started, Remaining: answer.Remaining}
}

// startOf returns the label of a holder, and when it was granted its lock: as the store says, or when its token was
// made, unless that was for a wait in the store's queue. Both are zero for a holder that is not a Client.
func startOf(holder string, since time.Time) (owner string, started time.Time) {
	owner, made := token.Parse(holder)
	switch {
	case made.IsZero(), since.IsZero() && token.Waits(holder):
		return owner, time.Time{}
	case since.IsZero():
		return owner, made
	}
	return owner, time.UnixMilli(since.UnixMilli())
}

// A key is contended for a second after a wait for it: the next acquisition joins the queue at once.
// Acquisitions with WithOutage make an attempt nevertheless, also beside many others.
//
// shortestWait is that of such a wait: a grant is dated a little later than its call even if the key was free.
const shortestWait = time.Millisecond

// maxAttempts is how many first attempts of a Client may be in flight at once. With more, the calls
// would stand before renewals and releases for the connections of the store's client. So further
// acquisitions join the queue of the store at once, free or not, and the backend sends them
// together.
const maxAttempts = 128

// pause waits for the time of the next call, for the end of the wait, or until by.
func (a *acquisition) pause(by time.Time) {
	a.pauses++
	d, err := a.pauseTime()
	if err != nil {
		a.err = err
		return
	}
	if !by.IsZero() {
		d = min(d, time.Until(by))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-a.waiting().Done():
	case <-timer.C:
	}
}

// crowd is how many waiters of a Client make the pauses of a set longer than usual. With fewer they are shorter, but by no more
// than half.
const crowd = 64

func (a *acquisition) pauseTime() (time.Duration, error) {
	if backoff := a.client.options.backoff; backoff != nil {
		d := (*backoff)(a.pauses)
		if d <= 0 {
			return 0, invalid("WithBackoff: %v for attempt %d: not positive", d, a.pauses)
		}
		return d, nil
	}
	switch {
	case a.failures > 0:
		return pace.AfterFailures(a.failures), nil
	case a.meets != nil:
		return pace.OfSet(a.pauses) * time.Duration(max(crowd/2, a.client.keeper.waiters.Load())) / crowd, nil
	}
	expiry := time.Time{}
	if a.held != nil && a.held.Remaining > 0 {
		expiry = a.returned.Add(a.held.Remaining)
	}
	return a.poll.Next(expiry), nil
}
