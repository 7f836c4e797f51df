package rediscore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crowd puts n waiters behind the others, who have the same inbox and checked in some time ago.
func (b *bench) crowd(n int, name, inbox string, ago time.Duration) {
	b.Helper()
	b.integer(b, "EVAL", `
		local last = tonumber(redis.call('GET', KEYS[1]))
		for i = 1, ARGV[1] do
			redis.call('ZADD', KEYS[2], string.format('%.0f', last + i), ARGV[2] .. i)
			redis.call('HSET', KEYS[3], ':' .. ARGV[2] .. i, ARGV[4] .. ' 60000 ' .. ARGV[3])
		end
		redis.call('PEXPIRE', KEYS[2], 60000)
		redis.call('PEXPIRE', KEYS[3], 60000)
		redis.call('SET', KEYS[1], string.format('%.0f', last + ARGV[1]), 'PX', 172800000)
		return 0`, 3, b.lock.texts[1], b.lock.texts[2], b.lock.texts[3],
		n, name, inbox, b.now(b)-ago.Microseconds())
}

// waiting returns the number of waiters.
func (b *bench) waiting() int {
	b.Helper()
	return int(b.integer(b, "ZCARD", b.lock.texts[2]))
}

// commands counts the commands that the server executes during f, by their names.
func (b *bench) commands(f func()) map[string]int {
	b.Helper()
	b.text(b, "CONFIG", "RESETSTAT")
	f()
	calls := make(map[string]int)
	for line := range strings.Lines(b.text(b, "INFO", "commandstats")) {
		if name, rest, ok := strings.Cut(line, ":calls="); ok {
			count, _, _ := strings.Cut(rest, ",")
			n, err := strconv.Atoi(count)
			require.NoError(b, err)
			command, _, _ := strings.Cut(strings.TrimPrefix(name, "cmdstat_"), "|")
			calls[command] += n
		}
	}
	delete(calls, "config")
	delete(calls, "evalsha")
	delete(calls, "eval")
	return calls
}

func sum(calls map[string]int) (n int) {
	for _, count := range calls {
		n += count
	}
	return n
}

// A release removes the dead a hundred at a time, and asks about each inbox once.
func TestDeadWaitersInBatches(t *testing.T) {
	b := newBench(t, "", "k")
	b.hold("H")
	b.crowd(2000, "dead", "pnobody", 0)
	b.crowd(2000, "silent", "panother", 6*time.Second)
	ear := b.listen("inbox")
	b.wait("A", ear.inbox)
	calls := b.commands(func() { require.EqualValues(t, 1, b.release("H")) })
	require.Equal(t, "A", b.holder())
	ear.requireTold("A")
	require.Empty(t, b.queue())
	require.Len(t, b.waiters(), 1)
	require.LessOrEqual(t, sum(calls), 4*42+15, "%v", calls)
	require.Equal(t, 2, calls["pubsub"], "%v", calls)
}

// The first waiter is looked at alone, however many wait.
func TestHandoverAmongMany(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	var counts []int
	for _, n := range []int{1, 2000} {
		b.hold("H")
		b.crowd(n, fmt.Sprint(n, " "), ear.inbox, 0)
		calls := b.commands(func() { require.EqualValues(t, 1, b.release("H")) })
		require.Equal(t, fmt.Sprint(n, " 1"), b.holder())
		require.Equal(t, n-1, b.waiting())
		require.Equal(t, 1, calls["hmget"])
		counts = append(counts, sum(calls))
		b.release(b.holder())
	}
	require.InDelta(t, counts[0], counts[1], 3, "commands of a handover: the fence may take more")
}

// One call removes about 5,000 dead waiters. A release that has more before it does nothing else: the
// lock stays with its holder, and the next call goes on.
func TestBoundedWork(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	for name, come := range map[string]func(b *bench) any{
		"release":               func(b *bench) any { return b.bare(releaseScript, "H") },
		"release of a stranger": func(b *bench) any { b.expire(); return b.bare(releaseScript, "S") },
		"attempt":               func(b *bench) any { b.expire(); return b.bare(acquireScript, "S", "60000") },
		"enqueue":               func(b *bench) any { b.expire(); return b.bare(enqueueScript, "S", "60000", "", "") },
		"check-in":              func(b *bench) any { b.expire(); return b.bare(checkInScript, "A", ear.inbox) },
	} {
		b := b.of(name)
		call := func() any { return come(b) }
		b.hold("H")
		b.crowd(10_500, "dead", "pnobody", 0)
		b.wait("A", ear.inbox)
		b.crowd(1, "B", ear.inbox, 0)
		for _, left := range []int{5501, 501} {
			calls := b.commands(func() { require.Equal(t, unswept, call(), name) })
			require.InDelta(t, left, b.waiting(), 2, name)
			require.LessOrEqual(t, sum(calls), 4*51+10, "%s: %v", name, calls)
			require.Equal(t, map[bool]string{true: "H"}[name == "release"], b.holder(), name)
			require.NotContains(t, b.queue(), "S", name)
			require.Empty(t, ear.heard(), name)
		}
		require.NotEqual(t, unswept, call(), name)
		require.Equal(t, "A", b.holder(), name)
		require.Contains(t, b.queue(), "B1", name)
		if name != "check-in" {
			ear.requireTold("A")
		}
		b.text(t, "FLUSHALL")
	}
}

