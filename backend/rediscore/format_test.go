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
	"github.com/dlock-go/dlock/internal/sim"
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
				b.Helper()
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
			attempt, err := a.TryAcquire(b.Context(), n.key, "token", time.Minute)
			require.NoError(b, err)
			require.True(b, attempt.Acquired)
			requireKeys("an attempt", all, n.lock, fence)
			for _, s := range []*rediscore.Script{rediscore.EnqueueScript, rediscore.CheckInScript} {
				_, err = a.EvalScript(b.Context(), s, n.key, "waiter", "60000", "", "")
				require.NoError(b, err)
				requireKeys("a waiter's call", all, all...)
			}
			held, err := a.Renew(b.Context(), n.key, "token", time.Minute)
			require.NoError(b, err)
			require.True(b, held)
			requireKeys("a renewal", all[:1], all...)
			hold, err := a.Inspect(b.Context(), n.key)
			require.NoError(b, err)
			require.Equal(b, dlock.Hold{Held: true, Token: "token", Remaining: time.Minute, Waiting: 1}, hold)
			requireKeys("an inspection", all, all...)
			held, err = a.Release(b.Context(), n.key, "waiter")
			require.NoError(b, err)
			require.False(b, held)
			requireKeys("a release", all, n.lock, fence, waiters)
			_, err = a.Vote(b.Context(), n.key, "another", time.Minute, 0)
			require.NoError(b, err)
			requireKeys("a vote", append(all, n.prefix+"dlock1:birth"), n.lock, fence, waiters, n.prefix+"dlock1:birth")
			held, err = a.Release(b.Context(), n.key, "token")
			require.NoError(b, err)
			require.True(b, held)
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
		attempt, err := b.locker.TryAcquire(b.Context(), "k", "other", ttl)
		require.NoError(b, err)
		require.Equal(b, dlock.Attempt{}, attempt, "of a lock that is kept for a waiter")
		require.Equal(b, rediscore.AnswerGranted, b.answer(b.checkIn("holder", "")))
		granted := time.UnixMicro(b.now())
		time.Sleep(time.Second)
		attempt, err = b.locker.TryAcquire(b.Context(), "k", "other", ttl)
		require.NoError(b, err)
		require.Equal(b, dlock.Attempt{Holder: "holder", HeldSince: granted, Remaining: ttl - time.Second}, attempt)
		ballot, err := b.locker.Vote(b.Context(), "k", "other", ttl, 0)
		require.NoError(b, err)
		require.Equal(b, granted, ballot.HeldSince)
		for _, known := range []bool{true, false} {
			hold, err := b.locker.Inspect(b.Context(), "k")
			require.NoError(b, err)
			require.Equal(b, "holder", hold.Token)
			require.Equal(b, known, hold.Since.Equal(granted), "%v", hold.Since)
			require.Equal(b, known, !hold.Since.IsZero())
			b.do("DEL", rediscore.KeysOf("", "k", false)[3])
		}
	})
}

