package rediscore_test

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names are part of the wire format, and must not change. The companions of a lock are named
// beside followed by "fence", by "queue:" and the key, or by "waiters:" and the key. An inbox in
// Redis Cluster is named beside followed by "inbox:" and a random name.
var names = []struct{ prefix, key, lock, beside string }{
	{"", "order:7", "order:7", "{46q}dlock1:"},
	{"", "{user1}:a", "{user1}:a", "{5F6}dlock1:"},
	{"", "{user1}:b", "{user1}:b", "{5F6}dlock1:"},
	{"", "a{}b{c}", "a{}b{c}", "{FPm}dlock1:"},
	{"", "}{", "}{", "{2kj}dlock1:"},
	{"", "ключ é 🔒", "ключ é 🔒", "{6gh}dlock1:"},
	{"", "a\x00b\r\n\xff", "a\x00b\r\n\xff", "{0c7}dlock1:"},
	{"myapp:lock:", "order:7", "myapp:lock:order:7", "myapp:lock:{045}dlock1:"},
	{"myapp:lock:", "{user1}:a", "myapp:lock:{user1}:a", "myapp:lock:{5F6}dlock1:"},
	{"myapp:lock:", "\x00", "myapp:lock:\x00", "myapp:lock:{BWm}dlock1:"},
	{"my}app:", "order:7", "my}app:order:7", "my}app:{34m}dlock1:"},
	{"my}app:", "{user1}", "my}app:{user1}", "my}app:{5F6}dlock1:"},
	{"my{app:", "order:7", "my{app:order:7", "{475}my{app:dlock1:"},
	{"my{app:", "order}7", "my{app:order}7", "{09Q}my{app:dlock1:"},
	{"{tag}:", "order:7", "{tag}:order:7", "{2Ie}{tag}:dlock1:"},
	{"{tag}:", "{user1}", "{tag}:{user1}", "{2Ie}{tag}:dlock1:"},
	{"{}:", "{user1}", "{}:{user1}", "{0Nk}{}:dlock1:"},
	{"é:", "order:7", "é:order:7", "é:{7Nc}dlock1:"},
}

func TestNames(t *testing.T) {
	for _, n := range names {
		atBench(t, n.prefix, n.key, func(b *bench) {
			a := (&scene{bench: b}).enter(rediscore.WithPrefix(n.prefix))
			requireKeys := func(call string, sent []string, stored ...string) {
				all := a.asked(0)
				last := all[len(all)-1].Calls[0]
				require.Equal(b, sent, last.Keys(), "keys of %s of %q", call, n)
				words := slices.Concat([]string{fmt.Sprint(len(sent))}, sent, last.Args)
				require.Equal(b, strings.Join(words, " ")+"\n", fmt.Sprintln(last.Append(nil)...), "%s of %q", call, n)
				require.Len(b, words, last.Len())
				require.ElementsMatch(b, stored, b.server.Keys(), "keys on the server after %s of %q", call, n)
			}
			fence, queue, waiters := rediscore.Companion(n.prefix, 0, "dlock1:fence"), n.beside+"queue:"+n.key, n.beside+"waiters:"+n.key
			all := []string{n.lock, fence, queue, waiters}
			prefix, key, ok := rediscore.ParseQueue(queue)
			require.Equal(b, []any{n.prefix, n.key, true}, []any{prefix, key, ok}, queue)
			require.True(b, must(a.TryAcquire(b.Context(), n.key, "token", time.Minute))(b).Acquired)
			requireKeys("an attempt", all, n.lock, fence)
			for _, s := range []*rediscore.Script{rediscore.EnqueueScript, rediscore.CheckInScript} {
				must(a.EvalScript(b.Context(), s, n.key, "waiter", "60000", "", ""))(b)
				requireKeys("a waiter's call", all, all...)
			}
			require.True(b, must(a.Renew(b.Context(), n.key, "token", time.Minute))(b))
			requireKeys("a renewal", all[:1], all...)
			require.Equal(b, dlock.Hold{Held: true, Token: "token", Remaining: time.Minute, Waiting: 1}, must(a.Inspect(b.Context(), n.key))(b))
			requireKeys("an inspection", all, all...)
			require.False(b, must(a.Release(b.Context(), n.key, "waiter"))(b))
			requireKeys("a release", all, n.lock, fence, waiters)
			must(a.Vote(b.Context(), n.key, "another", time.Minute, 0))(b)
			requireKeys("a vote", append(all, n.prefix+"dlock1:birth"), n.lock, fence, waiters, n.prefix+"dlock1:birth")
			require.True(b, must(a.Release(b.Context(), n.key, "token"))(b))
			requireKeys("a release", all, fence, n.prefix+"dlock1:birth")
			require.Equal(b, n.beside+"inbox:NAME", rediscore.Companion(n.prefix, rediscore.Slot(n.lock), "dlock1:inbox:NAME"))
			inCluster := rediscore.KeysOf(n.prefix, n.key, true)
			require.Equal(b, []string{n.beside + "fence", n.beside + "birth"}, []string{inCluster[1], inCluster[4]}, "in a cluster")
		})
	}
}

