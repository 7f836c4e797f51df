package conformance

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A historyError says what is wrong with a random workload, how to repeat it,
// and can draw it.
type historyError struct {
	err       error
	chronicle *chronicle
	offence   *offence // nil if no piece of the history is to blame
}

func (e *historyError) Error() string {
	return fmt.Sprintf("%v\n%s=%d makes the same random choices again", e.err, seedVariable, e.chronicle.seed)
}

func (e *historyError) Unwrap() error { return e.err }

// keepPicture writes the picture of a history that failed, and says where it is.
// With the flag -artifacts that is among the artifacts of t; otherwise it is a
// temporary file, since those of t would be gone when the test has ended.
func keepPicture(t *testing.T, err error) string {
	var e *historyError
	if !errors.As(err, &e) {
		return ""
	}
	dir := os.TempDir()
	if f := flag.Lookup("test.artifacts"); f != nil && f.Value.String() == "true" {
		dir = t.ArtifactDir()
	}
	path := filepath.Join(dir, fmt.Sprintf("dlock-history-%d.html", e.chronicle.seed))
	if err := os.WriteFile(path, e.picture(), 0o600); err != nil {
		return fmt.Sprintf("\nno picture of the history: %v", err)
	}
	return "\npicture of the history: " + path
}