// A fraction of a millisecond is rounded up, so that no lease ends before its TTL has passed.
func TestStoredTTL(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		_, err := b.locker.TryAcquire(b.Context(), "k", "t", 1234567*time.Microsecond)
		require.NoError(b, err)
		require.EqualValues(b, 1235, b.number("PTTL", "k"))
		_, err = b.locker.Renew(b.Context(), "k", "t", 2345678*time.Microsecond)
		require.NoError(b, err)
		require.EqualValues(b, 2346, b.number("PTTL", "k"))
		for range 10 {
			b.expire()
			time.Sleep(100 * time.Microsecond) // at any part of a millisecond
			const ttl = 20999 * time.Microsecond
			_, err := b.locker.TryAcquire(b.Context(), "k", "t", ttl)
			require.NoError(b, err)
			time.Sleep(ttl)
			require.Equal(b, "t", b.holder(), "the lease has ended")
			time.Sleep(2 * time.Millisecond)
			require.Empty(b, b.holder())
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

// While a fleet is updated, programs with different versions of the scripts share locks. If you
// change a script, make sure that both versions work together, and then go generate its sum. A server
// that gets the sum of an older version runs that.
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

// A fence is the last one + 8, or the server's time if that is larger: see the reference. Fences are exact up to 1 << 53.
func TestFenceRule(t *testing.T) {
	for _, last := range []int64{-1 << 49, -3600 * second, -11 * second, -8, -5, 0, 992, 993, second, 3600 * second, 1<<53 - 25} { // from now
		for _, rest := range []int64{-1, 1000, dayInMS, 2 * dayInMS} { // the TTL of the counter
			atBench(t, "", "k", func(b *bench) {
				b.do("SET", b.keys.counter, min(b.now()+last, 1<<53-25))
				if rest > 0 {
					b.do("PEXPIRE", b.keys.counter, rest)
				}
				for _, pause := range []time.Duration{0, time.Microsecond, 12 * time.Millisecond} {
					time.Sleep(pause)
					b.hold("t")
				}
			})
		}
	}
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

// A clock was ahead, is corrected, and nobody asks for a fence for long. The counter stays until the
// clock has reached it: so the next fence is still the largest.
func TestFencesRiseAfterAClockError(t *testing.T) {
	const day = 24 * time.Hour
	for _, idle := range []time.Duration{day + time.Hour, 2*day + time.Hour, 3*day + 23*time.Hour} {
		atBench(t, "", "k", func(b *bench) {
			b.server.SetClock(3 * day)
			first := b.hold("A")
			b.server.SetClock(0)
			b.expire()
			time.Sleep(idle)
			require.GreaterOrEqual(b, b.hold("later"), first+8, "%v later", idle)
		})
	}
}

// Fences that follow each other quickly never lead the clock: if all data is lost, the first fence
// after that is larger.
func TestFencesNeverLead(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		for range 5000 {
			require.LessOrEqual(b, b.hold("t"), b.now())
			time.Sleep(20 * time.Microsecond)
		}
	})
}

// Locks leave at most two counters on a server, and these expire.
func TestCountersAreFew(t *testing.T) {
	atBench(t, "myapp:lock:", "", func(b *bench) {
		for i := range 2000 {
			b := b.of(fmt.Sprintf("order:%d", i))
			if i == 1000 {
				b = b.of("{06S}") // in the slot of the first
			}
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

// The fences of a server that was promoted go on from the last that was replicated. Beside that they follow its clock,
// as those of its former master follow the other clock.
func TestFencesAfterAPromotion(t *testing.T) {
	for name, c := range map[string]struct {
		link  sim.Link
		clock time.Duration // of the replica, from the master's
		want  int64         // the first fence there, from the last of the former master; or from the clock if that is 0
	}{
		"replicated, the clock is right":  {want: 0},
		"replicated, the clock is behind": {clock: -time.Hour, want: 8},
		"nothing came":                    {link: sim.Link{Cut: true}},
		"nothing came, clock ahead":       {link: sim.Link{Cut: true}, clock: time.Second},
	} {
		atBench(t, "", "k", func(b *bench) {
			replica := b.server.NewReplica()
			replica.SetLink(c.link)
			replica.SetClock(c.clock)
			last := b.hold("A")
			b.release("A")
			time.Sleep(time.Millisecond)
			replica.Promote()
			next := b.at(replica, b.prefix)
			first := next.hold("B")
			if c.want > 0 {
				require.Equal(b, c.want, first-last, name)
			} else {
				require.Equal(b, next.now()+c.clock.Microseconds(), first, name)
			}
			require.Equal(b, b.now(), b.hold("C"), "%s: the former master grants on", name)
		})
	}
}

// Inspect counts the waiters in the queue, also while the lock is free. For a user without the
// right to count, it still reports the holder.
func TestInspectTellsHowManyWait(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		requireHold := func(want dlock.Hold) {
			b.Helper()
			hold, err := b.locker.Inspect(b.Context(), "k")
			require.NoError(b, err)
			require.Equal(b, want, hold)
		}
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
