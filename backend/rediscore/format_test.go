package rediscore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/quorum"
	"github.com/dlock-go/dlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A wireConn is a minimal Conn over one connection. It records the keys of the last call.
type wireConn struct {
	Conn
	redis redis.Conn
	keys  []string
}

func (c *wireConn) Eval(_ context.Context, call Call) (any, error) {
	c.keys = call.Keys()
	args := call.Append([]any{call.Script.Source})
	reply, err := c.redis.Do("EVAL", args...)
	return text(reply), err
}

func (c *wireConn) Cluster() bool { return false }

// text converts the []byte of a reply to strings.
func text(reply any) any {
	switch r := reply.(type) {
	case []byte:
		return string(r)
	case []any:
		for i := range r {
			r[i] = text(r[i])
		}
	}
	return reply
}

// wire returns a Locker on a server of its own, and a connection to that server.
func wire(t testing.TB, prefix string, args ...string) (*Locker, *wireConn) {
	t.Helper()
	server := redistest.Start(t, args...)
	conn, err := redis.Dial("tcp", server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	c := &wireConn{redis: conn}
	return New(c, WithPrefix(prefix)), c
}

func (c *wireConn) integer(t testing.TB, command string, args ...any) int64 {
	t.Helper()
	n, err := redis.Int64(c.redis.Do(command, args...))
	require.NoError(t, err, "%s %q", command, args)
	return n
}

func (c *wireConn) text(t testing.TB, command string, args ...any) string {
	t.Helper()
	s, err := redis.String(c.redis.Do(command, args...))
	require.NoError(t, err, "%s %q", command, args)
	return s
}

func (c *wireConn) all(t testing.TB) []string {
	t.Helper()
	keys, err := redis.Strings(c.redis.Do("KEYS", "*"))
	require.NoError(t, err)
	return keys
}

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
	_, c := wire(t, "")
	for _, n := range names {
		l := New(c, WithPrefix(n.prefix))
		fence, queue, waiters := n.beside+"fence", n.beside+"queue:"+n.key, n.beside+"waiters:"+n.key
		all := []string{n.lock, fence, queue, waiters}
		attempt, err := l.TryAcquire(t.Context(), n.key, "token", time.Minute)
		require.NoError(t, err, "%q", n)
		require.True(t, attempt.Acquired, "%q", n)
		require.Equal(t, all, c.keys, "keys of an attempt")
		require.ElementsMatch(t, []string{n.lock, fence}, c.all(t), "keys on the server")
		for _, s := range []*Script{enqueueScript, checkInScript} {
			_, err = l.eval(t.Context(), s, n.key, "waiter", "60000", "", "")
			require.NoError(t, err)
			require.Equal(t, all, c.keys, "keys of a waiter's call")
			require.ElementsMatch(t, all, c.all(t), "keys on the server while somebody waits")
		}
		held, err := l.Renew(t.Context(), n.key, "token", time.Minute)
		require.NoError(t, err)
		require.True(t, held)
		require.Equal(t, []string{n.lock}, c.keys, "keys of a renewal")
		hold, err := l.Inspect(t.Context(), n.key)
		require.NoError(t, err)
		require.Equal(t, "token", hold.Token)
		require.Equal(t, 1, hold.Waiting)
		require.Equal(t, all[:3], c.keys, "keys of an inspection")
		held, err = l.Release(t.Context(), n.key, "waiter")
		require.NoError(t, err)
		require.False(t, held)
		require.Equal(t, all, c.keys, "keys of a release")
		held, err = l.Release(t.Context(), n.key, "token")
		require.NoError(t, err)
		require.True(t, held)
		require.Equal(t, []string{fence}, c.all(t), "keys that stay")
		require.Equal(t, n.beside+"inbox:NAME", companion(n.prefix, Slot(n.lock), inboxSuffix+"NAME"))
		c.text(t, "FLUSHALL")
	}
}

