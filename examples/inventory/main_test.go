package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
	"github.com/dlock-go/dlock/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	for _, test := range []struct {
		args   string
		status int
		stdout string // a regular expression
		stderr string // likewise
	}{
		{"-workers 4 -stock 12 -hold 2ms", 0, `without a lock +-?\d+ left +\d+ sold\n(?s:.*)with a lock +0 left +12 sold\n`, `^$`},
		{"-workers 1 -stock 3 -hold 0", 0, `sold +3 +3 (?s:.*)oversold by +0 +0`, `^$`},
		{"-h", 0, `(?s)-hold.*-stock.*-workers`, `^$`},
		{"-workers 0", exitUsage, `^$`, `^inventory: -workers 0.*\n$`},
		{"-workers many", exitUsage, `^$`, `^inventory: .*"many".*\n$`},
		{"-stock -1", exitUsage, `^$`, `^inventory: .*-stock -1.*\n$`},
		{"-hold -1ms", exitUsage, `^$`, `^inventory: .*-hold -1ms.*\n$`},
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

// Leases are stolen in the middle of sales, and what is sold is exactly the stock all the same.
func TestSaleSurvivesLostLeases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memory.New()
		locks := dlock.New(store, dlock.WithTTL(2*time.Second), dlock.WithFence(true))
		defer locks.Close()
		s := newSale("", config{workers: 3, stock: 20, hold: 10 * time.Second}, locks)
		done := make(chan error, 1)
		go func() { done <- s.run(t.Context()) }()
		for range 5 {
			time.Sleep(14 * time.Second)
			store.Expire(key)
			time.Sleep(14 * time.Second)
			store.Steal(key, time.Second)
		}
		require.NoError(t, <-done)
		require.Equal(t, [2]int{0, 20}, [2]int{s.left, s.sold})
	})
}
