package postgres

import (
	"context"
	"errors"
	"fmt"
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
	replyLimit    = time.Second            // after which the error of a wait says that there is no reply
)

var checkInPeriod = 2 * time.Second // in case a notification is lost

// Acquire implements [dlock.Acquirer]. The token is in the queue of the key until a release gives the key to it, and
// notifies this process. Because a notification can be lost, the wait also looks every two seconds, and when the holder's
// lease ends. If the token is released through the same Locker during the wait, that ends with [dlock.ErrReleased].
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := ctx.Err(); err != nil {
		return dlock.Attempt{}, err
	}
	if err := l.check(call{op: enqueue, key: key, token: token, ttl: ttl}); err != nil {
		return dlock.Attempt{}, err
	}
	if l.unqueued {
		return dlock.Attempt{}, &dlock.NoEffectError{Err: errors.ErrUnsupported}
	}
	w := &wait{
		l: l, ctx: ctx, key: key, token: token, ttl: ttl, heard: storewait.Of(ctx),
		answers: make(chan result, 1), bell: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
	}
	if !l.post.join(w) {
		return dlock.Attempt{}, &dlock.NoEffectError{Err: dlock.ErrClosed}
	}
	defer w.timer.Stop()
	a, err := w.run()
	l.post.leave(w, a.Acquired)
	return a, err
}

// A wait is one call of Acquire. It has at most one call to the server that waits for a lane or is in flight.
type wait struct {
	l      *Locker
	ctx    context.Context
	key    string
	token  string
	ttl    time.Duration
	number int64 // of the wait in this process
	heard  storewait.Listener

	answers chan result
	bell    chan struct{} // there is mail
	timer   *time.Timer

	asked    bool // once, at least
	calling  bool
	withdraw func() bool
	again    bool // another call follows the one in flight
	queued   bool // as far as is known
	unsure   bool // an enqueue failed, and may still take effect
	called   time.Time
	box      int64         // that the last call named
	bare     time.Time     // since when the server answers calls that name none
	last     result        // the last answer that says where the token is; its clock dates messages
	held     dlock.Attempt // the last answer "held"
	failure  error         // of the last call
	fails    int

	mail // guarded by the mutex of the post
}

// Mail is what a wait has yet to read.
type mail struct {
	changed  bool // the inbox has opened, or was lost
	released bool // the token is being released
	grant    *message
}

// A message is a notification: a grant with the end of its lease less the TTL, on the server's clock.
type message struct {
	fence       int64
	since, made int64
}

func (w *wait) run() (dlock.Attempt, error) {
	w.send()
	for {
		var a dlock.Attempt
		var err error
		select {
		case <-w.ctx.Done():
			return w.end(w.ended())
		case <-w.l.post.open.Done():
			return w.end(dlock.ErrClosed)
		case r := <-w.answers:
			a, err = w.take(r)
		case <-w.bell:
			a, err = w.read(w.l.post.take(w))
		case <-w.timer.C:
			w.send()
		}
		if a.Acquired || err != nil {
			return a, err
		}
	}
}

// send makes the next call. If one is in flight, the next one follows its answer.
func (w *wait) send() {
	if w.calling {
		w.again = true
		return
	}
	w.asked, w.again, w.called, w.box = true, false, time.Now(), w.l.post.box()
	c := call{op: checkIn, key: w.key, token: w.token, ttl: w.ttl, box: w.box, number: w.number, ticket: w.last.ticket}
	if !w.queued {
		c.op, c.patience = enqueue, w.patience()
	}
	w.calling = true
	w.withdraw = w.l.lanes.Put(w.ctx, c, func(_ time.Time, r result) { w.answers <- r })
}

