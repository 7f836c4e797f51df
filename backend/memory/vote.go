package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/storewait"
)

// Vote implements [quorum.Voter].
func (m *Locker) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	reply, err := m.begin(ctx, key, token, ttl)
	if err != nil {
		return quorum.Ballot{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tryLocked(key, token, ttl, floor), reply
}

// AcquireVote implements [quorum.VoteAcquirer]. Those who wait in Acquire have a place behind all who
// waited before them.
func (m *Locker) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	if place < 1 || place > 1<<53 {
		return quorum.Ballot{}, mark(fmt.Errorf("%w place %d: not between 1 and 1<<53", dlock.ErrInvalid, place))
	}
	return m.acquire(ctx, key, token, ttl, floor, place)
}

// acquire is AcquireVote. A place of 0 means the last.
func (m *Locker) acquire(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	start := time.Now()
	reply, err := m.begin(ctx, key, token, ttl)
	if err != nil {
		cut, ok := err.(*dlock.UnansweredError) // by Delay
		if silence := time.Since(start); ok && silence >= replyLimit {
			cut.Err = fmt.Errorf("%w: %w", cut.Err, fmt.Errorf("no reply for %v", silence.Round(time.Millisecond)))
		}
		return quorum.Ballot{}, err
	}
	m.mu.Lock()
	b := m.tryLocked(key, token, ttl, floor)
	if b.Acquired || reply != nil {
		m.mu.Unlock()
		return b, reply
	}
	w := &waiter{ctx, token, ttl, cmp.Or(place, b.Place), make(chan result, 1), time.NewTimer(b.Remaining)}
	l := m.locks[key]
	l.queue = append(l.queue, w)
	if place != 0 {
		l.moveLocked(token, place)
		l.watchLocked(time.Now())
	}
	m.mu.Unlock()
	storewait.Of(ctx).Answered()
	return m.wait(key, w)
}

// moveLocked moves all waits of token to place.
func (l *lock) moveLocked(token string, place int64) {
	for _, w := range l.queue {
		if w.token == token {
			w.place = place
		}
	}
	slices.SortStableFunc(l.queue, func(a, b *waiter) int {
		return cmp.Or(cmp.Compare(a.place, b.place), strings.Compare(a.token, b.token))
	})
}

// Confirm implements [quorum.Voter].
func (m *Locker) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	reply, err := m.send(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ballots := make([]quorum.Ballot, len(batch))
	for i, c := range batch {
		if err := check(c.Key, c.Token, c.TTL); err != nil {
			ballots[i].Err = err
			continue
		}
		ballots[i] = m.ballotLocked(time.Now())
		if ballots[i].Acquired = m.renewLocked(c.Key, c.Token, c.TTL); ballots[i].Acquired {
			m.fence = max(m.fence, c.Fence)
		}
	}
	return ballots, reply
}

// Pass implements [quorum.Voter].
func (m *Locker) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	const anyTTL = time.Second
	reply, err := m.begin(ctx, key, token, anyTTL)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l, now := m.advanceLocked(key)
	if l == nil {
		return false, reply
	}
	l.queue = slices.DeleteFunc(l.queue, func(w *waiter) bool {
		if w.token != token {
			return false
		}
		w.ended <- result{err: mark(dlock.ErrReleased)}
		return true
	})
	l.watchLocked(now)
	if l.token != token {
		return false, reply
	}
	if i := slices.IndexFunc(l.queue, func(w *waiter) bool { return w.token == to }); i > 0 {
		w := l.queue[i]
		l.queue = slices.Insert(slices.Delete(l.queue, i, i+1), 0, w)
	}
	m.freeLocked(key, l, floor, now)
	return true, reply
}

// ballotLocked returns what a ballot says of the store.
func (m *Locker) ballotLocked(now time.Time) quorum.Ballot {
	m.rememberLocked(now)
	return quorum.Ballot{Age: max(0, now.Sub(m.since)), Store: m.store, Clock: now.Add(m.faults.clock).UnixMicro()}
}

// refuseLocked returns the ballot of a token that gets a, with what it says of the holder of l.
func (m *Locker) refuseLocked(l *lock, a dlock.Attempt, now time.Time) quorum.Ballot {
	a.Holder, a.Remaining, a.HeldSince = l.token, l.until.Sub(now), l.since
	b := m.ballotLocked(now)
	b.Attempt, b.Fresh, b.Place = a, true, b.Clock
	if len(l.queue) > 0 {
		b.Place = max(b.Place, l.queue[len(l.queue)-1].place+1)
	}
	return b
}

// rememberLocked gives the store its identity, and the beginning of its memory.
func (m *Locker) rememberLocked(now time.Time) {
	if m.store == "" {
		m.store, m.since = chance.Text(), now
	}
}
