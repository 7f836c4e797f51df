package rediscore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// A Locker has one inbox, whose name nobody else has, however many wait; and none before somebody does.
func TestInboxIsShared(t *testing.T) {
	seen := make(map[string]bool)
	for range 2 {
		inScene(t, func(s *scene, _ *actor) {
			a := s.enter(rediscore.WithPrefix("p{:"))
			a.release("stranger")
			require.Empty(s, a.listened())
			a.answersWaits(0, "H", 60_000)
			var all []*waiting
			for i := range 50 {
				all = append(all, a.acquireFor(fmt.Sprint("k", i%7), fmt.Sprint("t", i), ttl))
			}
			require.Len(s, a.listened(), 1)
			inbox := a.inbox()
			require.False(s, inbox.Shard)
			require.Regexp(s, `^p\{:dlock1:inbox:[A-Z2-7]{26}$`, inbox.Channel)
			require.False(s, seen[inbox.Channel])
			seen[inbox.Channel] = true
			for i, w := range all {
				require.False(s, w.over())
				a.grant(i, fmt.Sprint("t", i))
				require.True(s, w.over())
				require.EqualValues(s, i, w.Fence)
			}
		})
	}
}

// releasedKeys returns the keys of all releases of a token.
func (a *actor) releasedKeys(token string) (keys []string) {
	for _, call := range a.callsOf(rediscore.ReleaseScript, token) {
		keys = append(keys, call.Keys()[0])
	}
	return keys
}

// A detour is a Conn that listens in another way.
type detour struct {
	rediscore.Conn
	listen listen
}

type listen func(ctx context.Context, channel string, shard bool, on func(rediscore.Event)) error

func (d detour) Listen(ctx context.Context, channel string, shard bool, on func(rediscore.Event)) error {
	return d.listen(ctx, channel, shard, on)
}

// enterBy lets a Locker enter that listens by what by returns, and returns how often it has listened.
func (s *scene) enterBy(by func(c *sim.Conn, n int) listen, opts ...rediscore.Option) (a *actor, times func() int) {
	var n atomic.Int64
	a = s.enterOn(func(c *sim.Conn) rediscore.Conn {
		return detour{c, func(ctx context.Context, channel string, shard bool, on func(rediscore.Event)) error {
			return by(c, int(n.Add(1)))(ctx, channel, shard, on)
		}}
	}, opts...)
	return a, func() int { synctest.Wait(); return int(n.Load()) }
}

func (s *scene) requireGrowing(tries []noted) {
	pause := rediscore.MinPause
	for _, gap := range gaps(tries) {
		require.GreaterOrEqual(s, gap, pause)
		require.Less(s, gap, 2*pause)
		pause = min(2*pause, rediscore.MaxPause)
	}
	require.Equal(s, rediscore.MaxPause, pause)
}

// An inbox that misses a message though somebody listens is opened anew. One whose
// message is only late is not, nor one that the server did not know of.
func TestDeafInboxIsOpenedAnew(t *testing.T) {
	wait := func(a *actor) *waiting { return a.acquire("A") }
	vote := func(a *actor) *waiting { return a.acquireVote("A", 5) }
	after := func(d time.Duration, wait func(a *actor) *waiting) func(s *scene, a *actor) { // the check-in that has found the grant
		return func(s *scene, a *actor) {
			message, w := a.holdMessage("A"), wait(a)
			s.release("H")
			w.granted()
			a.acquire("B") // or the inbox is closed
			time.Sleep(d)
			message.Deliver()
		}
	}
	for name, c := range map[string]struct {
		play func(s *scene, a *actor)
		want int
	}{
		"deaf":      {after(2*rediscore.MessageLag, wait), 2},
		"late":      {after(rediscore.MessageLag/2, wait), 1},
		"deaf vote": {after(2*rediscore.MessageLag, vote), 2},
		"late vote": {after(rediscore.MessageLag/2, vote), 1},
		"before the answer of the check-in": {func(s *scene, a *actor) {
			message, w := a.holdMessage("A"), a.acquire("A")
			checkIn := a.holdCall(rediscore.CheckInScript, "A")
			rediscore.ChangeInbox(a.Locker, "A")
			s.release("H")
			checkIn.Execute()
			message.Deliver()
			checkIn.Answer()
			w.grantedNow()
		}, 1},
		"a check-in found the grant without an inbox, and its answer was lost": {func(s *scene, a *actor) {
			subscription, w := a.holdSubscription(), a.acquire("A")
			checkIn := a.holdCall(rediscore.CheckInScript, "A")
			s.expire()
			time.Sleep(time.Second)
			checkIn.Execute()
			require.Equal(s, "A", s.holder())
			subscription.Answer()
			checkIn.Return(nil, errLost)
			w.granted()
		}, 1},
		"before the answer to the enqueue": {func(s *scene, a *actor) {
			a.open()
			enqueue, message := a.holdCall(rediscore.EnqueueScript, "A"), a.holdMessage("A")
			w := a.acquire("A")
			enqueue.Execute()
			s.release("H")
			message.Deliver()
			enqueue.Answer()
			w.grantedNow()
		}, 1},
	} {
		inScene(t, func(s *scene, a *actor) {
			c.play(s, a)
			a.acquire("B again")
			time.Sleep(3 * rediscore.MessageLag)
			require.Len(s, a.listened(), c.want, name)
			require.EqualValues(s, 1, a.opened(), name)
		})
	}
}

