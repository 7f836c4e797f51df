package rediscore

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// called has what clients call besides the scripts, as in an ACL rule. The value is true if that is
// only in a cluster.
var called = map[string]bool{
	"+asking":         true,
	"+cluster|shards": true,
	"+cluster|slots":  true,
	"+command":        true,
	"+eval":           false,
	"+evalsha":        false,
	"+ping":           false,
	"+ssubscribe":     true,
	"+subscribe":      false,
}

func inCluster(right string) bool { return called[right] || right == "+spublish" }

// notCommands are words of the scripts that look like commands.
var notCommands = map[string]bool{"NUMSUB": true, "SHARDNUMSUB": true, "WITHSCORES": true}

// neededRights returns the rights that the scripts and clients need.
func neededRights() []string {
	rights := make(map[string]bool)
	for right := range called {
		rights[right] = true
	}
	for _, script := range []*Script{
		acquireScript, enqueueScript, checkInScript, renewScript, releaseScript, freeScript, inspectScript, holderScript,
	} {
		for _, word := range regexp.MustCompile(`'([A-Z]{3,})'`).FindAllStringSubmatch(script.Source, -1) {
			if !notCommands[word[1]] {
				rights["+"+strings.ToLower(word[1])] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(rights))
}

// The documentation shows the command that creates a user with exactly the rights that are needed.
func TestDocumentedRights(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	line := "ACL SETUSER dlock on >PASSWORD ~lock:* resetchannels &lock:* -@all " + strings.Join(neededRights(), " ")
	require.Equal(t, line, regexp.MustCompile(`ACL SETUSER .*`).FindString(string(doc)))
}
