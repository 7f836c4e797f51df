package rediscore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/storewait"
)

// A check-in asks the server whether the waiter was granted the lock, and shows that the
// waiter is alive. A waiter that has not checked in for 5 s counts as dead; one without an
// inbox, for 2 s or its TTL if that is shorter (queue.lua).
const (
	checkInPeriod = 2200 * time.Millisecond
	checkInJitter = 400 * time.Millisecond
	expiryStagger = 25 * time.Millisecond  // after the end of a lease, between the check-ins of the first two waiters
	reservePeriod = 500 * time.Millisecond // of the first two, while the lock is reserved for the first

	// Without an inbox, the period is unsubscribedPeriod for the first waiter, twice that for
	// the second and so on, but at most maxUnsubscribed and at most a share of the TTL.
	unsubscribedPeriod = 100 * time.Millisecond
	maxUnsubscribed    = time.Second
	minUnsubscribed    = 5 * time.Millisecond
	unsubscribedShare  = 6

	retryPause = 100 * time.Millisecond // after a failed call; doubled four times
	mostHaste  = 100 * time.Millisecond // at most so long before a wait ends, a message counts as too late: see patience
)

// maxPassedOver is how many times a waiter with an inbox may lose its place. Once can be a
// pause of the process. After the second time the inbox is probably on another server than
// the lock, such as a former master. The inbox is opened again, and until then the waiter goes on without it.
const maxPassedOver = 2

// Acquire implements [dlock.Acquirer]. The token is in the queue of the lock until a release hands
// the lock to it and sends the waiter a message. Because the message can be lost, the waiter also
// checks in with the server about every two seconds, and when the holder's lease ends. If the token
// is released through the same Locker during the wait, the wait ends with [dlock.ErrReleased]. So
// does a wait whose grant a call in flight may still release.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := l.check(ctx, key, token, ttl); err != nil {
		return dlock.Attempt{}, err
	}
	if l.unqueued {
		return dlock.Attempt{}, mark(errors.ErrUnsupported)
	}
	if err := l.post.use(key, token); err != nil {
		return dlock.Attempt{}, err
	}
	return newWait(l, ctx, key, token, ttl).do()
}

// A wait is one call of Acquire or AcquireVote. It has at most one call to the server that waits for a lane or is in flight.
type wait struct {
	locker  *Locker
	ctx     context.Context
	key     string
	token   string
	ttl     time.Duration
	vote    []string // of AcquireVote: the place and the floor
	inbox   *inbox
	answers chan answer // of capacity 1
	heard   storewait.Listener
	bell    chan struct{} // of capacity 1: there is mail
	timer   *time.Timer   // of the next call, unless it rests
	recall  func() bool   // withdraws the last call, and reports whether it was not sent

	asked      int          // the epoch of the inbox then
	calling    bool         // it waits for a lane or is in flight
	again      bool         // another call follows when it is answered
	queued     bool         // as far as is known
	returned   bool         // it had lost its place since it rested; so may others of its room
	bare       time.Time    // when the first call was answered of those without an inbox in a row; or zero
	unsure     bool         // an enqueue failed, and may still reach the server
	enqueuing  *lateEnqueue // was in flight when the wait ended; or nil
	failures   int          // of calls, in a row
	passedOver int          // how many times it lost its place although its inbox was registered, in this epoch
	ticket     string
	registered string        // the address of the inbox that the server has
	ballot     quorum.Ballot // of the last answer to AcquireVote
	early      handover      // a message that overtook the answer in flight, which will date it; or zero
	news

	// Guarded by the mutex of the post.
	mail   mail
	joined int   // how many waits of the post had joined before it, and itself
	room   *room // nil if it is in none
	number int64 // its ticket there
}

// Mail is what a wait has yet to read.
type mail struct {
	changed  bool     // the inbox was opened or lost
	released bool     // the token is being released
	granted  handover // the first message; or zero
	due      bool     // it is to check in
}

// An answer is the result of a call that was made at sent.
type answer struct {
	sent    time.Time
	script  *Script
	address string
	reply   any
	err     error
}

func newWait(l *Locker, ctx context.Context, key, token string, ttl time.Duration) *wait {
	return &wait{
		locker: l, ctx: ctx, key: key, token: token, ttl: ttl,
		answers: make(chan answer, 1), bell: make(chan struct{}, 1), heard: storewait.Of(ctx),
	}
}

