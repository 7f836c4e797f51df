package recent

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

func TestKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var k Keys
		require.False(t, k.Has("a"))
		k.Add("a")
		time.Sleep(span - time.Nanosecond)
		require.True(t, k.Has("a"))
		require.False(t, k.Has("b"))
		k.Add("b")
		time.Sleep(time.Nanosecond)
		require.False(t, k.Has("a"))
		require.True(t, k.Has("b"))
		for i := range 3 * most {
			k.Add(fmt.Sprint(i))
			require.True(t, k.Has(fmt.Sprint(i)))
			require.LessOrEqual(t, len(k.until), most)
		}
	})
}
