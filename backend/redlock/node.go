package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/errs"
)

// A node is one of the stores. Without voter, it votes by the plain methods of a Locker.
type node struct {
	of        *Locker
	index     int
	locker    dlock.Locker
	voter     quorum.Voter
	queue     quorum.VoteAcquirer
	renewer   dlock.BatchRenewer
	inspector dlock.Inspector

	ahead atomic.Int64           // of this process's clock, in microseconds
	slow  atomic.Bool            // it was late the last time
	store atomic.Pointer[string] // of its last ballot that named one

	health health
}

func newNode(of *Locker, index int, l dlock.Locker) *node {
	n := &node{of: of, index: index, locker: l}
	n.voter, _ = l.(quorum.Voter)
	n.queue, _ = l.(quorum.VoteAcquirer)
	n.renewer, _ = l.(dlock.BatchRenewer)
	n.inspector, _ = l.(dlock.Inspector)
	return n
}

// A request is what one node is asked, once or several times: a connection that has been cut
// fails one request, but need not fail the call.
type request struct {
	sent    time.Time // when the last one was sent
	unknown bool      // an earlier one failed, and may have had an effect, or may still have it
	err     error
	late    func(func(dlock.Attempt, error)) // calls a function with the answer when it comes after err; or nil
}

// Pauses before the second and the third try.
const (
	tries      = 3
	retryPause = 2 * time.Millisecond // and ten times that
)

// once is try for a request that must not have an effect twice.
func (l *Locker) once(ctx context.Context, node int, limit time.Duration, decided func() bool, call func(context.Context) error) request {
	var last error
	return l.try(ctx, node, limit, func() bool { return !dlock.NoEffect(last) || decided() }, func(ctx context.Context) error {
		last = call(ctx)
		return last
	})
}

// try makes a request to a node until it succeeds, until ctx ends, or as often as that makes sense.
// It is not made again once decided says that the others have decided the call.
func (l *Locker) try(ctx context.Context, node int, limit time.Duration, decided func() bool, call func(context.Context) error) request {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var r request
	pause := retryPause
	for n := 1; ; n++ {
		r.sent = time.Now()
		r.err = call(ctx)
		l.noteSpeed(node, r)
		if r.err == nil || n == tries || pointless(r.err) || decided() || !sleep(ctx, pause) {
			r.fail(r.err, limit)
			return r
		}
		r.unknown = r.unknown || !dlock.NoEffect(r.err)
		pause *= 10
	}
}

// fail sets the error of a request that is not made again.
func (r *request) fail(err error, limit time.Duration) {
	if mark, ok := errs.Find[*dlock.UnansweredError](err); ok && !r.unknown {
		r.late = mark.Late
	}
	if r.err = hideContext(err, limit); r.unknown && dlock.NoEffect(r.err) {
		r.err = errors.Join(r.err) // that is only true of the last one
	}
}

func never() bool { return false }

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (n *node) vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (b quorum.Ballot, err error) {
	asked := time.Now()
	if n.voter == nil {
		b.Attempt, err = n.locker.TryAcquire(ctx, key, token, ttl)
	} else {
		b, err = n.voter.Vote(ctx, key, token, ttl, floor)
	}
	return n.seen(ctx, b, asked, err)
}

// enqueue waits for a vote.
func (n *node) enqueue(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	b, err := n.queue.AcquireVote(ctx, key, token, ttl, floor, place)
	return n.seen(ctx, b, time.Time{}, err)
}

// seen learns from a ballot that was asked for at that time, or at an unknown one.
func (n *node) seen(ctx context.Context, b quorum.Ballot, asked time.Time, err error) (quorum.Ballot, error) {
	if err == nil && b.Degraded {
		err = errNoVote
	}
	if err == nil && b.Store != "" {
		n.store.Store(&b.Store)
	}
	switch {
	case asked.IsZero():
		if err != nil && !errors.Is(err, dlock.ErrReleased) { // which is an answer
			n.note(ctx, time.Now(), 1, err)
		}
		return b, err
	case err == nil:
		if b.Clock != 0 {
			n.ahead.Store(b.Clock - asked.Add(time.Since(asked)/2).UnixMicro())
		}
		n.aged(b.Age)
	}
	n.note(ctx, asked, 1, err)
	return b, err
}

// sameStore returns an error if two nodes have the same store. One that is unknown is empty. It is a joined error:
// they may have done what they were asked.
func (l *Locker) sameStore(store func(int) string) error {
	for i := range l.nodes {
		for j := range i {
			if s := store(i); s != "" && s == store(j) {
				return errors.Join(invalid("nodes %s and %s: the same store", l.names[j], l.names[i]))
			}
		}
	}
	return nil
}

// confirm extends the leases of a batch, and raises the fence counter for each.
func (n *node) confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	asked := time.Now()
	ballots, err := n.confirmAll(ctx, batch)
	if err == nil && len(ballots) != len(batch) {
		err = fmt.Errorf("%d results for %d renewals", len(ballots), len(batch))
	}
	failed := err
	if i := slices.IndexFunc(ballots, func(b quorum.Ballot) bool { return b.Err == nil }); err == nil && i >= 0 {
		n.aged(ballots[i].Age)
	} else if err == nil {
		failed = ballots[0].Err // and so have all others
	}
	n.note(ctx, asked, len(batch), failed)
	return ballots, err
}

func (n *node) confirmAll(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	if n.voter != nil {
		return n.voter.Confirm(ctx, batch)
	}
	if n.renewer != nil && len(batch) > 1 {
		renewals := make([]dlock.Renewal, len(batch))
		for i, c := range batch {
			renewals[i] = c.Renewal
		}
		results, err := n.renewer.RenewBatch(ctx, renewals)
		if !isUnsupported(err) {
			ballots := make([]quorum.Ballot, len(results))
			for i, r := range results {
				ballots[i].Acquired, ballots[i].Err = r.Held, r.Err
			}
			return ballots, err
		}
	}
	ballots := make([]quorum.Ballot, len(batch))
	for i, c := range batch {
		ballots[i].Acquired, ballots[i].Err = n.locker.Renew(ctx, c.Key, c.Token, c.TTL)
	}
	return ballots, nil
}

func (n *node) pass(ctx context.Context, key, token, to string, floor int64) (held bool, err error) {
	asked := time.Now()
	if n.voter == nil {
		held, err = n.locker.Release(ctx, key, token)
	} else {
		held, err = n.voter.Pass(ctx, key, token, to, floor)
	}
	n.note(ctx, asked, 1, err)
	return held, err
}

func (n *node) inspect(ctx context.Context, key string) (dlock.Hold, error) {
	asked := time.Now()
	hold, err := n.inspector.Inspect(ctx, key)
	n.note(ctx, asked, 1, err)
	return hold, err
}
