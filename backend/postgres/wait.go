package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/storewait"
)

const (
	expiryStagger = 25 * time.Millisecond
	reservePeriod = 500 * time.Millisecond // while the key is reserved for one that polls
	pollPeriod    = 100 * time.Millisecond // of the first waiter without an inbox; twice that for the second, and so on
	recovery      = 3 * time.Second        // after an outage, an inbox may be late by that
	retryPause    = 100 * time.Millisecond // after a failed call; doubled four times
)

var checkInPeriod = 2 * time.Second // in case a notification is lost

// Acquire implements [dlock.Acquirer]. The token is in the queue of the key until a release gives the key to it, and
// notifies this process. Because a notification can be lost, the wait also looks every two seconds, and when the holder's
// lease ends. If the token is released through the same Locker during the wait, that ends with [dlock.ErrReleased].
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	w := &wait{
		call: call{op: enqueue, key: key, token: token, ttl: ttl},
		l:    l, ctx: ctx, heard: storewait.Of(ctx), answers: make(chan result, 1),
		mail: make(chan message, 1), over: make(chan struct{}),
	}
	if err := l.check(ctx, w.call); err != nil {
		return dlock.Attempt{}, err
	}
	if !l.post.join(w) {
		return dlock.Attempt{}, &dlock.NoEffectError{Err: dlock.ErrClosed}
	}
	a, err := w.run()
	l.post.leave(w, a.Acquired)
	return a, err
}

// A wait is one call of Acquire. It has at most one call to the server that waits for a lane or is in flight.
type wait struct {
	call  // the last one
	l     *Locker
	ctx   context.Context
	heard storewait.Listener

	answers chan result
	mail    chan message
	next    <-chan time.Time // when the next call is due
	stop    context.Context  // until Close, or until the token is being released
	quit    context.CancelCauseFunc
	over    chan struct{} // closed when the wait is over, and its last call was answered

	calling  bool
	withdraw func() bool
	again    bool // another call follows the one in flight
	queued   bool // as far as is known
	unsure   bool // an enqueue failed, and may still take effect
	called   time.Time
	last     result        // the last answer, if it says where the token is: its clock dates messages to its inbox
	held     dlock.Attempt // the last answer "held"
	failure  error         // of the last call
	fails    int
}

// A message is a notification: a grant with the end of its lease less the TTL, on the server's clock. The zero value says
// that the inbox has changed.
type message struct {
	box         int64 // the inbox that it came to
	fence       int64
	since, made int64
}

// tell gives a wait a message, unless it has one to read: that one makes it look.
func (w *wait) tell(m message) {
	select {
	case w.mail <- m:
	default:
	}
}

func (w *wait) run() (a dlock.Attempt, err error) {
	for w.send(); !a.Acquired && err == nil; {
		select {
		case <-w.ctx.Done():
			return w.end(storewait.Ended(w.ctx, w.failure, w.called))
		case <-w.stop.Done():
			return w.end(context.Cause(w.stop))
		case r := <-w.answers:
			a, err = w.take(r)
		case m := <-w.mail:
			a = w.read(m)
		case <-w.next:
			w.send()
		}
	}
	if a.Acquired && context.Cause(w.stop) == dlock.ErrReleased {
		return w.end(dlock.ErrReleased)
	}
	return a, err
}

// send makes the next call. If one is in flight, the next one follows its answer.
func (w *wait) send() {
	if w.calling {
		w.again = true
		return
	}
	w.op, w.box, w.patience = enqueue, w.l.post.inbox.Load(), w.rest()
	if w.queued {
		w.op = checkIn
	}
	w.again, w.next, w.calling, w.called = false, nil, true, time.Now()
	w.withdraw = w.l.lanes.Put(w.ctx, w.call, func(sent time.Time, r result) {
		r.sent, r.box = sent, w.box
		w.answers <- r
	})
}

// rest is for how long a message is not too late; 0 for ever. What a call may take is taken off, at most 10 ms.
func (w *wait) rest() time.Duration {
	end, ends := w.ctx.Deadline()
	if !ends {
		return 0
	}
	left := time.Until(end)
	return max(time.Millisecond, left-min(left/2, 10*time.Millisecond))
}

