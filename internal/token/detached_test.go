package token

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const maxKey = 1024

var anyBytes = rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) })

func drawDetached(t *rapid.T) *Detached {
	return &Detached{
		Key:   string(rapid.SliceOfN(rapid.Byte(), 1, maxKey).Draw(t, "key")),
		Token: "t" + anyBytes.Draw(t, "token"),
		Fence: rapid.Int64Range(0, math.MaxInt64).Draw(t, "fence"),
		Step:  rapid.IntRange(1, MaxSteps).Draw(t, "step"),

		Deadline: time.UnixMilli(rapid.Int64().Draw(t, "deadline")),
		Held:     time.Duration(rapid.Int64Range(0, maxHeld.Milliseconds()).Draw(t, "held")) * time.Millisecond,
	}
}

// requireNoLease demands that a text is refused.
func requireNoLease(t require.TestingT, text string) {
	l, reason := ParseDetached(text, maxKey)
	require.Nil(t, l)
	require.NotEmpty(t, reason)
}

// What is parsed is what was written; key and token may have any bytes.
func TestDetachedArrivesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := drawDetached(t)
		got, reason := ParseDetached(string(sent.Text()), maxKey)
		require.Empty(t, reason)
		require.Equal(t, sent, got)
	})
}

// Text with one character changed, or cut off, is refused.
func TestDetachedIsChangedOnItsWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawDetached(t).Text()
		i := rapid.IntRange(0, len(text)-1).Draw(t, "position")
		requireNoLease(t, string(text[:i]))
		text[i] ^= byte(rapid.IntRange(1, 127).Draw(t, "change"))
		requireNoLease(t, string(text))
	})
}

// Of all texts with the right check sum, only those that Text returns are accepted.
func TestDetachedHasOneText(t *testing.T) {
	number := rapid.SampledFrom([]string{"\x00", "\x01", "\x02", "\x80\x00", "\x81\x00", "\x80\x01", "\x81\x80\x00", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"})
	rapid.Check(t, func(t *rapid.T) {
		b := []byte{rapid.Byte().Draw(t, "step") % (MaxSteps + 2)}
		b = append(b, number.Draw(t, "fence")...)
		b = append(b, number.Draw(t, "deadline")...)
		b = append(b, number.Draw(t, "held")...)
		b = append(b, number.Draw(t, "size")...)
		b = append(b, anyBytes.Draw(t, "rest")...)
		b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
		text := string(encoding.AppendEncode([]byte(detachedPrefix), b))
		if l, _ := ParseDetached(text, maxKey); l != nil {
			require.Equal(t, text, string(l.Text()))
		}
	})
}

func TestDetachedIsOutOfRange(t *testing.T) {
	for _, l := range []Detached{
		{Key: "k", Token: "t", Step: 0},
		{Key: "k", Token: "t", Step: MaxSteps + 1},
		{Key: "k", Token: "t", Step: 255},
		{Key: "", Token: "t", Step: 1},
		{Key: "k", Token: "", Step: 1},
		{Key: string(make([]byte, maxKey+1)), Token: "t", Step: 1},
		{Key: "k", Token: "t", Step: 1, Held: -time.Millisecond},
		{Key: "k", Token: "t", Step: 1, Held: maxHeld + time.Millisecond},
	} {
		requireNoLease(t, string(l.Text()))
	}
	text := string((&Detached{Key: "k", Token: "t", Step: 1}).Text())
	for _, within := range []string{"\n", "\r", " "} { // package base64 skips line breaks
		requireNoLease(t, text[:12]+within+text[12:])
	}
	requireNoLease(t, "")
}
