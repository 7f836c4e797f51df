package rediscore_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// crowd puts n waiters behind the others, who have the same inbox. They are not heard of again.
func (b *bench) crowd(n int64, name, inbox string) {
	b.Helper()
	last := b.now()
	for _, ticket := range b.texts("ZRANGE", b.keys.queue, -1, -1, "WITHSCORES") {
		n, _ := strconv.ParseInt(ticket, 10, 64)
		last = max(last, n)
	}
	for i := int64(1); i <= n; i++ {
		b.do("ZADD", b.keys.queue, last+i, fmt.Sprint(name, i))
		b.do("HSET", b.keys.waiters, fmt.Sprint(":", name, i), fmt.Sprint(time.Now().UnixMicro(), " 60000 0 ", inbox))
	}
	b.do("PEXPIRE", b.keys.queue, 60_000)
	b.do("PEXPIRE", b.keys.waiters, 60_000)
	b.do("HDEL", b.keys.waiters, "arrival") // which does not know them
}

// waiting returns the number of waiters.
func (b *bench) waiting() int64 {
	b.Helper()
	return b.number("ZCARD", b.keys.queue)
}

// attend lets time pass, in which waiters check in every three seconds.
func (b *bench) attend(d time.Duration, inbox string, tokens ...string) {
	b.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(3*time.Second, time.Until(end)))
		for _, token := range tokens {
			b.checkIn(token, inbox)
		}
	}
}

// commands counts the commands that the server executes during f, all and by their names.
func (b *bench) commands(f func()) (sum int, calls map[string]int) {
	b.Helper()
	before := b.server.Cost()
	f()
	after := b.server.Cost()
	for name, n := range before.Calls {
		after.Calls[name] -= n
	}
	return after.Commands - before.Commands, after.Calls
}

// A release removes the dead a hundred at a time, and asks about each inbox once.
func TestDeadWaitersInBatches(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.hold("H")
		b.crowd(2000, "silent", "panother")
		time.Sleep(6 * time.Second)
		b.crowd(2000, "dead", "pnobody")
		ear := b.listen("inbox")
		b.wait("A", ear.inbox)
		sum, calls := b.commands(func() { require.EqualValues(b, 1, b.release("H")) })
		require.Equal(b, "A", b.holder())
		ear.requireTold("A")
		require.Empty(b, b.queue())
		require.Len(b, b.waiters(), 1)
		require.LessOrEqual(b, sum, 4*42+15, "%v", calls)
		require.Equal(b, 2, calls["PUBSUB"], "%v", calls)
	})
}

// The first waiter is looked at alone, however many wait.
func TestHandoverAmongMany(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		var sums []int
		for _, n := range []int64{1, 2000} {
			b.hold("H")
			b.crowd(n, fmt.Sprint(n, " "), ear.inbox)
			sum, calls := b.commands(func() { require.EqualValues(b, 1, b.release("H")) })
			require.Equal(b, fmt.Sprint(n, " 1"), b.holder())
			require.Equal(b, n-1, b.waiting())
			require.Equal(b, 1, calls["HMGET"])
			sums = append(sums, sum)
			b.release(b.holder())
		}
		require.Equal(b, sums[0], sums[1], "commands of a handover")
	})
}

// What a handover costs the server while others wait: the release, and the enqueue of the one who has released. Beside
// these commands, a few are for each second or tenth of a second, however many handovers there are in it.
func TestCommandsOfAHandover(t *testing.T) {
	for _, pause := range []time.Duration{0, 10 * time.Millisecond} {
		atBench(t, "", "k", func(b *bench) {
			ear := b.listen("inbox")
			b.hold("0")
			tokens := []string{"1", "2", "3", "4", "5", "6", "7", "8"}
			for _, token := range tokens {
				b.wait(token, ear.inbox)
			}
			b.attend(time.Minute, ear.inbox, tokens...)
			time.Sleep(time.Second)
			b.release("0") // which sets the counter
			b.wait("9", ear.inbox)
			sum, calls := b.commands(func() {
				for i := range 100 {
					time.Sleep(pause)
					require.EqualValues(b, 1, b.release(fmt.Sprint(i+1)))
					b.wait(fmt.Sprint(i+10), ear.inbox)
				}
			})
			if pause == 0 {
				want := map[string]int{"GET": 3, "ZRANGE": 1, "TIME": 2, "HMGET": 2, "PUBSUB": 1, "ZREMRANGEBYRANK": 1, "HDEL": 1,
					"PTTL": 1, "HSET": 2, "SET": 2, "PUBLISH": 1, "ZADD": 1, "ZRANK": 1}
				for command := range calls {
					require.Equal(b, 100*want[command], calls[command], command)
				}
			}
			const scripts = 2
			require.LessOrEqual(b, sum, 100*(22-scripts), "%v", calls)
		})
	}
}

