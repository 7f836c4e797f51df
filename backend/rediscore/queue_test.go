package rediscore_test

import (
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
