package sqllock_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var quoted = regexp.MustCompile("(?s)<!-- quoted: (\\S+) -->\n```\\w+\n(.*?)```")

// What the documentation quotes is what the code says.
func TestDocumentationQuotesTheCode(t *testing.T) {
	const page = "../../docs/writing-a-backend.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	found := quoted.FindAllStringSubmatch(string(text), -1)
	if marks := strings.Count(string(text), "<!-- quoted"); len(found) != marks || marks == 0 {
		t.Fatalf("%s: %d blocks of code behind %d marks", page, len(found), marks)
	}
	for _, m := range found {
		source, err := os.ReadFile(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(source), strings.TrimSuffix(m[2], "\n")) {
			t.Errorf("%s quotes what is not in %s:\n%s", page, m[1], m[2])
		}
	}
}