// One call removes about 5,000 dead waiters. A release that has more before it does nothing else: the
// lock stays with its holder, and the next call goes on.
func TestBoundedWork(t *testing.T) {
	atBench(t, "", "", func(b *bench) {
		ear := b.listen("inbox")
		for name, c := range map[string]struct {
			script   *rediscore.Script
			args     []string
			released bool // the lock was not free before
			answered bool // the waiter that is alive calls
		}{
			"release":               {rediscore.ReleaseScript, []string{"H"}, true, false},
			"release of a stranger": {rediscore.ReleaseScript, []string{"S"}, false, false},
			"attempt":               {rediscore.AcquireScript, []string{"S", "60000"}, false, false},
			"enqueue":               {rediscore.EnqueueScript, []string{"S", "60000", "", ""}, false, false},
			"check-in":              {rediscore.CheckInScript, []string{"A", ear.inbox}, false, true},
			"pass":                  {rediscore.PassScript, []string{"H", "", "0"}, true, false},
			"vote":                  {rediscore.VoteScript, []string{"S", "60000", "0"}, false, false},
			"enlist":                {rediscore.EnlistScript, []string{"S", "60000", "", "1", "", "0"}, false, false},
			"attend":                {rediscore.AttendScript, []string{"A", ear.inbox}, false, true},
		} {
			b := b.of(name)
			b.hold("H")
			b.crowd(5_500, "dead", "pnobody")
			b.wait("A", ear.inbox)
			b.crowd(1, "B", ear.inbox)
			if !c.released {
				b.expire()
			}
			sum, calls := b.commands(func() { require.Equal(b, rediscore.Unswept, b.bare(c.script, c.args...), name) })
			require.EqualValues(b, 501, b.waiting(), name)
			require.LessOrEqual(b, sum, 4*51+14, "%s: %v", name, calls)
			require.Equal(b, map[bool]string{true: "H"}[c.released], b.holder(), name)
			require.NotContains(b, b.queue(), "S", name)
			require.Empty(b, ear.heard(), name)
			require.NotEqual(b, rediscore.Unswept, b.bare(c.script, c.args...), name)
			require.Equal(b, "A", b.holder(), name)
			require.Contains(b, b.queue(), "B1", name)
			if c.answered {
				require.Empty(b, ear.heard(), name)
			} else {
				ear.requireTold("A")
			}
		}
	})
}

// bare makes one call of a script.
func (b *bench) bare(s *rediscore.Script, args ...string) any {
	b.Helper()
	reply, err := b.conn.Eval(b.Context(), b.locker.ScriptCall(s, b.key, args...))
	require.NoError(b, err)
	return reply
}

// A Locker repeats a call that has more dead waiters before it than one call removes. So the first
// waiter that is alive is served in one Release, and nobody is refused a lock that only the dead
// wait for.
func TestThousandsOfDeadWaiters(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.hold("H")
		b.crowd(12_000, "dead", "pnobody")
		b.wait("A", ear.inbox)
		held, err := b.locker.Release(b.Context(), "k", "H")
		require.NoError(b, err)
		require.True(b, held)
		ear.requireTold("A")
		b.crowd(6_000, "dead", "pnobody")
		held, err = b.locker.Release(b.Context(), "k", "A")
		require.NoError(b, err)
		require.True(b, held)
		require.Equal(b, []string{b.keys.counter}, b.server.Keys(), "what is left")
		for name, acquire := range map[string]func(token string) (dlock.Attempt, error){
			"TryAcquire": func(token string) (dlock.Attempt, error) {
				return b.locker.TryAcquire(b.Context(), "k", token, time.Minute)
			},
			"Acquire": func(token string) (dlock.Attempt, error) {
				return b.locker.Acquire(b.Context(), "k", token, time.Minute)
			},
		} {
			b.crowd(6_000, "dead", "pnobody")
			a, err := acquire(name)
			require.NoError(b, err, name)
			require.True(b, a.Acquired, name)
			require.Equal(b, name, b.holder())
			require.EqualValues(b, 1, b.release(name))
		}
		held, err = b.locker.Release(b.Context(), "k", "A")
		require.NoError(b, err)
		require.False(b, held)
	})
}

