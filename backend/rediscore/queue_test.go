package rediscore_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/sim"
)

const odd = "a\x00 b\r\n{}:%\xff 1 2"

// The queue, the records of waiters and the messages are part of the wire format. Their form must
// not change.
func TestStoredQueue(t *testing.T) {
	atBench(t, odd, odd, func(b *bench) {
		ear := b.listen(odd + "inbox")
		fence, begun := b.hold("H"), b.now()
		require.Equal(b, begun, fence)
		require.Equal(b, begun, b.wait(odd, ear.inbox))
		time.Sleep(time.Microsecond)
		require.Equal(b, begun+1, b.wait("handover", ""))
		tickets := b.texts("ZRANGE", b.keys.queue, 0, -1, "WITHSCORES")
		require.Equal(b, []string{odd, fmt.Sprint(begun), "handover", fmt.Sprint(begun + 1)}, tickets)
		waiter := fmt.Sprint(begun+1, " 60000 0 ")
		require.Equal(b, map[string]string{":" + odd: fmt.Sprint(begun, " 60000 0 ", ear.inbox), ":handover": waiter}, b.waiters())
		require.Equal(b, fmt.Sprint(begun+1, " ", begun), b.field("pulse"))
		require.Equal(b, fmt.Sprint(begun+1, " ", begun), b.field("arrival"))
		require.Equal(b, fmt.Sprint(begun), b.field("@"+ear.inbox))
		require.Empty(b, b.field("@"))

		time.Sleep(time.Second)
		require.EqualValues(b, 1, b.release("H"))
		require.Equal(b, odd, b.holder())
		require.EqualValues(b, 60_000, b.number("PTTL", b.keys.lock))
		fence = ear.requireTold(odd)
		require.Equal(b, b.now(), fence)
		require.Equal(b, fmt.Sprint(fence), b.text("GET", b.keys.counter))
		require.Equal(b, []string{"handover"}, b.queue())
		handover := fmt.Sprintf("%d %d %s", fence, b.now(), odd)
		require.Equal(b, map[string]string{"handover": handover, ":handover": waiter}, b.waiters())
		require.Equal(b, []any{int64(rediscore.AnswerFound), fence, b.now(), b.now()}, b.checkIn(odd, ear.inbox))
		require.EqualValues(b, 1, b.release(odd))
		require.Empty(b, b.holder())
		require.Equal(b, rediscore.AnswerGranted, b.answer(b.checkIn("handover", "")))
		require.Equal(b, "handover", b.holder())
	})
}

// A waiter that gets a grant as an answer gets no message for it.
func TestAnswers(t *testing.T) {
	atBench(t, "p:", "k", func(b *bench) {
		ear := b.listen("inbox")
		unknown := []any{int64(rediscore.AnswerUnknown)}
		require.Equal(b, unknown, b.checkIn("A", ear.inbox), "free, and not in the queue")
		fence := b.hold("H")
		require.Equal(b, unknown, b.checkIn("A", ear.inbox), "held, and not in the queue")
		require.Equal(b, unknown, b.checkIn("H", ear.inbox), "held by itself, but not handed over")
		first, second := b.wait("A", ear.inbox), b.wait("B", ear.inbox)
		time.Sleep(5 * time.Second)
		waits := func(ticket, rank int64, holder string, rest int64) []any {
			return []any{int64(rediscore.AnswerWaits), ticket, rank, b.now(), holder, rest, ""}
		}
		require.Equal(b, waits(second, 1, "H", 55_000), b.checkIn("B", ear.inbox))
		require.Equal(b, waits(second, 1, "H", 55_000), b.enqueue("B", ear.inbox))
		require.Equal(b, waits(first, 0, "H", 55_000), b.checkIn("A", ""))
		require.Equal(b, []any{"H", int64(55_000), nil}, b.try("C"))
		b.number("PERSIST", b.keys.lock)
		require.Equal(b, waits(first, 0, "H", -1), b.checkIn("A", ""), "of a lock that never ends")
		require.Equal(b, waits(second, 1, "H", -1), b.enqueue("B", ear.inbox), "of a lock that never ends")
		require.Equal(b, []any{"H", int64(-1), nil}, b.try("C"), "of a lock that never ends")
		b.expire()
		require.Equal(b, waits(second, 1, "", -2), b.checkIn("B", ear.inbox), "of a lock that is kept for A")
		require.Equal(b, waits(fence+5e6, 2, "", -2), b.enqueue("C", ""), "of a lock that is kept for A")
		require.Equal(b, []any{"", int64(-2), nil}, b.try("C"), "of a lock that is kept for A")
		require.EqualValues(b, 0, b.release("C"))
		time.Sleep(time.Second)
		granted := b.now()
		require.Equal(b, []any{int64(rediscore.AnswerGranted), granted}, b.checkIn("A", ear.inbox))
		time.Sleep(time.Second)
		require.Equal(b, []any{int64(rediscore.AnswerFound), granted, granted, b.now()}, b.checkIn("A", ear.inbox))
		require.Empty(b, ear.heard(), "messages of grants that were answered")
		require.Equal(b, []any{"A", int64(59_000), fmt.Sprintf("%d %d A", granted, granted)}, b.try("C"))
		require.Equal(b, []any{int64(rediscore.AnswerGranted), b.now()}, b.enqueue("A", ear.inbox), "a second grant")
		require.EqualValues(b, 60_000, b.number("PTTL", b.keys.lock))
		require.Equal(b, []string{"B"}, b.queue())
		b.do("DEL", b.keys.lock, b.keys.queue)
		b.hold("C")
		require.Equal(b, unknown, b.checkIn("C", ear.inbox), "the last handover was another's")
	})
}

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
			fence := ears[token].requireTold(token)
			require.GreaterOrEqual(b, fence, before+8)
			holder, before = token, fence
		}
		require.EqualValues(b, 1, b.release(holder))
		require.Empty(b, b.holder())
		require.Empty(b, b.queue())
		for token, ear := range ears {
			require.Empty(b, ear.heard(), "messages to %s, later", token)
		}
	})
}

