package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files are what the program writes.
func TestFilesAreUpToDate(t *testing.T) {
	for name, want := range files() {
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, want, string(got), "%s: run go generate ./docs/pictures", name)
	}
}
