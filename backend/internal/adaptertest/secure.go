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
