package dlock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// The state of the lines of a Client, see [WithLocalTurns].
//
// Waiters of one class stand in one line. An errand stands in the store's queue for the line.
// Its grant begins a block: as many turns as waiters stood in line then, at most n. The first
// waiter gets the lease, and its Release passes it on to the next: a new Lease with the same
// token, the next fence, and what remains of the first TTL. The block ends with its turns,
// with a lease that ends in another way than by Release, or with the first renewal, 100 ms
// after the grant: so nothing that a call for the token may change is ever passed on.
//
// Whenever more wait than the block has turns left, an errand is on its way. So the next place
// in the store's queue is taken before the block ends, and no earlier: a waiter of another
// process is passed by the rest of the block and one more at most. When nobody waits, the
// errand is called off.

// passTime is how long after its grant a lease is passed on.
const passTime = firstRenewal

// wordTime is how long the store's word to a line counts for those who join it: they make no
// attempt first. After it, a store that is away would look like a long wait.
const wordTime = time.Second

var errNobodyWaits = errors.New("granted, but nobody waits any more")

// lines are the lines of a Client. The zero value is ready for use.
type lines struct {
	some     atomic.Bool // there are lines
	unqueued atomic.Bool // the store has no queue
	mu       sync.Mutex  // guards lines, all that is in them, and their errands
	all      map[class]*line
}

// A class is what waiters share that stand in one line.
type class struct {
	key string
	terms
}

// A line exists while it has waiters, an errand or a block.
type line struct {
	class
	keeper  *keeper
	waiters list.List // of *waiter
	errand  *errand   // in the store's queue; nil if none is, or it was called off
	holder  *Lease    // of the block, if it has turns left; else nil
	left    int       // turns of the block that are to follow
	word              // of the store to any of the line
}

// A waiter waits in a line. It is told once: then it gets a lease, an error, or the last word.
type waiter struct {
	client   *Client
	ctx      context.Context // the caller's
	answered bool            // the store has said that the key is held
	place    *list.Element   // in the line; nil if it stands there no more
	line     *line

	told  chan struct{} // closed when what follows is set
	lease *Lease
	err   error
	word
}

func (w *waiter) tell(word word, lease *Lease, err error) {
	w.word, w.lease, w.err = word, lease, err
	close(w.told)
}

// takesTurns reports whether waiters of c stand in lines. Turns are for leases that will be
// renewed, and are free when they are released.
func (c *Client) takesTurns() bool {
	o := &c.options
	unrenewed := !o.autoRenew || 0 < o.maxHold && o.maxHold <= max(firstRenewal, renewalPeriod(o.ttl))
	if o.turns <= 1 || unrenewed || o.minHold > 0 || c.keeper.lines.unqueued.Load() {
		return false
	}
	_, queued := c.keeper.locker.(Acquirer)
	return queued
}

func (a *acquisition) class() class {
	return class{a.key, a.client.options.terms}
}

// join puts a caller at the end of its line. Without an answer of the store, it does so only
// if the line has had one lately, or if the key is contended and there is no line yet. Else it
// returns nil.
func (t *lines) join(a *acquisition, contended bool) *waiter {
	if a.held == nil && !contended && !t.some.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := a.class()
	n := t.all[c]
	if a.held == nil {
		switch {
		case n.informed():
			a.word = n.word
		case n != nil || !contended:
			return nil
		default:
			a.answered = time.Now()
		}
	}
	if n == nil {
		n = t.addLocked(c, a.client.keeper)
	}
	if a.held != nil && a.answered.After(n.answered) {
		n.word = a.word
	}
	w := &waiter{client: a.client, ctx: a.ctx, answered: a.held != nil, line: n, told: make(chan struct{})}
	w.place = n.waiters.PushBack(w)
	n.balanceLocked()
	return w
}

// wouldJoin reports whether join would not return nil now.
func (t *lines) wouldJoin(a *acquisition, contended bool) bool {
	if a.held != nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.all[a.class()]
	return n == nil && contended || n.informed()
}

// informed reports whether the line has had an answer of the store lately.
func (n *line) informed() bool {
	return n != nil && n.held != nil && n.failure == nil && time.Since(n.answered) < wordTime
}

func (t *lines) addLocked(c class, k *keeper) *line {
	n := &line{class: c, keeper: k}
	if t.all == nil {
		t.all = make(map[class]*line)
	}
	t.all[c] = n
	t.some.Store(true)
	return n
}

// takeTurn joins a line and waits there, if join lets it. Observers are told before: the lock must
// not be passed on to a caller whose Observer does not return.
func (a *acquisition) takeTurn(ctx context.Context, contended bool) (lease *Lease, decided bool, err error) {
	t := &a.client.keeper.lines
	if a.observed() && t.wouldJoin(a, contended) {
		if err := a.tellWait(); err != nil {
			return nil, true, err
		}
	}
	if w := t.join(a, contended); w != nil {
		return a.await(ctx, w)
	}
	return nil, false, nil
}

