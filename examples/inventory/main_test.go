package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/fence"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main() // which exits
	}
	// go-redis ends this one up to a second after Close.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func TestRunSellsExactlyTheStockWithTheLock(t *testing.T) {
	status, stdout, stderr := runWith(t, "-workers", "4", "-stock", "12", "-hold", "2ms")
	require.Zero(t, status)
	require.Empty(t, stderr)
	without, with := row(t, stdout, "all")
	require.Equal(t, 12, with)
	require.Greater(t, without, 12)
	without, with = row(t, stdout, "oversold by")
	require.Zero(t, with)
	require.Positive(t, without)
	require.Contains(t, stdout, "shop     refused it: fence: a later holder has been here: ")
}

func TestRunWithOneWorkerOversellsNothing(t *testing.T) {
	status, stdout, _ := runWith(t, "-workers", "1", "-stock", "3", "-hold", "0", "-backend", "memory")
	require.Zero(t, status)
	without, with := row(t, stdout, "all")
	require.Equal(t, 3, without)
	require.Equal(t, 3, with)
}

func TestRunRefusesWrongFlags(t *testing.T) {
	for _, test := range []struct {
		args   []string
		naming string
	}{
		{[]string{"-workers", "0"}, "-workers 0"},
		{[]string{"-workers", "1001"}, "-workers 1001"},
		{[]string{"-workers", "many"}, `"many"`},
		{[]string{"-workers"}, "-workers"},
		{[]string{"-stock", "-1"}, "-stock -1"},
		{[]string{"-stock", "1000001"}, "-stock 1000001"},
		{[]string{"-hold", "-1ms"}, "-hold -1ms"},
		{[]string{"-hold", "5"}, `"5"`},
		{[]string{"-backend", "etc"}, `-backend "etc"`},
		{[]string{"-backend", "goredis", "-redis", ""}, `-redis ""`},
		{[]string{"-backend", "goredis", "-redis", "localhost"}, `-redis "localhost"`},
		{[]string{"-backend", "rueidis", "-redis", "localhost:"}, `-redis "localhost:"`},
		{[]string{"-backend", "rueidis", "-redis", ":6379"}, `-redis ":6379"`},
		{[]string{"-backend", "redigo", "-redis", "localhost:0"}, `-redis "localhost:0"`},
		{[]string{"-backend", "redigo", "-redis", "localhost:65536"}, `-redis "localhost:65536"`},
		{[]string{"-backend", "mixed", "-redis", "localhost:redis"}, `-redis "localhost:redis"`},
		{[]string{"-backend", "mixed", "-redis", "redis://localhost:6379"}, `-redis "redis://localhost:6379"`},
		{[]string{"-backend", "mixed", "-redis", "::1:6379"}, `-redis "::1:6379"`},
		{[]string{"-redis", "localhost:6379"}, "-redis localhost:6379: -backend memory uses no server"},
		{[]string{"-backend", "redlock", "-redis", ""}, `-redis ""`},
		{[]string{"-backend", "redlock", "-redis", "a:1,b:1"}, `-redis "a:1,b:1": must be three or five`},
		{[]string{"-backend", "redlock", "-redis", "a:1,b:1,c:1,d:1"}, `-redis "a:1,b:1,c:1,d:1": must be three or five`},
		{[]string{"-backend", "redlock", "-redis", "a:1,b,c:1"}, `"b" must be host:port`},
		{[]string{"-backend", "redlock", "-redis", "a:1,b:1,a:1"}, "a:1 must not be there twice"},
		{[]string{"-backend", "redlock", "-kill", "-1s"}, "-kill -1s"},
		{[]string{"-backend", "redlock", "-redis", "a:1,b:1,c:1", "-kill", "1s"}, "-kill 1s: only for -backend redlock without -redis"},
		{[]string{"-kill", "1s"}, "-kill 1s"},
		{[]string{"-colour"}, "-colour"},
		{[]string{"sell"}, `"sell"`},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			status, stdout, stderr := runWith(t, test.args...)
			require.Equal(t, exitUsage, status)
			require.Empty(t, stdout)
			require.Regexp(t, `^inventory: [^\n]+\n$`, stderr)
			require.Contains(t, stderr, test.naming)
		})
	}
}

func TestRunHelps(t *testing.T) {
	status, stdout, stderr := runWith(t, "-h")
	require.Zero(t, status)
	require.Empty(t, stderr)
	for _, flag := range []string{"-workers", "-stock", "-hold", "-backend", "-redis", "-kill"} {
		require.Contains(t, stdout, flag)
	}
}

func TestRunEndsWhenInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { interrupt(errors.New("interrupted")) })
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitInterrupted, run(ctx, []string{"-hold", "1h"}, &stdout, &stderr))
	require.Equal(t, "inventory: interrupted\n", stderr.String())
}

func TestRunFailsIfItsOutputIsNotWritten(t *testing.T) {
	var stderr bytes.Buffer
	require.Equal(t, exitFailed, run(t.Context(), []string{"-stock", "1"}, fullDisk{}, &stderr))
	require.Equal(t, "inventory: no space left\n", stderr.String())
}

func TestShowFailsIfTheStoreDoesNotAnswer(t *testing.T) {
	refused := errors.New("connection refused")
	locks := memory.New()
	locks.Fail(refused)
	store := newStore([]dlock.Locker{locks}, func() error { return nil })
	defer store.close()
	var stdout bytes.Buffer
	err := show(t.Context(), config{workers: 1, stock: 1}, store, &stdout)
	require.ErrorIs(t, err, refused)
	require.Empty(t, stdout.String(), "sold before the store answered")
}

func TestVerdictIsHonest(t *testing.T) {
	sold := func(n int) *sale { return &sale{shop: &shop{sold: n}} }
	refused := &lateness{refusal: fence.ErrStale}
	require.NoError(t, verdict(2, sold(2), refused))
	require.ErrorContains(t, verdict(2, sold(3), refused), "3 were sold of a stock of 2")
	require.ErrorContains(t, verdict(2, sold(1), refused), "1 were sold of a stock of 2")
	require.ErrorContains(t, verdict(2, sold(2), &lateness{}), "not refused")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func runWith(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	status = run(t.Context(), args, &out, &err)
	return status, out.String(), err.String()
}

// row returns the two numbers of a row of the table.
func row(t *testing.T, table, name string) (without, with int) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^ *` + name + ` +(\d+) +(\d+)( |$)`).FindStringSubmatch(table)
	require.NotNil(t, found, "no row %q in:\n%s", name, table)
	without, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	with, err = strconv.Atoi(found[2])
	require.NoError(t, err)
	return without, with
}
