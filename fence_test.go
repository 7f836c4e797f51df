package dlock_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Two masters may give two leases the same fence. The register of [Example_fence] obeys the first
// that writes.
func TestEqualFences(t *testing.T) {
	var r register
	require.NoError(t, r.write(8, "mine", "one"))
	require.ErrorIs(t, r.write(8, "other", "two"), errBehind, "an equal fence of another lease")
	require.NoError(t, r.write(8, "mine", "one"), "a write that is repeated")
	require.NoError(t, r.write(16, "other", "two"), "a larger fence")
	require.ErrorIs(t, r.write(8, "mine", "one"), errBehind, "a smaller fence")
	require.Equal(t, "two", r.value)
}