func TestStoredValues(t *testing.T) {
	l, c := wire(t, "p:")
	for _, token := range []string{"token", "a\x00\r\n{}\xff", "42"} {
		attempt, err := l.TryAcquire(t.Context(), "k", token, time.Minute)
		require.NoError(t, err)
		require.True(t, attempt.Acquired)
		lock, fence := c.keys[0], c.keys[1]
		require.Equal(t, token, c.text(t, "GET", lock))
		require.Equal(t, strconv.FormatInt(attempt.Fence, 10), c.text(t, "GET", fence))
		rest := c.integer(t, "PTTL", lock)
		require.LessOrEqual(t, rest, int64(60_000))
		require.Greater(t, rest, int64(50_000))
		requireADay(t, c, fence)
		held, err := l.Release(t.Context(), "k", token)
		require.NoError(t, err)
		require.True(t, held)
	}
}

// A fraction of a millisecond is rounded up, so that no lease ends before its TTL has passed.
func TestStoredTTL(t *testing.T) {
	l, c := wire(t, "")
	_, err := l.TryAcquire(t.Context(), "k", "t", 1234567*time.Microsecond)
	require.NoError(t, err)
	rest := c.integer(t, "PTTL", "k")
	require.True(t, 1000 < rest && rest <= 1235, "PTTL after a grant for 1234.567 ms: %d", rest)
	_, err = l.Renew(t.Context(), "k", "t", 2345678*time.Microsecond)
	require.NoError(t, err)
	rest = c.integer(t, "PTTL", "k")
	require.True(t, 2000 < rest && rest <= 2346, "PTTL after a renewal for 2345.678 ms: %d", rest)
	const ttl = 20999 * time.Microsecond
	for range 10 {
		require.EqualValues(t, 1, c.integer(t, "DEL", "k"))
		called := time.Now()
		_, err := l.TryAcquire(t.Context(), "k", "t", ttl)
		require.NoError(t, err)
		for held := true; held; {
			hold, err := l.Inspect(t.Context(), "k")
			require.NoError(t, err)
			held = hold.Held
		}
		require.GreaterOrEqual(t, time.Since(called), ttl, "the lease has ended")
		_, err = l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
	}
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
		f := new(fakeConn)
		f.eval = func(context.Context, Call) (any, error) { return nil, errDown }
		l := New(&batchConn{fakeConn: f})
		renewal := dlock.Renewal{Key: "k", Token: "t", TTL: ttl}
		_, _ = l.TryAcquire(t.Context(), "k", "t", ttl)
		_, _ = l.Acquire(t.Context(), "k", "t", ttl)
		_, _ = l.Renew(t.Context(), "k", "t", ttl)
		_, _ = l.RenewBatch(t.Context(), []dlock.Renewal{renewal})
		_, _ = l.Vote(t.Context(), "k", "t", ttl, 0)
		_, _ = l.AcquireVote(t.Context(), "k", "t", ttl, 0, 1)
		_, _ = l.Confirm(t.Context(), []quorum.Confirmation{{Renewal: renewal}})
		require.NoError(t, l.Close())
		scripts := make(map[*Script]bool)
		for i, call := range f.evals(0) {
			if call.script == releaseScript {
				continue
			}
			scripts[call.script] = true
			require.Equal(t, want, call.args[1], "TTL of %v in call %d", ttl, i)
		}
		require.Len(t, scripts, 6)
	}
}

func requireADay(t *testing.T, c *wireConn, key string) {
	t.Helper()
	const day = 24 * time.Hour
	rest := time.Duration(c.integer(t, "PTTL", key)) * time.Millisecond
	require.LessOrEqual(t, rest, day, "TTL of %q", key)
	require.Greater(t, rest, day-time.Minute, "TTL of %q", key)
}

