package redlock

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// Renew implements [dlock.Locker] in one round trip to a majority of the nodes.
func (l *Locker) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.beginFor(ctx, key, token, ttl); err != nil {
		return false, err
	}
	defer l.work.Done()
	results, err := l.renew(ctx, []dlock.Renewal{{Key: key, Token: token, TTL: ttl}})
	if err != nil {
		return false, err
	}
	return results[0].Held, results[0].Err
}

// RenewBatch implements [dlock.BatchRenewer], with one batch to each node. Each element is decided
// separately.
func (l *Locker) RenewBatch(ctx context.Context, batch []dlock.Renewal) ([]dlock.RenewResult, error) {
	if err := l.begin(ctx); err != nil {
		return nil, err
	}
	defer l.work.Done()
	return l.renew(ctx, batch)
}

// A renewal is one RenewBatch.
type renewal struct {
	l       *Locker
	batch   []dlock.Renewal // without the invalid ones
	claims  []*claim
	ends    []int64 // claim.ends at the begin, by element
	begun   time.Time
	answers [][]answer[bool] // by element and node; what has been tallied

	decided   []bool // by element
	held      []bool
	undecided int
}

func (l *Locker) renew(ctx context.Context, all []dlock.Renewal) ([]dlock.RenewResult, error) {
	results := make([]dlock.RenewResult, len(all))
	r := &renewal{l: l, begun: time.Now()}
	at := make([]int, len(all)) // in r.batch
	first := make(map[id]int)   // in r.batch
	for i, e := range all {
		if err := l.check(e.Key, e.Token, e.TTL); err != nil {
			results[i].Err, at[i] = &dlock.NoEffectError{Err: err}, -1
			continue
		}
		e.TTL = voteTTL(e.TTL)
		var twice bool
		if at[i], twice = first[id{e.Key, e.Token}]; twice {
			r.batch[at[i]].TTL = max(r.batch[at[i]].TTL, e.TTL)
			continue
		}
		at[i] = len(r.batch)
		first[id{e.Key, e.Token}] = at[i]
		c := l.claims.get(e.Key, e.Token)
		c.renewing.Add(1)
		r.batch, r.claims, r.ends = append(r.batch, e), append(r.claims, c), append(r.ends, c.ends())
	}
	if len(r.batch) == 0 {
		return results, nil
	}
	n := len(r.batch)
	r.undecided, r.decided, r.held, r.answers = n, make([]bool, n), make([]bool, n), make([][]answer[bool], n)
	cells := make([]answer[bool], n*len(l.nodes))
	for i := range r.answers {
		r.answers[i] = cells[i*len(l.nodes):][:len(l.nodes)]
	}
	read := make([]bool, len(l.nodes))
	poll(ctx, l, l.limit, shortGrace, func(ctx context.Context, i int, decided func() bool) ([]answer[bool], request) {
		return r.ask(ctx, i, decided), request{}
	}, func(answers []answer[[]answer[bool]]) bool {
		for node := range answers {
			if answers[node].given && !read[node] {
				read[node] = true
				r.add(node, answers[node].value)
			}
		}
		return r.undecided == 0
	}, r.heal)
	if r.undecided > 0 && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for i, k := range at {
		if k < 0 {
			continue
		}
		err := l.sameStore(func(node int) string { return r.answers[k][node].store })
		switch {
		case err != nil:
			results[i].Err = err
		case r.decided[k]:
			results[i].Held = r.held[k]
		default:
			results[i].Err = l.failure(errorsOf(r.answers[k], unsure), false)
		}
	}
	return results, nil
}

// ask renews the batch at one node. A token that has another request in flight there is left for
// another batch afterwards.
func (r *renewal) ask(ctx context.Context, node int, decided func() bool) []answer[bool] {
	answers := make([]answer[bool], len(r.batch))
	var free, busy []int
	for i := range r.batch {
		if r.claims[i].nodes[node].mu.TryLock() {
			free = append(free, i)
		} else {
			busy = append(busy, i)
		}
	}
	r.confirm(ctx, node, free, answers, decided)
	slices.SortFunc(busy, func(i, j int) int { // so that no two batches wait for each other
		a, b := &r.batch[i], &r.batch[j]
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Token, b.Token))
	})
	for _, i := range busy {
		r.claims[i].nodes[node].mu.Lock()
	}
	r.confirm(ctx, node, busy, answers, decided)
	return answers
}