// A ticket is behind all in the queue, and all that have left it, whatever the clock shows. So the order is
// kept when the clock is set back, and when the queue, what is known of it, or the master is lost.
func TestTicketsRise(t *testing.T) {
	for name, fault := range map[string]func(b *bench) *bench{
		"nothing":        func(b *bench) *bench { return b },
		"clock set back": func(b *bench) *bench { b.server.SetClock(-time.Hour); return b },
		"clock set back, waiters lost": func(b *bench) *bench {
			b.server.SetClock(-time.Hour)
			b.do("DEL", b.keys.waiters)
			return b
		},
		"promoted": func(b *bench) *bench {
			replica := b.server.NewReplica()
			synctest.Wait()
			replica.SetClock(-time.Hour)
			replica.Promote()
			return b.at(replica, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			atBench(t, "", "k", func(b *bench) {
				b.hold("H")
				first := b.wait("A", "")
				require.Equal(b, b.now(), first)
				require.Equal(b, first+1, b.wait("left", ""))
				require.Equal(b, first+2, b.wait("B", ""))
				b = fault(b)
				require.Equal(b, first+3, b.wait("C", ""))
				require.Equal(b, first+4, b.wait("D", ""))
				require.Equal(b, first+4, b.wait("D", ""), "ticket of one that is in the queue")
				b.release("left")
				b.release("D")
				require.Equal(b, first+5, b.wait("E", ""), "a ticket is not used again")
				b.release("A")
				b.call(rediscore.EnqueueScript, "A", "60000", "", fmt.Sprint(first))
				b.call(rediscore.EnqueueScript, "ahead", "60000", "", fmt.Sprint(first+3600*second))
				require.Equal(b, first+3600*second+1, b.wait("F", ""), "behind one that comes with a later ticket")
				require.Equal(b, []string{"A", "B", "C", "E", "ahead", "F"}, b.queue())
				b.do("DEL", b.keys.queue)
				require.Equal(b, first+3600*second+2, b.wait("G", ""), "of a queue that is new")
			})
		})
	}
	atBench(t, "", "k", func(b *bench) {
		b.hold("H")
		b.wait("A", "")
		time.Sleep(time.Second)
		require.Equal(b, b.now(), b.wait("B", ""))
	})
}