// While a fleet is updated, programs with different versions of the scripts share locks. If you
// change a script, make sure that both versions work together, and then change its sum here.
func TestScripts(t *testing.T) {
	want := map[string]string{
		"acquire": "ff943dde9982d367120924615bb1d61e7f2eb523",
		"enqueue": "4509d4baba99a4e3b9ccfb3b451405cd2574bcdc",
		"checkin": "0a5bde9993418c4e05e3cd68eb605f26ba76931b",
		"renew":   "c5ad43762fe1f5f3c9e6517e3506ea8b04967942",
		"release": "c2fadd4596a32ae35179f717621e73a0e391aea0",
		"free":    "b93a84a49367174f2d6c250135cca8fb74eff965",
		"inspect": "ba277cd42fabc7472e2b181b0b450c709a279baa",
		"holder":  "014c6089c19f35b58e2d17f80e02a777cea081d6",
		"vote":    "b94a4547fa8df1cd64536e3690cf51039eb97b5f", "enlist": "7f4bace8b9198033731a7372aafb16aa176b5892", "attend": "3cd0733b89f822663bcfd4bd4bc672c5dce0f392", "confirm": "8f171530ad993627c1ba0cffab6f80f5e8b4a44f", "pass": "62686cdcd8f3505d55ddaf24d552626efcacc429",
	}
	require.Equal(t, want, map[string]string{
		"acquire": acquireScript.SHA,
		"enqueue": enqueueScript.SHA,
		"checkin": checkInScript.SHA,
		"renew":   renewScript.SHA,
		"release": releaseScript.SHA,
		"free":    freeScript.SHA,
		"inspect": inspectScript.SHA,
		"holder":  holderScript.SHA,
		"vote":    voteScript.SHA, "enlist": enlistScript.SHA, "attend": attendScript.SHA, "confirm": confirmScript.SHA, "pass": passScript.SHA,
	})
}

func TestTags(t *testing.T) {
	for slot, tag := range map[int]string{0: "06S", 1: "2Gx", 4095: "6iL", 8192: "8YG", 12182: "9Le", 16382: "4oi", 16383: "6ZJ"} {
		require.Equal(t, tag, tags()[slot], "tag of slot %d", slot)
	}
	sum := sha256.Sum256([]byte(strings.Join(tags()[:], "\n")))
	require.Equal(t, "7a054f633dfec7d4e50c354f45b12681f45794aa42bd40c49c1e897efee85454", hex.EncodeToString(sum[:]), "of all tags, one a line")
}

const dayInMS = 24 * 60 * 60 * 1000

// A fence is the last one + 8, or the server's time if that is larger.
func TestFenceRule(t *testing.T) {
	l, c := wire(t, "")
	fence := func() int64 {
		attempt, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		require.Equal(t, strconv.FormatInt(attempt.Fence, 10), c.text(t, "GET", c.keys[1]))
		return attempt.Fence
	}
	before := c.now(t)
	first := fence()
	require.GreaterOrEqual(t, first, before)
	require.LessOrEqual(t, first, c.now(t))
	counter := c.keys[1]
	for _, last := range []int64{0, 1, first} {
		c.text(t, "SET", counter, last)
		before := c.now(t)
		require.GreaterOrEqual(t, fence(), max(before, first+8), "fence after %d, which is behind the time", last)
		requireADay(t, c, counter)
	}
	require.Eventually(t, func() bool {
		c.text(t, "SET", counter, first, "PX", dayInMS)
		return fence() == first+8
	}, time.Minute, time.Nanosecond, "fence after one that is less than 10 ms old")
	c.text(t, "SET", counter, first-first%10_000+9_995, "PX", dayInMS-12)
	require.GreaterOrEqual(t, fence(), first-first%10_000+9_995+8, "fence after one that was close to the end of its window")
	requireADay(t, c, counter)
	for _, rest := range []int{dayInMS - 11_000, dayInMS + 60_000, 1000} {
		c.text(t, "SET", counter, first, "PX", rest)
		before := c.now(t)
		require.GreaterOrEqual(t, fence(), before, "fence after one with a TTL of %d ms", rest)
		requireADay(t, c, counter)
	}
	ahead := first + 3_600_000_000
	c.text(t, "SET", counter, ahead, "PX", dayInMS-1000)
	require.GreaterOrEqual(t, fence(), ahead+990_000, "fence after one that is a second old")
	c.text(t, "SET", counter, ahead, "PX", dayInMS-11_000)
	require.Equal(t, ahead+8, fence(), "fence after one that is more than ten seconds old, and ahead of the time")
	c.text(t, "SET", counter, first, "PX", dayInMS-1000)
	fence()
	requireADay(t, c, counter)
	c.text(t, "FLUSHALL")
	require.Greater(t, fence(), first, "fence after the loss of all data")
}

