package dlock

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

// A token is tokenPrefix, 26 random characters (128 bits), a dot and the owner
// label. The prefix tells our tokens from what other programs store under the
// same keys, and carries the version of this format.
const (
	tokenPrefix = "dlock1."
	randomChars = 26
)

const randomAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"

var randomText = base32.NewEncoding(randomAlphabet).WithPadding(base32.NoPadding)

func newToken(owner string) string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	var buf [64]byte
	b := append(buf[:0], tokenPrefix...)
	b = randomText.AppendEncode(b, random[:])
	b = append(b, '.')
	return string(append(b, owner...))
}

// ownerOf returns the label of a token. It is empty for any value that this
// package has not made: that may be somebody's secret.
func ownerOf(token string) string {
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok || len(rest) <= randomChars || rest[randomChars] != '.' {
		return ""
	}
	if strings.Trim(rest[:randomChars], randomAlphabet) != "" {
		return ""
	}
	return rest[randomChars+1:]
}
