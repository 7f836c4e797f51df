package long

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	t.Setenv("DLOCK_LONG", " adapters  stress=10m topology=7")
	for part, want := range map[string]string{"adapters": "1", "stress": "10m", "topology": "7", "majority": ""} {
		require.Equal(t, want, Of(part), part)
	}
	require.Panics(t, func() { Of("none") })
	t.Setenv("DLOCK_LONG", "stres=10m")
	require.PanicsWithValue(t, `DLOCK_LONG="stres=10m": there is no part "stres"`, func() { Of("stress") })
}

func TestList(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	for part, what := range parts {
		require.Contains(t, string(page), "| `"+part+"` | "+what+" |\n")
	}
}
