package storewait

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWatch(t *testing.T) {
	var w Watch
	a, b := new(Call), new(Call)
	begun := time.Now()
	require.Zero(t, w.Answered(a), "it has not failed")
	require.Equal(t, begun, w.Failed(a, begun))
	require.Equal(t, begun, w.Failed(a, begun.Add(time.Second)), "the first in a row")
	require.Equal(t, begun, w.Failed(b, begun))
	require.Equal(t, 2, w.Count())
	require.Equal(t, begun, w.Answered(a))
	require.Equal(t, 1, w.Count())
	require.False(t, a.Failing())
	require.Equal(t, begun, w.End(b))
	require.Zero(t, w.End(a))
	require.Zero(t, w.Failed(a, begun), "it is over")
	require.Zero(t, w.Failed(b, begun))
	require.Zero(t, w.Count())
}

// A call that is over stays so, also if an answer comes at the same time.
func TestEndBesideAnAnswer(t *testing.T) {
	var w Watch
	for range 100_000 {
		c := new(Call)
		w.Failed(c, time.Now())
		var both sync.WaitGroup
		both.Go(func() { w.Answered(c) })
		w.End(c)
		both.Wait()
		require.Zero(t, w.Failed(c, time.Now()), "it is over")
	}
	require.Zero(t, w.Count())
}

func TestOf(t *testing.T) {
	Of(t.Context()).Failed(time.Now(), errors.New("nobody hears it"))
	l := &struct{ nobody }{}
	ctx := context.WithoutCancel(With(t.Context(), l))
	require.Same(t, l, Of(ctx))
}
