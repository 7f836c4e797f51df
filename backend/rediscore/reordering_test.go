package rediscore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

var errLost = errors.New("the answer was lost")

// checkInLatest is the time within which each waiter checks in.
const checkInLatest = rediscore.CheckInPeriod + rediscore.CheckInJitter

// open opens the inbox.
func (a *actor) open() {
	a.acquire("first").cancelled()
	a.release("first")
}

// An enqueue of a cancelled wait arrives after the release of its token. When the release returns,
// it has left neither a place nor a lease, whether its answer comes before or after that of the
// release. An answer that comes before the release causes no second release.
func TestEnqueueAfterReleaseOfCancelled(t *testing.T) {
	for _, free := range []bool{false, true} {
		for _, early := range []bool{false, true} {
			inScene(t, func(s *scene, a *actor) {
				enqueue, release := a.holdCall(rediscore.EnqueueScript, "A"), a.holdCall(rediscore.ReleaseScript, "A")
				a.acquire("A").cancelled()
				if free {
					s.release("H")
				}
				released := a.beginRelease("A")
				release.Execute()
				enqueue.Execute()
				if early {
					enqueue.Answer()
				}
				release.Answer()
				if !early {
					require.Empty(s, released)
					enqueue.Answer()
				}
				require.Equal(s, dlock.RenewResult{Held: free}, <-released)
				require.NotEqual(s, "A", s.holder())
				require.Empty(s, s.queue())
				require.Equal(s, 2, a.calls(rediscore.ReleaseScript, "A"))
				s.release("H")
				s.requireClean()
			})
		}
	}
	inScene(t, func(s *scene, a *actor) {
		enqueue := a.holdCall(rediscore.EnqueueScript, "A")
		a.acquire("A").cancelled()
		enqueue.Answer()
		require.False(s, a.release("A"))
		require.Equal(s, 1, a.calls(rediscore.ReleaseScript, "A"))
		s.release("H")
		require.True(s, must(a.Vote(s.Context(), "k", "A", ttl, 0))(s).Acquired, "nothing of the token is in flight")
		require.True(s, a.release("A"))
		s.requireClean()
	})
}

// The message of a grant comes when its wait was cancelled, before or after the release of its token, which is
// released in the background. A later acquisition of the token is refused meanwhile: that release would end its
// lease. After it, a token may be used again for all that the Locker knows.
func TestTokenIsUsedDuringItsRelease(t *testing.T) {
	for _, name := range []string{"TryAcquire", "Acquire", "TryAcquireSet"} {
		for _, before := range []bool{false, true} {
			inScene(t, func(s *scene, a *actor) {
				message := a.holdMessage("A")
				w := a.acquire("A")
				s.release("H")
				w.cancelled()
				if !before {
					require.True(s, a.release("A"))
				}
				giveBack := a.holdCall(rediscore.ReleaseScript, "A")
				message.Deliver()
				giveBack.Await()
				n := len(a.asked(0))
				acquire := methodsOf(s.Context(), a.Locker, "k", "A", ttl)[name]
				_, err := acquire()
				require.ErrorIs(s, err, dlock.ErrReleased)
				require.True(s, dlock.NoEffect(err))
				require.Len(s, a.asked(n), 0)
				giveBack.Answer()
				acquired, err := acquire()
				require.NoError(s, err)
				require.True(s, acquired)
				message.Deliver()
				require.Equal(s, "A", s.holder(), "that was the message of an earlier grant")
				s.release("A")
				s.requireClean()
			})
		}
	}
}

// A waiter that has lost its place takes it again with its old ticket. If that enqueue gets no answer,
// the wait ends, and the caller uses another token: the enqueue may arrive at any time, and take the lock.
func TestPlaceIsTakenAgain(t *testing.T) {
	for _, answered := range []bool{true, false} {
		inScene(t, func(s *scene, a *actor) {
			b := s.enter()
			w := a.acquire("A")
			ticket := s.text("ZSCORE", s.keys.queue, "A")
			other := b.acquire("B")
			s.release("A") // by a verdict of death that was wrong
			enqueue := a.holdCall(rediscore.EnqueueScript, "A")
			time.Sleep(checkInLatest)
			if answered {
				enqueue.Answer()
				require.False(s, w.over())
			} else {
				enqueue.Return(nil, errLost)
				w.failed(errLost)
				require.False(s, dlock.NoEffect(w.err))
				enqueue.Execute()
			}
			require.Equal(s, ticket, s.text("ZSCORE", s.keys.queue, "A"), "the ticket that it brings")
			require.Equal(s, []string{"A", "B"}, s.queue())
			if !answered {
				require.False(s, a.release("A"))
			}
			s.release("H")
			if answered {
				w.served()
			}
			other.served()
			s.requireClean()
		})
	}
}

