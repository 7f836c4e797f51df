package rediscore_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

// A release whose handover fails still frees the lock. The waiter is granted it when it checks in, or, if it has
// lost its place, when it returns.
func TestHandoverFails(t *testing.T) {
	for command, lost := range map[string]bool{"ZRANGE": false, "TIME": false, "HMGET": false, "ZREMRANGEBYRANK": false, "HDEL": true, "HSET": true, "SET": true} {
		atBench(t, "", "k", func(b *bench) {
			ear := b.listen("inbox")
			b.hold("H")
			b.wait("A", ear.inbox)
			before := b.store()
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
			before.Holder, before.Rests[lockKey] = "", absent
			require.Equal(b, before, b.store(), command)
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

// A waiter without the right to publish finds that out when it registers its inbox.
func TestMayNotPublish(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		b.hold("H")
		b.wait("A", "")
		b.forbid("PUBLISH")
		_, err := b.eval(rediscore.CheckInScript, "A", "pinbox")
		require.True(b, rediscore.Forbidden(err), "%v", err)
		require.NotContains(b, b.store().Fields[":A"], "inbox")
		require.Equal(b, rediscore.AnswerWaits, b.answer(b.checkIn("A", "")), "without an inbox")
		b.forbid()
		b.checkIn("A", "pinbox")
		b.forbid("PUBLISH")
		require.Equal(b, rediscore.AnswerDeaf, b.answer(b.checkIn("A", "pinbox")), "with an inbox that is known")
	})
}

// A waiter whose user lacks a right for the queue gets an error that says so, and leaves nothing. So does a Client.
func TestMayNotWait(t *testing.T) {
	for _, command := range []string{"HSET", "ZADD", "PUBLISH", "PEXPIRE", "ZRANK", "PTTL"} {
		atBench(t, "", "k", func(b *bench) {
			b.hold("H")
			b.forbid(command)
			if command != "ZRANK" { // which is called last
				_, err := b.eval(rediscore.EnqueueScript, "A", "60000", "pinbox", "")
				require.True(b, rediscore.Forbidden(err), "without %s: %v", command, err)
			}
			if command != "PTTL" { // which attempts need
				c := dlock.New(b.locker)
				defer c.Close()
				_, err := c.Acquire(b.Context(), "k")
				require.ErrorIs(b, err, dlock.ErrInvalid)
				require.True(b, rediscore.Forbidden(err), "without %s: %v", command, err)
				time.Sleep(time.Second)
				synctest.Wait()
			}
			b.forbid()
			require.Empty(b, b.queue(), command)
			b.release("H")
			require.Equal(b, []string{b.keys.counter}, b.server.Keys(), "what is left without %s", command)
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
		require.True(b, must(b.locker.Pass(b.Context(), b.key, "A", "B", 0))(b))
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
			"renew": rediscore.RenewScript, "release": rediscore.ReleaseScript, "free": rediscore.Scripts["free"],
		} {
			atBench(t, "", "k", func(b *bench) {
				prepare(b)
				b.fails(sim.Faults{Writes: "READONLY You can't write against a read only replica."})
				_, err := b.eval(script, "stranger", "60000")
				require.ErrorContains(b, err, "READONLY", "%s, %s", name, state)
			})
		}
	}
}

// crowd puts n waiters behind the others, who have the same inbox. They are not heard of again.
func (b *bench) crowd(n int64, name, inbox string) {
	last := b.now()
	for _, ticket := range b.texts("ZRANGE", b.keys.queue, -1, -1, "WITHSCORES") {
		last = max(last, number(ticket))
	}
	fields := []any{"HSET", b.keys.waiters}
	for i := int64(1); i <= n; i++ {
		b.do("ZADD", b.keys.queue, last+i, fmt.Sprint(name, i))
		fields = append(fields, fmt.Sprint(":", name, i), fmt.Sprint(time.Now().UnixMicro(), " 60000 0 ", inbox))
	}
	b.do(fields...)
	b.do("PEXPIRE", b.keys.queue, 60_000)
	b.do("PEXPIRE", b.keys.waiters, 60_000)
	b.do("HDEL", b.keys.waiters, "arrival") // which does not know them
}

// waiting returns the number of waiters.
func (b *bench) waiting() int64 { return b.number("ZCARD", b.keys.queue) }

// attend lets time pass, in which waiters check in every three seconds.
func (b *bench) attend(d time.Duration, inbox string, tokens ...string) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(3*time.Second, time.Until(end)))
		for _, token := range tokens {
			b.checkIn(token, inbox)
		}
	}
}

