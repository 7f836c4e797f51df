package rediserr_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/rediserr"
)

func TestRefusal(t *testing.T) {
	const (
		redis6 = "ERR Error running script (call to f_d0d1): @user_script:62: @user_script: 62: "
		redis7 = " script: d0d1, on @user_script:62."

		final     = rediserr.Request
		state     = rediserr.State
		temporary = rediserr.Temporary
		none      = rediserr.Class(0)
	)
	for text, want := range map[string]rediserr.Class{
		"NOPERM this user has no permissions to run the 'evalsha' command":                 final,
		"NOAUTH Authentication required.":                                                  final,
		"WRONGPASS invalid username-password pair or user is disabled.":                    final,
		"DENIED Redis is running in protected mode":                                        final,
		"OOM command not allowed when used memory > 'maxmemory'.":                          state,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL.":              state,
		"MOVED 3999 127.0.0.1:6381":                                                        final,
		"ERR unknown command `EVALSHA`, with args beginning with: ":                        final,
		"ERR max number of clients reached":                                                state,
		"unknown command `EVALSHA`, with args beginning with: ":                            final, // rueidis leaves ERR out
		"max number of clients reached":                                                    state,
		"AUTH <password> called without any password configured for the default user.":     final,
		"an unknown command":                                                               none,
		"LOADING Redis is loading the dataset in memory":                                   temporary,
		"TRYAGAIN Multiple keys request during rehashing of slot":                          temporary,
		"CLUSTERDOWN Hash slot not served":                                                 temporary,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": temporary,
		"READONLY You can't write against a read only replica.":                            temporary,
		"READONLY You can't write against a read only replica." + redis7:                   temporary,
		redis6 + "-READONLY You can't write against a read only replica.":                  temporary,
		"OOM command not allowed when used memory > 'maxmemory'." + redis7:                 state,
		redis6 + "-OOM command not allowed when used memory > 'maxmemory'.":                state,
		redis6[len("ERR "):] + "-OOM command not allowed.":                                 state, // rueidis leaves ERR out
		redis6 + "-MISCONF Errors writing to the AOF file: No space left on device":        state,
		redis6 + "-NOREPLICAS Not enough good replicas to write.":                          state,
		"ERR max number of clients + cluster connections reached":                          state,
		"MISCONF Redis is configured to save RDB snapshots" + redis7:                       state,
		"NOREPLICAS Not enough good replicas to write." + redis7:                           state,
		"ERR The user executing the script can't run this command or subcommand" + redis7:  none,
		"NOPERM User dlock has no permissions to run the 'zadd' command" + redis7:          none,
		"WRONGTYPE Operation against a key holding the wrong kind of value" + redis7:       none,
		redis6 + "WRONGTYPE Operation against a key holding the wrong kind of value":       none,
		redis6 + "The user executing the script can't run this command or subcommand":      none,
		"read tcp 127.0.0.1:1->127.0.0.1:2: i/o timeout":                                   none,
		"CROSSSLOT Keys in request don't hash to the same slot":                            final,
		"ERR CROSSSLOT Attempted to access keys that don't hash to the same slot":          final, // Kvrocks
		"ERR eval/evalsha command keys must be in same slot":                               final, // Tair
		"eval/evalsha command keys must be in same slot":                                   final,
		"ERR Script attempted to access keys that do not hash to the same slot" + redis7:   none,
		"ERR upstream failure":    none,
		"EOF":                     none,
		"ERR something else":      none,
		"BUSYKEY something else":  none,
		"a hook: NOPERM of what?": none,
	} {
		require.Equal(t, want, rediserr.Refusal(text), text)
	}
}

func TestQuestions(t *testing.T) {
	const redis7 = " script: d0d1, on @user_script:62."
	for _, c := range []struct {
		ask   func(text string) bool
		texts map[string]bool
	}{
		{rediserr.InScript, map[string]bool{
			"WRONGTYPE Operation script: d0d1, on @user_script:62.":     true,
			"ERR Error running script (call to f_d0d1): WRONGTYPE text": true,
			"WRONGTYPE Operation against a key":                         false,
		}},
		{rediserr.Unsupported, map[string]bool{
			"ERR unknown command 'PUBLISH', with args beginning with: ":                 true,
			"ERR This Redis command is not allowed from script" + redis7:                true,
			"ERR bad lua script for redis cluster":                                      true,
			"NOPERM User u has no permissions to run the 'wait' command":                true,
			"ERR upstream failure":                                                      false,
			"ERR command timed out":                                                     false,
			"OOM command not allowed when used memory > 'maxmemory'.":                   false,
			"WRONGTYPE Operation against a key" + redis7:                                false,
			"ERR Script attempted to access a non local key in a cluster node" + redis7: false,
			"ERR Script killed by user with SCRIPT KILL." + redis7:                      false,
		}},
		{rediserr.NonLocal, map[string]bool{
			"ERR Script attempted to access a non local key in a cluster node script: d0d1, on @user_script:62.":                    true,
			"ERR Error running script (call to f_d0d1): @user_script: 62: Lua script attempted to access a non local key in a node": true,
			"Error running script (call to f_d0d1): @user_script: 62: Lua script attempted to access a non local key in a node":     true,
			"ERR unknown command `EVAL`, with args beginning with: `non local key`":                                                 false,
		}},
		{rediserr.Unserving, map[string]bool{
			"READONLY You can't write against a read only replica.":                                                  true,
			"READONLY You can't write against a read only replica. script: d0d1, on @user_script:62.":                true,
			"ERR Error running script (call to f_d0d1): @user_script:62: @user_script: 62: -READONLY You can't":      true,
			"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                       true,
			"LOADING Redis is loading the dataset in memory":                                                         true,
			"NOREPLICAS Not enough good replicas to write.":                                                          false,
			"MOVED 3999 127.0.0.1:6381":                                                                              false,
			"ERR Error running script (call to f_d0d1): @user_script:62: WRONGTYPE Operation against a key READONLY": false,
			"": false,
		}},
	} {
		for text, want := range c.texts {
			require.Equal(t, want, c.ask(text), text)
		}
	}
}

func TestRedirection(t *testing.T) {
	for text, want := range map[string]struct {
		address string
		asking  bool
	}{
		"MOVED 3999 127.0.0.1:6381": {"127.0.0.1:6381", false},
		"ASK 3999 127.0.0.1:6381":   {"127.0.0.1:6381", true},
		"MOVED 3999":                {},
		"ASKED 3999 127.0.0.1:6381": {},
		"ASK for 2 addresses":       {},
		"":                          {},
	} {
		address, asking := rediserr.Redirection(text)
		require.Equal(t, want.address, address, text)
		require.Equal(t, want.asking, asking, text)
	}
}

// The answer is in the innermost error. It is not known which of several that are joined it is.
func TestAnswer(t *testing.T) {
	answer, other := errors.New("OOM"), errors.New("EOF")
	require.Equal(t, "OOM", rediserr.Answer(answer))
	require.Empty(t, rediserr.Answer(nil))
	require.Equal(t, "OOM", rediserr.Answer(fmt.Errorf("dialing: %w", answer)))
	for _, joined := range []error{errors.Join(answer), errors.Join(other, answer), fmt.Errorf("%w: %w", answer, other)} {
		require.Empty(t, rediserr.Answer(joined))
		require.Empty(t, rediserr.Answer(fmt.Errorf("dialing: %w", joined)))
	}
}
