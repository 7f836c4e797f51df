package dlock

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// How many calls for renewals a Client has in flight: those that have not hung, all for
// single leases, and all.
const (
	renewers      = 32
	maxSingle     = 256
	maxRenewals   = 512
	renewPatience = 20 * time.Millisecond
)

// maxBatch is how many leases one RenewBatch renews at most.
const maxBatch = 1000

// A waiter may have died unnoticed when it is granted the lock, so the first TTL of a
// lease that was waited for is short, and the lease is renewed soon: not at once, since
// a lease that is held for a shorter time needs no renewal.
const (
	waitTTL      = 5 * time.Second
	firstRenewal = 100 * time.Millisecond
)

var (
	errMaxHold = errors.New("held for longer than WithMaxHold allows")
	errPanic   = errors.New("the Locker panicked") // of a call that did not return
)

// firstTTL is the TTL of a lease that is waited for. Only one that will be renewed
// can be short, and it has to last for the MinHold.
func (o *options) firstTTL() time.Duration {
	if !o.renewal || 0 < o.maxHold && o.maxHold <= firstRenewal {
		return o.ttl
	}
	return min(o.ttl, max(waitTTL, o.minHold))
}

// Renewals repeat and overtake each other without harm: none shortens a lease, none
// revives one, and the deadline counts from the sending of the latest that was
// acknowledged. So nothing waits for a renewal that hangs. After at most half of the time
// that a lease had left (see patience) it is renewed again, whatever has become of the
// renewal before.

// Renew moves the deadline to a full TTL from now. Leases of a Client
// [WithRenewal](false) need it; any lease may be renewed so, and renewal in the
// background goes on meanwhile.
//
// The error matches [ErrLost] if the store does not know the lease any more, which ends
// it, or if it was lost before, and [ErrReleased] after Release or Detach. After any other
// error the lease is still held until its deadline. A lease that has been held for longer
// than [WithMaxHold] allows is not renewed.
func (l *Lease) Renew(ctx context.Context) error {
	rest, err := l.mayRenew(ctx)
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, rest)
		defer cancel()
		err = l.sendRenewal(limited, time.Now(), manual)
	}
	return wrapUnlessLost(ctx, "renew", l.key, err)
}

// mayRenew returns how long the lease still lasts, or why it is not to be renewed.
// l.mu is not held.
func (l *Lease) mayRenew(ctx context.Context) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch err := l.look(); {
	case err != nil:
		return 0, err
	case ended(ctx) != nil:
		return 0, endOf(ctx)
	case l.keeper.renewing.Err() != nil:
		return 0, ErrClosed
	case l.overheld(now):
		return 0, errMaxHold
	}
	return l.rest(now), nil
}

func wrapUnlessLost(ctx context.Context, op, key string, err error) error {
	if err == nil || errors.Is(err, ErrLost) {
		return err
	}
	return wrap(ctx, op, key, err)
}

// An outcome is what came of a call that renewed one lease or more.
type outcome struct {
	sent, answered time.Time
	size           int // how many leases were in the call; manual, or spared
}

const (
	manual = 0  // the size of a renewal that was not planned: its failure plans no other
	spared = -1 // that of a batch of which other leases were renewed
)

// sendRenewal makes the call of one renewal. l.mu is not held.
func (l *Lease) sendRenewal(ctx context.Context, sent time.Time, size int) (err error) {
	result := RenewResult{Err: errPanic}
	defer func() { err = l.renewed(outcome{sent, time.Now(), size}, result) }()
	result.Held, result.Err = l.keeper.locker.Renew(ctx, l.key, l.token, l.options.ttl)
	return
}

