package adaptertest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

// Rights returns the commands of docs/security.md that give a user its rights. A server without
// rights to channels (before Redis 6.2) gets the commands without them.
func Rights(t *testing.T, page string, server *redistest.Server) (commands [][]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	if _, err := server.Do("ACL", "SETUSER", "default", "allchannels"); err != nil {
		text = regexp.MustCompile(`resetchannels &\S+ `).ReplaceAll(text, nil)
	}
	for _, line := range regexp.MustCompile(`(?m)^ACL SETUSER .*$`).FindAllString(string(text), -1) {
		commands = append(commands, strings.Fields(line))
	}
	require.Greater(t, len(commands), 3)
	return commands
}

// TLSExample runs an example on a server that requires TLS and a user, with the commands of
// docs/security.md as they stand there.
func TLSExample(t *testing.T, example func()) {
	server := redistest.StartTLS(t)
	for _, command := range Rights(t, "../../docs/security.md", server.Server)[:2] {
		do(t, server.Server, command...)
	}
	t.Setenv("REDIS_ADDR", server.TLSAddr)
	t.Setenv("REDIS_PASSWORD", "PASSWORD")
	for _, file := range []string{"REDIS_CA", "REDIS_CERT", "REDIS_KEY"} {
		t.Setenv(file, server.PEM)
	}
	example()
	keys := server.Keys(t)
	require.Len(t, keys, 1, "only the fence stays: the lock was acquired and released")
	require.Regexp(t, `^app:\{.*\}dlock1:fence$`, keys[0])
}

// What the proxies of rented clusters accept in a script, by its text: a command is named by a literal, its keys are
// literally KEYS[1] and so on, and KEYS stands nowhere else.
var (
	redisCall  = regexp.MustCompile(`redis\.p?call\(`)
	plainCall  = regexp.MustCompile(`redis\.p?call\('(?:TIME'|[A-Z]+'(?:, KEYS\[\d\])+[,)])`)
	forbidden  = regexp.MustCompile(`\b(?:unpack|[PS]?(?:UN)?SUBSCRIBE|S?PUBLISH|PUBSUB)\b`)
	badScript  = "ERR bad lua script for redis cluster, "
	literals   = badScript + "first parameter of redis.call/redis.pcall must be a single literal string"
	keysArray  = badScript + "all the keys that the script uses should be passed using the KEYS array, and KEYS should not be in expression"
	nestedCall = badScript + "redis.call/redis.pcall should not be nested"
)

// RefuseText returns the error with which such a proxy refuses a script, or "". The rules are those of Tair: "Lua scripting in
// Tair (Redis OSS-compatible)", and its support for KEYS[i] in a loop. A comment counts, too: who knows.
func RefuseText(source string) string {
	rest := plainCall.ReplaceAllString(source, "")
	switch {
	case forbidden.MatchString(source):
		return badScript + forbidden.FindString(source) + " is not supported"
	case strings.Contains(rest, "KEYS"):
		return keysArray
	case strings.Contains(rest, "redis."):
		return literals
	}
	for _, call := range redisCall.Split(source, -1)[1:] {
		if open(call) {
			return nestedCall
		}
	}
	return ""
}

// open reports whether the call of which a text is the rest is not closed in it.
func open(rest string) bool {
	depth := 1
	for _, c := range rest {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return false
			}
		}
	}
	return true
}
