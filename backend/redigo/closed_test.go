package redigo

import (
	"context"
	"errors"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/dlock-go/dlock"
)

// TestPoolClosedUnderACall has the context of a call end while its pool, which has a limit, is
// closed. redigo panics in about half of these calls.
func TestPoolClosedUnderACall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	closed := 0
	for range 100 {
		pool := &redis.Pool{MaxActive: 1, Wait: true}
		require.NoError(t, pool.Close())
		_, err := newConn(pool).get(ctx)
		require.True(t, dlock.NoEffect(err), "%v", err)
		if errors.Is(err, dlock.ErrClosed) {
			closed++
		} else {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	require.NotZero(t, closed, "calls that found out that the pool is closed")
}

// A panic of the user's own functions is not hidden.
func TestPanicOfDial(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for _, dial := range []func(context.CancelFunc){
		func(context.CancelFunc) { closed <- struct{}{} },
		func(end context.CancelFunc) { end(); panic("dial") },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pool := &redis.Pool{MaxActive: 1, Wait: true, Dial: func() (redis.Conn, error) { dial(cancel); return nil, nil }}
		require.Panics(t, func() { _, _ = newConn(pool).get(ctx) })
	}
}
