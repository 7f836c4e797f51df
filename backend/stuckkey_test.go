package backend_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/clients"
	"github.com/dlock-go/dlock/backend/rediscore"
	"github.com/dlock-go/dlock/internal/redistest"
)

// TestStuckKey runs the commands with which docs/operations.md looks at a key, while one Client holds
// it and another waits. Each finds something.
func TestStuckKey(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	_, chapter, _ := strings.Cut(string(page), "## What to do when a key is stuck")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	commands := regexp.MustCompile(`(?m)^redis-cli (.*)$`).FindAllStringSubmatch(chapter, -1)
	require.GreaterOrEqual(t, len(commands), 4)

	server := redistest.Start(t)
	l, _ := clients.GoRedis.Dial(t, clients.At(server.Addr()), rediscore.WithPrefix("myapp:lock:"))
	client := dlock.New(l)
	lease, err := client.Acquire(t.Context(), "order:7")
	require.NoError(t, err)
	waited := make(chan struct{})
	go func() { defer close(waited); _, _ = client.Acquire(t.Context(), "order:7") }()
	require.Eventually(t, func() bool { return listening(t, server, "myapp:lock:") == 1 }, patient, pause)
	var tag string
	for _, c := range commands {
		args := strings.Fields(strings.NewReplacer("'", "", "{TAG}", tag).Replace(c[1]))
		if args[0] == "--scan" { // as redis-cli does it
			args = []string{"KEYS", args[2]}
		}
		reply := do(t, server, args...)
		require.NotEmpty(t, reply, "%q", args)
		if args[0] == "KEYS" {
			require.Len(t, reply, 2)
			tag = regexp.MustCompile(`\{.*\}`).FindString(reply.([]any)[0].(string))
		}
	}
	require.NoError(t, lease.Release())
	<-waited
	require.NoError(t, client.Close())
	require.NoError(t, l.Close())
}