// A locatedConn knows the master, if there is one.
type locatedConn struct {
	*sim.Conn
	master atomic.Pointer[string]
}

func (c *locatedConn) Locate(context.Context, string) any {
	if master := c.master.Load(); master != nil {
		return *master
	}
	return nil
}

func (s *scene) enterLocated(opts ...rediscore.Option) (*actor, *locatedConn) {
	c := new(locatedConn)
	c.master.Store(new("one"))
	return s.enterOn(func(conn *sim.Conn) rediscore.Conn { c.Conn = conn; return c }, opts...), c
}

// An inbox is opened again when another master has its slot. The Locker looks after 250 ms, ever less
// often while the subscription is there, and at least every 10 s.
func TestInboxFollowsTheMaster(t *testing.T) {
	const least, most = rediscore.MinFollow, rediscore.MaxFollow
	for _, c := range []struct {
		after       time.Duration // the master changes
		silent      bool          // the first master does not answer
		first, last time.Duration // look that can notice
	}{
		{100 * time.Millisecond, false, least, least},
		{2 * time.Second, false, 15 * least, 15 * least},
		{2 * time.Second, true, 2 * time.Second, 2*time.Second + least},
		{time.Hour, false, time.Hour, time.Hour + most},
	} {
		inScene(t, func(s *scene, _ *actor) {
			var told error
			a, located := s.enterLocated(rediscore.WithInboxError(func(err error) { told = err }))
			a.answersWaits(3, "H", -1)
			if c.silent {
				a.holdSubscription()
			}
			a.acquire("A")
			time.Sleep(c.after - time.Millisecond)
			located.master.Store(new("other"))
			time.Sleep(time.Hour)
			require.Len(s, a.listened(), 2, "%+v", c)
			took := gaps(a.listened())[0]
			require.True(s, c.first+rediscore.MinPause <= took && took < c.last+2*rediscore.MinPause, "%+v: opened again after %v", c, took)
			require.Equal(s, c.silent, told == rediscore.ErrReplaced, "%+v", c)
			require.EqualValues(s, 1, a.opened(), "%+v", c)
		})
	}
}

// A clusterConn says that its server is a cluster.
type clusterConn struct{ *sim.Conn }

func (clusterConn) Cluster() bool { return true }

// Close ends subscriptions, also one that is about to be opened again, and what is under way, and none is opened after it.
func TestCloseEndsInboxes(t *testing.T) {
	for _, refusal := range []error{nil, errDown} {
		inScene(t, func(s *scene, a *actor) {
			a.refuses(refusal)
			w := a.acquire("A")
			time.Sleep(rediscore.MaxPause)
			n, start := len(a.listened()), time.Now()
			require.NoError(s, a.Close())
			require.NoError(s, a.Close())
			require.Zero(s, time.Since(start))
			w.failed(dlock.ErrClosed)
			require.Zero(s, a.opened())
			calls := len(a.asked(0))
			rediscore.Deliver(a.Locker, "1 1 A") // it was on its way
			time.Sleep(time.Minute)
			require.Len(s, a.listened(), n)
			require.Len(s, a.asked(0), calls)
		})
	}
}

