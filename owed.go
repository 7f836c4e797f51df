package dlock

import (
	"container/list"
	"context"
	"net"
	"time"
)

const (
	maxOwed         = 100_000 // releases that a Client can owe
	releasers       = 8       // owed releases in flight that have not hung
	maxReleases     = 64      // owed releases in flight
	releasePatience = 500 * time.Millisecond
	firstPause      = 100 * time.Millisecond // before a release is tried again, doubled each time
	maxPauseOwed    = time.Second            // while there is no answer
	probePause      = 500 * time.Millisecond // between two tries of any, while the store is away
)

// A debt is a release that is owed to the store: of a lease, or of the token of
// an attempt whose outcome is unknown.
type debt struct {
	lease      *Lease // nil for an attempt
	key, token string
	ttl        time.Duration
	values     context.Context

	// pending says that a call for the token may still be in flight, so that "not
	// held" is not the last word until a TTL has passed.
	pending bool

	// often says that there may be several, so that "held, now free" is not the
	// last word either.
	often bool

	// hold is when a lease with a MinHold is to be released: not before, and
	// until then the store is to keep it.
	hold time.Time

	// abandoned says that the lease is not to be released at all, since the work that
	// holds it still runs.
	abandoned bool

	// The keeper's, and guarded by its mutex.
	event    event
	owed     place     // in one of the lists of all that is owed
	queued   place     // in one of the queues; nowhere while it is not due
	until    time.Time // when the store has ended by itself what it may keep
	sent     time.Time // the last try
	tries    int       // since the last answer
	inFlight int
	answered bool // a release was
	refused  bool // the store has answered, but would not release
}

// A place is where an element is in a list, if it is in one.
type place struct {
	list    *list.List
	element *list.Element
}

func (p *place) enter(l *list.List, d *debt) { *p = place{l, l.PushBack(d)} }

func (p *place) leave() {
	if p.list != nil {
		p.list.Remove(p.element)
		*p = place{}
	}
}

// owed are the releases that are owed. They are guarded by the keeper's mutex.
//
// A release that gets no answer is tried again after 0.1 to 1 s, whatever becomes of the
// try before. When several in a row got none, the store counts as away: then one release is
// tried every half second, until one is answered, and all others follow at once.
type owed struct {
	workers workers
	holds   workers // renewals for a MinHold, which must not wait behind releases

	fresh, settled, held list.List    // all: those not answered, those answered, those with a MinHold; the oldest first
	due                  [3]list.List // those that are due: of leases; of attempts, for their first try, or another
	turn                 int          // which of them is next
	keep                 list.List    // those that are due for a renewal

	unanswered int // of all, without those that were refused: Close waits for them
	silent     int // tries in a row that got no answer
	probe      event
	probeAt    time.Time
	dropped    uint64
	finished   bool // no more are taken on
}

// owe takes on a debt and makes a first try to pay it. A debt is paid when the
// store has ended the lease; otherwise it is given up one TTL after it was made,
// when the lease has ended by itself. It reports false if the Client has been closed.
func (k *keeper) owe(d *debt) bool {
	if l := d.lease; l != nil {
		d.key, d.token, d.ttl, d.values = l.key, l.token, max(l.options.ttl, l.inherited), l.values
	}
	d.until = time.Now().Add(d.ttl)
	d.event.debt = d
	k.mu.Lock()
	defer k.mu.Unlock()
	o := &k.owed
	if o.finished {
		return false
	}
	if d.hold.IsZero() {
		k.makeRoomLocked()
		d.owed.enter(&o.fresh, d)
	} else {
		d.owed.enter(&o.held, d)
	}
	o.unanswered++
	k.dueLocked(d)
	k.wakeLocked()
	return true
}

// makeRoomLocked drops a debt if there are too many: one that was answered, or else the
// oldest. Those of a MinHold do not count: they keep what was promised, and there are no
// more of them than there were leases.
func (k *keeper) makeRoomLocked() {
	o := &k.owed
	if o.fresh.Len()+o.settled.Len() < maxOwed {
		return
	}
	oldest := o.settled.Front()
	if oldest == nil {
		oldest = o.fresh.Front()
	}
	o.dropped++
	k.dropLocked(oldest.Value.(*debt))
}

func (k *keeper) dropLocked(d *debt) {
	k.settleLocked(d)
	d.owed.leave()
	d.queued.leave()
	k.removeLocked(&d.event)
}

// settleLocked notes that Close need not wait for a debt.
func (k *keeper) settleLocked(d *debt) {
	if !d.answered && !d.refused {
		k.owed.unanswered--
		k.notify()
	}
}

// dueLocked queues a debt for its next try.
func (k *keeper) dueLocked(d *debt) {
	o := &k.owed
	if d.owed.list == nil || d.queued.list != nil {
		return
	}
	if d.inFlight > 0 { // and hangs
		o.silent++
	}
	switch {
	case time.Now().Before(d.hold):
		d.queued.enter(&o.keep, d)
	case d.lease != nil:
		if d.answered { // it was kept; now its release is owed
			d.answered = false
			if !d.refused {
				o.unanswered++
			}
		}
		d.queued.enter(&o.due[0], d)
	case d.sent.IsZero():
		d.queued.enter(&o.due[1], d)
	default:
		d.queued.enter(&o.due[2], d)
	}
}

