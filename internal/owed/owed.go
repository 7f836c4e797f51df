// Package owed repeats calls to a server that has not answered them, until it does or they are of no use any more.
//
// While the server answers promptly, more and more calls are in flight at once. Where they stand in line for a few
// connections, there are few: they must not keep other calls waiting. A call without an answer is tried again after 0.1
// to 1 s, even if the last try still hangs. When several tries in a row got no answer, the server counts as away: then
// one call is tried every half second. Once one is answered, all others follow at once.
//
// At the end of its time a call is dropped if it still waits for its turn. If it does not, a last try is made: then it
// is dropped if that cannot be sent at once, or has no answer after a second.
package owed

import (
	"cmp"
	"container/list"
	"errors"
	"sync"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/workers"
)

const (
	maxCalls        = 100_000 // that a Queue has
	prompt          = 8       // tries in flight that have not hung, and one more for each prompt answer in a row
	maxPrompt       = 128     // so many at most
	maxInFlight     = 192     // tries in flight
	together        = 16      // times as many, at first, where the server gets those that are made at once together
	maxTogether     = 4       // likewise, at most
	away            = 8       // tries in a row without an answer
	hungAfter       = 500 * time.Millisecond
	promptly        = 20 * time.Millisecond  // a prompt answer takes this and twice the time of the fastest, at most
	firstRetryPause = 100 * time.Millisecond // before a call is tried again, doubled each time
	maxRetryPause   = time.Second            // while there is no answer
	awayPause       = 500 * time.Millisecond // between two tries of any, while the server is away
)

// Why a call is given up, if not for its own error.
var (
	ErrTooMany    = errors.New("too many are owed")
	ErrUnanswered = errors.New("no answer in time")
)

// A Call is owed by a Queue. Until Add, its fields are the caller's.
type Call struct {
	For  any           // what the caller knows of it
	Lane int           // 0 or 1: the two take turns
	TTL  time.Duration // it is of use for so long
	Err  error         // of the last try, or from the caller before the first one

	Light bool // no harm is done if it is given up

	// Held back, a call is not tried before Hold, if that is not zero. Meanwhile the caller makes other calls: see Kept; or
	// it waits for an answer: see Settle.
	Hold     time.Time
	Moot     bool // it is dropped at Hold
	Answered bool // nothing is to be heard of it before Hold

	// Guarded by the mutex of the Queue.
	state  state
	over   bool          // Hold has passed
	sure   bool          // the answer to a try from now on is final
	ended  bool          // by a final answer
	alarm  alarm.Alarm   // for the next try, but at the latest for the end of its time
	listed *list.Element // among all calls; nil once dropped
	ready  *list.Element // among those that are due; nil if it is not
	until  time.Time     // the end of its time
	sent   time.Time     // when the last try was sent
	tries  int           // since the last answer
	trying int           // tries in flight
}

// A state is what the server has said.
type state int

const (
	pending state = iota // nothing: Seal waits for it
	refused              // that it will not do it
	settled              // that it has done it, or it keeps what is held
)

// An Answer is the result of a try.
type Answer struct {
	Err     error // nil if the call was answered
	Refused bool  // Err says that the server has answered, and refuses
	Final   bool  // it is not to be tried again
}

// A Queue owes calls. Its methods are safe for concurrent use. There is neither a goroutine nor a timer while it
// owes none.
type Queue struct {
	send    func(c *Call, sure bool)
	done    func(*Call, error)
	changed func()

	prompt    int // tries in flight at first
	maxPrompt int

	mu         sync.Mutex
	clock      *alarm.Clock
	workers    workers.Pool
	all        list.List     // those answered first, then the oldest, without those that are held back
	holds      list.List     // those that are held back
	ready      [2]list.List  // those that are due, by lane
	turn       int           // which of the two was last
	unanswered int           // of all and holds
	silent     int           // tries in a row that got no answer
	fastest    time.Duration // answer so far; 0 before the first
	away       alarm.Alarm   // the next try while the server is away
	awayTryAt  time.Time     // its earliest time
	dropped    uint64
	givenUp    error     // why a call was dropped that was of use until a time
	undone     time.Time // that time
	sealed     bool      // no more are taken on
}

// New returns an empty Queue. It calls send for a try, which must call Tried, whatever happens; sure says that nothing of
// what the call is to end is on its way: see Settle. It calls done when a call is owed no more, with the error for which
// it was given up or nil, and changed when fewer of them wait for an answer. These two must not call the Queue. If the
// server gets tries that are made at once together, more of them are.
func New(send func(c *Call, sure bool), done func(*Call, error), changed func(), combined bool) *Queue {
	q := &Queue{send: send, done: done, changed: changed, prompt: prompt, maxPrompt: maxPrompt}
	most := maxInFlight
	if combined {
		q.prompt, q.maxPrompt, most = together*prompt, maxTogether*maxPrompt, maxTogether*maxInFlight
	}
	q.workers = workers.Pool{Mu: &q.mu, Size: q.prompt, Most: most, HungAfter: hungAfter, Next: q.nextLocked}
	q.clock = alarm.NewClock(&q.mu, q.ring)
	return q
}

