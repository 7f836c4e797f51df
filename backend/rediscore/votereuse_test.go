package rediscore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
)

// A token is granted the lock, passes it on, and waits again, again and again. The message of the
// first grant comes late, at any point of the second round, and does nothing.
func TestVoteIsCastAgain(t *testing.T) {
	t.Parallel()
	const (
		never = iota
		duringThePass
		afterThePass
		beforeTheAnswer
		whileItWaits
		whenGranted
		rounds
	)
	for late := range rounds {
		t.Run([]string{"never", "during the pass", "after the pass", "before the answer", "while it waits", "when granted"}[late], func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			a, stage := s.enter()
			b, _ := s.enter()
			stage.silence(true)
			w := s.acquireVote(a, "A", 5).listening()
			s.release("H")
			message := stage.message()
			forceCheckIn(a, "A")
			w.granted()
			deliver := func(when int) {
				if when == late {
					message()
				}
			}

			next := s.acquireVote(b, "B", 6).listening()
			passing := stage.intercept(passScript)
			passed := make(chan bool, 1)
			go func() { held, _ := a.Pass(t.Context(), s.key, "A", "", 0); passed <- held }()
			reply := passing.await().execute()
			deliver(duringThePass)
			passing.answer(reply)
			require.True(t, <-passed)
			next.granted()
			stage.silence(false)

			giveBack := stage.intercept(releaseScript)
			deliver(afterThePass)
			enlist := stage.intercept(enlistScript)
			w = s.acquireVote(a, "A", 5)
			if late == afterThePass {
				giveBack.await()
				time.Sleep(10 * time.Millisecond)
				require.Equal(t, 1, stage.calls(enlistScript, "A"), "the release in the background is in flight")
				giveBack.answer(giveBack.execute())
			}
			reply = enlist.await().execute()
			calls := stage.calls(attendScript, "A")
			deliver(beforeTheAnswer)
			enlist.answer(reply)
			w.listening()
			deliver(whileItWaits)
			if late == whileItWaits || late == beforeTheAnswer {
				s.eventually(func() bool { return stage.calls(attendScript, "A") > calls }, "it asks")
			}
			w.waits()
			require.Equal(t, []string{"A"}, s.queue())
			next.releaseBy(b)
			w.granted()
			require.True(t, w.ballot.Fresh)
			deliver(whenGranted)
			for range 3 {
				next = s.acquireVote(b, "B", 6).listening()
				require.Equal(t, "A", s.holder())
				require.True(t, pass(t, a, s.key, "A", "", 0))
				next.granted()
				w = s.acquireVote(a, "A", 5).listening()
				next.releaseBy(b)
				w.granted()
			}
			require.True(t, pass(t, a, s.key, "A", "", 0))
			s.requireClean(a, b)
			if late == afterThePass {
				require.Equal(t, 1, stage.calls(releaseScript, "A"))
			} else {
				require.Zero(t, stage.calls(releaseScript, "A"))
			}
		})
	}
}

// While a call of an earlier wait, or a release in the background, is in flight, nothing is asked
// for its token. If such a release gets no answer, the token is refused.
func TestVoteIsNotSettled(t *testing.T) {
	t.Parallel()
	for name, cast := range map[string]func(ctx context.Context, l *Locker) (quorum.Ballot, error){
		"Vote": func(ctx context.Context, l *Locker) (quorum.Ballot, error) {
			return l.Vote(ctx, "k", "A", time.Minute, 0)
		},
		"AcquireVote": func(ctx context.Context, l *Locker) (quorum.Ballot, error) {
			return l.AcquireVote(ctx, "k", "A", time.Minute, 0, 5)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			a, stage := s.enter()
			refused := func(want error, cast func() (quorum.Ballot, error)) {
				t.Helper()
				calls := stage.calls(enlistScript, "A") + stage.calls(voteScript, "A")
				_, err := cast()
				require.ErrorIs(t, err, want)
				require.True(t, dlock.NoEffect(err))
				require.Equal(t, calls, stage.calls(enlistScript, "A")+stage.calls(voteScript, "A"))
			}
			patient := func() (quorum.Ballot, error) { return cast(t.Context(), a) }
			hasty := func() (quorum.Ballot, error) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				return cast(ctx, a)
			}

			s.acquire(a, "first").listening().cancel() // so that the inbox is open
			s.release("first")
			enlist := stage.intercept(enlistScript)
			w := s.acquireVote(a, "A", 5)
			enlist.await()
			w.cancel()
			w.ended()
			refused(context.DeadlineExceeded, hasty)
			reply := enlist.execute()
			stage.silence(true)
			s.release("H")
			message := stage.message()
			enlist.answer(reply)
			require.True(t, pass(t, a, s.key, "A", "", 0))
			giveBack := stage.intercept(releaseScript)
			message()
			giveBack.await()
			refused(context.DeadlineExceeded, hasty)
			done := make(chan error, 1)
			go func() { _, err := patient(); done <- err }()
			time.Sleep(10 * time.Millisecond)
			require.Empty(t, done)
			giveBack.lose()
			require.ErrorIs(t, <-done, errUnsettled)
			refused(errUnsettled, patient)
		})
	}
}

// The message of a grant that is not newer than the last answer is only a hint.
func TestOldMessageIsAHint(t *testing.T) {
	for newer, granted := range map[int64]bool{-1: false, 0: false, 1: true} {
		bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
			w := begin(t, l, "k", "t")
			forceCheckIn(l, "t") // since the inbox has opened after the first
			require.False(t, w.isDone())
			clock := time.Now().UnixMicro()
			time.Sleep(time.Second)
			n := len(f.evals(0))
			f.tell(fmtInt(88) + " " + fmtInt(clock+newer) + " t")
			require.Equal(t, granted, w.isDone())
			if !granted {
				require.Len(t, f.evals(n), 1, "it asks")
				w.cancel()
			}
		})
	}
}

func TestAcquireVoteUnqueued(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeConn, l *Locker) {
		_, err := l.AcquireVote(t.Context(), "k", "t", time.Minute, 0, 1)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.True(t, dlock.NoEffect(err))
		require.Empty(t, f.evals(0))
	}, WithQueue(false))
}
