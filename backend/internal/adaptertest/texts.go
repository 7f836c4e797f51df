package adaptertest

import (
	"regexp"
	"strings"
)

// What the proxies of rented clusters accept in a script, by its text: a command is named by a literal, its keys are
// literally KEYS[1] and so on, and KEYS stands nowhere else.
var (
	redisCall  = regexp.MustCompile(`redis\.p?call\(`)
	plainCall  = regexp.MustCompile(`redis\.p?call\('(?:TIME'|[A-Z]+'(?:, KEYS\[\d\])+[,)])`)
	forbidden  = regexp.MustCompile(`\b(?:unpack|[PS]?(?:UN)?SUBSCRIBE|S?PUBLISH|PUBSUB)\b`)
	badScript  = "ERR bad lua script for redis cluster, "
	literals   = badScript + "first parameter of redis.call/redis.pcall must be a single literal string"
	keysArray  = badScript + "all the keys that the script uses should be passed using the KEYS array, and KEYS should not be in expression"
	nestedCall = badScript + "redis.call/redis.pcall should not be nested"
)

// RefuseText returns the error with which such a proxy refuses a script, or "". The rules are those of Tair: "Lua scripting in
// Tair (Redis OSS-compatible)", and its support for KEYS[i] in a loop. A comment counts, too: who knows.
func RefuseText(source string) string {
	rest := plainCall.ReplaceAllString(source, "")
	switch {
	case forbidden.MatchString(source):
		return badScript + forbidden.FindString(source) + " is not supported"
	case strings.Contains(rest, "KEYS"):
		return keysArray
	case strings.Contains(rest, "redis."):
		return literals
	}
	for _, call := range redisCall.Split(source, -1)[1:] {
		if open(call) {
			return nestedCall
		}
	}
	return ""
}

// open reports whether the call of which a text is the rest is not closed in it.
func open(rest string) bool {
	depth := 1
	for _, c := range rest {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return false
			}
		}
	}
	return true
}