// Add takes on a call, and tries it at once, or when it is held back no more. It is owed until an answer is final, or its
// TTL has passed. Add reports false if the Queue is sealed.
func (q *Queue) Add(c *Call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sealed {
		return false
	}
	c.until, c.alarm.For = time.Now().Add(c.TTL), c
	if c.Answered {
		c.state = settled
	} else {
		q.unanswered++
	}
	if c.over = c.Hold.IsZero(); c.over {
		q.listLocked(c)
		q.dueLocked(c)
		q.workers.Wake()
	} else {
		c.listed = q.holds.PushBack(c)
		q.clock.Set(&c.alarm, c.Hold)
	}
	return true
}

// listLocked adds a call to all others. It drops one if there are too many: one that was answered, or else the
// oldest. Those that are held back do not count: the caller has no more of them than of what it holds.
func (q *Queue) listLocked(c *Call) {
	if q.all.Len() >= maxCalls {
		q.dropped++
		q.dropLocked(q.all.Front().Value.(*Call), ErrTooMany)
	}
	c.listed = q.all.PushBack(c)
}

// dropLocked ends a call that is owed. err is why it is given up, or nil.
func (q *Queue) dropLocked(c *Call, err error) {
	q.done(c, err)
	if err != nil && err != ErrTooMany && !c.Light && c.state != settled && time.Now().Before(c.until) && !c.until.Before(q.undone) {
		q.givenUp, q.undone = err, c.until
	}
	q.becomeLocked(c, settled)
	q.all.Remove(c.listed) // which does nothing if it is in the other list
	q.holds.Remove(c.listed)
	c.listed = nil
	q.leaveLocked(c)
	q.clock.Unset(&c.alarm)
}

// leaveLocked ends the wait of a call for its turn.
func (q *Queue) leaveLocked(c *Call) {
	if c.ready != nil {
		q.ready[c.Lane].Remove(c.ready)
		c.ready = nil
	}
}

// becomeLocked notes what the server has said.
func (q *Queue) becomeLocked(c *Call, s state) {
	if c.state == pending && s != pending {
		q.unanswered--
		q.changed()
	} else if c.state != pending && s == pending {
		q.unanswered++
	}
	c.state = s
}

func (q *Queue) ring(due []*alarm.Alarm) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range due {
		if c, ok := a.For.(*Call); ok { // else it is the alarm of all
			q.dueLocked(c)
		}
	}
	q.workers.Wake()
}

// dueLocked does what is due for a call: it queues it for its next try, or ends it.
func (q *Queue) dueLocked(c *Call) {
	now := time.Now()
	ended := !now.Before(c.until)
	switch {
	case c.listed == nil:
		return
	case !c.over && c.Moot, ended && (c.ready != nil || !c.sent.Before(c.until)):
		q.dropLocked(c, c.lastErr())
		return
	case !c.over:
		c.over = true
		q.becomeLocked(c, pending)
		q.holds.Remove(c.listed)
		q.listLocked(c)
	}
	if c.trying > 0 && now.Sub(c.sent) >= maxRetryPause { // it hangs
		q.silentLocked()
	}
	if c.ready == nil {
		c.ready = q.ready[c.Lane].PushBack(c)
	}
	q.clock.Set(&c.alarm, c.until)
}

// lastErr returns why a call is dropped at the end of its time.
func (c *Call) lastErr() error {
	if c.Err == nil && c.state != settled {
		return ErrUnanswered
	}
	return c.Err
}

// nextLocked returns the next try, or nil. If it hangs, the call becomes due again.
func (q *Queue) nextLocked() func() {
	now := time.Now()
	turn := 1 - q.turn
	if q.ready[turn].Len() == 0 {
		turn = q.turn
	}
	next := q.ready[turn].Front()
	switch {
	case next == nil, q.silent >= away && now.Before(q.awayTryAt):
		return nil
	case q.silent >= away:
		q.awayTryAt = now.Add(awayPause)
		q.clock.Set(&q.away, q.awayTryAt)
	}
	q.turn = turn
	c := next.Value.(*Call)
	q.leaveLocked(c)
	c.trying++
	c.tries++
	c.sent = now
	at := now.Add(maxRetryPause)
	if c.until.After(now) { // it is not the last try
		at = alarm.Earlier(at, c.until)
	}
	q.clock.Set(&c.alarm, at)
	sure := c.sure
	return func() { q.send(c, sure) }
}

// Tried notes the answer to a try that was made at sent, and plans the next try if there is one. After an answer that is
// not final, the call is tried again a few times.
func (q *Queue) Tried(c *Call, sent time.Time, a Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.trying--
	if a.Err == nil || c.state != settled {
		c.Err = a.Err
	}
	q.heardLocked(sent, a)
	pause := min(firstRetryPause<<min(max(c.tries-1, 0), 10), maxRetryPause)
	switch {
	case c.listed == nil: // dropped
		return
	case a.Final, !sent.Before(c.until):
		c.ended = a.Final
		q.dropLocked(c, c.Err)
		return
	case a.Err == nil && c.sure: // of a try from before Settle, which another one follows
		return
	case a.Err == nil:
		if c.state != settled {
			q.becomeLocked(c, settled)
			c.tries = 0
			q.all.MoveToFront(c.listed)
		}
		pause = firstRetryPause << min(2*c.tries, 20)
	case a.Refused:
		if c.state == pending {
			q.becomeLocked(c, refused)
		}
		pause = time.Second << min(c.tries, 10)
	case c.trying > 0:
		return
	}
	if c.ready == nil {
		at := c.sent.Add(min(pause, c.TTL/4))
		q.clock.Set(&c.alarm, alarm.Later(alarm.Earlier(at, c.until), time.Now()))
	}
}

