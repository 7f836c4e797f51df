package rediscore_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// acquireInOrder has tokens "t0", "t1" and so on wait for a lock that is held without an end, and returns their waits when
// they rest.
func (a *actor) acquireInOrder(n int) (all []*waiting, tokens []string) {
	a.do("PERSIST", a.keys.lock)
	for i := range n {
		tokens = append(tokens, fmt.Sprint("t", i))
		all = append(all, a.acquire(tokens[i]))
	}
	time.Sleep(checkInLatest)
	require.Equal(a, tokens, a.queue())
	return all, tokens
}

// When the first of a room has left, the next checks in: at the time of its next check-in, or at once if
// a call of it was in flight or had failed.
func TestFirstOfARoomLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		before func(a *actor) (call *sim.Held) // in flight, or nil
		within time.Duration
		all    bool // the others check in too
	}{
		"at rest": {func(*actor) *sim.Held { return nil }, checkInLatest, false},
		"a call is in flight": {func(a *actor) *sim.Held {
			call := a.holdCall(rediscore.CheckInScript, "t0")
			time.Sleep(checkInLatest)
			return call.Await()
		}, 0, false},
		"its calls fail": {func(a *actor) *sim.Held {
			a.replies(nil, errDown)
			time.Sleep(20 * time.Second)
			a.answers(nil)
			return nil
		}, 0, true},
	} {
		inScene(t, func(s *scene, a *actor) {
			all, _ := a.acquireInOrder(3)
			call := c.before(a)
			n := a.calls(rediscore.CheckInScript, "t1")
			all[0].cancelled()
			time.Sleep(c.within)
			require.Equal(s, n+1, a.calls(rediscore.CheckInScript, "t1"), name)
			require.Equal(s, c.all, a.calls(rediscore.CheckInScript, "t2") > 0, name)
			if call != nil {
				call.Answer()
			}
			s.release("t0")
			time.Sleep(10 * time.Second)
			s.release("H")
			all[1].grantedNow()
		})
	}
}

// If the first of a room has lost its place, so may the others, and all ask. They return to their old places.
// They also ask if the first was not heard of for so long that they may have been taken for dead.
func TestPlacesOfARoomAreLost(t *testing.T) {
	for name, lose := range map[string]func(s *scene, a *actor){
		"all": func(s *scene, _ *actor) { s.do("DEL", s.keys.queue, s.keys.waiters) },
		"some while the server is silent": func(s *scene, a *actor) {
			a.replies(nil, errDown)
			time.Sleep(6 * time.Second)
			s.do("ZREM", s.keys.queue, "t3", "t4")
			a.answers(nil)
		},
		"some while the machine is suspended": func(s *scene, _ *actor) { // its clock stands still
			s.server.SetClock(6 * time.Second)
			s.do("ZREM", s.keys.queue, "t3")
		},
	} {
		inScene(t, func(s *scene, a *actor) {
			_, tokens := a.acquireInOrder(5)
			lose(s, a)
			time.Sleep(checkInLatest + time.Second)
			require.Equal(s, tokens, s.queue(), name)
		})
	}
}

// The news of the first count for all in a room: the server's clock, who holds the lock, and failures.
func TestNewsOfARoom(t *testing.T) {
	for i, step := range []time.Duration{time.Second, -time.Hour, 0, time.Second, time.Minute} {
		inScene(t, func(s *scene, a *actor) {
			own := i == 0 // those of the other are later
			all, _ := a.acquireInOrder(1)
			if !own {
				all = append(all, a.acquire("t1"))
				time.Sleep(checkInLatest)
			}
			s.server.SetClock(step)
			s.do("SET", s.keys.lock, "H", "PX", 60_000)
			if own {
				all = append(all, a.acquire("t1"))
			} else {
				time.Sleep(checkInLatest)
			}
			all[0].cancelled()
			s.release("t0")
			s.release("H")
			all[1].grantedNow()
		})
	}
	inScene(t, func(s *scene, a *actor) {
		all, _ := a.acquireInOrder(6)
		s.do("SET", s.keys.lock, "another", "PX", 600_000)
		time.Sleep(5 * time.Minute)
		all[1].cancelled()
		require.Equal(s, "another", all[1].Holder)
		require.WithinDuration(s, time.Now(), all[1].Since, checkInLatest)
		require.True(s, dlock.NoEffect(all[1].err))
		require.NotContains(s, all[1].err.Error(), "no reply")
		a.replies(nil, io.ErrUnexpectedEOF)
		time.Sleep(3 * time.Second)
		answered := time.Now()
		all[2].cancelled()
		require.ErrorIs(s, all[2].err, io.ErrUnexpectedEOF)
		require.WithinDuration(s, answered, all[2].Since, 3*time.Second+checkInLatest)
		a.answers(nil)
		time.Sleep(5 * time.Second)
		all[3].cancelled()
		require.NotErrorIs(s, all[3].err, io.ErrUnexpectedEOF)
		a.travels(sim.Fate{Reply: sim.Leg{Lost: true}})
		time.Sleep(checkInLatest + 1100*time.Millisecond)
		all[5].cancelled() // whose own call is not in flight
		require.ErrorContains(s, all[5].err, "no reply for ")
	})
}

