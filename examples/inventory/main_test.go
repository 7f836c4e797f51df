package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
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

func TestRun(t *testing.T) {
	for _, test := range []struct {
		args   string
		status int
		stdout string // a regular expression
		stderr string // likewise
	}{
		{"-workers 4 -stock 12 -hold 2ms", 0, `without a lock +-?\d+ left +\d+ sold\n(?s:.*)with a lock      0 left   12 sold\n`, `^$`},
		{"-workers 1 -stock 3 -hold 0", 0, `all +3 +3 (?s:.*)oversold by +0 +0`, `^$`},
		{"-backend redlock -workers 4 -stock 40 -hold 5ms -kill 50ms", 0,
			`2 of the 3 will vote in (?s:.*)Server (\S+) was killed, 50ms after` +
				`.*\n.*\n +\S+ +\d+ +[1-9]\d*\n +\S+ +\d+ +0\n +\S+ +\d+ +[1-9]\d*\n$`, `^$`},
		{"-h", 0, `(?s)-backend.*-hold.*-kill.*-redis.*-stock.*-workers`, `^$`},
		{"-workers 0", exitUsage, `^$`, `^inventory: -workers 0.*\n$`},
		{"-workers many", exitUsage, `^$`, `^inventory: .*"many".*\n$`},
		{"-stock -1", exitUsage, `^$`, `^inventory: .*-stock -1.*\n$`},
		{"-hold -1ms", exitUsage, `^$`, `^inventory: .*-hold -1ms.*\n$`},
		{"-kill 1s", exitUsage, `^$`, `^inventory: -kill 1s.*\n$`},
		{"-backend etc", exitUsage, `^$`, `^inventory: -backend "etc".*\n$`},
		{"-backend goredis -redis localhost", exitUsage, `^$`, `^inventory: -redis "localhost".*\n$`},
		{"sell", exitUsage, `^$`, `^inventory: .*"sell"\n$`},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.status, run(t.Context(), strings.Fields(test.args), &stdout, &stderr), &stderr)
			require.Regexp(t, test.stdout, stdout.String())
			require.Regexp(t, test.stderr, stderr.String())
			if found := oversold.FindStringSubmatch(stdout.String()); found != nil {
				require.Equal(t, "0", found[2], "with the lock")
				require.Equal(t, strings.Contains(test.args, "-workers 1"), found[1] == "0", "without")
				require.Contains(t, stdout.String(), "shop     refused it: fence: a later holder has been here: ")
			}
		})
	}
}

var oversold = regexp.MustCompile(`oversold by +(\d+) +(-?\d+)`)

func TestRunReportsFailures(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitFailed, run(t.Context(), []string{"-stock", "1"}, fullDisk{}, &stderr))
	require.Equal(t, "inventory: no space left\n", stderr.String())

	ctx, interrupt := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { interrupt(errors.New("interrupted")) })
	stderr.Reset()
	require.Equal(t, exitInterrupted, run(ctx, []string{"-hold", "1h"}, &stdout, &stderr))
	require.Equal(t, "inventory: interrupted\n", stderr.String())
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestProgressOnATerminalKeepsToOneLine(t *testing.T) {
	s := newSale("test", config{stock: 4})
	for left, full := range map[int]int{5: 0, 4: 0, 2: 15, 0: 30, -1: 30} {
		s.left = left
		require.Equal(t, fmt.Sprintf("\rtest            %d left   0 sold  [%s%s]\x1b[K", left,
			strings.Repeat("#", full), strings.Repeat(".", 30-full)), s.progress(true))
	}
}

// Leases are stolen in the middle of sales, and what is sold is exactly the stock all the same.
func TestSaleSurvivesLostLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		locks := &locks{Client: dlock.New(store, dlock.WithTTL(ttl)), key: "stock"}
		defer locks.close()
		s := newSale("", config{workers: 3, stock: 20, hold: 10 * time.Second})
		s.locks = locks
		done := make(chan error, 1)
		go func() { done <- s.run(t.Context()) }()
		for range 5 {
			time.Sleep(14 * time.Second)
			store.Expire(locks.key)
			time.Sleep(14 * time.Second)
			store.Steal(locks.key, time.Second)
		}
		require.NoError(t, <-done)
		require.Equal(t, [2]int{0, 20}, [2]int{s.left, s.sold})
	})
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
			require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode())
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
				require.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
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
		"-kill 1s":                  "-kill 1s: only for -backend redlock",
		"-backend etcd":             `-backend "etcd": must be one of goredis, `,
		"-redis other:6379":         `-redis "other:6379": not for -backend memory`,
		"-backend redigo -redis me": `-redis "me": must be host:port`,
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		require.ErrorContains(t, err, says)
	}
	_, err := parse([]string{"-backend", "redlock", "-kill", "1s"}, io.Discard)
	require.NoError(t, err)
}
