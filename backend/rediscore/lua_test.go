package rediscore_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/adaptertest"
	"github.com/dlock-go/dlock/backend/rediscore"
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
