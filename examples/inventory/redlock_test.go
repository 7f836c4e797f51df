package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/redistest"
)

func TestRedlockGoesOnWhenAServerIsKilled(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := runWith(t, "-backend", "redlock", "-kill", "50ms", "-workers", "4", "-stock", "40", "-hold", "5ms")
	require.Empty(t, stderr)
	require.Zero(t, status)
	_, with := row(t, stdout, "all")
	require.Equal(t, 40, with)
	_, with = row(t, stdout, "oversold by")
	require.Zero(t, with)
	require.Regexp(t, `(?m)^2 of the 3 will vote in \d\S*s\.$`, stdout)
	killed := regexp.MustCompile(`(?m)^Server (\S+) was killed, \d+ms after the sale`).FindStringSubmatch(stdout)
	require.NotNil(t, killed, stdout)
	requireCalls(t, stdout, killed[1])
}

// The servers are real, one is killed by the test, and the others keep nothing.
func TestRedlockOnServersOfOthers(t *testing.T) {
	t.Parallel()
	var servers []*redistest.Server
	var addrs []string
	for range 3 {
		servers = append(servers, redistest.Start(t))
		addrs = append(addrs, servers[len(servers)-1].Addr())
	}
	victim := servers[2]
	var status int
	var stdout, stderr string
	done := make(chan struct{})
	go func() {
		defer close(done)
		status, stdout, stderr = runWith(t, "-backend", "redlock", "-redis", strings.Join(addrs, ","),
			"-workers", "4", "-stock", "40", "-hold", "20ms")
	}()
	require.Eventually(t, func() bool {
		return strings.Contains(fmt.Sprint(victim.Keys(t)), prefix+"{stock}:")
	}, 30*time.Second, 10*time.Millisecond, "nobody took the lock")
	victim.Kill()
	<-done
	require.Empty(t, stderr)
	require.Zero(t, status)
	_, with := row(t, stdout, "oversold by")
	require.Zero(t, with)
	require.Contains(t, stdout, "Server "+victim.Addr()+" did not answer, ")
	requireCalls(t, stdout, victim.Addr())
	for _, s := range servers[:2] {
		for _, key := range s.Keys(t) {
			require.Regexp(t, `dlock1:(fence|birth)$`, key, "left behind")
		}
	}
}

func TestRedlockFailsWithoutAMajority(t *testing.T) {
	t.Parallel()
	addrs := redistest.Start(t).Addr() + ",127.0.0.1:1,127.0.0.1:2"
	status, stdout, stderr := runWith(t, "-backend", "redlock", "-redis", addrs)
	require.Equal(t, exitFailed, status)
	require.Empty(t, stdout)
	require.Regexp(t, `^inventory: cannot use the servers at `+addrs+`: [^\n]+ 2 are needed: [^\n]+\n$`, stderr)
}

// requireCalls looks at the table of calls: the lost server answered none, and the others went on.
func requireCalls(t *testing.T, stdout, lost string) {
	t.Helper()
	rows := regexp.MustCompile(`(?m)^ *(\S+:\d+) +(\d+) +(\d+) +(\d+)$`).FindAllStringSubmatch(stdout, -1)
	require.Len(t, rows, 3, stdout)
	for _, row := range rows {
		after, err := strconv.Atoi(row[3])
		require.NoError(t, err)
		require.NotEqual(t, "0", row[2], stdout)
		if row[1] == lost {
			require.NotEqual(t, "0", row[4], stdout)
		} else {
			require.Positive(t, after, stdout)
		}
	}
}