// bare makes one call of a script.
func (b *bench) bare(s *Script, args ...string) any {
	b.Helper()
	reply, err := b.locker.conn.Eval(b.Context(), b.locker.call(s, b.key, args...))
	require.NoError(b, err)
	return reply
}

// A Locker repeats a call that has more dead waiters before it than one call removes. So the first
// waiter that is alive is served in one Release, and nobody is refused a lock that only the dead
// wait for.
func TestThousandsOfDeadWaiters(t *testing.T) {
	b := newBench(t, "", "k")
	l := New(plain(t, b.addr))
	t.Cleanup(func() { l.Close() })
	ear := b.listen("inbox")
	b.hold("H")
	b.crowd(12_000, "dead", "pnobody", 0)
	b.wait("A", ear.inbox)
	held, err := l.Release(t.Context(), "k", "H")
	require.NoError(t, err)
	require.True(t, held)
	ear.requireTold("A")
	b.crowd(12_000, "dead", "pnobody", 0)
	held, err = l.Release(t.Context(), "k", "A")
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, []string{b.lock.texts[1]}, b.all(t), "what is left")
	for name, acquire := range map[string]func(token string) (bool, error){
		"TryAcquire": func(token string) (bool, error) {
			a, err := l.TryAcquire(t.Context(), "k", token, time.Minute)
			return a.Acquired, err
		},
		"Acquire": func(token string) (bool, error) {
			a, err := l.Acquire(t.Context(), "k", token, time.Minute)
			return a.Acquired, err
		},
	} {
		b.crowd(12_000, "dead", "pnobody", 0)
		ok, err := acquire(name)
		require.NoError(t, err, name)
		require.True(t, ok, name)
		require.Equal(t, name, b.holder())
		require.EqualValues(t, 1, b.release(name))
	}
	held, err = l.Release(t.Context(), "k", "A")
	require.NoError(t, err)
	require.False(t, held)
}

// pulse makes it seem that check-ins have come without a pause for some time, until some time ago.
func (b *bench) pulse(ago, lasted time.Duration) {
	b.Helper()
	last := b.now(b) - ago.Microseconds()
	b.integer(b, "HSET", b.lock.texts[3], "pulse", fmt.Sprint(last, " ", last-lasted.Microseconds()))
}

// While the lock is held, check-ins remove those who have been silent for a minute, wherever the living
// are among them.
func TestDeadWaitersOfAHeldLock(t *testing.T) {
	for name, crowds := range map[string][3]int{
		"before":    {2500, 0, 0},
		"after":     {0, 0, 2500},
		"between":   {0, 2500, 0},
		"all round": {1500, 1500, 1500},
		"nobody":    {0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			ear := b.listen("inbox")
			b.hold("H")
			for i, token := range []string{"A", "B", ""} {
				b.crowd(crowds[i], fmt.Sprint("dead", i, " "), "pnobody", 61*time.Second)
				if token != "" {
					b.wait(token, ear.inbox)
				}
			}
			b.pulse(0, 2*time.Minute)
			for range 4 {
				for _, token := range []string{"A", "B"} {
					calls := b.commands(func() {
						state, n := b.answer(b.checkIn(token, ear.inbox))
						require.EqualValues(t, answerWaits, state)
						require.EqualValues(t, b.integer(t, "ZRANK", b.lock.texts[2], token), n[1], "rank")
					})
					delete(calls, "zrank")
					require.LessOrEqual(t, sum(calls), 8+2*4, "commands of a check-in: %v", calls)
				}
			}
			require.Equal(t, []string{"A", "B"}, b.queue())
			require.Len(t, b.waiters(), 2)
			require.Equal(t, "H", b.holder())
			calls := b.commands(func() { b.checkIn("A", ear.inbox) })
			require.LessOrEqual(t, sum(calls), 9, "commands of a check-in that finds no dead: %v", calls)
		})
	}
}