// await waits in the line for a turn. If a wait fails that need not, the acquisition is not
// decided, and the caller asks for itself.
func (a *acquisition) await(ctx context.Context, w *waiter) (lease *Lease, decided bool, err error) {
	_ = a.tellWait() // if the line was made a moment ago
	k := a.client.keeper
	k.waiters.Add(1)
	defer k.waiters.Add(-1)
	select {
	case <-w.told:
	case <-ctx.Done():
		w.leave()
	case <-k.open.Done():
		w.leave()
	}
	<-w.told
	if w.lease != nil {
		a.contended = true
		return w.lease, true, nil
	}
	if w.held != nil && (a.held == nil || !w.word.answered.Before(a.answered)) {
		a.word = w.word
	} else if w.failure != nil {
		a.failure = w.failure
	} else if a.held == nil {
		a.word = w.word
	}
	switch end := ended(ctx); {
	case end != nil:
		if reason := hideContextErrors(besidesEnd(w.err)); reason != nil {
			end = fmt.Errorf("%w: %w", end, reason)
		}
		return nil, true, end
	case k.open.Err() != nil:
		return nil, true, ErrClosed
	}
	return nil, final(w.err), w.err
}

// leave takes a waiter out of its line; it is told soon. The last one calls the errand off,
// and is told its answer.
func (w *waiter) leave() {
	n := w.line
	t := &n.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.place == nil {
		return
	}
	n.removeLocked(w)
	if e := n.errand; n.waiters.Len() == 0 && e != nil {
		e.last = w
	} else {
		w.tell(n.lastWordLocked(), nil, nil)
	}
	n.balanceLocked()
}

// lastWordLocked is what one who leaves is told. A call of the errand that has been under way
// for a while is taken for a place in the queue, so a failure before it counts no more.
func (n *line) lastWordLocked() word {
	word := n.word
	if e := n.errand; e != nil && !e.called.IsZero() && time.Since(e.called) >= attemptTime {
		word.failure = nil
	}
	return word
}

func (n *line) removeLocked(w *waiter) {
	n.waiters.Remove(w.place)
	w.place = nil
}

// popLocked takes the first waiter out of the line.
func (n *line) popLocked() *waiter {
	first := n.waiters.Front()
	if first == nil {
		return nil
	}
	w := first.Value.(*waiter)
	n.removeLocked(w)
	return w
}

// balanceLocked sends an errand if one is needed, and calls off one that is not. It removes a
// line that is not needed.
func (n *line) balanceLocked() {
	switch {
	case n.waiters.Len() == 0 && n.errand != nil:
		n.errand.callOff()
		n.errand = nil
	case n.waiters.Len() > n.left && n.errand == nil:
		n.errand = n.send(n.waiters.Front().Value.(*waiter))
	}
	t := &n.keeper.lines
	if n.waiters.Len() == 0 && n.errand == nil && n.holder == nil && t.all[n.class] == n {
		delete(t.all, n.class)
		t.some.Store(len(t.all) > 0)
	}
}

// holdLocked makes l the lease of the block, after which so many turns are left.
func (n *line) holdLocked(l *Lease, left int) {
	if n.holder, n.left = nil, left; left > 0 {
		n.holder, l.line = l, n
	}
}

// leaveBlockLocked ends the lease's part in its block. It passes the lease on if that is wanted
// and possible, and reports whether it did. The lease has ended then, and all that depends on
// it. Otherwise the block has ended.
func (l *Lease) leaveBlockLocked(pass bool) (passed bool) {
	n := l.line
	if n == nil {
		return false
	}
	l.line = nil
	w, next := n.next(l, pass && l.youngLocked(time.Now()))
	switch {
	case w == nil:
		return false
	case !next.start():
		next.leaveBlockLocked(false)
		w.tell(word{}, nil, ErrClosed)
		return false
	}
	w.tell(word{}, next, nil)
	return true
}

// youngLocked reports whether no renewal is due yet, and much of the first TTL remains.
func (l *Lease) youngLocked(now time.Time) bool {
	return now.Before(l.renewAt) && l.restLocked(now) >= l.options.firstTTL()/2
}

// next returns the waiter to whom l is passed on, with its lease; or it ends the block.
func (n *line) next(l *Lease, pass bool) (w *waiter, next *Lease) {
	t := &n.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.holder != l { // a block whose lease the store has lost
		return nil, nil
	}
	if pass {
		w = n.popLocked()
	}
	if w == nil {
		n.holdLocked(nil, 0)
	} else {
		next = l.successor(w)
		n.holdLocked(next, n.left-1)
	}
	n.balanceLocked()
	return w, next
}

