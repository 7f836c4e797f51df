package rediscore_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

// Waiters are served in the order of arrival, with rising fences. Each gets a message for its own
// grant only.
func TestOrderOfService(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		before := b.hold("H")
		tokens := []string{"z", "y", "x", "a", "b", "c"}
		ears := make(map[string]*ear)
		for _, token := range tokens {
			ears[token] = b.listen("inbox of " + token)
			b.wait(token, ears[token].inbox)
		}
		holder := "H"
		for _, token := range tokens {
			require.EqualValues(b, 1, b.release(holder))
			require.Equal(b, token, b.holder())
			require.Len(b, ears[token].heard(), 1)
			require.GreaterOrEqual(b, b.fence(), before+8)
			holder, before = token, b.fence()
		}
		require.EqualValues(b, 1, b.release(holder))
		require.Empty(b, b.holder())
		require.Empty(b, b.queue())
		for token, ear := range ears {
			require.Empty(b, ear.heard(), "messages to %s, later", token)
		}
	})
}

// A release whose handover fails still frees the lock. The waiter is granted it when it checks in, or, if it has
// lost its place, when it returns.
func TestHandoverFails(t *testing.T) {
	for command, lost := range map[string]bool{"ZRANGE": false, "TIME": false, "HMGET": false, "ZREMRANGEBYRANK": false, "HDEL": true, "HSET": true, "SET": true} {
		atBench(t, "", "k", func(b *bench) {
			ear := b.listen("inbox")
			b.hold("H")
			b.wait("A", ear.inbox)
			before := b.state()
			b.forbid(command)
			require.EqualValues(b, 1, b.release("H"), command)
			b.forbid()
			require.Empty(b, b.holder(), command)
			require.Empty(b, ear.heard(), command)
			if lost {
				require.Empty(b, b.queue(), command)
				require.Equal(b, rediscore.AnswerUnknown, b.answer(b.checkIn("A", ear.inbox)), command)
				require.Equal(b, rediscore.AnswerGranted, b.answer(b.enqueue("A", ear.inbox)), command)
				return
			}
			before["lock"] = ""
			require.Equal(b, before, b.state(), command)
			require.Equal(b, rediscore.AnswerGranted, b.answer(b.checkIn("A", ear.inbox)), command)
		})
	}
}

// If the handover of a free lock fails because the user lacks a right, nobody is granted the lock.
func TestServiceFails(t *testing.T) {
	for _, command := range []string{"HSET", "ZREMRANGEBYRANK", "HDEL"} {
		for name, script := range map[string]*rediscore.Script{
			"try": rediscore.AcquireScript, "enqueue": rediscore.EnqueueScript, "check-in": rediscore.CheckInScript,
		} {
			atBench(t, "", "k", func(b *bench) {
				ear := b.listen("inbox")
				b.hold("H")
				b.wait("A", ear.inbox)
				b.expire()
				b.forbid(command)
				_, err := b.eval(script, "B", "60000", ear.inbox, "")
				require.True(b, rediscore.Forbidden(err), "%s without %s: %v", name, command, err)
				require.Empty(b, b.holder(), "%s without %s", name, command)
				require.Empty(b, ear.heard(), "%s without %s", name, command)
			})
		}
	}
}

// An enqueue that fails because the user lacks a right leaves nothing in the queue, and no companion
// when the lock is released.
func TestEnqueueFails(t *testing.T) {
	for _, command := range []string{"HSET", "PEXPIRE", "ZADD", "PTTL", "PUBLISH"} {
		atBench(t, "", "k", func(b *bench) {
			b.hold("H")
			b.forbid(command)
			_, err := b.eval(rediscore.EnqueueScript, "A", "60000", "pinbox", "")
			require.True(b, rediscore.Forbidden(err), "without %s: %v", command, err)
			b.forbid()
			require.Empty(b, b.queue(), command)
			b.release("H")
			require.Equal(b, []string{b.keys.counter}, b.server.Keys(), "what is left without %s", command)
		})
	}
}