func (w *wait) do() (dlock.Attempt, error) {
	post := w.locker.post
	if !post.join(w, int(w.locker.keysOf(w.key).slot)) {
		return dlock.Attempt{}, mark(dlock.ErrClosed)
	}
	w.timer = time.NewTimer(time.Hour)
	attempt, err := w.run()
	w.timer.Stop()
	post.quit(w)
	if w.withdraw(); w.calling {
		post.outlived(w)
	}
	post.leave(w, attempt.Acquired)
	return attempt, err
}

func (w *wait) run() (dlock.Attempt, error) {
	w.send()
	for {
		select {
		case <-w.ctx.Done():
			w.news = w.locker.post.latest(w)
			err := storewait.Ended(w.ctx, w.failure, w.called)
			w.withdraw()
			return w.end(err)
		case <-w.locker.post.open.Done():
			return w.close()
		case a := <-w.answers:
			attempt, err := w.take(a)
			if err != nil || attempt.Acquired {
				return attempt, err
			}
		case <-w.bell:
			attempt, err := w.read(w.locker.post.take(w))
			if err != nil || attempt.Acquired {
				return attempt, err
			}
		case <-w.timer.C:
			w.send()
		}
	}
}

// read acts on mail. It returns a grant, an error, or neither if the wait goes on.
func (w *wait) read(m mail) (dlock.Attempt, error) {
	if m == (mail{}) {
		return dlock.Attempt{}, nil
	}
	if m.released {
		w.withdraw()
		return w.end(dlock.ErrReleased)
	}
	if m.changed {
		w.change()
	}
	if h := m.granted; h != (handover{}) {
		switch {
		case w.locker.replicas != nil: // whether they have it is known when the waiter has asked
		case w.clock != 0 && h.time > w.clock:
			w.news = w.locker.post.latest(w)
			return w.grant(h), nil
		case w.clock == 0 && w.calling && !w.again:
			w.early = h
		} // a message that is older than the answer may be of a grant that is over
		w.registered = "" // no second message will come for this grant
	}
	w.send()
	return dlock.Attempt{}, nil
}

// change forgets what the server said before the inbox changed: the inbox may be on another
// server now. A check-in follows.
func (w *wait) change() { w.clock, w.early, w.again = 0, handover{}, true }

// withdraw takes back a call that was not sent yet. It has no effect then.
func (w *wait) withdraw() {
	if w.calling && w.recall() {
		w.calling = false
	}
}

// end ends a wait without a grant. The error says that there was no effect if the wait has
// left nothing on the server, or only a place in the queue, which the holder beside the error
// implies. A check-in in flight does no harm: it does nothing for a token that is not queued.
func (w *wait) end(err error) (dlock.Attempt, error) {
	switch {
	case w.unsure, w.ticket != "" && w.held == (dlock.Attempt{}):
		return w.held, unmark(err)
	case w.calling && !w.queued:
		w.enqueuing = new(lateEnqueue)
		return w.held, &dlock.UnansweredError{Err: unmark(err), Late: w.enqueuing.then}
	}
	return w.held, mark(err)
}

// forgetTicket notes that the token is not in the queue any more.
func (w *wait) forgetTicket() { w.ticket, w.held = "", dlock.Attempt{} }

// close releases the token, after the answer to the call in flight.
func (w *wait) close() (dlock.Attempt, error) {
	left := false // something of an enqueue that was answered
	if w.withdraw(); w.calling {
		a := <-w.answers
		left = !w.queued && a.err == nil
		w.received(a)
	}
	if _, err := w.locker.giveBack(w.ctx, w.key, w.token); err == nil {
		w.forgetTicket()
	} else {
		w.unsure = w.unsure || left
	}
	return w.end(dlock.ErrClosed)
}

// received notes that the call in flight was answered, or has failed.
func (w *wait) received(a answer) {
	w.calling, w.called = false, time.Time{}
	if a.err == nil {
		w.locker.noteTrip(time.Since(a.sent))
	}
	if a.err != nil && (a.script == enqueueScript || a.script == enlistScript) && !dlock.NoEffect(a.err) {
		w.unsure = true
	}
}