// A Locker whose inbox is on another server than its scripts learns so from its first check-in. It says why, opens the
// inbox anew, and checks in often while that does not help. Each of its waiters is served soon, in its turn.
func TestInboxIsNotHeard(t *testing.T) {
	vote := func(a *actor, token string) *waiting { return a.acquireVote(token, time.Now().UnixMicro()) }
	for _, wait := range []func(a *actor, token string) *waiting{(*actor).acquire, vote} {
		for _, elsewhere := range []int{1, 1000} {
			inScene(t, func(s *scene, _ *actor) {
				other := sim.Dial(sim.NewServer(), nil)
				defer other.Close()
				reasons := make(chan error, 100)
				a, times := s.enterBy(func(c *sim.Conn, n int) listen {
					if n <= elsewhere {
						c = other
					}
					return c.Listen
				}, rediscore.WithInboxError(func(err error) { reasons <- err }))
				defer a.Close()
				holder := "H"
				for i := range 100 {
					next := wait(a, fmt.Sprint(i))
					time.Sleep(300 * time.Millisecond)
					released := time.Now()
					s.release(holder)
					next.granted()
					most := 200 * time.Millisecond
					if elsewhere == 1 && i > 0 {
						most = 0
					}
					require.LessOrEqual(s, time.Since(released), most, "handover %d", i)
					holder = fmt.Sprint(i)
				}
				require.ErrorContains(s, <-reasons, "subscribes on another server")
				require.Empty(s, reasons)
				if elsewhere == 1 {
					require.Equal(s, 2, times())
					calls := a.asked(0)
					require.Greater(s, len(calls[len(calls)-1].args()), 2, "the last call is an enqueue, since no check-in is needed")
				} else {
					require.InDelta(s, 30/rediscore.DoubtPause.Seconds(), times(), 2)
				}
			})
		}
	}
}