// Whoever finds a lock held that was handed over learns when, until the records of its waiters expire.
func TestTimeOfAGrant(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.hold("H")
		b.wait("holder", "")
		b.release("H")
		attempt := must(b.locker.TryAcquire(b.Context(), "k", "other", ttl))(b)
		require.Equal(b, dlock.Attempt{}, attempt, "of a lock that is kept for a waiter")
		require.Equal(b, rediscore.AnswerGranted, b.answer(b.checkIn("holder", "")))
		granted := time.UnixMicro(b.now())
		time.Sleep(time.Second)
		attempt = must(b.locker.TryAcquire(b.Context(), "k", "other", ttl))(b)
		require.Equal(b, dlock.Attempt{Holder: "holder", HeldSince: granted, Remaining: ttl - time.Second}, attempt)
		ballot := must(b.locker.Vote(b.Context(), "k", "other", ttl, 0))(b)
		require.Equal(b, granted, ballot.HeldSince)
		for _, known := range []bool{true, false} {
			hold := must(b.locker.Inspect(b.Context(), "k"))(b)
			require.Equal(b, "holder", hold.Token)
			require.Equal(b, known, hold.Since.Equal(granted), "%v", hold.Since)
			require.Equal(b, known, !hold.Since.IsZero())
			b.do("DEL", rediscore.KeysOf("", "k", false)[3])
		}
	})
}

// Every method sends TTLs in whole milliseconds, rounded up.
func TestSentTTL(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for ttl, want := range map[time.Duration]string{
		time.Millisecond:         "1",
		time.Millisecond + 1:     "2",
		20999 * time.Microsecond: "21",
		21 * time.Millisecond:    "21",
		year - 1:                 "31536000000",
		year:                     "31536000000",
		year + 1:                 "31536000000",
		math.MaxInt64:            "9223372036854",
	} {
		inScene(t, func(s *scene, a *actor) {
			a.replies(nil, errDown)
			for name, call := range methodsOf(s.Context(), a.Locker, "k", "t", ttl) {
				if name != "Release" && name != "Pass" && name != "Inspect" {
					_, err := call()
					require.ErrorIs(s, err, errDown, name)
				}
			}
			scripts := make(map[*rediscore.Script]bool)
			for i, call := range a.asked(0) {
				if call.script() == rediscore.ReleaseScript {
					continue
				}
				scripts[call.script()] = true
				require.Equal(s, want, call.args()[1], "TTL of %v in call %d", ttl, i)
			}
			require.Len(s, scripts, 7)
		})
	}
}

