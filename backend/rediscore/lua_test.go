package rediscore_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/chance"
	"github.com/dlock-go/dlock/internal/israce"
	"github.com/dlock-go/dlock/internal/sim"
)

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
			for seed := uint64(0); seed < 10 && (seed < uint64(10/israce.Slower) || len(ran) < len(rediscore.Scripts)); seed++ {
				bubble.Test(t, func(t *testing.T) {
					p := newLuaPair(t, seed, path)
					for range 200 {
						p.step(ran)
					}
					p.compare()
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

// A luaPair gets the same calls and commands on two servers, of which one runs the scripts itself.
type luaPair struct {
	*testing.T
	*rand.Rand
	servers [2]*sim.Server
	ears    [2]*sim.Subscription
	lua     *luaProcess
	keys    [5]string
	second  [5]string // the other lock of a set
	refused string    // a command
}

func newLuaPair(t *testing.T, seed uint64, path string) *luaPair {
	p := &luaPair{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), keys: rediscore.KeysOf("", "k", false), second: rediscore.KeysOf("", "l", false)}
	for i := range p.servers {
		end := chance.Seed(seed) // for the same replication ID
		p.servers[i] = sim.NewServer()
		end()
		p.ears[i], _ = p.servers[i].Subscribe("ear", false)
	}
	p.lua = startLua(t, path, p.servers[1], seed%2 == 1)
	return p
}

// What the arguments of the scripts are, in the order of ARGV, and their values. A number is added to the time.
var (
	luaArgs = map[string]string{
		"acquire": "token ttl", "acquire-plain": "token ttl", "acquire-set": "token ttl token ttl", "release": "token", "release-plain": "token", "free": "token",
		"releases": "token token token", "renew": "token ttl", "inspect": "", "holder": "", "slots": "",
		"enqueue": "token ttl inbox ticket patience", "checkin": "token inbox", "vote": "token ttl time", "attend": "token inbox",
		"enlist": "token ttl inbox time patience time", "confirm": "token ttl time", "pass": "token token time",
	}
	luaValues = map[string][]string{
		"token": {"A", "B", "C", "w1"}, "ttl": {"1000", "60000", "31536000000"}, "ticket": {"", "", "1764000000123456"}, "patience": {"", "0", "1500"},
		"inbox": {"pear", "pear", "", "pnobody", "snobody"}, "time": {"0", "1", "900000", "3000000", "-5000000"},
	}
)

// step is a call of a script or, now and then, something else.
func (p *luaPair) step(ran map[string]bool) {
	if p.IntN(4) == 0 {
		p.happen()
		return
	}
	name := p.one(slices.Sorted(maps.Keys(rediscore.Scripts))...)
	kinds, known := luaArgs[name]
	require.True(p, known, "luaArgs has not %s", name)
	var args []string
	for _, kind := range strings.Fields(kinds) {
		arg := p.one(luaValues[kind]...)
		if n, err := strconv.ParseInt(arg, 10, 64); err == nil && kind == "time" && n != 0 {
			arg = strconv.FormatInt(time.Now().UnixMicro()+n, 10)
		}
		args = append(args, arg)
	}
	s := rediscore.Scripts[name]
	keys := p.keys[:s.Keys]
	if s.Keys == 0 {
		keys = slices.Concat(p.keys[:4], p.second[:4])
	}
	want, err := p.servers[0].Eval(s.Source, s.SHA, keys, args)
	got, err2 := p.lua.eval(s, keys, args)
	require.Equal(p, err == nil, err2 == nil, "%s %q: %v, and here %v", name, args, err, err2)
	require.Equal(p, want, got, "%s %q", name, args)
	if p.refused == "" {
		require.NoError(p, err, "%s %q", name, args)
		ran[name] = true
	}
}

func (p *luaPair) one(of ...string) string { return of[p.IntN(len(of))] }

// happen is something that happens to both servers.
func (p *luaPair) happen() {
	do := func(args ...string) {
		for _, s := range p.servers {
			s.Do(args...)
		}
	}
	now := time.Now().UnixMicro()
	switch p.IntN(20) {
	case 0:
		skew := time.Duration(p.IntN(5)-2) * 20 * time.Second
		for _, s := range p.servers {
			s.SetClock(skew)
		}
	case 1, 2:
		p.refused = p.one("", "", "PUBLISH", "PUBSUB", "HLEN", "HGETALL", "ZCARD", "ZRANGE")
		for _, s := range p.servers {
			s.SetFaults(sim.Faults{Commands: map[string]string{p.refused: "NOPERM"}})
		}
	case 3:
		do("DEL", p.keys[1+p.IntN(4)])
	case 4, 5, 6, 7:
		do("DEL", p.keys[0], p.second[0])
	case 8:
		do("SET", p.keys[1], strconv.FormatInt(now+p.Int64N(1e9), 10), "PX", "100000000")
	case 9, 10: // calls with many inboxes have come for long
		fields := []string{"HSET", p.keys[3], "pulse", fmt.Sprint(now, " ", now-70e6)}
		for i := range 1500 {
			fields = append(fields, fmt.Sprint("@i", i), fmt.Sprint(now-80e6))
		}
		do(fields...)
	case 11: // a crowd of waiters, nearly all of which are dead
		fields := []string{"HSET", p.keys[3]}
		for i := range []int{250, 250, 250, 5200}[p.IntN(4)] {
			token := fmt.Sprint("w", i)
			do("ZADD", p.keys[2], fmt.Sprint(i), token)
			fields = append(fields, ":"+token, fmt.Sprint(now-60e6*p.Int64N(3), " 60000 ", p.Int64N(2)*now, " pnobody"), fmt.Sprint("@i", p.IntN(5000)), "1")
		}
		do(fields...)
	default:
		time.Sleep([]time.Duration{0, time.Millisecond, time.Second, 4 * time.Second, time.Minute}[p.IntN(5)])
	}
}

// compare compares what the servers have stored, and the messages.
func (p *luaPair) compare() {
	for _, s := range p.servers {
		s.SetFaults(sim.Faults{})
	}
	require.Equal(p, p.ears[0].Take(), p.ears[1].Take())
	require.Equal(p, p.servers[0].Keys(), p.servers[1].Keys())
	for _, key := range p.servers[0].Keys() {
		require.Equal(p, content(p.servers[0], key), content(p.servers[1], key), key)
	}
}

// content is all that a key has.
func content(s *sim.Server, key string) (all []any) {
	for _, read := range [][]string{{"PTTL", key}, {"GET", key}, {"HGETALL", key}, {"ZRANGE", key, "0", "-1", "WITHSCORES"}} {
		reply, _ := s.Do(read...)
		all = append(all, reply)
	}
	return all
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
		n, err := v.Int64()
		require.NoError(l, err)
		return n
	case []any:
		for i := range v {
			v[i] = l.integers(v[i])
		}
	}
	return v
}
