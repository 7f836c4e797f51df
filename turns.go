package dlock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/errs"
)

// The state of the lines of a Client, see [WithLocalTurns].
//
// Waiters for one key with the same options stand in one line. An errand stands in the store's queue for the line.
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

// answerAge is how long the store's last answer to a line counts for those who join it: they make no
// attempt first. After it, a store that is away would look like a long wait.
const answerAge = time.Second

var errNobodyWaits = errors.New("granted, but nobody waits any more")

// lines are the lines of a Client.
type lines struct {
	some     atomic.Bool // there are lines
	unqueued atomic.Bool // the store has no queue
	mu       sync.Mutex  // guards lines, all that is in them, and their errands
	all      map[lineID]*line
}

// A lineID is what waiters share that stand in one line.
type lineID struct {
	key string
	terms
}

// A line exists while it has waiters, an errand or a block.
type line struct {
	lineID
	keeper  *keeper
	waiters list.List   // of *waiter
	errand  *errand     // nil if none is under way, or it was called off
	holder  *Lease      // of the block, if it has turns left; else nil
	left    int         // turns of the block that are to follow
	silent  atomic.Bool // the errand's last call has failed
	facts               // that any of the line knows
}

// An errand acquires for a line, in the store's queue. No waiter's ctx ends it. It counts
// as a call of the Client. A Locker that panics in it ends the process, as in a renewal.
type errand struct {
	acquisition
	line    *line
	callOff context.CancelFunc
	called  time.Time // when the call under way was made; zero during a pause
	leaver  *waiter   // the last of the line, who has called the errand off
}

// A waiter waits in a line. The wait ends once: with a lease, an error, or what was known last.
type waiter struct {
	request  request
	limited  context.Context // ends the wait
	listener *listener
	answered bool          // the store has said that the key is held
	place    *list.Element // in the line; nil if it stands there no more
	left     time.Time     // when it left the line
	line     *line

	over  chan struct{} // closed when what follows is set
	lease *Lease
	err   error
	facts facts
}

func (w *waiter) end(known facts, lease *Lease, err error) {
	w.facts, w.lease, w.err = known, lease, err
	close(w.over)
}

// takesTurns reports whether waiters stand in lines, if the store has a queue. Turns are for leases
// that will be renewed, and are free when they are released.
func (o *options) takesTurns() bool {
	unrenewed := !o.autoRenew || 0 < o.maxHold && o.maxHold <= max(firstRenewal, renewalPeriod(o.ttl))
	return o.turns > 1 && !unrenewed && o.minHold == 0
}

// join waits in a line for a turn, if the line takes the caller in. Observers hear of it before: the
// lock must not be passed on to a caller whose Observer does not return.
func (a *acquisition) join() {
	k := a.client.keeper
	if a.client.observed() {
		if !k.lines.wouldAdd(a) {
			return
		}
		if err := a.reportWait(a.held); err != nil {
			a.err = err
			return
		}
	}
	w := k.lines.add(a)
	if w == nil {
		return
	}
	_ = a.reportWait(a.held) // which counts a nested wait, and nothing else without Observers
	if a.wait == nil {       // else it counts already
		k.waiters.Add(1)
		defer k.waiters.Add(-1)
	}
	select {
	case <-w.over:
	case <-a.limited.Done():
		w.leave()
	case <-k.open.Done():
		w.leave()
	}
	<-w.over
	a.noteTurn(w, ended(a.limited))
}

// noteTurn notes how a wait in a line has ended. end is the error of its ctx. If a wait fails that need not,
// the caller asks for itself.
func (a *acquisition) noteTurn(w *waiter, end error) {
	if a.lease = w.lease; a.lease != nil {
		a.contended = true
		return
	}
	a.facts.add(w.facts)
	a.err = w.err
	if end != nil {
		if reason := errs.HideContext(errs.BesidesEnd(w.err)); reason != nil {
			end = fmt.Errorf("%w: %w", end, reason)
		}
		a.err = end
	} else if a.err == nil {
		a.err = ErrClosed
	}
}

