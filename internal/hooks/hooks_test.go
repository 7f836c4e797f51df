package hooks

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock/internal/bubble"
)

type observer struct {
	seen  func(context.Context, int)
	asked func(context.Context, int) context.Context
}

func seen(o *observer) func(context.Context, int) { return o.seen }

func asked(o *observer) func(context.Context, int) context.Context { return o.asked }

func TestTell(t *testing.T) {
	var q Queue
	var got []int
	note := observer{seen: func(_ context.Context, i int) { got = append(got, i) }}
	Tell(&q, []observer{note, {}, note}, seen, t.Context(), 7)
	require.Equal(t, []int{7, 7}, got)
}

// Events wait for a hook that is slow, in their order, and are dropped if too many wait.
func TestTellLater(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		idle := 0
		q := Queue{Idle: func() { idle++ }}
		var got []int
		slow := []observer{{}, {seen: func(_ context.Context, i int) { time.Sleep(time.Second); got = append(got, i) }}}
		TellLater(&q, 1, []observer{{}}, seen, t.Context(), 0)
		require.False(t, q.Running())
		for i := range 5 {
			TellLater(&q, 3, slow, seen, t.Context(), i)
			synctest.Wait()
		}
		require.True(t, q.Running())
		require.EqualValues(t, 1, q.Dropped())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 3}, got)
		require.False(t, q.Running())
		require.Equal(t, 1, idle)
	})
}

func TestAsk(t *testing.T) {
	type key int
	var q Queue
	lend := func(k key) observer {
		return observer{asked: func(ctx context.Context, i int) context.Context { return context.WithValue(ctx, k, i) }}
	}
	silent := observer{asked: func(context.Context, int) context.Context { return nil }}
	ctx, differs := Ask(&q, []observer{lend(1), {}, lend(2), silent}, asked, t.Context(), 7)
	require.True(t, differs)
	require.Equal(t, 7, ctx.Value(key(1)))
	require.Equal(t, 7, ctx.Value(key(2)))
	ctx, differs = Ask(&q, []observer{silent, {}}, asked, t.Context(), 7)
	require.False(t, differs)
	require.Equal(t, t.Context(), ctx)
}

// A panic is recovered, and the first one is logged.
func TestPanics(t *testing.T) {
	old := slog.Default()
	defer slog.SetDefault(old)
	var log counter
	slog.SetDefault(slog.New(&log))
	var q Queue
	bad := []observer{{seen: func(context.Context, int) { panic("fault") }, asked: func(context.Context, int) context.Context { panic("fault") }}}
	Tell(&q, bad, seen, t.Context(), 1)
	ctx, differs := Ask(&q, bad, asked, t.Context(), 1)
	require.Equal(t, t.Context(), ctx)
	require.False(t, differs)
	require.EqualValues(t, 1, log)
}

// A counter counts what is logged.
type counter int

func (c *counter) Enabled(context.Context, slog.Level) bool  { return true }
func (c *counter) Handle(context.Context, slog.Record) error { *c++; return nil }
func (c *counter) WithAttrs([]slog.Attr) slog.Handler        { return c }
func (c *counter) WithGroup(string) slog.Handler             { return c }