// While a fleet is updated, programs with different versions of the scripts share locks. If you change a script, make sure
// that both versions work together, and then go generate its sum. A server that gets the sum of an older version runs that.
func TestScripts(t *testing.T) {
	const file = "lua/sums.txt"
	var sums strings.Builder
	shas := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(rediscore.Scripts)) {
		shas[name] = fmt.Sprintf("%x", sha1.Sum([]byte(rediscore.Scripts[name].Source)))
		fmt.Fprintf(&sums, "%s %s\n", name, shas[name])
	}
	if *rediscore.Rewrite {
		require.NoError(t, os.WriteFile(file, []byte(sums.String()), 0o600))
		return
	}
	for name, script := range rediscore.Scripts {
		require.Equal(t, shas[name], script.SHA, "%s: go generate ./backend/rediscore writes %s", name, file)
	}
}

func TestTags(t *testing.T) {
	for slot, tag := range map[int]string{0: "06S", 1: "2Gx", 4095: "6iL", 8192: "8YG", 12182: "9Le", 16382: "4oi", 16383: "6ZJ"} {
		require.Equal(t, tag, rediscore.Tags()[slot], "tag of slot %d", slot)
	}
	sum := sha256.Sum256([]byte(strings.Join(rediscore.Tags()[:], "\n")))
	require.Equal(t, "7a054f633dfec7d4e50c354f45b12681f45794aa42bd40c49c1e897efee85454", hex.EncodeToString(sum[:]), "of all tags, one a line")
}

// A counter that is so large that fences would be equal is an error, and nothing is granted.
func TestHugeCounter(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		for _, last := range []string{"9007199254740992", "144115188075855872", "many"} {
			b.do("SET", b.keys.counter, last, "PX", dayInMS)
			_, err := b.locker.TryAcquire(b.Context(), b.key, "t", time.Minute)
			require.True(b, dlock.NoEffect(err), "%s: %v", last, err)
			require.Equal(b, []string{b.keys.counter}, b.server.Keys(), last)
			require.Equal(b, last, b.text("GET", b.keys.counter))
		}
	})
}

// Locks leave at most two counters on a server, and these expire.
func TestCountersAreFew(t *testing.T) {
	atBench(t, "myapp:lock:", "", func(b *bench) {
		for _, key := range []string{"order:1", "order:2", "{06S}"} { // which is in the slot of the first
			b := b.of(key)
			b.hold("t")
			require.EqualValues(b, 1, b.release("t"))
		}
		left := b.server.Keys()
		require.Len(b, left, 2)
		for _, name := range left {
			require.Regexp(b, `^myapp:lock:\{(06S|2Gx)\}dlock1:fence$`, name)
			require.InDelta(b, dayInMS, b.number("PTTL", name), 20)
		}
	})
}

// A reply that no script gives is an error, after which the outcome is unknown.
func TestNonsense(t *testing.T) {
	inScene(t, func(s *scene, a *actor) {
		for name := range methodsOf(s.Context(), a.Locker, "k", "", ttl) {
			call := methodsOf(s.Context(), a.Locker, "k", name, ttl)[name]
			for _, reply := range []any{
				nil, "1", []any{}, []any{"x"}, []any{int64(1)}, []any{int64(4)}, []any{int64(-1)}, []any{"A", "1"},
				[]any{"A", int64(1), int64(2), int64(3), int64(4)}, []any{int64(rediscore.AnswerGranted), int64(1), int64(2)},
				[]any{int64(rediscore.AnswerWaits), int64(1), int64(2), int64(3), "H"},
				[]any{int64(rediscore.AnswerFound), int64(1)}, []any{int64(rediscore.AnswerUnknown), int64(1)},
			} {
				a.replies(reply, nil)
				_, err := call()
				require.ErrorIs(s, err, rediscore.ErrUnexpected, "%s: %v", name, reply)
				require.False(s, dlock.NoEffect(err), "%s: %v", name, reply)
			}
		}
	})
}

