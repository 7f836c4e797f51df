package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/internal/alarm"
	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/contexts"
	"github.com/dlock-go/dlock/internal/errs"
)

// How many calls for renewals a Client has in flight at most: those that have not hung, those
// for single leases, and all.
const (
	renewers       = 32
	maxSingle      = 384
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

// Renew extends the lease to a full TTL from now. It is needed for leases of a Client with
// [WithRenewal](false), and works for any lease; renewal in the background continues.
//
// The error matches [ErrLost] if the lease was lost before, or if the store no longer knows it.
// It matches [ErrReleased] after Release or Detach. After any other error the lease is still
// held until its deadline. Renew refuses a lease that has been held for longer than
// [WithMaxHold] allows.
func (l *Lease) Renew(ctx context.Context) error {
	rest, err := l.mayRenew(ctx)
	if err != nil {
		return wrapUnlessLost(ctx, "renew", l.key, err)
	}
	limited, cancel := context.WithTimeout(ctx, rest)
	defer cancel()
	sent := time.Now()
	failure, err := l.sendRenewal(renewal{ctx: limited, sent: sent, ttl: l.ttl})
	err = wrapUnlessLost(ctx, "renew", l.key, callError(ctx, sent, err))
	if silence := callError(ctx, sent, failure); errors.Is(silence, ErrUnavailable) && !errors.Is(err, ErrUnavailable) {
		err = fmt.Errorf("%w: %w", err, withEnd(ctx, silence)) // the lease has ended meanwhile
	}
	return err
}

// A renewal is what a lease knows of a call that renews it.
type renewal struct {
	ctx    context.Context
	sent   time.Time
	ttl    time.Duration
	size   int  // how many leases the call renews; 0 if a caller makes it
	spared bool // others of its batch were renewed, if this one was not
}

// sendRenewal makes the call of one renewal. It returns the error of the call, and what that means
// for the lease.
func (l *Lease) sendRenewal(c renewal) (failure, err error) {
	result := RenewResult{Err: errPanic}
	defer func() { failure, err = result.Err, l.noteRenewal(c, result) }()
	result.Held, result.Err = l.keeper.locker.Renew(c.ctx, l.key, l.token, c.ttl)
	return
}

// Leases that are due for a renewal wait for a call, the earliest deadline first. Renewals may
// repeat and overtake each other: none shortens or revives a lease, and the deadline counts from the
// sending of the latest one that was acknowledged. So nothing waits for a renewal that hangs. The
// lease is renewed again after at most half of its remaining time (see patienceLocked).
//
// Leases are renewed in batches; a batch that hangs counts as failed. If the store has answered
// other renewals since then, an element spoils the batch: the largest batch of its leases is halved,
// until the spoiler is alone. Leases with different largest batches do not share one. So those of a
// server of a cluster that is down do not delay others, either: their own renewals have failed, while
// others of their batch have not. A lease that was renewed returns to the large batches.
//
// If the store has answered nothing since, it may be away, which is no reason to make more calls. To
// find out, one lease of the next batch is renewed alone, once a second.

// A retry describes the renewals of a lease since the last one that succeeded.
type retry struct {
	err      error         // of the last one
	reason   error         // of the last one whose error says more than that there was no answer
	answered time.Time     // when the last one failed that the store has answered; zero if it has answered none
	late     time.Duration // how much later one began than planned, at most; 0 if that is little
	since    time.Time     // when the first one was sent
	sent     time.Time     // when the last one was sent
	size     int           // of its batch; maxBatch if others in that were renewed; 0 before the first one
	halvedAt time.Time     // when the largest batch of the lease was halved
	halved   uint8         // how many times
	inFlight bool          // the last one has not failed, and does not hang
}

// halve halves the largest batch of the lease if that is of use: the store has answered other renewals, of which the
// last was sent at a given time. It reports whether the store may be away instead.
func (r *retry) halve(answered, now time.Time) (silent bool) {
	if r.size == 0 || answered.Before(alarm.Later(r.since, r.halvedAt)) {
		return r.size > 0
	}
	r.halvedAt = now
	for maxBatch>>r.halved >= max(2, r.size) {
		r.halved++
	}
	return false
}

// A plan chooses the leases of the next call. It is offered those that are due, the earliest deadline first.
type plan struct {
	single bool     // RenewBatch is unsupported
	full   bool     // there are too many calls for single leases
	size   int      // of the batch; 0 before its first lease
	batch  []*Lease // that the call renews
	rest   []*Lease // that were offered, too
}

// wants reports whether the plan is to be offered another lease.
func (p *plan) wants() bool {
	return (p.size == 0 || len(p.batch) < p.size) && len(p.rest) < maxBatch
}

func (p *plan) offer(l *Lease) {
	largest := maxBatch >> l.halved
	if p.single {
		largest = 1
	}
	if p.size == 0 && (largest > 1 || !p.full) {
		p.size = largest
	}
	if largest == p.size {
		p.batch = append(p.batch, l)
	} else {
		p.rest = append(p.rest, l)
	}
}

// asks has the call renew only the i-th lease of the batch.
func (p *plan) asks(i int) {
	p.batch[0], p.batch[i] = p.batch[i], p.batch[0]
	p.batch, p.rest = p.batch[:1], append(p.rest, p.batch[1:]...)
}

// dueForRenewal has a lease renewed, by deadline. A lease whose largest batch is halved waits behind others whose
// deadlines are a little later, since it may hang again.
func (k *keeper) dueForRenewal(l *Lease, deadline time.Time, r *retry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.silent = r.halve(k.answered, time.Now()); !l.waiting.IsSet() {
		l.halved = r.halved
		k.due.Set(&l.waiting, deadline.Add(l.ttl/200*time.Duration(r.halved)))
	}
}

// rounds returns how many rounds of calls renew all leases. A renewal without an answer is repeated
// after at least an eighth of the remaining time.
func (k *keeper) rounds() int {
	if k.unbatched.Load() {
		return 1
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return min(1+k.leases/(maxBatch*renewers), 7)
}

// nextRenewalLocked returns the next call of the renewers, or nil.
func (k *keeper) nextRenewalLocked() func() {
	p := plan{single: k.unbatched.Load(), full: k.renewers.Jobs >= maxSingle}
	if p.single && p.full {
		return nil
	}
	for k.due.Len() > 0 && p.wants() {
		p.offer(k.due.Pop().For.(*Lease))
	}
	if now := time.Now(); len(p.batch) > 1 && p.batch[0].silent && now.Sub(k.asked) >= time.Second {
		k.asked = now
		p.asks(int(chance.N(time.Duration(len(p.batch))))) // not the first one, which may be the spoiler each time
	}
	for _, l := range p.rest {
		k.due.Return(&l.waiting)
	}
	if len(p.batch) == 0 {
		return nil
	}
	many := k.due.Len() > 0 || k.renewers.Jobs > maxSingle/2
	return func() { k.renew(p.batch, many) }
}

// renew makes one call for leases that are due. Its time limit is half of the longest remaining
// time among them, or a second if that is more and there is time for it. With many calls in
// flight the limit is lower, so that calls that hang make room. A lease with less remaining
// time is renewed again meanwhile.
func (k *keeper) renew(leases []*Lease, many bool) {
	now := time.Now()
	begun, batch, rest := leases[:0], make([]Renewal, 0, len(leases)), time.Duration(0)
	for _, l := range leases {
		if ttl, r := l.beginRenewal(now, len(leases)); ttl > 0 {
			begun, batch, rest = append(begun, l), append(batch, Renewal{l.key, l.token, ttl}), max(rest, r)
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
	values, end := context.Background(), k.renewing
	if len(begun) == 1 {
		values = begun[0].lookAtValues()
	}
	if end.Err() != nil {
		end = k.over // for MinHolds
	}
	ctx, cancel := contexts.Within(values, timeout, end)
	defer cancel()
	c := renewal{ctx: ctx, sent: now, ttl: batch[0].TTL, size: len(begun)}
	if len(begun) == 1 {
		_, _ = begun[0].sendRenewal(c) // the lease has the error
	} else {
		k.sendBatch(c, begun, batch)
	}
}

// sendBatch makes the call of a batch of renewals.
func (k *keeper) sendBatch(c renewal, leases []*Lease, batch []Renewal) {
	err := errPanic
	var results []RenewResult
	defer func() { k.noteBatch(c, leases, batch, results, err) }()
	results, err = k.locker.(BatchRenewer).RenewBatch(c.ctx, batch)
	if err == nil && len(results) != len(batch) {
		err = fmt.Errorf("%d results for a batch of %d", len(results), len(batch))
	}
}

func (k *keeper) noteBatch(c renewal, leases []*Lease, batch []Renewal, results []RenewResult, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		k.unbatched.Store(true)
		for _, l := range leases {
			l.replan()
		}
		return
	}
	c.spared = err == nil
	for i, l := range leases {
		r := RenewResult{Err: err}
		if err == nil {
			r = results[i]
		}
		c.ttl = batch[i].TTL
		_ = l.noteRenewal(c, r) // the lease has the error
	}
}

// noteLocked notes the error of a renewal.
func (r *retry) noteLocked(err error, now time.Time) {
	r.err = err
	reason := errs.BesidesEnd(err)
	if reason != nil && (NoEffect(err) || !timedOut(reason)) {
		r.reason = reason
	}
	if Refused(err) || temporary(err) || answered(err) {
		r.answered = now
	}
}

// noteLateLocked notes that a renewal begins that was planned for a given time.
func (r *retry) noteLateLocked(planned, now time.Time, ttl time.Duration) {
	if late := now.Sub(planned); !planned.IsZero() && late >= min(time.Second, ttl/10) {
		r.late = max(r.late, late)
	}
}

// causeLocked returns why renewals failed before a loss; nil if there is no more to say. What the store, or its
// client library, said last is kept. Silence counts from the last answer of the store.
func (r *retry) causeLocked(now time.Time) error {
	silence := now.Sub(alarm.Later(r.since, r.answered)).Round(time.Millisecond)
	err, text := errs.HideContext(r.reason), fmt.Sprintf("no answer for %v", silence)
	if failed(err) {
		err, text = saying(err, false), fmt.Sprintf("no success for %v", silence)
	}
	if err == nil && errs.BesidesEnd(r.err) != nil { // a time-out of the client library
		err = errs.HideContext(errs.BesidesEnd(r.err))
	}
	switch {
	case err == nil && (r.err != nil || r.size > 0):
		err = errors.New(text)
	case err == nil, silence == 0, !r.answered.IsZero() && (!r.unanswered() || silence < shortSilence):
	case r.answered.IsZero():
		err = errs.Reword(fmt.Sprintf("%s: %v", text, err), nil, err)
	default:
		err = errs.Reword(fmt.Sprintf("%s; before that: %v", text, err), nil, err)
	}
	if r.late == 0 {
		return err
	}
	late := fmt.Sprintf("began %v late: this process was paused, or got no CPU", r.late.Round(time.Millisecond))
	if err == nil {
		return errors.New(late)
	}
	return errs.Reword(fmt.Sprintf("%v; %s", err, late), nil, err)
}

// shortSilence is at most that of a store that answers: a renewal that fails is repeated within a second.
const shortSilence = 1500 * time.Millisecond

// unanswered reports whether the last renewal had no answer.
func (r *retry) unanswered() bool { return r.inFlight || errs.BesidesEnd(r.err) == nil }
