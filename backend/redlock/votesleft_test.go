package redlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/redlock"
	"github.com/dlock-go/dlock/internal/bubble"
)

// A cutAfterVote gives one vote, and cannot be reached then until cut is reset.
type cutAfterVote struct {
	*memory.Locker
	cut *atomic.Bool
}

func (n cutAfterVote) Vote(ctx context.Context, key, token string, ttl time.Duration, floor int64) (quorum.Ballot, error) {
	if n.cut.Load() {
		return quorum.Ballot{}, errDial
	}
	n.cut.Store(true)
	return n.Locker.Vote(ctx, key, token, ttl, floor)
}

func (n cutAfterVote) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	if n.cut.Load() {
		return nil, errDial
	}
	return n.Locker.Confirm(ctx, batch)
}

// A node has voted, and cannot be reached when its vote is to be confirmed. The attempt ends with "held", and
// its caller owes no release; so the vote is given back.
func TestAVoteThatCouldNotBeConfirmedIsGivenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, cut := newStores(3), new(atomic.Bool)
		s[0].SetClock(time.Minute) // the fence of node 1 must be raised
		s[2].Steal("key", time.Hour)
		hold, err := s[2].Inspect(t.Context(), "key")
		require.NoError(t, err)
		l := redlock.New([]dlock.Locker{s[0], cutAfterVote{s[1], cut}, s[2]})
		defer l.Close()
		time.AfterFunc(200*time.Millisecond, func() {
			s[0].Expire("key")
			_, err := s[0].TryAcquire(context.Background(), "key", hold.Token, time.Hour)
			require.NoError(t, err)
		})
		a, err := l.TryAcquire(t.Context(), "key", "x", 30*time.Second)
		require.NoError(t, err)
		require.Equal(t, hold.Token, a.Holder)
		cut.Store(false)
		time.Sleep(time.Second)
		hold, err = s[1].Inspect(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, hold.Held, "a second after the attempt ended: %+v", hold)
	})
}

// The same, but the confirmation is on its way when the attempt ends.
func TestAVoteThatIsBeingConfirmedIsGivenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(5)
		s[0].SetClock(time.Minute)
		s[3].Steal("key", time.Hour)
		hold, err := s[3].Inspect(t.Context(), "key")
		require.NoError(t, err)
		_, err = s[4].TryAcquire(t.Context(), "key", hold.Token, time.Hour)
		require.NoError(t, err)
		l := redlock.New([]dlock.Locker{s[0], on(s[1], "Confirm", lasts(300*time.Millisecond)), brokenAtConfirm{s[2], hold.Token}, s[3], s[4]})
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", 30*time.Second)
		require.NoError(t, err)
		require.Equal(t, hold.Token, a.Holder)
		time.Sleep(2 * time.Second)
		for i := range s[:2] {
			hold, err = s[i].Inspect(t.Context(), "key")
			require.NoError(t, err)
			require.False(t, hold.Held, "node %d, 2 seconds after the attempt ended: %+v", i, hold)
		}
	})
}

// A brokenAtConfirm gives its vote to another just before that is confirmed.
type brokenAtConfirm struct {
	*memory.Locker
	other string
}

func (n brokenAtConfirm) Confirm(ctx context.Context, batch []quorum.Confirmation) ([]quorum.Ballot, error) {
	n.Expire("key")
	_, _ = n.Locker.TryAcquire(ctx, "key", n.other, time.Hour)
	return n.Locker.Confirm(ctx, batch)
}

// A vote arrives later than its release, which is repeated therefore; or its answer is lost after the attempt.
func TestALateVoteOfAnAttemptIsGivenBack(t *testing.T) {
	for _, answer := range []time.Duration{0, 200 * time.Millisecond} {
		bubble.Test(t, func(t *testing.T) {
			s := newStores(3)
			s.by(t, "y", time.Hour, 0, 1)
			nodes := s.nodes()
			nodes[2] = tapped{s[2], func(r request) error {
				if r.method == "Vote" {
					time.AfterFunc(100*time.Millisecond, func() { _, _ = s[2].Vote(context.Background(), "key", r.token, 30*time.Second, 0) })
					time.Sleep(answer)
					return errReset
				}
				return r.make(r.ctx)
			}}
			l := redlock.New(nodes)
			defer l.Close()
			a, err := l.TryAcquire(t.Context(), "key", "x", 30*time.Second)
			require.NoError(t, err)
			require.Equal(t, "y", a.Holder)
			time.Sleep(3 * time.Second)
			hold, err := s[2].Inspect(t.Context(), "key")
			require.NoError(t, err)
			require.False(t, hold.Held, "3s after the attempt: %+v", hold)
		})
	}
}

// A Release that could not reach any node had no effect, and never will have one: also where a vote had no answer.
func TestAReleaseWithoutEffectHasNoneLater(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStores(3)
		l := redlock.New([]dlock.Locker{s[0], s[1], firstOn(s[2], "Vote", loses)})
		defer l.Close()
		a, err := l.TryAcquire(t.Context(), "key", "x", 30*time.Second)
		require.True(t, a.Acquired && err == nil, "%+v, %v", a, err)
		time.Sleep(time.Second)
		for i := range s {
			s[i].Fail(errDial)
		}
		_, err = l.Release(t.Context(), "key", "x")
		require.Error(t, err)
		for i := range s {
			s[i].Fail(nil)
		}
		time.Sleep(5 * time.Second)
		for i := range s {
			hold, _ := s[i].Inspect(t.Context(), "key")
			require.True(t, !dlock.NoEffect(err) || hold.Token == "x", "node %d lost its vote 5s after NoEffect(%v)", i, err)
		}
	})
}