// A message that comes late does no harm to the lease of its token, or of another.
func TestLateMessage(t *testing.T) {
	for name, c := range map[string]struct {
		before   func(s *scene, w *waiting, message *sim.Held)
		releases int // of the token
		holder   string
	}{
		"after a check-in": {func(_ *scene, w *waiting, _ *sim.Held) { w.granted() }, 0, "A"},
		"twice":            {func(_ *scene, w *waiting, message *sim.Held) { message.Deliver(); w.granted() }, 0, "A"},
		"after the release": {func(s *scene, w *waiting, _ *sim.Held) { // so that it is released again
			w.served()
			s.hold("B")
		}, 2, "B"},
		"after the wait": {func(s *scene, w *waiting, _ *sim.Held) { // if nobody else releases it
			w.cancelled()
			require.Equal(s, "A", s.holder())
			s.enter().acquire("B")
		}, 1, "B"},
	} {
		inScene(t, func(s *scene, a *actor) {
			message := a.holdMessage("A")
			w := a.acquire("A")
			s.release("H")
			c.before(s, w, message)
			message.Deliver()
			require.Equal(s, c.releases, a.calls(rediscore.ReleaseScript, "A"), name)
			require.Equal(s, c.holder, s.holder(), name)
		})
	}
}

// A wait is cancelled while the answer with the grant is in flight.
func TestCancelDuringGrant(t *testing.T) {
	for _, script := range []*rediscore.Script{rediscore.EnqueueScript, rediscore.CheckInScript} {
		inScene(t, func(s *scene, a *actor) {
			call := a.holdCall(script, "A")
			w := a.acquire("A")
			call.Await()
			s.expire()
			call.Execute()
			require.Equal(s, "A", s.holder())
			w.cancelled()
			call.Answer()
			w.released()
			s.requireClean()
		})
	}
}

// What comes late, or in another order, does no harm.
var reorderings = scenes{
	"An enqueue that is delivered after the release of its token queues the token again": func(s *scene, a *actor) {
		// Its grant is released at once.
		b := s.enter()
		a.open()
		enqueue := a.holdCall(rediscore.EnqueueScript, "A")
		w := a.acquire("A")
		enqueue.Answer()
		s.release("H")
		w.served()
		s.hold("H2")
		enqueue.Execute()
		require.Equal(s, []string{"A"}, s.queue())
		next := b.acquire("B")
		s.release("H2")
		require.True(s, next.over())
		next.served()
		s.requireClean()
	},
	"The enqueue of a cancelled wait gets no answer, and arrives after the release of its token": func(s *scene, a *actor) {
		b := s.enter()
		a.open()
		enqueue := a.holdCall(rediscore.EnqueueScript, "A")
		a.acquire("A").cancelled()
		enqueue.Return(nil, errLost)
		require.False(s, a.release("A"))
		enqueue.Execute()
		next := b.acquire("B")
		require.Equal(s, []string{"A", "B"}, s.queue())
		s.release("H")
		require.True(s, next.over())
		next.served()
		s.requireClean()
	},
	"A release that comes after one in the background was executed has found nothing, and does not claim what that has found": func(s *scene, a *actor) {
		message := a.holdMessage("A")
		w := a.acquire("A")
		s.release("H")
		w.granted()
		lost := a.holdCall(rediscore.ReleaseScript, "A")
		a.beginRelease("A")
		lost.Await()
		message.Deliver()
		giveBack := a.holdCall(rediscore.ReleaseScript, "A")
		lost.Return(nil, errLost)
		giveBack.Execute()
		released := a.beginRelease("A")
		time.Sleep(time.Second)
		giveBack.Answer()
		require.Equal(s, dlock.RenewResult{}, <-released)
		s.requireClean()
	},
	"A grant that is found after it has ended does not count, nor does its fence": func(s *scene, a *actor) {
		// The token is tried once more, given up, and released. The wait goes on with a new token.
		c := dlock.New(a, dlock.WithTTL(time.Second))
		var lease *dlock.Lease
		leased := begin(func() (err error) { lease, err = c.Acquire(s.Context(), "k"); return err })
		time.Sleep(time.Millisecond)
		token := s.queue()[0]
		message := a.holdMessage(token)
		s.release("H")
		time.Sleep(1100 * time.Millisecond)
		require.Empty(s, s.holder(), "the lease ends before its message comes")
		fence := s.hold("rival")
		tries := a.calls(rediscore.AcquireScript, token)
		message.Deliver()
		require.Equal(s, tries+1, a.calls(rediscore.AcquireScript, token))
		time.Sleep(time.Second)
		require.NotZero(s, a.calls(rediscore.ReleaseScript, token), "what is owed is released")
		require.Len(s, s.queue(), 1)
		require.NotEqual(s, token, s.queue()[0])
		require.Equal(s, "rival", s.holder())
		s.release("rival")
		require.NoError(s, <-leased)
		require.NotEqual(s, token, lease.Token())
		require.Greater(s, lease.Fence(), fence)
		require.NoError(s, lease.Release())
		require.NoError(s, c.Close())
		s.requireClean()
	},
	"A release waits for the last call of its token's wait until its ctx ends": func(s *scene, a *actor) {
		// What that call is granted later is released nevertheless.
		enqueue := a.holdCall(rediscore.EnqueueScript, "A")
		a.acquire("A").cancelled()
		s.release("H")
		const limit = 50 * time.Millisecond
		ctx, cancel := context.WithTimeout(s.Context(), limit)
		defer cancel()
		begun := time.Now()
		require.False(s, must(a.Release(ctx, "k", "A"))(s))
		require.Equal(s, limit, time.Since(begun))
		enqueue.Execute()
		require.Equal(s, "A", s.holder())
		enqueue.Answer()
		require.Empty(s, s.holder(), "the late grant is released")
		s.requireClean()
	},
}

func TestReorderings(t *testing.T) { reorderings.play(t) }
