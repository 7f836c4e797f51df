package interop

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var quoted = regexp.MustCompile("(?s)<!-- quoted: (\\S+) -->\n```\\w+\n(.*?)```")

// TestDocumentationQuotesTheCode: each block of Go in the documents is in the code that the
// tests here run.
func TestDocumentationQuotesTheCode(t *testing.T) {
	for _, page := range []string{"../docs/coming-from-redsync.md", "../docs/coming-from-redislock.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		found := quoted.FindAllStringSubmatch(string(text), -1)
		require.Len(t, found, strings.Count(string(text), "```go"), "blocks of Go that are marked as quoted")
		require.NotEmpty(t, found)
		for _, m := range found {
			source, err := os.ReadFile(m[1])
			require.NoError(t, err)
			require.Contains(t, string(source), m[2], "%s quotes what is not in %s", page, m[1])
		}
	}
}
