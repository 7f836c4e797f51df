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
	"github.com/dlock-go/dlock/backend/quorum"
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

func TestStoredValues(t *testing.T) {
	atBench(t, "p:", "k", func(b *bench) {
		for _, token := range []string{"token", "a\x00\r\n{}\xff", "42"} {
			fence := b.hold(token)
			require.Equal(b, token, b.text("GET", "p:k"))
			require.Equal(b, fmt.Sprint(fence), b.text("GET", b.keys.counter))
			require.EqualValues(b, 60_000, b.number("PTTL", "p:k"))
			require.InDelta(b, dayInMS, b.number("PTTL", b.keys.counter), 1)
			require.EqualValues(b, 1, b.release(token))
		}
	})
}

// Whoever finds a lock held that was handed over learns when, until the records of its waiters expire.
func TestTimeOfAGrant(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.hold("H")
		b.wait("holder", "")
		time.Sleep(time.Second)
		b.release("H")
		require.Equal(b, rediscore.AnswerGranted, b.answer(b.checkIn("holder", "")))
		granted := time.UnixMicro(b.now())
		time.Sleep(time.Second)
		attempt, err := b.locker.TryAcquire(b.Context(), "k", "other", ttl)
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
			renewal := dlock.Renewal{Key: "k", Token: "t", TTL: ttl}
			_, _ = a.TryAcquire(s.Context(), "k", "t", ttl)
			_, _ = a.TryAcquireSet(s.Context(), []dlock.Acquisition{{Key: "k", Token: "t", TTL: ttl}})
			_, _ = a.Locker.Acquire(s.Context(), "k", "t", ttl)
			_, _ = a.Renew(s.Context(), "k", "t", ttl)
			_, _ = a.RenewBatch(s.Context(), []dlock.Renewal{renewal})
			_, _ = a.Vote(s.Context(), "k", "t", ttl, 0)
			_, _ = a.AcquireVote(s.Context(), "k", "t", ttl, 0, 1)
			_, _ = a.Confirm(s.Context(), []quorum.Confirmation{{Renewal: renewal}})
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

// A fence is the last one + 8, or the server's time if that is larger.
func TestFenceRule(t *testing.T) {
	for name, c := range map[string]struct{ last, rest, want int64 }{ // the last fence and the next, from now, and the TTL of the counter
		"none":                {-1 << 49, 1, 0},
		"no TTL, old":         {-1000 * second, -1, 0},
		"no TTL, now":         {0, -1, 8},
		"no TTL, ahead":       {second, -1, second + 8},
		"within eight":        {-5, dayInMS, 3},
		"a millisecond ahead": {992, dayInMS, 1000},
		"a bit more":          {993, dayInMS, 1001},
		"eight ago":           {-8, dayInMS, 0},
		"an hour ahead":       {3600 * second, dayInMS, 3600*second + 8},
		"of a longer TTL":     {-11 * second, 2 * dayInMS, 0},
		"about to be removed": {-3600 * second, 1000, 0},
	} {
		atBench(t, "", "k", func(b *bench) {
			b.do("SET", b.keys.counter, b.now()+c.last)
			if c.rest > 0 {
				b.do("PEXPIRE", b.keys.counter, c.rest)
			}
			fence := b.hold("t")
			require.Equal(b, c.want, fence-b.now(), name)
			require.Equal(b, fence, b.fence(), name)
			require.Equal(b, dayInMS+(c.want+999)/1000, b.number("PTTL", b.keys.counter), name)
			time.Sleep(time.Microsecond)
			require.Equal(b, max(fence+8, b.now()), b.hold("t"), "%s: the lock's own token", name)
		})
	}
}

// While the counter is ahead of the clock, it does not go on with the clock: the clock catches up.
func TestFenceAheadOfTheClock(t *testing.T) {
	const exact = 1 << 53 // the largest integer up to which a float64 has them all
	atBench(t, "", "k", func(b *bench) {
		for _, last := range []int64{b.now() + 3600*second, 1<<52 - 1, exact - 25} {
			b.do("SET", b.keys.counter, last, "PX", 2*dayInMS) // as after the clock was set back
			for n := range int64(3) {
				require.Equal(b, last+8*(n+1), b.hold("t"), "fence after %d", last)
				require.Greater(b, b.number("PTTL", b.keys.counter), int64(dayInMS), "TTL of the counter")
				time.Sleep(12 * time.Millisecond)
			}
		}
		ahead := b.now()/10_000*10_000 + 50_000
		b.do("SET", b.keys.counter, ahead, "PX", 2*dayInMS+(ahead-b.now())/1000)
		time.Sleep(time.Duration(ahead-b.now())*time.Microsecond - time.Millisecond)
		require.Equal(b, ahead+8, b.hold("t"))
		require.EqualValues(b, dayInMS+2, b.number("PTTL", b.keys.counter), "a day after the clock has reached it")
		time.Sleep(time.Millisecond)
		require.Equal(b, ahead+16, b.hold("t"))
		time.Sleep(100 * time.Millisecond)
		require.Equal(b, b.now(), b.hold("t"), "the clock has caught up")
	})
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
// clock has reached it, whichever script wrote it last: so the next fence is still the largest.
func TestFencesRiseAfterAClockError(t *testing.T) {
	const day = 24 * time.Hour
	for name, write := range map[string]func(b *bench, last int64){
		"acquire": func(b *bench, _ int64) { b.hold("A") },
		"ticket":  func(b *bench, _ int64) { b.do("SET", b.keys.lock, "other"); b.wait("A", "") },
		"release": func(b *bench, _ int64) {
			b.hold("A")
			b.wait("B", b.listen("inbox").inbox)
			b.release("A")
			require.Equal(b, "B", b.holder())
		},
		"vote": func(b *bench, _ int64) { b.vote("A", 0) },
		"confirm": func(b *bench, last int64) {
			b.do("DEL", b.keys.counter)
			b.do("SET", b.keys.lock, "A", "PX", "60000")
			b.confirm("A", last)
		},
		"pass": func(b *bench, _ int64) {
			b.hold("A")
			b.wait("B", b.listen("inbox").inbox)
			require.True(b, b.pass("A", "B", 0))
			require.Equal(b, "B", b.holder())
		},
	} {
		for _, idle := range []time.Duration{day + time.Hour, 2*day + time.Hour, 3*day + 23*time.Hour} {
			atBench(t, "", "k", func(b *bench) {
				b.server.SetClock(3 * day)
				first := b.hold("A")
				b.server.SetClock(0)
				b.expire()
				write(b, first)
				last := b.fence()
				require.GreaterOrEqual(b, last, first, name)
				time.Sleep(idle)
				b.do("DEL", b.keys.lock)
				require.GreaterOrEqual(b, b.hold("later"), last+8, "%s, fence %v later", name, idle)
			})
		}
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
		for name, call := range map[string]func() error{
			"TryAcquire":    func() error { _, err := a.TryAcquire(s.Context(), "k", "A", ttl); return err },
			"TryAcquireSet": func() error { _, err := a.TryAcquireSet(s.Context(), setOf("k")); return err },
			"Renew":         func() error { _, err := a.Renew(s.Context(), "k", "A", ttl); return err },
			"Release":       func() error { _, err := a.Release(s.Context(), "k", "A"); return err },
			"Inspect":       func() error { _, err := a.Inspect(s.Context(), "k"); return err },
			"Vote":          func() error { _, err := a.Vote(s.Context(), "k", "A", ttl, 0); return err },
			"Confirm": func() error {
				ballots, err := a.Confirm(s.Context(), []quorum.Confirmation{{Renewal: dlock.Renewal{Key: "k", Token: "A", TTL: ttl}}})
				require.NoError(s, err)
				return ballots[0].Err
			},
		} {
			for _, reply := range []any{nil, "1", []any{}, []any{int64(1)}, []any{"A", "1"}, []any{"A", int64(1), int64(2), int64(3), int64(4)}} {
				a.replies(reply, nil)
				err := call()
				require.ErrorIs(s, err, rediscore.ErrUnexpected, "%s: %v", name, reply)
				require.False(s, dlock.NoEffect(err), "%s: %v", name, reply)
			}
		}
	})
}