// grant dates the grant of a message. On the server's clock, it was made h.time-w.clock after
// the clock was read, which was not before w.sent.
//
// The age of the store in the last answer holds for the grant too. If the store has lost its data
// since, the token is in no queue there until it has got another answer. If the store was
// restarted or replaced, the inbox has changed.
func (w *wait) grant(h handover) dlock.Attempt {
	w.ballot.Clock = max(w.ballot.Clock, h.time)
	since := w.sent.Add(time.Duration(h.time-w.clock)*time.Microsecond - time.Millisecond)
	return dlock.Attempt{Acquired: true, Since: since, Fence: h.fence}
}

// send makes the next call, a check-in or an enqueue. If a call is in flight, the next one
// follows its answer.
func (w *wait) send() {
	if w.calling {
		w.again = true
		return
	}
	address, epoch := w.inbox.address(w.queued)
	if epoch != w.asked {
		w.passedOver = 0
	}
	if w.passedOver >= maxPassedOver {
		address = ""
	}
	script, args := w.next(address)
	w.again, w.early, w.asked, w.called = false, handover{}, epoch, time.Now()
	w.calling = true
	w.locker.post.tell(w)
	w.recall = w.locker.lanes.Put(w.ctx, w.locker.call(script, w.key, args...), func(sent time.Time, r Result) {
		w.answers <- answer{sent: sent, script: script, address: address, reply: r.Reply, err: r.Err}
	})
}

func (w *wait) next(address string) (script *Script, args []string) {
	switch {
	case w.queued && w.vote != nil:
		return attendScript, []string{w.token, address}
	case w.queued:
		return checkInScript, []string{w.token, address}
	case w.vote != nil:
		return enlistScript, []string{w.token, milliseconds(w.ttl), address, w.vote[0], w.patience(), w.vote[1]}
	}
	return enqueueScript, []string{w.token, milliseconds(w.ttl), address, w.ticket, w.patience()}
}

// patience is for how many ms a message to the wait is not too late, from when a call arrives that is sent now. It is
// empty if the wait has no end. What a call takes is taken off, but no more than mostHaste, and half of what is left: a call
// that was slow once must not make a wait lose its place.
func (w *wait) patience() string {
	end, ends := w.ctx.Deadline()
	if !ends {
		return ""
	}
	left := time.Until(end)
	left -= min(time.Duration(w.locker.trip.Load()), left/2, mostHaste)
	return strconv.FormatInt(max(0, left.Milliseconds()), 10)
}

// noteTrip notes how long a call took. What a single one took longer than those before counts for little.
func (l *Locker) noteTrip(took time.Duration) {
	if last := time.Duration(l.trip.Load()); last > 0 {
		took = min(took, last+last/8)
	}
	l.trip.Store(int64(max(took, time.Microsecond)))
}

// take acts on an answer. It returns a grant, an error, or neither if the wait goes on.
func (w *wait) take(a answer) (dlock.Attempt, error) {
	if a.err == nil && a.reply == unswept {
		w.calling = false
		w.send()
		return dlock.Attempt{}, nil
	}
	n, texts, ballot, err := parseReply(a.reply, a.err, waitReplies)
	a.err = err
	w.received(a)
	if err != nil {
		return w.failed(a.sent, err)
	}
	if ballot != nil {
		ballot.Fresh = ballot.Fresh || w.ticket != "" // it waited
		w.ballot = *ballot
	}
	w.failures, w.failure = 0, nil
	w.locker.post.report(w, a.sent, nil)
	switch n[0] {
	case answerGranted:
		return dlock.Attempt{Acquired: true, Since: a.sent, Fence: n[1]}, nil
	case answerFound:
		if w.registered != "" && w.registered == a.address {
			w.locker.post.found(w)
		}
		w.sent, w.clock = a.sent, n[3]
		return w.grant(handover{fence: n[1], time: n[2]}), nil
	case answerUnknown:
		if w.locker.post.isReleased(w.key, w.token) {
			w.forgetTicket()
			return w.end(dlock.ErrReleased)
		}
		// The token goes back into the queue. A message that is read from now on may be
		// older than the answer to that, which counts.
		w.queued, w.clock, w.returned = false, 0, true
		if a.address != "" && a.address == w.registered {
			if w.passedOver++; w.passedOver == maxPassedOver {
				w.locker.post.passedOver(w)
			}
		}
		w.send()
	case answerDeaf:
		w.inbox.isDeaf(w.asked)
		fallthrough
	default:
		return w.stillQueued(a, n[1:], texts), nil
	}
	return dlock.Attempt{}, nil
}

