package dlock

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
		require.LessOrEqual(t, len(got), maxOwner)
	}
	own := HostOwner()
	require.Contains(t, own, fmt.Sprintf("[%d]", os.Getpid()))
	require.Equal(t, own, HostOwner())
}