// A wait that was passed over twice goes on without the inbox until that was opened anew. Meanwhile it does not
// check in for others.
func TestFirstOfARoomLosesItsInbox(t *testing.T) {
	for _, opens := range []bool{false, true} {
		inScene(t, func(s *scene, a *actor) {
			all, _ := a.acquireInOrder(2)
			if !opens {
				a.refuses(errDown)
			}
			for range 2 {
				s.do("ZREM", s.keys.queue, "t0")
				time.Sleep(2 * checkInLatest)
			}
			n, calls := a.calls(rediscore.CheckInScript, "t1"), len(a.asked(0))
			time.Sleep(time.Minute)
			require.Equal(s, !opens, a.calls(rediscore.CheckInScript, "t1") > n+20)
			require.Equal(s, opens, len(a.asked(calls)) < 40, "one checks in for both")
			all[0].cancelled()
		})
	}
}

// Waits of three processes come and go, while inboxes, messages, answers, data and time are lost. When
// that ends, all that still wait are served, and none is late.
func TestRoomsInStorms(t *testing.T) {
	for seed := range uint64(10) {
		inScene(t, func(s *scene, a *actor) {
			random := rand.New(rand.NewPCG(seed, 0))
			s.do("PERSIST", s.keys.lock)
			actors := []*actor{a, s.enter(), s.enter()}
			var all []*waiting
			for i := range 30 {
				all = append(all, actors[i%3].acquire(fmt.Sprint("t", i)))
			}
			for range 40 {
				time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
				a, w := actors[random.IntN(3)], all[random.IntN(len(all))]
				switch random.IntN(8) {
				case 0:
					a.conn.Cut()
				case 1:
					a.travelsBy(func(t sim.Trip) sim.Fate { return sim.Fate{Reply: sim.Leg{Lost: t.Calls != nil}} })
				case 2:
					a.replies(nil, errDown)
				case 3:
					a.refuses(errDown)
					a.conn.Cut()
				case 4:
					s.server.SetClock(time.Duration(random.Int64N(int64(10 * time.Second))))
				case 5:
					s.do("DEL", s.keys.queue, s.keys.waiters)
				case 6:
					if w.over() {
						continue
					}
					w.cancelled()
					w.actor.answers(nil)
					w.actor.travels(sim.Fate{})
					w.actor.release(w.token)
				default:
					a.recovers()
				}
			}
			for _, a := range actors {
				a.recovers()
			}
			time.Sleep(20 * time.Second)
			all = slices.DeleteFunc(all, (*waiting).over)
			require.Len(s, s.queue(), len(all), "seed %d", seed)
			s.release("H")
			for range all {
				for late := time.Duration(0); s.holder() == "" && late < checkInLatest; late += time.Millisecond {
					time.Sleep(time.Millisecond) // it is reserved for one without an inbox
				}
				i := slices.IndexFunc(all, func(w *waiting) bool { return w.token == s.holder() })
				require.GreaterOrEqual(s, i, 0, "seed %d: %q has the lock, %q wait", seed, s.holder(), s.queue())
				require.True(s, all[i].over(), "seed %d", seed)
				require.NoError(s, all[i].err)
				all[i].released()
			}
			require.Empty(s, s.holder())
		})
	}
}

// A token is released while the answer to its enqueue is on its way, so its wait does not rest: it would
// only find out when it is the first of its room.
func TestReleasedBeforeRest(t *testing.T) {
	for _, missed := range []bool{false, true} {
		inScene(t, func(s *scene, a *actor) {
			a.acquireInOrder(1)
			enqueue, release := a.holdCall(rediscore.EnqueueScript, "A"), a.holdCall(rediscore.ReleaseScript, "A")
			w := a.acquire("A")
			enqueue.Execute()
			a.beginRelease("A")
			release.Await()
			if missed {
				release.Return(nil, errLost)
				release.Execute()
				enqueue.Answer()
			} else {
				enqueue.Answer()
				release.Answer()
			}
			time.Sleep(checkInLatest)
			w.failed(dlock.ErrReleased)
		})
	}
}

