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

// errPanic is the error of a call that did not return.
var errPanic = errors.New("the Locker panicked")

// maxBatch is how many leases one RenewBatch renews at most.
const maxBatch = 1000

// A waiter may have died unnoticed when it is granted the lock, so the first TTL of a
// lease that was waited for is short, and the lease is renewed soon: not at once,
// since a Release would have to wait for the answer.
const (
	waitTTL      = 5 * time.Second
	firstRenewal = 100 * time.Millisecond
)

// firstTTL is the TTL of a lease that is waited for. Only one that will be renewed
// can be short, and it has to last for the MinHold.
func (o *options) firstTTL() time.Duration {
	if !o.renewal || 0 < o.maxHold && o.maxHold <= firstRenewal {
		return o.ttl
	}
	return min(o.ttl, max(waitTTL, o.minHold))
}

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
	l.plan(l.renewAt)
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
func (l *Lease) extend(since time.Time, ttl time.Duration) {
	if deadline := since.Add(ttl - drift(ttl)); deadline.After(l.deadline) {
		l.extended, l.deadline, l.wall = since, deadline, deadline.Round(0)
	}
}

// plan puts the lease on the agenda: for a renewal at renewal, if it is to be
// renewed at all, else for its deadline.
func (l *Lease) plan(renewal time.Time) {
	l.renewAt = time.Time{}
	if l.options.renewal && !l.overheld(renewal) && renewal.Before(l.deadline) {
		l.renewAt = renewal
	}
	if l.renewAt.IsZero() {
		l.keeper.schedule(l, l.deadline, 0)
	} else {
		l.keeper.schedule(l, l.renewAt, min(l.options.ttl/12, time.Until(l.renewAt)/4))
	}
}

// due does what the agenda woke the lease for: it ends it, or reports that it
// is to be renewed now, and with which others. l.mu is not held.
func (l *Lease) due() (group int, renew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look() != nil {
		return 0, false
	}
	renew = !l.renewAt.IsZero() && !l.keeper.closed.Load()
	l.renewAt = time.Time{}
	l.keeper.schedule(l, l.deadline, 0)
	return l.group, renew
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
	err = l.sendRenewal(limited)
	return wrapUnlessLost(ctx, "renew", l.key, err)
}

// sendRenewal makes the call of a renewal that has begun. l.mu is not held.
func (l *Lease) sendRenewal(ctx context.Context) (err error) {
	sent, result := time.Now(), RenewResult{Err: errPanic}
	defer func() { err = l.renewed(sent, result, 0) }()
	result.Held, result.Err = l.keeper.locker.Renew(ctx, l.key, l.token, l.options.ttl)
	return
}

func wrapUnlessLost(ctx context.Context, op, key string, err error) error {
	if err == nil || errors.Is(err, ErrLost) {
		return err
	}
	return wrap(ctx, op, key, err)
}

// beginRenewal waits for its turn, at most until the deadline, and returns how
// long the lease still lasts. If there is no error, renewed must follow. l.mu is
// not held.
func (l *Lease) beginRenewal(ctx context.Context) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.mayRenew(ctx); err != nil {
		return 0, err
	}
	limited, cancel := context.WithTimeout(ctx, l.rest(time.Now()))
	defer cancel()
	err := l.takeTurn(limited)
	if now := l.mayRenew(ctx); now != nil {
		if err == nil {
			l.endTurn()
		}
		return 0, now
	}
	return l.rest(time.Now()), err
}

func (l *Lease) mayRenew(ctx context.Context) error {
	switch err := l.look(); {
	case err != nil:
		return err
	case ended(ctx) != nil:
		return endOf(ctx)
	case l.keeper.closed.Load():
		return ErrClosed
	case l.overheld(time.Now()):
		return errMaxHold
	}
	return nil
}

