package hashslot_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/backend/internal/hashslot"
)

// The first is the check value of CRC-16/XMODEM. The others are what CLUSTER KEYSLOT says.
func TestOf(t *testing.T) {
	for key, want := range map[string]int{
		"123456789": 0x31C3 % hashslot.Number, "": 0, "foo": 12182, "{foo}bar": 12182, "a{foo}{bar}": 12182,
		"{}foo": 9500, "foo{}{bar}": 8363, "foo{{bar}}zap": 4015, "{foo": 13308,
	} {
		require.Equal(t, want, hashslot.Of(key), key)
	}
}

func TestEverySlotHasATag(t *testing.T) {
	seen := make(map[string]bool)
	for slot, tag := range hashslot.Tags() {
		require.Len(t, tag, 3, "slot %d", slot)
		require.Equal(t, slot, hashslot.Of(tag))
		require.Equal(t, slot, hashslot.Of("any prefix{"+tag+"}any suffix"))
		require.False(t, seen[tag])
		seen[tag] = true
	}
}
