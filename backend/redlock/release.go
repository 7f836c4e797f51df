package redlock

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// Release implements [dlock.Locker] in one round trip to a majority of the nodes. The release is repeated in the background
// at nodes that have not answered. Until it has arrived there, it also ends a vote that the token got through another Locker
// meanwhile; so tokens are used once. If a call that was given up asked a node for a vote, Release waits for its answer if
// that will come, and ends that vote, too. After a call of [dlock.UnansweredError].Late, Release skips nodes that have said
// that they keep nothing of the token.
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if err := l.beginFor(ctx, key, token, time.Millisecond); err != nil {
		return false, err
	}
	defer l.work.Done()
	c := l.claims.get(key, token)
	c.releases.Add(1)
	select {
	case c.releasing <- struct{}{}: // of two at the same time, neither might have a majority
	case <-ctx.Done():
		l.claims.put(c)
		return false, &dlock.NoEffectError{Err: ctx.Err()}
	}
	defer func() { <-c.releasing }()
	floor := l.floor()
	held, decided := false, false
	late, uses := make([]bool, len(l.nodes)), make([]int, len(l.nodes))
	sent := context.WithoutCancel(ctx) // a request that is cut short may still arrive
	release := func(i int, decided func() bool) (held bool, r request) {
		held, r, late[i] = l.release(sent, c, i, l.requestLimit(), decided, floor)
		uses[i] = c.nodes[i].uses
		return held, r
	}
	answers := poll(ctx, l, l.limit, longGrace, func(_ context.Context, i int, decided func() bool) (held bool, r request) {
		s := &c.nodes[i]
		s.lockForRelease()
		defer s.mu.Unlock()
		s.lacks = time.Time{}
		if l.claims.owesNothing(c, i, false) {
			return false, request{}
		}
		if held, r = release(i, decided); held || r.err != nil || !late[i] {
			return held, r
		}
		before := r.unknown
		limit, cancel := context.WithTimeout(l.open, l.requestLimit())
		defer cancel()
		switch has, err := l.claims.await(limit, c, i); {
		case err != nil:
			r.unknown = true // what comes is given back later
		case has == something:
			held, r = release(i, never)
			r.unknown = r.unknown || before
		}
		return held, r
	}, func(answers []answer[bool]) bool {
		held, decided = l.tally(answers)
		return decided
	}, func(answers []answer[bool]) {
		defer l.claims.put(c)
		_, ok := l.tally(answers) // else the caller owes all of them
		for i := range answers {
			if ok && (late[i] || answers[i].err != nil) {
				l.owe(c, i, uses[i])
			}
		}
	})
	switch {
	case decided:
		return held, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	}
	return false, l.failure(errorsOf(answers, unsure), false)
}

// tally returns what a majority of the nodes says of a release or renewal, and whether there is
// one. A "no" after a failed request of the same call is neither: that may have had an effect.
func (l *Locker) tally(answers []answer[bool]) (held, decided bool) {
	yes, no := 0, 0
	for i := range answers {
		switch a := &answers[i]; {
		case !a.ok():
		case a.value:
			yes++
		case !a.unknown:
			no++
		}
	}
	return yes >= l.quorum, yes >= l.quorum || no > len(l.nodes)-l.quorum
}

// unsure returns why an answer is neither yes nor no.
func unsure(a *answer[bool]) error {
	if a.unknown && !a.value {
		return errRepeated
	}
	return nil
}

// release gives back what a token has at a node, and returns whether a vote may come later than that: of one whose answer came
// meanwhile, nobody knows. The caller holds nodeClaim.mu.
func (l *Locker) release(ctx context.Context, c *claim, node int, limit time.Duration, decided func() bool, floor int64) (held bool, r request, late bool) {
	late, due := l.claims.due(c, node)
	r = l.try(ctx, node, limit, decided, func(ctx context.Context) (err error) {
		held, err = l.nodes[node].pass(ctx, c.key, c.token, "", floor)
		return err
	})
	l.released(c, node, r, due)
	return held, r, late
}

// released notes the outcome of a release at a node. If the answer to a request for a vote was due when it was sent, that says
// what is left. The caller holds nodeClaim.mu.
func (l *Locker) released(c *claim, node int, r request, due bool) {
	s := &c.nodes[node]
	s.spoilt = s.spoilt || r.unknown || r.err != nil
	if r.err == nil && !due {
		l.claims.change(c, func() { s.has = nothing })
	}
}

// voted notes the outcome of a request for a vote; and once more, when its answer comes late. A vote that comes after the
// release of its token is released then. The caller holds nodeClaim.mu.
func (l *Locker) voted(c *claim, node int, e *reply) {
	s := &c.nodes[node]
	uses := s.uses
	l.claims.change(c, func() {
		if s.noteLocked(e); e.late != nil {
			if s.due++; s.due == 1 {
				s.came = make(chan struct{})
			}
		}
	})
	if e.late == nil {
		return
	}
	e.late(func(a dlock.Attempt, err error) {
		var has remains
		l.claims.change(c, func() {
			s.noteLocked(&reply{request: request{err: err}, kind: e.kind, ballot: quorum.Ballot{Attempt: a}})
			has = s.has
		})
		defer l.claims.change(c, func() { // when it is owed: else the claim might be forgotten between
			if s.due--; s.due == 0 {
				close(s.came)
			}
		})
		if has == something && c.releases.Load() > 0 && l.begin(context.Background()) == nil {
			defer l.work.Done()
			l.owe(c, node, uses)
		}
	})
}

// maxOwed limits how many releases are repeated at the same time.
const maxOwed = 1024

// owe repeats a release at a node in the background until the node answers. If a vote had no
// answer, it may arrive after that, so the release is repeated for longer, but not once the token is
// used again: after so many uses of the claim at the node.
func (l *Locker) owe(c *claim, i, uses int) {
	if l.owed.Add(1) > maxOwed {
		l.owed.Add(-1)
		return
	}
	l.claims.hold(c)
	releases := c.releases.Load()
	l.spawn(func() {
		defer l.claims.put(c)
		defer l.owed.Add(-1)
		s, until := &c.nodes[i], time.Now().Add(min(l.longest, memory))
		for pause := firstPause; time.Now().Before(until) && sleep(l.open, pause); pause = min(2*pause, maxLimit) {
			if c.releases.Load() != releases {
				return // another release has taken it over
			}
			s.mu.Lock()
			over := s.uses != uses || l.claims.owesNothing(c, i, !s.spoilt)
			if !over {
				_, r, late := l.release(l.open, c, i, l.limit, never, l.floor())
				over = r.err == nil && !late
			}
			s.mu.Unlock()
			if over {
				return
			}
		}
	})
}
