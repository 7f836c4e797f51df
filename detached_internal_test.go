package dlock

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawDetached(t *rapid.T) detached {
	return detached{
		key:   string(rapid.SliceOfN(rapid.Byte(), 1, maxKey).Draw(t, "key")),
		token: "t" + anyBytes.Draw(t, "token"),
		fence: rapid.Int64Range(0, math.MaxInt64).Draw(t, "fence"),
		step:  rapid.IntRange(1, maxSteps).Draw(t, "step"),

		deadline: time.UnixMilli(rapid.Int64().Draw(t, "deadline")),
		held:     time.Duration(rapid.Int64Range(0, maxHeld.Milliseconds()).Draw(t, "held")) * time.Millisecond,
	}
}

var anyBytes = rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) })

// Text unmarshals to what was marshalled; key and token may have any bytes.
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

// Text with one character changed, or cut off, is refused.
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

// Of all texts with the right check sum, only those that MarshalText returns are accepted.
func TestDetachedHasOneText(t *testing.T) {
	number := rapid.SampledFrom([]string{"\x00", "\x01", "\x02", "\x80\x00", "\x81\x00", "\x80\x01", "\x81\x80\x00", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"})
	rapid.Check(t, func(t *rapid.T) {
		b := []byte{rapid.Byte().Draw(t, "step") % (maxSteps + 2)}
		b = append(b, number.Draw(t, "fence")...)
		b = append(b, number.Draw(t, "deadline")...)
		b = append(b, number.Draw(t, "held")...)
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

// White space around the text is ignored, and refused within it, where package base64 skips
// line breaks.
func TestDetachedWithLineBreaks(t *testing.T) {
	sent := Detached{&detached{key: "k", token: "t", step: 1}}
	text, err := sent.MarshalText()
	require.NoError(t, err)
	for _, around := range []string{"\n", "\r\n", " ", "\t\n "} {
		var got Detached
		require.NoError(t, got.UnmarshalText([]byte(around+string(text)+around)))
		require.Equal(t, sent.String(), got.String())
	}
	for _, within := range []string{"\n", "\r", " "} {
		broken := string(text[:12]) + within + string(text[12:])
		require.ErrorIs(t, new(Detached).UnmarshalText([]byte(broken)), ErrInvalid)
	}
	for _, empty := range []string{"", "\n"} {
		require.ErrorIs(t, new(Detached).UnmarshalText([]byte(empty)), ErrInvalid)
	}
}

func TestDetachedOfTooManySteps(t *testing.T) {
	for _, step := range []int{maxSteps + 1, 255} {
		text, err := Detached{&detached{key: "k", token: "t", step: step}}.MarshalText()
		require.NoError(t, err)
		require.ErrorIs(t, new(Detached).UnmarshalText(text), ErrInvalid)
	}
}