// While the first of a room waits for replicas to have its grant, the others stay alive.
func TestRoomWaitsForReplicas(t *testing.T) {
	for _, other := range []bool{false, true} {
		inScene(t, func(s *scene, _ *actor) {
			replica := s.server.NewReplica()
			a, b := s.enter(rediscore.WithReplicas(1, time.Second)), s.enter(rediscore.WithReplicas(1, time.Second))
			time.Sleep(time.Second)
			s.do("PERSIST", s.keys.lock)
			const ttl = 2 * time.Minute // the queue expires after one
			a.acquireFor("k", "A0", ttl)
			a.acquireFor("k", "A1", ttl)
			if other {
				b.acquireFor("k", "B", ttl)
			}
			time.Sleep(checkInLatest)
			replica.SetLink(sim.Link{Cut: true})
			s.release("H")
			require.Equal(s, "A0", s.holder())
			time.Sleep(ttl - 3*time.Second)
			require.Contains(s, s.queue(), "A1")
			time.Sleep(6 * time.Second)
			require.Equal(s, "A1", s.holder())
		})
	}
}

// A wait that has lost its place, and is the first of its room when it returns, has the others ask, also if it was
// not in the room before, or they come into the room meanwhile with an older answer.
func TestPlacesAreLostBesideARoom(t *testing.T) {
	inScene(t, func(s *scene, a *actor) {
		_, tokens := a.acquireInOrder(3)
		a.conn.Cut()
		synctest.Wait()
		first := a.holdCall(rediscore.CheckInScript, "t0")
		time.Sleep(time.Second)
		s.do("DEL", s.keys.queue, s.keys.waiters)
		first.Answer()
		time.Sleep(checkInLatest)
		require.Equal(s, tokens, s.queue())
	})
	for _, later := range []bool{false, true} {
		inScene(t, func(s *scene, a *actor) {
			a.acquireInOrder(1)
			enqueue, returns := a.holdCall(rediscore.EnqueueScript, "t1"), a.holdCall(rediscore.EnqueueScript, "t0")
			a.acquire("t1")
			enqueue.Execute()
			s.do("DEL", s.keys.queue, s.keys.waiters)
			time.Sleep(checkInLatest)
			returns.Await()
			if later {
				returns.Answer()
				enqueue.Answer()
			} else {
				enqueue.Answer()
				returns.Answer()
			}
			time.Sleep(checkInLatest)
			require.Equal(s, []string{"t0", "t1"}, s.queue())
		})
	}
}

// Waits end while the server does not answer, and so their tokens are not released. They count as dead, though
// other waits of the process go on or begin, and do not delay a handover.
func TestLeftInTheQueue(t *testing.T) {
	for _, on := range []bool{false, true} {
		inScene(t, func(s *scene, a *actor) {
			all, _ := a.acquireInOrder(20)
			live := []*waiting{s.enter().acquire("other")}
			if on {
				live = append(live, a.acquire("goes on"))
			}
			a.travelsBy(func(t sim.Trip) sim.Fate { return sim.Fate{Request: sim.Leg{Lost: t.Calls != nil}} })
			for _, w := range all {
				w.cancelled()
				go a.Release(s.Context(), "k", w.token)
			}
			time.Sleep(rediscore.CallLimit + time.Second)
			a.travels(sim.Fate{})
			live = append(live, a.acquire("begins"))
			time.Sleep(10 * time.Second)
			s.release("H")
			for _, w := range live {
				require.True(s, w.over())
				w.served()
			}
			require.Empty(s, s.holder())
			require.LessOrEqual(s, len(a.noted(func(t sim.Trip) bool { return t.Message != "" })), 2, "handovers")
		})
	}
}