// successor is the lease of the next in line.
func (l *Lease) successor(w *waiter) *Lease {
	next := &Lease{
		keeper:   l.keeper,
		options:  &w.client.options,
		key:      l.key,
		token:    l.token,
		ttl:      l.ttl,
		fence:    l.fence,
		step:     l.step + 1,
		standIn:  l.standIn,
		values:   withoutCancel(w.ctx),
		granted:  time.Now(),
		extended: l.extended,
		deadline: l.deadline,
		wall:     l.wall,
		renewAt:  l.renewAt,
	}
	if l.fence != 0 {
		next.fence++
	}
	next.alarm.lease = next
	return next
}

// An errand acquires the key for a line. No waiter's ctx ends it. It counts as a call of the
// Client. A Locker that panics in it ends the process, as in a renewal.
type errand struct {
	acquisition
	line    *line
	waiting context.Context
	callOff context.CancelFunc
	called  time.Time // when its call under way was made; zero during a pause
	last    *waiter   // that has called it off
}

// send sends an errand, with the values of the ctx of the first in line. It returns nil if the
// Client has been closed.
func (n *line) send(first *waiter) *errand {
	if !n.keeper.enter() {
		return nil
	}
	e := &errand{line: n, called: time.Now(), acquisition: acquisition{client: first.client, ctx: withoutCancel(first.ctx), key: n.key, ttl: n.ttl}}
	e.errand = e
	e.waiting, e.callOff = context.WithCancel(e.ctx)
	go e.run()
	return e
}

func (e *errand) run() {
	k := e.line.keeper
	defer k.leave()
	defer e.callOff()
	defer context.AfterFunc(k.open, e.callOff)()
	err := errPanic
	defer func() { e.end(err) }()
	pace := pace{backoff: e.client.options.backoff}
	for {
		_, err = e.enqueue(e.waiting, k.locker.(Acquirer))
		if err == nil || final(err) || errors.Is(err, errors.ErrUnsupported) || e.waiting.Err() != nil {
			return
		}
		e.failed()
		if end := pace.pause(e.waiting, &e.acquisition, err); end != nil {
			err = e.pick(end, err)
			return
		}
		e.calls()
	}
}

// calls notes that a pause has ended.
func (e *errand) calls() {
	t := &e.line.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	e.called = time.Now()
}

// serve gives the errand's lease to the first in line, or to the last one who has left, and
// begins a block.
func (e *errand) serve(l *Lease) error {
	w := e.taker(l)
	if w == nil {
		return errNobodyWaits
	}
	l.values, l.options = withoutCancel(w.ctx), &w.client.options
	if !l.start() {
		l.leaveBlockLocked(false)
		w.tell(word{}, nil, ErrClosed)
		return ErrClosed
	}
	if w.answered || e.waited >= shortestWait {
		l.keeper.contended.note(l.key)
	}
	w.tell(word{}, l, nil)
	return nil
}

func (e *errand) taker(l *Lease) *waiter {
	n := e.line
	t := &n.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.errand == e {
		n.errand = nil
		turns := min(n.turns, n.waiters.Len())
		w := n.popLocked()
		n.holdLocked(l, turns-1)
		if turns > 1 {
			l.renewAt = earlier(l.renewAt, l.granted.Add(passTime))
		}
		n.word = word{
			held:     heldBy(e.key, Attempt{Holder: e.token, Remaining: l.restLocked(e.returned)}),
			answered: e.returned,
		}
		n.balanceLocked()
		return w
	}
	if now := t.all[n.class]; now != nil && now.errand != nil { // two grants would be one too many for others
		return nil
	}
	w := e.last
	e.last = nil
	return w
}

// failed notes a failure. Those who have had no answer of the store ask for themselves.
func (e *errand) failed() {
	n := e.line
	t := &n.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	e.called = time.Time{}
	if n.errand != e {
		return
	}
	if e.held != nil && e.answered.After(n.answered) {
		n.word = e.word
	}
	n.failure = e.failure
	for at := n.waiters.Front(); at != nil && e.held == nil; {
		w := at.Value.(*waiter)
		at = at.Next()
		if !w.answered {
			n.removeLocked(w)
			w.tell(e.word, nil, e.failure)
		}
	}
	n.balanceLocked()
}

// end tells all who still wait for an errand how it ended.
func (e *errand) end(err error) {
	n := e.line
	t := &n.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, errors.ErrUnsupported) && !final(err) {
		t.unqueued.Store(true)
	}
	if err == errNobodyWaits {
		err = nil
	}
	if e.last != nil {
		e.last.tell(e.word, nil, err)
	}
	if n.errand != e {
		return
	}
	n.errand = nil
	for w := n.popLocked(); w != nil; w = n.popLocked() {
		w.tell(e.word, nil, err)
	}
	n.balanceLocked()
}