// take acts on an answer. It returns a grant, an error, or neither if the wait goes on.
func (w *wait) take(r result) (dlock.Attempt, error) {
	w.calling, w.called = false, time.Time{}
	if r.err != nil {
		return w.failed(r)
	}
	w.failure, w.fails = nil, 0
	w.heard.Answered()
	switch r.verdict {
	case yes:
		return dlock.Attempt{Acquired: true, Since: r.sent, Fence: r.fence}, nil
	case found:
		return dlock.Attempt{Acquired: true, Since: r.local(r.since), Fence: r.fence}, nil
	case missing:
		w.queued, w.last = false, result{}
		w.send()
		return dlock.Attempt{}, nil
	}
	w.queued, w.ticket, w.last = true, r.ticket, r
	if len(r.holder) > 0 {
		w.held = r.attempt()
		w.held.Since = time.Now()
	}
	if err := w.l.post.missing(w.box); err != nil {
		w.heard.NoInbox(err)
	}
	w.next = time.After(w.pause(r))
	return dlock.Attempt{}, nil
}

// local returns an instant of the server's clock on this process's: one that was not later. It is never in the future,
// even if the server's clock was set forward.
func (r *result) local(at int64) time.Time {
	since, now := r.sent.Add(micros(at-r.clock)-time.Millisecond), time.Now()
	if since.After(now) {
		return now
	}
	return since
}

// pause returns when the next call is due.
func (w *wait) pause(r result) time.Duration {
	switch pause := checkInPeriod - 200*time.Millisecond + chance.N(400*time.Millisecond); {
	case w.again:
		return 0
	case w.box == 0:
		return min(pollPeriod*time.Duration(1+r.ahead), max(w.ttl/6, 5*time.Millisecond))
	case len(r.holder) == 0:
		return reservePeriod
	case micros(r.remaining) < pause:
		return micros(r.remaining) + time.Millisecond + expiryStagger*time.Duration(r.ahead)
	default:
		return pause
	}
}

// failed ends the wait with the error of a call, or schedules the next one. An enqueue that may still take effect ends it.
func (w *wait) failed(r result) (dlock.Attempt, error) {
	w.unsure = w.unsure || !w.queued && !dlock.NoEffect(r.err)
	if w.ticket == 0 || w.unsure || errors.Is(r.err, dlock.ErrClosed) {
		return w.end(r.err)
	}
	w.failure, w.fails = r.err, w.fails+1
	w.heard.Failed(r.sent, r.err)
	pause := retryPause << min(w.fails, 4)
	w.next = time.After(pause/2 + chance.N(pause/2))
	return dlock.Attempt{}, nil
}

// read acts on a message. The last answer dates it if that was to a call that named the inbox: otherwise another server may
// have sent it.
func (w *wait) read(m message) dlock.Attempt {
	if m.box != w.last.box || m.made <= w.last.clock {
		w.send()
		return dlock.Attempt{}
	}
	return dlock.Attempt{Acquired: true, Since: w.last.local(m.since), Fence: m.fence}
}

// end ends a wait without a grant. The error says that there was no effect if the wait has left nothing, or only a place in the
// queue, which the holder beside the error implies. A check-in in flight does no harm: it does nothing for a token that is not
// in the queue.
func (w *wait) end(err error) (dlock.Attempt, error) {
	w.calling = w.calling && !w.withdraw()
	switch {
	case w.calling && !w.queued:
		return w.held, &dlock.UnansweredError{Err: err, Late: w.late}
	case !w.unsure && (w.ticket == 0 || w.held != dlock.Attempt{}):
		return w.held, &dlock.NoEffectError{Err: err}
	case dlock.NoEffect(err):
		return w.held, errors.Join(err)
	}
	return w.held, err
}

// late calls f with the answer to the call that was in flight when the wait ended.
func (w *wait) late(f func(dlock.Attempt, error)) {
	go func() {
		<-w.over
		a := w.last.attempt()
		a.Acquired = a.Acquired || w.last.verdict == waiting // there is something to release: its place
		f(a, w.last.err)
	}()
}
