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
var files embed.FS

var (
	acquireScript = newScript("acquire.lua", 4)
	enqueueScript = newScript("enqueue.lua", 4)
	checkInScript = newScript("checkin.lua", 4)
	renewScript   = newScript("renew.lua", 1)
	releaseScript = newScript("release.lua", 4)
	freeScript    = newScript("free.lua", 1)
	inspectScript = newScript("inspect.lua", 3)
	holderScript  = newScript("holder.lua", 1)

	voteScript    = newScript("vote.lua", 5)
	enlistScript  = newScript("enlist.lua", 5)
	attendScript  = newScript("attend.lua", 5)
	confirmScript = newScript("confirm.lua", 5)
	passScript    = newScript("pass.lua", 5)
)

func newScript(name string, keys int) *Script {
	source := including(name, make(map[string]bool))
	sum := sha1.Sum([]byte(source))
	return &Script{Source: source, SHA: hex.EncodeToString(sum[:]), Keys: keys}
}

// including returns a file with the files that its --include lines name, each only the first time.
func including(name string, included map[string]bool) string {
	if included[name] {
		return ""
	}
	included[name] = true
	var all strings.Builder
	for line := range strings.Lines(file(name)) {
		if other, ok := strings.CutPrefix(line, "--include "); ok {
			line = including(strings.TrimSpace(other), included)
		}
		all.WriteString(line)
	}
	return all.String()
}

func file(name string) string {
	text, err := files.ReadFile("lua/" + name)
	if err != nil {
		panic(err)
	}
	return string(text)
}