// renewed notes the result of a renewal. An answer that comes after the deadline does not
// revive the lease. l.mu is not held.
func (l *Lease) renewed(o outcome, r RenewResult) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Err != nil {
		return l.renewalFailed(o, r.Err)
	}
	switch {
	case l.look() != nil:
		return l.err
	case !r.Held:
		l.lose(LossRemoved)
		return l.err
	}
	l.keeper.renewals.succeeded(o.sent)
	if l.trouble.queue >= smaller {
		l.keeper.probed(l)
	}
	l.trouble = trouble{sent: l.trouble.sent}
	l.extend(o.sent, l.options.ttl)
	l.plan(l.extended.Add(l.options.ttl / 3))
	return nil
}

func (l *Lease) renewalFailed(o outcome, err error) error {
	l.keeper.renewals.failed.Add(1)
	err = hide(err, ErrLost, ErrReleased) // it may be the cause of a ctx, and of another lease
	t := &l.trouble
	overtaken := o.sent.Before(l.extended) // by one that has succeeded
	if !overtaken {
		t.err = err
	}
	if l.look() != nil {
		return l.err
	}
	if overtaken {
		return err
	}
	if o.size != manual && t.inFlight > 0 && !o.sent.Before(t.sent) {
		again := o.sent.Add(min(l.options.ttl/20, time.Second, l.patience(o.sent)))
		if l.unanswered(o) {
			again = o.answered
		}
		l.plan(later(again, o.answered))
	}
	return err
}

