package rediscore

import (
	"cmp"
	"slices"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/internal/storewait"
)

// maxSilence is how long the first of a room may have been silent, on the server's clock, before the others
// have to ask whether they are still in the queue. It is less than the time after which they count as dead.
const maxSilence = 4 * time.Second

// A room is where the waits of a Locker for one key rest, as far as they have the same inbox. The one with the
// smallest ticket checks in for all: that shows that the inbox is alive, and the answer is news for all. The
// others have no call and no timer. The mutex of the post guards a room.
type room struct {
	waits []*wait     // by their tickets
	timer *time.Timer // for the next check-in of the first, and then of another if it gets no answer
	set   bool        // the timer is for the first; if not, that calls, or will do so by its own timer
	news  news        // of the first
	away  bool        // its last call has failed
}

// News is what a wait knows of its lock.
type news struct {
	// The server's clock, read at the time sent or later. It is zero if the inbox may have moved to another
	// server since. The epoch is that of the inbox when the call was sent.
	clock int64
	sent  time.Time
	epoch int

	held    dlock.Attempt // the last answer "held"
	failure error         // of the last call
	called  time.Time     // when the call in flight was made; zero if there is none
}

// rest lets a wait that is in the queue rest in its room. Its next check-in, if it is the first, is after d.
func (p *post) rest(w *wait, ticket int64, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, returned := w.room, w.returned
	w.returned = false
	if r == nil {
		if r = p.rooms[w.key]; r == nil {
			r = new(room)
			r.timer = time.AfterFunc(time.Hour, func() { p.callFirst(r) })
			p.rooms[w.key] = r
		}
		w.room, w.number = r, ticket
		i, _ := slices.BinarySearchFunc(r.waits, w, inTurn)
		r.waits = slices.Insert(r.waits, i, w)
		if r.waits[0] != w && w.clock < r.news.clock { // places may have been lost after its answer
			w.call()
		}
	}
	if r.waits[0] != w {
		return
	}
	if w.inbox.left { // the server answers again
		w.inbox.doubtLocked()
	}
	before := r.news
	r.news, r.set = w.news, true
	r.timer.Reset(d)
	if returned || before.clock != 0 && time.Duration(w.clock-before.clock)*time.Microsecond > maxSilence {
		r.callAll()
	}
}

// tell notes that a wait calls, and why its last call has failed.
func (p *post) tell(w *wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := w.room; r != nil && r.waits[0] == w {
		r.news.failure, r.news.called = w.failure, w.called
	}
}

// quit takes a wait out of its room.
func (p *post) quit(w *wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := w.room
	if r == nil {
		return
	}
	i, _ := slices.BinarySearchFunc(r.waits, w, inTurn)
	r.waits, w.room = slices.Delete(r.waits, i, i+1), nil
	switch {
	case len(r.waits) == 0:
		r.set = false
		r.timer.Stop()
		delete(p.rooms, w.key)
	case i == 0 && (!r.set || w.returned):
		r.waits[0].call()
	}
}

// callFirst has the first check in, and another, again and again, if the first does not rest within [storewait.ReplyLimit]: its
// calls may be on connections that have gone silent.
func (p *post) callFirst(r *room) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.set:
		r.set = false
		r.waits[0].call()
		r.timer.Reset(storewait.ReplyLimit)
	case len(r.waits) > 1:
		r.waits[1].call()
		r.timer.Reset(checkInPeriod)
	}
}

// report reports that a call of a wait, which was sent at a given time, has failed, or was answered if err is nil. What the first of a room hears is
// news for all.
func (p *post) report(w *wait, sent time.Time, err error) {
	p.mu.Lock()
	all := []*wait{w}
	if r := w.room; r != nil && r.waits[0] == w && (err != nil || r.away) {
		r.away = err != nil
		all = slices.Clone(r.waits)
	}
	p.mu.Unlock()
	for _, w := range all {
		if err == nil {
			w.heard.Answered()
		} else {
			w.heard.Failed(sent, err)
		}
	}
}

func (r *room) callAll() {
	for _, w := range r.waits[1:] {
		w.call()
	}
}

// latest returns the news of a wait. If it rests, they are those of its room.
func (p *post) latest(w *wait) news {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, r := w.news, w.room
	if r == nil || r.news.epoch != w.epoch {
		return n
	}
	if r.news.clock > n.clock {
		n.clock, n.sent, n.held = r.news.clock, r.news.sent, r.news.held
	}
	if w.failure == nil && (!w.calling || !r.news.called.IsZero() && r.news.called.Before(w.called)) {
		n.failure, n.called = r.news.failure, r.news.called
	}
	return n
}

// inTurn compares waits by the places of their tokens in the queue.
func inTurn(a, b *wait) int {
	return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.joined, b.joined))
}

// call has a wait check in.
func (w *wait) call() {
	w.mail.due = true
	w.ring()
}