// add puts a caller at the end of its line, if that takes it in. Else it returns nil.
func (t *lines) add(a *acquisition) *waiter {
	if a.held == nil && !a.busy && !t.some.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id := a.lineID()
	n := t.all[id]
	if !n.takes(a) {
		return nil
	}
	if n == nil {
		n = &line{lineID: id, keeper: a.client.keeper}
		t.all[id] = n
		t.some.Store(true)
	}
	switch {
	case a.held != nil:
		n.facts.add(a.facts)
	case n.held != nil:
		a.facts = n.facts
	default:
		a.answered = time.Now()
	}
	w := &waiter{request: a.request, limited: a.limited, listener: a.listens(), answered: a.held != nil, line: n, over: make(chan struct{})}
	w.place = n.waiters.PushBack(w)
	n.balanceLocked()
	return w
}

// wouldAdd reports whether add would put a caller in a line now.
func (t *lines) wouldAdd(a *acquisition) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[a.lineID()].takes(a)
}

func (r *request) lineID() lineID { return lineID{r.key, r.client.options.terms} }

// takes reports whether a line takes a caller in, which may have to be made. Without an answer of the
// store, it does so only if it has had one lately, or if the key is most likely held and there is no
// line yet.
func (n *line) takes(a *acquisition) bool {
	if a.held != nil || n == nil {
		return a.held != nil || a.busy
	}
	return n.held != nil && n.failure == nil && time.Since(n.answered) < answerAge
}

// leave takes a waiter out of its line; its wait ends soon. The last one calls the errand off,
// and its wait ends with that.
func (w *waiter) leave() {
	n := w.line
	n.keeper.lines.mu.Lock()
	defer n.keeper.lines.mu.Unlock()
	if w.place == nil {
		return
	}
	n.removeLocked(w)
	w.left = time.Now()
	if e := n.errand; n.waiters.Len() == 0 && e != nil {
		e.leaver = w
	} else {
		w.end(n.knownLocked(), nil, nil)
	}
	n.balanceLocked()
}

// prune takes out of the line the first waiters whose wait has ended. They may not have noticed, and get no lease. It
// asks their ctx without a mutex, since that may ask a lease.
func (n *line) prune() {
	for w := n.first(); w != nil && ended(w.limited) != nil; w = n.first() {
		w.leave()
	}
}

func (n *line) first() *waiter {
	n.keeper.lines.mu.Lock()
	defer n.keeper.lines.mu.Unlock()
	if first := n.waiters.Front(); first != nil {
		return first.Value.(*waiter)
	}
	return nil
}

// pruneLine prunes the line to which the lease may be passed on.
func (l *Lease) pruneLine() {
	l.mu.Lock()
	n := l.line
	l.mu.Unlock()
	if n != nil {
		n.prune()
	}
}

// knownLocked is what is known to one who leaves. A call of the errand that has been under way
// for a while is taken for a place in the queue, so a failure before it counts no more.
func (n *line) knownLocked() facts {
	known := n.facts
	if e := n.errand; e != nil && !e.called.IsZero() && time.Since(e.called) >= attemptTime {
		known.failure = nil
	}
	return known
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
		n.sendLocked(n.waiters.Front().Value.(*waiter))
	}
	t := &n.keeper.lines
	if n.waiters.Len() == 0 && n.errand == nil && n.holder == nil && t.all[n.lineID] == n {
		delete(t.all, n.lineID)
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
	return w != nil && w.give(next) == nil
}

// give starts a lease, and gives it to a waiter. If the Client has been closed, the block ends.
func (w *waiter) give(l *Lease) error {
	if !l.start() {
		l.leaveBlockLocked(false)
		w.end(facts{}, nil, ErrClosed)
		return ErrClosed
	}
	w.end(facts{}, l, nil)
	return nil
}

// youngLocked reports whether no renewal is due yet, and much of the first TTL remains.
func (l *Lease) youngLocked(now time.Time) bool {
	return now.Before(l.renewAt) && l.restLocked(now) >= l.options.firstTTL()/2
}