// unanswered chooses the queue of a lease whose latest renewal has failed or hangs, and
// reports whether the lease is the probe now.
func (l *Lease) unanswered(o outcome) (probe bool) {
	t := &l.trouble
	t.inFlight = 0
	t.note(l, o)
	if l.keeper.probing(l, o.size) {
		t.queue = queues - 1
		return true
	}
	return false
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// patience returns how long after a renewal that was sent at sent, and has not been
// answered, the next one is sent at the latest: so early that, if the store answers from
// any instant on, and all leases of the Client can be renewed in the time that the lease
// has left then, less one round trip, there is time for that still. With all leases in
// flight at once that is half of what is left of the lease at sent, else less.
func (l *Lease) patience(sent time.Time) time.Duration {
	rounds := time.Duration(l.keeper.renewals.rounds.Load())
	return max(l.deadline.Sub(sent)/(rounds+1), time.Millisecond)
}

// beginRenewal reports whether a lease is to be renewed by a call that is made now, and
// how long it still lasts. If that call hangs, the lease becomes due again. l.mu is not
// held.
func (l *Lease) beginRenewal(now time.Time, size int) (rest time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look() != nil || l.keeper.renewing.Err() != nil || l.overheld(now) {
		return 0, false
	}
	t := &l.trouble
	t.sent, t.inFlight = now, size
	if t.silent.IsZero() {
		t.silent = now
	}
	t.suspect = !t.since.IsZero() && l.keeper.renewals.answeredSince(t.since)
	l.plan(now.Add(l.patience(now)))
	return l.rest(now), true
}

// trouble is what is known of the renewals of a lease that have failed since the last
// one that succeeded. Leases are renewed in batches. A batch that hangs has failed. If a
// whole batch fails, the store may be away, or one element may spoil the batch. To tell
// which, one lease of the batch is renewed alone at once, as a probe. If the store answers
// that or any other renewal, and the batch fails once more, it is cut into smaller ones,
// down to single leases as long as others succeed. A lease that was renewed is back in the
// large batches.
type trouble struct {
	err      error     // of the last renewal
	sent     time.Time // when the last one was sent
	inFlight int       // the size of its batch, while it is in flight and need not hang
	silent   time.Time // when the first one was sent
	since    time.Time // when the first one failed in a batch of this size
	suspect  bool      // the store had answered others between since and sent
	queue    int       // of the renewals
}

// cause returns why renewals have failed, at the time of a loss; nil if none was tried. That
// a call has come to the end of its time says less than for how long there was no answer.
func (t *trouble) cause(now time.Time) error {
	err := hideContextErrors(t.err)
	if t.err != nil && besidesEnd(t.err) == nil || t.err == nil && t.inFlight > 0 {
		err = fmt.Errorf("no answer for %v", now.Sub(t.silent).Round(time.Millisecond))
	}
	return err
}

// The queues of leases that are due for a renewal, with the most leases in a batch.
// Leases that failed while others of their batch did not are kept apart, since a server
// of a cluster that is down may hold the batch up.
const (
	whole = iota
	apart
	smaller
	queues = smaller + 3
)

var batchSizes = [queues]int{maxBatch, maxBatch, maxBatch >> 4, maxBatch >> 8, 1}

// note chooses the queue of a lease whose renewal has failed.
func (t *trouble) note(l *Lease, o outcome) {
	alive := !t.since.IsZero() && l.keeper.renewals.answeredSince(t.since)
	probed := l.keeper.probed(l)
	switch {
	case o.size == spared:
		t.queue = apart
	case t.queue >= smaller && alive, t.queue < smaller && t.suspect:
		t.queue, t.since = cut(o.size), o.answered
	case probed:
		t.queue = apart // it may be what spoils the batch
	case t.since.IsZero():
		t.since = o.answered
	}
}

// cut returns the queue whose batches are at most half as large as one of size.
func cut(size int) int {
	q := smaller
	for q < queues-1 && 2*batchSizes[q] > size {
		q++
	}
	return q
}

// renewals are the leases that are due for a renewal, the earliest deadline first. They
// are guarded by the keeper's mutex, but for the atomic fields.
type renewals struct {
	workers   workers
	epoch     time.Time
	due       [queues]urgent
	probe     *Lease        // the one that is renewed alone after its batch has failed
	probedAt  time.Time     // when it was chosen; one that hangs for longer than lookAround makes room for another
	failed    atomic.Uint64 // how many leases were not renewed by a call
	latest    atomic.Int64  // when the latest renewal was sent that has succeeded, in nanoseconds after epoch; -1 if none
	rounds    atomic.Int64  // how many calls after each other renew all leases, at most maxRounds
	unbatched atomic.Bool   // RenewBatch is unsupported
}

// maxRounds bounds how often a renewal that gets no answer is repeated: after at least an
// eighth of the time that the lease has left.
const maxRounds = 7

func (r *renewals) succeeded(sent time.Time) {
	n := int64(sent.Sub(r.epoch))
	for latest := r.latest.Load(); n > latest && !r.latest.CompareAndSwap(latest, n); {
		latest = r.latest.Load()
	}
}

// answeredSince reports whether a renewal has succeeded that was sent at t or later.
func (r *renewals) answeredSince(t time.Time) bool { return r.latest.Load() >= int64(t.Sub(r.epoch)) }

// probing makes a lease the probe, if its batch of size has failed and there is none.
func (k *keeper) probing(l *Lease, size int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, now := &k.renewals, time.Now()
	if size <= 1 || r.probe != nil && now.Sub(r.probedAt) < lookAround {
		return false
	}
	r.probe, r.probedAt = l, now
	return true
}

// probed reports whether a lease was the probe, and is so no more.
func (k *keeper) probed(l *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.renewals.probe != l {
		return false
	}
	k.renewals.probe = nil
	return true
}

// queueRenewal takes a lease with a deadline in a queue of those that are due.
func (k *keeper) queueRenewal(l *Lease, deadline time.Time, queue int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !l.queued {
		l.queued, l.dueBy = true, deadline
		heap.Push(&k.renewals.due[queue], l)
	}
}

// nextRenewal returns the next call of the workers. k.mu is held.
func (k *keeper) nextRenewal() func() {
	r := &k.renewals
	_, batches := k.locker.(BatchRenewer)
	batches = batches && !r.unbatched.Load()
	rounds := 1
	if batches {
		rounds = min(1+k.leases/(maxBatch*renewers), maxRounds)
	}
	r.rounds.Store(int64(rounds))
	q := r.next(func(q int) bool { return r.workers.calls < maxSingle || batches && batchSizes[q] > 1 })
	if q < 0 {
		return nil
	}
	size := 1
	if batches {
		size = batchSizes[q]
	}
	var leases []*Lease
	for len(leases) < size && len(r.due[q]) > 0 {
		l := heap.Pop(&r.due[q]).(*Lease)
		l.queued = false
		leases = append(leases, l)
	}
	many := len(r.due[q]) > 0 || r.workers.calls > maxSingle/2
	return func() { k.renew(leases, many) }
}

// next returns the queue, of those that may be served, that has the lease with the earliest
// deadline, or -1 if they are empty.
func (r *renewals) next(may func(queue int) bool) int {
	first := -1
	for q, due := range r.due {
		if len(due) > 0 && may(q) && (first < 0 || due[0].dueBy.Before(r.due[first][0].dueBy)) {
			first = q
		}
	}
	return first
}

// renew makes one call for leases that are due. It may take half of the time that the last
// of them has left, or a second if that is more and there is time for it; where many calls
// are in flight, less than half, so that those that hang make room for others. A lease that
// has less time left is renewed again meanwhile.
func (k *keeper) renew(leases []*Lease, many bool) {
	now := time.Now()
	begun := leases[:0]
	var rest time.Duration
	for _, l := range leases {
		if r, ok := l.beginRenewal(now, len(leases)); ok {
			begun = append(begun, l)
			rest = max(rest, r)
		}
	}
	if len(begun) == 0 {
		return
	}
	least := min(time.Second, rest*3/4)
	limit := max(rest/2, least)
	if many {
		limit = max(rest/8, least)
	}
	values := context.Background()
	if len(begun) == 1 {
		values = begun[0].values
	}
	ctx, cancel := within(values, limit, k.renewing)
	defer cancel()
	if len(begun) == 1 {
		_ = begun[0].sendRenewal(ctx, now, 1) // the lease has the error
	} else {
		k.sendBatch(ctx, begun, now)
	}
}

// sendBatch makes the call of a batch of renewals.
func (k *keeper) sendBatch(ctx context.Context, leases []*Lease, sent time.Time) {
	batch := make([]Renewal, len(leases))
	for i, l := range leases {
		batch[i] = Renewal{l.key, l.token, l.options.ttl}
	}
	err := errPanic
	var results []RenewResult
	defer func() { k.batchRenewed(leases, sent, results, err) }()
	results, err = k.locker.(BatchRenewer).RenewBatch(ctx, batch)
	if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for a batch of %d", len(results), len(batch))
	}
}

func (k *keeper) batchRenewed(leases []*Lease, sent time.Time, results []RenewResult, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		k.renewals.unbatched.Store(true)
		for _, l := range leases {
			l.replan()
		}
		return
	}
	o := outcome{sent, time.Now(), len(leases)}
	if err == nil {
		o.size = spared
	}
	for i, l := range leases {
		if err != nil {
			_ = l.renewed(o, RenewResult{Err: err}) // the lease has the error
		} else {
			_ = l.renewed(o, results[i])
		}
	}
}

// replan makes a lease due at once. l.mu is not held.
func (l *Lease) replan() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look() == nil {
		l.plan(time.Now())
	}
}

// urgent is a heap of leases, the earliest deadline first.
type urgent []*Lease

func (u urgent) Len() int           { return len(u) }
func (u urgent) Less(i, j int) bool { return u[i].dueBy.Before(u[j].dueBy) }
func (u urgent) Swap(i, j int)      { u[i], u[j] = u[j], u[i] }
func (u *urgent) Push(x any)        { *u = append(*u, x.(*Lease)) }

func (u *urgent) Pop() any {
	last := len(*u) - 1
	l := (*u)[last]
	(*u)[last] = nil
	*u = (*u)[:last]
	return l
}
