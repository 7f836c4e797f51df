package bubble_test

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
	"github.com/dlock-go/dlock/internal/israce"
)

func TestOneCPUWithTheRaceDetector(t *testing.T) {
	cpus := runtime.GOMAXPROCS(0)
	within := cpus
	if israce.Enabled {
		within = 1
	}
	for range 2 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			bubble.Test(t, func(t *testing.T) { require.Equal(t, within, runtime.GOMAXPROCS(0)) })
		})
	}
	t.Cleanup(func() { require.Equal(t, cpus, runtime.GOMAXPROCS(0)) })
}

// A test that fails while another goroutine waits does not end the program, nor does one whose other goroutine fails
// afterwards, one that has not failed, and one that waits itself.
func TestBlocked(t *testing.T) {
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	require.NoError(t, err)
	skip := flag.Lookup("test.skip").Value // what the check leaves out is none of these
	defer skip.Set(skip.String())
	require.NoError(t, skip.Set(""))
	ran := make(map[string]bool)
	for name, test := range map[string]func(t *testing.T){
		"fails": func(t *testing.T) { go func() { select {} }(); require.Fail(t, "on purpose") },
		"woken": func(t *testing.T) { go func() { <-t.Context().Done(); t.Error("too") }(); t.FailNow() },
		"ends":  func(*testing.T) { go func() { select {} }() },
		"waits": func(*testing.T) { select {} },
		"right": func(t *testing.T) { t.Cleanup(func() { ran["right to the end"] = true }) },
	} {
		stdout := os.Stdout
		os.Stdout = output
		ran[name] = testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{
			Name: name, F: func(t *testing.T) { bubble.Test(t, test) },
		}})
		os.Stdout = stdout
	}
	require.Equal(t, map[string]bool{"fails": false, "woken": false, "ends": false, "waits": false, "right": true, "right to the end": true}, ran)
	text, err := os.ReadFile(output.Name())
	require.NoError(t, err)
	require.Contains(t, string(text), "on purpose")
	require.Contains(t, string(text), "deadlock: all goroutines in bubble are blocked\n")
	require.Contains(t, string(text), "bubble_test.go:")
}