// A waiter without the right to publish finds that out when it registers its inbox.
func TestMayNotPublish(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.hold("H")
		b.wait("A", "")
		b.forbid("PUBLISH")
		_, err := b.eval(rediscore.CheckInScript, "A", "pinbox")
		require.True(b, rediscore.Forbidden(err), "%v", err)
		require.NotContains(b, b.waiters()[":A"], "inbox")
		require.Equal(b, rediscore.AnswerWaits, b.answer(b.checkIn("A", "")), "without an inbox")
		b.forbid()
		b.checkIn("A", "pinbox")
		b.forbid("PUBLISH")
		require.Equal(b, rediscore.AnswerDeaf, b.answer(b.checkIn("A", "pinbox")), "with an inbox that is known")
	})
}

// A Client whose user lacks the rights for the queue gets an error that says so, and leaves nothing.
func TestMayNotWait(t *testing.T) {
	for _, command := range []string{"HSET", "ZADD", "ZRANK", "PUBLISH"} {
		atBench(t, "", "k", func(b *bench) {
			b.hold("H")
			b.forbid(command)
			c := dlock.New(b.locker)
			defer c.Close()
			_, err := c.Acquire(b.Context(), "k")
			require.ErrorIs(b, err, dlock.ErrInvalid)
			require.True(b, rediscore.Forbidden(err), "without %s: %v", command, err)
			time.Sleep(time.Second)
			require.Empty(b, b.queue())
		})
	}
}

// A full server hands the lock over, although it grants nothing else.
func TestHandoverWithoutMemory(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.hold("H")
		b.wait("A", ear.inbox)
		b.wait("B", ear.inbox)
		b.fails(sim.Faults{Full: true})
		_, err := b.of("other").eval(rediscore.AcquireScript, "C", "60000")
		require.ErrorContains(b, err, "OOM")
		require.EqualValues(b, 1, b.release("H"))
		require.Equal(b, "A", b.holder())
		require.Len(b, ear.heard(), 1)
		held, err := b.locker.Pass(b.Context(), b.key, "A", "B", 0)
		require.NoError(b, err)
		require.True(b, held)
		require.Equal(b, "B", b.holder())
		require.Len(b, ear.heard(), 1)
	})
}

// A replica may be behind. So it does not say that a token holds nothing.
func TestReplicaDoesNotKnow(t *testing.T) {
	for state, prepare := range map[string]func(b *bench){
		"free":                  func(*bench) {},
		"held":                  func(b *bench) { b.hold("H") },
		"held, with a waiter":   func(b *bench) { b.hold("H"); b.wait("A", "") },
		"kept, with its waiter": func(b *bench) { b.hold("H"); b.wait("A", ""); b.expire() },
	} {
		for name, script := range map[string]*rediscore.Script{
			"renew": rediscore.RenewScript, "release": rediscore.ReleaseScript, "free": rediscore.FreeScript,
		} {
			atBench(t, "", "k", func(b *bench) {
				prepare(b)
				before := b.state()
				require.EqualValues(b, 0, b.call(script, "stranger", "60000"), "%s, %s", name, state)
				require.Equal(b, before, b.state(), "%s, %s", name, state)
				b.fails(sim.Faults{Writes: "READONLY You can't write against a read only replica."})
				_, err := b.eval(script, "stranger", "60000")
				require.ErrorContains(b, err, "READONLY", "%s, %s", name, state)
			})
		}
	}
}

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
	before := b.cost.Commands
	b.cost.Calls = make(map[string]int)
	f()
	return b.cost.Commands - before, b.cost.Calls
}

// A release removes the dead a hundred at a time, and asks about each inbox once.
func TestDeadWaitersInBatches(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.hold("H")
		b.crowd(2000, "silent", "panother")
		time.Sleep(6 * time.Second)
		b.crowd(2000, "dead", "pnobody")
		b.wait("A", b.listen("inbox").inbox)
		sum, calls := b.commands(func() { b.release("H") })
		require.Equal(b, "A", b.holder())
		require.LessOrEqual(b, sum, 4*42+15, "%v", calls)
		require.Equal(b, 2, calls["PUBSUB"], "%v", calls)
	})
}

