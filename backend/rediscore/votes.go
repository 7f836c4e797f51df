package rediscore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// maxExact is the largest integer up to which Lua and sorted sets have them all.
const maxExact = 1 << 53

// Vote implements [quorum.Voter] in one round trip.
func (l *Locker) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	if err := l.check(ctx, key, token, ttl); err != nil {
		return quorum.Ballot{}, err
	}
	if err := l.post.use(key, token); err != nil {
		return quorum.Ballot{}, err
	}
	reply, err := l.eval(ctx, voteScript, key, token, milliseconds(ttl), strconv.FormatInt(floor, 10))
	return readBallot(reply, promise(err, func(reply any, err error) (dlock.Attempt, error) {
		b, err := readBallot(reply, err)
		return b.Attempt, err
	}))
}

// readBallot reads the reply of vote.lua.
func readBallot(reply any, err error) (quorum.Ballot, error) {
	n, texts, ballot, err := readVote(reply, err, map[int64]int{answerGranted: 2, answerWaits: 2})
	if err != nil {
		return quorum.Ballot{}, err
	}
	if n[0] == answerGranted {
		ballot.Acquired, ballot.Fence = true, n[1]
	} else {
		ballot.Attempt = refused(holdOf(texts[0], n[1], texts[1]))
	}
	return *ballot, nil
}

// Confirm implements [quorum.Voter], in one round trip to each server that has keys of the batch.
func (l *Locker) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	ballots := make([]quorum.Ballot, len(batch))
	replies := l.batch(ctx, len(batch), func(i int) (Call, error) {
		c := batch[i]
		if c.Fence > maxExact {
			return Call{}, invalid("fence %d: more than 1<<53", c.Fence)
		}
		return l.call(confirmScript, c.Key, c.Token, milliseconds(c.TTL), strconv.FormatInt(c.Fence, 10)),
			l.checkArgs(c.Key, c.Token, c.TTL)
	})
	for i, r := range replies {
		n, _, ballot, err := readVote(r.Reply, r.Err, map[int64]int{answerGranted: 1, answerUnknown: 1})
		if err != nil {
			ballots[i].Err = err
			continue
		}
		ballots[i] = *ballot
		ballots[i].Acquired, ballots[i].Fresh = n[0] == answerGranted, false
	}
	return ballots, nil
}

// Pass implements [quorum.Voter] in one round trip. It waits for unanswered calls as Release does.
func (l *Locker) Pass(ctx context.Context, key, token, to string, floor int64) (bool, error) {
	if err := l.check(ctx, key, token, time.Second); err != nil {
		return false, err
	}
	return l.end(ctx, passScript, key, token, to, strconv.FormatInt(floor, 10))
}

// AcquireVote implements [quorum.VoteAcquirer]. It waits as Acquire does. The Age of a grant that a message brings
// is that of the last answer before it. If AcquireVote fails, a call may still be in flight: the caller passes the
// vote on, or releases it, until nothing of token can arrive any more. A vote that comes after the wait was given
// up is released in the background. Until this release is answered, AcquireVote and Vote fail with
// [dlock.ErrReleased], without effect.
func (l *Locker) AcquireVote(ctx context.Context, key, token string, ttl time.Duration, floor, place int64) (quorum.Ballot, error) {
	if err := l.check(ctx, key, token, ttl); err != nil {
		return quorum.Ballot{}, err
	}
	if place < 1 || place > maxExact {
		return quorum.Ballot{}, mark(invalid("place %d: not from 1 to 1<<53", place))
	}
	if l.unqueued {
		return quorum.Ballot{}, mark(errors.ErrUnsupported)
	}
	if err := l.post.use(key, token); err != nil {
		return quorum.Ballot{}, err
	}
	w := newWait(l, ctx, key, token, ttl)
	w.vote = []string{strconv.FormatInt(place, 10), strconv.FormatInt(floor, 10)}
	attempt, err := w.do()
	w.ballot.Attempt = attempt
	return w.ballot, err
}

// readVote reads the reply of a script that votes.
func readVote(reply any, err error, wanted map[int64]int) (n []int64, texts [2]string, ballot *quorum.Ballot, _ error) {
	if forbidden(err) && dlock.NoEffect(err) {
		err = mark(lacksVotingRights(err))
	}
	n, texts, ballot, err = parseReply(reply, err, wanted)
	if err == nil && ballot == nil {
		err = unexpected(reply)
	}
	return n, texts, ballot, err
}

// parseReply reads the reply of a script for waiters or voters. It wants so many numbers, for each first number.
func parseReply(reply any, err error, wanted map[int64]int) (n []int64, texts [2]string, ballot *quorum.Ballot, _ error) {
	if err != nil {
		return nil, texts, nil, err
	}
	if n, texts, ballot = readReply(reply); len(n) == 0 || len(n) != wanted[n[0]] {
		return nil, texts, nil, unexpected(reply)
	}
	return n, texts, ballot, nil
}

// readReply reads the numbers of a reply, the strings, of which there are at most two, and the ballot if there is one.
func readReply(reply any) (n []int64, texts [2]string, ballot *quorum.Ballot) {
	all, _ := reply.([]any)
	found := 0
	for _, r := range all {
		switch r := r.(type) {
		case int64:
			n = append(n, r)
		case string:
			if found < len(texts) {
				texts[found] = r
			}
			found++
		case []any:
			ballot = new(quorum.Ballot)
			var b []int64
			var store [2]string
			b, store, _ = readReply(r)
			ballot.Store = store[0]
			b = append(b, make([]int64, 4)...)
			ballot.Age, ballot.Clock = time.Duration(b[0])*time.Microsecond, b[1]
			ballot.Fresh, ballot.Place = b[2] == 1, b[3]
		}
	}
	return n, texts, ballot
}

func lacksVotingRights(err error) error {
	return fmt.Errorf("%w: the Redis user lacks the rights to vote (INFO and others): see docs/security.md: %w", dlock.ErrInvalid, err)
}