// A waiter that has lost its place gets it back with its old ticket. A waiter that has a place
// keeps it, whatever ticket it sends.
func TestOldTicket(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.hold("H")
		ear := b.listen("inbox")
		ticket := b.wait("A", ear.inbox)
		second := b.wait("B", ear.inbox)
		b.release("A")
		require.Equal(b, []string{"B"}, b.queue())
		old := b.call(rediscore.EnqueueScript, "A", "60000", ear.inbox, fmt.Sprint(ticket))
		require.Equal(b, []any{int64(rediscore.AnswerWaits), ticket, int64(0)}, old.([]any)[:3], "state, ticket and rank")
		another := b.call(rediscore.EnqueueScript, "B", "60000", ear.inbox, "1")
		require.Equal(b, []any{int64(rediscore.AnswerWaits), second, int64(1)}, another.([]any)[:3], "of one that shows another's ticket")
		require.Equal(b, []string{"A", "B"}, b.queue())
	})
}

// Dead waiters are removed from the queue, and the first one that is alive is served.
func TestDeadWaiters(t *testing.T) {
	for name, kill := range map[string]func(b *bench, ear *ear){
		"nobody listens":           func(b *bench, ear *ear) { ear.unsubscribe() },
		"silent":                   func(b *bench, ear *ear) { time.Sleep(5 * time.Second) },
		"nothing known":            func(b *bench, ear *ear) { b.number("HDEL", b.keys.waiters, ":dead") },
		"not to be read":           func(b *bench, ear *ear) { b.number("HSET", b.keys.waiters, ":dead", "?") },
		"no inbox, short TTL":      func(b *bench, ear *ear) { b.enqueueFor("200", "dead", ""); time.Sleep(200 * time.Millisecond) },
		"clock set back":           func(b *bench, ear *ear) { b.server.SetClock(-time.Hour) },
		"no inbox, clock set back": func(b *bench, ear *ear) { b.checkIn("dead", ""); b.server.SetClock(-time.Hour) },
		"no inbox, silent":         func(b *bench, ear *ear) { b.checkIn("dead", ""); time.Sleep(2 * time.Second) },
		"a shard channel":          func(b *bench, ear *ear) { ear.unsubscribe(); b.server.Subscribe("inbox", true) },
		"listens to the other":     func(b *bench, ear *ear) { ear.unsubscribe(); b.listen(ear.inbox) },
	} {
		for how, free := range map[string]func(b *bench){
			"release":             func(b *bench) { require.EqualValues(b, 1, b.release("H")) },
			"release by a waiter": func(b *bench) { b.expire(); require.EqualValues(b, 0, b.release("-")) },
			"attempt":             func(b *bench) { b.expire(); require.IsType(b, []any{}, b.try("-")) },
			"enqueue":             func(b *bench) { b.expire(); b.wait("-", "") },
			"check-in":            func(b *bench) { b.expire(); b.checkIn("-", "") },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				atBench(t, "", "k", func(b *bench) {
					ear, alive := b.listen("inbox"), b.listen("alive")
					b.hold("H")
					b.wait("dead", ear.inbox)
					b.wait("A", alive.inbox)
					b.wait("B", alive.inbox)
					kill(b, ear)
					b.checkIn("A", alive.inbox)
					b.checkIn("B", alive.inbox)
					free(b)
					require.Equal(b, "A", b.holder())
					require.Equal(b, "B", b.queue()[0])
					require.NotContains(b, b.waiters(), ":dead")
					alive.requireTold("A")
				})
			})
		}
	}
}

// enqueueFor is enqueue with a TTL in milliseconds.
func (b *bench) enqueueFor(ttl, token, inbox string) any {
	b.Helper()
	return b.call(rediscore.EnqueueScript, token, ttl, inbox, "")
}