// While the counter is ahead of the clock, it does not go on with the clock: the clock catches up.
func TestFenceAheadOfTheClock(t *testing.T) {
	l, c := wire(t, "")
	attempt, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
	require.NoError(t, err)
	counter := c.keys[1]
	const exact = 1 << 53 // the largest integer up to which a float64 has them all
	for _, last := range []int64{attempt.Fence + 3_600_000_000, 1<<52 - 1, exact - 25} {
		c.text(t, "SET", counter, last, "PX", 2*dayInMS) // as after the clock was set back
		for n := range int64(3) {
			attempt, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
			require.NoError(t, err)
			require.Equal(t, last+8*(n+1), attempt.Fence, "fence after %d", last)
			require.Greater(t, c.integer(t, "PTTL", counter), int64(dayInMS), "TTL of the counter")
			time.Sleep(12 * time.Millisecond)
		}
	}
	c.text(t, "SET", counter, c.now(t)+50_000, "PX", 2*dayInMS)
	require.Eventually(t, func() bool {
		_, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		return c.integer(t, "PTTL", counter) <= dayInMS
	}, time.Minute, time.Millisecond, "the clock catches up")
}

// A clock was ahead, is corrected, and nobody asks for a fence for long. The counter stays until the
// clock has reached it, whichever script wrote it last: so the next fence is still the largest.
func TestFencesRiseAfterAClockError(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	wrong, right := redistest.StartAhead(t, 3*day), redistest.Start(t)
	later := map[time.Duration]*redistest.Server{}
	for _, idle := range []time.Duration{day + time.Hour, 2*day + time.Hour, 3*day + 23*time.Hour} {
		later[idle] = redistest.StartAhead(t, idle)
	}
	fence := func(t *testing.T, s *redistest.Server, key string) int64 {
		attempt, err := New(plain(t, s.Addr())).TryAcquire(t.Context(), key, "later", time.Minute)
		require.NoError(t, err)
		require.True(t, attempt.Acquired)
		return attempt.Fence
	}
	for name, write := range map[string]func(b *bench, l *Locker, last int64){
		"acquire": func(b *bench, _ *Locker, _ int64) { b.hold("A") },
		"ticket":  func(b *bench, _ *Locker, _ int64) { b.text(b, "SET", b.lock.texts[0], "other"); b.wait("A", "") },
		"release": func(b *bench, _ *Locker, _ int64) {
			b.hold("A")
			b.wait("B", b.listen("inbox").inbox)
			b.release("A")
			require.Equal(b, "B", b.holder())
		},
		"vote": func(b *bench, l *Locker, _ int64) { vote(b.T, l, b.key, "A", 0) },
		"confirm": func(b *bench, l *Locker, last int64) {
			b.text(b, "SET", b.lock.texts[0], "A", "PX", "60000")
			confirm(b.T, l, b.key, "A", last)
		},
		"pass": func(b *bench, l *Locker, _ int64) {
			b.hold("A")
			b.wait("B", b.listen("inbox").inbox)
			require.True(b, pass(b.T, l, b.key, "A", "B", 0))
			require.Equal(b, "B", b.holder())
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := fence(t, wrong, name)
			b := benchOn(t, right, "", name)
			counter := b.lock.texts[1]
			if name != "confirm" {
				copyKey(t, wrong, right, counter)
			}
			write(b, voter(t, right), first)
			last := b.integer(t, "GET", counter)
			require.GreaterOrEqual(t, last, first)
			for idle, server := range later {
				copyKey(t, right, server, counter)
				require.GreaterOrEqual(t, fence(t, server, name), last+8, "fence %v later", idle)
			}
		})
	}
}

