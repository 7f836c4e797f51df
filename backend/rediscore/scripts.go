package rediscore

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

// A Script is a Lua script with a fixed number of keys, at least one, all in the same slot.
type Script struct {
	Source string
	SHA    string // SHA-1 of Source in hexadecimal, for EVALSHA
	Keys   int
}

//go:embed lua
var lua embed.FS

var (
	acquireScript = newScript(4, "return acquire()", "holder", "acquire-lone", "fence", "queue", "acquire")
	enqueueScript = newScript(4, "return enqueue()", "holder", "fence", "queue", "sweep", "enqueue")
	checkInScript = newScript(4, "return checkIn()", "holder", "fence", "queue", "sweep", "checkin")
	renewScript   = newScript(1, "return renew()", "holder", "renew")
	releaseScript = newScript(4, "", "holder", "release-lone", "fence", "queue", "release")
	freeScript    = newScript(1, "", "holder", "release-lone") // while the slot moves, as holderScript
	inspectScript = newScript(3, "", "inspect")
	holderScript  = newScript(1, "", "inspect")

	voteScript    = newScript(5, "", "holder", "acquire-lone", "fence", "ballot", "queue", "acquire", "vote")
	enlistScript  = newScript(5, "", "holder", "fence", "ballot", "queue", "sweep", "enqueue", "enlist")
	attendScript  = newScript(5, "", "holder", "fence", "ballot", "queue", "sweep", "checkin", "attend")
	confirmScript = newScript(5, "", "holder", "fence", "ballot", "renew", "confirm")
	passScript    = newScript(5, "", "holder", "fence", "ballot", "pass", "release-lone", "queue", "release")
)

// newScript makes a script of some of the files in lua, one after the other, and of code at its end. A file uses what
// the files before it define.
func newScript(keys int, end string, files ...string) *Script {
	parts := make([]string, 0, len(files)+1)
	for _, name := range files {
		parts = append(parts, luaSource(name))
	}
	source := strings.Join(append(parts, end), "\n")
	sum := sha1.Sum([]byte(source))
	return &Script{Source: source, SHA: hex.EncodeToString(sum[:]), Keys: keys}
}

func luaSource(name string) string {
	source, err := lua.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err)
	}
	return string(source)
}
