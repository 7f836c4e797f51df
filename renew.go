package dlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Why a lease was lost.
var (
	errTaken   = errors.New("the store does not know it any more")
	errMaxHold = errors.New("held for longer than WithMaxHold allows")
	errTooLate = errors.New("not renewed before its deadline")
)

// maxBatch is how many leases one RenewBatch renews at most.
const maxBatch = 1000

// drift is what is taken off a TTL, for clocks that do not run at the same
// speed. It is that of the Redlock algorithm.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// start puts a new lease on the agenda. It reports false if the Client has been
// closed.
func (l *Lease) start() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keeper.closed.Load() {
		return false
	}
	l.plan(l.extended.Add(l.options.ttl / 3))
	return true
}

// rest returns how long the lease is still certain to be held. Either clock may
// end it, since the monotonic one stops while the machine is suspended. l.mu is
// held, as it is for all unexported methods of a Lease unless they say otherwise.
func (l *Lease) rest(now time.Time) time.Duration {
	return min(l.deadline.Sub(now), l.wall.Sub(now.Round(0)))
}

// look returns the Err of the lease, after a look at the clocks.
func (l *Lease) look() error {
	if now := time.Now(); l.err == nil && l.rest(now) <= 0 {
		l.expire(now)
	}
	return l.err
}

// expire ends a lease whose deadline has passed. The store may still keep it for
// a while, so a release is owed.
func (l *Lease) expire(now time.Time) {
	cause := errTooLate
	switch {
	case l.overheld(now):
		cause = errMaxHold
	case l.failure != nil:
		cause = fmt.Errorf("%w: %w", errTooLate, hideContextErrors(l.failure))
	}
	l.lose(cause)
	l.keeper.owe(&debt{lease: l})
}

func (l *Lease) lose(cause error) { l.end(l.lost(cause)) }

func (l *Lease) lost(cause error) error {
	return fmt.Errorf("dlock: %q: %w: %w", l.key, ErrLost, cause)
}

// end ends the lease, once, and everything that depends on it.
func (l *Lease) end(err error) {
	l.err = err
	l.keeper.forget(l)
	if l.done != nil {
		close(l.done)
	}
	for _, cancel := range l.contexts {
		cancel(err)
	}
	l.contexts = nil
}

func (l *Lease) overheld(now time.Time) bool {
	return l.options.maxHold > 0 && now.Sub(l.granted) >= l.options.maxHold
}

// extend moves the deadline on: the store was asked at since to keep the lease
// for a TTL, and has said that it does.
func (l *Lease) extend(since time.Time) {
	if deadline := since.Add(l.options.ttl - drift(l.options.ttl)); deadline.After(l.deadline) {
		l.extended, l.deadline, l.wall = since, deadline, deadline.Round(0)
	}
}

// plan puts the lease on the agenda: for a renewal at renewal, if it is to be
// renewed at all, else for its deadline.
func (l *Lease) plan(renewal time.Time) {
	l.renewAt = time.Time{}
	if l.options.renewal && !l.keeper.closed.Load() && !l.overheld(renewal) && renewal.Before(l.deadline) {
		l.renewAt = renewal
	}
	if l.renewAt.IsZero() {
		l.keeper.schedule(l, l.deadline, 0)
	} else {
		l.keeper.schedule(l, l.renewAt, l.options.ttl/12)
	}
}

// due does what the agenda woke the lease for: it ends it, or reports that it
// is to be renewed now, and how many times that failed in a row. l.mu is not
// held.
func (l *Lease) due() (failures int, renew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look() != nil {
		return 0, false
	}
	renew = !l.renewAt.IsZero() && !l.keeper.closed.Load()
	l.renewAt = time.Time{}
	l.keeper.schedule(l, l.deadline, 0)
	return l.failures, renew
}

// Renew moves the deadline on by a full TTL, counted from now: for leases of a
// Client [WithRenewal](false), though any may be renewed so. It returns an error
// that matches [ErrLost] if the store does not know the lease any more, which
// ends it, or if it has been lost before; [ErrReleased] after Release; or why the
// store did not answer, after which the lease is still held until its deadline.
// A lease that has been held for longer than [WithMaxHold] allows is not renewed.
func (l *Lease) Renew(ctx context.Context) error {
	rest, err := l.beginRenewal(ctx)
	if err != nil {
		return wrapUnlessLost(ctx, "renew", l.key, err)
	}
	limited, cancel := context.WithTimeout(ctx, rest)
	defer cancel()
	sent := time.Now()
	held, err := l.keeper.locker.Renew(limited, l.key, l.token, l.options.ttl)
	return wrapUnlessLost(ctx, "renew", l.key, l.renewed(sent, RenewResult{held, err}))
}