// tryBeginRenewal is beginRenewal for a renewal in the background. If it is not
// the lease's turn, whoever has it plans the next one.
func (l *Lease) tryBeginRenewal() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy || l.mayRenew(l.keeper.open) != nil {
		return 0, false
	}
	l.busy = true
	return l.rest(time.Now()), true
}

// renewed is the end of a renewal that was sent at sent, with the other leases of
// group. An answer that comes after the deadline does not revive the lease. l.mu is
// not held.
func (l *Lease) renewed(sent time.Time, r RenewResult, group int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endTurn()
	l.failure = r.Err
	switch {
	case l.look() != nil:
		return l.err
	case r.Err != nil:
		l.group = group
		l.plan(time.Now().Add(min(l.options.ttl/20, time.Second)))
		return r.Err
	case !r.Held:
		l.lose(errTaken)
		return l.err
	}
	l.group = 0
	l.extend(sent, l.options.ttl)
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
		l.unlocked(func() {
			select {
			case <-idle:
			case <-ctx.Done():
			}
		})
		if ended(ctx) != nil {
			return endOf(ctx)
		}
	}
	l.busy = true
	return nil
}

// unlocked calls f without l.mu.
func (l *Lease) unlocked(f func()) {
	l.mu.Unlock()
	defer l.mu.Lock()
	f()
}

func (l *Lease) endTurn() {
	l.busy = false
	if l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// A renewal is a job of the keeper's: leases to be renewed together.
type renewal struct {
	leases []*Lease
	group  int
}

// Leases are renewed in groups, by what became of their last renewal. In group 0 it
// succeeded. In the others it failed: for some leases of a batch, which are kept
// apart from the rest, or for a whole batch, which is cut into smaller ones, so
// that what spoils it does not spoil it for all.
const (
	failedAlone = 1
	maxGroup    = 4
)

func batchSize(group int) int { return max(1, maxBatch>>(4*max(0, group-failedAlone))) }

// renewAll sends the renewals of the leases of a group that are due, in as few
// calls as the Locker allows.
func (k *keeper) renewAll(leases []*Lease, group int) {
	size := batchSize(group)
	if _, ok := k.locker.(BatchRenewer); !ok || k.noBatches.Load() {
		size = 1
	}
	for batch := range slices.Chunk(leases, size) {
		k.renewals.add(&renewal{batch, group})
	}
}

// renew gives a renewal half of the time that is left, so that if it hangs there
// is time for another.
func (k *keeper) renew(r *renewal) {
	begun := make([]*Lease, 0, len(r.leases))
	limit := time.Duration(math.MaxInt64)
	for _, l := range r.leases {
		if rest, ok := l.tryBeginRenewal(); ok {
			begun = append(begun, l)
			limit = min(limit, rest/2)
		}
	}
	switch {
	case len(begun) == 0:
	case len(r.leases) == 1:
		ctx, cancel := within(begun[0].values, limit, k.open)
		defer cancel()
		_ = begun[0].sendRenewal(ctx) // the lease has the error
	default:
		ctx, cancel := within(context.Background(), limit, k.open)
		defer cancel()
		k.sendBatch(ctx, begun, min(r.group+2, maxGroup))
	}
}

// sendBatch makes the call of a batch of renewals that have begun. If it fails,
// its leases are in the given group.
func (k *keeper) sendBatch(ctx context.Context, leases []*Lease, group int) {
	batch := make([]Renewal, len(leases))
	for i, l := range leases {
		batch[i] = Renewal{l.key, l.token, l.options.ttl}
	}
	sent, err := time.Now(), errPanic
	var results []RenewResult
	defer func() {
		for i, l := range leases {
			if err != nil {
				l.renewed(sent, RenewResult{Err: err}, group)
			} else {
				l.renewed(sent, results[i], failedAlone)
			}
		}
	}()
	results, err = k.locker.(BatchRenewer).RenewBatch(ctx, batch)
	if errors.Is(err, errors.ErrUnsupported) {
		k.noBatches.Store(true)
	} else if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for a batch of %d", len(results), len(batch))
	}
}
