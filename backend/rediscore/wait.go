package rediscore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
)

// How often a waiter asks whether it has been served. One that has not asked for
// five seconds counts as dead; without an inbox for two, or for its TTL (queue.lua).
const (
	askPeriod  = 2200 * time.Millisecond
	askJitter  = 400 * time.Millisecond
	deafPeriod = 100 * time.Millisecond // without an inbox, for the first in the queue
	maxDeaf    = time.Second            // without an inbox, for all others
	deafShare  = 6                      // without an inbox, of a short TTL
	minDeaf    = 5 * time.Millisecond   // however short the TTL is
	nextAsk    = 25 * time.Millisecond  // after a lease has run out: the first asks, then the second
	noReply    = time.Second            // of a call, after which it is told
	comePeriod = 500 * time.Millisecond // while the lock is free for the first, who has no inbox
)

// maxPassed is how often a waiter that has an inbox may lose its place. Once can be a
// pause of the process. Then the inbox must be heard of on another server than the lock,
// such as a former master: the waiter does without.
const maxPassed = 2

// Acquire implements [dlock.Acquirer]. The token is in the queue of the lock until a release
// hands the lock to it. A message tells the waiter. In case the message is lost, the waiter
// polls about every two seconds, and when a lease runs out. If the token is released through
// the same Locker during the wait, the wait ends with [dlock.ErrReleased], or is never granted
// the lock.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := l.check(ctx, key, token, ttl); err != nil {
		return dlock.Attempt{}, err
	}
	if l.unqueued {
		return dlock.Attempt{}, mark(errors.ErrUnsupported)
	}
	waiter := l.post.join(key, token, l.keys.of(l.prefix, key).slot)
	if waiter == nil {
		return dlock.Attempt{}, mark(dlock.ErrClosed)
	}
	w := &wait{
		locker:  l,
		ctx:     ctx,
		key:     key,
		token:   token,
		ttl:     ttl,
		waiter:  waiter,
		answers: make(chan answer, 1),
		timer:   time.NewTimer(time.Hour),
	}
	attempt, err := w.run()
	w.timer.Stop()
	if w.calling {
		w.outlive()
	}
	l.post.leave(token, w.waiter, attempt.Acquired)
	return attempt, err
}

// A wait is one call of Acquire. It makes one call to the server at a time.
type wait struct {
	locker  *Locker
	ctx     context.Context
	key     string
	token   string
	ttl     time.Duration
	waiter  *waiter
	answers chan answer // of capacity 1
	timer   *time.Timer // when to ask

	calling  bool      // a call is on its way
	called   time.Time // when the last call was made
	again    bool      // another is to follow
	queued   bool      // as far as is known
	unsure   bool      // an attempt to queue was given up, and may still be on its way
	failures int       // of calls, in a row
	failure  error     // of the last of them
	passed   int       // how often it lost its place though its inbox was known
	ticket   string
	told     string // the address of the inbox that the server knows
	held     dlock.Attempt

	// What the server's clock showed, not before the time sent. It is zero if
	// it may have become that of another server meanwhile.
	clock int64
	sent  time.Time
	early handover // has overtaken the answer to the call, which is to date it; the zero handover if none has
}

// An answer is what a call has returned that was made at sent.
type answer struct {
	sent    time.Time
	script  *Script
	address string
	reply   any
	err     error
}

func (w *wait) run() (dlock.Attempt, error) {
	w.send()
	for {
		select {
		case <-w.ctx.Done():
			return w.end(w.ended())
		case <-w.locker.post.open.Done():
			return w.close()
		case a := <-w.answers:
			attempt, err := w.take(a)
			if err != nil || attempt.Acquired {
				return attempt, err
			}
		case h := <-w.waiter.granted:
			w.noteChange()
			if w.clock != 0 {
				return w.grant(h), nil
			}
			if w.calling && !w.again {
				w.early = h
			}
			w.told = "" // this grant will not be told again
			w.send()
		case <-w.waiter.changed:
			w.change()
			w.send()
		case <-w.timer.C:
			w.send()
		}
	}
}

