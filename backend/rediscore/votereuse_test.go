package rediscore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
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

				deliver("after the pass")
				enlist := a.holdCall(rediscore.EnlistScript, "A")
				w = a.acquireVote("A", 5)
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
				require.Zero(s, a.calls(rediscore.ReleaseScript, "A"))
			})
		})
	}
}

// A vote comes when its wait was given up, and is given back, since its caller may have died. If it is cast again
// meanwhile, it is refused: that release might end the new one. So it is if that had no answer.
func TestVoteIsGivenBack(t *testing.T) {
	for _, lost := range []bool{false, true} {
		inScene(t, func(s *scene, a *actor) {
			a.acquireVote("A", 5).cancelled()
			message := a.holdMessage("A")
			s.release("H")
			giveBack := a.holdCall(rediscore.ReleaseScript, "A")
			message.Deliver()
			giveBack.Execute()
			refused := func() {
				w := a.acquireVote("A", 5)
				w.failed(dlock.ErrReleased)
				require.True(s, dlock.NoEffect(w.err))
			}
			refused()
			if lost {
				giveBack.Return(nil, errLost)
				refused()
			} else {
				giveBack.Answer()
				a.acquireVote("A", 5).granted()
				require.True(s, a.pass("A", "", 0))
			}
			s.requireClean()
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

// What votes do.
var votings = scenes{
	"The message of a vote comes while the token is passed on, which finds nothing": func(s *scene, a *actor) {
		// So the vote is given back, and not cast meanwhile.
		a.open()
		enlist, message := a.holdCall(rediscore.EnlistScript, "A"), a.holdMessage("A")
		a.acquireVote("A", 5).cancelled()
		pass := a.holdCall(rediscore.PassScript, "A")
		passed := make(chan bool, 1)
		go func() { held, _ := a.Pass(s.Context(), s.key, "A", "", 0); passed <- held }()
		pass.Execute()
		enlist.Execute()
		s.release("H")
		message.Deliver()
		giveBack := a.holdCall(rediscore.ReleaseScript, "A")
		pass.Answer()
		giveBack.Await()
		w := a.acquireVote("A", 5)
		w.failed(dlock.ErrReleased)
		enlist.Answer()
		giveBack.Answer()
		require.True(s, <-passed, "what came later is part of the pass")
		a.acquireVote("A", 5).granted()
		require.True(s, a.pass("A", "", 0))
		s.requireClean()
	},

	"A vote that a check-in finds is no sign of life of its inbox: waits that vote check in each for itself": func(s *scene, a *actor) {
		w := a.acquireVote("A", 5)
		a.holdMessage("A")
		s.release("H")
		time.Sleep(checkInLatest)
		w.grantedNow()
		require.Empty(s, s.field("@p"+a.inbox().Channel))
	},
}

func TestVotings(t *testing.T) { votings.play(t) }