// A waiter that has checked in lately is alive. The lock is reserved for a waiter without an inbox
// until it checks in.
func TestAliveWaiters(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.hold("H")
		b.wait("A", ear.inbox)
		time.Sleep(5*time.Second - time.Microsecond)
		require.EqualValues(b, 1, b.release("H"))
		ear.requireTold("A")

		b.crowd(2, "dead", "pnobody")
		b.wait("unsubscribed", "")
		b.wait("B", ear.inbox)
		time.Sleep(2*time.Second - time.Microsecond)
		require.EqualValues(b, 1, b.release("A"))
		require.Empty(b, b.holder())
		require.Equal(b, []string{"unsubscribed", "B"}, b.queue(), "the dead before it are removed")
		attempt, err := b.locker.TryAcquire(b.Context(), "k", "C", time.Minute)
		require.NoError(b, err)
		require.Equal(b, dlock.Attempt{}, attempt)
		require.Equal(b, rediscore.AnswerWaits, b.answer(b.enqueue("C", ear.inbox)))
		require.Equal(b, rediscore.AnswerWaits, b.answer(b.checkIn("B", ear.inbox)))
		require.EqualValues(b, 0, b.release("C"))
		require.Empty(b, b.holder())
		require.Equal(b, []string{"unsubscribed", "B"}, b.queue())
		require.Equal(b, rediscore.AnswerGranted, b.answer(b.checkIn("unsubscribed", "")))
		require.Equal(b, "unsubscribed", b.holder())
		require.Empty(b, ear.heard())

		require.EqualValues(b, 1, b.release("unsubscribed"))
		ear.requireTold("B")
		b.wait("unsubscribed", "")
		b.expire()
		require.Equal(b, rediscore.AnswerGranted, b.answer(b.enqueue("unsubscribed", "")), "it may come with an enqueue, too")
		b.enqueueFor("200", "unsubscribed again", "")
		b.expire()
		time.Sleep(200*time.Millisecond - time.Microsecond)
		require.Equal(b, "", b.try("C").([]any)[0])
		b.hold("unsubscribed again")
		require.Empty(b, b.queue())
	})
}

// A lock that is free while it has waiters goes to the first of them, whoever calls.
func TestNobodyBargesIn(t *testing.T) {
	for name, come := range map[string]func(b *bench){
		"attempt":  func(b *bench) { require.Equal(b, "A", b.try("C").([]any)[0]) },
		"enqueue":  func(b *bench) { b.wait("C", ""); require.Equal(b, []string{"B", "C"}, b.queue()) },
		"check-in": func(b *bench) { require.Equal(b, rediscore.AnswerWaits, b.answer(b.checkIn("B", ""))) },
		"check-in of a stranger": func(b *bench) {
			require.Equal(b, rediscore.AnswerUnknown, b.answer(b.checkIn("C", "")))
		},
		"release of a waiter":   func(b *bench) { require.EqualValues(b, 0, b.release("B")) },
		"release of a stranger": func(b *bench) { require.EqualValues(b, 0, b.release("C")) },
	} {
		t.Run(name, func(t *testing.T) {
			atBench(t, "", "k", func(b *bench) {
				ear := b.listen("inbox")
				fence := b.hold("H")
				b.wait("A", ear.inbox)
				b.wait("B", ear.inbox)
				b.expire()
				come(b)
				require.Equal(b, "A", b.holder())
				require.EqualValues(b, 60_000, b.number("PTTL", b.keys.lock))
				require.Equal(b, fence+8, ear.requireTold("A"))
			})
		})
	}
}

// A waiter that gives up when the lock is free leaves it to the next.
func TestFirstGivesUp(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.hold("H")
		for _, token := range []string{"A", "B", "C"} {
			b.wait(token, ear.inbox)
		}
		b.expire()
		require.EqualValues(b, 0, b.release("A"))
		require.Equal(b, "B", b.holder())
		ear.requireTold("B")
		require.Equal(b, []string{"C"}, b.queue())
	})
}

// If the first waiter finds the lock free, it is granted the lock in the answer.
func TestFirstServesItself(t *testing.T) {
	for name, come := range map[string]func(b *bench, inbox string) int64{
		"attempt":  func(b *bench, _ string) int64 { return b.hold("A") },
		"enqueue":  func(b *bench, inbox string) int64 { return b.enqueue("A", inbox).([]any)[1].(int64) },
		"check-in": func(b *bench, inbox string) int64 { return b.checkIn("A", inbox).([]any)[1].(int64) },
	} {
		t.Run(name, func(t *testing.T) {
			atBench(t, "", "k", func(b *bench) {
				ear := b.listen("inbox")
				b.hold("H")
				ticket := b.wait("A", ear.inbox)
				b.wait("B", ear.inbox)
				b.expire()
				require.GreaterOrEqual(b, come(b, ear.inbox), ticket+8)
				require.Equal(b, "A", b.holder())
				require.Equal(b, []string{"B"}, b.queue())
				require.Empty(b, ear.heard())
			})
		})
	}
}