// nextRelease returns the next try of an owed release. k.mu is held.
func (k *keeper) nextRelease() func() {
	o := &k.owed
	turn := o.turn
	for o.due[turn].Len() == 0 {
		if turn = (turn + 1) % len(o.due); turn == o.turn {
			return nil
		}
	}
	next := o.due[turn].Front()
	if o.silent >= releasers { // the store is away
		now := time.Now()
		if now.Before(o.probeAt) {
			return nil
		}
		o.probeAt = now.Add(probePause)
		k.scheduleLocked(&o.probe, o.probeAt)
	}
	o.turn = (turn + 1) % len(o.due)
	return k.tryLocked(next.Value.(*debt), k.sendOwed)
}

// nextHold returns the next renewal for a MinHold. k.mu is held.
func (k *keeper) nextHold() func() {
	next := k.owed.keep.Front()
	if next == nil {
		return nil
	}
	return k.tryLocked(next.Value.(*debt), k.keepHold)
}

// tryLocked begins a try of a debt. If it hangs, the debt becomes due again.
func (k *keeper) tryLocked(d *debt, try func(context.Context, *debt)) func() {
	d.queued.leave()
	d.inFlight++
	d.tries++
	d.sent = time.Now()
	k.scheduleLocked(&d.event, d.sent.Add(maxPauseOwed))
	return func() {
		ctx, cancel := within(d.values, releaseTimeout, k.over)
		defer cancel()
		try(ctx, d)
	}
}

// sendOwed makes one try of a release.
func (k *keeper) sendOwed(ctx context.Context, d *debt) {
	sent, held, err := time.Now(), false, errPanic
	defer func() { k.tried(d, sent, held, err) }()
	if d.lease != nil {
		held, err = d.lease.sendOwed(ctx)
	} else {
		held, err = k.locker.Release(ctx, d.key, d.token)
	}
}

// keepHold makes the store keep a lease until its MinHold has passed.
func (k *keeper) keepHold(ctx context.Context, d *debt) {
	sent, held, err := time.Now(), false, errPanic
	defer func() {
		if held {
			k.kept(d)
		} else {
			k.tried(d, sent, held, err)
		}
	}()
	held, err = d.lease.keepUntil(ctx, d.hold)
}

// kept plans the release of a lease that the store keeps for its MinHold.
func (k *keeper) kept(d *debt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d.inFlight--
	if d.owed.list == nil {
		return
	}
	if d.abandoned {
		k.dropLocked(d)
		return
	}
	k.settleLocked(d)
	d.answered, d.tries = true, 0
	d.until = later(d.until, d.hold)
	d.queued.leave()
	k.scheduleLocked(&d.event, d.hold)
}

// tried notes what came of a try that was made at sent, and plans the next one if one
// is needed.
func (k *keeper) tried(d *debt, sent time.Time, held bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d.inFlight--
	o := &k.owed
	refused := refused(err)
	if err == nil || refused {
		o.silent = 0
	} else {
		o.silent++
	}
	switch {
	case d.owed.list == nil: // dropped
	case err == nil && (held && !d.often || !d.pending), hopeless(err), !sent.Before(d.until):
		k.dropLocked(d)
	case err == nil:
		k.answeredLocked(d)
	case refused:
		k.settleLocked(d)
		d.refused = true
		k.againLocked(d, d.sent.Add(min(time.Second<<min(d.tries, 10), d.ttl/4)))
	case d.inFlight == 0:
		k.againLocked(d, d.sent.Add(min(firstPause<<min(max(d.tries-1, 0), 10), maxPauseOwed, d.ttl/4)))
	}
}

// answeredLocked plans another try of a debt whose release was answered, since a call for
// the token may come to the store after it.
func (k *keeper) answeredLocked(d *debt) {
	if !d.answered {
		k.settleLocked(d)
		d.answered, d.tries = true, 0
		d.owed.leave()
		d.owed.enter(&k.owed.settled, d)
	}
	k.againLocked(d, d.sent.Add(min(firstPause<<min(2*d.tries, 20), d.ttl/4)))
}

func (k *keeper) againLocked(d *debt, at time.Time) {
	if d.queued.list == nil {
		k.scheduleLocked(&d.event, later(earlier(at, d.until), time.Now()))
	}
}

// refused says of the error of a release that the store has answered, and will do so again
// with the same: its user lacks a right, say. A store that was not reached has refused
// nothing, and one that is not ready yet will be soon.
func refused(err error) bool {
	refused := false
	dialled := inChain(err, func(err error) bool {
		if e, ok := err.(*NoEffectError); ok {
			refused = !e.Temporary
		}
		op, ok := err.(*net.OpError)
		return ok && op.Op == "dial"
	})
	return refused && !dialled
}

// sendOwed makes one try of the release of a lease, unless a call of Release has done so
// meanwhile. l.mu is not held.
func (l *Lease) sendOwed(ctx context.Context) (held bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.release.answered {
		return true, nil
	}
	return l.tryRelease(ctx)
}

// keepUntil makes the store keep a lease that has ended until hold, and reports
// whether it does. l.mu is not held.
func (l *Lease) keepUntil(ctx context.Context, hold time.Time) (held bool, err error) {
	l.mu.Lock()
	enough := !l.deadline.Before(hold)
	l.mu.Unlock()
	if enough {
		return true, nil
	}
	rest := min(max(0, time.Until(hold)).Truncate(time.Millisecond)+time.Millisecond, maxTTL)
	return l.keeper.locker.Renew(ctx, l.key, l.token, rest)
}
