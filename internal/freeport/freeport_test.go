package freeport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClaimsAreExclusive(t *testing.T) {
	seen := make(map[int]bool)
	for range 200 {
		claim, port, err := Claim()
		require.NoError(t, err)
		defer claim.Close()
		require.False(t, seen[port])
		require.Less(t, port+bus, 1<<15)
		seen[port] = true
	}
}
