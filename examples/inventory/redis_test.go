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

	"github.com/dlock-go/dlock/internal/redistest"
)

var onRedis = []string{"goredis", "rueidis", "redigo", "mixed"}

// All four run at once on one server, which others use too.
func TestRunOnRedisSellsExactlyTheStock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	_, err := server.Do("SET", "another's", "1")
	require.NoError(t, err)
	t.Run("group", func(t *testing.T) {
		for _, backend := range onRedis {
			t.Run(backend, func(t *testing.T) {
				t.Parallel()
				status, stdout, stderr := runWith(t, "-backend", backend, "-redis", server.Addr(),
					"-workers", "6", "-stock", "20", "-hold", "2ms")
				require.Empty(t, stderr)
				require.Zero(t, status)
				_, with := row(t, stdout, "all")
				require.Equal(t, 20, with)
				_, with = row(t, stdout, "oversold by")
				require.Zero(t, with)
				require.Contains(t, stdout, "shop     refused it: fence: a later holder has been here: ")
			})
		}
	})
	requireOnlyFences(t, server, "another's")
}

func TestMixedWorkersUseAllLibrariesInTurn(t *testing.T) {
	t.Parallel()
	cfg := config{workers: 7, backend: "mixed", redis: redistest.Start(t).Addr()}
	lockers, hangUp, err := dial(cfg)
	require.NoError(t, err)
	defer hangUp()
	var labels []string
	for i, locker := range lockers {
		labels = append(labels, cfg.label(i))
		for j, other := range lockers {
			require.Equal(t, i%3 == j%3, locker == other, "workers %d and %d share a client", i, j)
		}
	}
	require.Equal(t, []string{"1 goredis", "2 rueidis", "3 redigo", "4 goredis", "5 rueidis", "6 redigo", "7 goredis"}, labels)
}

func TestRunsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for range 2 {
		store, err := open(config{workers: 1, backend: "goredis", redis: server.Addr()})
		require.NoError(t, err)
		defer store.close()
		lease, err := store.client(0).TryAcquire(t.Context(), store.key)
		require.NoError(t, err)
		defer lease.Release()
	}
	require.Len(t, server.Keys(t), 3, "two locks, and one counter of fences")
}

func TestProgramFailsIfTheServerIsUnreachable(t *testing.T) {
	t.Parallel()
	const addr = "127.0.0.1:1"
	for _, backend := range onRedis {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			requireFailure(t, backend, addr)
		})
	}
}

func TestProgramFailsIfTheServerHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Suspend()
	t.Run("group", func(t *testing.T) {
		for _, backend := range onRedis {
			t.Run(backend, func(t *testing.T) {
				t.Parallel()
				requireFailure(t, backend, server.Addr())
			})
		}
	})
	server.Resume()
	require.Empty(t, server.Keys(t))
}

// A worker holds the lock when the program is interrupted.
func TestProgramCleansUpWhenInterrupted(t *testing.T) {
	t.Parallel()
	for _, backend := range onRedis {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			cmd, stderr := program(t, "-backend", backend, "-redis", server.Addr(), "-stock", "8", "-hold", "500ms")
			require.NoError(t, cmd.Start())
			require.Eventually(t, func() bool {
				return strings.Contains(fmt.Sprint(server.Keys(t)), prefix+"{stock}:")
			}, 20*time.Second, 10*time.Millisecond, "nobody took the lock")
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			_ = cmd.Wait()
			require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode())
			require.Regexp(t, `^inventory: interrupt[^\n]*\n$`, stderr.String())
			requireOnlyFences(t, server)
		})
	}
}

// requireFailure runs the program, which must fail soon and name
// addr in the one line that it and the client libraries write to stderr.
func requireFailure(t *testing.T, backend, addr string) {
	t.Helper()
	const limit = 30 * time.Second // on a busy machine
	cmd, stderr := program(t, "-backend", backend, "-redis", addr)
	begin := time.Now()
	_ = cmd.Run()
	require.Less(t, time.Since(begin), limit)
	require.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
	require.Regexp(t, `^inventory: cannot use the server at `+addr+`: [^\n]+\n$`, stderr.String())
}

// requireOnlyFences looks for one counter of fences, which expires, and the
// others.
func requireOnlyFences(t *testing.T, server *redistest.Server, others ...string) {
	t.Helper()
	keys := server.Keys(t)
	require.Len(t, keys, 1+len(others), "%q", keys)
	require.Subset(t, keys, others)
	for _, key := range keys {
		if strings.HasPrefix(key, prefix) {
			require.Regexp(t, "^"+prefix+`\{\w+\}dlock1:fence$`, key)
			rest, err := server.Do("PTTL", key)
			require.NoError(t, err)
			require.Positive(t, rest)
		}
	}
}

const asProgram = "INVENTORY_TEST_AS_PROGRAM"

// program is the test binary, which TestMain makes behave as the program.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "GOCOVERDIR="+t.TempDir())
	stderr = new(bytes.Buffer)
	cmd.Stderr = stderr
	return cmd, stderr
}
