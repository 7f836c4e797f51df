package dlock

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// How many calls for renewals a Client has in flight at most: those that have not hung, those
// for single leases, those for the MinHolds of leases that have ended, and all. MinHolds have a part
// of their own: hung calls for them leave room for leases that are held.
const (
	renewers       = 32
	maxSingle      = 256
	maxMinHolds    = 128
	maxRenewals    = 512
	renewHungAfter = 20 * time.Millisecond
)

// maxBatch is how many leases one RenewBatch renews at most.
const maxBatch = 1000

// A waiter may have died by the time it is granted the lock, so the first TTL after a wait is
// short. The first renewal follows soon, but not at once: many leases are released before.
const (
	waitTTL      = 5 * time.Second
	firstRenewal = 100 * time.Millisecond
)

// renewalPeriod is how long after the last acknowledged request of a lease its next renewal is due. The
// plan is made in lease.go (planLocked), what repeats a failed renewal in this file.
func renewalPeriod(ttl time.Duration) time.Duration { return ttl / 3 }

// firstTTL is the TTL of a lease that is waited for. It is short only if the lease will be
// renewed, and not shorter than the MinHold.
func (o *options) firstTTL() time.Duration {
	if !o.autoRenew || 0 < o.maxHold && o.maxHold <= firstRenewal {
		return o.ttl
	}
	return min(o.ttl, max(waitTTL, o.minHold))
}

// Renew moves the deadline to a full TTL from now. It is needed for leases of a Client with
// [WithRenewal](false), and works for any lease; renewal in the background continues.
//
// The error matches [ErrLost] if the lease was lost before, or if the store does not know it
// any more. It matches [ErrReleased] after Release or Detach. After any other error the lease
// is still held until its deadline. Renew refuses a lease that has been held for longer than
// [WithMaxHold] allows.
func (l *Lease) Renew(ctx context.Context) error {
	rest, err := l.mayRenew(ctx)
	if err != nil {
		return wrapUnlessLost(ctx, "renew", l.key, err)
	}
	limited, cancel := context.WithTimeout(ctx, rest)
	defer cancel()
	sent := time.Now()
	failure, err := l.sendRenewal(limited, sent, manual)
	err = wrapUnlessLost(ctx, "renew", l.key, said(ctx, sent, err))
	if silence := said(ctx, sent, failure); errors.Is(silence, ErrUnavailable) && !errors.Is(err, ErrUnavailable) {
		err = fmt.Errorf("%w: %w", err, withEnd(ctx, silence)) // the lease has ended meanwhile
	}
	return err
}

// An outcome describes a finished call that renewed one lease or more.
type outcome struct {
	sent, answered time.Time
	size           int // how many leases were in the call; manual, or spared
	leases         int // in the call
	ctx            context.Context
}

const (
	manual = 0  // the size of an unplanned renewal, whose failure plans no other
	spared = -1 // the size of a batch in which other leases were renewed
)

// sendRenewal makes the call of one renewal. It returns the error of the call, and what that means
// for the lease.
func (l *Lease) sendRenewal(ctx context.Context, sent time.Time, size int) (failure, err error) {
	result := RenewResult{Err: errPanic}
	defer func() { failure, err = result.Err, l.renewed(outcome{sent, time.Now(), size, 1, ctx}, result) }()
	result.Held, result.Err = l.keeper.locker.Renew(ctx, l.key, l.token, l.ttl)
	return
}

// renewals are the leases that are due for a renewal, the earliest deadline first. Fields that
// are not atomic are guarded by the keeper's mutex.
//
// Renewals may repeat and overtake each other: none shortens or revives a lease, and the
// deadline counts from the sending of the latest one that was acknowledged. So nothing waits
// for a renewal that hangs. The lease is renewed again after at most half of its remaining
// time (see patienceLocked).
type renewals struct {
	workers   workers
	epoch     time.Time
	due       [queueCount]urgent
	probe     *Lease        // the lease that is renewed alone after its batch has failed
	probedAt  time.Time     // when it was chosen; after lookAround another may take its place
	failed    atomic.Uint64 // how many leases were not renewed by a call
	latest    atomic.Int64  // when the latest successful renewal was sent, in nanoseconds after epoch; -1 if none
	rounds    atomic.Int64  // of calls that renew all leases, at most maxRounds
	unbatched atomic.Bool   // RenewBatch is unsupported
}

// maxRounds limits repeats: a renewal without an answer is repeated after at least an eighth of
// the remaining time.
const maxRounds = 7

func (r *renewals) succeeded(sent time.Time) {
	n := int64(sent.Sub(r.epoch))
	for latest := r.latest.Load(); n > latest && !r.latest.CompareAndSwap(latest, n); {
		latest = r.latest.Load()
	}
}

// answeredSince reports whether a renewal that was sent at t or later has succeeded.
func (r *renewals) answeredSince(t time.Time) bool { return r.latest.Load() >= int64(t.Sub(r.epoch)) }

// queueRenewal puts a lease into one of the queues, by deadline.
func (k *keeper) queueRenewal(l *Lease, deadline time.Time, queue int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !l.queued {
		l.queued, l.dueBy = true, deadline
		heap.Push(&k.renewals.due[queue], l)
	}
}