// A call that travels with others, and has only removed the dead, is repeated.
func TestThousandsOfDeadWaitersBeforeABatch(t *testing.T) {
	inScene(t, func(s *scene, _ *actor) {
		a := s.enterWithPool(1, 10*time.Millisecond, 0)
		for _, key := range []string{"second", "third"} {
			b := s.of(key)
			b.hold("H")
			b.crowd(5_500, "dead", "pnobody")
			b.expire()
		}
		var all []*waiting
		for _, key := range []string{"first", "second", "third"} {
			all = append(all, a.acquireFor(key, key, ttl))
		}
		for _, w := range all {
			<-w.done
			require.NoError(s, w.err)
			require.True(s, w.Acquired, w.token)
		}
		require.Equal(s, 2, a.sizes()[1])
	})
}

// While the lock is held, check-ins remove those who have been silent for a minute, wherever the living
// are among them.
func TestDeadWaitersOfAHeldLock(t *testing.T) {
	for name, crowds := range map[string][3]int64{
		"before":    {2500, 0, 0},
		"after":     {0, 0, 2500},
		"between":   {0, 2500, 0},
		"all round": {1500, 1500, 1500},
		"nobody":    {0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			atBench(t, "", "k", func(b *bench) {
				ear := b.listen("inbox")
				b.call(rediscore.AcquireScript, "H", "120000")
				for i, token := range []string{"A", "B", ""} {
					b.crowd(crowds[i], fmt.Sprint("dead", i, " "), "pnobody")
					if token != "" {
						b.wait(token, ear.inbox)
					}
				}
				b.attend(time.Minute, ear.inbox, "A", "B")
				require.Equal(b, crowds[0]+crowds[1]+crowds[2]+2, b.waiting())
				time.Sleep(time.Second)
				for range 4 {
					for _, token := range []string{"A", "B"} {
						var reply []any
						sum, calls := b.commands(func() { reply = b.checkIn(token, ear.inbox).([]any) })
						require.EqualValues(b, rediscore.AnswerWaits, reply[0])
						require.Equal(b, b.number("ZRANK", b.keys.queue, token), reply[2], "rank")
						require.LessOrEqual(b, sum, 15+3+4, "commands of a check-in: %v", calls)
					}
				}
				require.Equal(b, []string{"A", "B"}, b.queue())
				require.Len(b, b.waiters(), 2)
				require.Equal(b, "H", b.holder())
				sum, calls := b.commands(func() { b.checkIn("A", ear.inbox) })
				require.LessOrEqual(b, sum, 15, "commands of a check-in that finds no dead: %v", calls)
			})
		})
	}
}

// Waiters come and die at once, and none lives to check in. However often they come, the queue has no
// more of them than come in a minute.
func TestWaitersThatDieAtOnce(t *testing.T) {
	for every, most := range map[time.Duration]int64{
		500 * time.Millisecond: 123, 3 * time.Second: 22, 9 * time.Second: 8, 11 * time.Second: 1, 50 * time.Second: 1,
	} {
		atBench(t, "", "k", func(b *bench) {
			b.do("SET", b.keys.lock, "H")
			for n := range 200 {
				b.enqueue(fmt.Sprint("t", n), "")
				require.LessOrEqual(b, b.waiting(), most, "waiters after %d that come every %v", n+1, every)
				require.Equal(b, fmt.Sprint("t", n), b.queue()[b.waiting()-1])
				require.EqualValues(b, b.waiting(), len(b.waiters()))
				time.Sleep(every)
			}
		})
	}
}

// An enqueue looks at the first two waiters, however many are dead.
func TestEnqueueRemovesTwo(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.do("SET", b.keys.lock, "H")
		b.crowd(2000, "dead", "pnobody")
		b.wait("A", "")
		b.attend(time.Minute, "", "A")
		time.Sleep(time.Second)
		for n := range int64(5) {
			sum, calls := b.commands(func() { b.enqueue(fmt.Sprint("t", n), "") })
			require.Equal(b, 2001-n-1, b.waiting())
			require.LessOrEqual(b, sum, 22, "commands of an enqueue: %v", calls)
		}
	})
}