// ended is the error of a wait whose ctx has ended. It wraps why the last call has
// failed too, if it has, or that there is no reply to it for longer than a server takes.
func (w *wait) ended() error {
	failure, since := w.failure, time.Since(w.called)
	if failure == nil && w.calling && since >= noReply {
		failure = fmt.Errorf("no reply for %v", since.Round(time.Millisecond))
	}
	if failure == nil {
		return w.ctx.Err()
	}
	return fmt.Errorf("%w: %w", w.ctx.Err(), failure)
}

// noteChange notes a change of the inbox that came before a message or an answer.
func (w *wait) noteChange() {
	select {
	case <-w.waiter.changed:
		w.change()
	default:
	}
}

// change forgets what may be of another server than what comes through the inbox from
// now on. An ask is to follow.
func (w *wait) change() { w.clock, w.early, w.again = 0, handover{}, true }

// outlive waits in the background for the answer to a call that is on its way when the
// wait ends. The call may come to the server after the release of the token, which is
// repeated then.
func (w *wait) outlive() {
	post, answered := w.locker.post, make(chan struct{})
	post.outlived(w.token, w.waiter, answered)
	post.start(func() {
		<-w.answers
		missed := post.late(w.token, answered)
		close(answered)
		if missed {
			_ = w.locker.giveBack(w.ctx, w.key, w.token)
		}
	})
}

// end is how a wait ends without a grant. The error is marked if nothing can be left of the
// wait, or nothing but the place in the queue, which the holder beside the error tells. An
// ask that is on its way does no harm: it does nothing for a token that is not in the queue.
func (w *wait) end(err error) (dlock.Attempt, error) {
	if w.calling && !w.queued || w.unsure || w.ticket != "" && w.held == (dlock.Attempt{}) {
		return w.held, unmark(err)
	}
	return w.held, mark(err)
}

// left notes that nothing is left of the wait on the server, but what may be on its way.
func (w *wait) left() { w.ticket, w.held = "", dlock.Attempt{} }

// close gives back what the token has, or may be given by a call that is on its way.
func (w *wait) close() (dlock.Attempt, error) {
	if w.calling {
		w.received(<-w.answers)
	}
	if w.locker.giveBack(w.ctx, w.key, w.token) == nil {
		w.left()
	}
	return w.end(dlock.ErrClosed)
}

// received notes that the call is not on its way any more, as far as its error tells.
func (w *wait) received(a answer) {
	w.calling = false
	if a.err != nil && a.script == enqueueScript && !marked(a.err) {
		w.unsure = true
	}
}

// grant dates a grant of which a message tells. It was made at least so long after
// w.sent as the server's clock has moved on since it was read.
func (w *wait) grant(h handover) dlock.Attempt {
	since := w.sent.Add(time.Duration(h.time-w.clock)*time.Microsecond - time.Millisecond)
	return dlock.Attempt{Acquired: true, Since: since, Fence: h.fence}
}

// send asks the server, or goes (back) into the queue.
func (w *wait) send() {
	if w.calling {
		w.again = true
		return
	}
	address := w.waiter.address()
	if w.passed >= maxPassed {
		address = ""
	}
	script, args := w.next(address)
	w.again, w.early, w.called = false, handover{}, time.Now()
	w.calling = w.locker.post.start(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), callLimit)
		defer cancel()
		a := answer{sent: time.Now(), script: script, address: address}
		a.reply, a.err = w.locker.eval(ctx, script, w.key, args...)
		w.answers <- a
	})
}

func (w *wait) next(address string) (script *Script, args []string) {
	if w.queued {
		return askScript, []string{w.token, address}
	}
	return enqueueScript, []string{w.token, milliseconds(w.ttl), address, w.ticket}
}

// take acts on an answer. It returns a grant or an error, or nothing if the wait
// goes on.
func (w *wait) take(a answer) (dlock.Attempt, error) {
	state, n, holder, err := parseAnswer(&a)
	w.received(a)
	if err != nil {
		return w.failed(err)
	}
	w.failures, w.failure = 0, nil
	switch state {
	case answerGranted:
		return dlock.Attempt{Acquired: true, Since: a.sent, Fence: n[0]}, nil
	case answerFound:
		if w.told != "" && w.told == a.address {
			w.locker.post.found(w.token, w.waiter)
		}
		w.sent, w.clock = a.sent, n[2]
		return w.grant(handover{fence: n[0], time: n[1]}), nil
	case answerUnknown:
		if w.locker.post.isReleased(w.token) {
			w.left()
			return w.end(dlock.ErrReleased)
		}
		// A message that is read from now on is not the last word on the token,
		// which is on its way back into the queue: the answer to that is.
		w.queued, w.clock = false, 0
		if a.address != "" && a.address == w.told {
			if w.passed++; w.passed == maxPassed {
				w.locker.post.passedOver(w.waiter)
			}
		}
		w.send()
	default:
		return w.waits(a, n, holder), nil
	}
	return dlock.Attempt{}, nil
}

