package dlock

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var anyBytes = rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) })

func drawDetached(t *rapid.T) detached {
	return detached{
		key:   string(rapid.SliceOfN(rapid.Byte(), 1, maxKey).Draw(t, "key")),
		token: "t" + anyBytes.Draw(t, "token"),
		fence: rapid.Int64Range(0, math.MaxInt64).Draw(t, "fence"),
		step:  rapid.IntRange(1, maxSteps).Draw(t, "step"),
	}
}

// TestDetachedArrivesWhole: what is marshalled comes back, whatever bytes key and token have.
func TestDetachedArrivesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := drawDetached(t)
		text, err := Detached{&sent}.MarshalText()
		require.NoError(t, err)
		var got Detached
		require.NoError(t, got.UnmarshalText(text))
		require.Equal(t, sent, *got.secret)
	})
}

// TestDetachedChangedOnItsWay: text with one character changed, or cut off, is refused.
func TestDetachedChangedOnItsWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := drawDetached(t)
		text := sent.text()
		i := rapid.IntRange(0, len(text)-1).Draw(t, "position")
		require.ErrorIs(t, new(Detached).UnmarshalText(text[:i]), ErrInvalid)
		text[i] ^= byte(rapid.IntRange(1, 127).Draw(t, "change"))
		require.ErrorIs(t, new(Detached).UnmarshalText(text), ErrInvalid)
	})
}

// TestDetachedHasOneText: of all texts with the right check sum, those that are accepted are
// those that MarshalText returns.
func TestDetachedHasOneText(t *testing.T) {
	number := rapid.SampledFrom([]string{"\x00", "\x01", "\x02", "\x80\x00", "\x81\x00", "\x80\x01", "\x81\x80\x00", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"})
	rapid.Check(t, func(t *rapid.T) {
		b := []byte{rapid.Byte().Draw(t, "step") % (maxSteps + 2)}
		b = append(b, number.Draw(t, "fence")...)
		b = append(b, number.Draw(t, "size")...)
		b = append(b, anyBytes.Draw(t, "rest")...)
		b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
		text := detachedText.AppendEncode([]byte(detachedPrefix), b)
		var h Detached
		if h.UnmarshalText(text) == nil {
			require.Equal(t, string(text), string(h.secret.text()))
		}
	})
}

// TestDetachedWithLineBreaks: package base64 reads over them, which is not the same text.
func TestDetachedWithLineBreaks(t *testing.T) {
	text, err := Detached{&detached{key: "k", token: "t", step: 1}}.MarshalText()
	require.NoError(t, err)
	require.NoError(t, new(Detached).UnmarshalText(text))
	for _, end := range []string{"\n", "\r"} {
		require.ErrorIs(t, new(Detached).UnmarshalText([]byte(string(text)+end)), ErrInvalid)
	}
}

// TestOwnerArrivesWhole: a token tells its owner's label, whatever bytes that has.
func TestOwnerArrivesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		owner := anyBytes.Draw(t, "owner")
		require.Equal(t, owner, ownerOf(newToken(owner)))
	})
}