// next returns the waiter to whom l is passed on, with its lease; or it ends the block.
func (n *line) next(l *Lease, pass bool) (w *waiter, next *Lease) {
	n.keeper.lines.mu.Lock()
	defer n.keeper.lines.mu.Unlock()
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

// successor is the lease of the next in line: as if it had been granted as l was.
func (l *Lease) successor(w *waiter) *Lease {
	grant := Attempt{Since: l.extended, Fence: l.fence, Degraded: l.standIn}
	if l.fence != 0 {
		grant.Fence++
	}
	next := newLease(&w.request, l.token, time.Now(), grant, l.lastTTLLocked())
	next.step, next.renewAt = l.step+1, l.renewAt
	return next
}

// sendLocked sends an errand, with the values of the ctx of the first in line, unless the Client has
// been closed.
func (n *line) sendLocked(first *waiter) {
	if !n.keeper.enter() {
		return
	}
	values := contexts.WithoutCancel(first.request.ctx)
	ctx, callOff := context.WithCancel(values)
	e := &errand{line: n, callOff: callOff, called: time.Now()}
	e.request = request{client: first.request.client, ctx: values, key: n.key, ttl: n.ttl}
	e.limited, e.wait = ctx, ctx
	e.errand, e.forLine, e.stage = e, true, lined
	e.listens() // before others look at it
	n.errand = e
	go e.serve()
}

// serve acquires for the line.
func (e *errand) serve() {
	k := e.line.keeper
	defer k.leave()
	defer e.callOff()
	defer context.AfterFunc(k.open, e.callOff)()
	err := errPanic
	defer func() { e.end(err) }()
	_, err = e.run()
}

// callers calls f for those who are to hear what the listener hears: the callers that wait in its line, if it is that of
// an errand.
func (l *listener) callers(f func(*listener)) {
	n := l.line
	if n == nil {
		f(l)
		return
	}
	n.keeper.lines.mu.Lock()
	defer n.keeper.lines.mu.Unlock()
	if n.errand == nil || n.errand.listener != l {
		return
	}
	for at := n.waiters.Front(); at != nil; at = at.Next() {
		f(at.Value.(*waiter).listener)
	}
}

// endPause notes that the errand makes a call again.
func (e *errand) endPause() {
	t := &e.line.keeper.lines
	t.mu.Lock()
	defer t.mu.Unlock()
	e.called = time.Now()
}

// beginPause notes that a call of the errand has failed. Those who have had no answer of the store ask for themselves.
func (e *errand) beginPause() {
	n := e.line
	n.keeper.lines.mu.Lock()
	defer n.keeper.lines.mu.Unlock()
	if n.errand != e {
		return
	}
	e.called = time.Time{}
	n.facts.add(e.facts)
	if e.held == nil {
		e.endWaitsLocked(e.failure, false)
	}
}

// give gives the lease of an errand to the first in line, and begins a block. The last one who has left
// gets it if the store has granted it after that: so does a caller whose own call is granted when its ctx has ended.
func (e *errand) give(l *Lease) error {
	n := e.line
	n.prune()
	w := e.taker(l)
	if w == nil {
		e.held = e.heldBy(Attempt{Holder: e.token, Remaining: l.restLocked(e.returned), HeldSince: l.granted})
		return errNobodyWaits
	}
	r := &w.request
	l.values, l.options, l.tentative = contexts.WithoutCancel(r.ctx), &r.client.options, r.set != nil
	if w.answered || e.waited >= shortestWait {
		n.keeper.contended.Add(n.key)
	}
	return w.give(l)
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
			l.renewAt = alarm.Earlier(l.renewAt, l.granted.Add(passTime))
		}
		n.facts = facts{
			held:     e.heldBy(Attempt{Holder: e.token, Remaining: l.restLocked(e.returned), HeldSince: l.granted}),
			answered: e.returned,
		}
		n.balanceLocked()
		return w
	}
	if now := t.all[n.lineID]; now != nil && now.errand != nil { // two grants would be one too many for others
		return nil
	}
	w := e.leaver
	if w != nil && !l.extended.After(w.left) {
		return nil
	}
	e.leaver = nil
	return w
}

// end ends the waits of all who still wait for the errand.
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
	if e.leaver != nil {
		e.leaver.end(e.facts, nil, err)
	}
	if n.errand != e {
		return
	}
	n.errand = nil
	e.endWaitsLocked(err, true)
}

// endWaitsLocked ends the waits of all in the line, or of those who have had no answer, as the errand has failed. It
// is called while the mutex of lines is locked.
func (e *errand) endWaitsLocked(err error, all bool) {
	n := e.line
	for at := n.waiters.Front(); at != nil; {
		w := at.Value.(*waiter)
		at = at.Next()
		if all || !w.answered {
			n.removeLocked(w)
			w.end(e.facts, nil, err)
		}
	}
	n.balanceLocked()
}
