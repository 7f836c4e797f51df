package rediscore

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEverySlotHasATag(t *testing.T) {
	seen := make(map[string]bool)
	for slot, tag := range tags() {
		require.Len(t, tag, tagLength, "slot %d", slot)
		require.Equal(t, slot, Slot(tag))
		require.Equal(t, slot, Slot("any prefix{"+tag+"}any suffix"))
		require.False(t, seen[tag])
		seen[tag] = true
	}
}