// A waiter that is alive is not removed: neither if it was silent for less than a minute, nor if
// everybody was because the server did not answer, nor if the clock was set.
func TestTheLivingAreNotSwept(t *testing.T) {
	for name, c := range map[string]struct {
		pass  func(b *bench, attend func(time.Duration)) // since all but one are silent
		swept bool
	}{
		"silent for a minute": {func(_ *bench, attend func(time.Duration)) { attend(time.Minute) }, false},
		"silent for more":     {func(_ *bench, attend func(time.Duration)) { attend(time.Minute + time.Millisecond) }, true},
		"the server answers late": {func(_ *bench, attend func(time.Duration)) {
			attend(30 * time.Second)
			time.Sleep(7*time.Second - time.Millisecond) // the first call comes three seconds later
			attend(30 * time.Second)
		}, true},
		"the server does not answer": {func(_ *bench, attend func(time.Duration)) {
			attend(30 * time.Second)
			time.Sleep(7 * time.Second)
			attend(30 * time.Second)
		}, false},
		"it answers for a minute": {func(_ *bench, attend func(time.Duration)) {
			attend(30 * time.Second)
			time.Sleep(7 * time.Second)
			attend(63 * time.Second)
		}, false},
		"it answers for more": {func(_ *bench, attend func(time.Duration)) {
			attend(30 * time.Second)
			time.Sleep(7 * time.Second)
			attend(63*time.Second + time.Millisecond)
		}, true},
		"the clock was set back": {func(b *bench, attend func(time.Duration)) {
			attend(30 * time.Second)
			b.server.SetClock(-time.Hour)
			attend(90 * time.Second)
		}, false},
		"the clock was set forward": {func(b *bench, attend func(time.Duration)) {
			attend(30 * time.Second)
			b.server.SetClock(20 * time.Second)
			attend(20 * time.Second)
		}, false},
		"the clock was set back before": {func(b *bench, attend func(time.Duration)) {
			b.server.SetClock(-time.Hour)
			for _, token := range b.queue() {
				b.checkIn(token, "")
			}
			attend(time.Minute + time.Millisecond)
		}, true},
		"nothing known": {func(b *bench, attend func(time.Duration)) {
			for token := range b.waiters() {
				if token != ":A" {
					b.do("HDEL", b.keys.waiters, token)
				}
			}
			attend(3 * time.Second)
		}, true},
		"no pulse": {func(b *bench, attend func(time.Duration)) {
			attend(57 * time.Second)
			b.do("HDEL", b.keys.waiters, "pulse")
			attend(6 * time.Second)
		}, false},
	} {
		for how, call := range map[string]func(b *bench){
			"check-in": func(b *bench) { b.checkIn("A", "") },
			"enqueue":  func(b *bench) { b.do("HDEL", b.keys.waiters, "arrival"); b.enqueue("A", "") }, // it looks each time
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				atBench(t, "", "k", func(b *bench) {
					b.do("SET", b.keys.lock, "H")
					all := []string{"before 1", "before 2", "before 3", "A", "after 1", "after 2", "after 3"}
					for _, token := range all {
						b.wait(token, "")
					}
					b.attend(2*time.Minute, "", all...)
					c.pass(b, func(d time.Duration) {
						for end := time.Now().Add(d); time.Now().Before(end); {
							time.Sleep(min(3*time.Second, time.Until(end)))
							call(b)
						}
					})
					for range 6 {
						call(b)
					}
					if c.swept {
						all = []string{"A"}
					}
					require.Equal(b, all, b.queue())
				})
			})
		}
	}
}

// A waiter that was removed although it is alive returns to its old place.
func TestSweptByMistake(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.do("SET", b.keys.lock, "H")
		ticket := b.wait("paused", b.listen("another").inbox)
		b.wait("A", ear.inbox)
		b.attend(61*time.Second, ear.inbox, "A")
		require.Equal(b, []string{"A"}, b.queue())
		require.Equal(b, []any{int64(rediscore.AnswerUnknown)}, b.checkIn("paused", ear.inbox))
		b.call(rediscore.EnqueueScript, "paused", "60000", ear.inbox, fmt.Sprint(ticket))
		require.Equal(b, []string{"paused", "A"}, b.queue())
	})
}

// Check-ins find the dead wherever they are in the queue: each goes on where the last has stopped.
func TestCursor(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.do("SET", b.keys.lock, "H")
		b.wait("A", "pinbox")
		b.crowd(149, "living", "pinbox")
		b.crowd(900, "dead", "pnobody")
		b.attend(time.Minute, "pinbox", "A")
		time.Sleep(time.Second)
		for _, waiting := range []int64{1050, 150, 150, 150} {
			b.checkIn("A", "pinbox")
			require.Equal(b, waiting, b.waiting())
		}
		b.crowd(1, "dead", "pnobody")
		b.attend(time.Minute, "pinbox", "A")
		time.Sleep(time.Second)
		b.checkIn("A", "pinbox")
		b.checkIn("A", "pinbox")
		require.EqualValues(b, 150, b.waiting())
	})
}

