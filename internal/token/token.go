// Package token makes the secrets under which leases are stored, and the owner labels in them. It also writes a
// detached lease as text, and reads it.
//
// A token consists of a prefix, 26 random characters (128 bits), the time when it was made (9
// characters), a dot and the owner label. The prefix distinguishes our tokens from other programs'
// values, and contains the version of this format. A colon in place of the dot says that the token is for a wait in the
// store's queue: it may be made long before it is granted a lock.
package token

import (
	"encoding/base32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/dlock-go/dlock/internal/chance"
)

// MaxOwner is how many bytes an owner label has at most.
const MaxOwner = 256

const (
	prefix       = "dlock1."
	randomChars  = 26
	startedChars = 9
	alphabet     = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

var randomText = base32.NewEncoding(alphabet).WithPadding(base32.NoPadding)

// New returns a token that nobody can guess.
func New(owner string, started time.Time, waits bool) string {
	random := chance.Bits()
	var buf [128]byte
	b := append(buf[:0], prefix...)
	b = randomText.AppendEncode(b, random[:])
	b = appendStarted(b, started)
	if waits {
		b = append(b, ':')
	} else {
		b = append(b, '.')
	}
	return string(append(b, owner...))
}

// appendStarted appends an instant in milliseconds since 1970 as 9 digits of base 32, the
// highest first. They last until the year 3084.
func appendStarted(b []byte, started time.Time) []byte {
	ms := uint64(started.UnixMilli())
	for shift := 5 * (startedChars - 1); shift >= 0; shift -= 5 {
		b = append(b, alphabet[ms>>shift&31])
	}
	return b
}

func parseStarted(digits string) time.Time {
	var ms int64
	for i := range len(digits) {
		ms = ms<<5 | int64(strings.IndexByte(alphabet, digits[i]))
	}
	return time.UnixMilli(ms)
}

// Parse returns a token's label, and when it was made. They are zero for a value that New has not
// made, which may be somebody's secret.
func Parse(token string) (owner string, started time.Time) {
	const chars = randomChars + startedChars
	rest, ok := strings.CutPrefix(token, prefix)
	if !ok || len(rest) <= chars || rest[chars] != '.' && rest[chars] != ':' || strings.Trim(rest[:chars], alphabet) != "" {
		return "", time.Time{}
	}
	return rest[chars+1:], parseStarted(rest[randomChars:chars])
}

// Waits reports whether a token was made for a wait in the store's queue.
func Waits(token string) bool {
	const dot = len(prefix) + randomChars + startedChars
	return len(token) > dot && token[dot] == ':'
}

// HostOwner returns a label that names this process: host name, program and process id, as in
// "web-7/billing[4711]". It has at most MaxOwner bytes, and only printable characters.
func HostOwner() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return hostOwner(host, filepath.Base(os.Args[0]), os.Getpid())
}

func hostOwner(host, program string, pid int) string {
	const most = (MaxOwner - len("/[18446744073709551615]")) / 2
	return printable(host, most) + "/" + printable(program, most) + "[" + strconv.Itoa(pid) + "]"
}

// printable returns s with a question mark for each character that cannot be printed, cut to
// at most most bytes.
func printable(s string, most int) string {
	var b strings.Builder
	for _, r := range s {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			r = '?'
		}
		if b.Len()+len(string(r)) > most {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}
