package rediscore_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/votetest"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/sim"
)

func (b *bench) vote(token string, floor int64) quorum.Ballot {
	return must(b.locker.Vote(b.Context(), b.key, token, ttl, floor))(b)
}

func (b *bench) pass(token, to string, floor int64) bool {
	return must(b.locker.Pass(b.Context(), b.key, token, to, floor))(b)
}

// Confirm refuses what cannot be meant, and confirms the others of its batch.
func TestConfirmInPart(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.hold("A")
		renewal := dlock.Renewal{Key: "k", Token: "A", TTL: time.Minute}
		noTTL, noKey := renewal, renewal
		noTTL.TTL, noKey.Key = 0, ""
		ballots, err := b.locker.Confirm(b.Context(), []quorum.Confirmation{
			{Renewal: noTTL}, {Renewal: renewal}, {Renewal: noKey}, {Renewal: renewal, Fence: math.MinInt64}, {Renewal: renewal, Fence: rediscore.MaxExact + 1},
		})
		require.NoError(b, err)
		for i, ballot := range ballots {
			if i == 1 || i == 3 {
				require.NoError(b, ballot.Err)
				require.True(b, ballot.Acquired)
				continue
			}
			require.ErrorIs(b, ballot.Err, dlock.ErrInvalid)
			require.True(b, dlock.NoEffect(ballot.Err))
		}
		ballots, err = b.locker.Confirm(b.Context(), nil)
		require.NoError(b, err)
		require.Empty(b, ballots)
	})
}

// A script that fails has granted, extended and released nothing, and its error says so.
func TestVotesThatFail(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.vote("A", 0)
		for name, keys := range map[string][]string{ // that have the wrong type
			"Vote": {b.keys.counter, b.keys.birth}, "Pass": {b.keys.queue}, "Confirm": {b.keys.counter, b.keys.birth},
		} {
			call := methodsOf(b.Context(), b.locker, "k", "A", time.Hour)[name]
			for _, key := range keys {
				b.do("DEL", key)
				b.do("HSET", key, "wrong", "type")
				b.do("PEXPIRE", key, 60_000)
				_, err := call()
				require.Equal(b, noEffect, verdictOf(err), "%s and %s", name, key)
				require.Equal(b, "A", b.holder(), name)
				require.EqualValues(b, 60_000, b.number("PTTL", "k"), name)
				b.do("DEL", key)
			}
		}
	})
}

// A user who lacks a right is told so at once. The lock stays as it is.
func TestMayNotVote(t *testing.T) {
	for _, name := range []string{"Vote", "AcquireVote", "Confirm"} {
		atBench(t, "", "k", func(b *bench) {
			b.hold("H")
			b.forbid("INFO")
			before := b.store()
			_, err := methodsOf(b.Context(), b.locker, "k", map[bool]string{true: "H", false: "A"}[name == "Confirm"], time.Hour)[name]()
			require.ErrorIs(b, err, dlock.ErrInvalid, name)
			require.ErrorContains(b, err, "to vote", name)
			require.True(b, rediscore.Forbidden(err), "%s: %v", name, err)
			require.Equal(b, before, b.store(), name)
		})
	}
}

// The scripts keep each clause of a Voter.
func TestVotes(t *testing.T) {
	votetest.Run(t, bubble.Test, func(t *testing.T) votetest.Store {
		s := sim.NewServer()
		return votetest.Store{
			New:  func() votetest.Client { return lockerOn(t, sim.Dial(s, nil)) },
			Wipe: s.FlushAll,
		}
	})
}

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
				passed := begin(func() bool { return must(a.Pass(s.Context(), s.key, "A", "", 0))(s) })
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
	"A grant that a message brings has the age and the store of the last answer, and the time of the message": func(s *scene, a *actor) {
		a.answers(func(rediscore.Call) (any, error) {
			return append(waits(0, "H", 60_000), []any{int64(5000), "store", time.Now().UnixMicro(), int64(1)}), nil
		})
		done := begin(func() quorum.Ballot { return must(a.AcquireVote(s.Context(), "k", "t", time.Minute, 77, 3))(s) })
		time.Sleep(time.Second)
		args := a.asked(0)[0].args()
		args[2] = "" // unless the inbox was open already
		require.Equal(s, []string{"t", "60000", "", "3", "", "77"}, args)
		granted := time.Now()
		a.grant(88, "t")
		want := quorum.Ballot{Fresh: true, Age: 5 * time.Millisecond, Store: "store", Clock: granted.UnixMicro() + 1}
		want.Attempt = dlock.Attempt{Acquired: true, Fence: 88, Since: granted.Add(time.Microsecond - time.Millisecond)}
		require.Equal(s, want, <-done)
	},
	"The message of a vote comes while the token is passed on, which finds nothing": func(s *scene, a *actor) {
		// So the vote is given back, and not cast meanwhile.
		a.open()
		enlist, message := a.holdCall(rediscore.EnlistScript, "A"), a.holdMessage("A")
		a.acquireVote("A", 5).cancelled()
		pass := a.holdCall(rediscore.PassScript, "A")
		passed := begin(func() bool { return must(a.Pass(s.Context(), s.key, "A", "", 0))(s) })
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
		require.Empty(s, s.store().Fields["@p"+a.inbox().Channel])
	},
}

func TestVotings(t *testing.T) { votings.play(t) }
