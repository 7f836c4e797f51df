package outage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

func TestOutage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var w Watch
		a, b, c := ID{"k", 1}, ID{"k", 2}, ID{"l", 1}
		over := func(id ID) bool { _, over := w.Succeeded(id); return over }
		require.False(t, over(a), "there is none")
		require.True(t, w.Failed(a, time.Hour))
		require.False(t, w.Failed(a, time.Hour), "the same")
		require.False(t, w.Failed(b, time.Hour))
		time.Sleep(time.Second)
		require.False(t, over(a), "b has not succeeded")
		after, ended := w.Succeeded(b)
		require.True(t, ended)
		require.Equal(t, time.Second, after)

		require.True(t, w.Failed(a, time.Hour))
		w.Gone(a)
		require.False(t, w.Failed(b, time.Hour), "there was no sign of life")
		w.Alive()
		require.False(t, w.Failed(b, time.Hour), "b still counts")
		w.Alive()
		w.Gone(b)
		require.True(t, w.Failed(c, time.Second))
		time.Sleep(time.Second)
		require.True(t, over(a), "c counts no more")
		require.True(t, w.Failed(a, time.Hour))
		time.Sleep(longest)
		require.True(t, over(b), "a counts no more")

		require.True(t, w.Failed(a, time.Hour))
		time.Sleep(15 * time.Second)
		_, ended = w.Alive()
		require.False(t, ended, "a still counts")
		time.Sleep(time.Hour)
		w.Gone(a)
		after, ended = w.Alive()
		require.True(t, ended)
		require.Equal(t, 15*time.Second, after, "to the first sign of life after the last failure")
	})
}