// failed ends the wait with the error of a call, or plans the next one.
func (w *wait) failed(err error) (dlock.Attempt, error) {
	switch {
	case forbidden(err): // for as long as it waits
		return w.end(lacksRights(err))
	case w.ticket == "", errors.Is(err, dlock.ErrClosed):
		return w.end(err)
	}
	w.failures, w.failure = w.failures+1, err
	pause := minPause << min(w.failures, 4)
	w.pause(pause/2 + rand.N(pause/2)) // not all waiters at once
	return dlock.Attempt{}, nil
}

func lacksRights(err error) error {
	return fmt.Errorf("%w: the Redis user lacks the rights to queue (ZADD, PUBLISH and others): "+
		"see the package documentation of rediscore, or use WithQueue(false): %w", dlock.ErrInvalid, err)
}

// waits plans the next ask of a waiter that stands in the queue, or returns the grant
// that was made since the answer, if its message was here first.
func (w *wait) waits(a answer, n []int64, holder string) dlock.Attempt {
	ticket, rank, clock, rest := n[0], time.Duration(n[1]), n[2], remaining(n[3])
	w.queued, w.ticket = true, strconv.FormatInt(ticket, 10)
	w.noteChange()
	if w.early.time > clock {
		w.sent, w.clock = a.sent, clock
		return w.grant(w.early)
	}
	if !w.again { // else the inbox may have changed since, or a message have come
		w.sent, w.clock, w.told = a.sent, clock, a.address
	}
	w.held = dlock.Attempt{Since: time.Now(), Holder: holder, Remaining: rest}
	period := askPeriod - askJitter/2 + rand.N(askJitter)
	if a.address == "" {
		share := max(w.ttl/deafShare, minDeaf)
		period = min(deafPeriod*(rank+1), maxDeaf, share) + rand.N(min(deafPeriod, share))
	}
	switch {
	case rank > 1 || rest < 0:
	case holder == "": // another is to come for it
		period = min(period, comePeriod)
	default:
		period = min(period, rest+time.Millisecond+rank*nextAsk)
	}
	w.pause(period)
	return dlock.Attempt{}
}

// pause asks again after d, or at once if that was wanted meanwhile.
func (w *wait) pause(d time.Duration) {
	if w.again {
		d = 0
	}
	w.timer.Reset(d)
}

// The first numbers of answers, as in ask.lua.
const (
	answerGranted = iota
	answerWaits
	answerFound
	answerUnknown
)

// parseAnswer reads an answer of enqueue.lua or ask.lua: the numbers after the
// first, and the holder if there is one.
func parseAnswer(a *answer) (state int64, n []int64, holder string, err error) {
	if a.err != nil {
		return 0, nil, "", a.err
	}
	reply, _ := a.reply.([]any)
	for _, r := range reply {
		switch r := r.(type) {
		case int64:
			n = append(n, r)
		case string:
			holder = r
		}
	}
	wanted := map[int64]int{answerGranted: 2, answerWaits: 5, answerFound: 4, answerUnknown: 1}
	if len(n) == 0 || len(n) != wanted[n[0]] {
		a.err = unexpected(a.reply)
		return 0, nil, "", a.err
	}
	return n[0], n[1:], holder, nil
}

// giveBack releases what was granted to a token that is used no more. A failure
// leaves the lock to its TTL.
func (l *Locker) giveBack(ctx context.Context, key, token string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	_, err := l.eval(ctx, releaseScript, key, token)
	return err
}

// forbidden reports whether a server has refused a call since its user lacks a right.
// Servers say so in several ways, scripts in others.
func forbidden(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.HasPrefix(text, "NOPERM") ||
		strings.Contains(text, "The user executing the script") || // before Redis 7.2
		strings.Contains(text, "ACL failure in script")
}
