package sim_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/sim"
)

// What a full server refuses, and one whose user lacks rights, and what the scripts that ran until then
// have written.
func TestRefusalsAsRedis(t *testing.T) {
	w := newTwins(t)
	config := func(args ...any) {
		t.Helper()
		require.NoError(t, w.redis.Do(t.Context(), args...).Err(), "%q", args)
	}
	scripts := []string{
		"return redis.call('SET', 'k', 1)", "return redis.call('HSET', 'h', 'f', 1)", "return redis.call('ZADD', 'z', 1, 'm')",
		"return redis.call('GET', 'k')", "return redis.call('DEL', 'k')", "return redis.call('PEXPIRE', 'k', 100000)", "return redis.call('HDEL', 'h', '')",
		"redis.call('HDEL', 'none', '') return redis.call('SET', 'k', 2)", "redis.call('DEL', 'none') return redis.call('ZADD', 'z', 2, 'm2')",
		"redis.call('GET', 'k') return redis.call('SET', 'k', 3)", "redis.call('HDEL', 'none', '') return redis.call('HSET', 'h', 'g', 4)",
		"return redis.pcall('SET', 'k', 5)", "return {pcall(redis.call, 'SET', 'k', 6)}", "return redis.call('PUBLISH', 'c', 'm')", "return redis.call('PUBSUB', 'NUMSUB', 'c')[2]",
		"redis.call('HSET', 'h', 'late', 1) return redis.call('ZADD', 'z', 7, 'late')", "return redis.pcall('PUBSUB', 'NUMSUB', 'c')[2]",
	}
	const state = "return {redis.call('GET', 'k'), redis.call('HMGET', 'h', 'f', 'g', 'late'), redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')}"
	for name, c := range map[string]struct {
		real, back []any
		simulated  sim.Faults
	}{
		"full": {[]any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}, sim.Faults{Full: true}},
		"no rights": {
			[]any{"ACL", "SETUSER", "default", "-set", "-zadd", "-publish", "-pubsub", "-hdel"}, []any{"ACL", "SETUSER", "default", "+@all"},
			sim.Faults{Commands: map[string]string{"SET": noRight, "ZADD": noRight, "PUBLISH": noRight, "PUBSUB": noRight, "HDEL": noRight}},
		},
	} {
		w.restart()
		for _, script := range scripts {
			config(c.real...)
			w.sim.SetFaults(c.simulated)
			real, simulated := w.eval(script, []string{"k"}, nil)
			require.Equal(t, alike(real), alike(simulated), "%s: %s", name, script)
			config(c.back...)
			w.sim.SetFaults(sim.Faults{})
			real, simulated = w.eval(state, []string{"k"}, nil)
			require.Equal(t, real, simulated, "%s, after %s", name, script)
		}
	}
}

const noRight = "ERR The user executing the script can't run this command or subcommand"

// alike is a result with the same words for each version of the server.
func alike(result string) string {
	for _, words := range []string{"The user executing the script", "ACL failure in script"} {
		if strings.Contains(result, words) {
			return "no right"
		}
	}
	return result
}