// One of the waiters with an inbox checks in for all: they are served, and are not swept. Those with
// another inbox are dead.
func TestOneChecksInForAll(t *testing.T) {
	for name, c := range map[string]struct {
		silent time.Duration
		call   func(b *bench, inbox string)
		alive  bool
	}{
		"a check-in":              {5*time.Second - time.Microsecond, func(b *bench, inbox string) { b.checkIn("A", inbox) }, true},
		"an enqueue":              {5*time.Second - time.Microsecond, func(b *bench, inbox string) { b.enqueue("A", inbox) }, true},
		"too long ago":            {5 * time.Second, func(b *bench, inbox string) { b.checkIn("A", inbox) }, false},
		"of another":              {time.Second, func(b *bench, _ string) { b.checkIn("A", "panother") }, false},
		"by one without an inbox": {time.Second, func(b *bench, _ string) { b.checkIn("A", "") }, false},
		"the clock was set back":  {time.Second, func(b *bench, inbox string) { b.server.SetClock(-time.Hour); b.checkIn("A", inbox) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			atBench(t, "", "k", func(b *bench) {
				ear, last := b.listen("inbox"), b.listen("last")
				b.hold("H")
				for _, token := range []string{"A", "B", "C"} {
					b.wait(token, ear.inbox)
				}
				b.attend(6*time.Second, ear.inbox)
				c.call(b, ear.inbox)
				time.Sleep(c.silent)
				b.wait("Z", last.inbox)
				b.release("A")
				require.EqualValues(b, 1, b.release("H"))
				if c.alive {
					require.Equal(b, "B", b.holder())
					require.Equal(b, []string{"C", "Z"}, b.queue())
					ear.requireTold("B")
				} else {
					require.Equal(b, "Z", b.holder())
					require.Empty(b, b.queue())
				}
			})
		})
	}
	atBench(t, "", "k", func(b *bench) {
		b.do("SET", b.keys.lock, "H")
		for _, token := range []string{"A", "B", "C"} {
			b.wait(token, "pinbox")
		}
		b.wait("Z", "panother")
		b.attend(3*time.Minute, "pinbox", "B")
		require.Equal(b, []string{"A", "B", "C"}, b.queue())
	})
}

// Waiters that vote check in each for itself.
func TestNobodyChecksInForVotes(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.hold("H")
		for i, token := range []string{"A", "B"} {
			b.call(rediscore.EnlistScript, token, "60000", ear.inbox, fmt.Sprint(i+1), "", "0")
		}
		for range 3 {
			time.Sleep(2 * time.Second)
			b.call(rediscore.AttendScript, "B", ear.inbox)
		}
		require.EqualValues(b, 1, b.release("H"))
		require.Equal(b, "B", b.holder())
	})
}

// A queue that is never empty does not keep what processes that have gone leave behind, but for a few.
func TestInboxesThatAreGone(t *testing.T) {
	for _, lacking := range []string{"", "HLEN", "HGETALL"} {
		atBench(t, "", "k", func(b *bench) {
			const processes = 9000
			b.do("SET", b.keys.lock, "H")
			b.wait("A", "pinbox")
			for i := range processes {
				b.do("HSET", b.keys.waiters, fmt.Sprint("@p", i), b.now())
			}
			b.attend(time.Minute, "pinbox", "A")
			time.Sleep(time.Second)
			b.wait("B", "p!") // the first in the order of the simulated server
			if lacking != "" {
				b.server.SetFaults(sim.Faults{Commands: map[string]string{lacking: "NOPERM this user has no permissions"}})
			}
			b.checkIn("A", "pinbox")
			require.NotEmpty(b, b.field("@p!"))
			for range 9 {
				b.checkIn("A", "pinbox")
			}
			b.server.SetFaults(sim.Faults{})
			if fields := b.number("HLEN", b.keys.waiters); lacking != "" {
				require.EqualValues(b, processes+7, fields)
			} else {
				require.Less(b, fields, int64(1010))
			}
		})
	}
	atBench(t, "", "k", func(b *bench) {
		b.do("SET", b.keys.lock, "H")
		b.wait("t0", "p0")
		b.attend(time.Minute, "p0", "t0")
		time.Sleep(time.Second)
		for i := range 1100 {
			b.wait(fmt.Sprint("t", i+1), fmt.Sprint("p", i+1))
		}
		_, calls := b.commands(func() {
			for range 12 {
				b.checkIn("t0", "p0")
			}
		})
		require.Positive(b, calls["HLEN"])
		require.Zero(b, calls["HGETALL"], "the living have one field each, too")
	})
}
