package token

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHostOwner(t *testing.T) {
	for _, c := range []struct {
		host, program string
		pid           int
		want          string
	}{
		{"web-7", "billing", 4711, "web-7/billing[4711]"},
		{"web\n7\x00", "b\xffl é", 1, "web?7?/b?l é[1]"},
		{strings.Repeat("é", 200), strings.Repeat("p", 300), math.MaxInt, strings.Repeat("é", 58) + "/" + strings.Repeat("p", 116) + "[9223372036854775807]"},
	} {
		got := hostOwner(c.host, c.program, c.pid)
		require.Equal(t, c.want, got)
		require.LessOrEqual(t, len(got), MaxOwner)
	}
	own := HostOwner()
	require.Contains(t, own, fmt.Sprintf("[%d]", os.Getpid()))
	require.Equal(t, own, HostOwner())
}

func TestTokens(t *testing.T) {
	seen := make(map[string]bool)
	started := time.UnixMilli(1_753_000_123_456)
	for range 10_000 {
		made := New("a.b", started.Add(999*time.Microsecond), false)
		require.False(t, seen[made])
		seen[made] = true
		owner, at := Parse(made)
		require.Equal(t, "a.b", owner)
		require.Equal(t, started, at)
	}
	owner, at := Parse(New("", time.UnixMilli(1<<45-1), false))
	require.Empty(t, owner)
	require.Equal(t, time.UnixMilli(1<<45-1), at)
}

// Only tokens of this version have an owner and a time.
func TestParseToken(t *testing.T) {
	random := strings.Repeat("A7", randomChars/2)
	for _, c := range []struct {
		token, owner string
		started      bool
	}{
		{"dlock1." + random + "ABCDEFGHI.web-7", "web-7", true},
		{"dlock1." + random + ".web-7", "", false},
		{"dlock1." + random + "ABCDEFGH.web-7", "", false},
		{"dlock1." + random + "ABCDEFGHI-web-7", "", false},
		{"dlock1." + random + "ABCDEFG1I.web-7", "", false},
		{"dlock1." + random + "ABCDEFGHI", "", false},
		{"dlock3." + random + "ABCDEFGHI.web-7", "", false},
		{"dlock1.", "", false},
		{"", "", false},
	} {
		owner, started := Parse(c.token)
		require.Equal(t, c.owner, owner, c.token)
		require.Equal(t, c.started, !started.IsZero(), c.token)
	}
}

// A token contains its owner's label, which may have any bytes, and when it was made.
func TestOwnerArrivesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		owner := string(rapid.SliceOf(rapid.Byte()).Draw(t, "owner"))
		started := time.UnixMilli(rapid.Int64Range(0, 1<<45-1).Draw(t, "started"))
		got, at := Parse(New(owner, started, len(owner)%2 == 0))
		require.Equal(t, owner, got)
		require.Equal(t, started, at)
	})
}
