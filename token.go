package dlock

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
	"time"
)

// A token consists of tokenPrefix, 26 random characters (128 bits), the time when it was made
// (9 characters, see appendStarted), a dot and the owner label. The prefix distinguishes our
// tokens from other programs' values, and contains the version of this format.
const (
	tokenPrefix  = "dlock1."
	randomChars  = 26
	startedChars = 9
)

const tokenAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"

var randomText = base32.NewEncoding(tokenAlphabet).WithPadding(base32.NoPadding)

func newToken(owner string, started time.Time) string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	var buf [128]byte
	b := append(buf[:0], tokenPrefix...)
	b = randomText.AppendEncode(b, random[:])
	b = appendStarted(b, started)
	b = append(b, '.')
	return string(append(b, owner...))
}

// appendStarted appends an instant in milliseconds since 1970 as 9 digits of base 32, the
// highest first. They last until the year 3084.
func appendStarted(b []byte, started time.Time) []byte {
	ms := uint64(started.UnixMilli())
	for shift := 5 * (startedChars - 1); shift >= 0; shift -= 5 {
		b = append(b, tokenAlphabet[ms>>shift&31])
	}
	return b
}

func parseStarted(digits string) time.Time {
	var ms int64
	for i := range len(digits) {
		ms = ms<<5 | int64(strings.IndexByte(tokenAlphabet, digits[i]))
	}
	return time.UnixMilli(ms)
}

// parseToken returns a token's label, and when it was made. They are zero for a value that
// this package has not made, which may be somebody's secret.
func parseToken(token string) (owner string, started time.Time) {
	const chars = randomChars + startedChars
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok || len(rest) <= chars || rest[chars] != '.' || strings.Trim(rest[:chars], tokenAlphabet) != "" {
		return "", time.Time{}
	}
	return rest[chars+1:], parseStarted(rest[randomChars:chars])
}