// One call removes about 5,000 dead waiters, a hundred at a time, and does nothing else then. It asks about each inbox once.
func TestBoundedWork(t *testing.T) {
	for name, args := range map[string][]string{
		"release": {"S"}, "acquire": {"S", "60000"}, "enqueue": {"S", "60000"}, "checkin": {"A", "pinbox"}, "pass": {"S", "", "0"}, "releases": {"S", "T"},
		"vote": {"S", "60000", "0"}, "enlist": {"S", "60000", "", "1", "", "0"}, "attend": {"A", "pinbox"},
	} {
		for _, free := range []bool{true, false} {
			atBench(t, "", "k", func(b *bench) {
				b.hold("S")
				b.crowd(2_550, "silent", "panother")
				time.Sleep(6 * time.Second)
				b.crowd(2_550, "dead", "pnobody")
				if free {
					b.expire()
				}
				reply := must(b.conn.Eval(b.Context(), b.locker.ScriptCall(rediscore.Scripts[name], "k", args...)))(b)
				require.Equal(b, free || slices.Contains([]string{"release", "releases", "pass"}, name), reply == rediscore.Unswept, name)
			})
		}
	}
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
			const rounds = 50
			sum, calls := b.cost.Commands, make(map[string]int)
			b.cost.Calls = calls
			for i := range rounds {
				time.Sleep(pause)
				require.EqualValues(b, 1, b.release(fmt.Sprint(i+1)))
				b.wait(fmt.Sprint(i+10), ear.inbox)
			}
			if pause == 0 {
				want := map[string]int{"GET": 3, "ZRANGE": 1, "TIME": 2, "HMGET": 2, "PUBSUB": 1, "ZREMRANGEBYRANK": 1, "HDEL": 1,
					"PTTL": 1, "HSET": 2, "SET": 2, "PUBLISH": 1, "ZADD": 1, "ZRANK": 1}
				for command := range calls {
					require.Equal(b, rounds*want[command], calls[command], command)
				}
			}
			const scripts = 2
			require.LessOrEqual(b, b.cost.Commands-sum, rounds*(22-scripts), "%v", calls)
		})
	}
}

// A Locker repeats a call that has more dead waiters before it than one call removes. So the first waiter that is alive is
// served in one Release, and nobody is refused a lock that only the dead wait for.
func TestThousandsOfDeadWaiters(t *testing.T) {
	atBench(t, "", "k", func(b *bench) {
		ear := b.listen("inbox")
		b.hold("H")
		b.crowd(10_100, "dead", "pnobody")
		b.wait("A", ear.inbox)
		require.True(b, must(b.locker.Release(b.Context(), "k", "H"))(b))
		require.Len(b, ear.heard(), 1)
		b.crowd(5_100, "dead", "pnobody")
		require.True(b, must(b.locker.Release(b.Context(), "k", "A"))(b))
		require.Equal(b, []string{b.keys.counter}, b.server.Keys(), "what is left")
		for name, acquire := range map[string]func(token string) (dlock.Attempt, error){
			"TryAcquire": func(token string) (dlock.Attempt, error) {
				return b.locker.TryAcquire(b.Context(), "k", token, time.Minute)
			},
			"Acquire": func(token string) (dlock.Attempt, error) {
				return b.locker.Acquire(b.Context(), "k", token, time.Minute)
			},
		} {
			b.crowd(5_100, "dead", "pnobody")
			a := must(acquire(name))(b)
			require.True(b, a.Acquired, name)
			require.Equal(b, name, b.holder())
			require.EqualValues(b, 1, b.release(name))
		}
		require.False(b, must(b.locker.Release(b.Context(), "k", "A"))(b))
	})
}

// Servers have Lua 5.1, 5.4 or another one, and some return scores as floats. The scripts must do the same on all of
// them, with integers. Debian's lua5.4 and its like run them here, with the commands of a simulated server.
func TestLuaVersions(t *testing.T) {
	for _, version := range []string{"lua5.1", "lua5.3", "lua5.4"} {
		t.Run(version, func(t *testing.T) {
			path, err := exec.LookPath(version)
			if err != nil {
				t.Skipf("%s is not installed", version)
			}
			ran := make(map[string]bool)
			for seed := uint64(0); seed < 10 && (seed < uint64(6/israce.Slower) || len(ran) < len(rediscore.Scripts)); seed++ {
				atBench(t, "", "k", func(b *bench) {
					b.run = startLua(b.T, path, b.server, seed%2 == 1).eval
					b.random(seed, 200, []string{"A", "B", "C", "w1"})
					maps.Copy(ran, b.ran)
				})
			}
			require.Len(t, ran, len(rediscore.Scripts), "scripts that have succeeded")
		})
	}
}