// A waiter that a message would reach too late is passed over.
func TestHurriedWaiters(t *testing.T) {
	for after, next := range map[time.Duration]string{30 * time.Millisecond: "A", 31 * time.Millisecond: "B"} {
		atBench(t, "", "k", func(b *bench) {
			ear := b.listen("inbox")
			b.hold("H")
			reply := b.call(rediscore.EnqueueScript, "A", "60000", ear.inbox, "", "30")
			b.wait("B", ear.inbox)
			b.checkIn("A", ear.inbox) // which gives it no more time
			time.Sleep(after)
			b.release("H")
			require.Equal(b, next, b.holder())
			ear.requireTold(next)
			if next == "B" { // A returns to its place, if it is there after all
				require.Equal(b, rediscore.AnswerUnknown, b.answer(b.checkIn("A", ear.inbox)))
				b.wait("C", ear.inbox)
				ticket := fmt.Sprint(reply.([]any)[1])
				require.EqualValues(b, 0, b.call(rediscore.EnqueueScript, "A", "60000", ear.inbox, ticket, "").([]any)[2])
			}
		})
	}
}

// A token is in the queue only once, and not at all while it holds the lock.
func TestEnqueueTwice(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.hold("H")
		ticket := b.wait("A", "")
		b.wait("B", ear.inbox)
		require.Equal(b, ticket, b.wait("A", ear.inbox))
		require.Equal(b, []string{"A", "B"}, b.queue())
		require.EqualValues(b, 1, b.release("H"))
		first := ear.requireTold("A")
		require.Equal(b, []any{int64(rediscore.AnswerGranted), first + 8}, b.enqueue("A", ear.inbox))
		require.Equal(b, []string{"B"}, b.queue())
		require.Equal(b, "A", b.holder())
	})
}

// A script that is delivered late, after others, does no harm: not to a longer lease of its own
// token, nor to another token's, nor to a free lock. What a late attempt or enqueue takes, the owed
// release gives back.
func TestDeliveredLast(t *testing.T) {
	for name, deliver := range map[string]func(b *bench){
		"renew":    func(b *bench) { b.call(rediscore.RenewScript, "A", "1000") },
		"check-in": func(b *bench) { b.checkIn("A", "") },
		"release":  func(b *bench) { b.release("A") },
		"try":      func(b *bench) { b.call(rediscore.AcquireScript, "A", "1000") },
		"enqueue":  func(b *bench) { b.enqueueFor("1000", "A", "") },
	} {
		t.Run(name, func(t *testing.T) {
			atBench(t, "", "k", func(b *bench) {
				ear := b.listen("inbox")
				b.hold("H")
				b.wait("A", ear.inbox)
				require.EqualValues(b, 1, b.release("H"))
				if name != "release" {
					deliver(b)
					require.Equal(b, "A", b.holder())
					require.EqualValues(b, 60_000, b.number("PTTL", "k"), "rest of its own lease")
					require.Empty(b, b.queue())
				}

				require.EqualValues(b, 1, b.release("A"))
				before := b.state()
				deliver(b)
				if name == "try" || name == "enqueue" {
					require.EqualValues(b, 1000, b.number("PTTL", "k"))
					require.EqualValues(b, 1, b.release("A"))
				}
				require.Equal(b, before, b.state(), "of a lock that was free")

				b.hold("B")
				ticket := b.wait("C", ear.inbox)
				before = b.state()
				deliver(b)
				b.release("A")
				require.Equal(b, before, b.state(), "of a lock that another holds")
				require.EqualValues(b, 60_000, b.number("PTTL", "k"), "rest of another's lease")
				require.Equal(b, fmt.Sprint(ticket), b.text("ZSCORE", b.keys.queue, "C"))
			})
		})
	}
}

// A check-in creates and extends nothing but the waiter's own place.
func TestCheckInChangesNothing(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.checkIn("A", ear.inbox)
		require.Empty(b, b.server.Keys(), "after a check-in on an empty server")
		b.hold("H")
		b.wait("A", ear.inbox)
		b.wait("B", ear.inbox)
		b.release("H")
		ear.requireTold("A")
		before, fence := b.state(), b.text("GET", b.keys.counter)
		time.Sleep(3 * time.Second)
		for _, token := range []string{"A", "C", "H"} {
			b.checkIn(token, "p another")
		}
		require.Equal(b, before, b.state())
		require.Equal(b, fence, b.text("GET", b.keys.counter))
		require.EqualValues(b, 57_000, b.number("PTTL", b.keys.lock))
		b.checkIn("B", "panother")
		require.Equal(b, before["queue"], b.queue())
		now := b.waiters()
		require.Equal(b, fmt.Sprint(b.now(), " 60000 0 panother"), now[":B"])
		delete(now, ":B")
		require.Equal(b, []string{"handover"}, slices.Collect(maps.Keys(now)))
	})
}

