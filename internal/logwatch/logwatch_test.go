package logwatch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

var errLast = errors.New("last")

func TestGate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		gathered := make(map[string][]int)
		const span = time.Minute
		g := NewGate(span, func(kind string, n int, last error) {
			require.Equal(t, errLast, last)
			gathered[kind] = append(gathered[kind], n)
			panic("is recovered")
		})
		pass := func(kind string, n int) (passed int) {
			for range n {
				if g.Passes(kind, errLast) {
					passed++
				}
			}
			return passed
		}
		require.Equal(t, most, pass("a", 2*most))
		require.Equal(t, most, pass("b", most), "another kind")
		time.Sleep(span / 2)
		require.Zero(t, pass("a", 1))
		time.Sleep(span)
		synctest.Wait()
		require.Equal(t, map[string][]int{"a": {most + 1}}, gathered)
		require.Equal(t, most, pass("b", most), "a second later")
		require.Equal(t, most, pass("a", most), "after a flood")
		time.Sleep(time.Hour)
		require.Len(t, gathered, 1)
	})
}

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