// heardLocked notes whether a call that was sent at sent was answered.
func (q *Queue) heardLocked(sent time.Time, a Answer) {
	if a.Err != nil && !a.Refused {
		q.silentLocked()
		return
	}
	q.silent = 0
	took := time.Since(sent)
	q.fastest = min(took, cmp.Or(q.fastest, took))
	if took <= 2*q.fastest+promptly {
		q.workers.Size = min(q.workers.Size+1, q.maxPrompt)
	} else {
		q.workers.Size = q.prompt
	}
}

// silentLocked notes that a call got no answer.
func (q *Queue) silentLocked() {
	q.silent++
	q.workers.Size = q.prompt
}

// Due makes a call that is held back due at once.
func (q *Queue) Due(c *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.listed != nil && !c.over {
		q.dueLocked(c)
		q.workers.Wake()
	}
}

// Settle notes that nothing of what a call is to end is on its way any more. If there is nothing to end, the call is
// owed no more. Otherwise it is due at once, also if it was dropped without a final answer, and what the server answers to
// a try from now on is final.
func (q *Queue) Settle(c *Call, owed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case c.ended, c.sure, q.sealed:
		return
	case !owed:
		if c.listed != nil {
			q.dropLocked(c, nil)
		}
		return
	}
	c.sure, c.tries, c.until = true, 0, time.Now().Add(c.TTL)
	if q.becomeLocked(c, pending); c.listed == nil {
		c.over = true
		q.listLocked(c)
	}
	q.dueLocked(c)
	q.workers.Wake()
}

// Kept notes the answer to another call, made at sent, which keeps what is held for a ttl while c is held back. It
// reports whether that call is to be repeated.
func (q *Queue) Kept(c *Call, sent time.Time, ttl time.Duration, a Answer) (again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.heardLocked(sent, a)
	if c.listed == nil || c.over {
		return false
	}
	c.Err = a.Err
	switch {
	case a.Err != nil && !a.Final:
		if a.Refused {
			q.becomeLocked(c, refused)
		}
		return true
	case a.Final, c.Moot:
		q.dropLocked(c, c.Err)
	default:
		c.until = alarm.Later(c.until, time.Now().Add(ttl))
		q.becomeLocked(c, settled)
	}
	return false
}

// Resume makes a call that was moot one that will be tried. It reports false if the call is not owed any more.
func (q *Queue) Resume(c *Call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.Moot = false
	return c.listed != nil
}

// Hurry makes calls that wait for their next try due at once. It returns those that are held back without an answer.
func (q *Queue) Hurry() (held []*Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.silent = 0
	for e := q.all.Front(); e != nil; {
		c := e.Value.(*Call)
		e = e.Next()
		if c.ready == nil && c.trying == 0 && c.state == pending {
			c.tries = 0
			q.dueLocked(c)
		}
	}
	q.workers.Wake()
	for e := q.holds.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*Call); c.state == pending {
			held = append(held, c)
		}
	}
	return held
}

// Seal lets the Queue take on no more calls if all are answered, and the caller is idle. It reports whether it has.
// No call is taken on or ends while it asks idle, which must not call the Queue.
func (q *Queue) Seal(idle func() bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sealed = q.unanswered == 0 && idle()
	return q.sealed
}

// Finish drops all calls: those without an answer for the given reason. It returns how many these were, and the error of
// the last try of one. If there is none, it returns why a call was given up that may still be of use: it was refused, for
// example. Count has those that were too many. Finish reports whether the Queue had not been sealed.
func (q *Queue) Finish(reason error) (early bool, unanswered int, last error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var givenUp error
	if time.Now().Before(q.undone) {
		givenUp = q.givenUp
	}
	if early = !q.sealed; early {
		unanswered = q.unanswered
	}
	q.sealed = true
	for _, all := range []*list.List{&q.all, &q.holds} {
		for all.Len() > 0 {
			c := all.Front().Value.(*Call)
			why := reason
			switch c.state {
			case settled:
				why = c.Err
			case refused:
				if !c.Light {
					givenUp = cmp.Or(c.Err, givenUp)
				}
			case pending:
				last = cmp.Or(c.Err, last)
			}
			q.dropLocked(c, why)
		}
	}
	q.clock.Unset(&q.away)
	q.clock.Rest()
	return early, unanswered, cmp.Or(last, givenUp)
}

// Count returns how many calls are owed, and how many were dropped since there were too many.
func (q *Queue) Count() (owed int, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all.Len() + q.holds.Len(), q.dropped
}