// What inboxes and messages do.
var deliveries = scenes{
	"A token that waits for another key than before is given back there": func(s *scene, a *actor) {
		for _, key := range []string{"first", "second"} {
			require.True(s, a.acquireFor(key, "A", ttl).over())
			require.True(s, must(a.Release(s.Context(), key, "A"))(s))
			n := len(a.releasedKeys("A"))
			a.tell("8 1 A")
			require.Equal(s, []string{key}, a.releasedKeys("A")[n:])
		}
	},
	"A token holds the lock that it has waited for, and is released for another key": func(s *scene, a *actor) {
		// A late message of the grant is no reason to release the lock.
		w := a.acquireFor("first", "A", ttl)
		require.True(s, w.over())
		require.True(s, w.Acquired)
		must(a.Release(s.Context(), "second", "A"))(s)
		a.grant(int(w.Fence), "A")
		require.Equal(s, []string{"second"}, a.releasedKeys("A"))
	},
	"An inbox stays open while messages come for those who have gone away: the grants of many who went together come one after the other": func(s *scene, a *actor) {
		a.acquire("gone").cancelled()
		for range 3 {
			time.Sleep(rediscore.Lingering - time.Millisecond)
			a.tell("8 1 gone")
			require.EqualValues(s, 1, a.opened())
		}
		time.Sleep(rediscore.Lingering + time.Millisecond)
		require.Zero(s, a.opened())

		next := a.acquire("next")
		require.EqualValues(s, 1, a.opened())
		next.cancelled()
		require.NoError(s, a.Close())
		require.Zero(s, a.opened())
	},
	"An inbox that nobody waits for is closed after a while, not at once": func(s *scene, a *actor) {
		first, second := a.acquire("A"), a.acquire("B")
		first.cancelled()
		time.Sleep(3 * rediscore.Lingering)
		require.EqualValues(s, 1, a.opened(), "while one waits")
		for range 3 {
			second.cancelled()
			time.Sleep(rediscore.Lingering - 2*time.Millisecond)
			second = a.acquire("C")
		}
		time.Sleep(3 * rediscore.Lingering)
		rediscore.CloseIfIdle(a.Locker) // by a timer that could not be stopped
		time.Sleep(3 * rediscore.Lingering)
		require.Len(s, a.listened(), 1)
		second.cancelled()
		time.Sleep(rediscore.Lingering - time.Millisecond)
		require.EqualValues(s, 1, a.opened())
		time.Sleep(2 * time.Millisecond)
		require.Zero(s, a.opened())
		n := len(a.asked(0))
		a.acquire("D")
		require.Len(s, a.listened(), 2)
		require.NotEqual(s, a.listened()[0].Channel, a.listened()[1].Channel)
		require.NotEmpty(s, a.asked(n + 1)[0].args()[1], "the check-in of one whose inbox was opened again")
	},
	"A waiter that comes while its inbox is being closed has it opened again afterwards: there are never two subscriptions to one channel": func(s *scene, _ *actor) {
		a, times := s.enterBy(func(c *sim.Conn, _ int) listen {
			return func(ctx context.Context, channel string, shard bool, on func(rediscore.Event)) error {
				defer time.Sleep(time.Second)
				return c.Listen(ctx, channel, shard, on)
			}
		})
		a.acquire("A").cancelled()
		time.Sleep(rediscore.Lingering + 100*time.Millisecond)
		a.acquire("B")
		require.Equal(s, 1, times())
		time.Sleep(time.Second)
		require.Equal(s, 2, times())
		require.EqualValues(s, 1, a.opened())
	},
	"When the library's client is closed, the inbox is not opened again, and its waiters check in at once, which ends their waits": func(s *scene, _ *actor) {
		a, times := s.enterBy(func(c *sim.Conn, _ int) listen { return c.Listen })
		w := a.acquire("A")
		a.conn.Close()
		w.failed(dlock.ErrClosed)
		time.Sleep(time.Minute)
		require.Equal(s, 1, times())
	},
	"An inbox that cannot be opened, or was lost, is opened again: soon, and ever more seldom while that fails": func(s *scene, a *actor) {
		a.answersWaits(3, "H", -1)
		a.refuses(errDown)
		a.acquire("A")
		time.Sleep(time.Minute)
		s.requireGrowing(a.listened())
		a.refuses(nil)
		time.Sleep(2*rediscore.MaxPause + rediscore.Lasting)
		a.refuses(errDown)
		n := len(a.listened()) - 1
		a.conn.Cut()
		lost := time.Now()
		time.Sleep(time.Minute)
		again := a.listened()[n:]
		again[0].at = lost
		s.requireGrowing(again)
	},
	"Subscriptions that end at once are not repeated in haste": func(s *scene, a *actor) {
		a.answersWaits(3, "H", -1)
		a.acquire("A")
		for range 600 {
			a.conn.Cut()
			time.Sleep(100 * time.Millisecond)
		}
		require.Less(s, len(a.listened()), 60, "subscriptions in a minute")
		require.Greater(s, len(a.listened()), 30)
	},
	"An inbox stays where it is while the master is not known": func(s *scene, _ *actor) {
		a, located := s.enterLocated()
		a.answersWaits(3, "H", -1)
		a.acquire("A")
		for _, master := range []*string{nil, new("one")} {
			located.master.Store(master)
			time.Sleep(time.Hour)
			require.Len(s, a.listened(), 1, "the master is %v", master)
		}
	},
	"In a cluster there is an inbox for each slot, whose name has the slot's tag": func(s *scene, _ *actor) {
		a := s.enterOn(func(c *sim.Conn) rediscore.Conn { return clusterConn{c} }, rediscore.WithPrefix("p:"))
		a.answersWaits(3, "H", -1)
		const slots = 100
		var first *waiting
		used := make(map[int]bool)
		for i := 0; len(used) < slots; i++ {
			key := fmt.Sprint("k", i)
			slot := rediscore.Slot("p:" + key)
			if used[slot] {
				continue
			}
			used[slot] = true
			w := a.acquireFor(key, key, ttl)
			if first == nil {
				first = w
			}
			calls := a.asked(0)
			address := calls[len(calls)-1].args()[1]
			require.Regexp(s, "^sp:{"+rediscore.Tags()[slot]+"}dlock1:inbox:.{26}$", address)
			require.Len(s, a.listened(), len(used))
			require.Equal(s, sim.Trip{Channel: address[1:], Shard: true}, sim.Trip{Channel: a.inbox().Channel, Shard: a.inbox().Shard})
		}
		inbox := a.listened()[0].Trip
		a.acquireFor("k0", "same slot", ttl).cancelled()
		require.Len(s, a.listened(), slots)
		first.cancelled()
		time.Sleep(rediscore.Lingering + time.Millisecond)
		require.Zero(s, s.subscribers(inbox))
		a.acquireFor("k0", "again", ttl)
		require.Len(s, a.listened(), slots+1)
		require.EqualValues(s, 1, a.opened())
		require.NoError(s, a.Close())
		for _, inbox := range a.listened() {
			require.Zero(s, s.subscribers(inbox.Trip))
		}
	},
	"What a message may say, whoever sent it": func(s *scene, a *actor) {
		w := a.acquire("t")
		n := len(a.asked(0))
		for _, payload := range []string{"", " ", "x", "1", "1 2", "1 t", "x 2 t", "1 x t", "1 2 T", "1 2  t", "1 2 t ", "99999999999999999999 2 t", "1 2 stranger"} {
			a.tell(payload)
			require.False(s, w.over(), "after %q", payload)
		}
		time.Sleep(time.Second)
		require.Empty(s, a.asked(n), "calls because of such")
	},
	"What one waiter learns of the inbox, the others know, which rest meanwhile": func(s *scene, a *actor) {
		a.answers(func(call rediscore.Call) (any, error) {
			reply := waits(0, "H", 60_000)
			if call.Script == rediscore.CheckInScript && call.Args[0] == "A" && call.Args[1] != "" {
				reply[0] = int64(rediscore.AnswerDeaf)
			}
			return reply, nil
		})
		for _, token := range []string{"A", "B", "C"} {
			a.acquire(token)
		}
		time.Sleep(time.Second)
		for _, token := range []string{"A", "B", "C"} {
			calls := a.callsOf(rediscore.CheckInScript, token)
			require.Empty(s, calls[len(calls)-1].Args[1], token)
		}
	},
}

func TestDeliveries(t *testing.T) { deliveries.play(t) }
