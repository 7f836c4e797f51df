package dlock_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/memory"
)

func TestForward(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		f := dlock.Forward{Locker: plain{s}}
		_, err := f.Acquire(t.Context(), "k", "t", time.Second)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = f.RenewBatch(t.Context(), nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = f.Inspect(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.Empty(t, s.made())
	})
}

func TestCoreImportsTheStandardLibraryOnly(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "github.com/dlock-go/dlock", strings.TrimSpace(string(out)))
}