// copyKey copies a key to a server with another clock. It expires at the same time there, by that clock.
func copyKey(t *testing.T, from, to *redistest.Server, key string) {
	t.Helper()
	c, err := redis.Dial("tcp", from.Addr())
	require.NoError(t, err)
	defer c.Close()
	w := &wireConn{redis: c}
	expires := w.now(t)/1000 + w.integer(t, "PTTL", key)
	_, err = to.Do("RESTORE", key, strconv.FormatInt(expires, 10), w.text(t, "DUMP", key), "ABSTTL")
	require.NoError(t, err)
}

// Fences that follow each other quickly never lead the clock: if all data is lost, the first fence
// after that is larger.
func TestFencesNeverLead(t *testing.T) {
	l, c := wire(t, "")
	for begun := time.Now(); time.Since(begun) < 300*time.Millisecond; {
		attempt, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		const ahead = 3_000 // the server's time of a call is cut to milliseconds
		require.Less(t, attempt.Fence, c.now(t)+ahead)
		for range 50 {
			attempt, err = l.TryAcquire(t.Context(), "k", "t", time.Minute)
			require.NoError(t, err)
		}
		require.Less(t, attempt.Fence, c.now(t)+ahead)
	}
}

// formerMint is the rule of an earlier version. While a fleet is updated, both are in use.
const formerMint = `
local remaining = redis.call('PTTL', KEYS[1])
if remaining <= 86400000 - 10 or remaining > 86400000 then
  local time = redis.call('TIME')
  local last = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), time[1] * 1000000 + time[2] - 8)
  redis.call('SET', KEYS[1], string.format('%.0f', last), 'PX', 86400000)
end
return redis.call('INCRBY', KEYS[1], 8)`

// Fences rise and keep up with the server's time, whatever the pauses between them, and whichever
// version makes them.
func TestFencesKeepUpWithTime(t *testing.T) {
	for name, former := range map[string]bool{"one version": false, "two versions": true} {
		t.Run(name, func(t *testing.T) {
			l, c := wire(t, "")
			last := int64(0)
			for n := range 100 {
				before := c.now(t)
				var fence int64
				if former && rand.IntN(2) == 0 && n > 0 {
					fence = c.integer(t, "EVAL", formerMint, 1, c.keys[1])
				} else {
					attempt, err := l.TryAcquire(t.Context(), "k", "t", time.Minute)
					require.NoError(t, err)
					fence = attempt.Fence
				}
				after := c.now(t)
				require.GreaterOrEqual(t, fence, last+8)
				require.Greater(t, fence, before-1e6)
				require.Less(t, fence, after+1e6)
				last = fence
				time.Sleep(rand.N(8 * time.Millisecond >> rand.IntN(4)))
			}
		})
	}
}

func (c *wireConn) now(t testing.TB) int64 {
	t.Helper()
	time, err := redis.Int64s(c.redis.Do("TIME"))
	require.NoError(t, err)
	return time[0]*1_000_000 + time[1]
}

// Locks leave at most one counter for each slot, and it expires.
func TestCountersAreFew(t *testing.T) {
	t.Parallel()
	l, c := wire(t, "myapp:lock:")
	used := make(map[int]bool)
	for i := range 10_000 {
		key := fmt.Sprint("order:", i)
		attempt, err := l.TryAcquire(t.Context(), key, "t", time.Minute)
		require.NoError(t, err)
		require.True(t, attempt.Acquired, key)
		held, err := l.Release(t.Context(), key, "t")
		require.NoError(t, err)
		require.True(t, held, key)
		used[Slot("myapp:lock:"+key)] = true
	}
	left := c.all(t)
	require.Len(t, left, len(used))
	for _, name := range left {
		require.Regexp(t, `^myapp:lock:\{[0-9A-Za-z]{3}\}dlock1:fence$`, name)
		requireADay(t, c, name)
	}
}
