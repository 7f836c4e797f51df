package dlock_test

import (
	"errors"
	"os/exec"
	"reflect"
	"slices"
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

// A decorator of TryAcquire sees each attempt at a key of a set, since Forward does not pass sets on.
func TestForwardHasAllButSets(t *testing.T) {
	optional := map[string]bool{"TryAcquireSet": false, "Acquire": true, "RenewBatch": true, "Inspect": true, "LongestTTL": true}
	f := reflect.TypeFor[dlock.Forward]()
	for name, has := range optional {
		_, found := f.MethodByName(name)
		require.Equal(t, has, found, name)
	}
	in(t, func(t *testing.T, m *memory.Locker, s *spy) {
		require.Implements(t, (*dlock.SetAcquirer)(nil), m)
		_, ok := dlock.Locker(s).(dlock.SetAcquirer)
		require.False(t, ok, "a Forward around it is embedded")
		set, err := dlock.New(s).AcquireAll(t.Context(), "a", "b")
		require.NoError(t, err)
		require.Len(t, s.made(), 2)
		require.NoError(t, set.Release())
	})
}

func TestCoreImportsTheStandardLibraryOnly(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.Module.Path}}{{end}}", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	modules := slices.Compact(strings.Fields(string(out)))
	require.Equal(t, []string{"github.com/dlock-go/dlock"}, modules)
}

// Around a store that does not take every TTL, a decorator lets the Client refuse a longer MinHold.
func TestForwardPassesTheLongestTTLOn(t *testing.T) {
	in(t, func(t *testing.T, _ *memory.Locker, s *spy) {
		l := dlock.Forward{Locker: dlock.Forward{Locker: limited{s}}}
		_, err := dlock.New(l, dlock.WithMinHold(time.Minute+1)).TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, dlock.ErrInvalid)
		require.ErrorContains(t, err, "longer than 1m0s, the longest TTL of the Locker")
		require.NoError(t, acquire(t, dlock.New(l, dlock.WithMinHold(time.Minute)), "k").Release())
		require.NoError(t, acquire(t, dlock.New(dlock.Forward{Locker: s}, dlock.WithMinHold(365*24*time.Hour)), "long").Release())
	})
}

// A limited Locker takes no TTL above a minute.
type limited struct{ dlock.Locker }

func (limited) LongestTTL() time.Duration { return time.Minute }