// One call removes about 5,000 dead waiters, and does nothing else then.
func TestBoundedWork(t *testing.T) {
	for name, args := range map[string][]string{
		"release": {"S"}, "acquire": {"S", "60000"}, "enqueue": {"S", "60000"}, "checkin": {"A", "pinbox"}, "pass": {"S", "", "0"}, "releases": {"S", "T"},
		"vote": {"S", "60000", "0"}, "enlist": {"S", "60000", "", "1", "", "0"}, "attend": {"A", "pinbox"},
	} {
		for _, free := range []bool{true, false} {
			if !free && !slices.Contains([]string{"release", "releases", "pass"}, name) {
				continue
			}
			atBench(t, "", "k", func(b *bench) {
				b.listen("inbox")
				b.hold("S")
				b.crowd(5_500, "dead", "pnobody")
				b.wait("A", "pinbox")
				if free {
					b.expire()
				}
				sum, calls := b.commands(func() {
					_, err := b.conn.Eval(b.Context(), b.locker.ScriptCall(rediscore.Scripts[name], "k", args...))
					require.NoError(b, err)
				})
				require.LessOrEqual(b, sum, 4*51+15, "%s: %v", name, calls)
				if free {
					require.EqualValues(b, 500, b.waiting(), name)
				}
			})
		}
	}
}

// What check-ins and enqueues cost while dead waiters are removed, wherever the living are among them. An enqueue removes two
// of them, and check-ins all.
func TestDeadWaitersOfAHeldLock(t *testing.T) {
	for _, crowds := range [][3]int64{{2500, 0, 0}, {0, 2500, 0}, {0, 0, 2500}, {1500, 1500, 1500}, {0, 0, 0}} {
		atBench(t, "", "k", func(b *bench) {
			b.do("SET", b.keys.lock, "H")
			b.listen("inbox")
			for i, token := range []string{"A", "B", ""} {
				b.crowd(crowds[i], fmt.Sprint("dead", i, " "), "pnobody")
				if token != "" {
					b.wait(token, "pinbox")
				}
			}
			b.attend(time.Minute, "pinbox", "A", "B")
			time.Sleep(time.Second)
			cost := func(most int, call func()) {
				b.Helper()
				sum, calls := b.commands(call)
				require.LessOrEqual(b, sum, most, "%v: %v", crowds, calls)
			}
			cost(22, func() { b.enqueue("C", "") })
			for range 8 {
				cost(15+3+4, func() { b.checkIn("A", "pinbox") })
			}
			require.Equal(b, []string{"A", "B", "C"}, b.queue())
			cost(15, func() { b.checkIn("A", "pinbox") })
		})
	}
}

// A queue that is never empty does not keep what processes that have gone leave behind, unless the user lacks a right.
func TestInboxesThatAreGone(t *testing.T) {
	for _, lacking := range []string{"", "HLEN", "HGETALL"} {
		atBench(t, "", "k", func(b *bench) {
			b.do("SET", b.keys.lock, "H")
			b.wait("A", "pinbox")
			for i := range 1500 {
				b.do("HSET", b.keys.waiters, fmt.Sprint("@p", i), b.now())
			}
			b.attend(time.Minute, "pinbox", "A")
			time.Sleep(time.Second)
			if lacking != "" {
				b.forbid(lacking)
			}
			b.checkIn("A", "pinbox")
			b.forbid()
			require.Equal(b, lacking == "", b.number("HLEN", b.keys.waiters) < 1010, lacking)
		})
	}
}

// What is known of living inboxes is not read, however many there are.
func TestCostOfInboxes(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.do("SET", b.keys.lock, "H")
		b.wait("t0", "p0")
		b.attend(time.Minute, "p0", "t0")
		time.Sleep(time.Second)
		b.crowd(1100, "t", "p1")
		for i := range 1100 {
			b.do("HSET", b.keys.waiters, fmt.Sprint("@p", i+1), b.now())
		}
		_, calls := b.commands(func() {
			for range 12 {
				b.checkIn("t0", "p0")
			}
		})
		require.Positive(b, calls["HLEN"])
		require.Zero(b, calls["HGETALL"])
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
		require.Len(b, ear.heard(), 1)
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