// pass makes it seem that time has passed for the waiters.
func (b *bench) pass(d time.Duration) {
	b.Helper()
	b.integer(b, "EVAL", `
		local all = redis.call('HGETALL', KEYS[1])
		for i = 1, #all, 2 do
			local aged = all[i + 1]:gsub('%d%d%d%d%d%d%d%d%d%d+', function(time)
				return string.format('%.0f', time - ARGV[1])
			end)
			redis.call('HSET', KEYS[1], all[i], aged)
		end
		for _, key in ipairs(KEYS) do
			redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[1] / 1000)
		end
		return #all`, 2, b.lock.texts[3], b.lock.texts[2], d.Microseconds())
}

// Waiters come and die at once, and none lives to check in. However often they come, the queue has no
// more of them than come in a minute.
func TestWaitersThatDieAtOnce(t *testing.T) {
	t.Parallel()
	for every, most := range map[time.Duration]int{
		500 * time.Millisecond: 123, 3 * time.Second: 22, 9 * time.Second: 8, 11 * time.Second: 1, 50 * time.Second: 1,
	} {
		b := newBench(t, "", "k")
		b.hold("H")
		for n := range 200 {
			b.enqueue(fmt.Sprint("t", n), "")
			require.LessOrEqual(t, b.waiting(), most, "waiters after %d that come every %v", n+1, every)
			require.Equal(t, fmt.Sprint("t", n), b.queue()[b.waiting()-1])
			require.Len(t, b.waiters(), b.waiting())
			b.pass(every)
		}
	}
}

// An enqueue looks at the first two waiters, however many are dead.
func TestEnqueueRemovesTwo(t *testing.T) {
	b := newBench(t, "", "k")
	b.hold("H")
	b.crowd(2000, "dead", "pnobody", 61*time.Second)
	b.pulse(0, 2*time.Minute)
	for n := range 5 {
		calls := b.commands(func() { b.enqueue(fmt.Sprint("t", n), "") })
		require.Equal(t, 2000-n-1, b.waiting())
		delete(calls, "zcard")
		require.LessOrEqual(t, sum(calls), 20, "commands of an enqueue: %v", calls)
	}
}

// A waiter that is alive is not removed: neither if it was silent for less than a minute, nor if
// everybody was because the server did not answer, nor if the clock was set.
func TestTheLivingAreNotSwept(t *testing.T) {
	for name, c := range map[string]struct {
		silent, ago, lasted time.Duration
		swept               bool
	}{
		"silent for a minute":        {61 * time.Second, 3 * time.Second, 2 * time.Minute, true},
		"silent for less":            {55 * time.Second, 3 * time.Second, 2 * time.Minute, false},
		"the server did not answer":  {2 * time.Minute, 2 * time.Minute, time.Hour, false},
		"it answers again":           {2 * time.Minute, 3 * time.Second, 50 * time.Second, false},
		"the clock was set back":     {-time.Hour, -time.Hour, 2 * time.Hour, false},
		"the clock was set forward":  {time.Hour, time.Hour, 2 * time.Hour, false},
		"the dead and a short pause": {61 * time.Second, 9 * time.Second, 2 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "", "k")
			ear := b.listen("inbox")
			b.hold("H")
			b.crowd(3, "before", ear.inbox, c.silent)
			b.wait("A", ear.inbox)
			b.crowd(3, "after", ear.inbox, c.silent)
			b.pulse(c.ago, c.lasted)
			for range 3 {
				b.checkIn("A", ear.inbox)
			}
			want := 7
			if c.swept {
				want = 1
			}
			require.Equal(t, want, b.waiting())

			b = b.of("enqueues")
			b.hold("H")
			b.crowd(3, "before", ear.inbox, c.silent)
			b.pulse(c.ago, c.lasted)
			for n := range 3 {
				b.wait(fmt.Sprint("A", n), ear.inbox)
			}
			want = 6
			if c.swept {
				want = 3
			}
			require.Equal(t, want, b.waiting(), "after enqueues")
		})
	}
	t.Run("no pulse", func(t *testing.T) {
		b := newBench(t, "", "k")
		b.hold("H")
		b.crowd(3, "dead", "pnobody", time.Hour)
		b.wait("A", "")
		b.checkIn("A", "")
		require.Equal(t, 4, b.waiting())
	})
}

// A waiter that was removed although it is alive returns to its old place.
func TestSweptByMistake(t *testing.T) {
	b := newBench(t, "", "k")
	ear := b.listen("inbox")
	b.hold("H")
	ticket := b.wait("paused", ear.inbox)
	b.wait("A", ear.inbox)
	b.age("paused", 61*time.Second)
	b.pulse(0, 2*time.Minute)
	b.checkIn("A", ear.inbox)
	require.Equal(t, []string{"A"}, b.queue())
	require.Equal(t, []any{int64(answerUnknown)}, b.checkIn("paused", ear.inbox))
	b.call(enqueueScript, "paused", "60000", ear.inbox, fmtInt(ticket))
	require.Equal(t, []string{"paused", "A"}, b.queue())
}