func wrapUnlessLost(ctx context.Context, op, key string, err error) error {
	if err == nil || errors.Is(err, ErrLost) {
		return err
	}
	return wrap(ctx, op, key, err)
}

// beginRenewal waits for its turn and returns how long the lease still lasts. If
// there is no error, renewed must follow. l.mu is not held.
func (l *Lease) beginRenewal(ctx context.Context) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return 0, endOf(ctx)
	}
	if l.keeper.closed.Load() {
		return 0, ErrClosed
	}
	if err := l.takeTurn(ctx); err != nil {
		return 0, err
	}
	now := time.Now()
	err := l.look()
	if err == nil && l.overheld(now) {
		err = errMaxHold
	}
	if err != nil {
		l.endTurn()
	}
	return l.rest(now), err
}

// tryBeginRenewal is beginRenewal for a renewal in the background. If it is not
// the lease's turn, whoever has it plans the next one.
func (l *Lease) tryBeginRenewal() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy || l.look() != nil {
		return 0, false
	}
	l.busy = true
	return l.rest(time.Now()), true
}

// renewed is the end of a renewal that was sent at sent. An answer that comes
// after the deadline does not revive the lease. l.mu is not held.
func (l *Lease) renewed(sent time.Time, r RenewResult) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endTurn()
	l.failure = r.Err
	switch {
	case l.look() != nil:
		return l.err
	case r.Err != nil:
		l.failures++
		l.plan(time.Now().Add(min(l.options.ttl/20, time.Second)))
		return r.Err
	case !r.Held:
		l.lose(errTaken)
		return l.err
	}
	l.failures = 0
	l.extend(sent)
	l.plan(l.extended.Add(l.options.ttl / 3))
	return nil
}

// takeTurn waits until no other call for the lease is on its way, and makes this
// one the next; endTurn must follow. So a release never overtakes a renewal.
func (l *Lease) takeTurn(ctx context.Context) error {
	for l.busy {
		if l.idle == nil {
			l.idle = make(chan struct{})
		}
		idle := l.idle
		l.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
		}
		l.mu.Lock()
		if ctx.Err() != nil {
			return endOf(ctx)
		}
	}
	l.busy = true
	return nil
}

func (l *Lease) endTurn() {
	l.busy = false
	if l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// renewAll sends the renewals of leases that are due and have failed so many
// times in a row, in as few calls as the Locker allows. A batch that failed is
// cut into smaller ones, so that what spoils it does not spoil it for all.
func (k *keeper) renewAll(leases []*Lease, failures int) {
	batcher, ok := k.locker.(BatchRenewer)
	size := maxBatch >> (3 * failures)
	if !ok || size <= 1 || k.noBatches.Load() {
		for _, l := range leases {
			k.renewals.add(func() { k.renewOne(l) })
		}
		return
	}
	for batch := range slices.Chunk(leases, size) {
		k.renewals.add(func() { k.renewBatch(batcher, batch) })
	}
}

// renewOne gives a renewal half of the time that is left, so that if it hangs
// there is time for another.
func (k *keeper) renewOne(l *Lease) {
	rest, ok := l.tryBeginRenewal()
	if !ok {
		return
	}
	ctx, cancel := within(l.values, rest/2, k.open)
	defer cancel()
	sent := time.Now()
	held, err := k.locker.Renew(ctx, l.key, l.token, l.options.ttl)
	l.renewed(sent, RenewResult{held, err})
}

func (k *keeper) renewBatch(batcher BatchRenewer, leases []*Lease) {
	batch := make([]Renewal, 0, len(leases))
	begun := make([]*Lease, 0, len(leases))
	limit := time.Duration(math.MaxInt64)
	for _, l := range leases {
		if rest, ok := l.tryBeginRenewal(); ok {
			batch = append(batch, Renewal{l.key, l.token, l.options.ttl})
			begun = append(begun, l)
			limit = min(limit, rest/2)
		}
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := within(context.Background(), limit, k.open)
	defer cancel()
	sent := time.Now()
	results, err := batcher.RenewBatch(ctx, batch)
	if errors.Is(err, errors.ErrUnsupported) {
		k.noBatches.Store(true)
	} else if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for a batch of %d", len(results), len(batch))
	}
	for i, l := range begun {
		if err != nil {
			l.renewed(sent, RenewResult{Err: err})
		} else {
			l.renewed(sent, results[i])
		}
	}
}