// confirm renews the elements whose claims at the node the caller has locked, and unlocks these.
func (r *renewal) confirm(ctx context.Context, node int, locked []int, answers []answer[bool], decided func() bool) {
	var sent []int
	for _, i := range locked {
		if s := &r.claims[i].nodes[node]; s.useLocked() {
			sent = append(sent, i)
		} else {
			s.mu.Unlock()
			answers[i] = answer[bool]{request: request{err: errSpoilt}, given: true}
		}
	}
	if len(sent) == 0 {
		return
	}
	limit := max(0, r.l.limit-time.Since(r.begun)) // nothing is sent when the call is over
	batch := make([]quorum.Confirmation, len(sent))
	for k, i := range sent {
		batch[k].Renewal = r.batch[i]
	}
	var ballots []quorum.Ballot
	req := r.l.try(ctx, node, limit, decided, func(ctx context.Context) (err error) {
		ballots, err = r.l.nodes[node].confirm(ctx, batch)
		return err
	})
	for k, i := range sent {
		a, s := answer[bool]{request: req, given: true}, &r.claims[i].nodes[node]
		if req.err == nil {
			b := &ballots[k]
			a.store = b.Store
			a.fail(b.Err, r.l.limit)
			if a.value = b.Acquired; a.err == nil && a.value {
				if wait := r.l.young(b.Age); wait > 0 {
					a.err = &youngError{wait}
				}
				if q := s.queued.Load(); q != nil {
					q.kept = true
				}
			}
			switch {
			case b.Err != nil:
			case b.Acquired:
				s.lacks = time.Time{}
			case s.lacks.IsZero():
				s.lacks = r.begun
			}
		}
		answers[i] = a
		s.mu.Unlock()
	}
}

// add counts the answers of a node.
func (r *renewal) add(node int, answers []answer[bool]) {
	for i := range answers {
		if r.decided[i] {
			continue
		}
		r.answers[i][node] = answers[i]
		if held, decided := r.l.tally(r.answers[i]); decided {
			r.decided[i], r.held[i] = true, held
			r.undecided--
			if !held {
				r.claims[i].losses.Add(1)
			}
			r.claims[i].renewing.Add(-1)
		}
	}
}

// heal makes nodes vote again that have lacked a lease for a quarter of its TTL. A lease that was
// released through another client may still be held by some nodes for a moment, and must not
// be made whole then. Nor must one that may have ended meanwhile, or that a later renewal finds lost:
// with the vote it might hold the key again, for nobody. These votes count from the next
// renewal on. Where a waiter has the vote, the holder stands in front of the queue: see
// [wait.judge].
func (r *renewal) heal(answers []answer[[]answer[bool]]) {
	for node := range r.l.nodes {
		var lacking []int
		for i := range r.batch {
			if a := &answers[node].value[i]; r.decided[i] && r.held[i] && a.ok() && !a.value {
				lacking = append(lacking, i)
			}
		}
		if len(lacking) > 0 {
			r.healAt(node, lacking)
		}
	}
	for i, c := range r.claims {
		if !r.decided[i] {
			c.renewing.Add(-1)
		}
		r.l.claims.put(c)
	}
}

// healing is how many votes of a node are asked for at the same time to make leases whole.
const healing = 16

func (r *renewal) healAt(node int, lacking []int) {
	next := make(chan int, len(lacking))
	for _, i := range lacking {
		r.l.claims.hold(r.claims[i])
		next <- i
	}
	close(next)
	for range min(healing, len(lacking)) {
		r.l.spawn(func() {
			for i := range next {
				r.healOne(node, i)
				r.l.claims.put(r.claims[i])
			}
		})
	}
}

func (r *renewal) healOne(node, i int) {
	c, e := r.claims[i], r.batch[i]
	s := &c.nodes[node]
	if s.queued.Load() != nil || !s.mu.TryLock() {
		return
	}
	waits := false
	defer func() {
		if !waits {
			s.mu.Unlock()
		}
	}()
	if s.lacks.IsZero() || time.Since(s.lacks) < e.TTL/4 || time.Since(r.begun) > e.TTL/2 || c.renewing.Load() > 0 || c.ends() != r.ends[i] || !s.useLocked() {
		return
	}
	floor := r.l.floor()
	var b quorum.Ballot
	r.l.claims.asks(c, node)
	vote := r.l.once(r.l.open, node, r.l.limit, never, func(ctx context.Context) (err error) {
		b, err = r.l.nodes[node].vote(ctx, e.Key, e.Token, e.TTL, floor)
		return err
	})
	r.l.voted(c, node, &reply{request: vote, kind: voted, ballot: b})
	if vote.err != nil || b.Acquired || r.l.nodes[node].queue == nil {
		return
	}
	waits = true
	r.l.claims.hold(c)
	r.l.claims.asks(c, node)
	r.l.spawn(func() {
		defer r.l.claims.put(c)
		defer s.mu.Unlock()
		const front = 1
		ctx, cancel := context.WithTimeout(r.l.open, e.TTL)
		defer cancel()
		late := reply{kind: enqueued}
		s.waitUnlocking(ctx, &late, func(ctx context.Context) (quorum.Ballot, error) {
			return r.l.nodes[node].enqueue(ctx, e.Key, e.Token, e.TTL, floor, front)
		})
		late.fail(late.raw, e.TTL)
		r.l.voted(c, node, &late)
	})
}