// patience is for how long a message is not too late; 0 for ever. What a call may take is taken off, at most 10 ms.
func (w *wait) patience() time.Duration {
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
		w.queued, w.last.clock = false, 0
		w.send()
		return dlock.Attempt{}, nil
	}
	w.queued, w.last = true, r
	if w.again { // the inbox may have changed since the call was sent: the answer dates nothing
		w.last.clock = 0
	}
	if len(r.holder) > 0 {
		w.held = r.attempt()
		w.held.Since = time.Now()
	}
	if w.again {
		w.send()
		return dlock.Attempt{}, nil
	}
	w.noteInbox()
	w.timer.Reset(w.pause(r))
	return dlock.Attempt{}, nil
}

// noteInbox reports a wait whose calls the server answers, while its inbox cannot be opened.
func (w *wait) noteInbox() {
	switch {
	case w.box != 0:
		w.bare = time.Time{}
		return
	case w.bare.IsZero():
		w.bare = time.Now()
	}
	if err := w.l.post.missingSince(w.bare); err != nil {
		w.heard.NoInbox(err)
	}
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

// pause returns when the next check-in is due.
func (w *wait) pause(r result) time.Duration {
	if w.box == 0 {
		return min(pollPeriod*time.Duration(1+r.ahead), max(w.ttl/6, 5*time.Millisecond))
	}
	pause := checkInPeriod - 200*time.Millisecond + chance.N(400*time.Millisecond)
	switch {
	case len(r.holder) == 0:
		pause = reservePeriod
	case micros(r.remaining) < pause:
		pause = micros(r.remaining) + time.Millisecond + expiryStagger*time.Duration(r.ahead)
	}
	return pause
}

// failed ends the wait with the error of a call, or schedules the next one. An enqueue that may still take effect ends it.
func (w *wait) failed(r result) (dlock.Attempt, error) {
	w.unsure = w.unsure || !w.queued && !dlock.NoEffect(r.err)
	if w.last.ticket == 0 || w.unsure || errors.Is(r.err, dlock.ErrClosed) {
		return w.end(r.err)
	}
	w.failure, w.fails = r.err, w.fails+1
	w.heard.Failed(r.sent, r.err)
	pause := retryPause << min(w.fails, 4)
	w.timer.Reset(pause/2 + chance.N(pause/2))
	return dlock.Attempt{}, nil
}

// read acts on mail.
func (w *wait) read(m mail) (dlock.Attempt, error) {
	switch g := m.grant; {
	case m.released:
		return w.end(dlock.ErrReleased)
	case g != nil && !m.changed && w.last.clock != 0 && g.made > w.last.clock:
		return dlock.Attempt{Acquired: true, Since: w.last.local(g.since), Fence: g.fence}, nil
	case m != mail{}:
		w.last.clock = 0 // the next message may come from another server
		w.send()
	}
	return dlock.Attempt{}, nil
}

// ended returns the error of a wait whose ctx has ended, with that of the last call.
func (w *wait) ended() error {
	failure := w.failure
	if since := time.Since(w.called); failure == nil && w.calling && since >= replyLimit {
		failure = fmt.Errorf("no reply for %v", since.Round(time.Millisecond))
	}
	if failure == nil {
		return w.ctx.Err()
	}
	return fmt.Errorf("%w: %w", w.ctx.Err(), failure)
}

// end ends a wait without a grant. The error says that there was no effect if the wait has left nothing, or only a place in the
// queue, which the holder beside the error implies. A check-in in flight does no harm: it does nothing for a token that is not
// in the queue.
func (w *wait) end(err error) (dlock.Attempt, error) {
	if w.calling && !w.withdraw() {
		if late := w.l.post.outlived(w); !w.queued {
			return w.held, &dlock.UnansweredError{Err: err, Late: late}
		}
	}
	switch {
	case !w.unsure && (w.last.ticket == 0 || w.held != dlock.Attempt{}):
		return w.held, &dlock.NoEffectError{Err: err}
	case dlock.NoEffect(err):
		return w.held, errors.Join(err)
	}
	return w.held, err
}