// No call shortens a lease, or gives a TTL to one without.
func TestNothingShortens(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		calls := map[string]func(ttl string){
			"renew":    func(ttl string) { b.call(rediscore.RenewScript, "A", ttl) },
			"try":      func(ttl string) { b.call(rediscore.AcquireScript, "A", ttl) },
			"enqueue":  func(ttl string) { b.enqueueFor(ttl, "A", "") },
			"check-in": func(string) { b.checkIn("A", "") },
		}
		b.hold("A")
		for name, call := range calls {
			call("1000")
			require.EqualValues(b, 60_000, b.number("PTTL", "k"), name)
		}
		b.number("PERSIST", "k")
		for name, call := range calls {
			call("1000")
			require.EqualValues(b, -1, b.number("PTTL", "k"), name)
		}
		delete(calls, "check-in")
		for name, call := range calls {
			b.number("PEXPIRE", "k", 10_000)
			call("60000")
			require.EqualValues(b, 60_000, b.number("PTTL", "k"), "%s lengthens", name)
		}
	})
}

// A release removes its token from the queue, whoever holds the lock.
func TestReleaseLeavesTheQueue(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.hold("H")
		for _, token := range []string{"A", "B", "C"} {
			b.wait(token, ear.inbox)
		}
		require.EqualValues(b, 0, b.release("B"))
		require.Equal(b, []string{"A", "C"}, b.queue())
		require.NotContains(b, b.waiters(), ":B")
		require.EqualValues(b, 0, b.release("stranger"))
		require.Equal(b, []string{"A", "C"}, b.queue())
		require.Equal(b, "H", b.holder())
		require.Empty(b, ear.heard())
	})
}

// When the lock is free and has no waiters, only the fence counter is left, in whatever order the
// last holder and the last waiters left.
func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(b *bench){
		"holder":              func(b *bench) { b.release("A") },
		"lease, then holder":  func(b *bench) { b.expire(); b.release("A") },
		"waiter, then holder": func(b *bench) { b.wait("B", ""); b.release("B"); b.release("A") },
		"holder, then waiter": func(b *bench) { b.wait("B", ""); b.release("A"); b.release("B") },
		"holder of the dead":  func(b *bench) { b.wait("B", "pnobody"); b.release("A") },
		"lease, then waiter":  func(b *bench) { b.wait("B", ""); b.expire(); b.release("B") },
	} {
		atBench(t, "", "k", func(b *bench) {
			ear := b.listen("inbox")
			b.hold("H")
			b.wait("A", ear.inbox)
			b.release("H")
			ear.requireTold("A")
			end(b)
			require.Equal(b, []string{b.keys.counter}, b.server.Keys(), name)
		})
	}
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
		b.server.SetFaults(sim.Faults{Full: true})
		_, err := b.of("other").eval(rediscore.AcquireScript, "C", "60000")
		require.ErrorContains(b, err, "OOM")
		require.EqualValues(b, 1, b.release("H"))
		require.Equal(b, "A", b.holder())
		ear.requireTold("A")
		held, err := b.locker.Pass(b.Context(), b.key, "A", "B", 0)
		require.NoError(b, err)
		require.True(b, held)
		require.Equal(b, "B", b.holder())
		ear.requireTold("B")
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
				b.server.SetFaults(sim.Faults{Writes: "READONLY You can't write against a read only replica."})
				_, err := b.eval(script, "stranger", "60000")
				require.ErrorContains(b, err, "READONLY", "%s, %s", name, state)
			})
		}
	}
}

// A user without the right to publish hands over without a message. For a user without the right to
// count subscribers, waiters that have checked in lately are alive.
func TestHandoverInSilence(t *testing.T) {
	for _, command := range []string{"PUBLISH", "PUBSUB"} {
		atBench(t, "", "k", func(b *bench) {
			ear := b.listen("inbox")
			b.hold("H")
			b.wait("dead", "pnobody listens")
			time.Sleep(6 * time.Second)
			b.wait("A", ear.inbox)
			b.forbid(command)
			require.EqualValues(b, 1, b.release("H"))
			b.forbid()
			require.Equal(b, "A", b.holder())
			require.Equal(b, map[bool]int{true: 1}[command == "PUBSUB"], len(ear.heard()))
			require.Equal(b, []any{int64(rediscore.AnswerFound), b.fence(), b.now(), b.now()}, b.checkIn("A", ear.inbox))
		})
	}
}

