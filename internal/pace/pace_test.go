package pace

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

func within(t *testing.T, least, most, d time.Duration) {
	t.Helper()
	require.LessOrEqual(t, least, d)
	require.LessOrEqual(t, d, most)
}

func TestAfterFailures(t *testing.T) {
	for range 100 {
		within(t, minPoll, minPoll*3/2, AfterFailures(1))
		within(t, 4*minPoll, 6*minPoll, AfterFailures(3))
		within(t, maxFailure, maxFailure*3/2, AfterFailures(5))
		within(t, maxFailure, maxFailure*3/2, AfterFailures(1_000_000))
	}
}

func TestPoll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var p Poll
		now, longest := time.Now(), time.Duration(0)
		for range 1000 {
			for _, end := range []time.Time{{}, now.Add(time.Hour)} {
				d := p.Next(end)
				within(t, minPoll, maxPoll, d)
				longest = max(longest, d)
			}
			within(t, 10*time.Millisecond, 13*time.Millisecond, p.Next(now.Add(10*time.Millisecond)))
			within(t, 2*minPoll, maxPoll, p.Next(now.Add(10*time.Millisecond)))
			within(t, 0, 3*time.Millisecond, p.Next(now.Add(-time.Nanosecond)))
			within(t, 2*minPoll, maxPoll, p.Next(time.Time{}))
		}
		require.Greater(t, longest, maxPoll*9/10)
	})
}

func TestKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var k Keys
		require.False(t, k.Has("a"))
		k.Add("a")
		time.Sleep(recently - time.Nanosecond)
		require.True(t, k.Has("a"))
		require.False(t, k.Has("b"))
		k.Add("b")
		time.Sleep(time.Nanosecond)
		require.False(t, k.Has("a"))
		require.True(t, k.Has("b"))
		for i := range 3 * maxKeys {
			k.Add(fmt.Sprint(i))
			require.True(t, k.Has(fmt.Sprint(i)))
			require.LessOrEqual(t, len(k.until), maxKeys)
		}
	})
}
