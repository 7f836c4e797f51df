package dlock

import (
	"crypto/rand"
	"strings"
)

// A token is tokenPrefix, 26 random characters (130 bits), a dot and the owner
// label. The prefix tells our tokens from what other programs store under the
// same keys, and carries the version of this format.
const (
	tokenPrefix = "dlock1."
	randomChars = 26
)

func newToken(owner string) string { return tokenPrefix + rand.Text()[:randomChars] + "." + owner }

// ownerOf returns the label of a token. It is empty for any value that this
// package has not made: that may be somebody's secret.
func ownerOf(token string) string {
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok || len(rest) <= randomChars || rest[randomChars] != '.' {
		return ""
	}
	if strings.Trim(rest[:randomChars], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return ""
	}
	return rest[randomChars+1:]
}