// The address of an inbox on a shard channel begins with "s". A plain channel of the same name is
// another one.
func TestShardedInbox(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		plain := b.listen("inbox")
		shard, err := b.server.Subscribe("inbox", true)
		require.NoError(b, err)
		b.hold("H")
		b.wait("dead", "sanother")
		b.wait("A", "sinbox")
		b.release("H")
		require.Equal(b, "A", b.holder())
		messages := shard.Take()
		require.Len(b, messages, 1)
		require.Equal(b, b.field("handover"), messages[0].Text)
		require.Empty(b, plain.heard())

		b.server.Unsubscribe("inbox", true, shard)
		b.wait("unsubscribed", "sinbox")
		b.wait("B", plain.inbox)
		b.release("A")
		plain.requireTold("B")
	})
}

// A waiter's place and record last as long as it checks in, and for at most a minute after that.
func TestQueueExpires(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.do("SET", b.keys.lock, "H")
		requireRest := func(call string, rest int64) {
			b.Helper()
			for _, key := range []string{b.keys.queue, b.keys.waiters} {
				require.Equal(b, rest, b.number("PTTL", key), "PTTL of %q after %s", key, call)
			}
		}
		b.enqueue("A", "")
		requireRest("an enqueue", 10_000)
		b.checkIn("A", "")
		requireRest("a check-in", 60_000)
		time.Sleep(49 * time.Second)
		b.enqueue("B", "")
		requireRest("an enqueue after it", 11_000)
		time.Sleep(6 * time.Second)
		b.enqueue("B", "")
		requireRest("an enqueue long after it", 5000)
		time.Sleep(time.Second - time.Millisecond)
		b.enqueue("B", "")
		requireRest("an enqueue within a second of one that has looked", 4001)
		time.Sleep(time.Millisecond)
		b.enqueue("B", "")
		requireRest("an enqueue just before the end", 10_000)
		for _, after := range []time.Duration{time.Second - time.Millisecond, time.Second} {
			time.Sleep(after)
			b.do("DEL", b.keys.queue)
			b.enqueue(fmt.Sprint(after), "")
			requireRest("an enqueue when the queue is new", b.number("PTTL", b.keys.waiters))
		}
		b.server.SetClock(-time.Hour)
		for _, key := range []string{b.keys.queue, b.keys.waiters} {
			b.do("PEXPIRE", key, 4999)
		}
		b.enqueue("C", "")
		requireRest("an enqueue when the clock was set back", 10_000)
		b.server.SetClock(-time.Hour + 6*time.Second)
		requireRest("nothing", 4000)
		b.enqueue("C", "")
		requireRest("an enqueue when the clock was set forward", 10_000)
		for _, key := range []string{b.keys.queue, b.keys.waiters} { // evicted, or expired too early
			b.do("DEL", key)
			require.Equal(b, rediscore.AnswerUnknown, b.answer(b.checkIn("A", "")))
			b.enqueue("A", "")
		}
		time.Sleep(10*time.Second + time.Millisecond)
		require.NotContains(b, b.server.Keys(), b.keys.queue)
	})
}

// Tokens and inboxes may be any bytes. None is confused with another, or with the record of the last
// handover.
func TestTokensAreBytes(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("in box\x00\n\xff 1 2 ")
		tokens := []string{" ", "\x00", "handover", ":handover", "1 2 3", " 1", "1", "1 ", "A\n", "A", "A\x00B", "\xff\xfe", "%d%.0f", "(%d+) .*$", strings.Repeat("x", 5000)}
		b.hold("H")
		for _, token := range tokens {
			b.wait(token, ear.inbox)
		}
		require.Equal(b, tokens, b.queue())
		holder := "H"
		for _, token := range tokens {
			require.EqualValues(b, 1, b.release(holder), "%q", holder)
			fence := ear.requireTold(token)
			require.Equal(b, []any{int64(rediscore.AnswerFound), fence, b.now(), b.now()}, b.checkIn(token, ear.inbox), "%q", token)
			holder = token
		}
		require.Len(b, b.waiters(), 1)
	})
}