// A Locker without a queue sends texts that the proxies of rented clusters accept.
func TestPlainTexts(t *testing.T) {
	for _, name := range []string{"acquire-plain", "release-plain", "renew", "inspect", "free", "holder", "slots"} {
		require.Empty(t, adaptertest.RefuseText(rediscore.Scripts[name].Source), name)
	}
	for _, text := range []string{
		"local call = redis.call return call('GET', KEYS[1])", "redis.call(ARGV[1], KEYS[1])", "redis.call('GET', 'k')", "redis.call('GET', key)",
		"redis.call('GET', KEYS[i])", "redis.call('GET', KEYS[1] .. 'x')", "if KEYS[2] then end", "for i = 1, #KEYS do end", "-- KEYS[1]  the lock",
		"redis.call('DEL', unpack(ARGV))", "redis.call('PUBLISH', KEYS[1], '')", "redis.call('SET', KEYS[1], tonumber(redis.call('GET', KEYS[2])))",
	} {
		require.NotEmpty(t, adaptertest.RefuseText(text), text)
	}
}

// A luaProcess runs testdata/redis.lua. The commands are those of a simulated server.
type luaProcess struct {
	*testing.T
	server *sim.Server
	floats bool
	in     io.Writer
	out    *json.Decoder
}

func startLua(t *testing.T, path string, server *sim.Server, floats bool) *luaProcess {
	cmd := exec.Command(path, "testdata/redis.lua")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		fmt.Fprintln(in, "return nil")
		in.Close() // in the middle of a script, if the test has failed
		err := cmd.Wait()
		require.True(t, err == nil || t.Failed(), "%v", err)
	})
	l := &luaProcess{t, server, floats, in, json.NewDecoder(out)}
	l.out.UseNumber()
	require.Equal(t, []any{"ready"}, l.hear())
	return l
}

func (l *luaProcess) hear() (said []any) {
	require.NoError(l, l.out.Decode(&said))
	return said
}

func (l *luaProcess) eval(s *rediscore.Script, keys, args []string) (any, error) {
	answer := fmt.Sprintf("return %s, %s, %s", luaText(s.Source), luaTexts(keys), luaTexts(args))
	for {
		fmt.Fprintln(l.in, answer)
		switch said := l.hear(); said[0] {
		case "done":
			return l.integers(said[1]), nil
		case "failed":
			return nil, fmt.Errorf("%v", said[1])
		default:
			answer = l.command(said[1:])
		}
	}
}

// command executes a command, and returns Lua that returns the reply.
func (l *luaProcess) command(said []any) string {
	args := make([]string, len(said))
	for i, arg := range said {
		require.NotNil(l, arg, "%q", said)
		args[i] = fmt.Sprint(arg)
	}
	reply, err := l.server.Do(args...)
	if err != nil {
		return fmt.Sprintf("error(%s, 0)", luaText(err.Error()))
	}
	if all, ok := reply.([]any); ok && l.floats && args[len(args)-1] == "WITHSCORES" {
		for i := 1; i < len(all); i += 2 {
			all[i], err = strconv.ParseFloat(all[i].(string), 64)
			require.NoError(l, err)
		}
	}
	return "return " + l.literal(reply)
}

// literal is a reply to a command in Lua.
func (l *luaProcess) literal(v any) string {
	switch v := v.(type) {
	case string:
		return luaText(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return fmt.Sprintf("%.17e", v) // with an exponent it is a float
	case []any:
		all := make([]string, len(v))
		for i := range v {
			all[i] = l.literal(v[i])
		}
		return "{" + strings.Join(all, ",") + "}"
	}
	return "false"
}

func luaTexts(all []string) string {
	var b strings.Builder
	for _, text := range all {
		b.WriteString(luaText(text) + ",")
	}
	return "{" + b.String() + "}"
}

func luaText(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			fmt.Fprintf(&b, `\%03d`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return `"` + b.String() + `"`
}

// integers is the reply of a script, whose numbers must be integers: a server may return others as texts.
func (l *luaProcess) integers(v any) any {
	switch v := v.(type) {
	case json.Number:
		n := must(v.Int64())(l)
		return n
	case []any:
		for i := range v {
			v[i] = l.integers(v[i])
		}
	}
	return v
}