// nextRenewalLocked returns the next call of the workers, or nil.
func (k *keeper) nextRenewalLocked() func() {
	r := &k.renewals
	_, batches := k.locker.(BatchRenewer)
	batches = batches && !r.unbatched.Load()
	rounds := 1
	if batches {
		rounds = min(1+k.leases/(maxBatch*renewers), maxRounds)
	}
	r.rounds.Store(int64(rounds))
	q := r.nextQueueLocked(func(q int) bool { return r.workers.calls < maxSingle || batches && batchSizes[q] > 1 })
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

// nextQueueLocked returns the queue with the earliest deadline, of those that may be served, or
// -1 if they are empty.
func (r *renewals) nextQueueLocked(may func(queue int) bool) int {
	first := -1
	for q, due := range r.due {
		if len(due) > 0 && may(q) && (first < 0 || due[0].dueBy.Before(r.due[first][0].dueBy)) {
			first = q
		}
	}
	return first
}

// renew makes one call for leases that are due. Its time limit is half of the longest remaining
// time among them, or a second if that is more and there is time for it. With many calls in
// flight the limit is lower, so that calls that hang make room. A lease with less remaining
// time is renewed again meanwhile.
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
	timeout := max(rest/2, least)
	if many {
		timeout = max(rest/8, least)
	}
	values := context.Background()
	if len(begun) == 1 {
		values = begun[0].lookAtValues()
	}
	ctx, cancel := within(values, timeout, k.renewing)
	defer cancel()
	if len(begun) == 1 {
		_, _ = begun[0].sendRenewal(ctx, now, 1) // the lease has the error
	} else {
		k.sendBatch(ctx, begun, now)
	}
}

// sendBatch makes the call of a batch of renewals.
func (k *keeper) sendBatch(ctx context.Context, leases []*Lease, sent time.Time) {
	batch := make([]Renewal, len(leases))
	for i, l := range leases {
		batch[i] = Renewal{l.key, l.token, l.ttl}
	}
	err := errPanic
	var results []RenewResult
	defer func() { k.batchRenewed(ctx, leases, sent, results, err) }()
	results, err = k.locker.(BatchRenewer).RenewBatch(ctx, batch)
	if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for a batch of %d", len(results), len(batch))
	}
}

func (k *keeper) batchRenewed(ctx context.Context, leases []*Lease, sent time.Time, results []RenewResult, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		k.renewals.unbatched.Store(true)
		for _, l := range leases {
			l.replan()
		}
		return
	}
	o := outcome{sent: sent, answered: time.Now(), size: len(leases), leases: len(leases), ctx: ctx}
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

// chooseProbe makes a lease the probe, if its batch of size has failed and there is no probe.
func (k *keeper) chooseProbe(l *Lease, size int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, now := &k.renewals, time.Now()
	if size <= 1 || r.probe != nil && now.Sub(r.probedAt) < lookAround {
		return false
	}
	r.probe, r.probedAt = l, now
	return true
}

// endProbe reports whether a lease was the probe, and ends that.
func (k *keeper) endProbe(l *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.renewals.probe != l {
		return false
	}
	k.renewals.probe = nil
	return true
}

// urgent is a heap of leases, the earliest deadline first.
type urgent []*Lease

func (u urgent) Len() int { return len(u) }

func (u urgent) Less(i, j int) bool { return u[i].dueBy.Before(u[j].dueBy) }

func (u urgent) Swap(i, j int) { u[i], u[j] = u[j], u[i] }

func (u *urgent) Push(x any) { *u = append(*u, x.(*Lease)) }

func (u *urgent) Pop() any {
	last := len(*u) - 1
	l := (*u)[last]
	(*u)[last] = nil
	*u = (*u)[:last]
	return l
}

// trouble describes the failed renewals of a lease since the last successful one. Leases are
// renewed in batches; a batch that hangs counts as failed. If a whole batch fails, the store
// may be away, or one element may spoil the batch. To find out, one lease of the batch is
// renewed alone at once, as a probe. If the store answers that or any other renewal, and the
// batch fails once more, the batch is split, down to single leases as long as others succeed.
// A lease that was renewed returns to the large batches.
type trouble struct {
	err         error     // of the last renewal
	sent        time.Time // when the last one was sent
	inFlight    int       // the size of its batch; 0 once that has failed or hangs
	silentSince time.Time // when the first one was sent
	failedAt    time.Time // when the first one failed in a batch of this size
	suspect     bool      // the store had answered others between failedAt and sent
	queue       int       // of the renewals
}

// The queues of leases that are due for a renewal, and the sizes of their batches. Leases that
// failed while others of their batch did not have a queue of their own: the server of a
// cluster that keeps them may be down, and would delay the others.
const (
	queueWhole = iota
	queueApart
	queueSmaller
	queueCount = queueSmaller + 3
)

var batchSizes = [queueCount]int{maxBatch, maxBatch, maxBatch >> 4, maxBatch >> 8, 1}

// noteLocked chooses the queue of a lease whose renewal has failed.
func (t *trouble) noteLocked(l *Lease, o outcome) {
	alive := !t.failedAt.IsZero() && l.keeper.renewals.answeredSince(t.failedAt)
	probed := l.keeper.endProbe(l)
	switch {
	case o.size == spared:
		t.queue = queueApart
	case t.queue >= queueSmaller && alive, t.queue < queueSmaller && t.suspect:
		t.queue, t.failedAt = cut(o.size), o.answered
	case probed:
		t.queue = queueApart // it may be the one that spoils the batch
	case t.failedAt.IsZero():
		t.failedAt = o.answered
	}
}

// cut returns the queue with batches of at most half of size.
func cut(size int) int {
	q := queueSmaller
	for q < queueCount-1 && 2*batchSizes[q] > size {
		q++
	}
	return q
}

// causeLocked returns why renewals failed before a loss; nil if none was tried. If they only
// timed out, it says for how long there was no answer.
func (t *trouble) causeLocked(now time.Time) error {
	err := hideContextErrors(t.err)
	if t.err != nil && besidesEnd(t.err) == nil || t.err == nil && t.inFlight > 0 {
		err = fmt.Errorf("no answer for %v", now.Sub(t.silentSince).Round(time.Millisecond))
	}
	return err
}