// failed ends the wait with the error of a call, or schedules the next call. An enqueue that may still
// reach the server ends it: it could take the lock for the token when the next one is granted and released.
func (w *wait) failed(sent time.Time, err error) (dlock.Attempt, error) {
	switch {
	case forbidden(err) && w.vote != nil: // a retry would fail too
		return w.end(lacksVotingRights(err))
	case w.ticket == "", w.unsure, errors.Is(err, dlock.ErrClosed), errors.Is(err, dlock.ErrInvalid):
		return w.end(err)
	}
	w.failures, w.failure = w.failures+1, err
	w.locker.post.report(w, sent, err)
	pause := retryPause << min(w.failures, 4)
	w.schedule(pause/2 + chance.N(pause/2)) // not all waiters at once
	return dlock.Attempt{}, nil
}

// stillQueued schedules the next check-in of a waiter that is in the queue. If a message
// overtook the answer and is of a later grant, it returns that grant.
func (w *wait) stillQueued(a answer, n []int64, texts [2]string) dlock.Attempt {
	ticket, rank, clock, left := n[0], time.Duration(n[1]), n[2], remaining(n[3])
	w.queued, w.ticket = true, strconv.FormatInt(ticket, 10)
	if w.locker.post.hasChanged(w) {
		w.change()
	}
	if w.early.time > clock {
		w.sent, w.clock = a.sent, clock
		return w.grant(w.early)
	}
	if !w.again { // else the inbox may have changed, or a message may have come
		w.sent, w.clock, w.epoch, w.registered = a.sent, clock, w.asked, a.address
	}
	w.held = refused(holdOf(texts[0], n[3], texts[1]))
	w.held.Since = time.Now()
	w.noteInbox(a)
	period := checkInPeriod - checkInJitter/2 + chance.N(checkInJitter)
	if a.address == "" {
		share := max(w.ttl/unsubscribedShare, minUnsubscribed)
		period = min(unsubscribedPeriod*(rank+1), maxUnsubscribed, share) + chance.N(min(unsubscribedPeriod, share))
	}
	switch {
	case rank > 1 || left < 0:
	case w.held.Holder == "": // reserved for another waiter
		period = min(period, reservePeriod)
	default:
		period = min(period, left+time.Millisecond+rank*expiryStagger)
	}
	switch {
	case w.again:
		w.schedule(0)
	case a.address != "" && w.vote == nil:
		w.timer.Stop()
		w.locker.post.rest(w, ticket, period)
	default:
		w.locker.post.quit(w)
		w.schedule(period)
	}
	return dlock.Attempt{}
}

// noteInbox reports a wait whose calls the server answers, while its inbox could not be opened.
func (w *wait) noteInbox(a answer) {
	switch {
	case a.address != "":
		w.bare = time.Time{}
		return
	case w.bare.IsZero():
		w.bare = time.Now()
	}
	if err := w.locker.post.missingSince(w.bare); err != nil {
		w.heard.NoInbox(err)
	}
}

// schedule makes the next call after d, or at once if one is due already.
func (w *wait) schedule(d time.Duration) {
	if w.again {
		d = 0
	}
	w.timer.Reset(d)
}

// The first numbers of answers, as in checkin.lua.
const (
	answerGranted = iota
	answerWaits
	answerFound
	answerUnknown
	answerDeaf // as answerWaits: nobody listens to the inbox
)

// waitReplies says how many numbers a reply of enqueue.lua, checkin.lua, enlist.lua or attend.lua has, by the first of them.
var waitReplies = map[int64]int{answerGranted: 2, answerWaits: 5, answerFound: 4, answerUnknown: 1, answerDeaf: 5}

// giveBack releases what was granted to a token that is no longer in use. If it fails, the
// lock is freed by its TTL.
func (l *Locker) giveBack(ctx context.Context, key, token string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	return l.release(ctx, releaseScript, key, token)
}

// forbidden reports whether a call failed because the user lacks a right. The wording depends
// on the version of the server, and on whether a script was running.
func forbidden(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.HasPrefix(text, "NOPERM") ||
		strings.Contains(text, "The user executing the script") || // before Redis 7.2
		strings.Contains(text, "ACL failure in script")
}
