package rediscore

import (
	"embed"
	"strings"
)

// A Script is a Lua script.
type Script struct {
	Source string
	SHA    string // SHA-1 of Source in hexadecimal, for EVALSHA
	Keys   int    // how many keys it has, or 0 if that differs from call to call: see [Call]
}

//go:embed lua
var lua embed.FS

// sums has a line for each script: its name, and its SHA-1. A process may run where SHA-1 is not allowed, so none is
// computed. After a change of a script, go generate writes them.
var sums = "\n" + luaFile("sums.txt")

var (
	acquireScript  = newScript("acquire", 4, "return acquire()", "lone", "fence", "acquire-plain", "queue", "acquire")
	enqueueScript  = newScript("enqueue", 4, "return enqueue()", "fence", "queue", "sweep", "enqueue")
	checkInScript  = newScript("checkin", 4, "return checkIn()", "fence", "queue", "sweep", "checkin")
	renewScript    = newScript("renew", 1, "return renew()", "proof", "renew")
	releaseScript  = newScript("release", 4, "", "proof", "release-plain", "fence", "queue", "handon", "release")
	releasesScript = newScript("releases", 4, "", "fence", "queue", "handon", "releases")
	freeScript     = newScript("free", 1, "", "proof", "free") // while the slot moves, as holderScript
	inspectScript  = newScript("inspect", 4, "", "inspect")
	holderScript   = newScript("holder", 1, "", "holder")

	setScript = newScript("acquire-set", 0, "", "fence", "acquire-set")

	slotsScript = newScript("slots", 2, "return redis.call('EXISTS', KEYS[1], KEYS[2])")

	plainAcquireScript = newScript("acquire-plain", 4, "return 'queue'", "lone", "fence", "acquire-plain")
	plainReleaseScript = newScript("release-plain", 4, "return 'queue'", "proof", "release-plain")

	voteScript    = newScript("vote", 5, "", "fence", "ballot", "queue", "acquire", "vote")
	enlistScript  = newScript("enlist", 5, "", "fence", "ballot", "queue", "sweep", "enqueue", "enlist")
	attendScript  = newScript("attend", 5, "", "fence", "ballot", "queue", "sweep", "checkin", "attend")
	confirmScript = newScript("confirm", 5, "", "fence", "ballot", "proof", "renew", "confirm")
	passScript    = newScript("pass", 5, "", "fence", "ballot", "pass", "proof", "release-plain", "queue", "handon", "release")
)

// plain has the texts that a Locker without a queue sends first. A proxy that checks scripts lets them pass. They reply
// with queued, and have no effect, if others wait for the lock.
var plain = map[*Script]*Script{acquireScript: plainAcquireScript, releaseScript: plainReleaseScript}

const queued = "queue"

// whole are the scripts that follow when others wait.
var whole = map[*Script]*Script{plainAcquireScript: acquireScript, plainReleaseScript: releaseScript}

// newScript makes a script of some of the files in lua, one after the other, and of code at its end. A file uses what
// the files before it define.
func newScript(name string, keys int, end string, files ...string) *Script {
	parts := make([]string, 0, len(files)+1)
	for _, name := range files {
		parts = append(parts, luaSource(name))
	}
	_, sum, _ := strings.Cut(sums, "\n"+name+" ")
	sum, _, _ = strings.Cut(sum, "\n")
	return &Script{Source: strings.Join(append(parts, end), "\n"), SHA: sum, Keys: keys}
}

// luaSource is a file without its comments: a proxy that checks texts may take them for code.
func luaSource(name string) string {
	var b strings.Builder
	for line := range strings.Lines(luaFile(name + ".lua")) {
		code, _, _ := strings.Cut(line, "--")
		if code = strings.TrimRight(code, " \n"); code != "" {
			b.WriteString(code + "\n")
		}
	}
	return b.String()
}

func luaFile(name string) string {
	source, err := lua.ReadFile("lua/" + name)
	if err != nil {
		panic(err)
	}
	return string(source)
}
