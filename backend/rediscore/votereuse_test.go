package rediscore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// A token is granted the lock, passes it on, and waits again, again and again. The message of the
// first grant comes late, at any point of the second round, and does nothing.
func TestVoteIsCastAgain(t *testing.T) {
	for _, late := range []string{"never", "during the pass", "after the pass", "before the answer", "while it waits", "when granted"} {
		t.Run(late, func(t *testing.T) {
			inScene(t, func(s *scene, a *actor) {
				b := s.enter()
				w := a.acquireVote("A", 5)
				message := a.holdMessage("A")
				s.release("H")
				rediscore.ChangeInbox(a.Locker, "A")
				w.granted()
				deliver := func(when string) {
					if when == late {
						message.Deliver()
					}
				}

				next := b.acquireVote("B", 6)
				passing := a.holdCall(rediscore.PassScript, "A")
				passed := make(chan bool, 1)
				go func() { held, _ := a.Pass(s.Context(), s.key, "A", "", 0); passed <- held }()
				passing.Execute()
				deliver("during the pass")
				passing.Answer()
				require.True(s, <-passed)
				next.granted()

				giveBack := a.holdCall(rediscore.ReleaseScript, "A")
				deliver("after the pass")
				enlist := a.holdCall(rediscore.EnlistScript, "A")
				w = a.acquireVote("A", 5)
				if late == "after the pass" {
					giveBack.Await()
					require.False(s, enlist.Came(), "the release in the background is in flight")
					giveBack.Answer()
				}
				enlist.Execute()
				calls := a.calls(rediscore.AttendScript, "A")
				deliver("before the answer")
				enlist.Answer()
				deliver("while it waits")
				if late == "while it waits" || late == "before the answer" {
					require.Greater(s, a.calls(rediscore.AttendScript, "A"), calls, "it asks")
				}
				require.False(s, w.over())
				require.Equal(s, []string{"A"}, s.queue())
				next.released()
				w.granted()
				require.True(s, w.Fresh)
				deliver("when granted")
				for range 3 {
					next = b.acquireVote("B", 6)
					require.Equal(s, "A", s.holder())
					require.True(s, a.pass("A", "", 0))
					next.granted()
					w = a.acquireVote("A", 5)
					next.released()
					w.granted()
				}
				require.True(s, a.pass("A", "", 0))
				s.requireClean()
				require.Equal(s, map[bool]int{true: 1}[late == "after the pass"], a.calls(rediscore.ReleaseScript, "A"))
			})
		})
	}
}

// While a call of an earlier wait, or a release in the background, is in flight, nothing is asked
// for its token. If such a release gets no answer, the token is refused.
func TestVoteIsNotSettled(t *testing.T) {
	for name, cast := range map[string]func(ctx context.Context, a *actor) (quorum.Ballot, error){
		"Vote": func(ctx context.Context, a *actor) (quorum.Ballot, error) {
			return a.Vote(ctx, "k", "A", time.Minute, 0)
		},
		"AcquireVote": func(ctx context.Context, a *actor) (quorum.Ballot, error) {
			return a.AcquireVote(ctx, "k", "A", time.Minute, 0, 5)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inScene(t, func(s *scene, a *actor) {
				refused := func(want error, patience time.Duration) {
					t.Helper()
					ctx, cancel := context.WithTimeout(s.Context(), patience)
					defer cancel()
					calls := len(a.asked(0))
					_, err := cast(ctx, a)
					require.ErrorIs(s, err, want)
					require.True(s, dlock.NoEffect(err))
					require.Len(s, a.asked(calls), 0)
				}

				a.open()
				enlist := a.holdCall(rediscore.EnlistScript, "A")
				w := a.acquireVote("A", 5)
				enlist.Await()
				w.cancelled()
				refused(context.DeadlineExceeded, time.Millisecond)
				enlist.Execute()
				message := a.holdMessage("A")
				s.release("H")
				enlist.Answer()
				require.True(s, a.pass("A", "", 0))
				giveBack := a.holdCall(rediscore.ReleaseScript, "A")
				message.Deliver()
				giveBack.Await()
				refused(context.DeadlineExceeded, time.Millisecond)
				done := make(chan error, 1)
				go func() { _, err := cast(s.Context(), a); done <- err }()
				synctest.Wait()
				require.Empty(s, done)
				giveBack.Return(nil, errLost)
				require.ErrorIs(s, <-done, rediscore.ErrUnsettled)
				refused(rediscore.ErrUnsettled, time.Minute)
			})
		})
	}
}

// The message of a grant that is not newer than the last answer is only a hint.
func TestOldMessageIsAHint(t *testing.T) {
	for newer, granted := range map[int64]bool{-1: false, 0: false, 1: true} {
		inScene(t, func(s *scene, a *actor) {
			a.answersWaits(0, "H", 60_000)
			w := a.acquire("A")
			rediscore.ChangeInbox(a.Locker, "A") // since the inbox has opened after the first
			require.False(s, w.over())
			clock := s.now()
			time.Sleep(time.Second)
			n := len(a.asked(0))
			a.tell(fmt.Sprint(88, " ", clock+newer, " A"))
			require.Equal(s, granted, w.over())
			if !granted {
				require.Len(s, a.asked(n), 1, "it asks")
				w.cancelled()
			}
		})
	}
}

func TestAcquireVoteUnqueued(t *testing.T) {
	inScene(t, func(s *scene, _ *actor) {
		a := s.enter(rediscore.WithQueue(false))
		_, err := a.AcquireVote(s.Context(), "k", "t", time.Minute, 0, 1)
		require.ErrorIs(s, err, errors.ErrUnsupported)
		require.True(s, dlock.NoEffect(err))
		require.Empty(s, a.asked(0))
	})
}