// Inspect counts the waiters in the queue, also while the lock is free. For a user without the
// right to count, it still reports the holder.
func TestInspectTellsHowManyWait(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		requireHold := func(want dlock.Hold) { require.Equal(b, want, must(b.locker.Inspect(b.Context(), "k"))(b)) }
		requireHold(dlock.Hold{})
		b.hold("H")
		time.Sleep(5 * time.Second)
		requireHold(dlock.Hold{Held: true, Token: "H", Remaining: 55 * time.Second})
		b.wait("A", "")
		b.wait("B", "")
		requireHold(dlock.Hold{Held: true, Token: "H", Remaining: 55 * time.Second, Waiting: 2})
		b.expire()
		requireHold(dlock.Hold{Waiting: 2})
		b.do("SET", "k", "")
		requireHold(dlock.Hold{Held: true, Remaining: -time.Millisecond, Waiting: 2}) // the token is empty
		b.forbid("ZCARD")
		requireHold(dlock.Hold{Held: true, Remaining: -time.Millisecond})
	})
}

// theirs does what redsync, redislock and StackExchange.Redis (LockTake, LockExtend, LockRelease) do with a lock.
func (b *bench) theirs(command, value string, ttl time.Duration) bool {
	source := map[string]string{
		"take":    `return redis.call('EXISTS', KEYS[1]) == 0 and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) and 1 or 0`,
		"extend":  `return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0`,
		"release": `return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`,
	}[command]
	reply := must(b.server.Eval(source, source, []string{b.keys.lock}, []string{value, fmt.Sprint(ttl.Milliseconds())}))(b)
	return reply == int64(1)
}

// A Client waits for a plain lock, and reveals nothing of its value. The lock stays as it is.
func TestClientWaitsForPlainLock(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ours := dlock.New(b.locker)
		require.True(b, b.theirs("take", "s3cret", ttl))
		_, err := ours.TryAcquire(b.Context(), "k")
		var held *dlock.HeldError
		require.ErrorAs(b, err, &held)
		require.Equal(b, ttl, held.Remaining)
		require.NotContains(b, err.Error(), "s3cret")
		require.False(b, must(b.locker.Release(b.Context(), "k", "s3cre"))(b))
		require.False(b, must(b.locker.Renew(b.Context(), "k", "s3cre", time.Hour))(b))
		require.Equal(b, []string{"k"}, b.server.Keys(), "something was left behind")
		start := time.Now()
		lease, err := ours.Acquire(b.Context(), "k")
		require.NoError(b, err)
		require.InDelta(b, ttl, time.Since(start), float64(time.Second))
		require.False(b, b.theirs("release", "s3cret", 0))
		require.NoError(b, lease.Release())
	})
}

// A key of another type is left alone. An attempt owes nothing, a release that failed is owed, and Close does
// not wait for it: the store has answered.
func TestKeyOfAnotherType(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.do("HSET", "k", "theirs", "1")
		c := dlock.New(b.locker)
		_, err := c.Acquire(b.Context(), "k")
		require.ErrorContains(b, err, `dlock: acquire "k"`)
		require.ErrorContains(b, err, "WRONGTYPE")
		require.NotErrorIs(b, err, dlock.ErrHeld)
		require.Zero(b, c.Stats().ReleasesOwed)
		require.Equal(b, []string{"k"}, b.server.Keys(), "something was left behind")
		require.Equal(b, []any{"1"}, b.do("HMGET", "k", "theirs"))

		lease, err := c.TryAcquire(b.Context(), "held")
		require.NoError(b, err)
		b.do("DEL", "held")
		b.do("HSET", "held", "theirs", "1")
		require.ErrorContains(b, lease.Release(), "WRONGTYPE")
		require.Equal(b, 1, c.Stats().ReleasesOwed)
		start := time.Now()
		require.ErrorContains(b, c.Close(), "WRONGTYPE")
		require.Less(b, time.Since(start), time.Second)
	})
}
