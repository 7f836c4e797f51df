package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock/examples/inventory/internal/sell"
	"github.com/dlock-go/dlock/internal/redistest"
)

const asProgram = "INVENTORY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main() // which exits
	}
	// go-redis ends this one up to a second after Close.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// A process sells on a server that others use too. Another is interrupted when it holds the lock. It
// leaves one counter of fences, which expires. A server that hangs or is away is reported.
func TestProgramOnRedis(t *testing.T) {
	for _, backend := range []string{"goredis", "rueidis", "redigo"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			program := func(addr, stock, hold string) *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-backend", backend, "-redis", addr, "-stock", stock, "-hold", hold)
				cmd.Env = append(os.Environ(), asProgram+"=1", "GOCOVERDIR="+t.TempDir())
				return cmd
			}
			out, err := program(server.Addr(), "100", "1ms").CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Regexp(t, `(?s)all +\d{3} +100 .*oversold by +[1-9]\d* +0\n.*shop     refused it: `, string(out))

			cmd := program(server.Addr(), "2", "2s")
			require.NoError(t, cmd.Start())
			require.Eventually(t, func() bool { return strings.Contains(fmt.Sprint(server.Keys(t)), "{stock}:") },
				30*time.Second, 10*time.Millisecond, "nobody took the lock")
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			_ = cmd.Wait()
			require.Equal(t, sell.ExitInterrupted, cmd.ProcessState.ExitCode())
			keys := server.Keys(t)
			require.Len(t, keys, 1)
			require.Regexp(t, `^dlock-inventory:\{\w+\}dlock1:fence$`, keys[0])
			rest, err := server.Do("PTTL", keys[0])
			require.NoError(t, err)
			require.Positive(t, rest)

			server.Suspend()
			for _, addr := range []string{server.Addr(), "127.0.0.1:1"} {
				cmd := program(addr, "1", "0")
				out, _ := cmd.CombinedOutput()
				require.Equal(t, sell.ExitFailed, cmd.ProcessState.ExitCode())
				require.Regexp(t, `^inventory: cannot use `+backend+`: [^\n]+\n$`, string(out))
			}
			server.Resume()
			require.Equal(t, keys, server.Keys(t))
		})
	}
}

func TestFlags(t *testing.T) {
	for args, says := range map[string]string{
		"extra":                     `unexpected argument "extra"`,
		"-workers 0":                "-workers 0, ",
		"-stock x":                  `invalid value "x"`,
		"-backend etcd":             `-backend "etcd": must be one of goredis, `,
		"-backend redigo -redis me": `-redis "me": must be host:port`,
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, sell.ExitUsage, sell.Run(t.Context(), &program{}, strings.Fields(args), &stdout, &stderr))
		require.Empty(t, stdout.String())
		require.Contains(t, stderr.String(), "inventory: "+says)
	}
	var stdout, stderr bytes.Buffer
	require.Zero(t, sell.Run(t.Context(), &program{}, []string{"-h"}, &stdout, &stderr))
	require.Regexp(t, `(?s)-backend.*-hold.*-redis.*-stock.*-workers`, stdout.String())
}