// What the waits of a room do for each other.
var rooms = scenes{
	"When the first of a room has lost its place, and is granted the lock, the next asks at once": func(s *scene, a *actor) {
		all, _ := a.acquireInOrder(3)
		s.do("DEL", s.keys.queue, s.keys.waiters, s.keys.lock)
		rediscore.ChangeInbox(a.Locker, "t0")
		all[0].grantedNow()
		time.Sleep(time.Millisecond)
		require.Equal(s, []string{"t1", "t2"}, s.queue())
	},
	"However many wait at rest for a key, one checks in for all, and all stay alive": func(s *scene, a *actor) {
		const n, rest = 2000, 10 * time.Minute
		all, tokens := a.acquireInOrder(n)
		before := len(a.asked(0))
		time.Sleep(rest)
		calls := a.asked(before)
		require.LessOrEqual(s, len(calls), int(rest/(2*time.Second)), "calls")
		for _, call := range calls {
			require.Equal(s, []string{"t0", "p" + a.inbox().Channel}, call.args())
		}
		require.Equal(s, tokens, s.queue())
		s.release("H")
		for _, w := range all[:10] {
			require.True(s, w.over())
			w.served()
		}
	},
	"A wait that is passed over twice, just after its inbox was opened again because of that, goes on without it": func(s *scene, a *actor) {
		a.acquireInOrder(1)
		for range 4 {
			s.do("ZREM", s.keys.queue, "t0")
			time.Sleep(checkInLatest)
		}
		require.Len(s, a.listened(), 2)
		n := len(a.asked(0))
		time.Sleep(time.Second)
		require.Greater(s, len(a.asked(n)), 5)
		require.Equal(s, []string{"t0", ""}, a.asked(n)[0].args())
	},
	"A wait that goes back into the queue with an old ticket is the first of its room": func(s *scene, a *actor) {
		all, _ := a.acquireInOrder(2)
		s.do("ZREM", s.keys.queue, "t0")
		time.Sleep(checkInLatest)
		require.Equal(s, []string{"t0", "t1"}, s.queue())
		n, calls := a.calls(rediscore.CheckInScript, "t0"), a.calls(rediscore.CheckInScript, "t1")
		time.Sleep(time.Minute)
		require.Greater(s, a.calls(rediscore.CheckInScript, "t0"), n+20)
		require.Equal(s, calls, a.calls(rediscore.CheckInScript, "t1"))
		all[0].cancelled()
	},
	"News from before a change of the inbox do not date a grant: they may be of another server": func(s *scene, a *actor) {
		all, _ := a.acquireInOrder(2)
		first := a.holdCall(rediscore.CheckInScript, "t0")
		s.server.SetClock(-time.Hour)
		s.do("SET", s.keys.lock, "H", "PX", 60_000)
		a.conn.Cut()
		first.Await()
		time.Sleep(time.Second)
		s.release("t0")
		s.release("H")
		all[1].grantedNow()
		first.Answer()
	},
	"A wait at rest whose token is released ends": func(s *scene, a *actor) {
		all, _ := a.acquireInOrder(3)
		calls := len(a.asked(0))
		require.False(s, a.release("t1"))
		all[1].failed(dlock.ErrReleased)
		require.Len(s, a.asked(calls), 1)
		require.False(s, all[2].over())
		all[0].cancelled()
		require.Equal(s, 1, rediscore.Rooms(a.Locker))
		all[2].cancelled()
		require.Zero(s, rediscore.Rooms(a.Locker))
	},
	"Waits of different keys, those without an inbox, and votes have no room in common": func(s *scene, a *actor) {
		other := s.of("other")
		other.hold("H")
		s.do("PERSIST", s.keys.lock)
		s.do("PERSIST", other.keys.lock)
		a.acquire("A")
		a.acquireFor("other", "B", ttl)
		time.Sleep(time.Minute)
		require.Greater(s, a.calls(rediscore.CheckInScript, "A"), 20)
		require.Greater(s, a.calls(rediscore.CheckInScript, "B"), 20)
		a.acquireVote("D", 1)
		a.acquireVote("E", 2)
		time.Sleep(time.Minute)
		require.Greater(s, a.calls(rediscore.AttendScript, "D"), 20)
		require.Greater(s, a.calls(rediscore.AttendScript, "E"), 20)
		a.refuses(errDown)
		a.conn.Cut()
		a.acquire("C")
		for _, token := range []string{"A", "B", "C"} {
			n := a.calls(rediscore.CheckInScript, token)
			time.Sleep(10 * time.Second)
			require.Greater(s, a.calls(rediscore.CheckInScript, token), n+7)
		}
		require.Zero(s, rediscore.Rooms(a.Locker))
	},
	"The first of a room gets no answer, and none when it tries again. All are alive meanwhile": func(s *scene, a *actor) {
		all, _ := a.acquireInOrder(3)
		a.holdCall(rediscore.CheckInScript, "t0")
		a.holdCall(rediscore.CheckInScript, "t0")
		time.Sleep(checkInLatest + rediscore.CallLimit + 4*time.Second)
		s.release("H")
		require.Equal(s, "t0", s.holder(), "it is not taken for dead")
		require.True(s, all[0].over())
	},
	"If the first of a room gets no answer, because its connection has gone silent, another shows that all are alive": func(s *scene, a *actor) {
		all, _ := a.acquireInOrder(3)
		s.enter().acquire("other")
		first := a.holdCall(rediscore.CheckInScript, "t0")
		n := a.calls(rediscore.CheckInScript, "t1")
		time.Sleep(checkInLatest + 2*time.Second) // its call has 5 s
		first.Await()
		require.Equal(s, n+1, a.calls(rediscore.CheckInScript, "t1"))
		s.release("H")
		all[0].grantedNow()
	},
}

func TestRooms(t *testing.T) { rooms.play(t) }
