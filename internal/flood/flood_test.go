package flood

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
